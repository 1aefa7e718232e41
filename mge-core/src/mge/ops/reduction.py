"""Reductions: many elements to one, along axes.

In: a tensor and axes. Out: the ops ``sum``, ``prod``, ``max``, ``min``, ``mean``.
After ``op``; before ``statistics`` and ``discrete_reduction``, which build on these.
"""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dtype import DType, sum_of, wide_of
from ..errors import ShapeError
from ..op import OPS, op
from ..types import Shape, abstract, normal_axes

if TYPE_CHECKING:
    from ..tensor import Tensor

Axis = int | tuple[int, ...] | None


def reduced_shape(shape: Shape, axis: Axis, keepdims: bool, where: str) -> Shape:
    """Return the shape that is left when ``axis`` is reduced."""
    axes = normal_axes(axis, len(shape), where)
    if keepdims:
        return tuple(1 if i in axes else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in axes)


def reduced_count(shape: Shape, axis: Axis) -> int:
    """Return how many elements make one element of the result."""
    return math.prod(shape[a] for a in normal_axes(axis, len(shape), "axis"))


def kept(reduced: Tensor, like: Tensor, axis: Axis) -> Tensor:
    """Return a reduction's result with its reduced axes put back, each of size 1."""
    from .shape import reshape

    shape = reduced_shape(like.shape, axis, True, "axis")
    return reduced if reduced.shape == shape else reshape(reduced, shape=shape)


def spread(reduced: Tensor, like: Tensor, axis: Axis) -> Tensor:
    """Return a reduction's result repeated over the axes that it reduced."""
    from .shape import broadcast_to

    return broadcast_to(kept(reduced, like, axis), shape=like.shape)


def converted(x: Tensor, dtype: DType) -> Tensor:
    """Return ``x`` in another dtype; ``x`` itself where it has that dtype."""
    return x if x.dtype is dtype else OPS["cast"](x, dtype=dtype)


def refuse_empty(inp: Tensor, axis: Axis, keepdims: bool, where: str) -> Shape:
    """Return the reduced shape; a ShapeError where a result would have no element to come from."""
    shape = reduced_shape(inp.shape, axis, keepdims, where)
    if math.prod(shape) and not inp.size:
        raise ShapeError(
            f"{where}: inp has shape {inp.shape} and axis is {axis}; each result needs at least 1 element"
        )
    return shape


def is_half(array: np.ndarray) -> bool:
    """Whether an array is float16 or bfloat16, which are accumulated in float32."""
    return array.dtype.itemsize == 2 and array.dtype.kind not in "iu"


_DIRECT = 4096  # elements up to which one call of NumPy is faster than finding BLAS calls
_BLOCK = 4096  # elements that BLAS adds one after the other: more would lose digits that pairwise sums keep


@functools.lru_cache(4096)
def _stages(shape: Shape, axes: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
    """Return the sums over the middle of (k, n, c) that make one over ``axes``, the innermost first."""
    groups: list[list] = []  # [is reduced, size], neighbours joined
    for i, n in enumerate(shape):
        if n == 1:
            continue
        if groups and groups[-1][0] == (i in axes):
            groups[-1][1] *= n
        else:
            groups.append([i in axes, n])
    stages, c = [], 1
    while groups:
        reduced, n = groups.pop()
        if not reduced:
            c *= n
            continue
        k = math.prod(g[1] for g in groups)
        block = math.gcd(n, _BLOCK) if n > _BLOCK and c == 1 else n
        if 64 <= block < n:
            stages.append((k * (n // block), block, 1))
            n //= block
        stages.append((k, n, c))
    return tuple(stages)


_ONES: dict[np.dtype, np.ndarray] = {}


def _ones(n: int, dtype: np.dtype) -> np.ndarray:
    """Return ones to multiply with, from one buffer that grows up to a million elements."""
    if n > 1 << 20:
        return np.ones(n, dtype)
    found = _ONES.get(dtype)
    if found is None or found.size < n:
        found = _ONES[dtype] = np.ones(builtins.max(n, 4096), dtype)
    return found[:n]


def add_along(x: np.ndarray, axis: Axis, out: Any = None, keepdims: bool = False) -> np.ndarray:
    """Return the sum of floats over ``axis``: float32, or float64 for float64.

    It is written to ``out`` where that is given; ``out`` may keep the reduced axes or lack them.
    NumPy's own reduction runs at a fifth of the speed of BLAS, for which a sum is a product with ones.
    """
    if is_half(x):
        x = x.astype(np.float32)
    keepdims = keepdims if out is None else out.ndim == x.ndim
    if x.size <= _DIRECT:
        return np.asarray(np.add.reduce(x, axis=axis, keepdims=keepdims, out=out))
    axes = normal_axes(axis, x.ndim, "sum")
    if out is None:
        out = np.empty(reduced_shape(x.shape, axes, keepdims, "sum"), x.dtype)
    stages = _stages(x.shape, axes)
    if not stages:
        out[...] = x.reshape(out.shape)
    for step, (k, n, c) in enumerate(stages, 1):
        target = out.reshape(k, c) if step == len(stages) else np.empty((k, c), x.dtype)
        x = x.reshape(k, n, c)
        if c == 1 and n <= _BLOCK:
            np.dot(x.reshape(k, n), _ones(n, x.dtype), out=target.reshape(k))
        elif c == 1 or n * c < 256 < k:
            np.add.reduce(x, axis=1, out=target)
        else:
            np.matmul(_ones(n, x.dtype), x, out=target)
        x = target
    return out


@op(base=True, autocast="high")
def sum(
    inp: Tensor, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False
) -> Tensor:
    """Add up the elements along axes.

    ``y = sum_i inp[..., i, ...]``

    Parameters
    ----------
    inp : (any shape) any dtype
    axis : int, tuple of int or None, default None
        The axes to reduce; None means all.
    keepdims : bool, default False
        Keep each reduced axis with size 1.

    Returns
    -------
    (inp's shape without the reduced axes) dtype of ``inp``; bool and integers under 32 bits give int32 or uint32

    Raises
    ------
    ShapeError
        ``axis`` names an axis that ``inp`` lacks, or one twice.

    Notes
    -----
    float16 and bfloat16 are accumulated in float32. Without elements the sum is 0. NaN gives NaN. Integers wrap.

    Examples
    --------
    >>> sum(tensor([[1.0, 2.0], [3.0, 4.0]]), axis=0)
    Tensor([4., 6.], dtype=float32, device=ref:0)
    """
    return abstract(reduced_shape(inp.shape, axis, keepdims, "sum"), sum_of(inp.dtype))


@sum.reference
def _(inp, *, axis, keepdims, out):
    if out.dtype.kind in "iu":
        np.add.reduce(inp, axis=axis, keepdims=keepdims, dtype=out.dtype, out=out)
        return
    with np.errstate(all="ignore"):
        if is_half(inp):
            out[...] = add_along(inp, axis, None, keepdims)
        else:
            add_along(inp, axis, out, keepdims)


@sum.gradient
def _(dy, y, inp, *, axis, keepdims):
    return (spread(dy, inp, axis),)


@sum.samples
def _(rng):
    yield (rng.normal(size=(3, 4)),), {}
    yield (rng.normal(size=(3, 4)),), {"axis": 0}
    yield (rng.normal(size=(2, 3, 4)),), {"axis": (0, -1), "keepdims": True}
    yield (rng.normal(size=(2, 3, 4)),), {"axis": 1}
    yield (rng.normal(size=()),), {}
    yield (rng.normal(size=(0, 3)),), {"axis": 0}


@op(base=True, autocast="high")
def prod(
    inp: Tensor, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False
) -> Tensor:
    """Multiply the elements along axes.

    ``y = prod_i inp[..., i, ...]``

    Parameters
    ----------
    inp : (any shape) any dtype
    axis : int, tuple of int or None, default None
        The axes to reduce; None means all.
    keepdims : bool, default False
        Keep each reduced axis with size 1.

    Returns
    -------
    (inp's shape without the reduced axes) dtype of ``inp``; bool and integers under 32 bits give int32 or uint32

    Raises
    ------
    ShapeError
        ``axis`` names an axis that ``inp`` lacks, or one twice.

    Notes
    -----
    float16 and bfloat16 are accumulated in float32. Without elements the product is 1. NaN gives NaN. Integers
    wrap. The gradient multiplies the other elements and never divides, so it is right where elements are 0.

    Examples
    --------
    >>> prod(tensor([[1.0, 2.0], [3.0, 4.0]]), axis=0)
    Tensor([3., 8.], dtype=float32, device=ref:0)
    """
    return abstract(reduced_shape(inp.shape, axis, keepdims, "prod"), sum_of(inp.dtype))


@prod.reference
def _(inp, *, axis, keepdims, out):
    with np.errstate(all="ignore"):
        if is_half(inp):
            out[...] = np.multiply.reduce(inp.astype(np.float32), axis=axis, keepdims=keepdims)
        else:
            np.multiply.reduce(inp, axis=axis, keepdims=keepdims, dtype=out.dtype, out=out)


@prod.gradient
def _(dy, y, inp, *, axis, keepdims):
    # A tree of pairwise products, up and down again: at each node, what lies outside of its subtree.
    from .create import ones
    from .join import concat
    from .shape import reshape, transpose
    from .slicing import slice_along

    if not inp.size:
        return (spread(dy, inp, axis),)
    axes = normal_axes(axis, inp.ndim, "prod")
    others = tuple(i for i in range(inp.ndim) if i not in axes)
    n = reduced_count(inp.shape, axes)
    rows = inp.size // n
    level = reshape(transpose(converted(inp, wide_of(inp.dtype)), others + axes), (rows, n))
    halves = []
    while (n := level.shape[1]) > 1:
        middle = (n + 1) // 2
        left, right = slice_along(level, 1, 0, middle), slice_along(level, 1, middle, n)
        if n % 2:
            right = concat([right, ones((rows, 1), dtype=level.dtype)], axis=1)
        halves.append((left, right, n))
        level = left * right
    outside = reshape(converted(dy, level.dtype), (rows, 1))
    for left, right, n in reversed(halves):
        outside = slice_along(concat([outside * right, outside * left], axis=1), 1, 0, n)
    shape = tuple(inp.shape[i] for i in others + axes)
    back = tuple(int(i) for i in np.argsort(others + axes))
    return (converted(transpose(reshape(outside, shape), back), inp.dtype),)


@prod.samples
def _(rng):
    yield (rng.normal(size=(3, 4)),), {}
    yield (rng.normal(size=(3, 5)),), {"axis": 1}
    yield (rng.normal(size=(2, 3, 4)),), {"axis": (0, -1), "keepdims": True}
    yield (np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 1.5]]),), {"axis": 1}
    yield (rng.normal(size=()),), {}
    yield (rng.normal(size=(0, 3)),), {"axis": 0}


@op(base=True)
def max(
    inp: Tensor, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False
) -> Tensor:
    """Return the largest element along axes.

    ``y = max_i inp[..., i, ...]``

    Parameters
    ----------
    inp : (any shape) any dtype
    axis : int, tuple of int or None, default None
        The axes to reduce; None means all.
    keepdims : bool, default False
        Keep each reduced axis with size 1.

    Returns
    -------
    (inp's shape without the reduced axes) dtype of ``inp``

    Raises
    ------
    ShapeError
        ``axis`` names an axis that ``inp`` lacks, or one twice; or a result would have no element to come from.

    Notes
    -----
    NaN gives NaN. The gradient is shared evenly among equal largest elements.

    Examples
    --------
    >>> max(tensor([[1.0, 5.0], [3.0, 4.0]]), axis=1)
    Tensor([5., 4.], dtype=float32, device=ref:0)
    """
    return abstract(refuse_empty(inp, axis, keepdims, "max"), inp.dtype)


def _reduced_by(choose: np.ufunc) -> Callable[..., None]:
    """Return the reference of ``max`` or ``min``."""

    def reference(inp, *, axis, keepdims, out):
        with np.errstate(invalid="ignore"):
            if is_half(inp):  # NumPy's loops for halves are slower than the casts
                out[...] = choose.reduce(inp.astype(np.float32), axis=axis, keepdims=keepdims)
            else:
                choose.reduce(inp, axis=axis, keepdims=keepdims, out=out)

    return reference


max.reference(_reduced_by(np.maximum))


def _share_among_equals(dy: Tensor, y: Tensor, inp: Tensor, axis: Axis) -> Tensor:
    """Return the gradient of ``max`` and ``min``: ``dy`` divided among the elements that equal ``y``."""
    from .comparison import equal

    hit = converted(equal(inp, kept(y, inp, axis)), inp.dtype)
    return hit * (kept(dy, inp, axis) / sum(hit, axis=axis, keepdims=True))


@max.gradient
def _(dy, y, inp, *, axis, keepdims):
    return (_share_among_equals(dy, y, inp, axis),)


def distinct(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Return shuffled values that no small step can make equal."""
    return rng.permutation(np.linspace(-2.0, 2.0, math.prod(shape))).reshape(shape)


@max.samples
def _(rng):
    yield (distinct(rng, (3, 4)),), {}
    yield (distinct(rng, (3, 4)),), {"axis": 0}
    yield (distinct(rng, (2, 3, 4)),), {"axis": (0, -1), "keepdims": True}
    yield (distinct(rng, (2, 3, 4)),), {"axis": 1}
    yield (rng.normal(size=()),), {}
    yield (rng.normal(size=(0, 3)),), {"axis": 1}


@op(base=True)
def min(
    inp: Tensor, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False
) -> Tensor:
    """Return the smallest element along axes.

    ``y = min_i inp[..., i, ...]``

    Parameters
    ----------
    inp : (any shape) any dtype
    axis : int, tuple of int or None, default None
        The axes to reduce; None means all.
    keepdims : bool, default False
        Keep each reduced axis with size 1.

    Returns
    -------
    (inp's shape without the reduced axes) dtype of ``inp``

    Raises
    ------
    ShapeError
        ``axis`` names an axis that ``inp`` lacks, or one twice; or a result would have no element to come from.

    Notes
    -----
    NaN gives NaN. The gradient is shared evenly among equal smallest elements.

    Examples
    --------
    >>> min(tensor([[1.0, 5.0], [3.0, 4.0]]), axis=1)
    Tensor([1., 3.], dtype=float32, device=ref:0)
    """
    return abstract(refuse_empty(inp, axis, keepdims, "min"), inp.dtype)


min.reference(_reduced_by(np.minimum))


@min.gradient
def _(dy, y, inp, *, axis, keepdims):
    return (_share_among_equals(dy, y, inp, axis),)


min.samples(max._samples)


@op(promotes="float", autocast="high")
def mean(
    inp: Tensor, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False
) -> Tensor:
    """Return the arithmetic mean along axes.

    ``y = sum_i inp[..., i, ...] / n``, where ``n`` elements make one result

    Parameters
    ----------
    inp : (any shape) any dtype
    axis : int, tuple of int or None, default None
        The axes to reduce; None means all.
    keepdims : bool, default False
        Keep each reduced axis with size 1.

    Returns
    -------
    (inp's shape without the reduced axes) dtype of ``inp``; float32 for bool and integers

    Raises
    ------
    ShapeError
        ``axis`` names an axis that ``inp`` lacks, or one twice.

    Notes
    -----
    float16 and bfloat16 are accumulated in float32. Without elements the mean is NaN. NaN gives NaN.

    Examples
    --------
    >>> mean(tensor([[1.0, 2.0], [3.0, 4.0]]), axis=1)
    Tensor([1.5, 3.5], dtype=float32, device=ref:0)
    """
    return abstract(reduced_shape(inp.shape, axis, keepdims, "mean"), inp.dtype)


@mean.reference
def _(inp, *, axis, keepdims, out):
    n = reduced_count(inp.shape, axis)
    with np.errstate(all="ignore"):
        if is_half(inp):
            out[...] = add_along(inp, axis, None, keepdims) / np.float32(n)
        else:
            np.true_divide(add_along(inp, axis, out, keepdims), n, out=out)


@mean.gradient
def _(dy, y, inp, *, axis, keepdims):
    n = float(builtins.max(reduced_count(inp.shape, axis), 1))
    share = converted(dy, wide_of(dy.dtype)) / n  # n may not fit float16
    return (spread(converted(share, dy.dtype), inp, axis),)


@mean.lowering
def _(inp, *, axis, keepdims):
    wide = sum(converted(inp, wide_of(inp.dtype)), axis=axis, keepdims=keepdims)
    return converted(wide / float(reduced_count(inp.shape, axis)), inp.dtype)


@mean.samples
def _(rng):
    yield (rng.normal(size=(3, 4)),), {}
    yield (rng.normal(size=(3, 4)),), {"axis": 0}
    yield (rng.normal(size=(2, 3, 4)),), {"axis": (0, -1), "keepdims": True}
    yield (rng.normal(size=(2, 3, 4)),), {"axis": 1}
    yield (rng.normal(size=()),), {}
    yield (rng.normal(size=(0, 3)),), {"axis": 1}
