"""Direct convolution on device x86 against the references: any channels, windows, groups, axes, and empty images."""

import numpy as np
import pytest

from mge.op import OPS

from .against import check

pytestmark = pytest.mark.usefixtures("x86")

PLAIN = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}


def draw(rng, *shape, terms=1):
    """Normal values, so small that the rounding of a sum of so many products stays within the tolerance."""
    return (rng.normal(size=shape) / max(1, terms) ** 0.5).astype(np.float32)


def packed_conv(rng, image, weight, *, activation="", bias=False, residual=False, **window):
    terms = int(np.prod(weight[1:]))
    drawn = draw(rng, *weight, terms=terms)
    pack = {"algorithm": "direct", "groups": window["groups"]}
    check("x86::pack_weight", (drawn,), pack)
    check("x86::pack_weight", (drawn,), {**pack, "rotate": True})
    packed = OPS["x86::pack_weight"]._reference(drawn, rotate=False, **pack)
    attrs = {"weight_shape": weight, "algorithm": "direct", "activation": activation, "bias": bias,
             "residual": residual, **window}  # fmt: skip
    size = [
        (s + 2 * p - d * (k - 1) - 1) // t + 1
        for s, k, p, t, d in zip(
            image[1:3],
            weight[2:],
            *(window[n] for n in ("padding", "stride", "dilation")),
            strict=True,
        )
    ]
    extras = [draw(rng, weight[0])] * bias + [draw(rng, image[0], *size, weight[0])] * residual
    check("x86::conv", (draw(rng, *image, terms=terms), packed, *extras), attrs)


def window(rng, kernel, groups):
    def pair(low, high):
        return tuple(int(v) for v in rng.integers(low, high, 2))

    dilation = pair(1, 3) if rng.random() < 0.3 else (1, 1)
    padding = tuple(int(rng.integers(0, k * d)) for k, d in zip(kernel, dilation, strict=True))
    return {
        "stride": pair(1, 4) if rng.random() < 0.5 else (1, 1),
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
    }


def any_case(rng, i):
    kernel = tuple(int(v) for v in rng.integers(1, 6, 2)) if rng.random() < 0.5 else (3, 3)
    groups = int(rng.choice([1, 1, 1, 2, 3, 5]))
    inputs, outputs = int(rng.integers(1, 70 // groups + 1)), int(rng.integers(1, 70 // groups + 1))
    attrs = window(rng, kernel, groups)
    least = [
        d * (k - 1) + 1 - 2 * p
        for k, d, p in zip(kernel, attrs["dilation"], attrs["padding"], strict=True)
    ]
    size = [max(1, n) + int(rng.integers(0, 17)) for n in least]
    return (
        (int(rng.integers(1, 3)), *size, inputs * groups),
        (outputs * groups, inputs, *kernel),
        attrs,
    )


def test_any_case(rng):
    for i in range(80):
        image, weight, attrs = any_case(rng, i)
        packed_conv(rng, image, weight, **attrs)


@pytest.mark.parametrize(
    ("image", "weight"),
    [((1, 7, 7, 40), (48, 40, 3, 3)), ((2, 14, 14, 33), (33, 33, 3, 3)), ((1, 56, 56, 16), (16, 16, 3, 3)),
     ((1, 7, 7, 300), (70, 300, 3, 3)), ((1, 1, 1, 8), (8, 8, 3, 3)), ((3, 6, 100, 3), (40, 3, 3, 3))],
)  # fmt: skip
def test_units_rows_and_outputs(rng, image, weight):
    packed_conv(rng, image, weight, **{**PLAIN, "padding": (1, 1)})


@pytest.mark.parametrize(
    ("image", "weight", "window"),
    [((3, 28, 28, 1), (6, 1, 5, 5), {"padding": (2, 2)}), ((2, 5, 12, 3), (4, 3, 3, 3), {}),
     ((1, 6, 15, 2), (5, 2, 3, 7), {"padding": (1, 3)}), ((1, 9, 21, 3), (2, 3, 1, 7), {"stride": (2, 2)}),
     ((1, 4, 9, 70), (1, 70, 2, 2), {}), ((2, 8, 10, 1), (8, 1, 5, 5), {"padding": (4, 4)})],
)  # fmt: skip
@pytest.mark.parametrize("extras", [{}, {"bias": True, "residual": True, "activation": "silu"}])
def test_few_outputs(rng, image, weight, window, extras):
    packed_conv(rng, image, weight, **extras, **{**PLAIN, **window})


@pytest.mark.parametrize(
    ("image", "weight", "window"),
    [((2, 5, 5, 130), (256, 130, 3, 3), {"padding": (1, 1)}), ((1, 9, 9, 128), (270, 128, 3, 3), {"stride": (2, 2)}),
     ((3, 8, 7, 512), (260, 512, 3, 3), {"stride": (2, 2), "padding": (1, 1)}), ((1, 7, 7, 1100), (64, 1100, 1, 1), {}),
     ((2, 9, 9, 60), (300, 60, 4, 5), {"padding": (3, 2), "dilation": (2, 1)}), ((1, 64, 65, 8), (256, 8, 1, 1), {}),
     ((2, 9, 8, 24), (256, 24, 1, 1), {"stride": (2, 3)})],
)  # fmt: skip
@pytest.mark.parametrize("extras", [{}, {"bias": True, "residual": True, "activation": "relu"}])
def test_many_weights(
    rng, image, weight, window, extras
):  # which threads share, or products of gathered pixels
    packed_conv(rng, image, weight, **extras, **{**PLAIN, **window})


@pytest.mark.parametrize("activation", ["", "relu", "relu6", "silu", "gelu"])
@pytest.mark.parametrize(
    "extras", [{}, {"bias": True}, {"residual": True}, {"bias": True, "residual": True}]
)
def test_what_comes_before_the_store(rng, activation, extras):
    packed_conv(
        rng,
        (2, 6, 9, 5),
        (37, 5, 3, 3),
        activation=activation,
        **extras,
        **{**PLAIN, "padding": (1, 1)},
    )
    packed_conv(rng, (2, 6, 9, 40), (37, 40, 1, 1), activation=activation, **extras, **PLAIN)


def test_points(rng):  # kernels of size 1: a matrix product, but for steps, borders and groups
    for change in (
        {},
        {"stride": (2, 3)},
        {"padding": (1, 2)},
        {"groups": 4},
        {"groups": 2, "stride": (2, 1)},
    ):
        attrs = {**PLAIN, **change}
        packed_conv(rng, (2, 9, 8, 24), (36, 24 // attrs["groups"], 1, 1), **attrs)


@pytest.mark.parametrize(
    ("image", "outputs"), [((0, 5, 5, 3), 4), ((2, 5, 5, 0), 4), ((1, 5, 5, 3), 0)]
)
def test_nothing(rng, image, outputs):
    packed_conv(rng, image, (outputs, image[3], 3, 3), **{**PLAIN, "padding": (1, 1)})


def test_base_op_of_one_to_three_axes(rng):
    for axes in (1, 2, 3):
        for _ in range(12):
            kernel = tuple(int(v) for v in rng.integers(1, 4, axes))
            groups, inputs, outputs = (int(rng.integers(1, n)) for n in (3, 20, 20))
            size = tuple(int(k + v) for k, v in zip(kernel, rng.integers(2, 12, axes), strict=True))
            attrs = {
                "stride": tuple(int(v) for v in rng.integers(1, 3, axes)),
                "padding": tuple(int(v) for v in rng.integers(0, 2, axes)),
                "dilation": tuple(int(v) for v in rng.integers(1, 3, axes)),
                "groups": groups,
            }
            terms = inputs * int(np.prod(kernel))
            weight = draw(rng, outputs * groups, inputs, *kernel, terms=terms)
            check("conv", (draw(rng, 2, inputs * groups, *size, terms=terms), weight), attrs)
