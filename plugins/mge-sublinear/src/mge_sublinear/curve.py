"""The trade-off curve of a graph: plans from the fastest to the smallest, each with its peak to the byte.

In: a ``MemoryRequest``. Out: ``Curve``, made once for each request, whatever its budget.
After ``native``; before ``strategies``.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from mge.plugin import MemoryReport, MemoryRequest, MemorySchedule, Run

from .native import Found, Problem

PROPOSALS = 500_000  # plans that the search tries
LARGE = 2_000  # nodes from which it tries fewer, as each takes longer
SMALL = 1e-4  # share of the peak below which a value is always kept
KEPT = 4  # curves


def settled(request: MemoryRequest, runs: Sequence[int]) -> list[int]:
    """Return runs in which each update comes after all that read its parameter, computed again or not."""
    nodes = request.nodes
    written = {a for n in nodes if n.phase == "update" for a, _ in n.inplace}
    last: dict[int, int] = {}
    for place, i in enumerate(runs):
        if nodes[i].phase != "update":
            last |= dict.fromkeys(written.intersection(nodes[i].inputs), place)

    def earliest(place: int) -> float:
        node = nodes[runs[place]]
        if node.phase != "update" or not node.is_pure:
            return place
        return max([place, *(last.get(a, -1) for a, _ in node.inplace)]) + 0.5

    return [runs[i] for i in sorted(range(len(runs)), key=earliest)]


class Point(NamedTuple):
    """One plan of the curve.

    Attributes
    ----------
    plan : Found
    peak_bytes : int, bytes
        Of the whole plan: arena, scratch and results.
    """

    plan: Found
    peak_bytes: int

    def schedule(self, report: MemoryReport | None = None) -> MemorySchedule:
        """Return the plan as the core takes it."""
        report = report or MemoryReport(self.plan.time_ns)
        return MemorySchedule(_steps(self.plan.runs), self.peak_bytes, report)


class Curve:
    """Plans from the fastest, which computes nothing twice, to the one that takes least.

    Parameters
    ----------
    request : MemoryRequest
    kind : {"search", "checkpoints"}
        All that the planner knows, or checkpoints at equal distances alone.
    seed : int
    effort : float
        How long to search: 1 tries 500,000 plans, for more than 2,000 nodes fewer.
    """

    def __init__(self, request: MemoryRequest, kind: str, seed: int, effort: float) -> None:
        self._measure, self._peaks = request.measure, dict[int, int]()
        keep_all = Problem(request).simulate()
        problem = Problem(request, max(1, int(SMALL * keep_all.live_bytes)))
        proposals = int(effort * PROPOSALS * min(1, LARGE / max(1, len(problem.nodes))))
        found = problem.search(seed, proposals, kind == "checkpoints") if problem.nodes else []
        self.plans = [keep_all, *(p for p in found if p.live_bytes < keep_all.live_bytes)]
        self._request = request

    def point(self, index: int) -> Point:
        """Return a plan of the curve with its peak, which is measured at first use."""
        if index not in self._peaks:
            plan = self.plans[index]
            plan = self.plans[index] = plan._replace(runs=settled(self._request, plan.runs))
            self._peaks[index] = self._measure(_steps(plan.runs))
        return Point(self.plans[index], self._peaks[index])

    def fastest(self, budget_bytes: int) -> Point | None:
        """Return the fastest plan within a budget; None where none is."""
        for i, plan in enumerate(self.plans):
            if plan.live_bytes <= budget_bytes and self.point(i).peak_bytes <= budget_bytes:
                return self.point(i)
        return None

    def smallest(self, most_ns: float = float("inf")) -> Point:
        """Return the plan with the smallest peak of those that take no longer."""
        within = [i for i, plan in enumerate(self.plans) if plan.time_ns <= most_ns]
        return min(map(self.point, within[-3:] or [0]), key=lambda p: p.peak_bytes)


def _steps(order: Sequence[int]) -> list[Run]:
    return [Run(i) for i in order]


_CURVES: OrderedDict[tuple, Curve] = OrderedDict()
_LOCK = threading.Lock()


def curve_of(request: MemoryRequest, kind: str, seed: int, effort: float) -> Curve:
    """Return the curve of a request, kept for those that ask again with another budget."""
    key = (tuple(request.nodes), tuple(request.values), request.alignment, kind, seed, effort)
    with _LOCK:
        found = _CURVES.pop(key, None)
    if found is None:
        found = Curve(request, kind, seed, effort)
    found._measure = request.measure  # that of a plan that still lives
    with _LOCK:
        _CURVES[key] = found
        while len(_CURVES) > KEPT:
            _CURVES.popitem(last=False)
    return found
