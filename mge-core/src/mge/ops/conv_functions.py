"""MegEngine's functions for convolution: an integer or one for each axis, grouped weights, a bias.

In: tensors (n, c, *space), weights, biases. Out: ``conv1d``, ``conv2d``, ``conv3d``.
After ``conv``; before ``conv_transpose``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError, ShapeError
from .conv import conv
from .reduction import converted
from .shape import reshape
from .windows import are_sizes, check_spatial, per_axis

if TYPE_CHECKING:
    from ..tensor import Tensor

FUNCTIONS = ("conv1d", "conv2d", "conv3d")


def check_modes(where: str, conv_mode: str, compute_mode: str) -> None:
    """Raise an ArgumentError for a mode that is not offered."""
    if str(conv_mode).lower() != "cross_correlation":
        raise ArgumentError(
            f'{where}: conv_mode is {conv_mode!r}; only "cross_correlation" is offered',
            hint="reverse the kernel's spatial axes for a mathematical convolution",
        )
    if str(compute_mode).lower() not in ("default", "float32"):
        raise ArgumentError(
            f'{where}: compute_mode is {compute_mode!r}; it must be "default" or "float32"'
        )


def flat_weight(weight: Tensor, count: int, groups: int, where: str) -> Tensor:
    """Return a weight as (first, second, *kernel), also where it has an axis of groups in front."""
    if weight.ndim == count + 2:
        return weight
    shape = weight.shape
    if weight.ndim == count + 3 and shape[0] == groups:
        return reshape(weight, shape=(shape[0] * shape[1], *shape[2:]))
    raise ShapeError(
        f"{where}: weight has shape {shape} and groups is {groups}; it must have {count + 2} axes, "
        f"or {count + 3} with groups first"
    )


def plus_bias(y: Tensor, bias: Tensor | None, where: str) -> Tensor:
    """Add one number for each output channel, in the dtype of ``y``."""
    if bias is None:
        return y
    given, count = bias.shape, y.shape[1]
    shape = (1, count, *(1,) * (y.ndim - 2))
    if given != shape and (bias.size != count or len(given) > 1 and given[1] != count):
        raise ShapeError(
            f"{where}: bias has shape {given}; {count} output channels need ({count},) or {shape}"
        )
    bias = converted(bias, y.dtype)
    return y + (bias if given == shape else reshape(bias, shape=shape))


def _conv(
    where: str,
    count: int,
    inp: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    conv_mode: str,
    compute_mode: str,
) -> Tensor:
    if conv_mode != "cross_correlation" or compute_mode != "default":
        check_modes(where, conv_mode, compute_mode)
    if inp.ndim != count + 2:
        check_spatial(inp.shape, count, where)
    if weight.ndim != count + 2:
        weight = flat_weight(weight, count, groups, where)
    if not are_sizes(count, stride, padding, dilation):
        stride = per_axis(stride, count, "stride", where)
        padding = per_axis(padding, count, "padding", where)
        dilation = per_axis(dilation, count, "dilation", where)
    y = conv(inp, weight, stride=stride, padding=padding, dilation=dilation, groups=groups)
    return plus_bias(y, bias, where)


def conv1d(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """Correlate sequences with kernels, and add a bias for each output channel.

    ``y[n, o, p] = bias[o] + sum_{c, k} inp[n, c, p * stride + k * dilation - padding] * weight[o, c, k]``

    Parameters
    ----------
    inp : (n, c, l) float
    weight : (o, c / groups, kl) or (groups, o / groups, c / groups, kl) float
    bias : (o,) or (1, o, 1), optional
        Cast to the dtype of the result.
    stride, padding, dilation : int, elements
        Steps between windows, zeros on both sides, steps between the taps of a window.
    groups : int, default 1
        Channels and outputs are cut into this many groups; each output sees its own group only.
    conv_mode : {"cross_correlation"}
    compute_mode : {"default", "float32"}
        float16 and bfloat16 are accumulated in float32 either way.

    Returns
    -------
    (n, o, ol) dtype of ``inp`` and ``weight``
        ``ol = floor((l + 2 * padding - dilation * (kl - 1) - 1) / stride) + 1``

    Raises
    ------
    ShapeError
        The axes or channels do not fit, or a window is longer than the padded input.
    ArgumentError
        A stride, padding, dilation, number of groups or mode that makes no sense.
    DTypeError
        An input is not a float tensor.

    Examples
    --------
    >>> conv1d(tensor([[[1.0, 2.0, 4.0]]]), tensor([[[-1.0, 1.0]]]))
    Tensor([[[1., 2.]]], dtype=float32, device=ref:0)
    """
    return _conv(
        "conv1d", 1, inp, weight, bias, stride, padding, dilation, groups, conv_mode, compute_mode
    )


def conv2d(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """Correlate images with kernels, and add a bias for each output channel.

    ``y[n, o, p] = bias[o] + sum_{c, k} inp[n, c, p * stride + k * dilation - padding] * weight[o, c, k]``

    Parameters
    ----------
    inp : (n, c, h, w) float
    weight : (o, c / groups, kh, kw) or (groups, o / groups, c / groups, kh, kw) float
    bias : (o,) or (1, o, 1, 1), optional
        Cast to the dtype of the result.
    stride, padding, dilation : int or tuple of int, elements
        Steps between windows, zeros on both sides of each axis, steps between the taps of a window.
    groups : int, default 1
        Channels and outputs are cut into this many groups; each output sees its own group only.
    conv_mode : {"cross_correlation"}
    compute_mode : {"default", "float32"}
        float16 and bfloat16 are accumulated in float32 either way.

    Returns
    -------
    (n, o, oh, ow) dtype of ``inp`` and ``weight``
        ``ow = floor((w + 2 * padding - dilation * (kw - 1) - 1) / stride) + 1``

    Raises
    ------
    ShapeError
        The axes or channels do not fit, or a window is longer than the padded input.
    ArgumentError
        A stride, padding, dilation, number of groups or mode that makes no sense.
    DTypeError
        An input is not a float tensor.

    Examples
    --------
    >>> conv2d(tensor([[[[1.0, 2.0], [4.0, 8.0]]]]), tensor([[[[-1.0, 1.0]]]]))
    Tensor([[[[1.],
             [4.]]]], dtype=float32, device=ref:0)
    """
    return _conv(
        "conv2d", 2, inp, weight, bias, stride, padding, dilation, groups, conv_mode, compute_mode
    )


def conv3d(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """Correlate volumes with kernels, and add a bias for each output channel.

    ``y[n, o, p] = bias[o] + sum_{c, k} inp[n, c, p * stride + k * dilation - padding] * weight[o, c, k]``

    Parameters
    ----------
    inp : (n, c, d, h, w) float
    weight : (o, c / groups, kd, kh, kw) or (groups, o / groups, c / groups, kd, kh, kw) float
    bias : (o,) or (1, o, 1, 1, 1), optional
        Cast to the dtype of the result.
    stride, padding, dilation : int or tuple of int, elements
        Steps between windows, zeros on both sides of each axis, steps between the taps of a window.
    groups : int, default 1
        Channels and outputs are cut into this many groups; each output sees its own group only.
    conv_mode : {"cross_correlation"}
    compute_mode : {"default", "float32"}
        float16 and bfloat16 are accumulated in float32 either way.

    Returns
    -------
    (n, o, od, oh, ow) dtype of ``inp`` and ``weight``
        ``ow = floor((w + 2 * padding - dilation * (kw - 1) - 1) / stride) + 1``

    Raises
    ------
    ShapeError
        The axes or channels do not fit, or a window is longer than the padded input.
    ArgumentError
        A stride, padding, dilation, number of groups or mode that makes no sense.
    DTypeError
        An input is not a float tensor.

    Examples
    --------
    >>> conv3d(tensor([[[[[1.0, 2.0], [4.0, 8.0]]]]]), tensor([[[[[-1.0, 1.0]]]]]))
    Tensor([[[[[1.],
              [4.]]]]], dtype=float32, device=ref:0)
    """
    return _conv(
        "conv3d", 3, inp, weight, bias, stride, padding, dilation, groups, conv_mode, compute_mode
    )
