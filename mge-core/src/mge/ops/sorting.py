"""Sorting along an axis.

In: a tensor. Out: the ops ``sort``, ``argsort``, ``topk`` and ``searchsorted``.
After ``op``; before ``tensor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..dtype import int32
from ..errors import ArgumentError, ShapeError
from ..op import op
from ..types import abstract, broadcast, normal_axis
from .broadcasting import no_gradient
from .reduction import distinct, is_half

if TYPE_CHECKING:
    from ..tensor import Tensor


def _order(inp: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """Return the stable order along ``axis``: equal elements keep theirs in both directions."""
    wide = inp.astype(np.float32) if is_half(inp) else inp
    if not descending:
        return np.argsort(wide, axis=axis, kind="stable")
    backwards = np.argsort(np.flip(wide, axis), axis=axis, kind="stable")
    return np.flip(inp.shape[axis] - 1 - backwards, axis)


@op(base=True)
def sort(inp: Tensor, *, descending: bool = False, dim: int = -1) -> tuple[Tensor, Tensor]:
    """Sort the elements along an axis; return them with their old positions.

    ``values[..., i, ...] = inp[..., indices[..., i, ...], ...]``

    Parameters
    ----------
    inp : (any shape) any dtype
        At least one axis.
    descending : bool, default False
        Largest first.
    dim : int, default -1
        The axis.

    Returns
    -------
    values : (inp's shape) dtype of ``inp``
    indices : (inp's shape) int32

    Raises
    ------
    ShapeError
        ``dim`` is no axis of ``inp``.

    Notes
    -----
    Stable in both directions: equal elements keep their order. NaN counts as larger than every number.

    Examples
    --------
    >>> sort(tensor([3.0, 1.0, 2.0]))[0]
    Tensor([1., 2., 3.], dtype=float32, device=ref:0)
    """
    normal_axis(dim, inp.ndim, "sort")
    return abstract(inp.shape, inp.dtype), abstract(inp.shape, int32)


@sort.reference
def _(inp, *, descending, dim):
    order = _order(inp, dim, descending)
    return np.take_along_axis(inp, order, dim), order.astype(np.int32)


def _put_back(dvalues: Tensor, inp: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Return the gradient of taking ``indices`` along ``axis``; the indices of one line are distinct."""
    from .create import zeros_like
    from .gather import put_along

    return put_along(zeros_like(inp), indices, dvalues, axis=axis)


@sort.gradient
def _(dy, y, inp, *, descending, dim):
    dim = normal_axis(dim, inp.ndim, "sort")
    return (_put_back(dy[0], inp, y[1], dim) if dy[0] is not None else None,)


@sort.samples
def _(rng):
    yield (distinct(rng, (6,)),), {}
    yield (distinct(rng, (3, 4)),), {"descending": True}
    yield (distinct(rng, (2, 4, 3)),), {"dim": 1}
    yield (distinct(rng, (0, 3)),), {"dim": 0}


@op
def argsort(inp: Tensor, *, descending: bool = False, dim: int = -1) -> Tensor:
    """Return the positions of the elements along an axis in sorted order.

    ``inp[..., y[..., i, ...], ...] <= inp[..., y[..., i + 1, ...], ...]``

    Parameters
    ----------
    inp : (any shape) any dtype
        At least one axis.
    descending : bool, default False
        Largest first.
    dim : int, default -1
        The axis.

    Returns
    -------
    (inp's shape) int32

    Raises
    ------
    ShapeError
        ``dim`` is no axis of ``inp``.

    Notes
    -----
    Stable in both directions: equal elements keep their order. NaN counts as larger than every number. No gradient.

    Examples
    --------
    >>> argsort(tensor([3.0, 1.0, 2.0]), descending=True)
    Tensor([0, 2, 1], dtype=int32, device=ref:0)
    """
    normal_axis(dim, inp.ndim, "argsort")
    return abstract(inp.shape, int32)


@argsort.reference
def _(inp, *, descending, dim):
    return _order(inp, dim, descending).astype(np.int32)


argsort.gradient(no_gradient)


@argsort.lowering
def _(inp, *, descending, dim):
    return sort(inp, descending=descending, dim=dim)[1]


argsort.samples(sort._samples)


@op
def topk(
    inp: Tensor, *, k: int, descending: bool = True, kth_only: bool = False, no_sort: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the ``k`` largest elements of the last axis, with their positions.

    ``values[..., i] = inp[..., indices[..., i]]``

    Parameters
    ----------
    inp : (..., n) any dtype
    k : int
        How many, ``1 <= k <= n``.
    descending : bool, default True
        Largest first; False returns the smallest elements, smallest first.
    kth_only : bool, default False
        Return one tensor, the ``k``-th value of each line, and no positions.
    no_sort : bool, default False
        The caller does not need sorted results. They are sorted nevertheless.

    Returns
    -------
    values : (..., k) dtype of ``inp``; with ``kth_only`` (...) and alone
    indices : (..., k) int32

    Raises
    ------
    ShapeError
        ``inp`` is a scalar.
    ArgumentError
        ``k`` is out of range.

    Notes
    -----
    Among equal elements the first counts. NaN counts as larger than every number.

    Examples
    --------
    >>> topk(tensor([3.0, 1.0, 2.0]), 2)[1]
    Tensor([0, 2], dtype=int32, device=ref:0)
    """
    if not inp.ndim:
        raise ShapeError("topk: inp is a scalar; it must have at least 1 axis")
    if not 1 <= k <= inp.shape[-1]:
        raise ArgumentError(
            f"topk: k is {k} and inp has shape {inp.shape}; k must lie in 1 to {inp.shape[-1]}"
        )
    if kth_only:
        return abstract(inp.shape[:-1], inp.dtype)
    shape = (*inp.shape[:-1], k)
    return abstract(shape, inp.dtype), abstract(shape, int32)


@topk.reference
def _(inp, *, k, descending, kth_only, no_sort):
    order = _order(inp, -1, descending)[..., k - 1 if kth_only else 0 : k]
    values = np.take_along_axis(inp, order, -1)
    return values[..., 0] if kth_only else (values, order.astype(np.int32))


@topk.gradient
def _(dy, y, inp, *, k, descending, kth_only, no_sort):
    from .shape import reshape

    if not kth_only:
        return (_put_back(dy[0], inp, y[1], inp.ndim - 1) if dy[0] is not None else None,)
    from .slicing import slice_along

    order = argsort(inp, descending=descending)
    last = slice_along(order, inp.ndim - 1, k - 1, k)
    return (_put_back(reshape(dy, last.shape), inp, last, inp.ndim - 1),)


@topk.lowering
def _(inp, *, k, descending, kth_only, no_sort):
    from .shape import reshape
    from .slicing import slice_along

    start = k - 1 if kth_only else 0
    values, indices = (
        slice_along(s, inp.ndim - 1, start, k) for s in sort(inp, descending=descending)
    )
    return reshape(values, inp.shape[:-1]) if kth_only else (values, indices)


@topk.samples
def _(rng):
    yield (distinct(rng, (6,)),), {"k": 3}
    yield (distinct(rng, (3, 4)),), {"k": 2, "descending": False}
    yield (distinct(rng, (2, 2, 5)),), {"k": 5, "no_sort": True}
    yield (distinct(rng, (3, 4)),), {"k": 2, "kth_only": True}
    yield (distinct(rng, (0, 3)),), {"k": 1}


@op(promotes="same")
def searchsorted(sorted_sequence: Tensor, values: Tensor, *, right: bool = False) -> Tensor:
    """Return where values would have to go to keep sorted lines sorted.

    ``y[..., j] = number of i with sorted_sequence[..., i] < values[..., j]``

    Parameters
    ----------
    sorted_sequence : (..., n) any dtype
        Ascending along the last axis; this is not checked.
    values : (..., m) any dtype
        The leading axes of the two broadcast.
    right : bool, default False
        Go behind equal elements: count with ``<=``.

    Returns
    -------
    (..., m) int32

    Raises
    ------
    ShapeError
        An input is a scalar, or the leading axes do not broadcast.

    Notes
    -----
    NaN among the values gives 0. No gradient. The lowering makes ``n * m`` comparisons a line.

    Examples
    --------
    >>> searchsorted(tensor([1.0, 3.0, 5.0]), tensor([0.0, 3.0, 9.0]))
    Tensor([0, 1, 3], dtype=int32, device=ref:0)
    """
    if not sorted_sequence.ndim or not values.ndim:
        raise ShapeError(
            f"searchsorted: sorted_sequence has shape {sorted_sequence.shape} and values has {values.shape}; "
            "each must have at least 1 axis"
        )
    leading = broadcast(sorted_sequence.shape[:-1], values.shape[:-1], where="searchsorted")
    return abstract((*leading, values.shape[-1]), int32)


@searchsorted.reference
def _(sorted_sequence, values, *, right):
    compare = np.less_equal if right else np.less
    with np.errstate(invalid="ignore"):
        before = compare(sorted_sequence[..., None, :], values[..., :, None])
    return np.add.reduce(before, axis=-1, dtype=np.int32)


@searchsorted.gradient
def _(dy, y, sorted_sequence, values, *, right):
    return None, None


@searchsorted.lowering
def _(sorted_sequence, values, *, right):
    from .comparison import less, less_equal
    from .reduction import sum
    from .shape import reshape

    lines = reshape(sorted_sequence, (*sorted_sequence.shape[:-1], 1, sorted_sequence.shape[-1]))
    columns = reshape(values, (*values.shape, 1))
    return sum((less_equal if right else less)(lines, columns), axis=-1)


@searchsorted.samples
def _(rng):
    yield (np.sort(rng.normal(size=5)), rng.normal(size=3)), {}
    yield (np.array([1.0, 2.0, 2.0, 3.0]), np.array([2.0, 4.0])), {"right": True}
    yield (np.sort(rng.normal(size=(2, 4))), rng.normal(size=(2, 3))), {}
    yield (np.zeros((0,)), rng.normal(size=2)), {}
