"""``examples/mge-toy``: small enough, and a net trains across it and ``ref``."""

import importlib.util
import sys

import numpy as np
import pytest

import mge
import mge.functional as F
import mge.module as M
from mge import cache
from mge.autodiff import GradManager
from mge.debug import debug
from mge.errors import UnsupportedError
from mge.jit import trace
from mge.op import OPS
from mge.optimizer import SGD
from tools.count_lines import ROOT, code_lines

FILE = ROOT / "examples" / "mge-toy" / "src" / "mge_toy" / "__init__.py"


@pytest.fixture
def toy(here):
    here.add(
        "mge-toy-copy",
        {"mge.backends": {"toy": "mge_toy_copy:Toy"}},
        {"mge_toy_copy": FILE.read_text()},
    )
    with debug(plugins="mge-toy-copy"):
        yield here


def test_the_toy_is_small():
    assert code_lines(FILE.read_text()) <= 40


def train(device, traced, steps=6):
    rng = np.random.default_rng(5)
    mge.set_default_device(device)
    try:
        net = M.Sequential(M.Linear(8, 16), M.ReLU(), M.Linear(16, 4))
        for p in net.parameters():
            p[...] = rng.normal(size=p.shape).astype("float32") * 0.3
        manager, optimizer = (
            GradManager().attach(net.parameters()),
            SGD(net.parameters(), lr=0.1, momentum=0.9),
        )

        def step(x, y):
            with manager:
                loss = F.cross_entropy(net(x), y)
                manager.backward(loss)
            optimizer.step().clear_grad()
            return loss

        step = trace(step) if traced else step
        losses = []
        for _ in range(steps):
            x = rng.normal(size=(32, 8)).astype("float32")
            losses.append(
                step(mge.tensor(x), mge.tensor(x[:, :4].argmax(1).astype("int32"))).item()
            )
        return losses
    finally:
        mge.set_default_device("ref")


@pytest.mark.parametrize("how", ["traced", "undecorated", "eager", "checked"])
def test_a_net_trains_across_toy_and_ref(toy, capsys, how):
    with debug(fallback="allow"):
        train("toy", False, 1)  # state of generators has a graph of its own
    mge.sync()
    with debug(check=3 if how == "checked" else 0), mge.eager(how == "eager"):
        toy_losses = train("toy", how == "traced")
        ref_losses = train("ref", how == "traced")
    np.testing.assert_allclose(toy_losses, ref_losses, rtol=1e-5)
    lines = [
        line for line in capsys.readouterr().err.splitlines() if "cross" in line or "log x" in line
    ]
    assert len(lines) == (0 if how == "eager" else 1)
    for line in lines:
        assert "bytes copied a run) run on ref instead of toy:0: " in line and "sum x" in line


def compiled(function, *args, monkeypatch):
    made = []
    original = cache.Plan
    monkeypatch.setattr(cache, "Plan", lambda *a: made.append(original(*a)) or made[-1])
    result = trace(function)(*args).numpy()
    return made[-1].graph, result


def test_placement_counts_nodes_and_bytes(toy, capsys, monkeypatch):
    x = mge.tensor(np.arange(12, dtype="float32").reshape(3, 4), device="toy")
    graph, result = compiled(
        lambda x: F.cumsum(F.tan(x + 1.0), 1) * 2.0, x, monkeypatch=monkeypatch
    )
    placement = graph.placement()
    assert placement["nodes"] == {"toy:0": 2, "ref:0": 2}
    assert (
        placement["copied_bytes"] == 2 * 48
    )  # there once and back once: tan and cumsum are neighbours
    assert [
        (r["op"], r["device"], r["reason"], r["count"], r["bytes"]) for r in placement["refused"]
    ] == [
        ("tan", "toy:0", "no kernel", 1, 48),
        ("cumsum", "toy:0", "no kernel", 1, 48),
    ]
    line = "mge: 2 of 4 ops (96 bytes copied a run) run on ref instead of toy:0: "
    line += "tan x1 (no kernel), cumsum x1 (no kernel)"
    assert capsys.readouterr().err.startswith(line)
    np.testing.assert_allclose(
        result, np.cumsum(np.tan(np.arange(12.0).reshape(3, 4) + 1), 1) * 2, rtol=1e-4
    )


def test_fallback_error_names_op_and_line(toy):
    x = mge.tensor([1.0], device="toy")
    with debug(fallback="error"):
        assert (x + 1.0).item() == 2.0
        for run in (F.tan, trace(F.tan)):
            with pytest.raises(
                UnsupportedError,
                match=r"tan: no kernel on toy:0 .*\n  refused: no kernel\n  at: .*test_toy",
            ):
                run(x).numpy()


def test_fallback_allow_is_silent(toy, capsys):
    with debug(fallback="allow"):
        trace(F.tan)(mge.tensor([1.0], device="toy")).numpy()
    assert not capsys.readouterr().err


def test_an_attribute_that_a_kernel_does_not_take_is_refused(toy):
    x = mge.tensor(np.eye(2, dtype="float32"), device="toy")
    device, matmul = x.device, OPS["matmul"]
    attrs = matmul.normal_attrs({"transpose_a": True, "compute_mode": "float32"})
    sig = matmul.signature([x._node.type] * 2, attrs, device)
    assert device.refusal(sig) == "not with compute_mode='float32'"
    half = matmul.signature([x.astype("float16")._node.type] * 2, matmul.normal_attrs({}), device)
    assert device.refusal(half) == "only float32, float64, bool"


def test_views_and_constants_need_no_kernel(toy, capsys):
    x = mge.tensor(np.arange(6, dtype="float32"), device="toy")
    made = trace(lambda x: x.reshape(2, 3) + F.full((3,), 2.0))(x).numpy()
    np.testing.assert_array_equal(made, np.arange(6).reshape(2, 3) + 2.0)


def test_tensors_move_between_devices(toy):
    x = mge.tensor([1.0, 2.0], device="toy")
    y = x.to("ref") + 1.0
    assert y.device == "ref:0" and y.tolist() == [2.0, 3.0]
    assert y.to("toy").device == "toy:0"


def test_the_module_is_importable_as_it_is():
    spec = importlib.util.spec_from_file_location("mge_toy_file", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.Toy().probe() is None and "mge_toy_file" not in sys.modules
