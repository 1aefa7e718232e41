"""Cross entropy of logits with integer labels: one op, and one for its gradient.

In: logits and labels. Out: ``softmax_cross_entropy``, ``softmax_cross_entropy_grad``, ``pick_class``; no reduction.
After ``softmax``; before ``loss``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..dtype import int32, wide_of
from ..errors import ArgumentError, DTypeError, IndexRangeError, ShapeError
from ..op import op
from ..types import Type, abstract, normal_axis
from .comparison import equal
from .constant import iota
from .select import cast, where
from .shape import expand_dims, squeeze

if TYPE_CHECKING:
    from ..tensor import Tensor

PRIVATE = ("softmax_cross_entropy", "softmax_cross_entropy_grad", "pick_class")


def check_labels(
    pred: Tensor | Type,
    label: Tensor | Type,
    axis: int,
    label_smooth: float = 0.0,
    where: str = "cross_entropy",
) -> int:
    """Return the axis of the classes counted from the front; raise an error where the inputs do not fit."""
    if not pred.dtype.is_float:
        raise DTypeError(f"{where}: pred is {pred.dtype}; it must be a float tensor")
    if not label.dtype.is_integer:
        raise DTypeError(
            f"{where}: label is {label.dtype}; class labels must be integers",
            hint="probabilities have the shape and a float dtype like pred's",
        )
    axis = normal_axis(axis, pred.ndim, where)
    wanted = pred.shape[:axis] + pred.shape[axis + 1 :]
    if label.shape != wanted:
        raise ShapeError(
            f"{where}: pred has shape {pred.shape} and label has {label.shape}; "
            f"with the classes on axis {axis}, label must have {wanted}"
        )
    if pred.shape[axis] == 0:
        raise ShapeError(
            f"{where}: pred has shape {pred.shape}; axis {axis} must hold at least 1 class"
        )
    if not 0 <= label_smooth <= 1:
        raise ArgumentError(f"{where}: label_smooth is {label_smooth}; it must be 0 to 1")
    return axis


def check_label_range(label: np.ndarray, classes: int) -> None:
    """Raise an IndexRangeError where a label names no class; called when values are computed."""
    if label.size:
        worst = int(label.max()) if label.max() >= classes else int(label.min())
        if not 0 <= worst < classes:
            raise IndexRangeError(
                f"cross_entropy: a label is {worst}; pred has {classes} classes, so labels must be 0 to {classes - 1}"
            )


def _places(label: np.ndarray, axis: int) -> tuple[np.ndarray, ...]:
    """Return the index of the labelled class of each row, in the logits."""
    open_mesh = np.ix_(*[np.arange(n) for n in label.shape]) if label.ndim else ()
    return (*open_mesh[:axis], label, *open_mesh[axis:])


def _is_labelled(label: Tensor, classes: int, axis: int) -> Tensor:
    """Return the bool mask, in the shape of the logits, of the labelled class of each row."""
    shape = tuple(classes if i == axis else 1 for i in range(label.ndim + 1))
    return equal(expand_dims(cast(label, dtype=int32), axis=axis), iota(shape=shape, axis=axis))


@op(autocast="high")
def softmax_cross_entropy(
    pred: Tensor, label: Tensor, *, axis: int = 1, label_smooth: float = 0.0
) -> Tensor:
    """Return the cross entropy of each row of logits with its label.

    ``y = log(sum_j(exp(pred[j]))) - (1 - s) * pred[label] - s * mean_j(pred[j])`` with ``s = label_smooth``

    Parameters
    ----------
    pred : (..., c, ...) float
        Logits; the ``c`` classes are on ``axis``.
    label : (..., ...) integer
        One class for each row, 0 to ``c - 1``.
    axis : int, default 1
    label_smooth : float, default 0.0
        The share of the target that is spread evenly over all classes, 0 to 1.

    Returns
    -------
    (..., ...) dtype of ``pred``

    Raises
    ------
    DTypeError
        ``pred`` is no float tensor, or ``label`` no integer one.
    ShapeError
        ``label`` has not the shape of ``pred`` without ``axis``, or there is no class.
    ArgumentError
        ``label_smooth`` is out of range.
    IndexRangeError
        A label is out of range (when the values are computed).

    Notes
    -----
    The row's maximum is subtracted first, so large logits do not overflow. float16 and bfloat16 are computed
    in float32.

    Sources
    -------
    Szegedy et al., Rethinking the Inception Architecture for Computer Vision, CVPR 2016, section 7 (smoothing).

    Examples
    --------
    >>> softmax_cross_entropy(tensor([[0.0, 0.0], [0.0, 100.0]]), tensor([0, 1]))
    Tensor([0.6931472, 0.       ], dtype=float32, device=ref:0)
    """
    axis = check_labels(pred, label, axis, label_smooth)
    return abstract(label.shape, pred.dtype)


@softmax_cross_entropy.reference
def _(pred, label, *, axis, label_smooth):
    axis %= pred.ndim
    check_label_range(label, pred.shape[axis])
    x = pred.astype(np.float32) if pred.dtype.itemsize == 2 else pred
    top = np.max(x, axis=axis, keepdims=True)
    e = np.subtract(x, top)
    np.exp(e, out=e)
    y = np.log(np.sum(e, axis=axis)) + np.squeeze(top, axis)
    picked = x[_places(label, axis)]
    if label_smooth:
        y -= x.dtype.type(1 - label_smooth) * picked
        y -= x.dtype.type(label_smooth) * np.mean(x, axis=axis)
    else:
        y -= picked
    return y.astype(pred.dtype)


@softmax_cross_entropy.gradient
def _(dy, y, pred, label, **attrs):
    return softmax_cross_entropy_grad(dy, pred, label, **attrs), None


@softmax_cross_entropy.lowering
def _(pred, label, *, axis, label_smooth):
    from .reduction import mean
    from .statistics import logsumexp

    x = cast(pred, dtype=wide_of(pred.dtype))
    picked = pick_class(x, label, axis=axis)
    y = logsumexp(x, axis=axis)
    if label_smooth:
        y = y - picked * (1 - label_smooth) - mean(x, axis=axis) * label_smooth
    else:
        y = y - picked
    return cast(y, dtype=pred.dtype)


@softmax_cross_entropy.samples
def _(rng):
    yield (rng.normal(size=(4, 3)), rng.integers(0, 3, 4)), {}
    yield (rng.normal(size=(4, 3)) * 5, rng.integers(0, 3, 4)), {"label_smooth": 0.1}
    yield (rng.normal(size=(2, 3, 4)), rng.integers(0, 3, (2, 4))), {"axis": 1}
    yield (
        (rng.normal(size=(2, 3, 4)), rng.integers(0, 4, (2, 3))),
        {"axis": -1, "label_smooth": 1.0},
    )
    yield (rng.normal(size=5), np.array(2)), {"axis": 0}
    yield (np.zeros((0, 3)), np.zeros(0, np.int32)), {}


@op(autocast="high")
def softmax_cross_entropy_grad(
    dy: Tensor, pred: Tensor, label: Tensor, *, axis: int = 1, label_smooth: float = 0.0
) -> Tensor:
    """Return the gradient of ``softmax_cross_entropy`` in the logits.

    ``y[j] = dy * (softmax(pred)[j] - (1 - s) * (j == label) - s / c)`` with ``s = label_smooth``

    Parameters
    ----------
    dy : (..., ...) dtype of ``pred``
    pred : (..., c, ...) float
    label : (..., ...) integer
    axis : int, default 1
    label_smooth : float, default 0.0

    Returns
    -------
    (shape of ``pred``) dtype of ``pred``

    Raises
    ------
    DTypeError
        ``pred`` is no float tensor, ``label`` no integer one, or ``dy`` has another dtype than ``pred``.
    ShapeError
        The shapes do not fit.
    ArgumentError
        ``label_smooth`` is out of range.
    IndexRangeError
        A label is out of range (when the values are computed).

    Examples
    --------
    >>> softmax_cross_entropy_grad(tensor([2.0]), tensor([[0.0, 0.0]]), tensor([0]))
    Tensor([[-1.,  1.]], dtype=float32, device=ref:0)
    """
    check_labels(pred, label, axis, label_smooth)
    if dy.dtype != pred.dtype:
        raise DTypeError(
            f"softmax_cross_entropy_grad: dy is {dy.dtype} and pred is {pred.dtype}; both must be the same"
        )
    if dy.shape != label.shape:
        raise ShapeError(
            f"softmax_cross_entropy_grad: dy has shape {dy.shape}; label has {label.shape}, it must too"
        )
    return abstract(pred.shape, pred.dtype)


softmax_cross_entropy_grad.inplace = (1,)


@softmax_cross_entropy_grad.reference
def _(dy, pred, label, *, axis, label_smooth, out):
    axis %= pred.ndim
    check_label_range(label, pred.shape[axis])
    narrow = pred.dtype.itemsize == 2
    x = pred.astype(np.float32) if narrow else pred
    kind = x.dtype.type
    p = np.subtract(x, np.max(x, axis=axis, keepdims=True), out=None if narrow else out)
    np.exp(p, out=p)
    p /= np.sum(p, axis=axis, keepdims=True)
    if label_smooth:
        p -= kind(label_smooth / pred.shape[axis])
    p[_places(label, axis)] -= kind(1 - label_smooth)
    np.multiply(p, np.expand_dims(dy, axis), out=out, casting="same_kind")


@softmax_cross_entropy_grad.lowering
def _(dy, pred, label, *, axis, label_smooth):
    from .softmax import softmax

    axis %= pred.ndim
    wide, classes = wide_of(pred.dtype), pred.shape[axis]
    hot = cast(_is_labelled(label, classes, axis), dtype=wide)
    p = softmax(cast(pred, dtype=wide), axis=axis)
    if label_smooth:
        p = p - hot * (1 - label_smooth) - label_smooth / classes
    else:
        p = p - hot
    return cast(p * expand_dims(cast(dy, dtype=wide), axis=axis), dtype=pred.dtype)


@softmax_cross_entropy_grad.samples
def _(rng):
    yield (rng.normal(size=4), rng.normal(size=(4, 3)), rng.integers(0, 3, 4)), {}
    yield (
        (rng.normal(size=4), rng.normal(size=(4, 3)), rng.integers(0, 3, 4)),
        {"label_smooth": 0.1},
    )
    yield (
        (rng.normal(size=(2, 4)), rng.normal(size=(2, 3, 4)), rng.integers(0, 3, (2, 4))),
        {"axis": -2},
    )
    yield (rng.normal(size=()), rng.normal(size=5), np.array(2)), {"axis": 0}
    yield (np.zeros(0), np.zeros((0, 3)), np.zeros(0, np.int32)), {}


@op
def pick_class(pred: Tensor, label: Tensor, *, axis: int = 1) -> Tensor:
    """Take the labelled class of each row.

    ``y = pred[label]``

    Parameters
    ----------
    pred : (..., c, ...) float
    label : (..., ...) integer
        One class for each row, 0 to ``c - 1``.
    axis : int, default 1

    Returns
    -------
    (..., ...) dtype of ``pred``

    Raises
    ------
    DTypeError
        ``pred`` is no float tensor, or ``label`` no integer one.
    ShapeError
        ``label`` has not the shape of ``pred`` without ``axis``, or there is no class.
    IndexRangeError
        A label is out of range (when the values are computed).

    Examples
    --------
    >>> pick_class(tensor([[1.0, 2.0], [3.0, 4.0]]), tensor([1, 0]))
    Tensor([2., 3.], dtype=float32, device=ref:0)
    """
    check_labels(pred, label, axis, where="pick_class")
    return abstract(label.shape, pred.dtype)


@pick_class.reference
def _(pred, label, *, axis):
    axis %= pred.ndim
    check_label_range(label, pred.shape[axis])
    return pred[_places(label, axis)]


@pick_class.gradient
def _(dy, y, pred, label, *, axis):
    axis %= pred.ndim
    return where(_is_labelled(label, pred.shape[axis], axis), expand_dims(dy, axis=axis), 0.0), None


@pick_class.lowering
def _(pred, label, *, axis):
    from .gather import take_along

    axis %= pred.ndim
    return squeeze(take_along(pred, expand_dims(label, axis=axis), axis=axis), axis=axis)


@pick_class.samples
def _(rng):
    yield (rng.normal(size=(4, 3)), rng.integers(0, 3, 4)), {}
    yield (rng.normal(size=(2, 3, 4)), rng.integers(0, 3, (2, 4))), {"axis": -2}
    yield (rng.normal(size=5), np.array(2)), {"axis": 0}
    yield (np.zeros((0, 3)), np.zeros(0, np.int32)), {}
