"""Indexing: ``x[...]`` and ``x[...] = v`` with NumPy's meaning, in terms of base ops.

In: a tensor and any index that NumPy takes. Out: ``get_item``, ``set_item``.
After ``masks``; before ``tensor``.

An index is taken apart once. Slices and integers become one ``slice`` node, integer tensors and masks one ``index``
node, and what NumPy says about the place of the resulting axes becomes a ``transpose`` and a ``reshape``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import op as op_module
from ..errors import ArgumentError, DTypeError, IndexRangeError, MgeError, ShapeError, user_place
from ..graph import current_recording
from ..types import Type, broadcast
from .create import as_type, on_device
from .gather import index as index_op
from .gather import index_set
from .gather_reference import range_error
from .masks import true_positions
from .shape import broadcast_to, permute, reshape
from .slicing import slice_, slice_set

if TYPE_CHECKING:
    from ..tensor import Tensor

FUNCTIONS = ()


class _Parts:
    """An index taken apart, for a tensor of one shape.

    Attributes
    ----------
    cut : dict
        Starts, stops and steps of the ``slice`` over the tensor's axes; axes indexed otherwise are whole.
    is_whole : bool
        That slice takes everything.
    sliced : tuple of int
        The shape after it.
    inner : tuple of int
        Then integers' axes are gone, and the axes of a mask are one.
    axes : list of int
        The axes of ``inner`` that integer arrays or masks index.
    arrays : list
        What indexes each of them: a NumPy array or a tensor; bool for a mask.
    before, after : list of (int, bool)
        The result's sizes before and behind the axes that the arrays make, and whether they are of ``inner``
        or new.
    kept_before : int
        How many of ``before`` are axes of ``inner``.
    """

    __slots__ = (
        "after", "arrays", "axes", "before", "cut", "inner", "is_whole", "kept_before", "sliced",
    )  # fmt: skip

    def __init__(self, shape: tuple[int, ...], index: Any, where: str) -> None:
        entries = _entries(shape, index, where)
        self.axes, self.arrays = [], []
        cuts: list[tuple[int, int, int]] = []
        inner: list[int] = []
        made: list[tuple[int, bool]] = []  # the result's sizes without the arrays' axes
        places: list[
            int | None
        ] = []  # of each entry: where in ``made`` it is, if it counts as an array
        has_arrays = any(hasattr(e, "dtype") and (e.ndim or _is_bool(e)) for e in entries)
        for entry in entries:
            counts, at = True, len(made)
            axis = len(cuts)
            if isinstance(entry, int):
                cuts.append((entry, entry + 1, 1))
                counts = has_arrays
            elif entry is None or entry is Ellipsis:  # the latter stands for no axis here
                made += [(1, False)] if entry is None else []
                counts = False
            elif isinstance(entry, slice):
                taken = range(*entry.indices(shape[axis]))
                cuts.append((taken.start, taken.stop, taken.step) if taken else (0, 0, 1))
                inner.append(len(taken))
                made.append((len(taken), True))
                counts = False
            else:
                sizes = shape[axis : axis + (entry.ndim if _is_bool(entry) else 1)]
                cuts += [(0, n, 1) for n in sizes]
                self.axes.append(len(inner))
                self.arrays.append(entry)
                inner.append(math.prod(sizes))
            places.append(at if counts else None)
        place = _place_of_arrays(places)
        self.before, self.after = made[:place], made[place:]
        self.kept_before = sum(kept for _, kept in self.before)
        self.inner = tuple(inner)
        self.sliced = tuple(len(range(*cut)) for cut in cuts)
        self.is_whole = all(cut == (0, n, 1) for cut, n in zip(cuts, shape))
        self.cut = {
            name: tuple(cut[k] for cut in cuts)
            for k, name in enumerate(("starts", "stops", "steps"))
        }

    def part(self, x: Tensor) -> Tensor:
        """Return ``x`` after the slice."""
        return x if self.is_whole else slice_(x, **self.cut)

    def shape_with(self, common: tuple[int, ...]) -> tuple[int, ...]:
        """Return the result's shape, where the arrays make the axes ``common``."""
        return (*[n for n, _ in self.before], *common, *[n for n, _ in self.after])

    def new_axes(self, count: int) -> list[bool]:
        """Return for each axis of the result whether None made it; ``count`` is the number of the arrays' axes."""
        return [
            *[not kept for _, kept in self.before],
            *[False] * count,
            *[not kept for _, kept in self.after],
        ]

    def order(self, count: int) -> tuple[int, ...] | None:
        """Return the pattern that brings the axes of ``index``'s result into NumPy's order; None where they are.

        ``count`` is the number of the arrays' axes.
        """
        first = self.axes[0]
        if first == self.kept_before or not count:
            return None
        ndim = len(self.inner) - len(self.axes) + count
        arrays = list(range(first, first + count))
        others = [i for i in range(ndim) if i not in arrays]
        return (*others[: self.kept_before], *arrays, *others[self.kept_before :])


def _place_of_arrays(places: list[int | None]) -> int:
    """Return where the arrays' axes go: to the first array, or in front if something lies between two arrays."""
    found = [i for i, place in enumerate(places) if place is not None]
    if not found or found[-1] - found[0] + 1 != len(found):
        return 0
    return places[found[0]] or 0


_PARTS: dict[tuple, _Parts] = {}  # of indices without arrays, by shape and index
_MOST_PARTS = 10_000


def _parts(shape: tuple[int, ...], index: Any, where: str) -> _Parts:
    """Return an index taken apart; simple ones are found again without work."""
    plain: list[Any] = []
    for entry in index if isinstance(index, tuple) else (index,):
        if isinstance(entry, slice):
            bounds = entry.start, entry.stop, entry.step
            if any(b is not None and type(b) is not int for b in bounds):
                return _Parts(shape, index, where)
            plain.append(bounds)
        elif type(entry) is int or entry is None or entry is Ellipsis:
            plain.append(entry)
        else:
            return _Parts(shape, index, where)
    key = (shape, *plain)
    found = _PARTS.get(key)
    if found is None:
        found = _Parts(shape, index, where)
        if len(_PARTS) >= _MOST_PARTS:
            _PARTS.clear()
        _PARTS[key] = found
    return found


def _is_bool(entry: Any) -> bool:
    return entry.dtype == np.bool_


def _entries(shape: tuple[int, ...], index: Any, where: str) -> list[Any]:
    """Return the entries of an index, one for each axis or run of axes, in their one form.

    These are ints in 0 to n - 1, slices, None, arrays and tensors; an Ellipsis that stands for axes becomes slices.
    """
    raw = index if isinstance(index, tuple) else (index,)
    entries: list[Any] = []
    used, dots = 0, None
    for entry in raw:
        if entry is None:
            pass
        elif entry is Ellipsis:
            if dots is not None:
                raise IndexRangeError(f"{where}: the index has two Ellipsis (...); one is allowed")
            dots = len(entries)
        elif isinstance(entry, slice) or type(entry) is int:
            used += 1
        else:
            entry = _entry(entry, where)
            used += 1 if not hasattr(entry, "dtype") else entry.ndim if _is_bool(entry) else 1
        entries.append(entry)
    if used > len(shape):
        raise IndexRangeError(f"{where}: {used} indices are too many for a tensor of shape {shape}")
    missing = [slice(None)] * (len(shape) - used)
    if dots is None:
        entries += missing
    elif missing:
        entries[dots : dots + 1] = missing
    axis = 0
    for i, entry in enumerate(entries):
        if entry is None or entry is Ellipsis:
            continue
        if type(entry) is int:
            n = shape[axis]
            if not -n <= entry < n:
                raise IndexRangeError(
                    f"{where}: index {entry} is out of range for axis {axis} of a tensor of shape {shape} "
                    f"(-{n} to {n - 1})"
                )
            if entry < 0:
                entries[i] = entry + n
        elif hasattr(entry, "dtype"):
            if _is_bool(entry):
                if entry.shape != shape[axis : axis + entry.ndim]:
                    raise IndexRangeError(
                        f"{where}: the mask has shape {entry.shape}; axes {axis} to {axis + entry.ndim - 1} of the "
                        f"tensor have shape {shape[axis : axis + entry.ndim]}"
                    )
                axis += entry.ndim
                continue
            error = (
                range_error(where, entry, axis, shape[axis])
                if isinstance(entry, np.ndarray)
                else None
            )
            if error is not None:
                raise error
        axis += 1
    return entries


def _entry(entry: Any, where: str) -> Any:
    """Return an int, a NumPy array (int32 or bool) or a tensor (integer or bool) for one entry of an index."""
    if hasattr(entry, "_node"):
        if not (entry.dtype.is_integer or entry.dtype.is_bool):
            raise DTypeError(
                f"{where}: an index is a {entry.dtype} tensor of shape {entry.shape}; it must hold integers or bools",
                hint='index.astype("int32")',
            )
        return entry
    if hasattr(entry, "__index__") and not isinstance(entry, (bool, np.bool_, np.ndarray)):
        return entry.__index__()
    try:
        array = np.asarray(entry)
    except (TypeError, ValueError):
        array = np.asarray(None)
    if array.dtype == np.bool_:
        return array
    if not array.size and isinstance(entry, (list, tuple)):
        return array.astype(np.int32)
    if array.dtype.kind not in "iu":
        raise DTypeError(
            f"{where}: an index is {entry!r} of type {type(entry).__name__}; it must be an integer, a slice, None, "
            "Ellipsis, or an array of integers or bools"
        )
    return array if array.ndim else int(array)


def _positions(parts: _Parts, device: Any, where: str) -> list[Any]:
    """Return an integer tensor for each array of an index; masks that are tensors are read."""
    made = []
    with on_device(device):
        for array in parts.arrays:
            if isinstance(array, np.ndarray):
                array = np.flatnonzero(array) if _is_bool(array) else array
                made.append(op_module.make_constant(array.astype(np.int32)))
            else:
                made.append(true_positions(array, where) if _is_bool(array) else array)
    return made


def get_item(x: Tensor, index: Any) -> Tensor:
    """Return the part of ``x`` that an index names, with NumPy's meaning.

    Parameters
    ----------
    x : any shape, any dtype
    index : int, slice, None, Ellipsis, bool, array or tensor of integers or bools, or a tuple of these
        Integers from Python are part of the graph; integer tensors are inputs of it. A mask that is a tensor is
        read, because the result's shape depends on its values.

    Returns
    -------
    NumPy's shape, dtype of ``x``

    Raises
    ------
    IndexRangeError
        An index out of range, too many of them, or a mask of another shape; also an IndexError. The values of
        tensors are checked when the result is computed.
    DTypeError
        An index that holds neither integers nor bools.
    ShapeError
        Index arrays that do not broadcast.
    TraceError
        A tensor as a mask inside a traced function.
    """
    try:
        parts = _parts(x.shape, index, "index")
        made = parts.part(x)
        if not parts.axes:
            shape = parts.shape_with(())
            return reshape(made, shape=shape) if made is x or made.shape != shape else made
        if made.shape != parts.inner:
            made = reshape(made, shape=parts.inner)
        positions = _positions(parts, x.device, "index")
        common = broadcast(*(p.shape for p in positions), where="index")
        made = index_op(made, *positions, axes=tuple(parts.axes))
        pattern = parts.order(len(common))
        if pattern is not None:
            made = permute(made, pattern=pattern)
        shape = parts.shape_with(common)
        return made if made.shape == shape else reshape(made, shape=shape)
    except MgeError as error:
        raise error.add_place(user_place()) from None


def set_item(x: Tensor, index: Any, value: Any) -> Tensor:
    """Return a copy of ``x`` in which the part that an index names is replaced, with NumPy's meaning.

    Parameters
    ----------
    x : any shape, any dtype
    index : as in ``get_item``
        A mask that is a tensor is not read where ``value`` is the same for all its true elements.
    value : number, array or tensor that broadcasts to the part
        It is converted to the dtype of ``x``. Of two values for one element the last one stays.

    Returns
    -------
    shape and dtype of ``x``

    Raises
    ------
    IndexRangeError, DTypeError, TraceError
        As in ``get_item``.
    ShapeError
        ``value`` does not broadcast to the part.
    """
    try:
        parts = _parts(x.shape, index, "set_item")
        new = _value(x, value)
        if not parts.axes:
            new = _fitted(new, parts.shape_with(()))
            if parts.is_whole:
                return reshape(new, shape=x.shape)
            new = new if new.shape == parts.sliced else reshape(new, shape=parts.sliced)
            return slice_set(x, new, **parts.cut)
        inner = parts.part(x)
        inner = inner if inner.shape == parts.inner else reshape(inner, shape=parts.inner)
        made = _masked(parts, inner, new)
        if made is None:
            positions = _positions(parts, x.device, "set_item")
            common = broadcast(*(p.shape for p in positions), where="set_item")
            new = _arranged(parts, _fitted(new, parts.shape_with(common)), len(common))
            made = index_set(inner, new, *positions, axes=tuple(parts.axes))
        if made.shape != parts.sliced:
            made = reshape(made, shape=parts.sliced)
        return made if parts.is_whole else slice_set(x, made, **parts.cut)
    except MgeError as error:
        raise error.add_place(user_place()) from None


def _value(x: Tensor, value: Any) -> Tensor:
    """Return the new value as a tensor of the dtype of ``x``, without axes of size 1 that NumPy would drop."""
    if hasattr(value, "_node"):
        made = as_type(value, x.dtype)
    elif isinstance(value, (bool, int, float)):
        number = value if x.dtype.is_float or isinstance(value, int) else _truncated(value, x.dtype)
        node = op_module._number_node(number, Type((), x.dtype), x.device, current_recording())
        return op_module.tensor_class.from_node(node)
    else:
        array = np.asarray(value)
        if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
            raise DTypeError(
                f"set_item: the value is a {type(value).__name__} of dtype {array.dtype}; it must be numeric"
            )
        with on_device(x.device), np.errstate(invalid="ignore"):
            made = op_module.make_constant(array.astype(x.dtype.dtype))
    return made


def _truncated(value: float, dtype: Any) -> Any:
    """Return a float as NumPy would store it in an integer or bool array."""
    if dtype.is_bool:
        return bool(value)
    if not math.isfinite(value):
        raise ArgumentError(f"set_item: the value is {value}; it does not fit {dtype}")
    return int(value)


def _fitted(value: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return ``value`` broadcast to a part's shape; leading axes of size 1 too many are dropped, as NumPy does."""
    value = _dropped(value, len(shape))
    if value.shape == shape:
        return value
    lead = len(shape) - value.ndim
    if lead < 0 or any(n not in (1, m) for n, m in zip(value.shape, shape[lead:])):
        raise ShapeError(
            f"set_item: the value has shape {value.shape}; it must broadcast to the part's shape {shape}"
        )
    return broadcast_to(value, shape=shape)


def _dropped(value: Tensor, ndim: int) -> Tensor:
    extra = value.ndim - ndim
    if extra > 0 and value.shape[:extra] == (1,) * extra:
        return reshape(value, shape=value.shape[extra:])
    return value


def _arranged(parts: _Parts, value: Tensor, count: int) -> Tensor:
    """Return a value of the part's rank with its axes as ``index`` gives them: new axes gone, arrays' axes in place."""
    if value.ndim != len(parts.inner) - len(parts.axes) + count:
        value = reshape(
            value, shape=tuple(n for n, new in zip(value.shape, parts.new_axes(count)) if not new)
        )
    pattern = parts.order(count)
    if pattern is not None:
        value = permute(value, pattern=tuple(pattern.index(i) for i in range(len(pattern))))
    return value


def _masked(parts: _Parts, inner: Tensor, value: Tensor) -> Tensor | None:
    """Return the result of setting by one mask, where the value is the same for all its true elements; else None."""
    from .select import where

    if len(parts.arrays) != 1 or not _is_bool(parts.arrays[0]):
        return None
    ndim = len(parts.before) + 1 + len(parts.after)
    value = _dropped(value, ndim)
    at = value.ndim - len(parts.after) - 1  # the axis of the true elements
    if value.ndim > ndim or at >= 0 and value.shape[at] != 1:
        return None
    fits = parts.shape_with((1,))
    value = reshape(value, shape=(1,) * (ndim - value.ndim) + value.shape)
    if any(n not in (1, m) for n, m in zip(value.shape, fits)):
        raise ShapeError(
            f"set_item: the value has shape {value.shape}; it must broadcast to the part's shape {fits}"
        )
    mask = parts.arrays[0]
    if isinstance(mask, np.ndarray):
        with on_device(inner.device):
            mask = op_module.make_constant(mask)
    axis = parts.axes[0]
    mask = reshape(mask, shape=(inner.shape[axis], *[1] * (inner.ndim - axis - 1)))
    return where(mask, _arranged(parts, value, 1), inner)
