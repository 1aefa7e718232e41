"""The strategies that plan before anything runs: ``sublinear`` and ``sqrt``.

In: a ``MemoryRequest`` with a budget or a slowdown. Out: a ``MemorySchedule``, offsets in the arena.
After ``curve``; before nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from mge.device import parse_bytes
from mge.plugin import MemoryReport, MemoryRequest, MemorySchedule, MemoryStrategy, Offload, Run

from .curve import Curve, Point, curve_of
from .native import library
from .options import broken_rule

SLOWDOWN = 0.1  # share of the time that may be added where neither budget nor slowdown is given
WORK = 3_000_000  # pairs of values that each improvement of a layout looks at


class Sublinear(MemoryStrategy):
    """The fastest plan that is known for a budget: values are computed again instead of kept.

    Options
    -------
    budget : bytes, or a share of what ``static`` takes
    max_slowdown : float
        The smallest plan that takes at most this share of the time more; 0.1 where there is no budget either. With a
        budget: the fastest plan that keeps both.
    aim : bytes
        A budget that need not be kept: the smallest plan where none is within it.
    effort : float
        How long to search; 1 takes about a second for 300 nodes.
    seed : int
    """

    name = "sublinear"
    kind = "search"
    options = {"max_slowdown": None, "aim": "0", "effort": 1.0, "seed": 0}

    def check(self, name: str, value: Any) -> str | None:
        """Return the rule that the value of an option breaks."""
        return broken_rule(name, value)

    def plan(self, request: MemoryRequest) -> MemorySchedule:
        """Return what runs when."""
        options = request.options
        curve = curve_of(request, self.kind, options["seed"], options["effort"])
        slowdown, budget = options["max_slowdown"], request.budget_bytes
        most_ns = (1 + (SLOWDOWN if slowdown is None else slowdown)) * curve.plans[0].time_ns
        if aim := parse_bytes(options["aim"]):
            point = curve.fastest(min(aim, budget or aim)) or curve.smallest()
        elif budget is not None:
            point = curve.fastest(budget)
        else:
            point = curve.smallest(most_ns)
        if point and budget is not None and point.peak_bytes > budget:
            point = None
        if point and slowdown is not None and point.plan.time_ns > most_ns:
            return _too_slow(point, curve, slowdown)
        return point.schedule() if point else _infeasible(request, curve)

    def layout(self, values: Sequence[Any], alignment: int) -> list[int]:
        """Return the best of several greedy layouts, improved."""
        starts = np.array([v.start for v in values], np.int32)
        ends = np.array([v.end for v in values], np.int32)
        sizes = np.array([-(-v.nbytes // alignment) * alignment for v in values], np.int64)
        offsets = np.zeros(len(values), np.int64)
        arrays = (ctypes.c_void_p(a.ctypes.data) for a in (starts, ends, sizes))
        library().mge_sublinear_layout(
            len(values), *arrays, ctypes.c_int64(WORK), ctypes.c_void_p(offsets.ctypes.data)
        )
        return offsets.tolist()


class Sqrt(Sublinear):
    """Checkpoints that share the saved bytes out evenly; all else is computed again, segment by segment."""

    name = "sqrt"
    kind = "checkpoints"


def _slowdown(point: Point, curve: Curve) -> float:
    """Return which share of the time of ``static`` a plan takes more."""
    least = curve.plans[0].time_ns
    return point.plan.time_ns / least - 1 if least else 0.0


def _too_slow(point: Point, curve: Curve, slowdown: float) -> MemorySchedule:
    """Return the smallest plan that is fast enough, with the reason why the core must refuse it."""
    within = curve.smallest((1 + slowdown) * curve.plans[0].time_ns)
    reason = (
        f"That is the least within max_slowdown={slowdown:g}; the budget alone can be kept, "
        f"in {_slowdown(point, curve):.1%} more time. Give a larger budget, or a larger max_slowdown"
    )
    node = within.plan.node if within.plan.node >= 0 else None
    report = MemoryReport(within.plan.time_ns, within.peak_bytes, node, reason)
    return within.schedule(report)


def _infeasible(request: MemoryRequest, curve: Curve) -> MemorySchedule:
    """Return the smallest plan with the reason why nothing fits: the core refuses it, and says the reason."""
    point: Point = curve.smallest()
    plan, values, budget = point.plan, request.values, request.budget_bytes or 0
    placed = {b for n in request.nodes for a, b in n.inplace if values[a].pinned}
    results = sum(v.nbytes for v in values if v.pinned == "output" and v.number not in placed)
    updates = {v for n in request.nodes if n.phase == "update" for v in n.inputs}
    waiting = sum(values[v].nbytes for v in updates if not values[v].pinned)
    reason = f"That plan takes {_slowdown(point, curve):.0%} more time"
    if waiting:
        reason += f"; gradients that wait for the update are {waiting:,} bytes"
    if results:
        reason += f"; {results:,} bytes are results"
    reason += f". {_batch(budget, point.peak_bytes, results)}"
    report = MemoryReport(
        plan.time_ns, point.peak_bytes, plan.node if plan.node >= 0 else None, reason
    )
    return point.schedule(report)


def _batch(budget: int, floor: int, results: int) -> str:
    """Return what a budget means for the batch."""
    share = (budget - results) / max(floor - results, 1)
    if share <= 0:
        return "The results alone take the budget"
    of = f"{share:.0%}" if share >= 0.01 else "less than 1%"
    return f"A batch of {of} of this one would about fit"


def busiest(request: MemoryRequest, steps: Sequence[Any]) -> int | None:
    """Return the node that runs when most is live, for what a plan that does not fit says of its floor."""
    values, most, at = request.values, -1, None
    waiting: set[int] = set()  # what is read after the step
    for step in reversed(steps):
        if isinstance(step, Run):
            node = request.nodes[step.node]
            live = waiting.union(node.inputs, node.outputs)
            nbytes = sum(values[v].nbytes for v in live if not values[v].pinned)
            if nbytes > most:
                most, at = nbytes, node.number
            waiting.difference_update(node.outputs)
            waiting.update(node.inputs)
        elif isinstance(step, Offload):
            waiting.add(step.value)
        else:
            waiting.discard(step.value)
    return at
