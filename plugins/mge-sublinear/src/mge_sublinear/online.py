"""The strategy ``dtr``: values go as memory runs short, for code whose structure changes on every call.

In: a ``MemoryRequest``. Out: a ``MemorySchedule``, made without a search.
After ``strategies``; before nothing.
"""

from __future__ import annotations

from mge.device import parse_bytes
from mge.plugin import MemoryReport, MemoryRequest, MemorySchedule, Run

from .native import Problem
from .strategies import Sublinear, busiest

TRIES = 8  # thresholds for one budget
MOST = 8  # runs for each node: where more are needed, values come and go without end
SHARE = 0.7  # of what is used without it, where nothing is asked for


class Dtr(Sublinear):
    """Dynamic tensor rematerialisation: what is cheap, large and has not been used for long goes first.

    Planning takes time in proportion to the graph. ``budget`` is a hard limit here, too.

    Options
    -------
    budget : bytes, or a share of what ``static`` takes
    eviction_threshold : bytes
        In use, from which values go; 0 takes the budget, or 70% of what is used without it.
    evictee_minimum_size : bytes
        Smaller values stay.
    memory_factor, time_factor : float
        How much the size of a value, and the time to compute it again, count.
    sqrt_sampling : bool
        Look at a sample of the values each time, as many as the square root.
    """

    name = "dtr"
    options = {
        "eviction_threshold": "0",
        "evictee_minimum_size": "1MB",
        "memory_factor": 1.0,
        "time_factor": 1.0,
        "sqrt_sampling": False,
    }

    def plan(self, request: MemoryRequest) -> MemorySchedule:
        """Return what runs when."""
        o = request.options
        problem = Problem(request)
        budget, threshold = request.budget_bytes, parse_bytes(o["eviction_threshold"])
        smallest: list[int] = [n.number for n in request.nodes]  # so far; nothing is computed again
        floor = request.measure([Run(i) for i in smallest])
        tries = TRIES
        if not threshold:
            used = problem.simulate().live_bytes
            threshold = int(SHARE * used) if budget is None else min(budget, used)
            tries = 0 if budget is not None and floor <= budget else TRIES
        least = parse_bytes(o["evictee_minimum_size"])
        for _ in range(tries):
            runs = problem.dtr(
                threshold, least, o["memory_factor"], o["time_factor"], o["sqrt_sampling"]
            )
            if len(runs) > MOST * len(request.nodes):
                break
            peak = request.measure([Run(i) for i in runs])
            if peak < floor:
                floor, smallest = peak, runs
            if budget is None or peak <= budget:
                break
            threshold -= max(peak - budget, threshold // 64)
            if threshold <= 0:
                break
        reason = "The strategy sublinear may take less"
        if least:
            stay = f"Values under evictee_minimum_size={o['evictee_minimum_size']} stay"
            reason = f"{stay}: a smaller one, or the strategy sublinear, may take less"
        steps = [Run(i) for i in smallest]
        node = busiest(request, steps) if budget is not None and floor > budget else None
        time_ns = sum(request.nodes[i].time_ns for i in smallest)
        return MemorySchedule(steps, floor, MemoryReport(time_ns, floor, node, reason))
