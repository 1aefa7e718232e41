"""Windows that slide over spatial axes: their arguments, their count, and views of them.

In: kernel sizes, strides, paddings, dilations. Out: checked tuples, output sizes, strided NumPy views.
After ``op``; before ``conv_reference``, ``conv``, ``pool``.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ..errors import ArgumentError, ShapeError

Sizes = tuple[int, ...]
AXIS_LETTERS = {1: "(n, c, l)", 2: "(n, c, h, w)", 3: "(n, c, d, h, w)"}
_TUPLE = {tuple}


def per_axis(value: Any, count: int, name: str, where: str) -> Sizes:
    """Return one integer for each spatial axis; a single one is repeated.

    Raises
    ------
    ArgumentError
        ``value`` is neither an integer nor ``count`` of them.
    """
    try:
        result = (int(value),) * count
    except (TypeError, ValueError):
        try:
            result = tuple(int(v) for v in value)
        except (TypeError, ValueError):
            result = ()
    if len(result) != count:
        raise ArgumentError(
            f"{where}: {name} is {value!r}; it must be an integer or {count} integers"
        )
    return result


def are_sizes(count: int, *values: Any) -> bool:
    """Whether ``per_axis`` has nothing to do: tuples of integers, as modules keep them, ``count`` on average."""
    return {*map(type, values)} == _TUPLE and [*map(type, chain(*values))] == [int] * (
        count * len(values)
    )


def check_at_least(smallest: int, where: str, count: int, **named: Sizes) -> None:
    """Raise an ArgumentError unless each named value is a tuple of ``count`` integers >= ``smallest``."""
    for name, values in named.items():
        if not isinstance(values, tuple) or len(values) != count:
            raise ArgumentError(
                f"{where}: {name} is {values!r}; it must be a tuple of {count} integers"
            )
        if any(v < smallest for v in values):
            raise ArgumentError(
                f"{where}: {name} is {values}; each value must be at least {smallest}"
            )


def check_spatial(shape: Sizes, count: int, where: str) -> None:
    """Raise a ShapeError unless a value has batch, channels and ``count`` spatial axes."""
    if len(shape) != count + 2:
        raise ShapeError(
            f"{where}: inp has shape {shape}; it must have {count + 2} axes, {AXIS_LETTERS[count]}",
            hint="F.expand_dims(inp, 0) adds the batch axis" if len(shape) == count + 1 else None,
        )


def window_counts(
    size: Sizes,
    kernel: Sizes,
    stride: Sizes,
    before: Sizes,
    after: Sizes,
    dilation: Sizes,
    where: str,
) -> Sizes:
    """Return how many windows fit along each axis of a padded input.

    ``floor((size + before + after - dilation * (kernel - 1) - 1) / stride) + 1``

    Raises
    ------
    ShapeError
        A window is larger than the padded input.
    """
    span = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation))
    padded = tuple(s + b + a for s, b, a in zip(size, before, after))
    if any(w > p for w, p in zip(span, padded)):
        raise ShapeError(
            f"{where}: the input is {size}, with padding {padded}, and a window spans {span}; "
            "no axis of a window may be longer than the padded input",
            hint="a larger padding, a smaller kernel, or a larger image",
        )
    return tuple((p - w) // s + 1 for p, w, s in zip(padded, span, stride))


def windows(
    x: np.ndarray, kernel: Sizes, stride: Sizes, dilation: Sizes, count: Sizes
) -> np.ndarray:
    """Return a view of ``x`` (n, c, *padded) as (c, *kernel, n, *count): one entry for each tap and window."""
    n, c, *space = x.strides
    return as_strided(
        x,
        (x.shape[1], *kernel, x.shape[0], *count),
        (c, *(s * d for s, d in zip(space, dilation)), n, *(s * t for s, t in zip(space, stride))),
        writeable=False,
    )


def tap_slices(offset: Sizes, stride: Sizes, count: Sizes) -> tuple[slice, ...]:
    """Return the slices of a padded input that one tap, ``offset`` into its window, reads over all windows."""
    return tuple(slice(o, o + s * (n - 1) + 1, s) for o, s, n in zip(offset, stride, count))


def padded_with(x: np.ndarray, before: Sizes, after: Sizes, fill: Any, dtype: Any) -> np.ndarray:
    """Return ``x`` (n, c, *size) in ``dtype`` with ``fill`` around its spatial axes; itself where that is the same."""
    if not any(before) and not any(after):
        return x.astype(dtype, copy=False)
    size = x.shape[2:]
    made = np.full(
        (*x.shape[:2], *(s + b + a for s, b, a in zip(size, before, after))), fill, dtype
    )
    made[(slice(None), slice(None), *(slice(b, b + s) for b, s in zip(before, size)))] = x
    return made


def product(sizes: Sizes) -> int:
    """Return the product of sizes; 1 for none."""
    return math.prod(sizes)
