"""Transforms of an image together with what belongs to it: boxes, masks, points.

In: a tuple whose entries ``order`` names. Out: the tuple, each entry changed in its way.
After ``transform``; before all other files here.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from mge.errors import ArgumentError, DTypeError, ShapeError

from .transform import Transform

Order = Sequence[str] | None


class VisionTransform(Transform):
    """Base of the transforms of images.

    ``apply`` calls ``_apply_<kind>(value)`` for each entry of the sample, where ``order`` gives the kind.
    A subclass defines ``_apply_image``, and the others that it supports.

    Parameters
    ----------
    order : sequence of str, default ("image",)
        Kinds of the entries of a sample:

        - "image": (h, w, c) array, channels blue, green, red
        - "mask": (h, w) or (h, w, c) array of classes
        - "coords": (n, 2) points (x, y), pixels; integers become float32
        - "boxes": (n, 4) boxes (x0, y0, x1, y1), pixels
        - "keypoints": (n, k, 3): x, y and a label
        - "polygons": a list of instances, each a list of (n, 2) points
        - names that end in "category" or "info": left as they are, unless a method for them exists

        Entries after the last kind are left as they are.

    Raises
    ------
    DTypeError
        ``order`` is no sequence of strings.
    NotImplementedError
        A kind is not known to this transform.

    Notes
    -----
    A sample that is not a tuple counts as a tuple of one, and a result of one entry is returned without
    the tuple. Arrays that are given are never changed in place.

    What a call draws or measures belongs to that call: a subclass defines ``_prepare(sample)``, which may
    set attributes; it and the ``_apply_`` methods run on a copy of the transform.

    Examples
    --------
    >>> from mge.data.transform import VisionTransform
    >>> class Invert(VisionTransform):
    ...     def _apply_image(self, image):
    ...         return 255 - image
    >>> Invert(order=("image", "image_category")).apply((np.full((1, 1, 1), 55, np.uint8), 3))
    (array([[[200]]], dtype=uint8), 3)
    """

    def __init__(self, order: Order = None) -> None:
        self.order = self._checked_order(order)

    def apply(self, input: Any) -> Any:
        """Transform one sample, entry by entry."""
        sample = input if isinstance(input, tuple) else (input,)
        call = self
        if type(self)._prepare is not VisionTransform._prepare:
            call = copy.copy(self)
            call._prepare(sample)
        output = [call._apply_kind(kind, value) for kind, value in zip(self.order, sample)]
        output.extend(sample[len(output) :])
        return output[0] if len(output) == 1 else tuple(output)

    def with_order(self, order: Sequence[str]) -> Self:
        """Return a copy for samples of another order."""
        other = copy.copy(self)
        other.order = other._checked_order(order)
        return other

    def _checked_order(self, order: Order) -> tuple[str, ...]:
        name = type(self).__name__
        if order is None:
            return ("image",)
        if isinstance(order, str) or not isinstance(order, Sequence):
            raise DTypeError(
                f"{name}: order is {order!r}; it must be a sequence of strings, as "
                '("image", "image_category")'
            )
        for kind in order:
            passes = isinstance(kind, str) and kind.endswith(("category", "info"))
            if not passes and not hasattr(self, f"_apply_{kind}"):
                known = sorted(
                    n[7:] for n in dir(self) if n.startswith("_apply_") and n != "_apply_kind"
                )
                raise NotImplementedError(
                    f"{name}: order has {kind!r}; known are {', '.join(known)}, *category and *info\n"
                    f"  try: define _apply_{kind} in a subclass"
                )
        return tuple(order)

    def _prepare(self, sample: tuple[Any, ...]) -> None:
        """Draw and measure what this call needs."""

    def _apply_kind(self, kind: str, value: Any) -> Any:
        method = getattr(self, f"_apply_{kind}", None)
        if method is None:  # *category, *info
            return value
        if kind == "image":
            value = self._checked_image(value)
        return method(value)

    def _get_image(self, sample: Any) -> np.ndarray:
        """Return the image of a sample."""
        sample = sample if isinstance(sample, tuple) else (sample,)
        place = self.order.index("image") if "image" in self.order else len(sample)
        if place >= len(sample):
            raise ArgumentError(
                f"{type(self).__name__}: order is {self.order} and the sample has {len(sample)} entries; this "
                "transform needs an image"
            )
        return self._checked_image(sample[place])

    def _checked_image(self, image: Any) -> np.ndarray:
        name = type(self).__name__
        if not isinstance(image, np.ndarray):
            raise DTypeError(f"{name}: the image is a {type(image).__name__}; it must be an array")
        if image.ndim != 3:
            raise ShapeError(
                f"{name}: the image has shape {image.shape}; it must be (h, w, c)",
                hint="image[:, :, None] adds a channel axis to a grey image",
            )
        return image

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        raise NotImplementedError(f"{type(self).__name__} does not define _apply_image")

    def _apply_coords(self, coords: np.ndarray) -> np.ndarray:
        raise NotImplementedError(f"{type(self).__name__} does not define _apply_coords")

    def _apply_mask(self, mask: np.ndarray) -> np.ndarray:
        raise NotImplementedError(f"{type(self).__name__} does not define _apply_mask")

    def _apply_boxes(self, boxes: Any) -> np.ndarray:
        # The box around the four corners: after a flip, x0 and x1 have changed places.
        corners = points(boxes).reshape(-1, 4)[:, [0, 1, 2, 1, 0, 3, 2, 3]].reshape(-1, 2)
        moved = self._apply_coords(corners).reshape(-1, 4, 2)
        return np.concatenate([moved.min(axis=1), moved.max(axis=1)], axis=1)

    def _apply_keypoints(self, keypoints: Any) -> np.ndarray:
        found = points(keypoints)
        moved = self._apply_coords(found[..., :2].reshape(-1, 2))
        return np.concatenate([moved.reshape(found.shape[:-1] + (2,)), found[..., 2:]], axis=-1)

    def _apply_polygons(self, polygons: Any) -> list[list[np.ndarray]]:
        return [[self._apply_coords(points(part)) for part in instance] for instance in polygons]


class InPlaceTransform(VisionTransform):
    """Base of transforms that change pixels and leave each where it is."""

    def _apply_coords(self, coords: np.ndarray) -> np.ndarray:
        return coords

    def _apply_mask(self, mask: np.ndarray) -> np.ndarray:
        return mask


class ToMode(InPlaceTransform):
    """Move the channel axis of image and mask to the front: (h, w, c) to (c, h, w).

    Parameters
    ----------
    mode : "CHW"
        The layout to make.
    order : sequence of str, optional
        See :class:`VisionTransform`.

    Raises
    ------
    ArgumentError
        Another ``mode``.

    Examples
    --------
    >>> from mge.data.transform import ToMode
    >>> ToMode().apply(np.zeros((4, 5, 3))).shape
    (3, 4, 5)
    """

    def __init__(self, mode: str = "CHW", *, order: Order = None) -> None:
        super().__init__(order)
        if mode != "CHW":
            raise ArgumentError(f'ToMode: mode is {mode!r}; it must be "CHW"')
        self.mode = mode

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.moveaxis(image, 2, 0))

    def _apply_mask(self, mask: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.moveaxis(mask, 2, 0)) if mask.ndim == 3 else mask


def points(values: Any) -> np.ndarray:
    """Return coordinates as a float array; float arrays keep their dtype."""
    found = np.asarray(values)
    return found if np.issubdtype(found.dtype, np.floating) else found.astype(np.float32)


def size_pair(where: str, name: str, size: Any) -> tuple[int, int]:
    """Return (height, width) from an int, for a square, or from two ints."""
    pair = (size, size) if isinstance(size, (int, np.integer)) else size
    good = isinstance(pair, Sequence) and len(pair) == 2
    if not good or not all(isinstance(n, (int, np.integer)) and n > 0 for n in pair):
        raise ArgumentError(
            f"{where}: {name} is {size!r}; it must be a positive int or (height, width), pixels"
        )
    return int(pair[0]), int(pair[1])


def float_range(where: str, name: str, values: Any, least: float) -> tuple[float, float]:
    """Return (low, high), both above ``least``."""
    low, high = values if isinstance(values, Sequence) and len(values) == 2 else (np.nan, np.nan)
    if not least < low <= high:
        raise ArgumentError(
            f"{where}: {name} is {values!r}; it must be (low, high) with {least:g} < low <= high"
        )
    return float(low), float(high)
