"""Convolution over one to three spatial axes, and its two gradients.

In: tensors (n, c, *space) and weights (o, c / groups, *kernel). Out: the base ops ``conv``,
``conv_backward_data`` and ``conv_backward_weight``, of which each is the gradient of the other two.
After ``conv_reference``; before ``conv_functions``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError, DTypeError, ShapeError
from ..op import op
from ..types import Shape, abstract
from .conv_reference import convolve, convolve_backward_data, convolve_backward_weight
from .windows import Sizes, check_at_least, window_counts

if TYPE_CHECKING:
    from ..tensor import Tensor

PRIVATE = ("conv", "conv_backward_data", "conv_backward_weight")


def _result_shape(
    where: str,
    inp: Shape,
    weight: Shape,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
) -> Shape:
    """Return the shape of ``conv``'s result after all checks of shapes and attributes."""
    for name, shape in (("inp", inp), ("weight", weight)):
        if not isinstance(shape, tuple) or not 3 <= len(shape) <= 5:
            raise ShapeError(
                f"{where}: {name} has shape {shape}; it must have batch or outputs, channels, and 1 to 3 spatial axes"
            )
    if len(inp) != len(weight):
        raise ShapeError(
            f"{where}: inp has shape {inp} and weight has {weight}; both must have as many axes"
        )
    count = len(inp) - 2
    check_at_least(1, where, count, stride=stride, dilation=dilation)
    check_at_least(0, where, count, padding=padding)
    check_at_least(0, where, len(inp), input_shape=inp)
    check_at_least(0, where, len(inp), weight_shape=weight)
    if not isinstance(groups, int) or groups < 1 or weight[0] % groups:
        raise ArgumentError(
            f"{where}: groups is {groups}; it must be at least 1 and divide the {weight[0]} outputs of weight {weight}"
        )
    if inp[1] != weight[1] * groups:
        raise ShapeError(
            f"{where}: inp has shape {inp} and weight has {weight}; inp's channels ({inp[1]}) must be "
            f"weight.shape[1] * groups ({weight[1] * groups})",
            hint="weight holds (out channels, in channels / groups, *kernel); inp is (n, channels, *space)",
        )
    if 0 in weight[2:]:
        raise ShapeError(
            f"{where}: weight has shape {weight}; each axis of the kernel must be at least 1"
        )
    return (
        inp[0],
        weight[0],
        *window_counts(inp[2:], weight[2:], stride, padding, padding, dilation, where),
    )


def _check_float(where: str, **given: Any) -> None:
    for name, type_ in given.items():
        if not type_.dtype.is_float:
            raise DTypeError(
                f"{where}: {name} is {type_.dtype}; it must be a float tensor",
                hint="convert it with .astype('float32')",
            )


def _check_given(where: str, name: str, given: Shape, wanted: Shape) -> None:
    if given != wanted:
        raise ShapeError(
            f"{where}: {name} has shape {given}; these shapes and attributes give {wanted}"
        )


@op(base=True, promotes="same", autocast="low")
def conv(
    inp: Tensor,
    weight: Tensor,
    *,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int = 1,
) -> Tensor:
    """Correlate images with kernels: the convolution of neural networks.

    ``y[n, o, p] = sum_{c, k} inp[n, c, p * stride + k * dilation - padding] * weight[o, c, k]``

    Positions ``p`` and taps ``k`` have one index for each spatial axis; outside the image ``inp`` is 0.

    Parameters
    ----------
    inp : (n, c, *size) float
        One to three spatial axes.
    weight : (o, c / groups, *kernel) float
    stride : tuple of int, elements
        Steps between windows, one for each spatial axis; at least 1.
    padding : tuple of int, elements
        Zeros before and after each spatial axis.
    dilation : tuple of int, elements
        Steps between the taps of a window; at least 1.
    groups : int, default 1
        Channels and outputs are cut into this many groups, and each output sees its own group only.

    Returns
    -------
    (n, o, *count) dtype of the inputs
        ``count = floor((size + 2 * padding - dilation * (kernel - 1) - 1) / stride) + 1``

    Raises
    ------
    ShapeError
        The channels do not fit, or a window is longer than the padded image.
    ArgumentError
        An attribute has another length than the spatial axes or is too small, or ``groups`` does not divide ``o``.
    DTypeError
        An input is not a float tensor.

    Notes
    -----
    float16 and bfloat16 are accumulated in float32. Costs ``2 * n * o * prod(count) * c / groups * prod(kernel)``
    FLOPs.

    Examples
    --------
    >>> conv(tensor([[[1.0, 2.0, 4.0]]]), tensor([[[-1.0, 1.0]]]), stride=(1,), padding=(0,), dilation=(1,))
    Tensor([[[1., 2.]]], dtype=float32, device=ref:0)
    """
    _check_float("conv", inp=inp, weight=weight)
    return abstract(
        _result_shape("conv", inp.shape, weight.shape, stride, padding, dilation, groups), inp.dtype
    )


conv.reference(convolve)


conv.multiply_adds = lambda sig: sig.type.size * math.prod(sig.input_types[1].shape[1:])


@conv.gradient
def _(dy, y, inp, weight, **attrs):
    return (
        conv_backward_data(weight, dy, input_shape=inp.shape, **attrs),
        conv_backward_weight(inp, dy, weight_shape=weight.shape, **attrs),
    )


_PLAIN = {"stride": (1,), "padding": (0,), "dilation": (1,), "groups": 1}
_CASES: tuple[tuple[Shape, Shape, dict[str, Any]], ...] = (
    ((1, 2, 4), (2, 2, 2), _PLAIN),
    (
        (2, 1, 3, 4),
        (2, 1, 2, 2),
        {"stride": (1, 1), "padding": (1, 0), "dilation": (1, 1), "groups": 1},
    ),
    (
        (1, 4, 4, 3),
        (2, 2, 2, 1),
        {"stride": (2, 1), "padding": (1, 0), "dilation": (2, 1), "groups": 2},
    ),
    (
        (1, 3, 3, 3),
        (3, 1, 2, 2),
        {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 3},
    ),
    (
        (1, 3, 4, 4),
        (2, 3, 1, 1),
        {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1},
    ),
    (
        (1, 1, 3, 2, 3),
        (2, 1, 2, 1, 2),
        {"stride": (1,) * 3, "padding": (0, 1, 0), "dilation": (1,) * 3, "groups": 1},
    ),
    ((0, 2, 4), (2, 2, 2), _PLAIN),
)


@conv.samples
def _(rng):
    for inp, weight, attrs in _CASES:
        yield (rng.normal(size=inp), rng.normal(size=weight)), attrs


@op(base=True, promotes="same", autocast="low")
def conv_backward_data(
    weight: Tensor,
    dy: Tensor,
    *,
    input_shape: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int = 1,
) -> Tensor:
    """Give each input of ``conv`` its share of ``dy``: the transposed convolution.

    ``dx[n, c, q] = sum_{o, p, k : p * stride + k * dilation - padding = q} dy[n, o, p] * weight[o, c, k]``

    Parameters
    ----------
    weight : (o, c / groups, *kernel) float
    dy : (n, o, *count) float
    input_shape : tuple of int
        ``(n, c, *size)``, the shape of the result.
    stride, padding, dilation : tuple of int, elements
    groups : int, default 1
        As of ``conv``.

    Returns
    -------
    (n, c, *size) dtype of the inputs

    Raises
    ------
    ShapeError
        ``conv`` of ``input_shape`` and ``weight`` is impossible, or has another shape than ``dy``.
    ArgumentError
        An attribute that ``conv`` refuses.
    DTypeError
        An input is not a float tensor.

    Notes
    -----
    Linear in both inputs. float16 and bfloat16 are accumulated in float32. Costs as many FLOPs as ``conv``.

    Examples
    --------
    >>> weight, dy = tensor([[[-1.0, 1.0]]]), tensor([[[1.0, 2.0]]])
    >>> conv_backward_data(weight, dy, input_shape=(1, 1, 3), stride=(1,), padding=(0,), dilation=(1,))
    Tensor([[[-1., -1.,  2.]]], dtype=float32, device=ref:0)
    """
    where = "conv_backward_data"
    _check_float(where, weight=weight, dy=dy)
    _check_given(
        where,
        "dy",
        dy.shape,
        _result_shape(where, input_shape, weight.shape, stride, padding, dilation, groups),
    )
    return abstract(input_shape, dy.dtype)


conv_backward_data.reference(convolve_backward_data)


# Each dy meets each tap that it has.
conv_backward_data.multiply_adds = lambda sig: (
    sig.input_types[1].size * math.prod(sig.input_types[0].shape[1:])
)


@conv_backward_data.gradient
def _(dx, x, weight, dy, *, input_shape, **attrs):
    return conv_backward_weight(dx, dy, weight_shape=weight.shape, **attrs), conv(
        dx, weight, **attrs
    )


@conv_backward_data.samples
def _(rng):
    for inp, weight, attrs in _CASES:
        y = _result_shape("conv", inp, weight, **attrs)
        yield (rng.normal(size=weight), rng.normal(size=y)), {"input_shape": inp, **attrs}


@op(base=True, promotes="same", autocast="low")
def conv_backward_weight(
    inp: Tensor,
    dy: Tensor,
    *,
    weight_shape: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int = 1,
) -> Tensor:
    """Give each weight of ``conv`` the products of ``dy`` and what it met, summed.

    ``dw[o, c, k] = sum_{n, p} dy[n, o, p] * inp[n, c, p * stride + k * dilation - padding]``

    Parameters
    ----------
    inp : (n, c, *size) float
    dy : (n, o, *count) float
    weight_shape : tuple of int
        ``(o, c / groups, *kernel)``, the shape of the result.
    stride, padding, dilation : tuple of int, elements
    groups : int, default 1
        As of ``conv``.

    Returns
    -------
    (o, c / groups, *kernel) dtype of the inputs

    Raises
    ------
    ShapeError
        ``conv`` of ``inp`` and ``weight_shape`` is impossible, or has another shape than ``dy``.
    ArgumentError
        An attribute that ``conv`` refuses.
    DTypeError
        An input is not a float tensor.

    Notes
    -----
    Linear in both inputs. float16 and bfloat16 are accumulated in float32. Costs as many FLOPs as ``conv``.

    Examples
    --------
    >>> inp, dy = tensor([[[1.0, 2.0, 4.0]]]), tensor([[[1.0, 10.0]]])
    >>> conv_backward_weight(inp, dy, weight_shape=(1, 1, 2), stride=(1,), padding=(0,), dilation=(1,))
    Tensor([[[21., 42.]]], dtype=float32, device=ref:0)
    """
    where = "conv_backward_weight"
    _check_float(where, inp=inp, dy=dy)
    _check_given(
        where,
        "dy",
        dy.shape,
        _result_shape(where, inp.shape, weight_shape, stride, padding, dilation, groups),
    )
    return abstract(weight_shape, inp.dtype)


conv_backward_weight.reference(convolve_backward_weight)


conv_backward_weight.multiply_adds = lambda sig: (
    sig.input_types[1].size * math.prod(sig.type.shape[1:])
)


@conv_backward_weight.gradient
def _(dw, w, inp, dy, *, weight_shape, **attrs):
    return conv_backward_data(dw, dy, input_shape=inp.shape, **attrs), conv(inp, dw, **attrs)


@conv_backward_weight.samples
def _(rng):
    for inp, weight, attrs in _CASES:
        y = _result_shape("conv", inp, weight, **attrs)
        yield (rng.normal(size=inp), rng.normal(size=y)), {"weight_shape": weight, **attrs}
