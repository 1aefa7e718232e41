"""The gradients of convolutions on device x86 against the references: NHWC with packed weights, and the base ops."""

import numpy as np
import pytest

from mge.op import OPS

from .against import check
from .conv_cases import draw, drawn_window, pair, result_size

pytestmark = pytest.mark.usefixtures("x86")

PLAIN = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
PADDED = {**PLAIN, "padding": (1, 1)}


def check_use(rng, image, weight, attrs):
    size = result_size(image[1:3], weight[2:], attrs)
    y = (image[0], *size, weight[0])
    kernel = draw(rng, *weight, terms=int(np.prod(weight[2:])) * weight[0])
    x, dy = draw(rng, *image), draw(rng, *y, terms=max(1, int(np.prod(y[:3]))))
    groups = attrs["groups"]
    rotated = OPS["x86::pack_weight"]._reference(
        kernel, rotate=True, algorithm="direct", groups=groups
    )
    given = {**attrs, "weight_shape": weight}
    check(
        "x86::conv_backward_data",
        (rotated, dy),
        {**given, "algorithm": "direct", "input_shape": image},
    )
    check("x86::conv_backward_weight", (x, dy), given)


def test_any_use(rng):
    for i in range(60):
        kernel = ((3, 3), (1, 1), pair(rng, 1, 6))[i % 3]
        groups = int(rng.choice([1, 1, 1, 2, 3]))
        inputs, outputs = pair(rng, 1, 70 // groups + 1)
        attrs, size = drawn_window(rng, kernel, groups)
        image = (int(rng.integers(0, 3)), *size, inputs * groups)
        check_use(rng, image, (outputs * groups, inputs, *kernel), attrs)


@pytest.mark.parametrize(
    ("image", "weight", "attrs"),
    [
        (
            (2, 33, 30, 3),
            (20, 3, 7, 7),
            {**PADDED, "stride": (2, 2), "padding": (3, 3)},
        ),  # few channels
        ((9, 14, 15, 33), (70, 33, 1, 1), PLAIN),  # a product, in several parts
        ((9, 14, 15, 33), (35, 33, 1, 1), {**PLAIN, "stride": (2, 2)}),
        ((13, 14, 14, 24), (40, 24, 3, 3), PADDED),  # several parts and blocks
        ((2, 16, 16, 8), (8, 8, 4, 4), {**PADDED, "stride": (2, 2)}),
        (
            (2, 5, 5, 6),
            (4, 6, 3, 3),
            {**PADDED, "padding": (4, 3)},
        ),  # more padding than the kernel reaches
        ((1, 4, 4, 6), (4, 6, 1, 1), {**PLAIN, "stride": (3, 3), "padding": (2, 2)}),
    ],
)
def test_uses_that_take_other_ways(rng, image, weight, attrs):
    check_use(rng, image, weight, attrs)


@pytest.mark.parametrize(
    ("image", "weight", "attrs"),
    [
        ((2, 6, 19), (8, 3, 4), {"stride": (2,), "padding": (3,), "dilation": (2,), "groups": 2}),
        ((2, 5, 9, 8), (7, 5, 3, 3), PADDED),
        ((2, 5, 9, 8), (7, 5, 1, 1), PLAIN),
        ((2, 5, 9, 8), (5, 1, 3, 3), {**PADDED, "stride": (2, 1), "groups": 5}),
        (
            (2, 4, 5, 6, 7),
            (6, 2, 3, 2, 3),
            {"stride": (2, 1, 2), "padding": (1, 0, 1), "dilation": (1, 2, 1), "groups": 2},
        ),
        ((0, 3, 4, 4), (2, 3, 3, 3), PADDED),
    ],
)
def test_base_ops_on_any_number_of_axes(rng, image, weight, attrs):
    y = (image[0], weight[0], *result_size(image[2:], weight[2:], attrs))
    kernel, x = draw(rng, *weight, terms=int(np.prod(weight))), draw(rng, *image)
    dy = draw(rng, *y, terms=max(1, int(np.prod(y[2:]))))
    check("conv_backward_data", (kernel, dy), {**attrs, "input_shape": image})
    check("conv_backward_weight", (x, dy), {**attrs, "weight_shape": weight})
