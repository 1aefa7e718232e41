"""Masks: elements chosen by a condition, whose number depends on the data.

In: bool tensors. Out: the op ``find_true``, and ``cond_take``, ``non_zero``, ``unique`` over it.
After ``gather``; before ``indexing``.

With ``size=`` the results have a fixed shape and a count comes along, so the call can be traced; without it the
condition is read at the call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..dtype import bool_, int32
from ..errors import ArgumentError, DTypeError, ShapeError, TraceError, user_place
from ..mode import MODE
from ..op import OPS, op
from ..types import abstract
from .broadcasting import no_gradient
from .create import as_type, counter, full, ones, scalar, zeros
from .gather import index, index_set
from .shape import reshape
from .slicing import slice_along

if TYPE_CHECKING:
    from ..tensor import Tensor

FUNCTIONS = ("cond_take", "non_zero", "unique")
PRIVATE = ("find_true",)


@op
def find_true(condition: Tensor, *, size: int) -> tuple[Tensor, Tensor]:
    """Return the row-major positions of the true elements, and their number.

    ``y[k]`` is the position of true element ``k``, and -1 behind the last one

    Parameters
    ----------
    condition : any shape, bool
    size : int
        How many positions to return.

    Returns
    -------
    positions : (size,) int32
    count : () int32
        The number of true elements; more than ``size`` where some were left out.

    Raises
    ------
    DTypeError
        ``condition`` is not bool.
    ArgumentError
        ``size`` is negative.

    Examples
    --------
    >>> find_true(tensor([True, False, True]), size=3)[0]
    Tensor([ 0,  2, -1], dtype=int32, device=ref:0)
    """
    if not condition.dtype.is_bool:
        raise DTypeError(
            f"find_true: condition is {condition.dtype} of shape {condition.shape}; it must be bool"
        )
    if size < 0:
        raise ArgumentError(f"find_true: size is {size}; it must be 0 or more")
    return abstract((size,), int32), abstract((), int32)


@find_true.reference
def _(condition, *, size):
    found = np.flatnonzero(condition)
    positions = np.full(size, -1, np.int32)
    positions[: len(found)] = found[:size]
    return positions, np.int32(len(found))


find_true.gradient(no_gradient)


@find_true.lowering
def _(condition, *, size):
    from .select import where

    n = condition.size
    ones_ = as_type(reshape(condition, shape=(n,)), int32)
    count = OPS["sum"](ones_)
    if not n:
        return full((size,), -1, dtype=int32), count
    place = OPS["cumsum"](ones_, axis=0) - ones_  # how many true elements come before
    kept = OPS["bitwise_and"](
        reshape(condition, shape=(n,)), OPS["less"](place, scalar(size, int32))
    )
    place = where(kept, place, scalar(size, int32))
    found = index_set(full((size + 1,), -1, dtype=int32), counter((n,)), place, axes=(0,))
    return slice_along(found, 0, 0, size), count


@find_true.samples
def _(rng):
    yield (np.array([True, False, True, True]),), {"size": 3}
    yield (rng.random((2, 3)) < 0.5,), {"size": 6}
    yield (np.ones((2, 2), bool),), {"size": 3}
    yield (np.array(True),), {"size": 1}
    yield (np.zeros((0, 2), bool),), {"size": 2}


def count_true(mask: Tensor, where: str) -> int:
    """Read a mask and return how many of its elements are true; inside a trace that is an error."""
    if MODE.get().recording is not None:
        raise TraceError(
            f"{where}: the shape of the result depends on the values of the mask of shape {mask.shape}, "
            "and these are not known while a function is traced",
            hint="cond_take(mask, x, size=n), non_zero(mask, size=n) and unique(x, size=n) have a fixed shape",
        ).add_place(user_place())
    return int(np.count_nonzero(mask.numpy()))


def true_positions(mask: Tensor, where: str) -> Tensor:
    """Read a mask and return the row-major positions of its true elements, without padding."""
    return find_true(mask, size=count_true(mask, where))[0]


def _taken(flat: Tensor, positions: Tensor, fill: float) -> Tensor:
    """Return ``flat[positions]``, and ``fill`` where the position is -1."""
    from .select import where

    other = scalar(fill, flat.dtype)
    if not flat.size:
        return full(positions.shape, fill, dtype=flat.dtype, device=flat.device)
    valid = OPS["greater_equal"](positions, 0)
    return where(valid, index(flat, where(valid, positions, 0), axes=(0,)), other)


def cond_take(
    mask: Tensor, x: Tensor, size: int | None = None, fill: float = 0
) -> tuple[Tensor, ...]:
    """Take the elements where a mask is true, in row-major order.

    ``values = x[mask]``, ``index`` their positions in ``x.ravel()``

    Parameters
    ----------
    mask : any shape, bool
    x : shape of ``mask``, any dtype
    size : int, optional
        How many elements to return. Without it the mask is read, and there are as many as it has true elements.
    fill : number, default 0
        What stands in ``values`` behind the last element, with ``size``.

    Returns
    -------
    values : (n,) or (size,), dtype of ``x``
    index : (n,) or (size,) int32
        With ``size``, -1 behind the last element.
    count : () int32
        Only with ``size``: the number of true elements, more than ``size`` where some were left out.

    Raises
    ------
    DTypeError
        ``mask`` is not bool.
    ShapeError
        The shapes differ.
    TraceError
        ``size`` is not given inside a traced function.

    Examples
    --------
    >>> values, index = cond_take(tensor([True, False, True]), tensor([1.0, 2.0, 3.0]))
    >>> values
    Tensor([1., 3.], dtype=float32, device=ref:0)
    >>> index
    Tensor([0, 2], dtype=int32, device=ref:0)
    """
    if not mask.dtype.is_bool:
        raise DTypeError(
            f"cond_take: mask is {mask.dtype} of shape {mask.shape}; it must be bool"
        ).add_place(user_place())
    if mask.shape != x.shape:
        raise ShapeError(
            f"cond_take: mask has shape {mask.shape} and x has shape {x.shape}; both must be the same"
        ).add_place(user_place())
    flat = reshape(x, shape=(x.size,))
    if size is None:
        positions = true_positions(mask, "cond_take")
        return index(flat, positions, axes=(0,)), positions
    positions, count = find_true(mask, size=size)
    return _taken(flat, positions, fill), positions, count


def non_zero(condition: Tensor, as_tuple: bool = False, size: int | None = None) -> Any:
    """Return the coordinates of the elements that are not zero, in row-major order.

    ``condition[y[k, 0], y[k, 1], ...]`` is not zero

    Parameters
    ----------
    condition : any shape, any dtype
    as_tuple : bool, default False
        One tensor for each axis instead of one row for each element.
    size : int, optional
        How many elements to return. Without it ``condition`` is read, and there are as many as are not zero.

    Returns
    -------
    (n, ndim) int32, or a tuple of ndim tensors (n,) int32
        With ``size`` it is ``size`` in place of ``n``, with -1 behind the last element, and a second result
        follows: the number of elements that are not zero, () int32, more than ``size`` where some were left out.

    Raises
    ------
    TraceError
        ``size`` is not given inside a traced function.

    Examples
    --------
    >>> non_zero(tensor([[1, 0], [0, 1]]))
    Tensor([[0, 0],
            [1, 1]], dtype=int32, device=ref:0)
    """
    from .join import stack
    from .select import where

    mask = condition if condition.dtype.is_bool else OPS["not_equal"](condition, 0)
    positions, count = find_true(mask, size=count_true(mask, "non_zero") if size is None else size)
    coordinates = []
    stride = mask.size
    for n in mask.shape:
        stride //= max(n, 1)
        place = (
            positions if stride == 1 else OPS["floor_div"](positions, scalar(max(stride, 1), int32))
        )
        coordinates.append(OPS["mod"](place, scalar(max(n, 1), int32)))
    if size is not None:
        valid = OPS["greater_equal"](positions, 0)
        coordinates = [where(valid, one, -1) for one in coordinates]
    if as_tuple:
        made: Any = tuple(coordinates)
    elif coordinates:
        made = stack(coordinates, axis=1)
    else:
        made = zeros((*positions.shape, 0), dtype=int32, device=condition.device)
    return made if size is None else (made, count)


def unique(x: Tensor, size: int | None = None, fill: float = 0) -> Any:
    """Return the distinct elements, in rising order.

    ``y[k] < y[k + 1]``; NaNs count as one element, the last

    Parameters
    ----------
    x : any shape, any dtype
        It is flattened.
    size : int, optional
        How many elements to return. Without it ``x`` is read, and there are as many as are distinct.
    fill : number, default 0
        What stands behind the last element, with ``size``.

    Returns
    -------
    (n,) or (size,), dtype of ``x``
        With ``size`` a second result follows: the number of distinct elements, () int32, more than ``size`` where
        some were left out.

    Raises
    ------
    TraceError
        ``size`` is not given inside a traced function.

    Examples
    --------
    >>> unique(tensor([3, 1, 3]))
    Tensor([1, 3], dtype=int32, device=ref:0)
    """
    from .join import concat

    if x.dtype.is_bool:
        found = unique(as_type(x, int32), size, fill)
        return as_type(found, bool_) if size is None else (as_type(found[0], bool_), found[1])
    n = x.size
    values = OPS["sort"](reshape(x, shape=(n,)))[0]
    if n > 1:
        left, right = slice_along(values, 0, 0, n - 1), slice_along(values, 0, 1, n)
        changes = OPS["not_equal"](left, right)
        if x.dtype.is_float:  # a NaN behind a NaN is no change
            changes = OPS["bitwise_and"](changes, OPS["equal"](left, left))
        first = concat(ones((1,), dtype=bool_, device=x.device), changes)
    else:
        first = ones((n,), dtype=bool_, device=x.device)
    positions, count = find_true(first, size=count_true(first, "unique") if size is None else size)
    made = index(values, positions, axes=(0,)) if size is None else _taken(values, positions, fill)
    return made if size is None else (made, count)
