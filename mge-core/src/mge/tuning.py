"""Tuning: the algorithm of a node that has several, by times inside whole plans.

In: what passes of devices ask (``choose``), and plans to time (``tune``). Out: entries of the tuning cache.
After ``run``; before ``cli``.

A pass asks ``choose`` for each node with several algorithms. It answers with the entry of the tuning cache, or with the
pass's own choice where there is none: a function of the node and the cache, and of no clock. ``tune`` compiles a graph
once for each algorithm, taken by all nodes that have it, and runs these plans in turn: each step finds the caches as
its neighbours in the plan leave them. An algorithm must win by 3 %, and win again in the plan of all winners.

A device whose passes ask has a method ``choice_of(node)``. For a node of a finished plan it returns None, or the words
that ``choose`` was asked with, the algorithm taken, and the nodes whose times count with it.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from .cache import CompiledPlan
from .debug import debug
from .discovery import first_line
from .errors import PluginUnavailable
from .execute import WATCHERS
from .graph import Node
from .native import load_module, thread_count, tuning_path
from .order import is_repeatable

__all__ = ["Choice", "Report", "choose", "tune"]

SECONDS = 15.0  # of timing; one round of all plans is made in any case
GAIN = 0.97  # the share of the present algorithm's time that another must stay below
BURST = 3  # runs of a plan in a row; the first finds what another plan left in the caches, and does not count
ROUNDS = 12


class _Offer(NamedTuple):
    candidates: tuple[str, ...]
    now: str


class _Round:
    """One compilation: what it takes, and what it was asked.

    ``picks`` are by key; where a key has none, ``candidate`` is taken by whoever has it.
    """

    def __init__(self, candidate: str = "", picks: Mapping[str, str] | None = None) -> None:
        self.candidate = candidate
        self.picks: Mapping[str, str] = picks or {}
        self.offers: dict[str, _Offer] = {}


_ROUND: ContextVar[_Round | None] = ContextVar("round", default=None)


def choose(device: Any, use: str, candidates: Sequence[str], default: str) -> str:
    """Return the algorithm for a node; passes ask where there are several.

    Parameters
    ----------
    device : Device
        The node's.
    use : str
        All that times depend on: op, types, attributes.
    candidates : sequence of str
        Algorithms that the device has for it.
    default : str
        What it takes without an entry.

    Returns
    -------
    str
        One of ``candidates``, or ``default``.
    """
    key = _key(device, use)
    stored = _stored(key)
    now = stored if stored in candidates else default
    current = _ROUND.get()
    if current is None:
        return now
    current.offers[key] = _Offer(tuple(candidates), now)
    wanted = current.picks.get(key, current.candidate)
    return wanted if wanted in candidates else now


def _key(device: Any, use: str) -> str:
    """Return the key in the cache: versions, level of instructions and number of threads (to a power of two) too."""
    backend = device.backend
    capabilities = getattr(backend, "capabilities", None)
    level = capabilities(device.index).get("isa", "") if capabilities else ""
    threads = 1 << (thread_count() - 1).bit_length()
    return f"{device.type} {getattr(backend, 'version', '')} {level} t{threads} {use}"


def _stored(key: str) -> str:
    try:
        module = load_module()
    except PluginUnavailable:
        return ""
    value = module.tuning_get(key)
    if not _CHECKED:
        _CHECKED.append(True)
        _, damaged, _, is_foreign = module.tuning_statistics()
        if is_foreign:
            debug.once(f"{tuning_path()}: no file of tuning results of this version; it is ignored")
        elif damaged:
            debug.once(
                f"{tuning_path()}: {damaged} damaged lines are ignored; mge tune makes them again"
            )
    return (value or b"").decode("utf-8", "replace")


_CHECKED: list[bool] = []


class Choice(NamedTuple):
    """What tuning found for one use of an op.

    Attributes
    ----------
    key : str
        In the tuning cache.
    nodes : int
        Of the plan that it decides for.
    old, new : str
        The algorithm before and after.
    old_ns, new_ns : int, nanoseconds
        Of all these nodes together, in one run.
    """

    key: str
    nodes: int
    old: str
    new: str
    old_ns: int
    new_ns: int


class Report(NamedTuple):
    """What a tuning found; times are the shortest of several runs.

    Attributes
    ----------
    choices : list of Choice
    before_ns, after_ns : int, nanoseconds
        Of one run of the whole plan.
    seconds : float
        How long the tuning took.
    """

    choices: list[Choice]
    before_ns: int
    after_ns: int
    seconds: float


class _Timed:
    """A compiled plan, and the shortest times of its steps and of all of it."""

    def __init__(self, compile: Callable[[], CompiledPlan], what: _Round) -> None:
        token = _ROUND.set(what)
        try:
            self.compiled = compile()
            self.compiled.trial = None  # it stays the plan that is timed here
        finally:
            _ROUND.reset(token)
        self.steps = self.compiled.plan.steps
        self.ns = [math.inf] * len(self.steps)
        self.total_ns = math.inf

    def run(self, leaves: Sequence[Node]) -> None:
        """Run a burst."""
        for i in range(BURST):
            times: list[tuple[int, int]] = []

            def watch(plan: Any, number: int, start: int, end: int, times: Any = times) -> None:
                if plan is self.compiled.plan:
                    times.append((start, end))

            WATCHERS.append(watch)
            try:
                self.compiled.run(leaves)
            finally:
                WATCHERS.remove(watch)
            if i and times:
                self.ns = [min(old, end - start) for old, (start, end) in zip(self.ns, times)]
                self.total_ns = min(self.total_ns, times[-1][1] - times[0][0])

    def costs(self) -> tuple[dict[tuple[str, str], float], Counter[str]]:
        """Return the time of each (key, algorithm), and how many nodes each key has."""
        number = {step.slot.node: i for i, step in enumerate(self.steps)}
        costs: dict[tuple[str, str], float] = {}
        counts: Counter[str] = Counter()
        for node in number:
            device = node.sig.device
            choice = getattr(device.backend, "choice_of", lambda node: None)(node)
            if choice is not None:
                use, taken, parts = choice
                key = _key(device, use)
                counts[key] += 1
                ns = sum(self.ns[number[n]] for n in (node, *parts) if n in number)
                costs[key, taken] = costs.get((key, taken), 0) + ns
        return costs, counts


def tune(
    compile: Callable[[], CompiledPlan],
    leaves: Sequence[Node],
    seconds: float = SECONDS,
    again: bool = False,
) -> Report | None:
    """Time the algorithms of a graph, and keep the choices in the tuning cache.

    Parameters
    ----------
    compile : callable
        Compiles the graph; its plans overwrite no leaf.
    leaves : sequence of Node
        Their values are what the plans run over.
    seconds : float, seconds
        How long to run plans; one round of all is run in any case.
    again : bool
        Also where each choice has an entry.

    Returns
    -------
    Report or None
        None where there is nothing to choose, or nothing new.
    """
    start = time.monotonic()
    with debug(debug=min(debug.debug, 1), view="", check=0):
        first = _Round()
        base = _Timed(compile, first)
        offers = {k: o for k, o in first.offers.items() if len(o.candidates) > 1}
        if not offers or not (again or any(not _stored(k) for k in offers)):
            return None
        if not all(is_repeatable(step.slot.node.sig) for step in base.steps):
            debug.log(1, "tune: a plan with side effects is not run for its times")
            return None
        names = dict.fromkeys(c for o in offers.values() for c in o.candidates if c != o.now)
        rounds = [base, *(_Timed(compile, _Round(name)) for name in names)]
        _alternate(rounds, leaves, start + 0.7 * seconds)
        costs: dict[tuple[str, str], float] = {}
        for timed in rounds:
            for taken, ns in timed.costs()[0].items():
                costs[taken] = min(ns, costs.get(taken, math.inf))
        picks = {k: _best(k, o, costs) for k, o in offers.items()}
        del rounds
        final = base
        if any(picks[k] != o.now for k, o in offers.items()):
            final = _Timed(compile, _Round(picks=picks))
            base.ns, base.total_ns = [math.inf] * len(base.ns), math.inf
            _alternate([base, final], leaves, start + seconds)
    before, counts = base.costs()
    after, _ = final.costs()
    choices = []
    for key, offer in offers.items():
        old_ns = before.get((key, offer.now), math.inf)
        new_ns = after.get((key, picks[key]), math.inf)
        wins = new_ns < old_ns and final.total_ns < base.total_ns
        new, new_ns = (picks[key], new_ns) if wins else (offer.now, old_ns)
        if old_ns < math.inf:
            load_module().tuning_put(key, new.encode())
            choices.append(Choice(key, counts[key], offer.now, new, int(old_ns), int(new_ns)))
    after_ns = min(final.total_ns, base.total_ns)
    return Report(choices, int(base.total_ns), int(after_ns), time.monotonic() - start)


def _alternate(plans: Sequence[_Timed], leaves: Sequence[Node], end: float) -> None:
    """Run plans in turn, round by round while there is time for another."""
    for _ in range(ROUNDS):
        start = time.monotonic()
        for timed in plans:
            timed.run(leaves)
        now = time.monotonic()
        if now + (now - start) > end:
            break


def _best(key: str, offer: _Offer, costs: Mapping[tuple[str, str], float]) -> str:
    """Return the fastest algorithm; the present one, unless another wins clearly."""
    best = min(offer.candidates, key=lambda c: costs.get((key, c), math.inf))
    is_clear = costs.get((key, best), math.inf) < GAIN * costs.get((key, offer.now), 0)
    return best if is_clear else offer.now


def tune_plan(compile: Callable[[], CompiledPlan], leaves: Sequence[Node]) -> None:
    """Tune what is about to be compiled, under ``MGE_TUNE`` or ``trace(tune=True)``; a failure costs a line."""
    try:
        report = tune(compile, leaves)
    except Exception as error:
        debug.once(f"tuning failed: {type(error).__name__}: {first_line(error)}")
        return
    if report is not None:
        if report.choices and not os.access(path := tuning_path(), os.W_OK):
            debug.once(
                f"tuning results are not kept: {path} cannot be written; MGE_CACHE names the folder"
            )
        changed = sum(c.old != c.new for c in report.choices)
        debug.log(
            1,
            f"tuned in {report.seconds:.1f} s: {changed} of {len(report.choices)} choices changed, "
            f"{report.before_ns / 1e6:.3f} ms before, {report.after_ns / 1e6:.3f} ms after",
        )
