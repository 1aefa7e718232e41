"""The strategy ``dtr``: values go as memory runs short, for code whose structure changes on every call.

In: a ``MemoryRequest``. Out: a ``MemorySchedule``, made without a search.
After ``strategies``; before nothing.
"""

from __future__ import annotations

from mge.device import parse_bytes
from mge.plugin import MemoryReport, MemoryRequest, MemorySchedule, Run

from .curve import with_early_updates
from .native import Problem
from .strategies import Sublinear

TRIES = 8  # thresholds for one budget
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
        order = with_early_updates(request, list(range(len(request.nodes))))
        problem = Problem(request._replace(nodes=[request.nodes[i] for i in order]))
        budget, threshold = request.budget_bytes, parse_bytes(o["eviction_threshold"])
        if not threshold:
            used = problem.simulate().live_bytes
            threshold = int(SHARE * used) if budget is None else min(budget, used)
        least = parse_bytes(o["evictee_minimum_size"])
        floor = None
        for _ in range(TRIES):
            runs = problem.dtr(
                threshold, least, o["memory_factor"], o["time_factor"], o["sqrt_sampling"]
            )
            runs = [order[i] for i in runs]
            steps = [Run(i) for i in runs]
            peak = request.measure(steps)
            floor = peak if floor is None else min(floor, peak)
            if budget is None or peak <= budget:
                break
            threshold -= max(peak - budget, threshold // 64)
            if threshold <= 0:
                break
        reason = "A smaller evictee_minimum_size, or the strategy sublinear, may take less"
        report = MemoryReport(sum(request.nodes[i].time_ns for i in runs), floor, None, reason)
        return MemorySchedule(steps, peak, report)
