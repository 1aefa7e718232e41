"""Losses: functions of predictions and labels, with a reduction.

In: predictions and labels. Out: plain functions that build on the ops.
After ``cross_entropy``; before ``margin_loss``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import op as op_module
from ..errors import ArgumentError, ShapeError, user_place
from ..types import broadcast
from .cross_entropy import pick_class, softmax_cross_entropy
from .elementwise import maximum, minimum
from .exponential import exp, log, square
from .reduction import mean, sum
from .rounding import abs
from .select import cast, where

if TYPE_CHECKING:
    from ..tensor import Tensor

FUNCTIONS = (
    "l1_loss", "square_loss", "smooth_l1_loss", "huber_loss", "cross_entropy", "binary_cross_entropy", "nll_loss",
    "kl_div",
)  # fmt: skip

REDUCTIONS = ("mean", "sum", "none")


def check_reduction(reduction: str, where: str, known: tuple[str, ...] = REDUCTIONS) -> None:
    """Raise an ArgumentError where there is no such reduction."""
    if reduction not in known:
        raise ArgumentError(
            f"{where}: reduction is {reduction!r}; it must be one of {', '.join(map(repr, known))}"
        ).add_place(user_place())


def reduced(loss: Tensor, reduction: str) -> Tensor:
    """Return the mean, the sum, or the losses themselves."""
    if reduction == "mean":
        return mean(loss)
    return sum(loss) if reduction == "sum" else loss


def paired(pred: Any, label: Any, where: str) -> tuple[Tensor, Tensor]:
    """Return both as tensors of one float dtype, whose shapes are equal or one of which broadcasts to the other."""
    pred, label = as_tensor(pred, label), as_tensor(label, pred)
    if pred.dtype.is_float:
        label = cast(label, dtype=pred.dtype) if label.dtype != pred.dtype else label
    elif label.dtype.is_float:
        pred = cast(pred, dtype=label.dtype)
    if pred.shape != label.shape and broadcast(pred.shape, label.shape, where=where) not in (
        pred.shape,
        label.shape,
    ):
        raise ShapeError(
            f"{where}: pred has shape {pred.shape} and label has {label.shape}; one of them must have the common shape",
            hint="reshape label to the shape of pred",
        ).add_place(user_place())
    return pred, label


def as_tensor(value: Any, beside: Any = None) -> Tensor:
    """Return a tensor as it is, and an array or number as a tensor on the device of what stands beside it."""
    if hasattr(value, "_node"):
        return value
    return op_module.make_constant(value, beside.device if hasattr(beside, "_node") else None)


def l1_loss(pred: Tensor, label: Tensor, reduction: str = "mean") -> Tensor:
    """Return the mean absolute difference.

    ``y = mean(abs(pred - label))``

    Parameters
    ----------
    pred, label : (any shape) float
        Of one shape, or one broadcasts to the other.
    reduction : {"mean", "sum", "none"}, default "mean"

    Returns
    -------
    () dtype of ``pred``; the common shape with ``reduction="none"``

    Raises
    ------
    ShapeError
        The shapes differ, and neither is the common shape.
    ArgumentError
        There is no such ``reduction``.

    Examples
    --------
    >>> l1_loss(tensor([3.0, 3.0, 3.0, 3.0]), tensor([2.0, 8.0, 6.0, 1.0]))
    Tensor(2.75, dtype=float32, device=ref:0)
    """
    check_reduction(reduction, "l1_loss")
    pred, label = paired(pred, label, "l1_loss")
    return reduced(abs(pred - label), reduction)


def square_loss(pred: Tensor, label: Tensor, reduction: str = "mean") -> Tensor:
    """Return the mean square of the difference.

    ``y = mean((pred - label)**2)``

    Parameters
    ----------
    pred, label : (any shape) float
        Of one shape, or one broadcasts to the other.
    reduction : {"mean", "sum", "none"}, default "mean"

    Returns
    -------
    () dtype of ``pred``; the common shape with ``reduction="none"``

    Raises
    ------
    ShapeError
        The shapes differ, and neither is the common shape.
    ArgumentError
        There is no such ``reduction``.

    Examples
    --------
    >>> square_loss(tensor([3.0, 3.0, 3.0, 3.0]), tensor([2.0, 8.0, 6.0, 1.0]))
    Tensor(9.75, dtype=float32, device=ref:0)
    """
    check_reduction(reduction, "square_loss")
    pred, label = paired(pred, label, "square_loss")
    return reduced(square(pred - label), reduction)


def smooth_l1_loss(
    pred: Tensor, label: Tensor, beta: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """Return a loss that is square for small differences and absolute for large ones.

    With ``d = abs(pred - label)``: ``y = mean(d**2 / (2 * beta) if d < beta else d - beta / 2)``

    Parameters
    ----------
    pred, label : (any shape) float
        Of one shape, or one broadcasts to the other.
    beta : float, default 1.0
        Where the two parts meet, in the units of ``pred``; 0 gives ``l1_loss``.
    reduction : {"mean", "sum", "none"}, default "mean"

    Returns
    -------
    () dtype of ``pred``; the common shape with ``reduction="none"``

    Raises
    ------
    ShapeError
        The shapes differ, and neither is the common shape.
    ArgumentError
        ``beta`` is negative, or there is no such ``reduction``.

    Sources
    -------
    Girshick, Fast R-CNN, ICCV 2015, equation 3.

    Examples
    --------
    >>> smooth_l1_loss(tensor([0.0, 3.0]), tensor([0.5, 1.0]), reduction="none")
    Tensor([0.125, 1.5  ], dtype=float32, device=ref:0)
    """
    check_reduction(reduction, "smooth_l1_loss")
    if not beta >= 0:
        raise ArgumentError(f"smooth_l1_loss: beta is {beta}; it must be 0 or more").add_place(
            user_place()
        )
    if beta == 0:
        return l1_loss(pred, label, reduction)
    pred, label = paired(pred, label, "smooth_l1_loss")
    d = abs(pred - label)
    near = minimum(d, float(beta))
    return reduced(square(near) * (0.5 / beta) + (d - near), reduction)


def huber_loss(pred: Tensor, label: Tensor, delta: float = 1.0, reduction: str = "mean") -> Tensor:
    """Return a loss that is square for small differences and linear for large ones.

    With ``d = abs(pred - label)``: ``y = mean(d**2 / 2 if d < delta else delta * (d - delta / 2))``

    Parameters
    ----------
    pred, label : (any shape) float
        Of one shape, or one broadcasts to the other.
    delta : float, default 1.0
        Where the two parts meet, in the units of ``pred``; above 0.
    reduction : {"mean", "sum", "none"}, default "mean"

    Returns
    -------
    () dtype of ``pred``; the common shape with ``reduction="none"``

    Raises
    ------
    ShapeError
        The shapes differ, and neither is the common shape.
    ArgumentError
        ``delta`` is not above 0, or there is no such ``reduction``.

    Sources
    -------
    Huber, Robust Estimation of a Location Parameter, Ann. Math. Statist. 35(1), 1964.

    Examples
    --------
    >>> huber_loss(tensor([0.0, 3.0]), tensor([0.5, 0.0]), delta=2.0, reduction="none")
    Tensor([0.125, 4.   ], dtype=float32, device=ref:0)
    """
    check_reduction(reduction, "huber_loss")
    if not delta > 0:
        raise ArgumentError(f"huber_loss: delta is {delta}; it must be above 0").add_place(
            user_place()
        )
    pred, label = paired(pred, label, "huber_loss")
    d = abs(pred - label)
    near = minimum(d, float(delta))
    return reduced(square(near) * 0.5 + (d - near) * float(delta), reduction)


def cross_entropy(
    pred: Tensor,
    label: Tensor,
    axis: int = 1,
    with_logits: bool = True,
    label_smooth: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """Return the mean cross entropy of predictions with class labels.

    ``y = mean(-sum_j(t[j] * log(p[j])))`` with ``p = softmax(pred)``, ``t = (1 - s) * (j == label) + s / c``
    and ``s = label_smooth``

    Parameters
    ----------
    pred : (..., c, ...) float
        Logits, or probabilities with ``with_logits=False``; the ``c`` classes are on ``axis``.
    label : (..., ...) integer, or (..., c, ...) float
        One class for each row, 0 to ``c - 1``; or the probability of each class.
    axis : int, default 1
    with_logits : bool, default True
    label_smooth : float, default 0.0
        The share of the target that is spread evenly over all classes, 0 to 1.
    reduction : {"mean", "sum", "none"}, default "mean"

    Returns
    -------
    () dtype of ``pred``; the shape of ``pred`` without ``axis`` with ``reduction="none"``

    Raises
    ------
    DTypeError
        ``pred`` is no float tensor.
    ShapeError
        ``label`` has not the shape of ``pred`` without ``axis``.
    ArgumentError
        ``label_smooth`` is out of range, or there is no such ``reduction``.
    IndexRangeError
        A label is out of range (when the values are computed).

    Notes
    -----
    With logits the row's maximum is subtracted first, so large values do not overflow.

    Sources
    -------
    Szegedy et al., Rethinking the Inception Architecture for Computer Vision, CVPR 2016, section 7 (smoothing).

    Examples
    --------
    >>> cross_entropy(tensor([[0.0, 0.0]]), tensor([1]))
    Tensor(0.6931472, dtype=float32, device=ref:0)
    """
    check_reduction(reduction, "cross_entropy")
    pred, label = as_tensor(pred, label), as_tensor(label, pred)
    smooth = float(label_smooth or 0.0)
    if label.dtype.is_float:
        loss = _soft_cross_entropy(pred, label, axis, with_logits, smooth)
    elif with_logits:
        loss = softmax_cross_entropy(pred, label, axis=axis, label_smooth=smooth)
    else:
        chances = log(pred)
        loss = -pick_class(chances, label, axis=axis)
        if smooth:
            loss = loss * (1 - smooth) - mean(chances, axis=axis) * smooth
    return reduced(loss, reduction)


def _soft_cross_entropy(
    pred: Tensor, label: Tensor, axis: int, with_logits: bool, smooth: float
) -> Tensor:
    """Return the cross entropy of each row with a row of probabilities."""
    from .softmax import logsoftmax

    if label.shape != pred.shape:
        raise ShapeError(
            f"cross_entropy: pred has shape {pred.shape} and label, of {label.dtype}, has {label.shape}; "
            "probabilities must have pred's shape",
            hint="class labels must be integers: label.astype('int32')",
        ).add_place(user_place())
    if smooth:
        label = label * (1 - smooth) + smooth / pred.shape[axis]
    chances = logsoftmax(pred, axis=axis) if with_logits else log(pred)
    return -sum(chances * cast(label, dtype=pred.dtype), axis=axis)


def binary_cross_entropy(
    pred: Tensor, label: Tensor, with_logits: bool = True, reduction: str = "mean"
) -> Tensor:
    """Return the mean cross entropy of yes-or-no predictions.

    ``y = mean(-(label * log(p) + (1 - label) * log(1 - p)))`` with ``p = sigmoid(pred)``

    Parameters
    ----------
    pred : (any shape) float
        Logits, or probabilities with ``with_logits=False``.
    label : (any shape) float
        0 to 1, of ``pred``'s shape, or one broadcasts to the other.
    with_logits : bool, default True
    reduction : {"mean", "sum", "none"}, default "mean"

    Returns
    -------
    () dtype of ``pred``; the common shape with ``reduction="none"``

    Raises
    ------
    ShapeError
        The shapes differ, and neither is the common shape.
    ArgumentError
        There is no such ``reduction``.

    Notes
    -----
    Logits are computed as ``max(x, 0) - x * label + log(1 + exp(-abs(x)))``, which does not overflow.
    Logarithms of probabilities are cut at -100, so a certain wrong answer costs 100, not infinity.

    Examples
    --------
    >>> binary_cross_entropy(tensor([[0.0, 0.0]]), tensor([[1.0, 0.0]]))
    Tensor(0.6931472, dtype=float32, device=ref:0)
    """
    check_reduction(reduction, "binary_cross_entropy")
    pred, label = paired(pred, label, "binary_cross_entropy")
    if with_logits:
        from .exponential import log1p

        loss = maximum(pred, 0.0) - pred * label + log1p(exp(-abs(pred)))
    else:
        loss = -(
            label * maximum(log(pred), -100.0) + (1.0 - label) * maximum(log(1.0 - pred), -100.0)
        )
    return reduced(loss, reduction)


def nll_loss(pred: Tensor, label: Tensor, axis: int = 1, reduction: str = "mean") -> Tensor:
    """Return the mean negative log-likelihood of class labels.

    ``y = mean(-pred[label])``

    Parameters
    ----------
    pred : (..., c, ...) float
        Logarithms of probabilities, as ``logsoftmax`` gives them; the ``c`` classes are on ``axis``.
    label : (..., ...) integer
        One class for each row, 0 to ``c - 1``.
    axis : int, default 1
    reduction : {"mean", "sum", "none"}, default "mean"

    Returns
    -------
    () dtype of ``pred``; the shape of ``label`` with ``reduction="none"``

    Raises
    ------
    ShapeError
        ``label`` has not the shape of ``pred`` without ``axis``.
    ArgumentError
        There is no such ``reduction``.
    IndexRangeError
        A label is out of range (when the values are computed).

    Examples
    --------
    >>> nll_loss(tensor([[-1.0, -2.0], [-3.0, -4.0]]), tensor([0, 1]))
    Tensor(2.5, dtype=float32, device=ref:0)
    """
    check_reduction(reduction, "nll_loss")
    return reduced(-pick_class(pred, label, axis=axis), reduction)


def kl_div(
    pred: Tensor, label: Tensor, reduction: str = "mean", log_target: bool = False
) -> Tensor:
    """Return the mean of the Kullback-Leibler divergence's terms.

    ``y = mean(label * (log(label) - pred))``; terms with ``label = 0`` are 0

    Parameters
    ----------
    pred : (any shape) float
        Logarithms of probabilities.
    label : (any shape) float
        Probabilities, or their logarithms with ``log_target=True``.
    reduction : {"mean", "batchmean", "sum", "none"}, default "mean"
        ``"batchmean"`` divides the sum by the size of the first axis: the divergence itself.
    log_target : bool, default False

    Returns
    -------
    () dtype of ``pred``; the common shape with ``reduction="none"``

    Raises
    ------
    ShapeError
        The shapes differ, and neither is the common shape.
    ArgumentError
        There is no such ``reduction``.

    Sources
    -------
    Kullback and Leibler, On Information and Sufficiency, Ann. Math. Statist. 22(1), 1951.

    Examples
    --------
    >>> kl_div(tensor([[0.0, 0.0]]), tensor([[1.0, 0.0]]), reduction="sum")
    Tensor(0., dtype=float32, device=ref:0)
    """
    check_reduction(reduction, "kl_div", (*REDUCTIONS, "batchmean"))
    pred, label = paired(pred, label, "kl_div")
    if log_target:
        loss = exp(label) * (label - pred)
    else:
        some = label > 0.0
        loss = where(some, label * log(where(some, label, 1.0)), 0.0) - label * pred
    if reduction == "batchmean":
        return sum(loss) / max(1, loss.shape[0] if loss.ndim else 1)
    return reduced(loss, reduction)
