"""Gathering and scattering: elements read and written at positions that integer tensors hold.

In: a tensor and integer tensors. Out: the base ops ``index``, ``index_set``, ``take_along``, ``put_along``.
After ``slicing``; before ``join``.

Positions count from 0, and negative ones from the end. They are checked before anything is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..dtype import int32
from ..errors import ArgumentError, DTypeError, ShapeError
from ..op import op
from ..types import abstract, broadcast, normal_axis
from .gather_reference import (
    add_rows,
    explained,
    flat_positions,
    indexed_in_a_row,
    part_along,
    range_error,
)
from .shape import broadcast_to, reshape

if TYPE_CHECKING:
    from ..tensor import Tensor

PRIVATE = ("index", "index_set", "take_along", "put_along")


def _check_integers(where: str, *indices: Any) -> None:
    for i, index in enumerate(indices):
        if not index.dtype.is_integer:
            raise DTypeError(
                f"{where}: index {i} is {index.dtype} of shape {index.shape}; an index must be an integer"
            )


def _indexed_shape(
    where: str, inp: Any, indices: tuple[Any, ...], axes: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the shape of ``index``, and check the arguments that it shares with ``index_set``."""
    if len(indices) != len(axes) or not indices:
        raise ArgumentError(
            f"{where}: {len(indices)} indices were given for axes {axes}; each axis needs one"
        )
    if list(axes) != sorted(set(axes)) or axes[0] < 0 or axes[-1] >= inp.ndim:
        raise ArgumentError(
            f"{where}: axes are {axes} for inp of shape {inp.shape}; they must rise and lie in 0 to {inp.ndim - 1}"
        )
    _check_integers(where, *indices)
    common = broadcast(*(i.shape for i in indices), where=where)
    others = [n for axis, n in enumerate(inp.shape) if axis not in axes]
    return (*others[: axes[0]], *common, *others[axes[0] :])


@op(base=True)
def index(inp: Tensor, *indices: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Take the elements at the positions that integer tensors give for some axes.

    ``y[a, ..., b, ..., c, ...] = inp[a, ..., indices[0][b, ...], ..., c, ...]``: the axes ``b`` of the broadcast
    indices stand where the first indexed axis was

    Parameters
    ----------
    inp : any shape, any dtype
    indices : integer tensors that broadcast together
        One for each of ``axes``; values from ``-n`` to ``n - 1`` for an axis of size ``n``.
    axes : tuple of int
        The indexed axes, rising.

    Returns
    -------
    the indices' shape in place of the first indexed axis, the other indexed axes removed; same dtype as ``inp``

    Raises
    ------
    ArgumentError
        The numbers of indices and axes differ, or the axes do not rise or are out of range.
    DTypeError
        An index is not an integer tensor.
    ShapeError
        The indices do not broadcast.
    IndexRangeError
        A value is out of its axis' range (when the values are computed).

    Examples
    --------
    >>> x = tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> index(x, tensor([2, 0]), axes=(0,))
    Tensor([[5., 6.],
            [1., 2.]], dtype=float32, device=ref:0)
    """
    return abstract(_indexed_shape("index", inp, indices, axes), inp.dtype)


@index.reference
def _(inp, *indices, axes):
    try:
        if len(axes) == 1 and inp.size:
            return np.take(inp, indices[0], axes[0])
        moved, lead = indexed_in_a_row(inp, axes, inp.ndim)
        return moved[(slice(None),) * lead + indices]
    except IndexError as error:
        raise explained("index", error, inp.shape, indices, axes) from None


index.picks = True


@index.gradient
def _(dy, y, inp, *indices, axes):
    from .create import zeros_like

    return (index_set(zeros_like(inp), dy, *indices, axes=axes, mode="add"), *[None] * len(indices))


@index.samples
def _(rng):
    yield (rng.normal(size=(4, 3)), np.array([2, 0, -1, 2])), {"axes": (0,)}
    yield (
        (rng.normal(size=(2, 3, 2)), np.array([[0, 1], [1, 1]]), np.array([2, -3])),
        {"axes": (0, 1)},
    )
    yield (rng.normal(size=(2, 3, 2)), np.array([[0], [1]]), np.array([1, 0])), {"axes": (0, 2)}
    yield (rng.normal(size=(2, 4)), np.array(3)), {"axes": (1,)}
    yield (rng.normal(size=(2, 4)), np.zeros((0,), np.int32)), {"axes": (1,)}
    yield (np.zeros((3, 0)), np.array([1, 1])), {"axes": (0,)}


MODES = ("set", "add")


def _check_mode(where: str, mode: str, inp: Any) -> None:
    if mode not in MODES:
        raise ArgumentError(f"{where}: mode is {mode!r}; it must be 'set' or 'add'")
    if mode == "add" and inp.dtype.is_bool:
        raise DTypeError(f"{where}: inp is bool of shape {inp.shape}; mode 'add' needs numbers")


@op(base=True)
def index_set(
    inp: Tensor, value: Tensor, *indices: Tensor, axes: tuple[int, ...], mode: str = "set"
) -> Tensor:
    """Return a copy that is changed at the positions that integer tensors give.

    ``y = inp``, then ``y[a, ..., indices[0][b, ...], ..., c, ...] = value[a, ..., b, ..., c, ...]``, or ``+=``

    Parameters
    ----------
    inp : any shape, any dtype
    value : shape of ``index(inp, *indices, axes=axes)``, same dtype as ``inp``
    indices : integer tensors that broadcast together
        One for each of ``axes``; values from ``-n`` to ``n - 1`` for an axis of size ``n``.
    axes : tuple of int
        The indexed axes, rising.
    mode : {"set", "add"}
        What happens at a position that is named twice: the last value stays, or all are added.

    Returns
    -------
    shape and dtype of ``inp``

    Raises
    ------
    ArgumentError
        The numbers of indices and axes differ, the axes do not rise or are out of range, or ``mode`` is unknown.
    DTypeError
        An index is not an integer tensor, ``value`` has another dtype than ``inp``, or bools are to be added.
    ShapeError
        The indices do not broadcast, or ``value`` has another shape.
    IndexRangeError
        A value is out of its axis' range (when the values are computed).

    Notes
    -----
    Sums of float16 and bfloat16 are accumulated in float32.

    Examples
    --------
    >>> index_set(tensor([1.0, 2.0, 3.0]), tensor([10.0, 20.0]), tensor([0, 0]), axes=(0,), mode="add")
    Tensor([31.,  2.,  3.], dtype=float32, device=ref:0)
    """
    _check_mode("index_set", mode, inp)
    shape = _indexed_shape("index_set", inp, indices, axes)
    if value.shape != shape:
        raise ShapeError(
            f"index_set: value has shape {value.shape}; the indexed part of inp {inp.shape} has shape {shape}"
        )
    if value.dtype != inp.dtype:
        raise DTypeError(
            f"index_set: inp is {inp.dtype} and value is {value.dtype}; both must be the same"
        )
    return abstract(inp.shape, inp.dtype)


index_set.inplace = (0,)


@index_set.reference
def _(inp, value, *indices, axes, mode, out):
    shape = tuple(inp.shape[a] for a in axes)
    try:  # one position for all indexed axes; this checks them before anything is written
        flat = flat_positions(indices, shape)
    except IndexError as error:
        raise explained("index_set", error, inp.shape, indices, axes) from None
    np.copyto(out, inp)
    if not flat.size or not value.size:
        return out
    target, lead = indexed_in_a_row(out, axes, inp.ndim)
    count = flat.ndim
    moved = np.moveaxis(value, range(lead, lead + count), range(count))  # the indices' axes first
    rows = moved.reshape(flat.size, -1)
    target = np.moveaxis(target, range(lead, lead + len(axes)), range(len(axes)))
    order = target.reshape(-1, rows.shape[1])  # a view where the indexed axes come first
    flat = flat.ravel()
    if mode == "set":
        order[flat] = rows
    else:
        add_rows(order, flat, rows)
    if not np.shares_memory(order, out):
        target[...] = order.reshape(target.shape)
    return out


@index_set.gradient
def _(dy, y, inp, value, *indices, axes, mode):
    from .create import zeros_like

    none = (None,) * len(indices)
    if mode == "add":
        return (dy, index(dy, *indices, axes=axes), *none)
    dinp = index_set(dy, zeros_like(value), *indices, axes=axes)
    dvalue = index(dy, *indices, axes=axes)
    if value.size > 1:
        dvalue = _where_last(dvalue, indices, axes, tuple(inp.shape[a] for a in axes))
    return (dinp, dvalue, *none)


def _where_last(
    dvalue: Tensor, indices: tuple, axes: tuple[int, ...], sizes: tuple[int, ...]
) -> Tensor:
    """Return ``dvalue`` with zeros for the values that a later one at the same position replaced."""
    from .comparison import equal
    from .create import counter, zeros, zeros_like
    from .select import where

    common = broadcast(*(i.shape for i in indices))
    if not common:
        return dvalue
    numbers = counter(common)
    owner = index_set(zeros(sizes, dtype=int32), numbers, *indices, axes=tuple(range(len(sizes))))
    last = index(owner, *indices, axes=tuple(range(len(sizes))))
    last = equal(last, numbers)
    behind = dvalue.ndim - axes[0] - len(common)
    last = reshape(last, shape=(*common, *[1] * behind))
    return where(broadcast_to(last, shape=dvalue.shape), dvalue, zeros_like(dvalue))


@index_set.samples
def _(rng):
    yield (rng.normal(size=(4, 3)), rng.normal(size=(3, 3)), np.array([2, 0, -1])), {"axes": (0,)}
    yield (rng.normal(size=(4,)), rng.normal(size=(4,)), np.array([1, 1, -3, 0])), {"axes": (0,)}
    yield (
        (rng.normal(size=(4, 2)), rng.normal(size=(3, 2)), np.array([1, 1, 3])),
        {"axes": (0,), "mode": "add"},
    )
    yield (
        (
            rng.normal(size=(2, 3, 2)),
            rng.normal(size=(2, 2, 2)),
            np.array([[0, 1], [1, 1]]),
            np.array([2, -3]),
        ),
        {"axes": (0, 1), "mode": "add"},
    )
    yield (
        (
            rng.normal(size=(2, 3, 2)),
            rng.normal(size=(2, 2, 3)),
            np.array([[0], [1]]),
            np.array([1, 1]),
        ),
        {"axes": (0, 2)},
    )
    yield (rng.normal(size=(2, 4)), rng.normal(size=(2,)), np.array(3)), {"axes": (1,)}
    yield (
        (rng.normal(size=(2, 4)), np.zeros((2, 0)), np.zeros((0,), np.int32)),
        {"axes": (1,), "mode": "add"},
    )


def _along_shape(where: str, inp: Any, index: Any, axis: int) -> tuple[int, ...]:
    """Return the shape of ``index``, and check what ``take_along`` and ``put_along`` share."""
    at = normal_axis(axis, inp.ndim, where)
    _check_integers(where, index)
    if index.ndim != inp.ndim or any(
        n > m for i, (n, m) in enumerate(zip(index.shape, inp.shape)) if i != at
    ):
        raise ShapeError(
            f"{where}: inp has shape {inp.shape} and index has shape {index.shape}; index must have as many axes, "
            f"none larger than that of inp except axis {axis}"
        )
    return index.shape


@op(base=True)
def take_along(inp: Tensor, index: Tensor, *, axis: int) -> Tensor:
    """Take one element on ``axis`` for each element of ``index``.

    ``y[i, j, k] = inp[i, index[i, j, k], k]`` for three axes and ``axis=1``

    Parameters
    ----------
    inp : any shape with at least 1 axis, any dtype
    index : as many axes as ``inp``, integer
        No axis but ``axis`` longer than that of ``inp``; values from ``-n`` to ``n - 1`` for a size ``n`` of ``axis``.
    axis : int

    Returns
    -------
    shape of ``index``, dtype of ``inp``

    Raises
    ------
    ShapeError
        The shapes do not fit, or ``axis`` is out of range.
    DTypeError
        ``index`` is not an integer tensor.
    IndexRangeError
        A value is out of the axis' range (when the values are computed).

    Examples
    --------
    >>> take_along(tensor([[1.0, 2.0], [3.0, 4.0]]), tensor([[1], [0]]), axis=1)
    Tensor([[2.],
            [3.]], dtype=float32, device=ref:0)
    """
    return abstract(_along_shape("take_along", inp, index, axis), inp.dtype)


@take_along.reference
def _(inp, index, *, axis):
    try:
        return np.take_along_axis(part_along(inp, index.shape, axis), index, axis)
    except IndexError as error:
        raise explained("take_along", error, inp.shape, (index,), (axis % inp.ndim,)) from None


take_along.picks = True


@take_along.gradient
def _(dy, y, inp, index, *, axis):
    from .create import zeros_like

    return put_along(zeros_like(inp), index, dy, axis=axis, mode="add"), None


@take_along.samples
def _(rng):
    yield (rng.normal(size=(3, 4)), np.array([[1], [0], [-1]])), {"axis": 1}
    yield (rng.normal(size=(3, 2)), np.array([[2, 0], [2, 1], [0, 0], [1, -3]])), {"axis": 0}
    yield (rng.normal(size=(2, 3, 2)), np.array([[[2], [2]]])), {"axis": -2}
    yield (rng.normal(size=(3,)), np.zeros((0,), np.int32)), {"axis": 0}


@op(base=True)
def put_along(
    inp: Tensor, index: Tensor, source: Tensor, *, axis: int, mode: str = "set"
) -> Tensor:
    """Return a copy with one element on ``axis`` changed for each of ``index``.

    ``y = inp``, then ``y[i, index[i, j, k], k] = source[i, j, k]``, or ``+=``, for three axes and ``axis=1``

    Parameters
    ----------
    inp : any shape with at least 1 axis, any dtype
    index : as many axes as ``inp``, integer
        No axis but ``axis`` longer than that of ``inp``; values from ``-n`` to ``n - 1`` for a size ``n`` of ``axis``.
    source : shape of ``index``, same dtype as ``inp``
    axis : int
    mode : {"set", "add"}
        What happens at a position that is named twice: the last value stays, or all are added.

    Returns
    -------
    shape and dtype of ``inp``

    Raises
    ------
    ArgumentError
        ``mode`` is unknown.
    ShapeError
        The shapes do not fit, or ``axis`` is out of range.
    DTypeError
        ``index`` is not an integer tensor, ``source`` has another dtype than ``inp``, or bools are to be added.
    IndexRangeError
        A value is out of the axis' range (when the values are computed).

    Notes
    -----
    Sums of float16 and bfloat16 are accumulated in float32.

    Examples
    --------
    >>> put_along(tensor([[1.0, 2.0], [3.0, 4.0]]), tensor([[1], [0]]), tensor([[8.0], [9.0]]), axis=1)
    Tensor([[1., 8.],
            [9., 4.]], dtype=float32, device=ref:0)
    """
    _check_mode("put_along", mode, inp)
    if source.shape != _along_shape("put_along", inp, index, axis):
        raise ShapeError(
            f"put_along: index has shape {index.shape} and source has shape {source.shape}; both must be the same"
        )
    if source.dtype != inp.dtype:
        raise DTypeError(
            f"put_along: inp is {inp.dtype} and source is {source.dtype}; both must be the same"
        )
    return abstract(inp.shape, inp.dtype)


put_along.inplace = (0,)


@put_along.reference
def _(inp, index, source, *, axis, mode, out):
    at = axis % inp.ndim
    error = range_error("put_along", index, at, inp.shape[at])
    if error is not None:
        raise error
    np.copyto(out, inp)
    if not index.size:
        return out
    if mode == "set":
        np.put_along_axis(part_along(out, index.shape, axis), index, source, axis)
        return out
    lines = [
        (index if i == at else np.arange(n).reshape([-1 if i == j else 1 for j in range(inp.ndim)]))
        for i, n in enumerate(index.shape)
    ]
    flat = np.broadcast_to(flat_positions(tuple(lines), inp.shape), index.shape)
    add_rows(out.reshape(-1, 1), flat.ravel(), source.reshape(-1, 1))
    return out


@put_along.gradient
def _(dy, y, inp, index, source, *, axis, mode):
    from .comparison import equal
    from .create import counter, zeros, zeros_like
    from .select import where

    dsource = take_along(dy, index, axis=axis)
    if mode == "add":
        return dy, None, dsource
    numbers = counter(index.shape)
    owner = put_along(zeros(inp.shape, dtype=int32), index, numbers, axis=axis)
    last = equal(take_along(owner, index, axis=axis), numbers)
    return (
        put_along(dy, index, zeros_like(source), axis=axis),
        None,
        where(last, dsource, zeros_like(source)),
    )


@put_along.samples
def _(rng):
    yield (
        (rng.normal(size=(3, 4)), np.array([[1], [0], [-1]]), rng.normal(size=(3, 1))),
        {"axis": 1},
    )
    yield (
        (
            rng.normal(size=(3, 2)),
            np.array([[2, 0], [2, 1], [0, 0], [1, -3]]),
            rng.normal(size=(4, 2)),
        ),
        {"axis": 0, "mode": "add"},
    )
    yield (
        (rng.normal(size=(3, 2)), np.array([[2, 0], [2, 1], [-1, 0]]), rng.normal(size=(3, 2))),
        {"axis": 0},
    )
    yield (
        (rng.normal(size=(2, 3, 2)), np.array([[[2], [2]]]), rng.normal(size=(1, 2, 1))),
        {"axis": -2, "mode": "add"},
    )
    yield (rng.normal(size=(3,)), np.zeros((0,), np.int32), np.zeros((0,))), {"axis": 0}
