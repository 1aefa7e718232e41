"""Cut a part out of an image.

In: images, masks, boxes and points. Out: those of the part.
After ``geometry``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mge.data.seeding import current_rng
from mge.errors import ShapeError

from .geometry import Pad, pad
from .resample import interpolation_name, resize
from .vision import Order, VisionTransform, float_range, points, size_pair


class _Cropping(VisionTransform):
    """Base of crops; ``_prepare`` sets ``_box``: x, y, width and height of the part."""

    _box: tuple[int, int, int, int]

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        x, y, w, h = self._box
        return image[y : y + h, x : x + w]

    def _apply_coords(self, coords: np.ndarray) -> np.ndarray:
        found = points(coords)
        return found - np.array(self._box[:2], found.dtype)

    def _apply_mask(self, mask: np.ndarray) -> np.ndarray:
        x, y, w, h = self._box
        return mask[y : y + h, x : x + w]


class CenterCrop(_Cropping):
    """Cut out the middle.

    Parameters
    ----------
    output_size : int or (int, int), pixels
        Side of a square, or (height, width).
    order : sequence of str, optional
        See :class:`VisionTransform`.

    Raises
    ------
    ArgumentError
        ``output_size`` has another form.
    ShapeError
        On use: the image is smaller.

    Examples
    --------
    >>> from mge.data.transform import CenterCrop
    >>> CenterCrop(1).apply(np.arange(9).reshape(3, 3, 1)).item()
    4
    """

    def __init__(self, output_size: Any, *, order: Order = None) -> None:
        super().__init__(order)
        self.output_size = size_pair("CenterCrop", "output_size", output_size)

    def _prepare(self, sample: tuple[Any, ...]) -> None:
        h, w = self._get_image(sample).shape[:2]
        th, tw = self.output_size
        if th > h or tw > w:
            raise ShapeError(
                f"CenterCrop: the image is {h} x {w} and output_size is {th} x {tw}; it must be no larger",
                hint="Pad or Resize before it",
            )
        self._box = round((w - tw) / 2), round((h - th) / 2), tw, th


class RandomCrop(_Cropping):
    """Cut out a part at a random place, padding first.

    Parameters
    ----------
    output_size : int or (int, int), pixels
        Side of a square, or (height, width). A smaller image is padded at bottom and right.
    padding_size : int or sequence, default 0
        As ``size`` of :class:`Pad`.
    padding_value : number or sequence, default 0
        As ``value`` of :class:`Pad`.
    padding_maskvalue : int, default 0
        As ``mask_value`` of :class:`Pad`.
    order : sequence of str, optional
        See :class:`VisionTransform`.

    Raises
    ------
    ArgumentError
        ``output_size`` or ``padding_size`` has another form.

    Examples
    --------
    >>> from mge.data.transform import RandomCrop
    >>> RandomCrop(32, padding_size=4).apply(np.zeros((32, 32, 3), np.uint8)).shape
    (32, 32, 3)
    """

    def __init__(
        self,
        output_size: Any,
        padding_size: Any = 0,
        padding_value: Any = 0,
        padding_maskvalue: int = 0,
        *,
        order: Order = None,
    ) -> None:
        super().__init__(order)
        self.output_size = size_pair("RandomCrop", "output_size", output_size)
        self.padding_size = Pad(padding_size).size
        self.padding_value = padding_value
        self.padding_maskvalue = padding_maskvalue

    def _prepare(self, sample: tuple[Any, ...]) -> None:
        h, w = self._get_image(sample).shape[:2]
        top, bottom, left, right = self.padding_size
        th, tw = self.output_size
        # Room on top of the given padding, where the image is still too small.
        more_h = max(0, th - (h + top + bottom))
        more_w = max(0, tw - (w + left + right))
        self._pads = (top, bottom + more_h, left, right + more_w)
        rng = current_rng()
        x = int(rng.integers(0, w + left + right + more_w - tw, endpoint=True))
        y = int(rng.integers(0, h + top + bottom + more_h - th, endpoint=True))
        self._box = x, y, tw, th

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        return super()._apply_image(pad(image, self._pads, self.padding_value))

    def _apply_coords(self, coords: np.ndarray) -> np.ndarray:
        found = super()._apply_coords(coords)
        return found + np.array([self._pads[2], self._pads[0]], found.dtype)

    def _apply_mask(self, mask: np.ndarray) -> np.ndarray:
        return super()._apply_mask(pad(mask, self._pads, self.padding_maskvalue))


class RandomResizedCrop(_Cropping):
    """Cut out a part of random size and shape, and resize it to a fixed size.

    Parameters
    ----------
    output_size : int or (int, int), pixels
        Side of a square, or (height, width).
    scale_range : (float, float), default (0.08, 1)
        Area of the part, as a share of the image's.
    ratio_range : (float, float), default (3/4, 4/3)
        Width by height of the part; drawn evenly in its logarithm.
    interpolation : str or int, default "linear"
        See :class:`Resize`.
    order : sequence of str, optional
        See :class:`VisionTransform`.

    Raises
    ------
    ArgumentError
        An argument has another form.

    Notes
    -----
    After 10 draws of parts that do not fit, the largest part in the middle whose ratio is allowed is taken.

    Sources
    -------
    Szegedy et al., Going Deeper with Convolutions, CVPR 2015, section 6.

    Examples
    --------
    >>> from mge.data.transform import RandomResizedCrop
    >>> RandomResizedCrop(8).apply(np.zeros((16, 32, 3), np.uint8)).shape
    (8, 8, 3)
    """

    def __init__(
        self,
        output_size: Any,
        scale_range: Sequence[float] = (0.08, 1.0),
        ratio_range: Sequence[float] = (3 / 4, 4 / 3),
        interpolation: Any = "linear",
        *,
        order: Order = None,
    ) -> None:
        super().__init__(order)
        name = "RandomResizedCrop"
        self.output_size = size_pair(name, "output_size", output_size)
        self.scale_range = float_range(name, "scale_range", scale_range, 0)
        self.ratio_range = float_range(name, "ratio_range", ratio_range, 0)
        self.interpolation = interpolation_name(name, interpolation)

    def _prepare(self, sample: tuple[Any, ...]) -> None:
        h, w = self._get_image(sample).shape[:2]
        self._box = self._drawn_box(h, w) or self._middle_box(h, w)

    def _drawn_box(self, height: int, width: int) -> tuple[int, int, int, int] | None:
        rng = current_rng()
        low, high = (math.log(ratio) for ratio in self.ratio_range)
        for _ in range(10):
            area = rng.uniform(*self.scale_range) * height * width
            ratio = math.exp(rng.uniform(low, high))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                x = int(rng.integers(0, width - w, endpoint=True))
                y = int(rng.integers(0, height - h, endpoint=True))
                return x, y, w, h
        return None

    def _middle_box(self, height: int, width: int) -> tuple[int, int, int, int]:
        low, high = self.ratio_range
        w = min(width, max(1, round(height * high)))
        h = min(height, max(1, round(width / low)))
        return (width - w) // 2, (height - h) // 2, w, h

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        return resize(super()._apply_image(image), self.output_size, self.interpolation)

    def _apply_coords(self, coords: np.ndarray) -> np.ndarray:
        found = super()._apply_coords(coords)
        (th, tw), (_, _, w, h) = self.output_size, self._box
        return found * np.array([tw / w, th / h], found.dtype)

    def _apply_mask(self, mask: np.ndarray) -> np.ndarray:
        return resize(super()._apply_mask(mask), self.output_size, "nearest")
