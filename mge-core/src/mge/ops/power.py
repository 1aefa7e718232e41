"""Powers.

In: tensors that broadcast, or a number as the exponent. Out: ``pow``, which ``**`` calls.
After ``broadcasting``; before ``elementwise``, which imports it as ``power``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..dtype import float32, wide_of
from ..errors import DTypeError
from ..op import op
from ..types import abstract, broadcast
from .broadcasting import pairs, refuse_bool, unbroadcast, widened

if TYPE_CHECKING:
    from ..tensor import Tensor

FUNCTIONS = ("pow",)
PRIVATE = ("pow", "pow_scalar")


@op(name="pow", base=True, promotes="same", autocast="high")
def pow_(x: Tensor, y: Tensor) -> Tensor:
    """Raise a tensor to the powers that another tensor holds.

    ``z = x ** y``

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
    Integers wrap. A negative exponent of integers gives the reciprocal rounded towards 0: 1 for a
    base of 1, 1 or -1 for -1, else 0. A negative float base with a fractional exponent gives NaN,
    and then the gradient of ``y`` is NaN; at a base of 0 the gradient of ``y`` is 0.

    Examples
    --------
    >>> pow(tensor([1.0, 2.0]), tensor([3.0, 0.5]))
    Tensor([1.       , 1.4142135], dtype=float32, device=ref:0)
    """
    refuse_bool("pow", x)
    return abstract(broadcast(x.shape, y.shape, where="pow"), x.dtype)


pow_.inplace = (0, 1)


@pow_.reference
def _(x, y):
    with np.errstate(all="ignore"):
        if not np.issubdtype(x.dtype, np.signedinteger):
            return np.power(x, y)
        z = np.power(x, np.maximum(y, 0))
        reciprocal = np.where(np.abs(x) == 1, np.where(y & 1, x, 1), 0)
        return np.where(y < 0, reciprocal, z).astype(x.dtype)


@pow_.gradient
def _(dz, z, x, y):
    # dx = dz * y * x**(y - 1);  dy = dz * z * log(x).  At x = 0 both could be 0 * inf: there log(x) counts
    # as 0, and for y = 0 so does the exponent y - 1.
    from .exponential import log
    from .logic import logical_and
    from .select import where

    at_zero = x == 0
    exponent = where(logical_and(at_zero, y == 0), 0, y - 1)
    dx = dz * (y * pow_(x, exponent))
    dy = dz * (z * log(where(at_zero, 1, x)))
    return unbroadcast(dx, x), unbroadcast(dy, y)


@pow_.samples
def _(rng):
    for (x, y), attrs in pairs(rng):
        yield (np.abs(x) + 0.3, y), attrs
    yield (np.array([0, 1, -1, -1, 2, -3, 7]), np.array([-1, -5, -3, -2, -1, 3, 2])), {}


@op(autocast="high")
def pow_scalar(x: Tensor, *, exponent: float) -> Tensor:
    """Raise a tensor to a power that is part of the graph.

    ``y = x ** exponent``

    Parameters
    ----------
    x : (any shape) float or integer
    exponent : float
        For integers a whole number from 0 to the dtype's largest value.

    Returns
    -------
    (shape of ``x``) dtype of ``x``

    Raises
    ------
    DTypeError
        ``x`` is bool, or an integer tensor and ``exponent`` is no whole number in its range.

    Notes
    -----
    float16 and bfloat16 are raised in float32. ``x ** 0`` is 1 everywhere, also for NaN.

    Examples
    --------
    >>> pow_scalar(tensor([1, 2, 3]), exponent=3)
    Tensor([ 1,  8, 27], dtype=int32, device=ref:0)
    """
    refuse_bool("pow_scalar", x)
    if x.dtype.is_integer:
        limit = np.iinfo(x.dtype.dtype).max
        if not (0 <= exponent <= limit and exponent.is_integer()):
            raise DTypeError(
                f"pow_scalar: x is {x.dtype} and exponent is {exponent}; for integers it must be a whole "
                f"number from 0 to {limit}",
                hint="x.astype('float32') ** exponent",
            )
    return abstract(x.shape, x.dtype)


pow_scalar.inplace = (0,)


@pow_scalar.reference
def _(x, *, exponent):
    with np.errstate(all="ignore"):
        if np.issubdtype(x.dtype, np.integer):
            return np.power(x, x.dtype.type(int(exponent)))
        wide = widened(x)
        return np.power(wide, wide.dtype.type(exponent)).astype(x.dtype)


@pow_scalar.gradient
def _(dy, y, x, *, exponent):
    if exponent == 0:
        return (dy * 0.0,)
    return (dy * (power(x, exponent - 1) * exponent),)


@pow_scalar.lowering
def _(x, *, exponent):
    from .select import cast

    if x.dtype.is_integer:
        return pow_(x, int(exponent))
    if exponent == 3:
        return x * (x * x)
    if exponent == -1:
        return 1.0 / x
    wide = cast(x, dtype=wide_of(x.dtype))
    return cast(pow_(wide, exponent), dtype=x.dtype)


@pow_scalar.samples
def _(rng):
    for exponent in (3.0, -1.0, 1.7, -2.5, 0.0, 1.0):
        yield (rng.uniform(0.3, 2.0, (2, 3)),), {"exponent": exponent}
    yield (rng.uniform(-2.0, 2.0, ()),), {"exponent": 4.0}
    yield (rng.uniform(size=(0, 3)),), {"exponent": 3.0}
    yield (np.array([0, 1, 2, 3, 5]),), {"exponent": 3.0}


def pow(x: Tensor | float, y: Tensor | float) -> Tensor:
    """Raise to a power; ``x ** y``.

    ``z = x ** y``

    Parameters
    ----------
    x, y : tensors, arrays or numbers that broadcast
        A number as the exponent is part of the graph, not an input of it: 2 records ``square``, 0.5
        ``sqrt``, and any other one ``pow_scalar``.

    Returns
    -------
    (the broadcast shape) the common dtype

    Raises
    ------
    DTypeError
        The inputs are bool, or ``x`` is an integer tensor and the number ``y`` is negative.
    ShapeError
        The shapes do not broadcast.

    Notes
    -----
    Integers wrap. With a ``float`` exponent they become float32. In tensors of exponents: a
    negative exponent of integers gives the reciprocal rounded towards 0: 1 for a base of 1, 1 or -1
    for -1, else 0. A negative float base with a fractional exponent gives NaN, and then the
    gradient of ``y`` is NaN; at a base of 0 the gradient of ``y`` is 0.

    Examples
    --------
    >>> pow(tensor([1, 2, 3]), 3)
    Tensor([ 1,  8, 27], dtype=int32, device=ref:0)
    >>> pow(tensor([4.0, 9.0]), 0.5)
    Tensor([2., 3.], dtype=float32, device=ref:0)
    """
    if not isinstance(y, (int, float)) or isinstance(x, (int, float)) or not hasattr(x, "_node"):
        return pow_(x, y)
    if isinstance(y, float) and not x.dtype.is_float:
        from .select import cast

        x = cast(x, dtype=float32)
    if y == 2:
        from .exponential import square

        return square(x)
    if y == 0.5:
        from .exponential import sqrt

        return sqrt(x)
    return pow_scalar(x, exponent=float(y))


power = pow  # the name under which Tensor and the rules of other ops, where ``pow`` is Python's, find it
