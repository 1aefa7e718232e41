"""Resize arrays: nearest, linear, cubic and area.

In: an array (h, w) or (h, w, c). Out: the same at another size, with OpenCV's conventions.
Before ``geometry`` and ``crop``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mge.data.seeding import current_rng
from mge.errors import ArgumentError, DTypeError, ShapeError

# OpenCV's numbers are accepted, so that cv2.INTER_LINEAR and the like go on working.
_NAMES = {
    0: "nearest",
    1: "linear",
    2: "cubic",
    3: "area",
    "nearest": "nearest",
    "linear": "linear",
    "bilinear": "linear",
    "cubic": "cubic",
    "bicubic": "cubic",
    "area": "area",
}
_CUBIC = -0.75  # OpenCV's coefficient of the cubic kernel (resize.cpp, interpolateCubic)


def interpolation_name(where: str, interpolation: Any) -> str | tuple[str, ...]:
    """Return the name of an interpolation, or a tuple of names to draw from."""
    if isinstance(interpolation, Sequence) and not isinstance(interpolation, str) and interpolation:
        return tuple(str(interpolation_name(where, each)) for each in interpolation)
    if not isinstance(interpolation, (str, int)) or interpolation not in _NAMES:
        raise ArgumentError(
            f"{where}: interpolation is {interpolation!r}; it must be nearest, linear, cubic or area "
            "(OpenCV's numbers 0 to 3), or a sequence of these"
        )
    return _NAMES[interpolation]


def resize(image: np.ndarray, size: tuple[int, int], interpolation: Any = "linear") -> np.ndarray:
    """Resize an array.

    Parameters
    ----------
    image : (h, w) or (h, w, c) numbers
        Values to resample.
    size : (int, int)
        New height and width.
    interpolation : str, int or sequence
        See ``interpolation_name``; one of a sequence is drawn.

    Returns
    -------
    (height, width) or (height, width, c) same dtype
        Integers are rounded to even and kept in their range.

    Notes
    -----
    Pixel centres are at half-integers; outside of the image its border is repeated; nothing is smoothed
    before shrinking, except by "area". "nearest" takes ``floor(i * h / height)``. Equal to OpenCV's
    ``resize`` but for rounding (1 level of uint8, whose arithmetic there has 11 bits), and for "area" where
    one side shrinks and the other grows: OpenCV then averages on neither.
    """
    if image.ndim not in (2, 3) or 0 in image.shape[:2]:
        raise ShapeError(
            f"resize: the array has shape {image.shape}; it must be (h, w) or (h, w, c), h and w above 0"
        )
    name = interpolation_name("resize", interpolation)
    if isinstance(name, tuple):
        name = name[int(current_rng().integers(len(name)))]
    if image.shape[:2] == tuple(size):
        return image
    if name == "nearest":
        rows, columns = (_nearest(n, new) for n, new in zip(image.shape, size))
        return image[rows[:, np.newaxis], columns]
    if not np.issubdtype(image.dtype, np.integer) and not np.issubdtype(image.dtype, np.floating):
        raise DTypeError(
            f'resize: the array is {image.dtype}; "{name}" needs ints or floats', hint='"nearest"'
        )
    wide = np.float32 if image.dtype.itemsize < 4 or image.dtype == np.float32 else np.float64
    # First the axis that shrinks more: fewer values for the other one.
    axes = sorted((0, 1), key=lambda axis: size[axis] / image.shape[axis])
    result = image.astype(wide)
    for axis in axes:
        if result.shape[axis] != size[axis]:
            result = (
                _area(result, axis, size[axis])
                if name == "area"
                else _taps(result, axis, size[axis], name)
            )
    return _cast(result, image.dtype)


def _nearest(length: int, new: int) -> np.ndarray:
    # 1 / (new / length) and not length / new, which rounds to another index here and there.
    return np.minimum(np.floor(np.arange(new) * (1 / (new / length))).astype(np.intp), length - 1)


def _taps(values: np.ndarray, axis: int, new: int, name: str) -> np.ndarray:
    """Weigh 2 or 4 neighbours along one axis."""
    length = values.shape[axis]
    centre = (np.arange(new) + 0.5) * (length / new) - 0.5
    first = np.floor(centre)
    weights = _linear(centre - first) if name == "linear" else _cubic(centre - first)
    start = first.astype(np.intp) - (len(weights) // 2 - 1)
    shape = [1] * values.ndim
    shape[axis] = new
    result: Any = 0.0
    for tap, weight in enumerate(weights):
        taken = np.take(values, np.clip(start + tap, 0, length - 1), axis=axis)
        result = result + taken * weight.reshape(shape).astype(values.dtype)
    return result


def _linear(t: np.ndarray) -> list[np.ndarray]:
    return [1 - t, t]


def _cubic(t: np.ndarray) -> list[np.ndarray]:
    # Keys' kernel at distances 1 + t, t, 1 - t; the last weight makes the sum 1.
    a = _CUBIC
    before = ((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a
    here = ((a + 2) * t - (a + 3)) * t * t + 1
    after = ((a + 2) * (1 - t) - (a + 3)) * (1 - t) * (1 - t) + 1
    return [before, here, after, 1 - before - here - after]


def _area(values: np.ndarray, axis: int, new: int) -> np.ndarray:
    """Average over each new pixel's part of the axis: differences of the running integral."""
    length = values.shape[axis]
    moved = np.moveaxis(values, axis, 0)
    integral = np.zeros((length + 1, *moved.shape[1:]), np.float64)
    np.cumsum(moved, axis=0, out=integral[1:])
    edges = np.arange(new + 1) * (length / new)
    whole = np.minimum(edges.astype(np.intp), length - 1)
    part = (edges - whole).reshape(-1, *[1] * (moved.ndim - 1))
    at_edges = integral[whole] + part * moved[whole]
    return np.moveaxis(np.diff(at_edges, axis=0) * (new / length), 0, axis).astype(values.dtype)


def _cast(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)
        values = np.clip(np.rint(values), limits.min, limits.max)
    return np.ascontiguousarray(values, dtype)
