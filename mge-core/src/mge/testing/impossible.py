"""Calls that make no sense: each differs in one place from a good one.

In: the arrays and attributes of a sample. Out: such calls, which must raise one of mge's errors or be computed.
After ``cases``; before ``robustness``. The generated tests of the core read it, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..dtype import as_dtype
from ..op import Op
from .cases import Arrays

ODD = [0, 1, -1, 7, -9, 10**6, -(10**6)]


def odd_values(value: Any) -> Iterator[Any]:
    """Yield values of about the kind of an attribute that may make no sense for it."""
    yield None
    yield "no such thing"
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float) or value is None:
        yield from ODD
        yield (0, 0)
        yield float("nan")
    elif isinstance(value, tuple):
        yield ()
        yield value + value
        yield value[:-1]
        yield tuple(-1 for _ in value)
        yield tuple(99 for _ in value)
        yield 3
        yield -3
    elif isinstance(value, str):
        yield ""
        yield 3


def odd_arrays(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield arrays that may not fit where ``array`` does."""
    yield np.zeros((), array.dtype)
    yield np.zeros((0,), array.dtype)
    yield np.zeros((1, *array.shape), array.dtype)
    yield np.zeros((1,) * 6, array.dtype)
    if array.ndim:
        yield np.zeros(array.shape[1:], array.dtype)
        yield np.zeros((array.shape[0] + 1, *array.shape[1:]), array.dtype)
        yield np.zeros((*array.shape[:-1], array.shape[-1] + 1), array.dtype)
        yield array[:0]
    for dtype in ("bool", "int64", "uint8", "bfloat16", "float64"):
        yield np.zeros(array.shape, as_dtype(dtype).dtype)


def odd_calls(
    arrays: Arrays, attrs: dict[str, Any], op: Op
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Yield (inputs, attributes) that differ in one place from a good call."""
    for i, array in enumerate(arrays):
        for other in odd_arrays(array):
            yield (*arrays[:i], other, *arrays[i + 1 :]), attrs
        yield (*arrays[:i], "no tensor", *arrays[i + 1 :]), attrs
        yield (*arrays[:i], None, *arrays[i + 1 :]), attrs
    yield arrays[:-1], attrs
    yield (*arrays, *(arrays[:1] or [np.zeros(2)])), attrs
    for key in op.attr_names:
        for value in odd_values(attrs.get(key, op.__signature__.parameters[key].default)):
            yield arrays, attrs | {key: value}
    yield arrays, attrs | {"no_such_attribute": 1}
