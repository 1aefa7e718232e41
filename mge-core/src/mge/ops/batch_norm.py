"""Batch normalisation in training: by the mean and variance of the batch, and its gradient.

In: tensors (n, c, ...). Out: the ops ``batch_norm_train`` and ``batch_norm_backward``.
After ``norm_reference``; before ``batch_norm_infer``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..dtype import wide_of
from ..errors import ArgumentError, DTypeError, ShapeError
from ..op import op
from ..types import Shape, abstract
from .exponential import rsqrt, square
from .norm_reference import standardized, standardized_backward, wide_array
from .reduction import converted, mean, sum
from .shape import broadcast_to, reshape

if TYPE_CHECKING:
    from ..tensor import Tensor

PRIVATE = ("batch_norm_train", "batch_norm_backward")


def batch_axes(ndim: int) -> tuple[int, ...]:
    """Return the axes over which statistics run: all but the channels."""
    return (0, *range(2, ndim))


def per_channel(ndim: int, c: int) -> Shape:
    """Return the shape of one number for each channel that broadcasts to (n, c, ...)."""
    return (1, c, *(1,) * (ndim - 2))


def check_input(where: str, inp: Any) -> None:
    """Check that a tensor is float and has channels."""
    if not inp.dtype.is_float:
        raise DTypeError(f"{where}: inp is {inp.dtype}; it must be a float tensor")
    if inp.ndim < 2:
        raise ShapeError(f"{where}: inp has shape {inp.shape}; it must be (n, channels, ...)")


def check_channels(where: str, inp: Any, **given: Any) -> None:
    """Check that each tensor is float and holds one number for each channel: (c,) or (1, c, 1, ...)."""
    c = inp.shape[1]
    for name, type_ in given.items():
        if type_ is None:
            continue
        if not type_.dtype.is_float:
            raise DTypeError(f"{where}: {name} is {type_.dtype}; it must be a float tensor")
        if type_.shape != (c,) and not (type_.size == c and type_.shape[:2] == (1, c)):
            raise ShapeError(
                f"{where}: {name} has shape {type_.shape}; inp of shape {inp.shape} needs ({c},) "
                f"or {per_channel(inp.ndim, c)}",
                hint="axis 1 of inp holds the channels",
            )


def _check_not_empty(where: str, inp: Any) -> None:
    if inp.size == 0:
        raise ShapeError(
            f"{where}: inp has shape {inp.shape}; statistics of a batch need at least 1 element for each channel"
        )


@op(autocast="high")
def batch_norm_train(
    inp: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise each channel by its mean and variance in this batch.

    ``y[n, c, p] = weight[c] * (inp[n, c, p] - mean[c]) / sqrt(var[c] + eps) + bias[c]``

    Parameters
    ----------
    inp : (n, c, ...) float
    weight, bias : (c,) or (1, c, 1, ...) float, optional
        A learned factor and shift for each channel.
    eps : float, default 1e-5
        Added to the variance, in the units of ``inp**2``.

    Returns
    -------
    y : (n, c, ...) dtype of ``inp``
    mean, var : (c,) float32, or float64 for float64
        Of each channel. The variance is biased: the mean of the squared differences to the mean.

    Raises
    ------
    ShapeError
        ``inp`` has less than two axes or no element, or ``weight`` or ``bias`` has not one number for each channel.
    DTypeError
        An input is not a float tensor.

    Notes
    -----
    float16 and bfloat16 are computed in float32. The variance takes two passes, so a large mean costs no digits.

    Sources
    -------
    Ioffe and Szegedy, Batch Normalization, ICML 2015, arXiv:1502.03167, algorithm 1.

    Examples
    --------
    >>> y, mean, var = batch_norm_train(tensor([[1.0], [3.0]]), eps=0.0)
    >>> y, mean, var
    (Tensor([[-1.],
           [ 1.]], dtype=float32, device=ref:0), Tensor([2.], ...), Tensor([1.], ...))
    """
    check_input("batch_norm_train", inp)
    check_channels("batch_norm_train", inp, weight=weight, bias=bias)
    _check_not_empty("batch_norm_train", inp)
    check_eps("batch_norm_train", eps)
    statistics = abstract((inp.shape[1],), wide_of(inp.dtype))
    return abstract(inp.shape, inp.dtype), statistics, statistics


batch_norm_train.inplace = (0,)


def check_eps(where: str, eps: float) -> None:
    """Check that ``eps`` keeps a square root real and finite."""
    if not isinstance(eps, float) or not 0 <= eps < float("inf"):
        raise ArgumentError(
            f"{where}: eps is {eps!r}; it must be a finite number that is at least 0"
        )


def shaped(x: np.ndarray | None, like: np.ndarray) -> np.ndarray | None:
    """Return one number for each channel so that it broadcasts to ``like``."""
    return None if x is None else x.reshape(per_channel(like.ndim, like.shape[1]))


@batch_norm_train.reference
def _(inp, weight=None, bias=None, *, eps):
    y, mean, var = standardized(
        inp, shaped(weight, inp), shaped(bias, inp), batch_axes(inp.ndim), eps
    )
    return y, mean.reshape(-1), var.reshape(-1)


@batch_norm_train.gradient
def _(dys, ys, inp, *affine, eps):
    # dys[1] and dys[2] come where the statistics are differentiated, as in second order.
    dy, dmean, dvar = dys
    dx, grads = None, [None] * len(affine)
    if dy is not None:
        found = batch_norm_backward(inp, dy, ys[1], ys[2], *affine[:1], eps=eps)
        dx, *found = found if affine else (found,)
        grads = [converted(reshape(g, shape=a.shape), a.dtype) for g, a in zip(found, affine)]
    if dmean is not None or dvar is not None:
        shape, count = per_channel(inp.ndim, inp.shape[1]), inp.size // inp.shape[1]
        more = 0.0 if dmean is None else reshape(dmean, shape=shape)
        if dvar is not None:
            more = more + (converted(inp, ys[1].dtype) - reshape(ys[1], shape=shape)) * reshape(
                dvar * 2.0, shape=shape
            )
        more = converted(more * (1.0 / count), inp.dtype)
        dx = broadcast_to(more, shape=inp.shape) if dx is None else dx + more
    return dx, *grads


@batch_norm_train.lowering
def _(inp, weight=None, bias=None, *, eps):
    x, axes = converted(inp, wide_of(inp.dtype)), batch_axes(inp.ndim)
    average = mean(x, axis=axes, keepdims=True)
    y = x - average
    var = mean(square(y), axis=axes, keepdims=True)
    y = y * scale_of(var, weight, eps, average)
    if bias is not None:
        y = y + flat_channels(bias, average)
    shape = (inp.shape[1],)
    return converted(y, inp.dtype), reshape(average, shape=shape), reshape(var, shape=shape)


def flat_channels(x: Tensor, like: Any) -> Tensor:
    """Return one number for each channel in the shape and dtype of ``like``."""
    x = converted(x, like.dtype)
    return x if x.shape == like.shape else reshape(x, shape=like.shape)


def scale_of(var: Tensor, weight: Tensor | None, eps: float, like: Any) -> Tensor:
    """Return ``weight / sqrt(var + eps)``."""
    scale = rsqrt(var + eps)
    return scale if weight is None else scale * flat_channels(weight, like)


@batch_norm_train.samples
def _(rng):
    yield (rng.normal(size=(5, 2)),), {"eps": 1e-5}
    yield (rng.normal(size=(2, 3, 4)) + 2.0, rng.normal(size=3), rng.normal(size=3)), {"eps": 1e-3}
    yield (
        (
            rng.normal(size=(2, 2, 2, 3)),
            rng.normal(size=(1, 2, 1, 1)),
            rng.normal(size=(1, 2, 1, 1)),
        ),
        {},
    )
    yield (rng.normal(size=(1, 2, 2, 1, 2)), rng.normal(size=2)), {"eps": 0.1}
    yield (rng.normal(size=(1, 3)),), {"eps": 1.0}


@op(autocast="high")
def batch_norm_backward(
    inp: Tensor,
    dy: Tensor,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None = None,
    *,
    eps: float = 1e-5,
) -> tuple[Tensor, ...]:
    """Differentiate ``batch_norm_train``.

    ``dx = weight * r * (dy - mean(dy) - z * mean(dy * z))``, ``z = (inp - mean) * r``, ``r = 1 / sqrt(var + eps)``

    Parameters
    ----------
    inp, dy : (n, c, ...) float
    mean, var : (c,) float
        What ``batch_norm_train`` gave for ``inp``.
    weight : (c,) or (1, c, 1, ...) float, optional
    eps : float, default 1e-5

    Returns
    -------
    dx : (n, c, ...) dtype of ``inp``
    dweight, dbias : (c,) float32, or float64 for float64; only with ``weight``
        ``sum(dy * z)`` and ``sum(dy)`` over all axes but the channels.

    Raises
    ------
    ShapeError
        ``dy`` has another shape than ``inp``, or another input has not one number for each channel.
    DTypeError
        An input is not a float tensor.

    Notes
    -----
    float16 and bfloat16 are computed in float32.

    Examples
    --------
    >>> x, dy = tensor([[1.0], [3.0], [5.0]]), tensor([[1.0], [0.0], [0.0]])
    >>> batch_norm_backward(x, dy, tensor([3.0]), tensor([1.0]), eps=0.0)
    Tensor([[-0.666...],
           [-0.333...],
           [ 1.  ...]], dtype=float32, device=ref:0)
    """
    where = "batch_norm_backward"
    check_input(where, inp)
    if dy.shape != inp.shape or dy.dtype != inp.dtype:
        raise ShapeError(
            f"{where}: inp is {inp} and dy is {dy}; both must have one shape and dtype"
        )
    check_channels(where, inp, mean=mean, var=var, weight=weight)
    _check_not_empty(where, inp)
    check_eps(where, eps)
    dx = abstract(inp.shape, inp.dtype)
    statistics = abstract((inp.shape[1],), wide_of(inp.dtype))
    return dx if weight is None else (dx, statistics, statistics)


batch_norm_backward.inplace = (1, 0)


@batch_norm_backward.reference
def _(inp, dy, mean, var, weight=None, *, eps):
    mean, var, weight = (
        None if a is None else wide_array(shaped(a, inp)) for a in (mean, var, weight)
    )
    dx, *more = standardized_backward(inp, dy, mean, var, weight, batch_axes(inp.ndim), eps)
    return (dx, *(m.reshape(-1) for m in more)) if more else dx


@batch_norm_backward.lowering
def _(inp, dy, mean, var, weight=None, *, eps):
    wide, axes = wide_of(inp.dtype), batch_axes(inp.ndim)
    shape, count = per_channel(inp.ndim, inp.shape[1]), inp.size // inp.shape[1]
    x, g = converted(inp, wide), converted(dy, wide)
    mean, var = (reshape(converted(a, wide), shape=shape) for a in (mean, var))
    r = rsqrt(var + eps)
    z = (x - mean) * r
    dbias, dweight = sum(g, axis=axes, keepdims=True), sum(g * z, axis=axes, keepdims=True)
    scale = r if weight is None else r * flat_channels(weight, mean)
    dx = converted(scale * (g - (dbias + z * dweight) * (1.0 / count)), inp.dtype)
    if weight is None:
        return dx
    return dx, reshape(dweight, shape=(inp.shape[1],)), reshape(dbias, shape=(inp.shape[1],))


@batch_norm_backward.samples
def _(rng):
    def statistics(c):
        return rng.normal(size=c), rng.uniform(0.5, 2.0, size=c)

    yield (rng.normal(size=(5, 2)), rng.normal(size=(5, 2)), *statistics(2)), {"eps": 1e-5}
    shape = (2, 3, 2, 2)
    yield (
        (rng.normal(size=shape), rng.normal(size=shape), *statistics(3), rng.normal(size=3)),
        {"eps": 0.1},
    )
    shape = (2, 2, 3)
    yield (
        (
            rng.normal(size=shape),
            rng.normal(size=shape),
            *statistics(2),
            rng.normal(size=(1, 2, 1)),
        ),
        {},
    )
