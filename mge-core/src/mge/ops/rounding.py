"""Size and sign, division with a remainder, and rounding to whole numbers.

In: tensors. Out: ``abs``, ``sign``, ``floor_div``, ``mod``, ``floor``, ``ceil``, ``round``.
After ``elementwise``; before ``tensor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..op import op
from ..types import abstract, broadcast
from .broadcasting import divisions, no_gradient, refuse_bool, singles, unbroadcast
from .comparison import less
from .elementwise import mul, neg
from .select import where

if TYPE_CHECKING:
    from ..tensor import Tensor


@op(base=True)
def abs(x: Tensor) -> Tensor:
    """Return the absolute value.

    ``y = |x|``

    Parameters
    ----------
    x : (any shape) any dtype

    Returns
    -------
    (shape of ``x``) dtype of ``x``

    Raises
    ------
    DTypeError
        ``x`` is no tensor, array or number.

    Notes
    -----
    The gradient at 0 is 0. The least integer of a signed dtype stays as it is, since its opposite
    does not fit.

    Examples
    --------
    >>> abs(tensor([1.0, -2.0]))
    Tensor([1., 2.], dtype=float32, device=ref:0)
    """
    return abstract(x.shape, x.dtype)


abs.reference(np.absolute)
abs.inplace = (0,)
abs.samples(singles)


@abs.gradient
def _(dy, y, x):
    return (mul(dy, sign(x)),)


@op
def sign(x: Tensor) -> Tensor:
    """Return -1, 0 or 1: the sign.

    ``y = (x > 0) - (x < 0)``

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
    NaN gives NaN. The gradient is 0 wherever it exists, so there is none.

    Examples
    --------
    >>> sign(tensor([3.0, 0.0, -2.0]))
    Tensor([ 1.,  0., -1.], dtype=float32, device=ref:0)
    """
    refuse_bool("sign", x)
    return abstract(x.shape, x.dtype)


sign.reference(np.sign)
sign.inplace = (0,)
sign.gradient(no_gradient)
sign.samples(singles)


@sign.lowering
def _(x):
    positive = where(less(0, x), 1, x)  # leaves 0 and NaN
    return where(less(x, 0), -1, positive) if x.dtype.is_signed else positive


@op(base=True, promotes="same")
def floor_div(x: Tensor, y: Tensor) -> Tensor:
    """Divide and round down.

    ``z = floor(x / y)``

    Parameters
    ----------
    x, y : tensors, arrays or numbers that broadcast
        Cast to their common dtype.

    Returns
    -------
    (the broadcast shape) the common dtype

    Raises
    ------
    DTypeError
        The inputs are bool.
    ShapeError
        The shapes do not broadcast.

    Notes
    -----
    The remainder that belongs to it is ``mod``: ``x = y * floor_div(x, y) + mod(x, y)``, as in
    Python. Integer division by 0 gives 0. The gradient is 0 wherever it exists, so there is none.

    Examples
    --------
    >>> floor_div(tensor([7, -7]), 2)
    Tensor([ 3, -4], dtype=int32, device=ref:0)
    """
    refuse_bool("floor_div", x)
    return abstract(broadcast(x.shape, y.shape, where="floor_div"), x.dtype)


floor_div.reference(np.floor_divide)
floor_div.inplace = (0, 1)
floor_div.gradient(no_gradient)
floor_div.samples(divisions)


@op(base=True, promotes="same")
def mod(x: Tensor, y: Tensor) -> Tensor:
    """Return the remainder that has the sign of the divisor.

    ``z = x - y * floor(x / y)``

    Parameters
    ----------
    x, y : tensors, arrays or numbers that broadcast
        Cast to their common dtype.

    Returns
    -------
    (the broadcast shape) the common dtype

    Raises
    ------
    DTypeError
        The inputs are bool.
    ShapeError
        The shapes do not broadcast.

    Notes
    -----
    As ``%`` in Python. Integer division by 0 gives 0. A float ``y`` of 0 gives NaN.

    Examples
    --------
    >>> mod(tensor([7.5, -7.5]), 2)
    Tensor([1.5, 0.5], dtype=float32, device=ref:0)
    """
    refuse_bool("mod", x)
    return abstract(broadcast(x.shape, y.shape, where="mod"), x.dtype)


mod.reference(np.remainder)
mod.inplace = (0, 1)


@mod.gradient
def _(dz, z, x, y):
    return unbroadcast(dz, x), unbroadcast(neg(mul(dz, floor_div(x, y))), y)


@mod.samples
def _(rng):
    for shape, divisor in [((), ()), ((2, 3), (3,)), ((4,), (1,)), ((0, 3), (3,))]:
        y = rng.choice([-2.0, 2.0], divisor) * rng.uniform(0.9, 1.1, divisor)
        whole = rng.integers(-2, 3, shape)
        yield (y * (whole + rng.uniform(0.2, 0.8, shape)), y), {}


@op(base=True)
def floor(x: Tensor) -> Tensor:
    """Round down to a whole number.

    ``y`` is the largest whole number that is at most ``x``

    Parameters
    ----------
    x : (any shape) any dtype

    Returns
    -------
    (shape of ``x``) dtype of ``x``

    Raises
    ------
    DTypeError
        ``x`` is no tensor, array or number.

    Notes
    -----
    Integers and bools stay as they are. The gradient is 0 wherever it exists, so there is none.

    Examples
    --------
    >>> floor(tensor([1.5, -1.5]))
    Tensor([ 1., -2.], dtype=float32, device=ref:0)
    """
    return abstract(x.shape, x.dtype)


floor.reference(np.floor)
floor.inplace = (0,)
floor.gradient(no_gradient)
floor.samples(singles)


@op(base=True)
def ceil(x: Tensor) -> Tensor:
    """Round up to a whole number.

    ``y`` is the smallest whole number that is at least ``x``

    Parameters
    ----------
    x : (any shape) any dtype

    Returns
    -------
    (shape of ``x``) dtype of ``x``

    Raises
    ------
    DTypeError
        ``x`` is no tensor, array or number.

    Notes
    -----
    Integers and bools stay as they are. The gradient is 0 wherever it exists, so there is none.

    Examples
    --------
    >>> ceil(tensor([1.5, -1.5]))
    Tensor([ 2., -1.], dtype=float32, device=ref:0)
    """
    return abstract(x.shape, x.dtype)


ceil.reference(np.ceil)
ceil.inplace = (0,)
ceil.gradient(no_gradient)
ceil.samples(singles)


@op(base=True)
def round(x: Tensor) -> Tensor:
    """Round to the nearest whole number, ties to the even one.

    ``y`` is the whole number nearest to ``x``

    Parameters
    ----------
    x : (any shape) any dtype

    Returns
    -------
    (shape of ``x``) dtype of ``x``

    Raises
    ------
    DTypeError
        ``x`` is no tensor, array or number.

    Notes
    -----
    As IEEE 754 and NumPy round: 0.5 gives 0, 1.5 and 2.5 give 2. Integers and bools stay as they
    are. The gradient is 0 wherever it exists, so there is none.

    Examples
    --------
    >>> round(tensor([0.5, 1.5, 2.5]))
    Tensor([0., 2., 2.], dtype=float32, device=ref:0)
    """
    return abstract(x.shape, x.dtype)


round.inplace = (0,)
round.gradient(no_gradient)


@round.reference
def _(x, out=None):
    if np.issubdtype(x.dtype, np.integer) or x.dtype == np.bool_:
        return np.positive(x, out=out) if x.dtype != np.bool_ else np.logical_or(x, x, out=out)
    return np.rint(x, out=out)


@round.samples
def _(rng):
    yield from singles(rng)
    yield (np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5]),), {}
