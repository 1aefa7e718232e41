"""Batch normalisation by statistics that are given, and how running statistics follow the batches.

In: tensors (n, c, ...), and one number for each channel. Out: the ops ``batch_norm_infer`` and ``moving_average``.
After ``batch_norm``; before ``batch_norm_functions``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..dtype import wide_of
from ..errors import ArgumentError, DTypeError, ShapeError
from ..op import op
from ..types import abstract
from .batch_norm import (
    check_channels,
    check_eps,
    check_input,
    flat_channels,
    per_channel,
    scale_of,
    shaped,
)
from .norm_reference import wide_array
from .reduction import converted
from .shape import reshape

if TYPE_CHECKING:
    from ..tensor import Tensor

PRIVATE = ("batch_norm_infer", "moving_average")


@op(autocast="high")
def batch_norm_infer(
    inp: Tensor,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each channel by a given mean and variance.

    ``y[n, c, p] = weight[c] * (inp[n, c, p] - mean[c]) / sqrt(var[c] + eps) + bias[c]``

    Parameters
    ----------
    inp : (n, c, ...) float
    mean, var : (c,) or (1, c, 1, ...) float
    weight, bias : (c,) or (1, c, 1, ...) float, optional
        A learned factor and shift for each channel.
    eps : float, default 1e-5
        Added to the variance, in the units of ``inp**2``.

    Returns
    -------
    (n, c, ...) dtype of ``inp``

    Raises
    ------
    ShapeError
        ``inp`` has less than two axes, or another input has not one number for each channel.
    DTypeError
        An input is not a float tensor.

    Notes
    -----
    Computed as ``inp * scale + shift``; the two depend on parameters only, so a compiled plan computes them once.
    float16 and bfloat16 are computed in float32.

    Examples
    --------
    >>> batch_norm_infer(tensor([[1.0], [3.0]]), tensor([2.0]), tensor([4.0]), eps=0.0)
    Tensor([[-0.5],
           [ 0.5]], dtype=float32, device=ref:0)
    """
    check_input("batch_norm_infer", inp)
    check_channels("batch_norm_infer", inp, mean=mean, var=var, weight=weight, bias=bias)
    check_eps("batch_norm_infer", eps)
    return abstract(inp.shape, inp.dtype)


batch_norm_infer.inplace = (0,)


@batch_norm_infer.reference
def _(inp, mean, var, weight=None, bias=None, *, eps, out):
    x = wide_array(inp)
    mean, var, weight, bias = (
        None if a is None else shaped(a, inp).astype(x.dtype, copy=False)
        for a in (mean, var, weight, bias)
    )
    with np.errstate(all="ignore"):
        scale = 1 / np.sqrt(var + x.dtype.type(eps))
        if weight is not None:
            scale = scale * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        y = np.multiply(x, scale, out=out if out.dtype == x.dtype else None)
        np.add(y, shift, out=out, casting="same_kind")


@batch_norm_infer.lowering
def _(inp, mean, var, weight=None, bias=None, *, eps):
    x = converted(inp, wide_of(inp.dtype))
    like = abstract(per_channel(inp.ndim, inp.shape[1]), x.dtype)
    scale = scale_of(flat_channels(var, like), weight, eps, like)
    shift = flat_channels(mean, like) * scale
    shift = -shift if bias is None else flat_channels(bias, like) - shift
    return converted(x * scale + shift, inp.dtype)


@batch_norm_infer.samples
def _(rng):
    yield (
        (rng.normal(size=(3, 2)), rng.normal(size=2), rng.uniform(0.5, 2.0, size=2)),
        {"eps": 1e-5},
    )
    for shape, one in (((2, 3, 2), (3,)), ((1, 2, 2, 3), (1, 2, 1, 1)), ((0, 2, 3), (2,))):
        given = (
            rng.normal(size=one),
            rng.uniform(0.5, 2.0, size=one),
            rng.normal(size=one),
            rng.normal(size=one),
        )
        yield (rng.normal(size=shape), *given), {"eps": 0.1}


@op
def moving_average(
    average: Tensor, value: Tensor, *, momentum: float, factor: float = 1.0
) -> Tensor:
    """Move a running average towards a new value.

    ``y = momentum * average + (1 - momentum) * factor * value``

    Parameters
    ----------
    average : (any shape) float
    value : as many elements, float
    momentum : float, 0 to 1
        The share of the old average.
    factor : float, default 1
        Applied to ``value`` first, as ``n / (n - 1)`` that makes a variance unbiased.

    Returns
    -------
    (shape of ``average``) dtype of ``average``

    Raises
    ------
    ShapeError
        The numbers of elements differ.
    ArgumentError
        ``momentum`` is not from 0 to 1.
    DTypeError
        An input is not a float tensor.

    Notes
    -----
    No gradient flows through it: a running average is a record, not a part of the model.

    Examples
    --------
    >>> moving_average(tensor([1.0]), tensor([5.0]), momentum=0.75)
    Tensor([2.], dtype=float32, device=ref:0)
    """
    if not average.dtype.is_float or not value.dtype.is_float:
        raise DTypeError(
            f"moving_average: average is {average.dtype} and value is {value.dtype}; both must be float"
        )
    if average.size != value.size:
        raise ShapeError(
            f"moving_average: average has shape {average.shape} and value has {value.shape}; "
            "both must have as many elements"
        )
    if not isinstance(momentum, float) or not isinstance(factor, float) or not 0 <= momentum <= 1:
        raise ArgumentError(
            f"moving_average: momentum is {momentum!r}; it must be a number from 0 to 1"
        )
    return abstract(average.shape, average.dtype)


moving_average.inplace = (0,)


@moving_average.reference
def _(average, value, *, momentum, factor, out):
    old, new = wide_array(average), wide_array(value).reshape(average.shape)
    kind = np.result_type(old, new).type
    np.add(old * kind(momentum), new * kind((1 - momentum) * factor), out=out, casting="same_kind")


@moving_average.gradient
def _(dy, y, average, value, **attrs):
    return None, None


@moving_average.lowering
def _(average, value, *, momentum, factor):
    wide = wide_of(average.dtype)
    new = reshape(converted(value, wide), shape=average.shape)
    return converted(
        converted(average, wide) * momentum + new * ((1 - momentum) * factor), average.dtype
    )


@moving_average.samples
def _(rng):
    yield (rng.normal(size=3), rng.normal(size=3)), {"momentum": 0.9}
    yield (rng.normal(size=(1, 2, 1, 1)), rng.normal(size=2)), {"momentum": 0.75, "factor": 1.5}
    yield (rng.normal(size=(0,)), rng.normal(size=(0, 2))), {"momentum": 0.5}
