"""Gathering and scattering in NumPy: what the references of ``gather`` share.

In: arrays and positions. Out: flat positions, sums by position, and the errors for positions out of range.
Before ``gather``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtype import as_dtype, wide_of
from ..errors import IndexRangeError


def range_error(where: str, index: np.ndarray, axis: int, size: int) -> IndexRangeError | None:
    """Return the error for the first value of ``index`` that points outside an axis; None where all fit."""
    bad = index[(index < -size) | (index >= size)] if index.size else index
    if not bad.size:
        return None
    return IndexRangeError(
        f"{where}: index {int(bad.ravel()[0])} is out of range for axis {axis}, which has {size} elements "
        f"(-{size} to {size - 1})"
    )


def explained(
    where: str, error: Exception, shape: tuple[int, ...], indices: Any, axes: tuple[int, ...]
) -> Exception:
    """Return the error that names the value, the axis and its size, for NumPy's error ``error``."""
    for index, axis in zip(indices, axes):
        found = range_error(where, index, axis, shape[axis])
        if found is not None:
            return found
    return error


def indexed_in_a_row(array: np.ndarray, axes: tuple[int, ...], ndim: int) -> tuple[np.ndarray, int]:
    """Return ``array`` with the indexed axes in a row behind the first of them, and how many axes come before."""
    if axes[-1] - axes[0] + 1 == len(axes):
        return array, axes[0]
    others = [a for a in range(ndim) if a not in axes]
    return array.transpose([*others[: axes[0]], *axes, *others[axes[0] :]]), axes[0]


def flat_positions(indices: tuple[np.ndarray, ...], shape: tuple[int, ...]) -> np.ndarray:
    """Return row-major positions, counted from 0, in an array of ``shape``; raise IndexError outside it."""
    flat: Any = 0
    for position, size in zip(indices, shape):
        position = position.astype(np.int64)
        if position.size and (position.max() >= size or position.min() < -size):
            raise IndexError
        flat = flat * size + np.where(position < 0, position + size, position)
    return flat


def add_rows(target: np.ndarray, positions: np.ndarray, rows: np.ndarray) -> None:
    """Add ``rows[i]`` to ``target[positions[i]]``; rows of one position are added in their order."""
    wide = wide_of_array(target)
    if rows.shape[1] == 1 and wide is None:
        np.add.at(target[:, 0], positions, rows[:, 0])
        return
    order = np.argsort(positions, kind="stable")
    placed = positions[order]
    starts = np.flatnonzero(np.concatenate([[True], placed[1:] != placed[:-1]]))
    sorted_rows = rows[order] if wide is None else rows[order].astype(wide)
    totals = (
        sorted_rows
        if len(starts) == len(placed)
        else np.add.reduceat(sorted_rows, starts, axis=0, dtype=sorted_rows.dtype)
    )
    named = placed[starts]
    if wide is None:
        target[named] += totals
    else:
        target[named] = (target[named].astype(wide) + totals).astype(target.dtype)


def wide_of_array(array: np.ndarray) -> np.dtype | None:
    """Return the dtype in which sums for ``array`` are kept, where it is another one than the array's."""
    own = as_dtype(array.dtype)
    wide = wide_of(own)
    return None if wide is own else wide.dtype


def part_along(array: np.ndarray, shape: tuple[int, ...], axis: int) -> np.ndarray:
    """Return the view whose axes, but for ``axis``, are as long as those of ``shape``."""
    at = axis % array.ndim
    return array[tuple(slice(None) if i == at else slice(n) for i, n in enumerate(shape))]
