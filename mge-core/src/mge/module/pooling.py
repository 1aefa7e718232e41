"""Pooling layers over 1, 2 and 3 axes.

In: (n, c, ...) tensors. Out: maximum, average and adaptive pools.
After ``conv``; before ``__init__``.
"""

from __future__ import annotations

from typing import ClassVar

from .. import functional as F
from ..tensor import Tensor
from .conv import Sizes, sizes
from .module import Module


class _MaxPool(Module):
    _axes: ClassVar[int]

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        kind = type(self).__name__
        self.kernel_size = sizes(kernel_size, self._axes, f"{kind}: kernel_size", 1)
        self.stride = (
            self.kernel_size if stride is None else sizes(stride, self._axes, f"{kind}: stride", 1)
        )
        self.padding = sizes(padding, self._axes, f"{kind}: padding")

    def forward(self, inp: Tensor) -> Tensor:
        function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[self._axes - 1]
        return function(inp, self.kernel_size, self.stride, self.padding)

    def _module_info_string(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _AvgPool(_MaxPool):
    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        mode: str = "average_count_exclude_padding",
        name: str | None = None,
    ) -> None:
        super().__init__(kernel_size, stride, padding, name)
        self.mode = mode.lower()

    def forward(self, inp: Tensor) -> Tensor:
        function = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[self._axes - 1]
        return function(inp, self.kernel_size, self.stride, self.padding, self.mode)


class _AdaptivePool(Module):
    _axes: ClassVar[int]
    _kind: ClassVar[str]

    def __init__(self, oshp: Sizes, name: str | None = None) -> None:
        super().__init__(name)
        self.oshp = sizes(oshp, self._axes, f"{type(self).__name__}: oshp", 1)

    def forward(self, inp: Tensor) -> Tensor:
        return getattr(F, f"adaptive_{self._kind}_pool{self._axes}d")(inp, self.oshp)

    def _module_info_string(self) -> str:
        return f"oshp={self.oshp}"


class MaxPool1d(_MaxPool):
    """Take the largest element of each window of an (n, c, w) tensor.

    Parameters
    ----------
    kernel_size : int
    stride : int, optional
        By default the kernel's size.
    padding : int, default 0
        Added on both sides; it never wins.
    name : str, optional

    Examples
    --------
    >>> MaxPool1d(2)(ones((1, 2, 8))).shape
    (1, 2, 4)
    """

    _axes = 1


class AvgPool1d(_AvgPool):
    """Average each window of an (n, c, w) tensor.

    Parameters
    ----------
    kernel_size : int
    stride : int, optional
        By default the kernel's size.
    padding : int, default 0
        Zeros added on both sides.
    mode : {"average_count_exclude_padding", "average"}
        Whether the padding is left out of the count, or counted.
    name : str, optional

    Examples
    --------
    >>> AvgPool1d(2)(ones((1, 2, 8))).shape
    (1, 2, 4)
    """

    _axes = 1


class AdaptiveMaxPool1d(_AdaptivePool):
    """Take the largest elements of windows, so many that the output has a given size.

    Parameters
    ----------
    oshp : int
        The size of the output.
    name : str, optional

    Examples
    --------
    >>> AdaptiveMaxPool1d(4)(ones((1, 2, 8))).shape
    (1, 2, 4)
    """

    _axes, _kind = 1, "max"


class AdaptiveAvgPool1d(_AdaptivePool):
    """Average windows, so many that the output has a given size.

    Parameters
    ----------
    oshp : int
        The size of the output.
    name : str, optional

    Examples
    --------
    >>> AdaptiveAvgPool1d(4)(ones((1, 2, 8))).shape
    (1, 2, 4)
    """

    _axes, _kind = 1, "avg"


class MaxPool2d(_MaxPool):
    """Take the largest element of each window of an (n, c, h, w) tensor.

    Parameters
    ----------
    kernel_size : int or (height, width)
    stride : int or (height, width), optional
        By default the kernel's size.
    padding : int or (height, width), default 0
        Added on both sides; it never wins.
    name : str, optional

    Examples
    --------
    >>> MaxPool2d(2)(ones((1, 2, 8, 8))).shape
    (1, 2, 4, 4)
    """

    _axes = 2


class AvgPool2d(_AvgPool):
    """Average each window of an (n, c, h, w) tensor.

    Parameters
    ----------
    kernel_size : int or (height, width)
    stride : int or (height, width), optional
        By default the kernel's size.
    padding : int or (height, width), default 0
        Zeros added on both sides.
    mode : {"average_count_exclude_padding", "average"}
        Whether the padding is left out of the count, or counted.
    name : str, optional

    Examples
    --------
    >>> AvgPool2d(2)(ones((1, 2, 8, 8))).shape
    (1, 2, 4, 4)
    """

    _axes = 2


class AdaptiveMaxPool2d(_AdaptivePool):
    """Take the largest elements of windows, so many that the output has a given size.

    Parameters
    ----------
    oshp : int or (height, width)
        The size of the output.
    name : str, optional

    Examples
    --------
    >>> AdaptiveMaxPool2d(4)(ones((1, 2, 8, 8))).shape
    (1, 2, 4, 4)
    """

    _axes, _kind = 2, "max"


class AdaptiveAvgPool2d(_AdaptivePool):
    """Average windows, so many that the output has a given size.

    Parameters
    ----------
    oshp : int or (height, width)
        The size of the output.
    name : str, optional

    Examples
    --------
    >>> AdaptiveAvgPool2d(4)(ones((1, 2, 8, 8))).shape
    (1, 2, 4, 4)
    """

    _axes, _kind = 2, "avg"


class MaxPool3d(_MaxPool):
    """Take the largest element of each window of an (n, c, d, h, w) tensor.

    Parameters
    ----------
    kernel_size : int or (depth, height, width)
    stride : int or (depth, height, width), optional
        By default the kernel's size.
    padding : int or (depth, height, width), default 0
        Added on both sides; it never wins.
    name : str, optional

    Examples
    --------
    >>> MaxPool3d(2)(ones((1, 2, 8, 8, 8))).shape
    (1, 2, 4, 4, 4)
    """

    _axes = 3


class AvgPool3d(_AvgPool):
    """Average each window of an (n, c, d, h, w) tensor.

    Parameters
    ----------
    kernel_size : int or (depth, height, width)
    stride : int or (depth, height, width), optional
        By default the kernel's size.
    padding : int or (depth, height, width), default 0
        Zeros added on both sides.
    mode : {"average_count_exclude_padding", "average"}
        Whether the padding is left out of the count, or counted.
    name : str, optional

    Examples
    --------
    >>> AvgPool3d(2)(ones((1, 2, 8, 8, 8))).shape
    (1, 2, 4, 4, 4)
    """

    _axes = 3


class AdaptiveMaxPool3d(_AdaptivePool):
    """Take the largest elements of windows, so many that the output has a given size.

    Parameters
    ----------
    oshp : int or (depth, height, width)
        The size of the output.
    name : str, optional

    Examples
    --------
    >>> AdaptiveMaxPool3d(4)(ones((1, 2, 8, 8, 8))).shape
    (1, 2, 4, 4, 4)
    """

    _axes, _kind = 3, "max"


class AdaptiveAvgPool3d(_AdaptivePool):
    """Average windows, so many that the output has a given size.

    Parameters
    ----------
    oshp : int or (depth, height, width)
        The size of the output.
    name : str, optional

    Examples
    --------
    >>> AdaptiveAvgPool3d(4)(ones((1, 2, 8, 8, 8))).shape
    (1, 2, 4, 4, 4)
    """

    _axes, _kind = 3, "avg"
