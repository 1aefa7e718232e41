"""Scans: results that accumulate along an axis.

In: a tensor and an axis. Out: the ops ``cumsum`` and ``cumprod``.
After ``op``; before ``tensor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..dtype import sum_of, wide_of
from ..op import op
from ..types import abstract, normal_axis
from .reduction import converted, is_half

if TYPE_CHECKING:
    from ..tensor import Tensor


@op(base=True, autocast="high")
def cumsum(inp: Tensor, *, axis: int, reverse: bool = False) -> Tensor:
    """Add up the elements along an axis, keeping each partial sum.

    ``y[..., i, ...] = sum_{j <= i} inp[..., j, ...]``

    Parameters
    ----------
    inp : (any shape) any dtype
    axis : int
        At least one axis is needed.
    reverse : bool, default False
        Start at the end: sum over ``j >= i``.

    Returns
    -------
    (inp's shape) dtype of ``inp``; bool and integers under 32 bits give int32 or uint32

    Raises
    ------
    ShapeError
        ``axis`` is no axis of ``inp``.

    Notes
    -----
    float16 and bfloat16 are accumulated in float32. NaN stays from its position on. Integers wrap.

    Examples
    --------
    >>> cumsum(tensor([1.0, 2.0, 3.0]), axis=0)
    Tensor([1., 3., 6.], dtype=float32, device=ref:0)
    """
    normal_axis(axis, inp.ndim, "cumsum")
    return abstract(inp.shape, sum_of(inp.dtype))


cumsum.inplace = (0,)


@cumsum.reference
def _(inp, *, axis, reverse, out):
    _scan(np.add, inp, axis, reverse, out)


def _scan(ufunc: np.ufunc, inp: np.ndarray, axis: int, reverse: bool, out: np.ndarray) -> None:
    if reverse:
        inp, out = np.flip(inp, axis), np.flip(out, axis)
    with np.errstate(all="ignore"):
        if is_half(inp):
            out[...] = ufunc.accumulate(inp.astype(np.float32), axis=axis)
        else:
            ufunc.accumulate(inp, axis=axis, dtype=out.dtype, out=out)


@cumsum.gradient
def _(dy, y, inp, *, axis, reverse):
    return (cumsum(dy, axis=axis, reverse=not reverse),)


@cumsum.samples
def _(rng):
    yield (rng.normal(size=(4,)),), {"axis": 0}
    yield (rng.normal(size=(2, 3, 4)),), {"axis": 1}
    yield (rng.normal(size=(3, 4)),), {"axis": -1, "reverse": True}
    yield (rng.normal(size=(3, 0)),), {"axis": 1}


@op(autocast="high")
def cumprod(inp: Tensor, *, axis: int) -> Tensor:
    """Multiply the elements along an axis, keeping each partial product.

    ``y[..., i, ...] = prod_{j <= i} inp[..., j, ...]``

    Parameters
    ----------
    inp : (any shape) any dtype
    axis : int
        At least one axis is needed.

    Returns
    -------
    (inp's shape) dtype of ``inp``; bool and integers under 32 bits give int32 or uint32

    Raises
    ------
    ShapeError
        ``axis`` is no axis of ``inp``.

    Notes
    -----
    float16 and bfloat16 are accumulated in float32. The gradient never divides, so it is right where elements
    are 0; it costs ``2 log2(n)`` products of the whole tensor for an axis of size ``n``.

    Sources
    -------
    Hillis and Steele, Data parallel algorithms, Communications of the ACM 29 (12), 1986: the doubling scan.

    Examples
    --------
    >>> cumprod(tensor([1.0, 2.0, 3.0]), axis=0)
    Tensor([1., 2., 6.], dtype=float32, device=ref:0)
    """
    normal_axis(axis, inp.ndim, "cumprod")
    return abstract(inp.shape, sum_of(inp.dtype))


cumprod.inplace = (0,)


@cumprod.reference
def _(inp, *, axis, out):
    _scan(np.multiply, inp, axis, False, out)


@cumprod.lowering
def _(inp, *, axis):
    from .join import concat
    from .slicing import slice_along

    axis = normal_axis(axis, inp.ndim, "cumprod")
    y, n, step = converted(inp, sum_of(wide_of(inp.dtype))), inp.shape[axis], 1
    while step < n:
        first = slice_along(y, axis, 0, step)
        y = concat(
            [first, slice_along(y, axis, step, n) * slice_along(y, axis, 0, n - step)], axis=axis
        )
        step *= 2
    return converted(y, sum_of(inp.dtype))


@cumprod.samples
def _(rng):
    yield (rng.normal(size=(5,)),), {"axis": 0}
    yield (rng.normal(size=(2, 3, 4)),), {"axis": 1}
    yield (np.array([[2.0, 0.0, 3.0, 0.0]]),), {"axis": -1}
    yield (rng.normal(size=(0, 3)),), {"axis": 0}
