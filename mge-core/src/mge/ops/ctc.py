"""Connectionist temporal classification: the loss of label sequences that are not aligned with their input.

In: log-probabilities a step, labels, lengths. Out: the ops ``ctc`` and ``ctc_grad``, the function ``ctc_loss``.
After ``ctc_states``, which says what ``alpha`` and ``beta`` are; before ``tensor``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ..dtype import int32
from ..errors import ArgumentError, DTypeError, IndexRangeError, ShapeError, user_place
from ..op import op
from ..types import Type, abstract
from .comparison import greater, less
from .constant import iota
from .ctc_states import NEVER, States
from .elementwise import maximum, minimum
from .exponential import exp, log
from .logic import logical_and
from .loss import as_tensor, check_reduction, reduced
from .select import cast, where
from .shape import expand_dims, reshape

if TYPE_CHECKING:
    from ..tensor import Tensor

FUNCTIONS = ("ctc_loss",)
PRIVATE = ("ctc", "ctc_grad")


def _check(
    log_probs: Tensor | Type,
    pred_lengths: Tensor | Type,
    label: Tensor | Type,
    label_lengths: Tensor | Type,
    blank: int,
) -> None:
    if not log_probs.dtype.is_float:
        raise DTypeError(f"ctc_loss: pred is {log_probs.dtype}; it must be a float tensor")
    named = {"pred_lengths": pred_lengths, "label": label, "label_lengths": label_lengths}
    for name, type_ in named.items():
        if not type_.dtype.is_integer:
            raise DTypeError(f"ctc_loss: {name} is {type_.dtype}; it must be an integer tensor")
    if log_probs.ndim != 3 or not log_probs.shape[0] or not log_probs.shape[2]:
        raise ShapeError(
            f"ctc_loss: pred has shape {log_probs.shape}; it must be (t, n, c) with at least 1 step and 1 class"
        )
    batch = log_probs.shape[1]
    if label.ndim != 2 or label.shape[0] != batch:
        raise ShapeError(
            f"ctc_loss: label has shape {label.shape}; with pred {log_probs.shape} it must be ({batch}, s)"
        )
    for name in ("pred_lengths", "label_lengths"):
        if named[name].shape != (batch,):
            raise ShapeError(
                f"ctc_loss: {name} has shape {named[name].shape}; it must be ({batch},)"
            )
    if not 0 <= blank < log_probs.shape[2]:
        raise ArgumentError(
            f"ctc_loss: blank is {blank}; pred has {log_probs.shape[2]} classes, so it must be one of them"
        )


@op(autocast="high")
def ctc(
    log_probs: Tensor, pred_lengths: Tensor, label: Tensor, label_lengths: Tensor, *, blank: int = 0
) -> Tensor:
    """Return the negative log-probability of label sequences, over all alignments.

    ``y[n] = -log(sum over paths p that read label[n] of prod_t exp(log_probs[t, n, p[t]]))``

    Parameters
    ----------
    log_probs : (t, n, c) float
        Logarithm of the probability of each class at each step.
    pred_lengths : (n,) integer
        Steps of each sequence, 1 to ``t``.
    label : (n, s) integer
        Classes 0 to ``c - 1`` without ``blank``; what follows a sequence's length is not read.
    label_lengths : (n,) integer
        Labels of each sequence, 0 to ``s``.
    blank : int, default 0
        The class that means "no label".

    Returns
    -------
    (n,) dtype of ``log_probs``; infinity where a label does not fit into its steps

    Raises
    ------
    DTypeError
        ``log_probs`` is no float tensor, or another input no integer one.
    ShapeError
        The shapes do not fit.
    ArgumentError
        ``blank`` is no class.
    IndexRangeError
        A length or a label is out of range (when the values are computed).

    Notes
    -----
    Computed in logarithms, in float32 or wider. Where the loss is infinite its gradient is 0. ``t * n * s`` steps.

    Sources
    -------
    Graves et al., Connectionist Temporal Classification, ICML 2006, section 4.1.

    Examples
    --------
    >>> half = tensor([[[0.5, 0.5]], [[0.5, 0.5]]])
    >>> ctc(F.log(half), tensor([2]), tensor([[1]]), tensor([1]))
    Tensor([0.2876821], dtype=float32, device=ref:0)
    """
    _check(log_probs, pred_lengths, label, label_lengths, blank)
    return abstract(pred_lengths.shape, log_probs.dtype)


def _refuse(name: str, array: np.ndarray, low: int, high: int) -> None:
    """Raise an IndexRangeError that names the first value outside of low to high."""
    bad = array[(array < low) | (array > high)]
    if bad.size:
        raise IndexRangeError(
            f"ctc_loss: {name} holds {int(bad.flat[0])}; it must be {low} to {high}"
        )


def _prepared(log_probs, pred_lengths, label, label_lengths, blank):
    """Check the values; return (log-probability of each state (t, n, 2s + 1), its class, where skips are, lengths)."""
    steps, batch, classes = log_probs.shape
    label, lengths, counts = (a.astype(np.int64) for a in (label, pred_lengths, label_lengths))
    _refuse("pred_lengths", lengths, 1, steps)
    _refuse("label_lengths", counts, 0, label.shape[1])
    read = np.arange(label.shape[1]) < counts[:, None]
    _refuse("label", label[read], 0, classes - 1)
    if (label[read] == blank).any():
        raise IndexRangeError(
            f"ctc_loss: label holds {blank}, which is blank; labels must be other classes"
        )
    states = np.full((batch, 2 * label.shape[1] + 1), blank)
    states[:, 1::2] = np.where(read, label, blank)
    skips = np.zeros(states.shape, np.bool_)
    skips[:, 2:] = (states[:, 2:] != blank) & (states[:, 2:] != states[:, :-2])
    wide = (
        np.promote_types(log_probs.dtype, np.float32) if log_probs.dtype.kind == "f" else np.float32
    )
    chances = np.take_along_axis(
        log_probs.astype(wide), np.broadcast_to(states, (steps, *states.shape)), axis=2
    )
    return chances, states, skips, lengths, counts


def _shifted(x: np.ndarray, by: int) -> np.ndarray:
    """Return the states moved up by ``by``; negative moves them down."""
    y = np.full_like(x, -np.inf)
    if abs(by) < x.shape[1]:
        if by > 0:
            y[:, by:] = x[:, :-by]
        else:
            y[:, :by] = x[:, -by:]
    return y


def _alphas(chances, skips, lengths):
    """Yield ``alpha`` of each step; after a sequence's last step its row stays."""
    alpha = np.full(chances.shape[1:], -np.inf, chances.dtype)
    alpha[:, :2] = chances[0, :, :2]
    yield alpha
    for t in range(1, len(chances)):
        moved = np.logaddexp(alpha, _shifted(alpha, 1))
        moved = np.logaddexp(moved, np.where(skips, _shifted(alpha, 2), -np.inf)) + chances[t]
        alpha = np.where((t < lengths)[:, None], moved, alpha)
        yield alpha


def _total(alpha, counts):
    """Return the log-probability of the label: of the paths that end in its last label or the blank behind it."""
    rows = np.arange(len(alpha))
    before = np.where(counts > 0, alpha[rows, np.maximum(2 * counts - 1, 0)], -np.inf)
    return np.logaddexp(alpha[rows, 2 * counts], before)


@ctc.reference
def _(log_probs, pred_lengths, label, label_lengths, *, blank):
    chances, _, skips, lengths, counts = _prepared(
        log_probs, pred_lengths, label, label_lengths, blank
    )
    with np.errstate(all="ignore"):
        *_, alpha = _alphas(chances, skips, lengths)
        return (-_total(alpha, counts)).astype(log_probs.dtype)


@ctc.gradient
def _(dy, y, log_probs, pred_lengths, label, label_lengths, *, blank):
    return (
        ctc_grad(dy, log_probs, pred_lengths, label, label_lengths, blank=blank),
        None,
        None,
        None,
    )


@ctc.lowering
def _(log_probs, pred_lengths, label, label_lengths, *, blank):
    states = States(log_probs, pred_lengths, label, label_lengths, blank)
    *_, alpha = states.alphas()
    total = reshape(states.total(alpha), pred_lengths.shape)
    return cast(where(less(total, NEVER / 10), math.inf, -total), dtype=log_probs.dtype)


def _samples(rng, with_dy):
    lengths, label = np.array([4, 3]), np.array([[1, 1], [2, 0]])
    for steps, counts, blank in [(4, [2, 1], 0), (5, [1, 0], 0), (4, [2, 1], 3)]:
        logits = rng.normal(size=(steps, 2, 4))
        chances = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        inputs = (
            chances,
            lengths,
            label if blank == 0 else np.array([[1, 0], [2, 2]]),
            np.array(counts),
        )
        yield ((rng.normal(size=2), *inputs) if with_dy else inputs), {"blank": blank}
    empty = (
        np.zeros((2, 0, 3)),
        np.zeros(0, np.int32),
        np.zeros((0, 1), np.int32),
        np.zeros(0, np.int32),
    )
    yield ((np.zeros(0), *empty) if with_dy else empty), {}


@ctc.samples
def _(rng):
    yield from _samples(rng, with_dy=False)
    impossible = (
        np.array([2]),
        np.array([[1, 1]]),
        np.array([2]),
    )  # needs a blank between: three steps
    yield (np.full((2, 1, 3), -1.0, np.float32), *impossible), {}


@op(autocast="high")
def ctc_grad(
    dy: Tensor,
    log_probs: Tensor,
    pred_lengths: Tensor,
    label: Tensor,
    label_lengths: Tensor,
    *,
    blank: int = 0,
) -> Tensor:
    """Return the gradient of ``ctc`` in the log-probabilities.

    ``y[t, n, k] = -dy[n] * sum over states s of class k of exp(alpha[t, s] + beta[t, s] + ctc[n])``

    Parameters
    ----------
    dy : (n,) dtype of ``log_probs``
    log_probs : (t, n, c) float
    pred_lengths : (n,) integer
    label : (n, s) integer
    label_lengths : (n,) integer
    blank : int, default 0

    Returns
    -------
    (t, n, c) dtype of ``log_probs``

    Raises
    ------
    DTypeError
        ``log_probs`` is no float tensor, ``dy`` has another dtype, or another input no integer one.
    ShapeError
        The shapes do not fit.
    ArgumentError
        ``blank`` is no class.
    IndexRangeError
        A length or a label is out of range (when the values are computed).

    Sources
    -------
    Graves et al., Connectionist Temporal Classification, ICML 2006, section 4.2.

    Examples
    --------
    >>> chances = F.log(tensor([[[0.5, 0.5]]]))
    >>> ctc_grad(tensor([1.0]), chances, tensor([1]), tensor([[1]]), tensor([1]))
    Tensor([[[ 0., -1.]]], dtype=float32, device=ref:0)
    """
    _check(log_probs, pred_lengths, label, label_lengths, blank)
    if dy.dtype != log_probs.dtype:
        raise DTypeError(
            f"ctc_grad: dy is {dy.dtype} and log_probs is {log_probs.dtype}; both must be the same"
        )
    if dy.shape != pred_lengths.shape:
        raise ShapeError(f"ctc_grad: dy has shape {dy.shape}; it must be {pred_lengths.shape}")
    return abstract(log_probs.shape, log_probs.dtype)


@ctc_grad.reference
def _(dy, log_probs, pred_lengths, label, label_lengths, *, blank):
    chances, states, skips, lengths, counts = _prepared(
        log_probs, pred_lengths, label, label_lengths, blank
    )
    steps, rows = len(chances), np.arange(len(states))
    with np.errstate(all="ignore"):
        alpha = np.stack(list(_alphas(chances, skips, lengths)))
        total = _total(alpha[-1], counts)
        line = np.arange(states.shape[1])
        ends = (line >= 2 * counts[:, None] - 1) & (line <= 2 * counts[:, None])
        last = np.where(ends, chances.dtype.type(0), -np.inf).astype(chances.dtype)
        beta = np.empty_like(alpha)
        beta[-1] = last
        for t in range(steps - 2, -1, -1):
            after = beta[t + 1] + chances[t + 1]
            moved = np.logaddexp(after, _shifted(after, -1))
            moved = np.logaddexp(moved, _shifted(np.where(skips, after, -np.inf), -2))
            beta[t] = np.where((t + 1 < lengths)[:, None], moved, last)
        share = np.exp(alpha + beta - total[:, None])
        share[:, ~np.isfinite(total)] = 0
        share *= np.arange(steps)[:, None, None] < lengths[:, None]
        share *= -dy.astype(chances.dtype)[:, None]
    y = np.zeros(log_probs.shape, chances.dtype)
    for s in range(states.shape[1]):
        y[:, rows, states[:, s]] += share[:, :, s]
    return y.astype(log_probs.dtype)


@ctc_grad.lowering
def _(dy, log_probs, pred_lengths, label, label_lengths, *, blank):
    from .create import full
    from .gather import put_along
    from .join import concat

    states = States(log_probs, pred_lengths, label, label_lengths, blank)
    alphas = list(states.alphas())
    betas = list(states.betas())[::-1]
    total = states.total(alphas[-1])
    possible = greater(total, NEVER / 10)
    factor = where(possible, -expand_dims(cast(dy, dtype=states.dtype), axis=1), 0.0)
    shares = []
    for t, (alpha, beta) in enumerate(zip(alphas, betas)):
        inside = logical_and(possible, greater(states.lengths, t))
        share = exp(where(inside, minimum(alpha + beta - total, 1.0), NEVER)) * factor
        shares.append(expand_dims(share, axis=0))
    zeros = full(log_probs.shape, 0, dtype=states.dtype)
    y = put_along(zeros, states.index, concat(shares, axis=0), axis=2, mode="add")
    return cast(y, dtype=log_probs.dtype)


@ctc_grad.samples
def _(rng):
    yield from _samples(rng, with_dy=True)


def ctc_loss(
    pred: Tensor,
    pred_lengths: Tensor,
    label: Tensor,
    label_lengths: Tensor,
    blank: int = 0,
    reduction: str = "mean",
    with_logits: bool = False,
) -> Tensor:
    """Return the mean loss of label sequences that are not aligned with their input.

    ``y = mean_n(-log(p(label[n] | pred[n])) / max(label_lengths[n], 1))``

    Parameters
    ----------
    pred : (t, n, c) float
        Probability of each class at each step; logits with ``with_logits=True``, which is more exact.
    pred_lengths : (n,) integer
        Steps of each sequence, 1 to ``t``.
    label : (n, s) integer, or (sum of ``label_lengths``,)
        Classes 0 to ``c - 1`` without ``blank``: padded rows, or all sequences one after the other.
    label_lengths : (n,) integer
    blank : int, default 0
        The class that means "no label".
    reduction : {"mean", "sum", "none"}, default "mean"
        Only ``"mean"`` divides by the lengths.
    with_logits : bool, default False

    Returns
    -------
    () dtype of ``pred``; (n,) with ``reduction="none"``

    Raises
    ------
    DTypeError
        ``pred`` is no float tensor, or another input no integer one.
    ShapeError
        The shapes do not fit.
    ArgumentError
        ``blank`` is no class, or there is no such ``reduction``.
    IndexRangeError
        A length or a label is out of range (when the values are computed).

    Notes
    -----
    Infinity where a label does not fit into its steps; its gradient is 0 there. Probabilities below 1e-30 count as
    1e-30.

    Sources
    -------
    Graves et al., Connectionist Temporal Classification, ICML 2006.

    Examples
    --------
    >>> half = tensor([[[0.5, 0.5]], [[0.5, 0.5]]])
    >>> ctc_loss(half, tensor([2]), tensor([[1]]), tensor([1]))
    Tensor(0.2876821, dtype=float32, device=ref:0)
    """
    from .softmax import logsoftmax

    check_reduction(reduction, "ctc_loss")
    pred, pred_lengths, label, label_lengths = map(
        as_tensor, (pred, pred_lengths, label, label_lengths)
    )
    if pred.ndim != 3:
        raise ShapeError(f"ctc_loss: pred has shape {pred.shape}; it must be (t, n, c)").add_place(
            user_place()
        )
    if with_logits:
        chances = logsoftmax(pred, axis=2)
    else:
        chances = log(maximum(pred, 1e-30 if pred.dtype.itemsize > 2 else 1e-7))
    if label.ndim == 1:
        label = _padded(label, label_lengths, pred.shape[0])
        label_lengths = minimum(label_lengths, label.shape[1])
    loss = ctc(chances, pred_lengths, label, label_lengths, blank=blank)
    if reduction == "mean":
        loss = loss / cast(maximum(label_lengths, 1), dtype=loss.dtype)
    return reduced(loss, reduction)


def _padded(label: Tensor, label_lengths: Tensor, steps: int) -> Tensor:
    """Return sequences that stand one after the other as rows; a row is cut where no path could reach."""
    from .gather import index
    from .scan import cumsum

    if not label.size:
        return reshape(label, (label_lengths.shape[0], 0))
    width = min(label.size, steps + 1)
    counts = cast(label_lengths, dtype=int32)
    starts = expand_dims(cumsum(counts, axis=0) - counts, axis=1)
    places = minimum(starts + iota(shape=(1, width), axis=1), label.size - 1)
    return index(label, places, axes=(0,))
