"""Pad, resize and flip.

In: images, masks, boxes and points. Out: the same, moved.
After ``resample``; before ``crop``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mge.data.seeding import current_rng
from mge.errors import ArgumentError

from .resample import interpolation_name, resize
from .vision import Order, VisionTransform, float_range, points, size_pair


def pad(image: np.ndarray, size: tuple[int, int, int, int], value: Any) -> np.ndarray:
    """Surround an (h, w) or (h, w, c) array with a value for all channels, or one for each.

    ``size`` is (top, bottom, left, right), pixels. A float value makes the result float32.
    """
    top, bottom, left, right = size
    fill = np.asarray(value)
    if np.issubdtype(fill.dtype, np.floating):
        image = image.astype(np.float32)
    if not any(size):
        return image
    h, w = image.shape[:2]
    if fill.ndim and (image.ndim != 3 or fill.shape != image.shape[2:]):
        raise ArgumentError(
            f"pad: value has {fill.size} entries and the array has shape {image.shape}; give one number, or "
            "one for each channel"
        )
    shape = (h + top + bottom, w + left + right, *image.shape[2:])
    result = np.empty(shape, image.dtype)
    result[:] = fill
    result[top : top + h, left : left + w] = image
    return result


class Pad(VisionTransform):
    """Surround image and mask with constant values.

    Parameters
    ----------
    size : int, (int, int) or (int, int, int, int), pixels
        All four sides; bottom and right; or top, bottom, left and right. At least 0.
    value : number or sequence, default 0
        Value for the image's channels, or one for each. A float makes the image float32.
    mask_value : int, default 0
        Value for the mask.
    order : sequence of str, optional
        See :class:`VisionTransform`.

    Raises
    ------
    ArgumentError
        ``size`` has another form, or ``mask_value`` is no int.

    Examples
    --------
    >>> from mge.data.transform import Pad
    >>> Pad((1, 2)).apply(np.ones((2, 2, 1))).shape
    (3, 4, 1)
    """

    def __init__(
        self, size: Any = 0, value: Any = 0, mask_value: int = 0, *, order: Order = None
    ) -> None:
        super().__init__(order)
        given = (size,) * 4 if isinstance(size, int) else tuple(size)
        given = (0, given[0], 0, given[1]) if len(given) == 2 else given
        if len(given) != 4 or not all(isinstance(n, (int, np.integer)) and n >= 0 for n in given):
            raise ArgumentError(
                f"Pad: size is {size!r}; it must be an int, (bottom, right), or (top, bottom, left, right), "
                "each at least 0"
            )
        if not isinstance(mask_value, (int, np.integer)):
            raise ArgumentError(f"Pad: mask_value is {mask_value!r}; it must be an int")
        top, bottom, left, right = given
        self.size = (top, bottom, left, right)
        self.value = value
        self.mask_value = mask_value

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        return pad(image, self.size, self.value)

    def _apply_coords(self, coords: np.ndarray) -> np.ndarray:
        found = points(coords)
        return found + np.array([self.size[2], self.size[0]], found.dtype)

    def _apply_mask(self, mask: np.ndarray) -> np.ndarray:
        return pad(mask, self.size, self.mask_value)


class _Resizing(VisionTransform):
    """Base of transforms that resize; a subclass says to which size."""

    def __init__(self, interpolation: Any, order: Order) -> None:
        super().__init__(order)
        self.interpolation = interpolation_name(type(self).__name__, interpolation)

    def _target(self, h: int, w: int) -> tuple[int, int]:
        raise NotImplementedError

    def _prepare(self, sample: tuple[Any, ...]) -> None:
        self._old = self._get_image(sample).shape[:2]
        th, tw = self._target(*self._old)
        self._new = max(1, th), max(1, tw)

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        return resize(image, self._new, self.interpolation)

    def _apply_coords(self, coords: np.ndarray) -> np.ndarray:
        (h, w), (th, tw) = self._old, self._new
        found = points(coords)
        return found * np.array([tw / w, th / h], found.dtype)

    def _apply_mask(self, mask: np.ndarray) -> np.ndarray:
        return resize(mask, self._new, "nearest")


class Resize(_Resizing):
    """Resize to a fixed size.

    Parameters
    ----------
    output_size : int or (int, int), pixels
        Length of the shorter side (the longer one follows, rounded down), or (height, width).
    interpolation : str or int, default "linear"
        "nearest", "linear", "cubic" or "area", or OpenCV's number for it; a sequence is drawn from.
        Masks always use "nearest".
    order : sequence of str, optional
        See :class:`VisionTransform`.

    Raises
    ------
    ArgumentError
        ``output_size`` or ``interpolation`` has another form.

    Examples
    --------
    >>> from mge.data.transform import Resize
    >>> Resize(8).apply(np.zeros((16, 32, 3), np.uint8)).shape
    (8, 16, 3)
    """

    def __init__(
        self, output_size: Any, interpolation: Any = "linear", *, order: Order = None
    ) -> None:
        super().__init__(interpolation, order)
        pair = size_pair("Resize", "output_size", output_size)
        self.output_size = pair[0] if isinstance(output_size, (int, np.integer)) else pair

    def _target(self, h: int, w: int) -> tuple[int, int]:
        if isinstance(self.output_size, tuple):
            return self.output_size
        short = self.output_size
        return (short, int(short * w / h)) if h < w else (int(short * h / w), short)


class ShortestEdgeResize(_Resizing):
    """Resize to a drawn length of the shorter side, with a limit for the longer one.

    Parameters
    ----------
    min_size : int or sequence of int, pixels
        Lengths of the shorter side: (low, high) for "range", any number for "choice".
    max_size : int, pixels
        Greatest length of the longer side.
    sample_style : "range" or "choice", default "range"
        Draw a length from low to high, both included; or one of the given ones.
    interpolation : str or int, default "linear"
        See :class:`Resize`.
    order : sequence of str, optional
        See :class:`VisionTransform`.

    Raises
    ------
    ArgumentError
        An argument has another form.

    Examples
    --------
    >>> from mge.data.transform import ShortestEdgeResize
    >>> ShortestEdgeResize(800, 1333).apply(np.zeros((600, 1200, 3), np.uint8)).shape
    (666, 1333, 3)
    """

    def __init__(
        self,
        min_size: Any,
        max_size: int,
        sample_style: str = "range",
        interpolation: Any = "linear",
        *,
        order: Order = None,
    ) -> None:
        super().__init__(interpolation, order)
        if sample_style not in ("range", "choice"):
            raise ArgumentError(
                f'ShortestEdgeResize: sample_style is {sample_style!r}; it must be "range" or "choice"'
            )
        sizes = (min_size, min_size) if isinstance(min_size, (int, np.integer)) else tuple(min_size)
        fits = (
            len(sizes) == 2 and sizes[0] <= sizes[1] if sample_style == "range" else len(sizes) > 0
        )
        if not fits or min(sizes) <= 0 or max_size <= 0:
            raise ArgumentError(
                f"ShortestEdgeResize: min_size is {min_size!r} and max_size is {max_size!r}; they must be "
                'positive, and min_size (low, high) for "range"'
            )
        self.min_size = sizes
        self.max_size = max_size
        self.sample_style = sample_style

    def _target(self, h: int, w: int) -> tuple[int, int]:
        rng = current_rng()
        if self.sample_style == "range":
            size = int(rng.integers(self.min_size[0], self.min_size[1], endpoint=True))
        else:
            size = int(self.min_size[int(rng.integers(len(self.min_size)))])
        scale = min(size / min(h, w), self.max_size / max(h, w))
        return round(h * scale), round(w * scale)


class RandomResize(_Resizing):
    """Scale by a drawn factor, the same for both sides.

    Parameters
    ----------
    scale_range : (float, float)
        Least and greatest factor, above 0.
    interpolation : str or int, default "linear"
        See :class:`Resize`.
    order : sequence of str, optional
        See :class:`VisionTransform`.

    Raises
    ------
    ArgumentError
        ``scale_range`` is not (low, high).

    Examples
    --------
    >>> from mge.data.transform import RandomResize
    >>> RandomResize((0.5, 0.5)).apply(np.zeros((16, 32, 3), np.uint8)).shape
    (8, 16, 3)
    """

    def __init__(
        self, scale_range: Sequence[float], interpolation: Any = "linear", *, order: Order = None
    ) -> None:
        super().__init__(interpolation, order)
        self.scale_range = float_range("RandomResize", "scale_range", scale_range, 0)

    def _target(self, h: int, w: int) -> tuple[int, int]:
        scale = current_rng().uniform(*self.scale_range)
        return round(h * scale), round(w * scale)


class _RandomFlip(VisionTransform):
    _axis = 0  # the array axis to turn round

    def __init__(self, prob: float = 0.5, *, order: Order = None) -> None:
        super().__init__(order)
        if not 0 <= prob <= 1:
            raise ArgumentError(f"{type(self).__name__}: prob is {prob!r}; it must be from 0 to 1")
        self.prob = prob

    def _prepare(self, sample: tuple[Any, ...]) -> None:
        self._length = self._get_image(sample).shape[self._axis]
        self._flipped = bool(current_rng().random() < self.prob)

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.flip(image, self._axis)) if self._flipped else image

    def _apply_coords(self, coords: np.ndarray) -> np.ndarray:
        if not self._flipped:
            return coords
        found = points(coords).copy()
        column = 1 - self._axis  # x belongs to the axis of columns
        found[:, column] = self._length - found[:, column]
        return found

    def _apply_mask(self, mask: np.ndarray) -> np.ndarray:
        return self._apply_image(mask)


class RandomHorizontalFlip(_RandomFlip):
    """Exchange left and right, with a given probability.

    Parameters
    ----------
    prob : float, default 0.5
        Probability of a flip, 0 to 1.
    order : sequence of str, optional
        See :class:`VisionTransform`.

    Raises
    ------
    ArgumentError
        ``prob`` is outside of 0 to 1.

    Examples
    --------
    >>> from mge.data.transform import RandomHorizontalFlip
    >>> RandomHorizontalFlip(prob=1).apply(np.array([[[1], [2]]])).ravel()
    array([2, 1])
    """

    _axis = 1

    def __init__(self, prob: float = 0.5, *, order: Order = None) -> None:
        super().__init__(prob, order=order)


class RandomVerticalFlip(_RandomFlip):
    """Exchange top and bottom, with a given probability.

    Parameters
    ----------
    prob : float, default 0.5
        Probability of a flip, 0 to 1.
    order : sequence of str, optional
        See :class:`VisionTransform`.

    Raises
    ------
    ArgumentError
        ``prob`` is outside of 0 to 1.

    Examples
    --------
    >>> from mge.data.transform import RandomVerticalFlip
    >>> RandomVerticalFlip(prob=1).apply(np.array([[[1]], [[2]]])).ravel()
    array([2, 1])
    """

    _axis = 0

    def __init__(self, prob: float = 0.5, *, order: Order = None) -> None:
        super().__init__(prob, order=order)
