"""What MGE_DEBUG=2 says of device x86: the roof, costs of its ops, and each layer's algorithm."""

import re

import numpy as np
import pytest

import mge
import mge.functional as F
import mge.module as M
from mge.cost import multiply_adds
from mge.debug import debug
from mge.device import as_device
from mge.jit import trace
from mge.op import OPS
from mge.testing.cases import admit

# Ops that move, compare or add, and multiply no matrices: their cost is their bytes.
BYTES_ALONE = {
    "x86::avg_pool", "x86::avg_pool_backward", "x86::batch_norm_apply", "x86::batch_norm_backward",
    "x86::batch_norm_moments", "x86::chain", "x86::max_pool", "x86::max_pool_backward", "x86::pack_matrix",
    "x86::pack_weight",
}  # fmt: skip

ALGORITHMS = {"direct", "product", "depthwise", "winograd2", "winograd4"}


def use(name, inputs, **attrs):
    """Return the signature of one use of an op on device x86."""
    arrays = tuple(np.ones(shape, np.float32) for shape in inputs)
    return admit(OPS[name], "", arrays, attrs, as_device("x86:0")).sig


def test_the_roof_is_that_of_a_processor(x86):
    operations, read = as_device(x86).backend.roof(0)
    assert 1e9 < operations < 1e15 and 1e8 < read < 1e13


def test_each_op_says_what_it_multiplies(x86):
    own = {name for name in OPS if name.startswith("x86::")}
    assert {name for name in own if OPS[name].multiply_adds is None} == BYTES_ALONE


@pytest.mark.parametrize("algorithm", ["direct", "winograd2", "winograd4"])
def test_a_convolution_counts_as_its_sums(x86, algorithm):
    attrs = {
        "weight_shape": (32, 16, 3, 3),
        "stride": (1, 1),
        "padding": (1, 1),
        "dilation": (1, 1),
    }
    given = (
        (2, 8, 8, 16),
        OPS["x86::pack_weight"]
        ._reference(
            np.ones((32, 16, 3, 3), np.float32), algorithm=algorithm, groups=1, rotate=False
        )
        .shape,
    )
    count = 2 * 8 * 8 * 32 * 16 * 9
    assert multiply_adds(use("x86::conv", given, algorithm=algorithm, **attrs)) == count
    image, dy = (2, 8, 8, 16), (2, 8, 8, 32)
    assert multiply_adds(use("x86::conv_backward_weight", (image, dy), **attrs)) == count
    turned = (
        OPS["x86::pack_weight"]
        ._reference(np.ones((32, 16, 3, 3), np.float32), algorithm=algorithm, groups=1, rotate=True)
        .shape
    )
    sig = use(
        "x86::conv_backward_data", (turned, dy), input_shape=image, algorithm=algorithm, **attrs
    )
    assert multiply_adds(sig) == count


def test_products_and_attention_count_as_those_of_the_core(x86):
    assert multiply_adds(use("x86::linear", ((3, 5, 7), (16 * 7,)), columns=10)) == 3 * 5 * 7 * 10
    for name in ("attention", "attention_backward"):
        dy = ((2, 3, 5, 4),) * (name != "attention")  # (n, heads, tokens, size)
        shapes = (*dy, (2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 4))
        turned = [(n, t, h, d) for n, h, t, d in shapes]
        assert multiply_adds(use(f"x86::{name}", turned)) == multiply_adds(use(name, shapes))


def test_each_layer_has_its_algorithm_speed_and_share(x86, monkeypatch, capsys):
    monkeypatch.setattr("mge.device._default", [as_device(x86)])
    net = M.Sequential(
        M.Conv2d(16, 32, 3, padding=1),
        M.ReLU(),
        M.Conv2d(32, 32, 3, padding=1, groups=32),
        M.Conv2d(32, 16, 1),
    )
    net.eval()
    run = trace(lambda x: F.mean(net(x), axis=(2, 3)))
    x = mge.tensor(np.ones((1, 16, 28, 28), np.float32))
    with debug(debug=2):
        for _ in range(3):
            run(x)
    text = capsys.readouterr().err
    assert re.search(
        r"plan \d+: \d+ steps on x86:0, whose roof is \d+ GFLOP/s and [\d.]+ GB/s", text
    )
    rows = re.findall(
        r" (?:x86::)?conv +(\w+) +([\d,.]+) µs +([\d.]+) GFLOP/s +[\d.]+ GB/s +(\d+) % (\w+)", text
    )
    assert len(rows) == 9 and {row[0] for row in rows} <= ALGORITHMS
    counts = [2 * 784 * n for n in (32 * 16 * 9, 32 * 9, 16 * 32)] * 3
    for (_, us, gflops, _, bound), count in zip(rows, counts):
        ns = 1e3 * float(us.replace(",", ""))
        assert float(gflops) == pytest.approx(count / ns, abs=0.06, rel=0.05)
        assert bound in ("compute", "memory")
