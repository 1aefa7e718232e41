"""Resizing: values from OpenCV, and what has to hold for all sizes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mge.data.seeding import seeded
from mge.data.transform.resample import resize
from mge.errors import ArgumentError, DTypeError, ShapeError

NAMES = ["nearest", "linear", "cubic", "area"]
LINE = np.array([0, 10, 40, 90, 160], np.float32)
# cv2.resize (5.0.0) of LINE as one row, to 3 and to 8 columns.
FROM_OPENCV = {
    ("nearest", 3): [0, 10, 90],
    ("nearest", 8): [0, 0, 10, 10, 40, 90, 90, 160],
    ("linear", 3): [3.3333, 40, 136.6667],
    ("linear", 8): [0, 4.375, 11.875, 30.625, 55.625, 86.875, 129.375, 160],
    ("cubic", 3): [1.4815, 40, 140.7407],
    ("cubic", 8): [-0.9283, 1.8756, 11.7651, 26.1938, 54.4165, 84.7144, 133.9508, 166.4984],
    ("area", 3): [4, 44, 132],
    ("area", 8): [0, 4, 10, 34, 50, 90, 132, 160],
}
SIZES = st.integers(1, 12)


@pytest.mark.parametrize(("name", "new"), FROM_OPENCV)
def test_resize_gives_the_values_of_opencv(name, new):
    expected = np.array(FROM_OPENCV[name, new])
    assert np.allclose(resize(LINE[None], (1, new), name)[0], expected, atol=1e-3)
    assert np.allclose(resize(LINE[:, None], (new, 1), name)[:, 0], expected, atol=1e-3)
    levels = resize(LINE[None, :, None].astype(np.uint8), (1, new), name)
    assert levels.dtype == np.uint8 and levels.shape == (1, new, 1)
    rounded = np.rint(expected).clip(0, 255)
    assert np.abs(levels[0, :, 0].astype(int) - rounded).max() <= 1  # ties


@given(h=SIZES, w=SIZES, th=SIZES, tw=SIZES, name=st.sampled_from(NAMES), seed=st.integers(0, 99))
def test_resize_keeps_range_symmetry_and_constants(h, w, th, tw, name, seed):
    image = np.random.default_rng(seed).uniform(0, 255, (h, w, 2))
    result = resize(image, (th, tw), name)
    assert result.shape == (th, tw, 2) and result.dtype == image.dtype
    if name != "cubic":  # which goes over the edge
        assert result.min() >= image.min() - 1e-6 and result.max() <= image.max() + 1e-6
    if name != "nearest":
        flipped = resize(image[::-1, ::-1], (th, tw), name)[::-1, ::-1]
        assert np.allclose(flipped, result, atol=1e-6)
    swapped = resize(image.transpose(1, 0, 2), (tw, th), name).transpose(1, 0, 2)
    assert np.allclose(swapped, result, atol=1e-6)
    assert np.allclose(resize(np.full((h, w), 7.0), (th, tw), name), 7.0)


@given(h=SIZES, w=SIZES, th=SIZES, tw=SIZES)
def test_area_keeps_the_mean(h, w, th, tw):
    image = np.random.default_rng(h).uniform(0, 255, (h, w))
    assert np.isclose(resize(image, (th, tw), "area").mean(), image.mean())


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "float16", "float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
def test_resize_keeps_dtype_and_limits(dtype, name):
    high = np.iinfo(dtype).max if dtype[0] != "f" else 30000
    image = np.array([[0, high, 0, high]], dtype)
    result = resize(image, (2, 9), name)
    assert result.dtype == dtype and result.flags.c_contiguous
    assert result.min() >= (0 if dtype == "uint8" else -high)


def test_resize_takes_names_numbers_and_choices():
    for number, name in enumerate(NAMES):  # OpenCV's numbers
        assert np.array_equal(resize(LINE[None], (1, 8), number), resize(LINE[None], (1, 8), name))
    wanted = {resize(LINE[None], (1, 8), name).tobytes() for name in ("nearest", "cubic")}
    with seeded((0,), ()):
        got = {resize(LINE[None], (1, 8), ["nearest", "cubic"]).tobytes() for _ in range(20)}
    assert got == wanted


def test_resize_checks_its_arguments():
    with pytest.raises(ShapeError, match=r"shape \(0, 3\)"):
        resize(np.zeros((0, 3)), (2, 2))
    with pytest.raises(ArgumentError, match="interpolation is 'lanczos'"):
        resize(np.zeros((2, 3)), (2, 2), "lanczos")
    with pytest.raises(
        DTypeError, match=r'array is bool; "linear" needs ints or floats(.|\n)*nearest'
    ):
        resize(np.zeros((2, 3), bool), (4, 4))
    assert resize(np.ones((2, 3), bool), (4, 4), "nearest").all()
