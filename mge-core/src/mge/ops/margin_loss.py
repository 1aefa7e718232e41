"""Losses with a margin, and losses of distances between rows.

In: scores, embeddings, labels. Out: ``hinge_loss``, ``triplet_margin_loss``, ``cosine_embedding_loss``.
After ``loss``; before ``ctc``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ArgumentError, user_place
from .elementwise import maximum, minimum
from .exponential import sqrt, square
from .loss import as_tensor, check_reduction, paired, reduced
from .reduction import sum
from .rounding import abs
from .select import where

if TYPE_CHECKING:
    from ..tensor import Tensor

FUNCTIONS = ("hinge_loss", "triplet_margin_loss", "cosine_embedding_loss")


def hinge_loss(pred: Tensor, label: Tensor, norm: str = "L1", reduction: str = "mean") -> Tensor:
    """Return the mean hinge loss, as of a support vector machine.

    ``y = mean_i(sum_j(max(0, 1 - pred[i, j] * label[i, j])))``; with ``norm="L2"`` of the squares

    Parameters
    ----------
    pred : (n, c) float
        Scores.
    label : (n, c) float
        -1 or 1.
    norm : {"L1", "L2"}, default "L1"
    reduction : {"mean", "sum", "none"}, default "mean"

    Returns
    -------
    () dtype of ``pred``; ``(n,)`` with ``reduction="none"``

    Raises
    ------
    ShapeError
        ``pred`` has no axis 1, or the shapes do not fit.
    ArgumentError
        There is no such ``norm`` or ``reduction``.

    Examples
    --------
    >>> hinge_loss(tensor([[0.5, -0.5, 0.1], [-0.6, 0.7, 0.8]]), tensor([[1, -1, -1], [-1, 1, 1]]))
    Tensor(1.5, dtype=float32, device=ref:0)
    """
    check_reduction(reduction, "hinge_loss")
    if norm not in ("L1", "L2"):
        raise ArgumentError(f"hinge_loss: norm is {norm!r}; it must be 'L1' or 'L2'").add_place(
            user_place()
        )
    pred, label = paired(pred, label, "hinge_loss")
    loss = maximum(1.0 - pred * label, 0.0)
    return reduced(sum(square(loss) if norm == "L2" else loss, axis=1), reduction)


def _distance(x: Tensor, y: Tensor, p: float, eps: float) -> Tensor:
    """Return the p-norm of the difference of each pair of rows; ``eps`` keeps its root differentiable."""
    d = x - y + eps
    if p == 1:
        return sum(abs(d), axis=-1)
    if p == 2:
        return sqrt(sum(square(d), axis=-1))
    return sum(abs(d) ** float(p), axis=-1) ** (1.0 / p)


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """Return by how much anchors are not nearer to their positive than their negative.

    ``y = mean(max(0, d(anchor, positive) - d(anchor, negative) + margin))``, ``d(x, z) = norm(x - z + eps)``

    Parameters
    ----------
    anchor, positive, negative : (..., d) float
    margin : float, default 1.0
        In the units of the distance.
    p : float, default 2.0
        The norm's order, above 0.
    eps : float, default 1e-6
        Added to each difference; keeps the gradient of equal rows finite.
    swap : bool, default False
        Take the smaller of ``d(anchor, negative)`` and ``d(positive, negative)``.
    reduction : {"mean", "sum", "none"}, default "mean"

    Returns
    -------
    () dtype of ``anchor``; ``(...)`` with ``reduction="none"``

    Raises
    ------
    ShapeError
        The shapes do not broadcast, or there is no axis.
    ArgumentError
        ``p`` is not above 0, or there is no such ``reduction``.

    Sources
    -------
    Balntas et al., Learning Local Feature Descriptors with Triplets, BMVC 2016 (with the swap).

    Examples
    --------
    >>> triplet_margin_loss(tensor([[0.0, 0.0]]), tensor([[0.0, 3.0]]), tensor([[4.0, 0.0]]), margin=2.0, eps=0.0)
    Tensor(1., dtype=float32, device=ref:0)
    """
    check_reduction(reduction, "triplet_margin_loss")
    if not p > 0:
        raise ArgumentError(f"triplet_margin_loss: p is {p}; it must be above 0").add_place(
            user_place()
        )
    anchor, positive, negative = map(as_tensor, (anchor, positive, negative))
    far = _distance(anchor, negative, p, eps)
    if swap:
        far = minimum(far, _distance(positive, negative, p, eps))
    loss = maximum(_distance(anchor, positive, p, eps) - far + float(margin), 0.0)
    return reduced(loss, reduction)


def cosine_embedding_loss(
    inp1: Tensor, inp2: Tensor, label: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """Return how far pairs of rows are from being alike, or from being unlike.

    ``y = mean(1 - c if label == 1 else max(0, c - margin))`` with the cosine ``c`` of the two rows

    Parameters
    ----------
    inp1, inp2 : (..., d) float
    label : (...) any dtype
        1 for pairs that should be alike, -1 for others.
    margin : float, default 0.0
        The cosine that unlike pairs may have, -1 to 1.
    reduction : {"mean", "sum", "none"}, default "mean"

    Returns
    -------
    () dtype of ``inp1``; ``(...)`` with ``reduction="none"``

    Raises
    ------
    ShapeError
        The shapes do not broadcast, or there is no axis.
    ArgumentError
        There is no such ``reduction``.

    Notes
    -----
    ``1e-12`` is added to both squared lengths, so rows of zeros have cosine 0.

    Examples
    --------
    >>> cosine_embedding_loss(tensor([[1.0, 0.0], [1.0, 0.0]]), tensor([[0.0, 2.0], [2.0, 0.0]]), tensor([1, -1]))
    Tensor(1., dtype=float32, device=ref:0)
    """
    check_reduction(reduction, "cosine_embedding_loss")
    inp1, inp2 = as_tensor(inp1, inp2), as_tensor(inp2, inp1)
    lengths = sqrt((sum(square(inp1), axis=-1) + 1e-12) * (sum(square(inp2), axis=-1) + 1e-12))
    cosine = sum(inp1 * inp2, axis=-1) / lengths
    loss = where(as_tensor(label, inp1) == 1, 1.0 - cosine, maximum(cosine - float(margin), 0.0))
    return reduced(loss, reduction)
