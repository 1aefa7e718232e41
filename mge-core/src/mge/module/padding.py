"""Layers that add a border or move channels into space.

In: tensors. Out: ``Pad``, ``ZeroPad``, ``PixelShuffle``.
After ``module``; before ``__init__``.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import functional as F
from ..errors import ArgumentError, ShapeError
from ..tensor import Tensor
from .module import Module

Widths = Sequence[tuple[int, int]]


class Pad(Module):
    """Add a border to each axis.

    Parameters
    ----------
    pad_width : sequence of (before, after)
        One pair for each axis, from the first; axes without a pair get no border.
    mode : {"constant", "edge", "reflect"}
        Also MegEngine's ``"replicate"`` for ``"edge"``; the case does not matter.
    constant_val : float, default 0.0
        What a constant border holds.
    name : str, optional

    Examples
    --------
    >>> Pad(((0, 0), (1, 2)))(ones((2, 3))).shape
    (2, 6)
    """

    def __init__(
        self,
        pad_width: Widths,
        mode: str = "constant",
        constant_val: float = 0.0,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.pad_width = tuple((int(before), int(after)) for before, after in pad_width)
        self.mode = {"replicate": "edge"}.get(mode.lower(), mode.lower())
        if self.mode not in ("constant", "edge", "reflect"):
            raise ArgumentError(
                f"Pad: mode is {mode!r}; it must be 'constant', 'edge' or 'reflect'"
            )
        self.constant_val = constant_val

    def forward(self, inp: Tensor) -> Tensor:
        widths = self.pad_width + ((0, 0),) * (inp.ndim - len(self.pad_width))
        return F.pad(inp, widths, self.mode, self.constant_val)

    def _module_info_string(self) -> str:
        return f"{self.pad_width}, mode={self.mode!r}"


class ZeroPad(Module):
    """Add a border of zeros to the last axes.

    Parameters
    ----------
    padding : int or sequence of int
        One width for both sides of the last two axes, or widths from the last axis backwards, as
        (left, right, top, bottom).
    name : str, optional

    Examples
    --------
    >>> ZeroPad((1, 1, 0, 2))(ones((1, 1, 3, 3))).shape
    (1, 1, 5, 5)
    """

    def __init__(self, padding: int | Sequence[int], name: str | None = None) -> None:
        super().__init__(name)
        self.padding = (padding,) * 4 if isinstance(padding, int) else tuple(padding)
        if len(self.padding) % 2:
            raise ArgumentError(
                f"ZeroPad: padding is {padding!r}; it must hold two widths for each axis"
            )

    def forward(self, inp: Tensor) -> Tensor:
        pairs = list(zip(self.padding[::2], self.padding[1::2]))[::-1]
        if len(pairs) > inp.ndim:
            raise ShapeError(
                f"ZeroPad: the input has shape {inp.shape}; padding is for {len(pairs)} axes"
            )
        return F.pad(inp, ((0, 0),) * (inp.ndim - len(pairs)) + tuple(pairs))

    def _module_info_string(self) -> str:
        return f"{self.padding}"


class PixelShuffle(Module):
    """Move channels into space: (n, c * r**2, h, w) becomes (n, c, h * r, w * r).

    Parameters
    ----------
    upscale_factor : int
        r.
    name : str, optional

    Sources
    -------
    Shi et al., Real-Time Single Image and Video Super-Resolution, CVPR 2016, arXiv:1609.05158.

    Examples
    --------
    >>> PixelShuffle(2)(ones((1, 8, 3, 3))).shape
    (1, 2, 6, 6)
    """

    def __init__(self, upscale_factor: int, name: str | None = None) -> None:
        super().__init__(name)
        self.upscale_factor = upscale_factor

    def forward(self, inp: Tensor) -> Tensor:
        return F.pixel_shuffle(inp, self.upscale_factor)

    def _module_info_string(self) -> str:
        return f"{self.upscale_factor}"
