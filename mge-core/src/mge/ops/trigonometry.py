"""Circular functions and their inverses, in radians.

In: float tensors; integers become float32. Out: ``sin``, ``cos``, ``tan``, ``asin``, ``acos``, ``atan``, ``atan2``.
After ``exponential``; before ``tensor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..op import op
from ..types import abstract, broadcast
from .broadcasting import divisions, singles, unbroadcast
from .elementwise import add, div, mul, neg, sub
from .exponential import rsqrt, sqrt, square

if TYPE_CHECKING:
    from ..tensor import Tensor


@op(base=True, promotes="float")
def sin(x: Tensor) -> Tensor:
    """Return the sine.

    ``y = sin(x)``

    Parameters
    ----------
    x : (any shape) any dtype, radians
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
    Infinities give NaN.

    Examples
    --------
    >>> sin(tensor([0.0, 1.0]))
    Tensor([0.      , 0.841471], dtype=float32, device=ref:0)
    """
    return abstract(x.shape, x.dtype)


sin.reference(np.sin)
sin.inplace = (0,)
sin.samples(singles)


@sin.gradient
def _(dy, y, x):
    return (mul(dy, cos(x)),)


@op(base=True, promotes="float")
def cos(x: Tensor) -> Tensor:
    """Return the cosine.

    ``y = cos(x)``

    Parameters
    ----------
    x : (any shape) any dtype, radians
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
    Infinities give NaN.

    Examples
    --------
    >>> cos(tensor([0.0, 1.0]))
    Tensor([1.       , 0.5403023], dtype=float32, device=ref:0)
    """
    return abstract(x.shape, x.dtype)


cos.reference(np.cos)
cos.inplace = (0,)
cos.samples(singles)


@cos.gradient
def _(dy, y, x):
    return (neg(mul(dy, sin(x))),)


@op(base=True, promotes="float", autocast="high")
def tan(x: Tensor) -> Tensor:
    """Return the tangent.

    ``y = sin(x) / cos(x)``

    Parameters
    ----------
    x : (any shape) any dtype, radians
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
    Infinities give NaN.

    Examples
    --------
    >>> tan(tensor([0.0, 1.0]))
    Tensor([0.       , 1.5574077], dtype=float32, device=ref:0)
    """
    return abstract(x.shape, x.dtype)


tan.reference(np.tan)
tan.inplace = (0,)


@tan.gradient
def _(dy, y, x):
    return (mul(dy, add(square(y), 1.0)),)


@tan.samples
def _(rng):
    yield from singles(rng, low=-1.2, high=1.2)


@op(base=True, promotes="float")
def atan2(y: Tensor, x: Tensor) -> Tensor:
    """Return the angle of the point (x, y), in its quadrant.

    ``z = atan(y / x)``, moved by pi or -pi where ``x < 0``

    Parameters
    ----------
    y, x : tensors, arrays or numbers that broadcast
        Cast to their common dtype; integers and bools to float32.

    Returns
    -------
    (the broadcast shape) the common float dtype, or float32; radians from -pi to pi

    Raises
    ------
    ShapeError
        The shapes do not broadcast.

    Notes
    -----
    Signed zeros and infinities as in IEEE 754: ``atan2(0, -1)`` is pi and ``atan2(-0.0, -1)`` is
    -pi. The gradient at (0, 0) is NaN.

    Examples
    --------
    >>> atan2(tensor([1.0, 1.0]), tensor([1.0, -1.0]))
    Tensor([0.7853981, 2.3561945], dtype=float32, device=ref:0)
    """
    return abstract(broadcast(y.shape, x.shape, where="atan2"), y.dtype)


atan2.reference(np.arctan2)
atan2.inplace = (0, 1)
atan2.samples(divisions)


@atan2.gradient
def _(dz, z, y, x):
    scaled = div(dz, add(square(x), square(y)))
    return unbroadcast(mul(scaled, x), y), unbroadcast(neg(mul(scaled, y)), x)


@op(promotes="float", autocast="high")
def asin(x: Tensor) -> Tensor:
    """Return the angle whose sine is given.

    ``y = asin(x)``

    Parameters
    ----------
    x : (any shape) any dtype
        Integers and bools are cast to float32.

    Returns
    -------
    (shape of ``x``) its float dtype, or float32; radians from -pi/2 to pi/2

    Raises
    ------
    DTypeError
        ``x`` is no tensor, array or number.

    Notes
    -----
    Values outside [-1, 1] give NaN.

    Examples
    --------
    >>> asin(tensor([0.0, 1.0]))
    Tensor([0.       , 1.5707964], dtype=float32, device=ref:0)
    """
    return abstract(x.shape, x.dtype)


asin.reference(np.arcsin)
asin.inplace = (0,)


@asin.gradient
def _(dy, y, x):
    return (mul(dy, rsqrt(mul(sub(1.0, x), add(x, 1.0)))),)


@asin.lowering
def _(x):
    return atan2(x, sqrt(mul(sub(1.0, x), add(x, 1.0))))


@asin.samples
def _(rng):
    yield from singles(rng, low=-0.9, high=0.9)


@op(promotes="float", autocast="high")
def acos(x: Tensor) -> Tensor:
    """Return the angle whose cosine is given.

    ``y = acos(x)``

    Parameters
    ----------
    x : (any shape) any dtype
        Integers and bools are cast to float32.

    Returns
    -------
    (shape of ``x``) its float dtype, or float32; radians from 0 to pi

    Raises
    ------
    DTypeError
        ``x`` is no tensor, array or number.

    Notes
    -----
    Values outside [-1, 1] give NaN.

    Examples
    --------
    >>> acos(tensor([0.0, 1.0]))
    Tensor([1.5707964, 0.       ], dtype=float32, device=ref:0)
    """
    return abstract(x.shape, x.dtype)


acos.reference(np.arccos)
acos.inplace = (0,)


@acos.gradient
def _(dy, y, x):
    return (neg(mul(dy, rsqrt(mul(sub(1.0, x), add(x, 1.0))))),)


@acos.lowering
def _(x):
    return atan2(sqrt(mul(sub(1.0, x), add(x, 1.0))), x)


@acos.samples
def _(rng):
    yield from singles(rng, low=-0.9, high=0.9)


@op(promotes="float")
def atan(x: Tensor) -> Tensor:
    """Return the angle whose tangent is given.

    ``y = atan(x)``

    Parameters
    ----------
    x : (any shape) any dtype
        Integers and bools are cast to float32.

    Returns
    -------
    (shape of ``x``) its float dtype, or float32; radians from -pi/2 to pi/2

    Raises
    ------
    DTypeError
        ``x`` is no tensor, array or number.

    Examples
    --------
    >>> atan(tensor([0.0, 1.0]))
    Tensor([0.       , 0.7853982], dtype=float32, device=ref:0)
    """
    return abstract(x.shape, x.dtype)


atan.reference(np.arctan)
atan.inplace = (0,)
atan.samples(singles)


@atan.gradient
def _(dy, y, x):
    return (div(dy, add(square(x), 1.0)),)


@atan.lowering
def _(x):
    return atan2(x, 1.0)
