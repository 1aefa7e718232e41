"""Statistics: spreads, norms and similarities along axes.

In: tensors and axes. Out: ``var``, ``std``, ``logsumexp``, ``norm``, ``normalize``, ``cosine_similarity``.
After ``reduction``; before ``tensor``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ..dtype import wide_of
from ..op import op
from ..types import abstract, broadcast
from .comparison import equal, not_equal
from .elementwise import maximum
from .exponential import exp, log, sqrt
from .reduction import (
    Axis,
    add_along,
    converted,
    is_half,
    kept,
    max,
    mean,
    min,
    reduced_count,
    reduced_shape,
    refuse_empty,
    sum,
)
from .rounding import abs, sign
from .select import where
from .shape import broadcast_to, reshape

if TYPE_CHECKING:
    from ..tensor import Tensor

FUNCTIONS = ("normalize", "cosine_similarity")


def _widened(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if is_half(array) else array


def _centred(inp: Tensor, axis: Axis) -> Tensor:
    """Return ``inp`` less its mean, in the dtype of accumulation."""
    wide = converted(inp, wide_of(inp.dtype))
    return wide - mean(wide, axis=axis, keepdims=True)


@op(promotes="float", autocast="high")
def var(
    inp: Tensor, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False
) -> Tensor:
    """Return the biased variance along axes.

    ``y = sum_i (inp[..., i, ...] - mean)**2 / n``, where ``n`` elements make one result

    Parameters
    ----------
    inp : (any shape) any dtype
    axis : int, tuple of int or None, default None
        The axes to reduce; None means all.
    keepdims : bool, default False
        Keep each reduced axis with size 1.

    Returns
    -------
    (inp's shape without the reduced axes) dtype of ``inp``; float32 for bool and integers

    Raises
    ------
    ShapeError
        ``axis`` names an axis that ``inp`` lacks, or one twice.

    Notes
    -----
    Divides by ``n``, not by ``n - 1``. Two passes, the second over differences from the mean; float16 and bfloat16
    are computed in float32. Without elements the variance is NaN.

    Examples
    --------
    >>> var(tensor([[1.0, 3.0], [2.0, 2.0]]), axis=1)
    Tensor([1., 0.], dtype=float32, device=ref:0)
    """
    return abstract(reduced_shape(inp.shape, axis, keepdims, "var"), inp.dtype)


def _variance(inp: np.ndarray, axis: Axis, keepdims: bool) -> np.ndarray:
    n = reduced_count(inp.shape, axis)
    wide = _widened(inp)
    centre = add_along(wide, axis, keepdims=True) / wide.dtype.type(n)
    return add_along(np.square(wide - centre), axis, keepdims=keepdims) / wide.dtype.type(n)


@var.reference
def _(inp, *, axis, keepdims):
    with np.errstate(all="ignore"):
        return np.asarray(_variance(inp, axis, keepdims)).astype(inp.dtype)


@var.gradient
def _(dy, y, inp, *, axis, keepdims):
    scale = 2.0 / (reduced_count(inp.shape, axis) or 1)
    dx = _centred(inp, axis) * (converted(kept(dy, inp, axis), wide_of(inp.dtype)) * scale)
    return (converted(dx, inp.dtype),)


@var.lowering
def _(inp, *, axis, keepdims):
    centred = _centred(inp, axis)
    return converted(mean(centred * centred, axis=axis, keepdims=keepdims), inp.dtype)


var.samples(mean._samples)


@op(promotes="float", autocast="high")
def std(
    inp: Tensor, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False
) -> Tensor:
    """Return the biased standard deviation along axes.

    ``y = sqrt(var(inp))``

    Parameters
    ----------
    inp : (any shape) any dtype
    axis : int, tuple of int or None, default None
        The axes to reduce; None means all.
    keepdims : bool, default False
        Keep each reduced axis with size 1.

    Returns
    -------
    (inp's shape without the reduced axes) dtype of ``inp``; float32 for bool and integers

    Raises
    ------
    ShapeError
        ``axis`` names an axis that ``inp`` lacks, or one twice.

    Notes
    -----
    See ``var``. Where all elements are equal the gradient is 0, one of the subgradients.

    Examples
    --------
    >>> std(tensor([[1.0, 3.0], [2.0, 2.0]]), axis=1)
    Tensor([1., 0.], dtype=float32, device=ref:0)
    """
    return abstract(reduced_shape(inp.shape, axis, keepdims, "std"), inp.dtype)


@std.reference
def _(inp, *, axis, keepdims):
    with np.errstate(all="ignore"):
        return np.sqrt(_variance(inp, axis, keepdims)).astype(inp.dtype)


@std.gradient
def _(dy, y, inp, *, axis, keepdims):
    wide = wide_of(inp.dtype)
    y, dy = (converted(kept(v, inp, axis), wide) for v in (y, dy))
    y = where(equal(y, 0), 1, y)
    dx = _centred(inp, axis) * (dy / (y * float(reduced_count(inp.shape, axis) or 1)))
    return (converted(dx, inp.dtype),)


@std.lowering
def _(inp, *, axis, keepdims):
    wide = converted(inp, wide_of(inp.dtype))
    return converted(sqrt(var(wide, axis=axis, keepdims=keepdims)), inp.dtype)


@std.samples
def _(rng):
    yield (rng.normal(size=(3, 4)),), {}
    yield (rng.normal(size=(3, 4)),), {"axis": 0}
    yield (rng.normal(size=(2, 3, 4)),), {"axis": (0, -1), "keepdims": True}
    yield (rng.normal(size=(0, 3)),), {"axis": 1}


@op(promotes="float", autocast="high")
def logsumexp(
    inp: Tensor, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False
) -> Tensor:
    """Return the logarithm of the sum of exponentials along axes.

    ``y = log(sum_i exp(inp[..., i, ...]))``

    Parameters
    ----------
    inp : (any shape) any dtype
    axis : int, tuple of int or None, default None
        The axes to reduce; None means all.
    keepdims : bool, default False
        Keep each reduced axis with size 1.

    Returns
    -------
    (inp's shape without the reduced axes) dtype of ``inp``; float32 for bool and integers

    Raises
    ------
    ShapeError
        ``axis`` names an axis that ``inp`` lacks, or one twice; or a result would have no element to come from.

    Notes
    -----
    The largest element is subtracted first, so nothing overflows. Where all elements are -inf the result is -inf
    and the gradient 0. float16 and bfloat16 are computed in float32.

    Examples
    --------
    >>> logsumexp(tensor([[0.0, 0.0], [1000.0, 0.0]]), axis=1)
    Tensor([6.931472e-01, 1.000000e+03], dtype=float32, device=ref:0)
    """
    return abstract(refuse_empty(inp, axis, keepdims, "logsumexp"), inp.dtype)


@logsumexp.reference
def _(inp, *, axis, keepdims):
    if not inp.size:
        return np.zeros(reduced_shape(inp.shape, axis, keepdims, "logsumexp"), inp.dtype)
    wide = _widened(inp)
    with np.errstate(all="ignore"):
        top = np.maximum.reduce(wide, axis=axis, keepdims=True)
        top = np.where(np.isinf(top), 0, top).astype(wide.dtype)
        result = np.log(add_along(np.exp(wide - top), axis, keepdims=True)) + top
        return result.reshape(reduced_shape(inp.shape, axis, keepdims, "logsumexp")).astype(
            inp.dtype
        )


def _finite(x: Tensor) -> Tensor:
    """Return ``x`` with 0 in place of infinities."""
    return where(equal(abs(x), math.inf), 0, x)


@logsumexp.gradient
def _(dy, y, inp, *, axis, keepdims):
    return (kept(dy, inp, axis) * exp(inp - _finite(kept(y, inp, axis))),)


@logsumexp.lowering
def _(inp, *, axis, keepdims):
    wide = converted(inp, wide_of(inp.dtype))
    top = _finite(max(wide, axis=axis, keepdims=True))
    result = log(sum(exp(wide - top), axis=axis, keepdims=keepdims))
    return converted(result + (top if keepdims else reshape(top, result.shape)), inp.dtype)


@logsumexp.samples
def _(rng):
    yield (rng.normal(size=(3, 4)),), {}
    yield (rng.normal(size=(3, 4)) * 30,), {"axis": 1}
    yield (rng.normal(size=(2, 3, 4)),), {"axis": (0, -1), "keepdims": True}
    yield (rng.normal(size=()),), {}
    yield (np.zeros((0, 3)),), {"axis": 1}


@op(promotes="float", autocast="high")
def norm(
    inp: Tensor,
    *,
    ord: float | None = None,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
) -> Tensor:
    """Return the vector norm along axes.

    ``y = (sum_i abs(inp[..., i, ...])**ord) ** (1 / ord)``

    Parameters
    ----------
    inp : (any shape) any dtype
    ord : float or None, default None
        Order of the norm; None means 2. ``inf`` gives the largest magnitude, ``-inf`` the smallest, and 0 the
        number of elements that are not 0.
    axis : int, tuple of int or None, default None
        The axes whose elements form one vector; None means all.
    keepdims : bool, default False
        Keep each reduced axis with size 1.

    Returns
    -------
    (inp's shape without the reduced axes) dtype of ``inp``; float32 for bool and integers

    Raises
    ------
    ShapeError
        ``axis`` names an axis that ``inp`` lacks, or one twice; or ``ord`` is infinite and a result would have no
        element to come from.

    Notes
    -----
    float16 and bfloat16 are computed in float32. Squares of float32 overflow from magnitude 1.8e19 on. The
    gradient of a norm that is 0 is 0, one of the subgradients.

    Examples
    --------
    >>> norm(tensor([[3.0, 4.0], [0.0, 2.0]]), axis=1)
    Tensor([5., 2.], dtype=float32, device=ref:0)
    """
    if ord is not None and math.isinf(ord):
        return abstract(refuse_empty(inp, axis, keepdims, "norm"), inp.dtype)
    return abstract(reduced_shape(inp.shape, axis, keepdims, "norm"), inp.dtype)


@norm.reference
def _(inp, *, ord, axis, keepdims):
    size = np.abs(_widened(inp))
    along = {"axis": axis, "keepdims": keepdims}
    with np.errstate(all="ignore"):
        if ord is None or ord == 2:
            result = np.sqrt(add_along(np.square(size), **along))
        elif ord == 0:
            result = np.add.reduce(size != 0, dtype=size.dtype, **along)
        elif math.isinf(ord):
            result = (np.maximum if ord > 0 else np.minimum).reduce(size, **along)
        elif ord == 1:
            result = add_along(size, **along)
        else:
            result = np.add.reduce(size ** size.dtype.type(ord), **along) ** size.dtype.type(
                1 / ord
            )
    return np.asarray(result).astype(inp.dtype)


@norm.gradient
def _(dy, y, inp, *, ord, axis, keepdims):
    if ord == 0:
        return (None,)
    wide = wide_of(inp.dtype)
    x, y, dy = (converted(v, wide) for v in (inp, kept(y, inp, axis), kept(dy, inp, axis)))
    if ord == 1:
        dx = dy * sign(x)
    elif ord is not None and math.isinf(ord):
        hit = converted(equal(abs(inp), kept(y, inp, axis)), wide)
        dx = dy / sum(hit, axis=axis, keepdims=True) * hit * sign(x)
    else:
        y = where(equal(y, 0), 1, y)
        dx = dy / y * x if ord is None or ord == 2 else dy * sign(x) * (abs(x) / y) ** (ord - 1.0)
    return (converted(dx, inp.dtype),)


@norm.lowering
def _(inp, *, ord, axis, keepdims):
    wide = converted(inp, wide_of(inp.dtype))
    along = {"axis": axis, "keepdims": keepdims}
    if ord is None or ord == 2:
        result = sqrt(sum(wide * wide, **along))
    elif ord == 0:
        result = sum(converted(not_equal(wide, 0), wide.dtype), **along)
    elif math.isinf(ord):
        result = (max if ord > 0 else min)(abs(wide), **along)
    elif ord == 1:
        result = sum(abs(wide), **along)
    else:
        result = sum(abs(wide) ** ord, **along) ** (1.0 / ord)
    return converted(result, inp.dtype)


@norm.samples
def _(rng):
    def draw(*shape):
        return rng.uniform(0.5, 2.0, size=shape) * rng.choice([-1.0, 1.0], size=shape)

    yield (draw(3, 4),), {}
    yield (draw(3, 4),), {"ord": 1.0, "axis": 0}
    yield (draw(2, 3, 4),), {"ord": 3.0, "axis": (0, -1), "keepdims": True}
    yield (draw(2, 5),), {"ord": math.inf, "axis": 1}
    yield (draw(2, 5),), {"ord": -math.inf, "axis": 1}
    yield (draw(2, 5),), {"ord": 0.0, "axis": 1}
    yield (draw(2, 5),), {"ord": 0.5, "axis": 1}
    yield (draw(0, 3),), {"axis": 0}


def normalize(
    inp: Tensor, ord: float | None = None, axis: Axis = None, eps: float = 1e-12
) -> Tensor:
    """Divide a tensor by its norm along axes.

    ``y = inp / max(norm(inp, ord, axis), eps)``

    Parameters
    ----------
    inp : (any shape) any dtype
    ord : float or None, default None
        Order of the norm; None means 2. See ``norm``.
    axis : int, tuple of int or None, default None
        The axes whose elements form one vector; None means all.
    eps : float, default 1e-12
        Smallest divisor, in the units of ``inp``. Keeps vectors of zeros finite.

    Returns
    -------
    (inp's shape) dtype of ``inp``; float32 for bool and integers

    Raises
    ------
    ShapeError
        ``axis`` names an axis that ``inp`` lacks, or one twice.

    Examples
    --------
    >>> normalize(tensor([3.0, 4.0]))
    Tensor([0.6, 0.8], dtype=float32, device=ref:0)
    """
    return inp / maximum(norm(inp, ord=ord, axis=axis, keepdims=True), eps)


def cosine_similarity(inp1: Tensor, inp2: Tensor, axis: int = 1, eps: float = 1e-8) -> Tensor:
    """Return the cosine of the angle between vectors along one axis.

    ``y = sum_i(inp1 * inp2) / (max(norm(inp1), eps) * max(norm(inp2), eps))``

    Parameters
    ----------
    inp1, inp2 : shapes that broadcast, any dtype
    axis : int, default 1
        The axis that holds each vector, in the broadcast shape.
    eps : float, default 1e-8
        Smallest divisor for each norm, in the units of the inputs.

    Returns
    -------
    (broadcast shape without ``axis``) common dtype; float32 for bool and integers

    Raises
    ------
    ShapeError
        The shapes do not broadcast, or ``axis`` is no axis of theirs.

    Examples
    --------
    >>> cosine_similarity(tensor([[1.0, 0.0]]), tensor([[3.0, 4.0]]))
    Tensor([0.6], dtype=float32, device=ref:0)
    """
    shape = broadcast(inp1.shape, inp2.shape, where="cosine_similarity")
    inp1, inp2 = (broadcast_to(i, shape) if i.shape != shape else i for i in (inp1, inp2))
    lengths = [maximum(norm(i, axis=axis), eps) for i in (inp1, inp2)]
    return sum(inp1 * inp2, axis=axis) / (lengths[0] * lengths[1])
