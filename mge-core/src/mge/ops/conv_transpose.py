"""MegEngine's functions for transposed convolution.

In: tensors (n, c, *space), weights, biases. Out: ``conv_transpose1d``, ``conv_transpose2d``, ``conv_transpose3d``.
After ``conv_functions``; before ``tensor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError, ShapeError
from .conv import conv_backward_data
from .conv_functions import check_modes, flat_weight, plus_bias
from .windows import check_at_least, check_spatial, per_axis

if TYPE_CHECKING:
    from ..tensor import Tensor

FUNCTIONS = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")


def _conv_transpose(
    where: str,
    count: int,
    inp: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    output_padding: Any,
    dilation: Any,
    groups: int,
    conv_mode: str,
    compute_mode: str,
) -> Tensor:
    check_modes(where, conv_mode, compute_mode)
    check_spatial(inp.shape, count, where)
    weight = flat_weight(weight, count, groups, where)
    strides = per_axis(stride, count, "stride", where)
    paddings = per_axis(padding, count, "padding", where)
    dilations = per_axis(dilation, count, "dilation", where)
    extra = per_axis(output_padding, count, "output_padding", where)
    check_at_least(1, where, count, stride=strides, dilation=dilations)
    check_at_least(0, where, count, padding=paddings, output_padding=extra)
    if any(e >= s for e, s in zip(extra, strides)):
        raise ArgumentError(
            f"{where}: output_padding is {extra} and stride is {strides}; each must be below its stride"
        )
    if inp.shape[1] != weight.shape[0]:
        raise ShapeError(
            f"{where}: inp has shape {inp.shape} and weight has {weight.shape}; "
            f"inp's channels ({inp.shape[1]}) must be weight.shape[0] ({weight.shape[0]})",
            hint="the weight of a transposed convolution holds (in channels, out channels / groups, *kernel)",
        )
    size = tuple(
        (n - 1) * s - 2 * p + d * (k - 1) + 1 + e
        for n, s, p, d, k, e in zip(
            inp.shape[2:], strides, paddings, dilations, weight.shape[2:], extra
        )
    )
    if min(size) < 1:
        raise ShapeError(
            f"{where}: inp has shape {inp.shape} and padding is {paddings}; the result would have size {size}",
            hint="a smaller padding",
        )
    y = conv_backward_data(
        weight,
        inp,
        input_shape=(inp.shape[0], weight.shape[1] * groups, *size),
        stride=strides,
        padding=paddings,
        dilation=dilations,
        groups=groups,
    )
    return plus_bias(y, bias, where)


def conv_transpose1d(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """Spread sequences by kernels, the transpose of ``conv1d``, and add a bias.

    ``y[n, o, q] = bias[o] + sum_{c, p, k : p * stride + k * dilation - padding = q} inp[n, c, p] * weight[c, o, k]``

    Parameters
    ----------
    inp : (n, c, l) float
    weight : (c, o / groups, kl) or (groups, c / groups, o / groups, kl) float
    bias : (o,) or (1, o, 1), optional
        Cast to the dtype of the result.
    stride, padding, dilation : int, elements
        As of ``conv1d``, of which this is the gradient in its input.
    output_padding : int, elements, default 0
        Added to the size at the end of the axis; below ``stride``.
    groups : int, default 1
        Channels and outputs are cut into this many groups; each output sees its own group only.
    conv_mode : {"cross_correlation"}
    compute_mode : {"default", "float32"}
        float16 and bfloat16 are accumulated in float32 either way.

    Returns
    -------
    (n, o, ol) dtype of ``inp`` and ``weight``
        ``ol = (l - 1) * stride - 2 * padding + dilation * (kl - 1) + 1 + output_padding``

    Raises
    ------
    ShapeError
        The axes or channels do not fit, or the result would be empty.
    ArgumentError
        A stride, padding, dilation, number of groups or mode that makes no sense.
    DTypeError
        An input is not a float tensor.

    Examples
    --------
    >>> conv_transpose1d(tensor([[[1.0, 2.0]]]), tensor([[[1.0, 10.0]]]), stride=2)
    Tensor([[[ 1., 10.,  2., 20.]]], dtype=float32, device=ref:0)
    """
    return _conv_transpose(
        "conv_transpose1d",
        1,
        inp,
        weight,
        bias,
        stride,
        padding,
        output_padding,
        dilation,
        groups,
        conv_mode,
        compute_mode,
    )


def conv_transpose2d(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """Spread images by kernels, the transpose of ``conv2d``, and add a bias.

    ``y[n, o, q] = bias[o] + sum_{c, p, k : p * stride + k * dilation - padding = q} inp[n, c, p] * weight[c, o, k]``

    Parameters
    ----------
    inp : (n, c, h, w) float
    weight : (c, o / groups, kh, kw) or (groups, c / groups, o / groups, kh, kw) float
    bias : (o,) or (1, o, 1, 1), optional
        Cast to the dtype of the result.
    stride, padding, dilation : int or tuple of int, elements
        As of ``conv2d``, of which this is the gradient in its input.
    output_padding : int or tuple of int, elements, default 0
        Added to the size at the end of each axis; below ``stride``.
    groups : int, default 1
        Channels and outputs are cut into this many groups; each output sees its own group only.
    conv_mode : {"cross_correlation"}
    compute_mode : {"default", "float32"}
        float16 and bfloat16 are accumulated in float32 either way.

    Returns
    -------
    (n, o, oh, ow) dtype of ``inp`` and ``weight``
        ``ow = (w - 1) * stride - 2 * padding + dilation * (kw - 1) + 1 + output_padding``

    Raises
    ------
    ShapeError
        The axes or channels do not fit, or the result would be empty.
    ArgumentError
        A stride, padding, dilation, number of groups or mode that makes no sense.
    DTypeError
        An input is not a float tensor.

    Examples
    --------
    >>> conv_transpose2d(tensor([[[[1.0, 2.0]]]]), tensor([[[[1.0, 10.0]]]]), stride=(1, 2))
    Tensor([[[[ 1., 10.,  2., 20.]]]], dtype=float32, device=ref:0)
    """
    return _conv_transpose(
        "conv_transpose2d",
        2,
        inp,
        weight,
        bias,
        stride,
        padding,
        output_padding,
        dilation,
        groups,
        conv_mode,
        compute_mode,
    )


def conv_transpose3d(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """Spread volumes by kernels, the transpose of ``conv3d``, and add a bias.

    ``y[n, o, q] = bias[o] + sum_{c, p, k : p * stride + k * dilation - padding = q} inp[n, c, p] * weight[c, o, k]``

    Parameters
    ----------
    inp : (n, c, d, h, w) float
    weight : (c, o / groups, kd, kh, kw) or (groups, c / groups, o / groups, kd, kh, kw) float
    bias : (o,) or (1, o, 1, 1, 1), optional
        Cast to the dtype of the result.
    stride, padding, dilation : int or tuple of int, elements
        As of ``conv3d``, of which this is the gradient in its input.
    output_padding : int or tuple of int, elements, default 0
        Added to the size at the end of each axis; below ``stride``.
    groups : int, default 1
        Channels and outputs are cut into this many groups; each output sees its own group only.
    conv_mode : {"cross_correlation"}
    compute_mode : {"default", "float32"}
        float16 and bfloat16 are accumulated in float32 either way.

    Returns
    -------
    (n, o, od, oh, ow) dtype of ``inp`` and ``weight``
        ``ow = (w - 1) * stride - 2 * padding + dilation * (kw - 1) + 1 + output_padding``

    Raises
    ------
    ShapeError
        The axes or channels do not fit, or the result would be empty.
    ArgumentError
        A stride, padding, dilation, number of groups or mode that makes no sense.
    DTypeError
        An input is not a float tensor.

    Examples
    --------
    >>> conv_transpose3d(tensor([[[[[1.0, 2.0]]]]]), tensor([[[[[1.0, 10.0]]]]]), stride=(1, 1, 2))
    Tensor([[[[[ 1., 10.,  2., 20.]]]]], dtype=float32, device=ref:0)
    """
    return _conv_transpose(
        "conv_transpose3d",
        3,
        inp,
        weight,
        bias,
        stride,
        padding,
        output_padding,
        dilation,
        groups,
        conv_mode,
        compute_mode,
    )
