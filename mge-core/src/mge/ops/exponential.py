"""Exponentials, logarithms and roots.

In: float tensors; integers become float32. Out: ``exp``, ``log``, ``sqrt``, ``square`` and their kin.
After ``elementwise``; before ``tensor``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ..dtype import wide_of
from ..op import op
from ..types import abstract, broadcast
from .broadcasting import pairs, refuse_bool, singles, unbroadcast, widened
from .comparison import equal
from .elementwise import add, div, maximum, mul, sub
from .rounding import abs
from .select import cast, where

if TYPE_CHECKING:
    from ..tensor import Tensor


@op(base=True, promotes="float", autocast="high")
def exp(x: Tensor) -> Tensor:
    """Raise e to each element.

    ``y = e ** x``

    Parameters
    ----------
    x : (any shape) any dtype
        Integers and bools are cast to float32.

    Returns
    -------
    (shape of ``x``) its float dtype, or float32

    Raises
    ------
    DTypeError
        ``x`` is no tensor, array or number.

    Examples
    --------
    >>> exp(tensor([0.0, 1.0]))
    Tensor([1.      , 2.718282], dtype=float32, device=ref:0)
    """
    return abstract(x.shape, x.dtype)


exp.reference(np.exp)
exp.inplace = (0,)
exp.samples(singles)


@exp.gradient
def _(dy, y, x):
    return (mul(dy, y),)


@op(base=True, promotes="float", autocast="high")
def expm1(x: Tensor) -> Tensor:
    """Raise e to each element and subtract 1, exactly near 0.

    ``y = e ** x - 1``

    Parameters
    ----------
    x : (any shape) any dtype
        Integers and bools are cast to float32.

    Returns
    -------
    (shape of ``x``) its float dtype, or float32

    Raises
    ------
    DTypeError
        ``x`` is no tensor, array or number.

    Examples
    --------
    >>> expm1(tensor([0.0, 1e-10]))
    Tensor([0.e+00, 1.e-10], dtype=float32, device=ref:0)
    """
    return abstract(x.shape, x.dtype)


expm1.reference(np.expm1)
expm1.inplace = (0,)
expm1.samples(singles)


@expm1.gradient
def _(dy, y, x):
    return (mul(dy, add(y, 1.0)),)


@op(base=True, promotes="float", autocast="high")
def log(x: Tensor) -> Tensor:
    """Return the natural logarithm.

    ``y = log(x)``

    Parameters
    ----------
    x : (any shape) any dtype
        Integers and bools are cast to float32.

    Returns
    -------
    (shape of ``x``) its float dtype, or float32

    Raises
    ------
    DTypeError
        ``x`` is no tensor, array or number.

    Notes
    -----
    0 gives -infinity, negative values give NaN.

    Examples
    --------
    >>> log(tensor([1.0, 10.0]))
    Tensor([0.       , 2.3025851], dtype=float32, device=ref:0)
    """
    return abstract(x.shape, x.dtype)


log.reference(np.log)
log.inplace = (0,)


@log.gradient
def _(dy, y, x):
    return (div(dy, x),)


@log.samples
def _(rng):
    yield from singles(rng, low=0.2, high=4.0)


@op(base=True, promotes="float", autocast="high")
def log1p(x: Tensor) -> Tensor:
    """Return the natural logarithm of 1 plus each element, exactly near 0.

    ``y = log(1 + x)``

    Parameters
    ----------
    x : (any shape) any dtype
        Integers and bools are cast to float32.

    Returns
    -------
    (shape of ``x``) its float dtype, or float32

    Raises
    ------
    DTypeError
        ``x`` is no tensor, array or number.

    Notes
    -----
    -1 gives -infinity, lesser values give NaN.

    Examples
    --------
    >>> log1p(tensor([0.0, 1e-10]))
    Tensor([0.e+00, 1.e-10], dtype=float32, device=ref:0)
    """
    return abstract(x.shape, x.dtype)


log1p.reference(np.log1p)
log1p.inplace = (0,)


@log1p.gradient
def _(dy, y, x):
    return (div(dy, add(x, 1.0)),)


@log1p.samples
def _(rng):
    yield from singles(rng, low=-0.7, high=3.0)


@op(promotes="float", autocast="high")
def logaddexp(x: Tensor, y: Tensor) -> Tensor:
    """Add two numbers that are given by their logarithms.

    ``z = log(e ** x + e ** y)``

    Parameters
    ----------
    x, y : tensors, arrays or numbers that broadcast
        Cast to their common dtype; integers and bools to float32.

    Returns
    -------
    (the broadcast shape) the common float dtype; float32 for integers and bools

    Raises
    ------
    ShapeError
        The shapes do not broadcast.

    Notes
    -----
    Neither exponential is formed, so large inputs do not overflow.

    Examples
    --------
    >>> logaddexp(tensor([0.0, 1000.0]), 0.0)
    Tensor([6.931472e-01, 1.000000e+03], dtype=float32, device=ref:0)
    """
    return abstract(broadcast(x.shape, y.shape, where="logaddexp"), x.dtype)


logaddexp.reference(np.logaddexp)
logaddexp.inplace = (0, 1)
logaddexp.samples(pairs)


@logaddexp.gradient
def _(dz, z, x, y):
    return unbroadcast(mul(dz, exp(sub(x, z))), x), unbroadcast(mul(dz, exp(sub(y, z))), y)


@logaddexp.lowering
def _(x, y):
    # Equal infinities have no difference; there log(2 * e**x) is right for every x.
    apart = abs(sub(x, y))
    z = add(maximum(x, y), log1p(exp(mul(apart, -1.0))))
    return where(equal(x, y), add(x, math.log(2.0)), z)


@op(base=True, promotes="float")
def sqrt(x: Tensor) -> Tensor:
    """Return the square root.

    ``y = sqrt(x)``

    Parameters
    ----------
    x : (any shape) any dtype
        Integers and bools are cast to float32.

    Returns
    -------
    (shape of ``x``) its float dtype, or float32

    Raises
    ------
    DTypeError
        ``x`` is no tensor, array or number.

    Notes
    -----
    Negative values give NaN. The gradient at 0 is infinite.

    Examples
    --------
    >>> sqrt(tensor([4.0, 2.0]))
    Tensor([2.       , 1.4142135], dtype=float32, device=ref:0)
    """
    return abstract(x.shape, x.dtype)


sqrt.reference(np.sqrt)
sqrt.inplace = (0,)


@sqrt.gradient
def _(dy, y, x):
    return (div(mul(dy, 0.5), y),)


@sqrt.samples
def _(rng):
    yield from singles(rng, low=0.2, high=4.0)


@op
def square(x: Tensor) -> Tensor:
    """Return the square.

    ``y = x ** 2``

    Parameters
    ----------
    x : (any shape) float or integer

    Returns
    -------
    (shape of ``x``) dtype of ``x``

    Raises
    ------
    DTypeError
        ``x`` is bool.

    Notes
    -----
    Integers wrap.

    Examples
    --------
    >>> square(tensor([3, -2]))
    Tensor([9, 4], dtype=int32, device=ref:0)
    """
    refuse_bool("square", x)
    return abstract(x.shape, x.dtype)


square.reference(np.square)
square.inplace = (0,)
square.samples(singles)


@square.gradient
def _(dy, y, x):
    return (mul(dy, mul(x, 2.0)),)


@square.lowering
def _(x):
    return mul(x, x)


@op(promotes="float", autocast="high")
def rsqrt(x: Tensor) -> Tensor:
    """Return one over the square root.

    ``y = 1 / sqrt(x)``

    Parameters
    ----------
    x : (any shape) any dtype
        Integers and bools are cast to float32.

    Returns
    -------
    (shape of ``x``) its float dtype, or float32

    Raises
    ------
    DTypeError
        ``x`` is no tensor, array or number.

    Notes
    -----
    0 gives infinity, negative values give NaN. float16 and bfloat16 are computed in float32.

    Examples
    --------
    >>> rsqrt(tensor([4.0, 0.25]))
    Tensor([0.5, 2. ], dtype=float32, device=ref:0)
    """
    return abstract(x.shape, x.dtype)


rsqrt.inplace = (0,)


@rsqrt.reference
def _(x):
    with np.errstate(all="ignore"):
        return (1 / np.sqrt(widened(x))).astype(x.dtype)


@rsqrt.gradient
def _(dy, y, x):
    return (mul(mul(dy, -0.5), mul(y, square(y))),)


@rsqrt.lowering
def _(x):
    wide = cast(x, dtype=wide_of(x.dtype))
    return cast(div(1.0, sqrt(wide)), dtype=x.dtype)


@rsqrt.samples
def _(rng):
    yield from singles(rng, low=0.2, high=4.0)
