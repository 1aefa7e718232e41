"""Change the values of pixels: normalise, colours, noise.

In: images (h, w, c), blue, green, red, with levels 0 to 255 in any dtype. Out: the same shape.
After ``vision``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mge.data.seeding import current_rng
from mge.errors import ArgumentError, ShapeError

from .vision import InPlaceTransform, Order

# Luma of blue, green, red: Rec. ITU-R BT.601-7, section 2.5.1.
_LUMA = np.array([0.114, 0.587, 0.299], np.float32)
# Principal components of ImageNet's colours for levels 0 to 1, rows blue, green, red: Krizhevsky et al.,
# ImageNet Classification with Deep CNNs, NIPS 2012, section 4.1; values of fb.resnet.torch, imagenet.lua.
_EIGENVECTORS = np.array(
    [[-0.5836, -0.6948, 0.4203], [-0.5808, -0.0045, -0.8140], [-0.5675, 0.7192, 0.4009]]
)
_EIGENVALUES = np.array([0.2175, 0.0188, 0.0045])


class Normalize(InPlaceTransform):
    """Subtract a mean and divide by a standard deviation, for each channel.

    ``y[h, w, c] = (x[h, w, c] - mean[c]) / std[c]``

    Parameters
    ----------
    mean : float or (c,) sequence, default 0
        In the image's levels.
    std : float or (c,) sequence, default 1
        In the image's levels; not 0.
    order : sequence of str, optional
        See :class:`VisionTransform`.

    Raises
    ------
    ArgumentError
        ``std`` has a 0, or an entry is not finite.
    ShapeError
        On use: the number of channels is another one.

    Notes
    -----
    The result is float32.

    Examples
    --------
    >>> from mge.data.transform import Normalize
    >>> Normalize(mean=128, std=64).apply(np.full((1, 1, 1), 192, np.uint8)).item()
    1.0
    """

    def __init__(self, mean: Any = 0.0, std: Any = 1.0, *, order: Order = None) -> None:
        super().__init__(order)
        self.mean = np.array(mean, np.float32)
        self.std = np.array(std, np.float32)
        if not np.isfinite(self.mean).all() or not np.isfinite(self.std).all() or 0 in self.std:
            raise ArgumentError(
                f"Normalize: mean is {mean!r} and std is {std!r}; they must be finite, and std not 0"
            )

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values.ndim > 1 or values.size not in (1, image.shape[2]):
                raise ShapeError(
                    f"Normalize: {name} has shape {values.shape} and the image {image.shape}; one number, "
                    "or one for each channel, is needed",
                    hint="Normalize before ToMode: it takes (h, w, c)",
                )
        return (image.astype(np.float32) - self.mean) / self.std


class GaussianNoise(InPlaceTransform):
    """Add normal noise to each value.

    Parameters
    ----------
    mean, std : float, default 0 and 1
        Of the noise, in units of 255 levels: ``std=0.1`` is 25.5 levels.
    order : sequence of str, optional
        See :class:`VisionTransform`.

    Raises
    ------
    ArgumentError
        ``std`` is negative.

    Examples
    --------
    >>> from mge.data.transform import GaussianNoise
    >>> GaussianNoise(mean=0.2, std=0.0).apply(np.full((1, 1, 1), 9, np.uint8)).item()
    60
    """

    def __init__(self, mean: float = 0.0, std: float = 1.0, *, order: Order = None) -> None:
        super().__init__(order)
        if not std >= 0:
            raise ArgumentError(f"GaussianNoise: std is {std!r}; it must be at least 0")
        self.mean = mean
        self.std = std

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        noise = current_rng().standard_normal(image.shape, np.float32) * self.std + self.mean
        return _levels(image + noise * np.float32(255), image.dtype)


class _Adjust(InPlaceTransform):
    """Base of transforms with a strength; 0 leaves the image as it is."""

    _most = np.inf

    def __init__(self, value: float, *, order: Order = None) -> None:
        super().__init__(order)
        if not 0 <= value <= self._most:
            rule = "at least 0" if self._most == np.inf else f"from 0 to {self._most:g}"
            raise ArgumentError(f"{type(self).__name__}: value is {value!r}; it must be {rule}")
        self.value = value

    def _factor(self) -> np.float32:
        """Draw from 1 - value to 1 + value, and at least 0."""
        return np.float32(current_rng().uniform(max(0.0, 1 - self.value), 1 + self.value))

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        return image if self.value == 0 else _levels(self._adjusted(image), image.dtype)

    def _adjusted(self, image: np.ndarray) -> np.ndarray:
        raise NotImplementedError


class BrightnessTransform(_Adjust):
    """Multiply all values by a drawn factor.

    Parameters
    ----------
    value : float
        The factor is drawn from ``1 - value`` (at least 0) to ``1 + value``.
    order : sequence of str, optional
        See :class:`VisionTransform`.

    Raises
    ------
    ArgumentError
        ``value`` is negative.

    Notes
    -----
    Results are kept in 0 to 255; integers are rounded.

    Examples
    --------
    >>> from mge.data.transform import BrightnessTransform
    >>> BrightnessTransform(0.0).apply(np.full((1, 1, 3), 9, np.uint8)).ravel()
    array([9, 9, 9], dtype=uint8)
    """

    def __init__(self, value: float, *, order: Order = None) -> None:
        super().__init__(value, order=order)

    def _adjusted(self, image: np.ndarray) -> np.ndarray:
        return image.astype(np.float32) * self._factor()


class ContrastTransform(_Adjust):
    """Move all values away from, or towards, the mean of the grey image.

    Parameters
    ----------
    value : float
        The factor of the distance is drawn from ``1 - value`` (at least 0) to ``1 + value``.
    order : sequence of str, optional
        See :class:`VisionTransform`.

    Raises
    ------
    ArgumentError
        ``value`` is negative.
    ShapeError
        On use: the image has neither 1 nor 3 channels.

    Notes
    -----
    Results are kept in 0 to 255; integers are rounded.

    Examples
    --------
    >>> from mge.data.transform import ContrastTransform
    >>> ContrastTransform(0.5).apply(np.full((2, 2, 3), 9, np.uint8)).max()
    np.uint8(9)
    """

    def __init__(self, value: float, *, order: Order = None) -> None:
        super().__init__(value, order=order)

    def _adjusted(self, image: np.ndarray) -> np.ndarray:
        wide, factor = image.astype(np.float32), self._factor()
        return wide * factor + _grey(wide, self).mean() * (1 - factor)


class SaturationTransform(_Adjust):
    """Move each pixel away from, or towards, its grey.

    Parameters
    ----------
    value : float
        The factor of the distance is drawn from ``1 - value`` (at least 0) to ``1 + value``.
    order : sequence of str, optional
        See :class:`VisionTransform`.

    Raises
    ------
    ArgumentError
        ``value`` is negative.
    ShapeError
        On use: the image has neither 1 nor 3 channels.

    Notes
    -----
    Results are kept in 0 to 255; integers are rounded. A grey image stays as it is.

    Examples
    --------
    >>> from mge.data.transform import SaturationTransform
    >>> SaturationTransform(0.5).apply(np.full((2, 2, 3), 9, np.uint8)).max()
    np.uint8(9)
    """

    def __init__(self, value: float, *, order: Order = None) -> None:
        super().__init__(value, order=order)

    def _adjusted(self, image: np.ndarray) -> np.ndarray:
        wide, factor = image.astype(np.float32), self._factor()
        return wide * factor + _grey(wide, self) * (1 - factor)


class HueTransform(_Adjust):
    """Turn the hue of all pixels by a drawn part of the colour circle.

    Parameters
    ----------
    value : float
        The part is drawn from ``-value`` to ``value``; 0 to 0.5.
    order : sequence of str, optional
        See :class:`VisionTransform`.

    Raises
    ------
    ArgumentError
        ``value`` is outside of 0 to 0.5.
    ShapeError
        On use: the image has not 3 channels.

    Notes
    -----
    In the HSV cone, in float32, without rounding the hue.

    Examples
    --------
    >>> from mge.data.transform import HueTransform
    >>> HueTransform(0.5).apply(np.full((1, 1, 3), 9, np.uint8)).ravel()
    array([9, 9, 9], dtype=uint8)
    """

    _most = 0.5

    def __init__(self, value: float, *, order: Order = None) -> None:
        super().__init__(value, order=order)

    def _adjusted(self, image: np.ndarray) -> np.ndarray:
        if image.shape[2] != 3:
            raise ShapeError(
                f"HueTransform: the image has shape {image.shape}; it must be (h, w, 3)"
            )
        return turn_hue(image.astype(np.float32), current_rng().uniform(-self.value, self.value))


def turn_hue(image: np.ndarray, part: float) -> np.ndarray:
    """Turn the hue of a float image (h, w, 3), blue, green, red, by ``part`` of the circle."""
    blue, green, red = np.moveaxis(image, 2, 0)
    value = image.max(axis=2)
    chroma = value - image.min(axis=2)
    safe = np.where(chroma == 0, 1, chroma)
    # Position on the circle in sixths: 0 red, 2 green, 4 blue.
    sixth = np.where(
        value == red,
        (green - blue) / safe,
        np.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    sixth = sixth + np.float32(6 * part)
    # f(n) = V - C max(0, min(k, 4 - k, 1)), k = (n + H) mod 6; red, green, blue have n = 5, 3, 1
    # (Smith, Color gamut transform pairs, SIGGRAPH 1978, in closed form).
    channels = []
    for offset in (1, 3, 5):
        k = (offset + sixth) % 6
        channels.append(value - chroma * np.clip(np.minimum(k, 4 - k), 0, 1))
    return np.stack(channels, axis=2)


class ColorJitter(InPlaceTransform):
    """Change brightness, contrast, saturation and hue, in a random order.

    Parameters
    ----------
    brightness, contrast, saturation : float, default 0
        As ``value`` of the single transforms; 0 leaves it out.
    hue : float, default 0
        As ``value`` of :class:`HueTransform`, 0 to 0.5.
    order : sequence of str, optional
        See :class:`VisionTransform`.

    Raises
    ------
    ArgumentError
        A strength is outside of its range.

    Examples
    --------
    >>> from mge.data.transform import ColorJitter
    >>> ColorJitter(0.4, 0.4, 0.4, 0.1).apply(np.zeros((4, 4, 3), np.uint8)).shape
    (4, 4, 3)
    """

    def __init__(
        self,
        brightness: float = 0,
        contrast: float = 0,
        saturation: float = 0,
        hue: float = 0,
        *,
        order: Order = None,
    ) -> None:
        super().__init__(order)
        candidates: list[_Adjust] = [
            BrightnessTransform(brightness),
            ContrastTransform(contrast),
            SaturationTransform(saturation),
            HueTransform(hue),
        ]
        self.transforms = [each for each in candidates if each.value != 0]

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        for place in current_rng().permutation(len(self.transforms)):
            image = self.transforms[place]._apply_image(image)
        return image


class Lighting(InPlaceTransform):
    """Add drawn amounts of the principal colours of ImageNet, the same to all pixels.

    Parameters
    ----------
    scale : float
        Standard deviation of the amounts; 0.1 in the source.
    order : sequence of str, optional
        See :class:`VisionTransform`.

    Raises
    ------
    ArgumentError
        ``scale`` is negative.
    ShapeError
        On use: the image has not 3 channels.

    Notes
    -----
    The components are those of levels 0 to 1, so they are multiplied by 255 here. (MegEngine adds them
    as they are to levels of 0 to 255, where they have no visible effect.)

    Sources
    -------
    Krizhevsky et al., ImageNet Classification with Deep CNNs, NIPS 2012, section 4.1.

    Examples
    --------
    >>> from mge.data.transform import Lighting
    >>> Lighting(0.1).apply(np.full((4, 4, 3), 128, np.uint8)).shape
    (4, 4, 3)
    """

    def __init__(self, scale: float, *, order: Order = None) -> None:
        super().__init__(order)
        if not scale >= 0:
            raise ArgumentError(f"Lighting: scale is {scale!r}; it must be at least 0")
        self.scale = scale

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        if self.scale == 0:
            return image
        if image.shape[2] != 3:
            raise ShapeError(f"Lighting: the image has shape {image.shape}; it must be (h, w, 3)")
        amounts = current_rng().normal(scale=self.scale, size=3) * _EIGENVALUES * 255
        return _levels(image + (_EIGENVECTORS @ amounts).astype(np.float32), image.dtype)


def _grey(image: np.ndarray, where: InPlaceTransform) -> np.ndarray:
    if image.shape[2] == 1:
        return image
    if image.shape[2] != 3:
        raise ShapeError(
            f"{type(where).__name__}: the image has shape {image.shape}; it must be (h, w, 3) or (h, w, 1)"
        )
    return (image @ _LUMA)[..., np.newaxis]


def _levels(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Keep values in 0 to 255, and give them the image's dtype."""
    kept = np.clip(values, 0, 255)
    return (np.rint(kept) if np.issubdtype(dtype, np.integer) else kept).astype(dtype)
