"""Reductions whose result is a position, a truth value or a count.

In: a tensor and axes. Out: the ops ``argmax``, ``argmin``, ``all``, ``any``, ``count_nonzero``; none has a gradient.
After ``reduction``; before ``tensor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..dtype import bool_, int32
from ..op import op
from ..types import abstract
from .broadcasting import no_gradient
from .comparison import equal, greater, not_equal
from .reduction import is_half, reduced_shape, refuse_empty, sum

if TYPE_CHECKING:
    from ..tensor import Tensor


def _position(find, inp, axis, keepdims):
    shape = reduced_shape(inp.shape, axis, keepdims, "position")
    if not inp.size:
        return np.zeros(shape, np.int32)
    wide = inp.astype(np.float32) if is_half(inp) else inp
    return find(wide, axis=axis).reshape(shape).astype(np.int32)


@op(base=True)
def argmax(inp: Tensor, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Return the position of the largest element along an axis.

    ``y = the smallest i with inp[..., i, ...] = max(inp)``

    Parameters
    ----------
    inp : (any shape) any dtype
    axis : int or None, default None
        The axis to reduce; None means position in the flattened tensor.
    keepdims : bool, default False
        Keep the reduced axis (with None: each axis) with size 1.

    Returns
    -------
    (inp's shape without the reduced axis) int32

    Raises
    ------
    ShapeError
        ``axis`` is no axis of ``inp``, or a result would have no element to come from.

    Notes
    -----
    Among equal elements the first counts, and NaN counts as the largest. No gradient.

    Examples
    --------
    >>> argmax(tensor([[1.0, 5.0], [3.0, 2.0]]), axis=1)
    Tensor([1, 0], dtype=int32, device=ref:0)
    """
    return abstract(refuse_empty(inp, axis, keepdims, "argmax"), int32)


@argmax.reference
def _(inp, *, axis, keepdims):
    return _position(np.argmax, inp, axis, keepdims)


argmax.gradient(no_gradient)


@argmax.samples
def _(rng):
    yield (rng.normal(size=(3, 4)),), {}
    yield (rng.normal(size=(3, 4)),), {"axis": 0}
    yield (rng.normal(size=(2, 3, 4)),), {"axis": -1, "keepdims": True}
    yield (rng.normal(size=(2, 3)),), {"keepdims": True}
    yield (np.array([[1.0, 2.0, 2.0], [0.0, -1.0, -1.0]]),), {"axis": 1}
    yield (rng.normal(size=()),), {}
    yield (np.zeros((0, 3)),), {"axis": 1}


@op(base=True)
def argmin(inp: Tensor, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Return the position of the smallest element along an axis.

    ``y = the smallest i with inp[..., i, ...] = min(inp)``

    Parameters
    ----------
    inp : (any shape) any dtype
    axis : int or None, default None
        The axis to reduce; None means position in the flattened tensor.
    keepdims : bool, default False
        Keep the reduced axis (with None: each axis) with size 1.

    Returns
    -------
    (inp's shape without the reduced axis) int32

    Raises
    ------
    ShapeError
        ``axis`` is no axis of ``inp``, or a result would have no element to come from.

    Notes
    -----
    Among equal elements the first counts, and NaN counts as the smallest. No gradient.

    Examples
    --------
    >>> argmin(tensor([[1.0, 5.0], [3.0, 2.0]]), axis=1)
    Tensor([0, 1], dtype=int32, device=ref:0)
    """
    return abstract(refuse_empty(inp, axis, keepdims, "argmin"), int32)


@argmin.reference
def _(inp, *, axis, keepdims):
    return _position(np.argmin, inp, axis, keepdims)


argmin.gradient(no_gradient)
argmin.samples(argmax._samples)


@op
def all(
    inp: Tensor, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False
) -> Tensor:
    """Say whether all elements along axes are true, that is, not 0.

    ``y = inp[..., 0, ...] != 0 and inp[..., 1, ...] != 0 and ...``

    Parameters
    ----------
    inp : (any shape) any dtype
    axis : int, tuple of int or None, default None
        The axes to reduce; None means all.
    keepdims : bool, default False
        Keep each reduced axis with size 1.

    Returns
    -------
    (inp's shape without the reduced axes) bool

    Raises
    ------
    ShapeError
        ``axis`` names an axis that ``inp`` lacks, or one twice.

    Notes
    -----
    Without elements the result is True. NaN counts as true. No gradient.

    Examples
    --------
    >>> all(tensor([[True, True], [False, True]]), axis=1)
    Tensor([ True, False], dtype=bool, device=ref:0)
    """
    return abstract(reduced_shape(inp.shape, axis, keepdims, "all"), bool_)


@all.reference
def _(inp, *, axis, keepdims):
    return np.logical_and.reduce(inp != 0, axis=axis, keepdims=keepdims)


all.gradient(no_gradient)


@all.lowering
def _(inp, *, axis, keepdims):
    return equal(sum(equal(inp, 0), axis=axis, keepdims=keepdims), 0)


@all.samples
def _(rng):
    yield (rng.integers(0, 2, (3, 4)),), {}
    yield (rng.integers(0, 2, (3, 4)),), {"axis": 0}
    yield (rng.integers(0, 2, (2, 3, 4)) * 1.0,), {"axis": (0, -1), "keepdims": True}
    yield (rng.integers(0, 2, ()),), {}
    yield (np.zeros((0, 3)),), {"axis": 0}


@op
def any(
    inp: Tensor, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False
) -> Tensor:
    """Say whether an element along axes is true, that is, not 0.

    ``y = inp[..., 0, ...] != 0 or inp[..., 1, ...] != 0 or ...``

    Parameters
    ----------
    inp : (any shape) any dtype
    axis : int, tuple of int or None, default None
        The axes to reduce; None means all.
    keepdims : bool, default False
        Keep each reduced axis with size 1.

    Returns
    -------
    (inp's shape without the reduced axes) bool

    Raises
    ------
    ShapeError
        ``axis`` names an axis that ``inp`` lacks, or one twice.

    Notes
    -----
    Without elements the result is False. NaN counts as true. No gradient.

    Examples
    --------
    >>> any(tensor([[True, True], [False, False]]), axis=1)
    Tensor([ True, False], dtype=bool, device=ref:0)
    """
    return abstract(reduced_shape(inp.shape, axis, keepdims, "any"), bool_)


@any.reference
def _(inp, *, axis, keepdims):
    return np.logical_or.reduce(inp != 0, axis=axis, keepdims=keepdims)


any.gradient(no_gradient)


@any.lowering
def _(inp, *, axis, keepdims):
    return greater(sum(not_equal(inp, 0), axis=axis, keepdims=keepdims), 0)


any.samples(all._samples)


@op
def count_nonzero(
    inp: Tensor, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False
) -> Tensor:
    """Count the elements along axes that are not 0.

    ``y = sum_i (inp[..., i, ...] != 0)``

    Parameters
    ----------
    inp : (any shape) any dtype
    axis : int, tuple of int or None, default None
        The axes to reduce; None means all.
    keepdims : bool, default False
        Keep each reduced axis with size 1.

    Returns
    -------
    (inp's shape without the reduced axes) int32

    Raises
    ------
    ShapeError
        ``axis`` names an axis that ``inp`` lacks, or one twice.

    Notes
    -----
    NaN counts. No gradient.

    Examples
    --------
    >>> count_nonzero(tensor([[1.0, 0.0], [3.0, 2.0]]), axis=1)
    Tensor([1, 2], dtype=int32, device=ref:0)
    """
    return abstract(reduced_shape(inp.shape, axis, keepdims, "count_nonzero"), int32)


@count_nonzero.reference
def _(inp, *, axis, keepdims):
    return np.add.reduce(inp != 0, axis=axis, keepdims=keepdims, dtype=np.int32)


count_nonzero.gradient(no_gradient)


@count_nonzero.lowering
def _(inp, *, axis, keepdims):
    return sum(not_equal(inp, 0), axis=axis, keepdims=keepdims)


count_nonzero.samples(all._samples)
