"""Devices in Python whose memory is their own: what users do with tensors there, training, failures, the contract."""

import contextlib
import copy
import gc
import os
import pickle

import numpy as np
import pytest

import mge
import mge.functional as F
import mge.module as M
from mge import device as devices
from mge.autodiff import GradManager
from mge.buffer import DeviceArray
from mge.cache import PLANS
from mge.debug import debug
from mge.errors import DeviceError, InternalError, OutOfMemory, PluginContractError
from mge.jit import trace
from mge.plugin import CopyKind
from tests.core.plugins.opaque import Opaque, OpaqueQueue
from tests.core.plugins.training import LeNet, Training, default_device, mlp


@pytest.fixture
def plug():
    """A function that makes a backend's device usable; they are taken out afterwards."""
    added = []

    def make(backend):
        devices.BACKENDS[backend.name] = backend
        added.append(backend.name)
        return devices.as_device(backend.name)

    PLANS.clear()
    with debug(fallback="allow"):
        yield make
    with contextlib.suppress(Exception):  # of a test that failed
        mge.sync()
    PLANS.clear()
    for name in added:
        del devices.BACKENDS[name]
        devices._DEVICES.pop(f"{name}:0", None)


@pytest.fixture(params=[Opaque, OpaqueQueue], ids=["synchronous", "streams"])
def far(request, plug):
    """A device whose memory is its own, without and with streams."""
    return plug(request.param())


@pytest.fixture
def opaque(plug):
    return plug(Opaque())


def arange(*shape, device=None):
    return mge.tensor(np.arange(np.prod(shape), dtype=np.float32).reshape(shape), device=device)


# Tensors.


def test_values_go_there_and_come_back(far):
    x = arange(2, 3, device=far)
    assert isinstance(x._node.buffer.array, DeviceArray) and x.device is far
    assert x.numpy().tolist() == x.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (
        x.item(4) == 4
        and float(x.sum()) == 15
        and bool(x[0, 1] == 1)
        and not x.numpy().flags.writeable
    )
    assert repr(x).endswith(f"dtype=float32, device={far})") and "[3., 4., 5.]" in repr(x)
    assert np.asarray(x).tolist() == x.tolist() and int(mge.tensor(3, device=far)) == 3
    for dtype in ("bool", "int8", "bfloat16", "float64"):
        assert mge.tensor([1, 0], dtype=dtype, device=far).numpy().tolist() == [1, 0]
    assert mge.tensor(np.zeros((0, 3), np.float32), device=far).numpy().shape == (0, 3)


def test_tensors_move_and_are_copied(far):
    x = arange(3, device=far)
    assert x.to("ref").device == "ref:0" and x.to("ref").to(far).tolist() == [0, 1, 2]
    for _ in range(3):
        there = F.copy(F.copy(x * 2.0, device="ref:0") + 1.0, device=str(far))
        assert there.device is far and (there * 2.0).tolist() == [2, 6, 10]
        assert F.copy(x, device="ref:0").device == "ref:0"
    assert copy.deepcopy(x).tolist() == pickle.loads(pickle.dumps(x)).tolist() == [0, 1, 2]
    assert copy.deepcopy(x).device is pickle.loads(pickle.dumps(x)).device is far
    x += 1
    x[0] = 7
    assert x.tolist() == [7, 2, 3]


def test_a_copy_between_devices_has_a_gradient(far):
    x = mge.Parameter(np.arange(3, dtype=np.float32), device=far)
    manager = GradManager().attach([x])
    for _ in range(3):
        with manager:
            y = F.copy(x * 2.0, device="ref:0")
            manager.backward((F.copy(y * y, device=str(far)) * x).sum())  # 4 x**3
        assert x.grad.device is far and x.grad.tolist() == [0, 12, 48]
        x.grad = None


def test_a_view_costs_no_copy(opaque):
    x = arange(4, 6, device=opaque)
    function = trace(lambda x: x.reshape(6, 4) * 2.0)
    wanted = np.arange(24.0).reshape(6, 4) * 2
    for _ in range(3):
        assert (function(x).numpy() == wanted).all()
    opaque.backend.copies = dict.fromkeys(CopyKind, 0)
    function(x).numpy()
    assert opaque.backend.copies == {
        CopyKind.HOST_TO_DEVICE: 0, CopyKind.DEVICE_TO_HOST: 96, CopyKind.DEVICE_TO_DEVICE: 0,
    }  # fmt: skip


def test_numbers_constants_and_passed_inputs(far):
    x = arange(4, device=far)
    function = trace(lambda x, rate: (x * rate + mge.tensor([1.0, 2.0, 3.0, 4.0]), x))
    with default_device(far):
        for rate in (2.0, 3.0, 3.0, -0.0, 0.0):
            y, same = function(x, rate)
            assert y.tolist() == [rate * i + i + 1 for i in range(4)] and same.tolist() == [
                0,
                1,
                2,
                3,
            ]
    for rate in (1.5, 2.5, 3.5):
        assert (x * rate).tolist() == [rate * i for i in range(4)]


def test_dlpack_is_refused_one_way(far):
    x = arange(3, device=far)
    with pytest.raises(
        DeviceError, match=rf"on {far}, whose memory is its own; DLPack(.|\n)*try: x.to\(\"ref\"\)"
    ):
        np.from_dlpack(x)
    assert mge.from_dlpack(np.arange(3), device=far).tolist() == [0, 1, 2]


def test_models_are_saved_and_loaded(far, tmp_path):
    with default_device(far):
        net = mlp()
        x = arange(2, 8, device=far)
        wanted = net(x).numpy()
        mge.save(net.state_dict(), tmp_path / "net.safetensors")
        other = mlp()
        other.load_state_dict(mge.load(tmp_path / "net.safetensors"))
        assert other(x).numpy().tobytes() == wanted.tobytes()
        function = trace(net)
        function(x)
        function.dump(tmp_path / "net.mge")
    for device in ("ref", far):
        loaded = mge.load_model(tmp_path / "net.mge", device=device)
        for _ in range(3):
            np.testing.assert_allclose(loaded(x.to(device)).numpy(), wanted, rtol=1e-5)


def test_python_and_control_flow_run_in_host_memory(far):
    x = arange(3, device=far)
    double = trace(lambda x: mge.host_call(lambda a: a * 2, [((3,), "float32")], x) + 1.0)
    loop = trace(
        lambda x: F.while_loop(
            lambda i, a: i < 3, lambda i, a: (i + 1, a * 2.0), (mge.tensor(0, device=far), x)
        )
    )
    pick = trace(lambda x: F.cond(x.sum() > 1.0, lambda a: a + 1.0, lambda a: a - 1.0, x))
    for _ in range(3):
        assert double(x).tolist() == [1, 3, 5]
        assert loop(x)[1].tolist() == [0, 8, 16]
        assert pick(x).tolist() == [1, 2, 3]
        assert F.non_zero(x > 0).tolist() == [[1], [2]]
        assert x[x > 0].tolist() == [1, 2]


def test_random_numbers_and_statistics_are_those_of_ref(far):
    def run(device):
        with default_device(device):
            mge.random.seed(4)
            norm, drop = M.BatchNorm1d(3), M.Dropout(0.5)
            x = mge.tensor(np.random.default_rng(0).normal(size=(8, 3)).astype("float32"))
            results = [drop(norm(x)).numpy() for _ in range(4)]
            return [*results, norm.running_mean.numpy(), norm.running_var.numpy()]

    for one, other in zip(run(far), run("ref")):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


# Training.


@pytest.mark.parametrize("how", ["traced", "undecorated", "eager", "checked"])
@pytest.mark.parametrize("make", [mlp, LeNet])
def test_nets_train_as_on_ref(far, how, make):
    with debug(check=3 if how == "checked" else 0), mge.eager(how == "eager"):
        for adam in (False, True):
            losses = [
                Training(device, make, how == "traced", adam).losses(6) for device in (far, "ref")
            ]
            np.testing.assert_allclose(*losses, rtol=1e-5)
            assert losses[0][0] != losses[0][5]


def test_the_summary_line_counts_what_runs_on_ref(opaque, capsys):
    with debug(fallback="warn"):
        Training(opaque, mlp).losses(4)
    lines = [
        line for line in capsys.readouterr().err.splitlines() if "cross" in line or "log" in line
    ]
    assert lines and "bytes copied a run) run on ref instead of opaque:0: " in lines[0]
    assert "(not in its list)" in lines[0]


def plan_of(function, *tensors):
    """Compile a function of tensors; return its plan."""
    PLANS.clear()
    for _ in range(2):
        mge.eval(*function(*tensors))
    structure = next(reversed(PLANS._structures.values()))
    return next(iter(structure.plans.values())).plan


def test_a_plan_has_an_arena_in_each_memory(far, plug):
    other = plug(type("Other", (Opaque,), {"name": "other"})())
    x, y = arange(16, device=far), arange(16, device=other)

    def function(x, y):
        a = F.copy((x * 2.0 + 1.0) * (x + 1.0), device=str(other))
        b = F.copy((y + 1.0) * (y * 3.0), device="ref:0")
        c = F.tan(b) * 0.0 + b
        return ((a + F.copy(c, device=str(other))) * 2.0, c + 1.0)

    wanted = [t.numpy() for t in function(x, y)]
    plan = plan_of(function, x, y)
    assert {d.name for d in plan.arenas} == {far.name, "other:0", "ref:0"}
    assert [d.name for d in plan.devices] == sorted(["other:0", "ref:0", far.name])
    assert plan.memory.arena_bytes == sum(size for size, _ in plan.arenas.values())
    for device, (size, _) in plan.arenas.items():
        tops = [
            plan.memory.offsets[at] + plan.storages[i].nbytes
            for i, at in plan.arena.items()
            if plan.storages[i].device is device
        ]
        assert tops and max(tops) <= size
    for _ in range(3):
        assert [t.tolist() for t in function(x, y)] == [w.tolist() for w in wanted]
    n = np.arange(16, dtype=np.float32)
    np.testing.assert_allclose(
        wanted[0], ((n * 2 + 1) * (n + 1) + (n + 1) * (n * 3)) * 2, rtol=1e-5
    )


def test_a_thousand_runs_hold_no_more_memory(far):
    training = Training(far, mlp)
    training.losses(6)

    def held():
        mge.sync()
        gc.collect()
        return far.pool.live_blocks, far.pool.in_use_bytes, len(far.backend.table)

    before = held()
    training.losses(1000)
    assert held() == before
    assert mge.get_allocated_memory(far) == far.pool.in_use_bytes < mge.get_reserved_memory(far)


def test_updates_write_over_the_old_values(opaque):
    training = Training(opaque, mlp, traced=True)
    training.losses(4)
    blocks = [p._node.buffer.array.memory.number for p in training.net.parameters()]
    training.losses(2)
    assert blocks == [p._node.buffer.array.memory.number for p in training.net.parameters()]


# Failures.


@pytest.mark.parametrize("error", [RuntimeError("planned"), KeyboardInterrupt()])
def test_a_failure_at_each_step_leaves_old_values_or_an_error(far, error):
    """As DESIGN's rule: before the first overwrite all is as it was; after it, what is lost says so when it is read."""
    training = Training(far, mlp)
    training.losses(4)
    far.backend.failure = error
    lost = 0
    for count in range(1000):
        before = training.values()
        far.backend.fail_at = count  # from then on: the core tries again node by node
        with contextlib.suppress(type(error)):
            training.losses(1)
        was_reached, far.backend.fail_at = far.backend.fail_at < 0, None
        if not was_reached:
            break
        try:
            after = training.values()
        except type(error):
            lost += 1
            training = Training(far, mlp)
            training.losses(4)
        else:
            assert all(x.tobytes() == y.tobytes() for x, y in zip(before, after))
    assert 10 < count < 1000 and lost < count / 2
    training.losses(2)


def test_out_of_memory_names_the_device_and_its_figures(plug):
    small = plug(Opaque(capacity=100_000))
    x = arange(100, device=small)
    text = r"memory of opaque:0: 425,984 bytes were asked for, 448 are in use, and the device gives no more: the table"
    for _ in range(2):
        with pytest.raises(OutOfMemory, match=text):
            arange(100_000, device=small)
    assert x.sum().item() == 4950
    big = [arange(5000, device=small) for _ in range(4)]
    del big  # cached, and given back when another size needs the room
    assert arange(20_000, device=small)[5].item() == 5
    small.pool.limit(50_000)
    with pytest.raises(OutOfMemory, match="448 are in use, and the limit is 50,000"):
        arange(20_000, device=small)


def test_checks_find_wrong_kernels_and_writes_past_the_end(plug):
    class Faulty(Opaque):
        name = "faulty"
        fault = ""

        def kernel(self, dev, use):
            right = super().kernel(dev, use)

            def kernel(inputs, outputs, stream):
                right(inputs, outputs, stream)
                if use.op.name == "exp" and self.fault == "past":
                    out = outputs[0]
                    self.table[out.memory.number][out.offset + out.nbytes] = 1
                if use.op.name == "exp" and self.fault == "wrong":
                    self.values_of(outputs[0])[1] += 1
                if use.op.name == "exp" and self.fault == "nan":
                    self.values_of(outputs[0])[1] = np.nan

            return kernel

    faulty = plug(Faulty())
    x = arange(3, device=faulty)
    for fault, text in (
        ("past", "exp, .* wrote past the end of"),
        ("wrong", "differs from ref"),
        ("nan", "made a NaN"),
    ):
        PLANS.clear()
        faulty.backend.fault = ""
        with debug(check=3):
            function = trace(lambda x: F.exp(x * 0.5).sum())
            for _ in range(2):
                function(x).numpy()
            faulty.backend.fault = fault
            with pytest.raises(InternalError, match=text):
                function(x).numpy()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_cannot_use_it(opaque):
    x = arange(3, device=opaque)
    (x + 1.0).numpy()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        texts = []
        for use in (lambda: x.numpy(), lambda: (x + 1.0).numpy(), lambda: arange(3, device=opaque)):
            try:
                use()
                texts.append("worked")
            except DeviceError as error:
                texts.append(str(error))
        texts.append(str((arange(3) + 1.0).tolist()))
        os.write(write, "\n--\n".join(texts).encode())
        os._exit(0)
    os.waitpid(child, 0)
    texts = os.read(read, 1 << 16).decode().split("\n--\n")
    os.close(read), os.close(write)
    assert len(texts) == 4 and texts[3] == "[1.0, 2.0, 3.0]"
    for text in texts[:3]:
        assert "opaque:0: this process was forked, and only its parent can use the device" in text
    assert x.tolist() == [0, 1, 2]


# The contract.


def test_numpy_cannot_read_what_a_kernel_gets(opaque):
    array = arange(3, device=opaque)._node.buffer.array
    with pytest.raises(
        DeviceError, match="opaque:0: its memory is its own, and NumPy cannot read it"
    ):
        np.add(array, 1)
    assert array.shape == (3,) and array.dtype == np.float32 and array.nbytes == 12
    assert array.numpy().tolist() == [0, 1, 2] and "float32(3,) at byte 0 of" in repr(array)


@pytest.mark.parametrize(
    ("method", "kind", "text"),
    [
        (
            "alloc",
            PluginContractError,
            "opaque:0: alloc raised ZeroDivisionError, and not OutOfMemory: planted",
        ),
        (
            "copy",
            DeviceError,
            r"opaque:0: copy of 12 bytes \(HOST_TO_DEVICE\) raised ZeroDivisionError: planted",
        ),
    ],
)
def test_what_a_backend_raises_names_it(plug, method, kind, text):
    def planted(self, *arguments):
        raise ZeroDivisionError("planted")

    device = plug(type("Faulty", (Opaque,), {method: planted})())
    with pytest.raises(kind, match=text):
        arange(3, device=device)


@pytest.mark.parametrize("missing", ["allocator", "copy"])
def test_an_incomplete_backend_is_incompatible(here, missing):
    source = "from mge.plugin import Backend\nclass Far(Backend):\n    name = 'far'\n"
    source += (
        "    def devices(self): return ('card',)\n    def supports(self, dev, use): return None\n"
    )
    source += "    def kernel(self, dev, use): return None\n"
    source += "".join(
        f"    def {m}(self, *a): return None\n" for m in ("allocator", "copy") if m != missing
    )
    here.add("mge-far", {"mge.backends": {"far": "mge_far:Far"}}, {"mge_far": source})
    with pytest.raises(
        mge.errors.PluginIncompatible, match=rf"it has no {missing}\(\), which a device with memory"
    ):
        mge.tensor([1.0], device="far")
