"""Transforms of samples, mostly of images.

In: samples; images are arrays (h, w, c), channels blue, green, red. Out: the same, changed, with draws of
``current_rng``.
After ``seeding``; before ``dataloader``.
"""

from .color import (
    BrightnessTransform,
    ColorJitter,
    ContrastTransform,
    GaussianNoise,
    HueTransform,
    Lighting,
    Normalize,
    SaturationTransform,
)
from .compose import Compose, TorchTransformCompose
from .crop import CenterCrop, RandomCrop, RandomResizedCrop
from .geometry import (
    Pad,
    RandomHorizontalFlip,
    RandomResize,
    RandomVerticalFlip,
    Resize,
    ShortestEdgeResize,
)
from .transform import PseudoTransform, Transform
from .vision import ToMode, VisionTransform

__all__ = [
    "Transform", "PseudoTransform", "VisionTransform", "Compose", "TorchTransformCompose", "ToMode",
    "Normalize", "Resize", "ShortestEdgeResize", "RandomResize", "CenterCrop", "RandomCrop",
    "RandomResizedCrop", "RandomHorizontalFlip", "RandomVerticalFlip", "Pad",
    "ColorJitter", "BrightnessTransform", "ContrastTransform", "SaturationTransform", "HueTransform",
    "Lighting", "GaussianNoise",
]  # fmt: skip
