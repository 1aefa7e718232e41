"""Hyperbolic functions and their inverses.

In: float tensors; integers become float32. Out: ``sinh``, ``cosh``, ``tanh``, ``asinh``, ``acosh``, ``atanh``.
After ``exponential``; before ``tensor``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from ..op import op
from ..types import abstract
from .broadcasting import singles
from .comparison import less
from .elementwise import add, div, mul, neg, sub
from .exponential import exp, expm1, log, log1p, rsqrt, sqrt, square
from .rounding import abs
from .select import where

if TYPE_CHECKING:
    from ..tensor import Tensor


@op(base=True, promotes="float")
def tanh(x: Tensor) -> Tensor:
    """Return the hyperbolic tangent.

    ``y = (e**x - e**-x) / (e**x + e**-x)``

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
    >>> tanh(tensor([0.0, 1.0]))
    Tensor([0.       , 0.7615942], dtype=float32, device=ref:0)
    """
    return abstract(x.shape, x.dtype)


tanh.reference(np.tanh)
tanh.inplace = (0,)
tanh.samples(singles)


@tanh.gradient
def _(dy, y, x):
    return (mul(dy, sub(1.0, square(y))),)


@op(promotes="float", autocast="high")
def sinh(x: Tensor) -> Tensor:
    """Return the hyperbolic sine.

    ``y = (e**x - e**-x) / 2``

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
    >>> sinh(tensor([0.0, 1.0]))
    Tensor([0.       , 1.1752012], dtype=float32, device=ref:0)
    """
    return abstract(x.shape, x.dtype)


sinh.reference(np.sinh)
sinh.inplace = (0,)
sinh.samples(singles)


@sinh.gradient
def _(dy, y, x):
    return (mul(dy, cosh(x)),)


@sinh.lowering
def _(x):
    # Near 0 from expm1, exact there. Elsewhere from e**(x/2), which does not overflow before sinh does.
    small = expm1(x)
    near = mul(add(small, div(small, add(small, 1.0))), 0.5)
    root = exp(mul(x, 0.5))
    far = sub(mul(mul(root, 0.5), root), div(div(0.5, root), root))
    return where(less(abs(x), 1.0), near, far)


@op(promotes="float", autocast="high")
def cosh(x: Tensor) -> Tensor:
    """Return the hyperbolic cosine.

    ``y = (e**x + e**-x) / 2``

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
    >>> cosh(tensor([0.0, 1.0]))
    Tensor([1.       , 1.5430807], dtype=float32, device=ref:0)
    """
    return abstract(x.shape, x.dtype)


cosh.reference(np.cosh)
cosh.inplace = (0,)
cosh.samples(singles)


@cosh.gradient
def _(dy, y, x):
    return (mul(dy, sinh(x)),)


@cosh.lowering
def _(x):
    root = exp(mul(x, 0.5))  # does not overflow before cosh does
    return add(mul(mul(root, 0.5), root), div(div(0.5, root), root))


def _log_of_double(size: Tensor, otherwise: Tensor) -> Tensor:
    """Return log(2 * size) where size is so large that its square may overflow, else ``otherwise``."""
    limit = 1.0 / math.sqrt(float(ml_dtypes.finfo(size.dtype.dtype).eps))
    return where(less(size, limit), otherwise, add(log(size), math.log(2.0)))


@op(promotes="float", autocast="high")
def asinh(x: Tensor) -> Tensor:
    """Return the inverse of the hyperbolic sine.

    ``y = log(x + sqrt(x**2 + 1))``

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
    >>> asinh(tensor([0.0, 1.0]))
    Tensor([0.       , 0.8813736], dtype=float32, device=ref:0)
    """
    return abstract(x.shape, x.dtype)


asinh.reference(np.arcsinh)
asinh.inplace = (0,)
asinh.samples(singles)


@asinh.gradient
def _(dy, y, x):
    return (mul(dy, rsqrt(add(square(x), 1.0))),)


@asinh.lowering
def _(x):
    # asinh(s) = log1p(s + s**2 / (1 + sqrt(s**2 + 1))) for s >= 0: no cancellation near 0.
    size = abs(x)
    squared = square(size)
    y = log1p(add(size, div(squared, add(sqrt(add(squared, 1.0)), 1.0))))
    y = _log_of_double(size, y)
    return where(less(x, 0.0), neg(y), y)


@op(promotes="float", autocast="high")
def acosh(x: Tensor) -> Tensor:
    """Return the inverse of the hyperbolic cosine.

    ``y = log(x + sqrt(x**2 - 1))``, ``y >= 0``

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
    Values below 1 give NaN.

    Examples
    --------
    >>> acosh(tensor([1.0, 2.0]))
    Tensor([0.      , 1.316958], dtype=float32, device=ref:0)
    """
    return abstract(x.shape, x.dtype)


acosh.reference(np.arccosh)
acosh.inplace = (0,)


@acosh.gradient
def _(dy, y, x):
    return (mul(dy, mul(rsqrt(sub(x, 1.0)), rsqrt(add(x, 1.0)))),)


@acosh.lowering
def _(x):
    above = sub(x, 1.0)
    y = log1p(add(above, sqrt(mul(above, add(x, 1.0)))))
    return _log_of_double(x, y)


@acosh.samples
def _(rng):
    yield from singles(rng, low=1.3, high=4.0)


@op(promotes="float", autocast="high")
def atanh(x: Tensor) -> Tensor:
    """Return the inverse of the hyperbolic tangent.

    ``y = log((1 + x) / (1 - x)) / 2``

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
    1 and -1 give infinities, values beyond give NaN.

    Examples
    --------
    >>> atanh(tensor([0.0, 0.5]))
    Tensor([0.        , 0.54930615], dtype=float32, device=ref:0)
    """
    return abstract(x.shape, x.dtype)


atanh.reference(np.arctanh)
atanh.inplace = (0,)


@atanh.gradient
def _(dy, y, x):
    return (div(dy, mul(sub(1.0, x), add(x, 1.0))),)


@atanh.lowering
def _(x):
    return mul(sub(log1p(x), log1p(neg(x))), 0.5)


@atanh.samples
def _(rng):
    yield from singles(rng, low=-0.8, high=0.8)
