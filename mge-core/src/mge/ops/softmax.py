"""Softmax and its logarithm.

In: scores. Out: the ops ``softmax`` and ``logsoftmax``.
After ``reduction``; before ``tensor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..dtype import wide_of
from ..op import op
from ..types import abstract, normal_axes
from .exponential import exp, log
from .reduction import add_along, converted, is_half, max, sum

if TYPE_CHECKING:
    from ..tensor import Tensor


def default_axis(ndim: int) -> int:
    """Return the axis of classes that ``axis=None`` means: 0 for 0, 1 and 3 axes, else 1."""
    return 0 if ndim in (0, 1, 3) else 1


def _axes(axis: int | tuple[int, ...] | None, ndim: int, where: str) -> tuple[int, ...]:
    return normal_axes(default_axis(ndim) if axis is None else axis, ndim, where)


def _shifted(inp: np.ndarray, axes: tuple[int, ...], out: np.ndarray) -> np.ndarray:
    """Return ``inp`` less its largest element along ``axes``, in the dtype of accumulation; in ``out`` if that fits."""
    wide = inp.astype(np.float32) if is_half(inp) else inp
    return np.subtract(
        wide, np.maximum.reduce(wide, axis=axes, keepdims=True), out=out if wide is inp else None
    )


@op(promotes="float", autocast="high")
def softmax(inp: Tensor, *, axis: int | tuple[int, ...] | None = None) -> Tensor:
    """Turn scores into probabilities: exponentials that add up to 1 along an axis.

    ``y[..., i, ...] = exp(inp[..., i, ...]) / sum_j exp(inp[..., j, ...])``

    Parameters
    ----------
    inp : (any shape) any dtype
    axis : int, tuple of int or None, default None
        The axes along which the result adds up to 1. None means MegEngine's default: axis 0 for tensors with 1 or
        3 axes, axis 1 for all others. Name the axis where it matters.

    Returns
    -------
    (inp's shape) dtype of ``inp``; float32 for bool and integers

    Raises
    ------
    ShapeError
        ``axis`` names an axis that ``inp`` lacks, or one twice; or ``inp`` is a scalar.

    Notes
    -----
    The largest score is subtracted first, so nothing overflows. Where all scores are -inf, or one is inf or NaN,
    the results are NaN. float16 and bfloat16 are computed in float32.

    Examples
    --------
    >>> softmax(tensor([0.0, 0.0, 1000.0]))
    Tensor([0., 0., 1.], dtype=float32, device=ref:0)
    """
    _axes(axis, inp.ndim, "softmax")
    return abstract(inp.shape, inp.dtype)


softmax.inplace = (0,)


@softmax.reference
def _(inp, *, axis, out):
    if not inp.size:
        return
    axes = _axes(axis, inp.ndim, "softmax")
    with np.errstate(all="ignore"):
        y = _shifted(inp, axes, out)
        np.exp(y, out=y)
        np.divide(y, add_along(y, axes, keepdims=True), out=y)
        if y is not out:
            out[...] = y


@softmax.gradient
def _(dy, y, inp, *, axis):
    axes = _axes(axis, inp.ndim, "softmax")
    wide = wide_of(y.dtype)
    dy, probability = converted(dy, wide), converted(y, wide)
    weighted = dy * probability
    return (converted(weighted - probability * sum(weighted, axis=axes, keepdims=True), y.dtype),)


@softmax.lowering
def _(inp, *, axis):
    if not inp.size:
        return inp
    axes = _axes(axis, inp.ndim, "softmax")
    wide = converted(inp, wide_of(inp.dtype))
    power = exp(wide - max(wide, axis=axes, keepdims=True))
    return converted(power / sum(power, axis=axes, keepdims=True), inp.dtype)


@softmax.samples
def _(rng):
    yield (rng.normal(size=(5,)),), {}
    yield (rng.normal(size=(3, 4)),), {}
    yield (rng.normal(size=(2, 3, 4)),), {"axis": -1}
    yield (rng.normal(size=(2, 3, 1, 2)),), {}
    yield (rng.normal(size=(2, 3, 4)) * 20,), {"axis": (0, 2)}
    yield (rng.normal(size=(3, 0)),), {"axis": 1}


@op(promotes="float", autocast="high")
def logsoftmax(inp: Tensor, *, axis: int | tuple[int, ...] | None = None) -> Tensor:
    """Return the logarithm of the softmax.

    ``y[..., i, ...] = inp[..., i, ...] - log(sum_j exp(inp[..., j, ...]))``

    Parameters
    ----------
    inp : (any shape) any dtype
    axis : int, tuple of int or None, default None
        The axes along which ``exp(y)`` adds up to 1. None means what it means for ``softmax``: axis 0 for tensors
        with 1 or 3 axes, axis 1 for all others.

    Returns
    -------
    (inp's shape) dtype of ``inp``; float32 for bool and integers

    Raises
    ------
    ShapeError
        ``axis`` names an axis that ``inp`` lacks, or one twice; or ``inp`` is a scalar.

    Notes
    -----
    The largest score is subtracted first, so nothing overflows and small probabilities keep their digits. Where all
    scores are -inf, or one is inf or NaN, the results are NaN. float16 and bfloat16 are computed in float32.

    Examples
    --------
    >>> logsoftmax(tensor([0.0, 1000.0]))
    Tensor([-1000.,     0.], dtype=float32, device=ref:0)
    """
    _axes(axis, inp.ndim, "logsoftmax")
    return abstract(inp.shape, inp.dtype)


logsoftmax.inplace = (0,)


@logsoftmax.reference
def _(inp, *, axis, out):
    if not inp.size:
        return
    axes = _axes(axis, inp.ndim, "logsoftmax")
    with np.errstate(all="ignore"):
        y = _shifted(inp, axes, out)
        np.subtract(y, np.log(add_along(np.exp(y), axes, keepdims=True)), out=y)
        if y is not out:
            out[...] = y


@logsoftmax.gradient
def _(dy, y, inp, *, axis):
    axes = _axes(axis, inp.ndim, "logsoftmax")
    wide = wide_of(y.dtype)
    dy, y_wide = converted(dy, wide), converted(y, wide)
    return (converted(dy - exp(y_wide) * sum(dy, axis=axes, keepdims=True), y.dtype),)


@logsoftmax.lowering
def _(inp, *, axis):
    if not inp.size:
        return inp
    axes = _axes(axis, inp.ndim, "logsoftmax")
    wide = converted(inp, wide_of(inp.dtype))
    shifted = wide - max(wide, axis=axes, keepdims=True)
    return converted(shifted - log(sum(exp(shifted), axis=axes, keepdims=True)), inp.dtype)


logsoftmax.samples(softmax._samples)
