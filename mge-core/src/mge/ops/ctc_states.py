"""The states of connectionist temporal classification, in base ops: what the lowerings of ``ctc`` share.

In: log-probabilities a step, labels, lengths. Out: ``States``, with ``alpha`` and ``beta`` of each step.
After ``loss``; before ``ctc``.

The states of a label ``a b`` are ``_ a _ b _`` with blanks ``_``. From a state a path stays, moves on by one, or by
two where that skips a blank between different labels. ``alpha[t, s]`` is the log-probability of all paths up to step
``t`` that end in state ``s``; ``beta[t, s]`` that of all continuations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..dtype import int32, wide_of
from .comparison import greater, greater_equal, less, not_equal
from .constant import iota
from .elementwise import maximum
from .exponential import exp, log
from .logic import logical_and
from .select import cast, detach, where
from .shape import broadcast_to, expand_dims, reshape
from .slicing import slice_along

if TYPE_CHECKING:
    from ..tensor import Tensor

NEVER = -1e30  # the logarithm of 0 in the lowering: finite, so that its gradient is 0 and not NaN


class States:
    """What the lowerings share: the states' log-probabilities and masks, and the moves between states."""

    def __init__(self, log_probs, pred_lengths, label, label_lengths, blank):
        from .create import full
        from .gather import take_along
        from .join import concat

        self.steps, batch, _ = log_probs.shape
        count = 2 * label.shape[1] + 1
        self.dtype = wide_of(log_probs.dtype)
        self.lengths = reshape(cast(pred_lengths, dtype=int32), (batch, 1))
        self.counts = reshape(cast(label_lengths, dtype=int32), (batch, 1))
        label = cast(label, dtype=int32)
        label = where(less(iota(shape=(1, label.shape[1]), axis=1), self.counts), label, blank)
        pairs = concat(
            [expand_dims(label, axis=2), full((*label.shape, 1), blank, dtype=int32)], axis=2
        )
        states = concat(
            [full((batch, 1), blank, dtype=int32), reshape(pairs, (batch, count - 1))], axis=1
        )
        self.never = full((batch, 2), NEVER, dtype=self.dtype)
        self.line = iota(shape=(1, count), axis=1)
        ahead = concat([full((batch, 2), blank, dtype=int32), states], axis=1)
        two_before = slice_along(ahead, 1, 0, count)
        self.skips = logical_and(not_equal(states, blank), not_equal(states, two_before))
        self.index = broadcast_to(expand_dims(states, axis=0), (self.steps, batch, count))
        self.chances = take_along(cast(log_probs, dtype=self.dtype), self.index, axis=2)
        self.count = count

    def chance(self, t):
        return reshape(slice_along(self.chances, 0, t, t + 1), self.chances.shape[1:])

    def up(self, x, by):
        from .join import concat

        return slice_along(concat([self.never, x], axis=1), 1, 2 - by, 2 - by + self.count)

    def down(self, x, by):
        from .join import concat

        return slice_along(concat([x, self.never], axis=1), 1, by, by + self.count)

    def alphas(self):
        alpha = where(less(self.line, 2), self.chance(0), NEVER)
        yield alpha
        for t in range(1, self.steps):
            skipped = where(self.skips, self.up(alpha, 2), NEVER)
            moved = _log_sum(alpha, self.up(alpha, 1), skipped) + self.chance(t)
            alpha = where(greater(self.lengths, t), moved, alpha)
            yield alpha

    def betas(self):
        """Yield ``beta`` of each step, the last one first."""
        from .create import full

        ends = logical_and(
            greater_equal(self.line, self.counts * 2 - 1), less(self.line, self.counts * 2 + 1)
        )
        last = where(ends, full((1, self.count), 0.0, dtype=self.dtype), NEVER)
        beta = last
        yield beta
        for t in range(self.steps - 2, -1, -1):
            after = beta + self.chance(t + 1)
            skipped = self.down(where(self.skips, after, NEVER), 2)
            moved = _log_sum(after, self.down(after, 1), skipped)
            beta = where(greater(self.lengths, t + 1), moved, last)
            yield beta

    def total(self, alpha):
        from .gather import take_along

        before = take_along(alpha, maximum(self.counts * 2 - 1, 0), axis=1)
        before = where(greater(self.counts, 0), before, NEVER)
        return _log_sum(take_along(alpha, self.counts * 2, axis=1), before)


def _log_sum(*terms: Tensor) -> Tensor:
    """Return log(sum(exp(terms)))."""
    top = terms[0]
    for term in terms[1:]:
        top = maximum(top, term)
    top = detach(top)
    total = exp(terms[0] - top)
    for term in terms[1:]:
        total = total + exp(term - top)
    return top + log(total)
