"""Transforms one after the other.

In: a list of transforms. Out: one transform.
After ``vision``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from mge.data.seeding import current_rng
from mge.errors import ArgumentError, DTypeError, ShapeError

from .transform import Transform
from .vision import InPlaceTransform, Order, VisionTransform


class Compose(VisionTransform):
    """Apply transforms one after the other.

    Parameters
    ----------
    transforms : sequence of Transform
        Applied in this order. Copies with this ``order`` are used.
    batch_compose : bool, default False
        Give each transform the whole batch before the next one starts, so that one may mix samples.
    shuffle_indices : sequence of tuples of int, optional
        Groups of places, counted from 1, whose transforms are put into a random order for each sample.
    order : sequence of str, optional
        See :class:`VisionTransform`.

    Raises
    ------
    DTypeError
        An entry is not a Transform.
    ArgumentError
        ``shuffle_indices`` names a place that does not exist or twice, or comes with ``batch_compose``.

    Examples
    --------
    >>> from mge.data.transform import Compose, Normalize, ToMode
    >>> both = Compose([Normalize(mean=1.0), ToMode("CHW")])
    >>> both.apply(np.ones((2, 2, 1), np.uint8)).sum()
    np.float32(0.0)
    """

    def __init__(
        self,
        transforms: Sequence[Transform] = (),
        batch_compose: bool = False,
        shuffle_indices: Sequence[Sequence[int]] | None = None,
        *,
        order: Order = None,
    ) -> None:
        self.transforms = list(transforms)
        for place, each in enumerate(self.transforms):
            if not isinstance(each, Transform):
                raise DTypeError(
                    f"Compose: transforms[{place}] is {each!r}; it must be an object of a Transform"
                )
        super().__init__(order)
        self._set_order()
        self.batch_compose = batch_compose
        self.shuffle_indices = [tuple(i - 1 for i in group) for group in shuffle_indices or ()]
        places = [place for group in self.shuffle_indices for place in group]
        if len(set(places)) < len(places) or not set(places) <= set(range(len(self.transforms))):
            raise ArgumentError(
                f"Compose: shuffle_indices is {shuffle_indices}; its numbers go from 1 to "
                f"{len(self.transforms)}, each at most once"
            )
        if batch_compose and places:
            raise ArgumentError(
                "Compose: shuffle_indices is for single samples, and batch_compose=True for batches"
            )

    def apply_batch(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Transform a batch."""
        if not self.batch_compose:
            return super().apply_batch(inputs)
        for each in self.transforms:
            inputs = each.apply_batch(inputs)
        return inputs

    def apply(self, input: Any) -> Any:
        """Transform one sample."""
        for each in self._sequence():
            input = each.apply(input)
        return input

    def with_order(self, order: Sequence[str]) -> Self:
        """Return a copy for samples of another order."""
        other = super().with_order(order)
        other._set_order()
        return other

    def __repr__(self) -> str:
        return f"Compose({self.transforms!r})"

    def _set_order(self) -> None:
        self.transforms = [
            each.with_order(self.order) if isinstance(each, VisionTransform) else each
            for each in self.transforms
        ]

    def _checked_order(self, order: Order) -> tuple[str, ...]:
        # What a kind needs is up to the transforms.
        if order is None or isinstance(order, str) or not isinstance(order, Sequence):
            return super()._checked_order(order)
        return tuple(order)

    def _sequence(self) -> list[Transform]:
        if not self.shuffle_indices:
            return self.transforms
        places = list(range(len(self.transforms)))
        for group in self.shuffle_indices:
            for place, drawn in zip(group, current_rng().permutation(group).tolist()):
                places[place] = drawn
        return [self.transforms[place] for place in places]


class TorchTransformCompose(InPlaceTransform):
    """Apply callables that take a PIL image, as those of torchvision; images only.

    Parameters
    ----------
    transforms : sequence of callables
        Each takes what the one before returns; the first gets a PIL image (RGB, or L for one channel).
    order : sequence of str, optional
        See :class:`VisionTransform`. Coordinates and masks are left as they are.

    Raises
    ------
    ImportError
        On use: Pillow is not installed.
    ShapeError
        On use: the image is not (h, w, 3) or (h, w, 1).

    Notes
    -----
    Images are blue, green, red here, and red, green, blue in PIL: the channels are turned round on the way
    in and back. A result that is no PIL image is made an array, (h, w, c), as it is.
    """

    def __init__(self, transforms: Sequence[Callable[[Any], Any]], *, order: Order = None) -> None:
        super().__init__(order)
        self.transforms = list(transforms)

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        try:
            from PIL import Image  # type: ignore[import-not-found,unused-ignore]
        except ImportError as error:
            raise ImportError(
                "TorchTransformCompose: it needs Pillow, which is not installed\n  try: pip install pillow"
            ) from error
        if image.shape[2] not in (1, 3):
            raise ShapeError(
                f"TorchTransformCompose: the image has shape {image.shape}; it must be (h, w, 3) or (h, w, 1)"
            )
        levels = np.ascontiguousarray(image[..., ::-1]).astype(np.uint8)
        value: Any = Image.fromarray(levels[..., 0] if levels.shape[2] == 1 else levels)
        for each in self.transforms:
            value = each(value)
        is_image = isinstance(value, Image.Image)
        array = np.asarray(value)
        if array.ndim == 2:
            array = array[..., np.newaxis]
        return np.ascontiguousarray(array[..., ::-1]) if is_image else array
