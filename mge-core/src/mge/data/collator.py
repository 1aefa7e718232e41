"""Make one batch of a list of samples.

In: samples of the same structure. Out: the structure once, with a batch axis in front of each array.
Before ``fetch``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mge.errors import ArgumentError, DTypeError, ShapeError


class Collator:
    """Stack samples into a batch, entry by entry.

    ====================  ==========================================================
    sample                batch of ``n``
    ====================  ==========================================================
    array ``(...)``       array ``(n, ...)``, contiguous, of the same dtype
    NumPy scalar          array ``(n,)`` of the same dtype
    bool, int, float      array ``(n,)`` of bool, int32, float32: mge's defaults
    str, bytes            list of ``n``
    dict                  dict with the same keys, each value a batch
    tuple, named tuple    tuple of the same type, each entry a batch
    list                  list, each entry a batch
    ====================  ==========================================================

    Notes
    -----
    For other structures define ``apply(inputs)`` in a subclass.

    Examples
    --------
    >>> from mge.data import Collator
    >>> Collator().apply([(np.zeros(2), 1), (np.ones(2), 2)])
    (array([[0., 0.],
           [1., 1.]]), array([1, 2], dtype=int32))
    """

    def apply(self, inputs: Sequence[Any]) -> Any:
        """Make one batch.

        Parameters
        ----------
        inputs : sequence of samples
            At least one, all of the same structure.

        Returns
        -------
        array, or list, tuple or dict of batches

        Raises
        ------
        ShapeError
            Arrays, tuples or lists of different shapes or lengths.
        DTypeError
            A type that is not in the table, or an array of objects.
        ArgumentError
            No sample, dicts with different keys, or an int outside of int32.
        """
        if not len(inputs):
            raise ArgumentError("Collator: no sample was given; a batch needs at least one")
        return _collate(inputs, "sample")


def _collate(values: Sequence[Any], place: str) -> Any:
    first = values[0]
    if isinstance(first, (str, bytes)):  # numpy.str_ and numpy.bytes_ are among them
        return list(values)
    if isinstance(first, (np.ndarray, np.generic)):
        return _stack(values, place)
    if isinstance(first, (bool, int, float)):
        return _numbers(values, place)
    if isinstance(first, Mapping):
        for number, value in enumerate(values):
            if not isinstance(value, Mapping) or value.keys() != first.keys():
                raise ArgumentError(
                    f"Collator: {place} {number} has keys {_keys(value)}; {place} 0 has "
                    f"{_keys(first)}"
                )
        return {key: _collate([v[key] for v in values], f"{place}[{key!r}]") for key in first}
    if isinstance(first, Sequence):
        return _sequences(values, first, place)
    raise DTypeError(
        f"Collator: {place} 0 is a {type(first).__name__}; a batch is made of arrays, numbers, strings, "
        "bytes, dicts, tuples and lists",
        hint="convert it in a transform, or pass an own collator to DataLoader",
    )


def _keys(value: Any) -> str:
    return str(list(value)) if isinstance(value, Mapping) else f"none ({type(value).__name__})"


def _stack(values: Sequence[Any], place: str) -> np.ndarray:
    arrays = [np.asarray(value) for value in values]
    for number, array in enumerate(arrays):
        if array.dtype.hasobject:
            raise DTypeError(
                f"Collator: {place} {number} is an array of Python objects (dtype {array.dtype})"
            )
        if array.shape != arrays[0].shape:
            raise ShapeError(
                f"Collator: {place} {number} has shape {array.shape} and {place} 0 has "
                f"{arrays[0].shape}; the samples of a batch must have the same shape",
                hint="resize, crop or pad them in a transform, or pass an own collator",
            )
    # np.stack follows the layout of its inputs; a batch is contiguous, also from transposed arrays.
    dtype = np.result_type(*{array.dtype for array in arrays})
    return np.stack(arrays, out=np.empty((len(arrays), *arrays[0].shape), dtype))


def _numbers(values: Sequence[Any], place: str) -> np.ndarray:
    for number, value in enumerate(values):
        if not isinstance(value, (bool, int, float, np.number, np.bool_)):
            raise DTypeError(
                f"Collator: {place} {number} is a {type(value).__name__} and {place} 0 is a "
                f"{type(values[0]).__name__}; both must be numbers"
            )
    if any(isinstance(value, (float, np.floating)) for value in values):
        return np.array(values, np.float32)
    if all(isinstance(value, (bool, np.bool_)) for value in values):
        return np.array(values, np.bool_)
    limits = np.iinfo(np.int32)
    for number, value in enumerate(values):
        if not limits.min <= value <= limits.max:
            raise ArgumentError(
                f"Collator: {place} {number} is {value}; a Python int becomes int32, and this one "
                "does not fit",
                hint="return numpy.int64(value) from the data set",
            )
    return np.array(values, np.int32)


def _sequences(values: Sequence[Any], first: Sequence[Any], place: str) -> Any:
    for number, value in enumerate(values):
        if not isinstance(value, Sequence) or len(value) != len(first):
            given = f"{len(value)} entries" if isinstance(value, Sequence) else type(value).__name__
            raise ShapeError(
                f"Collator: {place} {number} has {given} and {place} 0 has {len(first)} entries; "
                "the samples of a batch must have the same number"
            )
    parts = [_collate(column, f"{place}[{i}]") for i, column in enumerate(zip(*values))]
    if isinstance(first, tuple):
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    return parts
