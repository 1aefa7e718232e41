"""Depthwise convolution on device x86, forward and both gradients, against the references."""

import pytest

from mge.op import OPS

from .against import check
from .conv_cases import draw, drawn_window, epilogue, pair, result_size

pytestmark = pytest.mark.usefixtures("x86")


def check_use(rng, i, images, size, channels, kernel, attrs):
    weight_shape = (channels, 1, *kernel)
    weight = draw(rng, *weight_shape)
    y = (images, *result_size(size, kernel, attrs), channels)
    pack = {"algorithm": "depthwise", "groups": channels}
    given = {**attrs, "weight_shape": weight_shape}
    packed, rotated = (
        OPS["x86::pack_weight"]._reference(weight, rotate=turn, **pack) for turn in (False, True)
    )
    check("x86::pack_weight", (weight,), {**pack, "rotate": bool(i % 2)})
    x, dy = draw(rng, images, *size, channels), draw(rng, *y, terms=max(1, y[1] * y[2]))
    extras, more = epilogue(rng, i, y)
    check("x86::conv", (x, packed, *extras), {**given, "algorithm": "depthwise", **more})
    check(
        "x86::conv_backward_data",
        (rotated, dy),
        {**given, "algorithm": "depthwise", "input_shape": x.shape},
    )
    check("x86::conv_backward_weight", (x, dy), given)


def test_any_use(rng):
    for i in range(48):
        kernel = ((3, 3), (5, 5), pair(rng, 1, 6))[i % 3]
        channels = int(rng.integers(1, 71))
        attrs, size = drawn_window(rng, kernel, channels)
        check_use(rng, i, int(rng.integers(0, 3)), size, channels, kernel, attrs)


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
def test_each_width_of_the_usual_kernels(rng, kernel, stride):
    # Rows are cut into tiles of 1 to 8 pixels, of which the outer ones meet the border.
    for width in range(1, 20):
        attrs = {
            "stride": (stride, stride),
            "padding": (kernel // 2,) * 2,
            "dilation": (1, 1),
            "groups": 17,
        }
        check_use(rng, width, 1, (5, width), 17, (kernel, kernel), attrs)
