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
from mge.plugin import MemoryReport, MemoryRequest, MemorySchedule, MemoryStrategy

from .curve import Curve, Point, curve_of
from .native import library

SLOWDOWN = 0.1  # share of the time that may be added where neither budget nor slowdown is given
WORK = 8_000_000  # pairs of values that the improvement of a layout looks at: 0.1 s


class Sublinear(MemoryStrategy):
    """The fastest plan that is known for a budget: values are computed again instead of kept.

    Options
    -------
    budget : bytes, or a share of what ``static`` takes
    max_slowdown : float
        The smallest plan that takes at most this share of the time more; 0.1 where there is no budget either.
    aim : bytes
        A budget that need not be kept: the smallest plan where none is within it.
    effort : float
        How long to search; 1 takes about a second for 300 nodes.
    seed : int
    """

    name = "sublinear"
    kind = "search"
    options = {"max_slowdown": None, "aim": "0", "effort": 1.0, "seed": 0}

    def plan(self, request: MemoryRequest) -> MemorySchedule:
        """Return what runs when."""
        options = request.options
        curve = curve_of(request, self.kind, options["seed"], options["effort"])
        slowdown, budget = options["max_slowdown"], request.budget_bytes
        if aim := parse_bytes(options["aim"]):
            point = curve.fastest(aim) or curve.smallest()
        elif slowdown is None and budget is not None:
            point = curve.fastest(budget)
        else:
            share = SLOWDOWN if slowdown is None else slowdown
            point = curve.smallest((1 + share) * curve.plans[0].time_ns)
        if point and budget is not None and point.peak_bytes > budget:
            point = None
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


def _infeasible(request: MemoryRequest, curve: Curve) -> MemorySchedule:
    """Return the smallest plan with the reason why nothing fits: the core refuses it, and says the reason."""
    point: Point = curve.smallest()
    plan = point.plan
    results = sum(v.nbytes for v in request.values if v.pinned == "output")
    slowdown = plan.time_ns / curve.plans[0].time_ns - 1 if curve.plans[0].time_ns else 0
    updates = {v for n in request.nodes if n.phase == "update" for v in n.inputs}
    waiting = sum(request.values[v].nbytes for v in updates if not request.values[v].pinned)
    share = (request.budget_bytes or 0) / max(1, point.peak_bytes)
    reason = f"That plan takes {slowdown:.0%} more time"
    if waiting:
        reason += f"; gradients that wait for the update are {waiting:,} bytes"
    if results:
        reason += f"; at most {results:,} bytes are results"
    reason += f". A batch of {share:.0%} of this one would about fit"
    report = MemoryReport(
        plan.time_ns, point.peak_bytes, plan.node if plan.node >= 0 else None, reason
    )
    return point.schedule(report)
