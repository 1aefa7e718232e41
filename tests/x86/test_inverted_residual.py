"""``x86::inverted_residual`` on device x86 against the reference."""

import pytest

from mge.op import OPS

from .against import check
from .conv_cases import draw

pytestmark = pytest.mark.usefixtures("x86")

ACTIVATIONS = ("relu6", "", "relu", "silu")


def drawn(rng, x, wide, outputs, kernel, i):
    """Inputs and attributes of one use; number i of some combinations of what is optional."""
    stride, expands = 1 + i % 2, bool(i % 5) or wide != x[3]
    attrs = {
        "filter_shape": (wide, 1, kernel, kernel),
        "outputs": outputs,
        "stride": stride,
        "expands": expands,
        "expand_bias": bool(i // 2 % 2) and expands,
        "expand_activation": ACTIVATIONS[i // 3 % 4],
        "filter_bias": bool(i // 4 % 2),
        "filter_activation": ACTIVATIONS[i // 5 % 4],
        "bias": bool(i // 8 % 2),
        "residual": bool(i % 3),
        "activation": ACTIVATIONS[1 + i // 7 % 3],
    }
    pack = OPS["x86::pack_weight"]._reference
    packed = [
        pack(draw(rng, *shape, terms=terms), algorithm=algorithm, groups=groups, rotate=False)
        for shape, terms, algorithm, groups in (
            ((wide, 1, kernel, kernel), kernel**2, "depthwise", wide),
            ((outputs, wide, 1, 1), wide, "direct", 1),
            ((wide, x[3], 1, 1), x[3], "direct", 1),
        )[: 2 + expands]
    ]
    sizes = {"expand_bias": (wide,), "filter_bias": (wide,), "bias": (outputs,)}
    sizes["residual"] = (x[0], *(-(-n // stride) for n in x[1:3]), outputs)
    return [draw(rng, *x), *packed, *(draw(rng, *s) for n, s in sizes.items() if attrs[n])], attrs


def test_any_use(rng):
    for i in range(40):
        channels, outputs = (int(n) for n in rng.integers(1, 71, 2))
        wide = channels if i % 5 == 0 else int(rng.integers(1, 300))
        size = (int(n) for n in rng.integers(1, 20, 2))
        x = (int(rng.integers(0, 3)), *size, channels)
        check("x86::inverted_residual", *drawn(rng, x, wide, outputs, (3, 5)[i // 2 % 2], i))


@pytest.mark.parametrize(
    ("x", "wide", "outputs"),
    [
        ((1, 60, 37, 20), 144, 24),  # parts of the rows
        ((1, 12, 14, 64), 600, 96),  # parts of the channels, the last of 24
        ((2, 30, 30, 64), 1000, 33),  # some channels at a time
        ((1, 3, 600, 40), 80, 7),  # rows longer than the caches foresee
    ],
)
def test_each_way_of_cutting(rng, x, wide, outputs):
    for i in (1, 14):
        check("x86::inverted_residual", *drawn(rng, x, wide, outputs, 3, i))
