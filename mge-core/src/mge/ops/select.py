"""Choosing between values, and giving them another dtype.

In: tensors. Out: ``where``, ``clip``, ``cast``, ``detach``.
After ``elementwise``; before ``tensor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..dtype import DType
from ..errors import ArgumentError, DTypeError
from ..op import op
from ..types import abstract, broadcast
from .broadcasting import refuse_bool, singles, unbroadcast
from .comparison import less_equal
from .elementwise import maximum, minimum
from .logic import logical_and

if TYPE_CHECKING:
    from ..tensor import Tensor

FUNCTIONS = ("clip",)
PRIVATE = ("clip", "detach")


@op(base=True, promotes="same", promoted=("x", "y"))
def where(mask: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Take each element from one of two tensors.

    ``z = x if mask else y``

    Parameters
    ----------
    mask : bool tensor
    x, y : tensors, arrays or numbers
        Cast to their common dtype; the three shapes broadcast.

    Returns
    -------
    (the broadcast shape) the common dtype of ``x`` and ``y``

    Raises
    ------
    DTypeError
        ``mask`` is not bool.
    ShapeError
        The shapes do not broadcast.

    Notes
    -----
    The gradient of the one that was not taken is 0, also where its value is infinite or NaN.

    Examples
    --------
    >>> where(tensor([True, False]), tensor([1.0, 2.0]), 0.0)
    Tensor([1., 0.], dtype=float32, device=ref:0)
    """
    if not mask.dtype.is_bool:
        raise DTypeError(
            f"where: mask is {mask.dtype}; it must be bool", hint="where(mask != 0, x, y)"
        )
    return abstract(broadcast(mask.shape, x.shape, y.shape, where="where"), x.dtype)


where.reference(np.where)
where.inplace = (1, 2)


@where.gradient
def _(dz, z, mask, x, y):
    return None, unbroadcast(where(mask, dz, 0), x), unbroadcast(where(mask, 0, dz), y)


@where.samples
def _(rng):
    shapes = [
        ((5,), (5,), (5,)),
        ((2, 1), (3,), ()),
        ((), (4,), (2, 1)),
        ((), (), ()),
        ((3,), (0, 3), ()),
    ]
    for mask, x, y in shapes:
        yield (rng.integers(0, 2, mask) == 1, rng.normal(size=x), rng.normal(size=y)), {}


@op(base=True)
def cast(x: Tensor, *, dtype: DType) -> Tensor:
    """Convert to another dtype.

    ``y = dtype(x)``

    Parameters
    ----------
    x : (any shape) any dtype
    dtype : dtype

    Returns
    -------
    (shape of ``x``) dtype

    Raises
    ------
    DTypeError
        ``dtype`` is no dtype of mge.

    Notes
    -----
    Floats are rounded to the nearest, ties to even; towards integers they are cut off at the point.
    Integers wrap. Any number but 0 becomes True. What a float that is NaN or does not fit becomes
    as an integer depends on the device. A gradient flows between floats only.

    Examples
    --------
    >>> cast(tensor([1.7, -1.7]), dtype='int32')
    Tensor([ 1, -1], dtype=int32, device=ref:0)
    """
    return abstract(x.shape, dtype)


@cast.reference
def _(x, *, dtype, out):
    with np.errstate(all="ignore"):
        np.copyto(out, x, casting="unsafe")
    return out


@cast.gradient
def _(dy, y, x, *, dtype):
    return (cast(dy, dtype=x.dtype) if x.dtype.is_float and dtype.is_float else None,)


@cast.samples
def _(rng):
    for dtype in ("float64", "int32", "bool"):
        yield (rng.uniform(-9.0, 9.0, (2, 3)),), {"dtype": dtype}
    for dtype in ("float16", "bfloat16", "float64", "int8"):
        yield (rng.uniform(-9.0, 9.0, 4).astype(np.float32),), {"dtype": dtype}
    yield (np.array([-1, 300, 70000]),), {"dtype": "uint8"}
    yield (rng.uniform(size=(0, 3)),), {"dtype": "float64"}


@op(base=True)
def detach(x: Tensor) -> Tensor:
    """Return the same values, through which no gradient flows.

    ``y = x``

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

    Examples
    --------
    >>> detach(tensor([1.0, 2.0]))
    Tensor([1., 2.], dtype=float32, device=ref:0)
    """
    return abstract(x.shape, x.dtype)


detach.reference(lambda x: x)
detach.inplace = (0,)
detach.aliases = True
detach.samples(singles)


@detach.gradient
def _(dy, y, x):
    return (None,)


@op(name="clip")
def clip_(x: Tensor, *, lower: float | None = None, upper: float | None = None) -> Tensor:
    """Limit each element to a range whose bounds are part of the graph.

    ``y = min(max(x, lower), upper)``

    Parameters
    ----------
    x : (any shape) float or integer
    lower, upper : float or None, default None
        None leaves that side open.

    Returns
    -------
    (shape of ``x``) dtype of ``x``

    Raises
    ------
    ArgumentError
        Both are None, or ``lower`` is above ``upper``.
    DTypeError
        ``x`` is bool, or an integer tensor and a bound is no whole number.

    Notes
    -----
    NaN stays NaN. The gradient is 1 on the bounds and 0 beyond. Bounds past an integer dtype's
    range do not limit it.

    Examples
    --------
    >>> clip(tensor([-2.0, 0.5, 2.0]), -1.0, 1.0)
    Tensor([-1. ,  0.5,  1. ], dtype=float32, device=ref:0)
    """
    refuse_bool("clip", x)
    given = [b for b in (lower, upper) if b is not None]
    if not given:
        raise ArgumentError("clip: lower and upper are None; at least one must be a number")
    if not given[0] <= given[-1]:
        raise ArgumentError(
            f"clip: lower is {lower} and upper is {upper}; lower <= upper must hold"
        )
    if x.dtype.is_integer and not all(b.is_integer() or np.isinf(b) for b in given):
        raise DTypeError(
            f"clip: x is {x.dtype}, lower is {lower} and upper is {upper}; bounds of integers are whole",
            hint="x.astype('float32')",
        )
    return abstract(x.shape, x.dtype)


clip_.inplace = (0,)


def _bounds(dtype: np.dtype, lower: float | None, upper: float | None) -> tuple:
    """Return both bounds as scalars of the dtype; for integers cut to what the dtype holds, or None."""
    if not np.issubdtype(dtype, np.integer):
        with np.errstate(all="ignore"):
            return tuple(None if b is None else dtype.type(b) for b in (lower, upper))
    info = np.iinfo(dtype)
    low = None if lower is None or lower <= info.min else dtype.type(int(min(lower, info.max)))
    high = None if upper is None or upper >= info.max else dtype.type(int(max(upper, info.min)))
    return low, high


@clip_.reference
def _(x, *, lower, upper, out=None):
    low, high = _bounds(x.dtype, lower, upper)
    y = x if low is None else np.maximum(x, low, out=out)
    if high is not None:
        return np.minimum(y, high, out=out)
    if y is x and out is not None:
        np.copyto(out, x)
        return out
    return y


@clip_.gradient
def _(dy, y, x, *, lower, upper):
    inside = [less_equal(lower, x)] if lower is not None else []
    inside += [less_equal(x, upper)] if upper is not None else []
    return (where(inside[0] if len(inside) == 1 else logical_and(*inside), dy, 0),)


@clip_.lowering
def _(x, *, lower, upper):
    number = int if x.dtype.is_integer else float
    low, high = _bounds(x.dtype.dtype, lower, upper)
    y = x if low is None else maximum(x, number(low))
    return y if high is None else minimum(y, number(high))


@clip_.samples
def _(rng):
    for shape, bounds in [
        ((7,), (-1.0, 1.0)),
        ((2, 3), (None, 0.0)),
        ((), (-1.0, None)),
        ((0, 3), (0.0, 1.0)),
    ]:
        yield (rng.uniform(-3.0, 3.0, shape),), dict(zip(("lower", "upper"), bounds))
    yield (np.array([-100, 0, 100]),), {"lower": -1000.0, "upper": 50.0}


def clip(
    x: Tensor, lower: Tensor | float | None = None, upper: Tensor | float | None = None
) -> Tensor:
    """Limit each element to a range.

    ``y = min(max(x, lower), upper)``

    Parameters
    ----------
    x : (any shape) float or integer
    lower, upper : number, tensor that broadcasts with ``x``, or None, default None
        None leaves that side open. Numbers are part of the graph, tensors are inputs of it.

    Returns
    -------
    (shape of ``x``) dtype of ``x``; with tensors as bounds the broadcast shape and common dtype

    Raises
    ------
    ArgumentError
        Both are None, or the number ``lower`` is above the number ``upper``.
    DTypeError
        ``x`` is bool, or an integer tensor and a number is not whole.
    ShapeError
        A tensor as a bound does not broadcast with ``x``.

    Notes
    -----
    NaN stays NaN. On a bound that is a number the gradient is 1; on one that is a tensor, ``x`` and
    the bound get half of it each.

    Examples
    --------
    >>> clip(tensor([-2.0, 0.5, 2.0]), -1, 1)
    Tensor([-1. ,  0.5,  1. ], dtype=float32, device=ref:0)
    >>> clip(tensor([-2.0, 0.5, 2.0]), upper=tensor([1.0, 0.0, 3.0]))
    Tensor([-2.,  0.,  2.], dtype=float32, device=ref:0)
    """
    numbers = (int, float, type(None))
    if isinstance(lower, numbers) and isinstance(upper, numbers):
        return clip_(x, lower=lower, upper=upper)
    y = x if lower is None else maximum(x, lower)
    return y if upper is None else minimum(y, upper)
