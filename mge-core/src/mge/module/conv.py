"""Convolutions and transposed convolutions over 1, 2 and 3 axes.

In: (n, c, ...) tensors. Out: ``Conv1d`` .. ``Conv3d``, ``ConvTranspose1d`` .. ``ConvTranspose3d``.
After ``init``; before ``__init__``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from .. import functional as F
from ..errors import ArgumentError
from ..tensor import Tensor
from . import init
from .linear import empty_parameter
from .module import Module

Sizes = int | tuple[int, ...]


def sizes(value: Any, count: int, where: str, least: int = 0) -> tuple[int, ...]:
    """Return one int for each axis; a number stands for all of them."""
    result = (
        tuple(int(v) for v in value) if isinstance(value, (tuple, list)) else (int(value),) * count
    )
    if len(result) != count or any(v < least for v in result):
        raise ArgumentError(
            f"{where} is {value!r}; it must be {count} integers of at least {least}, or one"
        )
    return result


class _Conv(Module):
    """What all convolutions share: sizes, the shapes of weight and bias, and how they are drawn."""

    _axes: ClassVar[int]
    _transposed: ClassVar[bool] = False

    def _set(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes,
        padding: Sizes,
        dilation: Sizes,
        groups: int,
        bias: bool,
        conv_mode: str,
        compute_mode: str,
    ) -> None:
        kind, n = type(self).__name__, self._axes
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ArgumentError(
                f"{kind}: groups is {groups}, in_channels {in_channels} and out_channels {out_channels}; groups must "
                "divide both"
            )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = sizes(kernel_size, n, f"{kind}: kernel_size", 1)
        self.stride = sizes(stride, n, f"{kind}: stride", 1)
        self.padding = sizes(padding, n, f"{kind}: padding")
        self.dilation = sizes(dilation, n, f"{kind}: dilation", 1)
        self.conv_mode, self.compute_mode = conv_mode.lower(), compute_mode.lower()
        channels = (in_channels, out_channels) if self._transposed else (out_channels, in_channels)
        if groups == 1:
            shape = (*channels, *self.kernel_size)
        else:
            shape = (groups, channels[0] // groups, channels[1] // groups, *self.kernel_size)
        self.weight = empty_parameter(shape, grouped=groups > 1)
        self.bias = empty_parameter((1, out_channels, *[1] * n)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight from ``N(0, 1 / fan_in)`` and set the bias to 0."""
        fan_in, _ = init.calculate_fan_in_and_fan_out(self.weight, grouped=self.groups > 1)
        init.normal_(self.weight, 0.0, math.sqrt(1.0 / max(1, fan_in)))
        if self.bias is not None:
            init.zeros_(self.bias)

    def _options(self) -> dict[str, Any]:
        return {
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "groups": self.groups,
        }

    def _module_info_string(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        defaults = {"stride": (1,), "padding": (0,), "dilation": (1,)}
        for name, (default,) in defaults.items():
            if any(v != default for v in getattr(self, name)):
                text += f", {name}={getattr(self, name)}"
        text += f", groups={self.groups}" if self.groups != 1 else ""
        return text if self.bias is not None else text + ", bias=False"


class _Forward(_Conv):
    """A convolution of 1, 2 or 3 axes."""

    _function: ClassVar[Callable[..., Tensor]]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        conv_mode: str = "cross_correlation",
        compute_mode: str = "default",
        padding_mode: str = "zeros",
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if padding_mode not in ("zeros", "reflect", "replicate"):
            raise ArgumentError(
                f"{type(self).__name__}: padding_mode is {padding_mode!r}; it must be 'zeros', 'reflect' or 'replicate'"
            )
        self.padding_mode = padding_mode
        self._set(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            conv_mode,
            compute_mode,
        )

    def calc_conv(self, inp: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the convolution with another weight and bias, as quantisation needs it."""
        padding = self.padding
        if self.padding_mode != "zeros" and any(padding):
            around = ((0, 0), (0, 0), *((p, p) for p in padding))
            inp = F.pad(inp, around, mode="edge" if self.padding_mode == "replicate" else "reflect")
            padding = (0,) * self._axes
        return self._function(
            inp, weight, bias, self.stride, padding, self.dilation, self.groups, self.conv_mode, self.compute_mode
        )  # fmt: skip

    def forward(self, inp: Tensor) -> Tensor:
        return self.calc_conv(inp, self.weight, self.bias)


class Conv1d(_Forward):
    """Convolve over the last axis of an (n, c, w) tensor.

    Arguments are those of ``Conv2d``, with one size.

    Attributes
    ----------
    weight : (out_channels, in_channels, k) Parameter
        With groups: (groups, out_channels / groups, in_channels / groups, k).
    bias : (1, out_channels, 1) Parameter or None

    Examples
    --------
    >>> Conv1d(2, 4, 3)(ones((1, 2, 8))).shape
    (1, 4, 6)
    """

    _axes, _function = 1, staticmethod(F.conv1d)


class Conv2d(_Forward):
    """Convolve over the last two axes of an (n, c, h, w) tensor.

    ``y[n, o] = bias[o] + sum_c weight[o, c] * x[n, c]``, where ``*`` is the valid cross-correlation.

    Parameters
    ----------
    in_channels, out_channels : int
    kernel_size, stride, padding, dilation : int or (height, width)
        Padding is added on both sides.
    groups : int, default 1
        Divides both numbers of channels; outputs of a group see its inputs only.
    bias : bool, default True
        Whether there is a bias.
    conv_mode : {"cross_correlation", "convolution"}
        ``"convolution"`` flips the kernel.
    compute_mode : {"default", "float32"}
        ``"float32"`` accumulates float16 inputs in float32; mge always does.
    padding_mode : {"zeros", "reflect", "replicate"}
        What the padding holds.
    name : str, optional

    Attributes
    ----------
    weight : (out_channels, in_channels, kh, kw) Parameter
        With groups: (groups, out_channels / groups, in_channels / groups, kh, kw).
    bias : (1, out_channels, 1, 1) Parameter or None

    Notes
    -----
    Weights are drawn from ``N(0, 1 / fan_in)``; fan_in counts the channels of one group (MegEngine: of all).

    Examples
    --------
    >>> Conv2d(3, 8, 3, padding=1)(ones((1, 3, 6, 6))).shape
    (1, 8, 6, 6)
    """

    _axes, _function = 2, staticmethod(F.conv2d)


class Conv3d(_Forward):
    """Convolve over the last three axes of an (n, c, d, h, w) tensor.

    Arguments are those of ``Conv2d``, with three sizes.

    Attributes
    ----------
    weight : (out_channels, in_channels, kd, kh, kw) Parameter
        With groups: (groups, out_channels / groups, in_channels / groups, kd, kh, kw).
    bias : (1, out_channels, 1, 1, 1) Parameter or None

    Examples
    --------
    >>> Conv3d(1, 2, 2)(ones((1, 1, 3, 3, 3))).shape
    (1, 2, 2, 2, 2)
    """

    _axes, _function = 3, staticmethod(F.conv3d)


class _Transposed(_Conv):
    """A transposed convolution of 1, 2 or 3 axes."""

    _transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        conv_mode: str = "cross_correlation",
        compute_mode: str = "default",
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.output_padding = sizes(
            output_padding, self._axes, f"{type(self).__name__}: output_padding"
        )
        self._set(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            conv_mode,
            compute_mode,
        )

    def forward(self, inp: Tensor) -> Tensor:
        function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[self._axes - 1]
        return function(
            inp, self.weight, self.bias, output_padding=self.output_padding, conv_mode=self.conv_mode,
            compute_mode=self.compute_mode, **self._options(),
        )  # fmt: skip


class ConvTranspose1d(_Transposed):
    """The gradient of ``Conv1d`` with respect to its input, as a layer.

    Arguments are those of ``ConvTranspose2d``, with one size.

    Attributes
    ----------
    weight : (in_channels, out_channels, k) Parameter
        With groups: (groups, in_channels / groups, out_channels / groups, k).
    bias : (1, out_channels, 1) Parameter or None

    Examples
    --------
    >>> ConvTranspose1d(2, 4, 3, stride=2)(ones((1, 2, 4))).shape
    (1, 4, 9)
    """

    _axes = 1


class ConvTranspose2d(_Transposed):
    """The gradient of ``Conv2d`` with respect to its input, as a layer.

    Parameters
    ----------
    in_channels, out_channels : int
    kernel_size, stride, padding, dilation : int or (height, width)
    output_padding : int or (height, width), default 0
        Added to one side of the output; less than the stride or dilation.
    groups : int, default 1
        Divides both numbers of channels.
    bias : bool, default True
        Whether there is a bias.
    conv_mode : {"cross_correlation", "convolution"}
        ``"convolution"`` flips the kernel.
    compute_mode : {"default", "float32"}
        ``"float32"`` accumulates float16 inputs in float32; mge always does.
    name : str, optional

    Attributes
    ----------
    weight : (in_channels, out_channels, kh, kw) Parameter
        With groups: (groups, in_channels / groups, out_channels / groups, kh, kw).
    bias : (1, out_channels, 1, 1) Parameter or None

    Notes
    -----
    The output has ``(size - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1`` elements
    along an axis. Weights are drawn from ``N(0, 1 / (out_channels / groups * kh * kw))``.

    Examples
    --------
    >>> ConvTranspose2d(3, 2, 2, stride=2)(ones((1, 3, 4, 4))).shape
    (1, 2, 8, 8)
    """

    _axes = 2


class ConvTranspose3d(_Transposed):
    """The gradient of ``Conv3d`` with respect to its input, as a layer.

    Arguments are those of ``ConvTranspose2d``, with three sizes.

    Attributes
    ----------
    weight : (in_channels, out_channels, kd, kh, kw) Parameter
        With groups: (groups, in_channels / groups, out_channels / groups, kd, kh, kw).
    bias : (1, out_channels, 1, 1, 1) Parameter or None

    Examples
    --------
    >>> ConvTranspose3d(1, 2, 2)(ones((1, 1, 2, 2, 2))).shape
    (1, 2, 3, 3, 3)
    """

    _axes = 3
