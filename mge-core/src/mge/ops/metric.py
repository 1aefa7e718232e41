"""Metrics: how often predictions are right.

In: scores and labels. Out: plain functions that build on the ops.
After ``loss``; before ``tensor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError, ShapeError, user_place
from .comparison import equal
from .loss import as_tensor
from .reduction import mean, sum
from .select import cast
from .shape import expand_dims
from .slicing import slice_along
from .sorting import topk as largest

if TYPE_CHECKING:
    from ..tensor import Tensor

FUNCTIONS = ("topk_accuracy",)


def topk_accuracy(logits: Tensor, target: Tensor, topk: int | tuple[int, ...] = 1) -> Any:
    """Return how often the target is among the k largest scores.

    ``y = mean_i(target[i] in the k largest of logits[i])``

    Parameters
    ----------
    logits : (n, c) float
        Scores; only their order counts.
    target : (n,) integer
        One class for each row.
    topk : int or tuple of int, default 1
        The k, 1 to ``c``.

    Returns
    -------
    () float32, 0 to 1; a list of them, one for each k, where ``topk`` is a tuple

    Raises
    ------
    ShapeError
        ``logits`` has not two axes, or ``target`` is not ``(n,)``.
    ArgumentError
        A k is out of range.

    Notes
    -----
    Among equal scores the class with the smaller index comes first. A target that is no class counts as wrong.

    Examples
    --------
    >>> topk_accuracy(tensor([[0.1, 0.9], [0.8, 0.2]]), tensor([1, 1]))
    Tensor(0.5, dtype=float32, device=ref:0)
    """
    logits, target = as_tensor(logits, target), as_tensor(target, logits)
    if logits.ndim != 2 or target.shape != logits.shape[:1]:
        raise ShapeError(
            f"topk_accuracy: logits has shape {logits.shape} and target has {target.shape}; "
            "they must be (n, c) and (n,)"
        ).add_place(user_place())
    counts = (topk,) if isinstance(topk, int) else tuple(topk)
    if not counts or not all(1 <= k <= logits.shape[1] for k in counts):
        raise ArgumentError(
            f"topk_accuracy: topk is {topk}; with {logits.shape[1]} classes each k must be 1 to {logits.shape[1]}"
        ).add_place(user_place())
    _, best = largest(logits, max(counts), descending=True)
    hits = cast(equal(best, expand_dims(target, axis=1)), dtype="float32")
    found = [mean(sum(slice_along(hits, 1, 0, k), axis=1)) for k in counts]
    return found[0] if isinstance(topk, int) else found
