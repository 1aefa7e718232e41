"""Pooling in NumPy: maxima with their places, averages, and what each gives back.

In: arrays (n, c, *size). Out: arrays (n, c, *count), and back.
After ``windows``; before ``pool``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtype import as_dtype, wide_of
from .reduction import add_along
from .windows import Sizes, padded_with, product, tap_slices

FEW_TAPS = 64  # one pass over the result for each tap of a window; above it, places are computed one by one


def index_dtype(kernel: Sizes) -> str:
    """Return the name of the dtype that holds a position in a window."""
    return "uint8" if product(kernel) <= 256 else "int32"


def halves(padding: Sizes) -> tuple[Sizes, Sizes]:
    """Return the padding before each axis and after each axis."""
    count = len(padding) // 2
    return padding[:count], padding[count:]


def _is_whole(size: Sizes, kernel: Sizes, padding: Sizes) -> bool:
    """Whether one window is the whole image."""
    return tuple(size) == tuple(kernel) and not any(padding)


def _first_inside(kernel: Sizes, stride: Sizes, before: Sizes, count: Sizes) -> np.ndarray:
    """Return for each window the position of its first tap that lies in the image."""
    first = np.zeros(count, np.int64)
    for axis, (k, s, b, n) in enumerate(zip(kernel, stride, before, count)):
        line = np.maximum(0, b - s * np.arange(n))
        first = first * k + line.reshape([-1 if i == axis else 1 for i in range(len(count))])
    return first


def _lowest(dtype: np.dtype) -> Any:
    kind = as_dtype(dtype)
    return -np.inf if kind.is_float else np.iinfo(dtype).min


def largest(
    inp: np.ndarray, *, kernel: Sizes, stride: Sizes, padding: Sizes
) -> tuple[np.ndarray, np.ndarray]:
    """Return the maximum of each window and its position in the window."""
    before, after = halves(padding)
    size, dtype = inp.shape[2:], np.dtype(index_dtype(kernel))
    count = tuple(
        (n + b + a - k) // s + 1 for n, b, a, k, s in zip(size, before, after, kernel, stride)
    )
    if not inp.size:
        return np.empty((*inp.shape[:2], *count), inp.dtype), np.empty(
            (*inp.shape[:2], *count), dtype
        )
    if _is_whole(size, kernel, padding):
        rows = inp.reshape(-1, product(size))
        place = rows.argmax(axis=1)
        shape = (*inp.shape[:2], *count)
        return rows[np.arange(len(rows)), place].reshape(shape), place.astype(dtype).reshape(shape)
    padded = padded_with(inp, before, after, _lowest(inp.dtype), inp.dtype)
    y = np.empty((*inp.shape[:2], *count), inp.dtype)
    place = np.empty(y.shape, dtype)
    np.copyto(place, _first_inside(kernel, stride, before, count), casting="unsafe")
    value, larger, candidate = np.empty_like(y), np.empty(y.shape, bool), np.empty_like(place)
    for position, tap in enumerate(np.ndindex(*kernel)):
        view = padded[(slice(None), slice(None), *tap_slices(tap, stride, count))]
        if position == 0:
            np.copyto(y, view)
            continue
        np.copyto(value, view)
        np.greater(value, y, out=larger)
        np.maximum(y, value, out=y)
        np.multiply(larger.view(np.uint8), dtype.type(position), out=candidate)
        np.maximum(place, candidate, out=place)  # positions only grow
    if as_dtype(inp.dtype).is_float and (odd := np.isnan(y)).any():
        _place_nan(padded, odd, place, kernel, stride, count)
    return y, place


def _place_nan(
    padded: np.ndarray,
    odd: np.ndarray,
    place: np.ndarray,
    kernel: Sizes,
    stride: Sizes,
    count: Sizes,
) -> None:
    """Point the windows that hold a NaN to their first NaN."""
    waiting = odd.copy()
    for position, tap in enumerate(np.ndindex(*kernel)):
        found = waiting & np.isnan(
            padded[(slice(None), slice(None), *tap_slices(tap, stride, count))]
        )
        place[found] = position
        waiting &= ~found


def largest_backward(
    index: np.ndarray,
    dy: np.ndarray,
    *,
    input_shape: Sizes,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    out: np.ndarray,
) -> None:
    """Add each ``dy`` to the element that was its window's maximum."""
    before, after = halves(padding)
    size, count = input_shape[2:], dy.shape[2:]
    apart = all(s >= k for s, k in zip(stride, kernel))
    wide = dy.dtype if apart else wide_of(as_dtype(dy.dtype)).dtype
    shape = (*input_shape[:2], *(n + b + a for n, b, a in zip(size, before, after)))
    direct = wide == out.dtype and not any(padding)
    sums = out if direct else np.empty(shape, wide)
    sums.fill(0)
    if dy.size and product(kernel) > FEW_TAPS:
        _scatter(index, dy, sums, kernel, stride)
    elif dy.size:
        # An integer of all ones or all zeros keeps or drops the bits of dy, infinities and NaN too.
        bits = np.dtype(f"i{wide.itemsize}")
        given = np.ascontiguousarray(dy.astype(wide, copy=False)).view(bits)
        same, mask = np.empty(dy.shape, bool), np.empty(dy.shape, bits)
        for position, tap in enumerate(np.ndindex(*kernel)):
            view = sums[(slice(None), slice(None), *tap_slices(tap, stride, count))]
            np.equal(index, index.dtype.type(position), out=same)
            np.negative(same.view(np.int8), out=mask, dtype=bits, casting="unsafe")
            part = np.bitwise_and(given, mask, out=mask).view(wide)
            if apart:
                np.copyto(view, part)
            else:
                np.add(view, part, out=view)
    if not direct:
        inside = (slice(b, b + n) for b, n in zip(before, size))
        np.copyto(out, sums[(slice(None), slice(None), *inside)], casting="same_kind")


def _scatter(
    index: np.ndarray, dy: np.ndarray, sums: np.ndarray, kernel: Sizes, stride: Sizes
) -> None:
    """Add each ``dy`` at its place, for windows of many taps."""
    rest: Any = index.astype(np.int64)
    place: Any = 0
    step = 1
    for axis in range(len(kernel) - 1, -1, -1):
        rest, tap = np.divmod(rest, kernel[axis])
        line = stride[axis] * np.arange(index.shape[2 + axis])
        place = place + step * (
            tap + line.reshape([-1 if i == axis else 1 for i in range(len(kernel))])
        )
        step *= sums.shape[2 + axis]
    place = place + step * np.arange(index.shape[0] * index.shape[1]).reshape(
        *index.shape[:2], *(1,) * len(kernel)
    )
    known = (index >= 0) & (index < product(kernel))
    np.add.at(sums.reshape(-1), place[known], dy[known].astype(sums.dtype, copy=False))


def _divisor(
    size: Sizes,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    count: Sizes,
    count_padding: bool,
    wide: np.dtype,
) -> np.ndarray:
    """Return how many elements each window averages, as an array that broadcasts to (n, c, *count)."""
    if count_padding or not any(padding):
        return np.array(product(kernel), wide)
    result = np.ones((1,) * len(size), np.int64)
    for axis, (n, k, s, b, c) in enumerate(zip(size, kernel, stride, padding, count)):
        start = s * np.arange(c) - b
        line = np.minimum(start + k, n) - np.maximum(start, 0)
        result = result * line.reshape([-1 if i == axis else 1 for i in range(len(size))])
    return result.astype(wide)


def average(
    inp: np.ndarray,
    *,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    count_padding: bool,
    out: np.ndarray,
) -> None:
    """Write the mean of each window to ``out``; the sums run over one axis after the other."""
    wide = wide_of(as_dtype(inp.dtype)).dtype
    before, after = halves(padding)
    size, count = inp.shape[2:], out.shape[2:]
    divisor = _divisor(size, kernel, stride, padding, count, count_padding, wide)
    if _is_whole(size, kernel, padding):
        sums = np.empty(out.shape, wide)
        add_along(inp, tuple(range(2, inp.ndim)), sums)
    else:
        sums = padded_with(inp, before, after, 0, wide)
        for axis in range(inp.ndim - 1, 1, -1):
            k, s, c = kernel[axis - 2], stride[axis - 2], count[axis - 2]
            sums = _window_sums(sums, axis, k, s, c)
    np.divide(sums, divisor, out=out, casting="same_kind")


def _along(axis: int, cut: slice) -> tuple[slice, ...]:
    return (slice(None),) * axis + (cut,)


def _window_sums(x: np.ndarray, axis: int, kernel: int, stride: int, count: int) -> np.ndarray:
    """Return the sums of windows along one axis."""
    if kernel == 1 and stride == 1:
        return x
    sums = x[_along(axis, slice(0, stride * (count - 1) + 1, stride))]
    for tap in range(1, kernel):
        part = x[_along(axis, slice(tap, tap + stride * (count - 1) + 1, stride))]
        sums = np.add(sums, part, out=None if tap == 1 else sums)
    return sums


def average_backward(
    dy: np.ndarray,
    *,
    input_shape: Sizes,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    count_padding: bool,
    out: np.ndarray,
) -> None:
    """Give each element its share of the means that it was part of."""
    wide = wide_of(as_dtype(dy.dtype)).dtype
    before, after = halves(padding)
    size, count = input_shape[2:], dy.shape[2:]
    shares = np.divide(
        dy, _divisor(size, kernel, stride, padding, count, count_padding, wide), dtype=wide
    )
    if _is_whole(size, kernel, padding):
        np.copyto(out, np.broadcast_to(shares, out.shape), casting="same_kind")
        return
    for axis in range(2, dy.ndim):
        k, s, c = kernel[axis - 2], stride[axis - 2], count[axis - 2]
        shape = list(shares.shape)
        shape[axis] = size[axis - 2] + before[axis - 2] + after[axis - 2]
        sums = np.zeros(shape, wide)
        for tap in range(k):
            view = sums[_along(axis, slice(tap, tap + s * (c - 1) + 1, s))]
            np.add(view, shares, out=view)
        shares = sums
    inside = (slice(b, b + n) for b, n in zip(before, size))
    np.copyto(out, shares[(slice(None), slice(None), *inside)], casting="same_kind")
