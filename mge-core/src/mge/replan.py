"""Re-planning: the first runs of a plan take the time of each step, and then its strategy is asked once more.

In: a plan in which a strategy computes values again, and its graph. Out: the plan to run from then on.
After ``execute``; before ``cache``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from sys import getrefcount
from time import perf_counter
from typing import Any

from .debug import debug
from .discovery import first_line
from .execute import execute
from .graph import Graph, Signature
from .memory import find_strategy
from .plan import Plan

WARM, TIMED = 1, 3  # runs without times, which touch the memory first, and with them
GAIN = 0.02  # share of the time that a plan must be off by, and that another must save


class Trial:
    """The first runs of a plan.

    Attributes
    ----------
    graph : Graph
        What the plan was made of.
    runs : int
        Those that came to their end.
    times : dict of Signature to list of int, ns
        Of each run of each step; those of one signature do the same work.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph, self.runs = graph, 0
        self.times: dict[Signature, list[int]] = defaultdict(list)

    def run(self, compiled: Any, buffers: Sequence[Any]) -> list[Any]:
        """Run the plan of a ``cache.CompiledPlan``; once the times are known, plan again first.

        An interrupt while it plans loses nothing: no input has been overwritten.
        """
        is_over = self.runs >= WARM + TIMED
        if is_over and compiled.__dict__.pop("trial", None):  # one thread gets it
            plan = compiled.plan
            compiled.plan = replanned(plan, self.graph, self.times)
            if compiled.plan is not plan:
                _leave(plan)
        return execute(compiled.plan, buffers, None if is_over else self.see)

    def see(self, plan: Plan, number: int, start: int, end: int) -> None:
        """Keep the time of one step."""
        self.times[plan.steps[number].slot.node.sig].append(end - start)
        if number + 1 == len(plan.steps):
            self.runs += 1
            if self.runs == WARM:
                self.times.clear()


def trial_of(plan: Plan, graph: Graph) -> Trial | None:
    """Return the trial of a plan of a graph; None where nothing can be gained, or the user wants no second plan.

    A plan that computes nothing twice is as fast as any. What moves are worth, the times of steps do not tell.
    """
    again = len(plan.steps) > len(plan.once) > 0 and not debug.deterministic
    only_runs = again and {s.slot.node.sig for s in plan.steps} == {*plan.once}
    return Trial(graph) if only_runs and find_strategy(plan.strategy).replan else None


def replanned(plan: Plan, graph: Graph, times: dict[Signature, list[int]]) -> Plan:
    """Return the plan that its strategy makes by measured times, where that takes clearly less; else the plan.

    The strategy is asked only where computing twice costs clearly more than was modelled: planning takes seconds, and
    a plan that is as good as it was meant to be has seldom a better one.
    """
    modelled_ns, once_ns = plan.predicted_ns()
    plan.times = {sig: median(ns) for sig, ns in times.items()}
    made, (before_ns, least_ns), start = plan, plan.predicted_ns(), perf_counter()
    meant_ns = least_ns * modelled_ns / max(once_ns, 1)
    told = f"{meant_ns / 1e6:,.3f} as modelled"
    try:
        if meant_ns < (1 - GAIN) * before_ns:
            made = Plan(graph, plan.donated, plan.strategy, plan.times)
            after_ns, _ = made.predicted_ns()
            told = f"{after_ns / 1e6:,.3f} planned again, in {perf_counter() - start:.1f} s"
            if after_ns >= (1 - GAIN) * before_ns or made.overwrites != plan.overwrites:
                made = plan
    except Exception as error:  # a plan that works is there
        made, told = plan, f"planning again failed: {first_line(error)}"
    stays = "the plan stays" if made is plan else "the new plan is used"
    what = f'memory strategy "{plan.strategy}": {before_ns / 1e6:,.3f} ms by measured times'
    debug.log(1, f"{what}, {told}: {stays}")
    return made


def _leave(plan: Plan) -> None:
    """Give up the executor's arrays of a plan, and its arenas where no other plan is bound to them."""
    plan.bound = None
    for device in plan.arenas:
        with device.lock:
            if getrefcount(device.arena) <= 2:  # the device's, and the argument
                device.arena = None
