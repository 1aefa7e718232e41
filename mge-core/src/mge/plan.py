"""The plan: steps, kernels, streams and memory offsets, made once from a graph. The only thing that the executor runs.

In: an optimised graph, and which inputs may be overwritten. Out: ``Plan``.
After ``storage`` and ``memory``; before ``run``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from .buffer import ALIGNMENT
from .cost import modelled_ns
from .debug import debug
from .device import memory_limit
from .graph import Graph, Signature
from .memory import (
    Interval,
    MemoryPlan,
    check_limit,
    check_stated,
    find_strategy,
    plan_memory,
    rounded,
)
from .nativeplan import runs_in_turn, workspace_bytes
from .order import eased
from .passes.split import split_updates
from .replay import reschedule, waits_for_backward
from .schedule import ends_beside, overwriting
from .storage import Builder

EASED = 16 << 20  # bytes of an arena from which on another order is tried, where no strategy asks
GAIN = 1 / 32  # share of the peak for which overwrites come early


class Plan:
    """What the executor runs.

    Attributes
    ----------
    graph : Graph
    steps : list of Step
    values : list of Value
    storages : list of Storage
    outputs : list of int
        The value of each output of the graph.
    memory : MemoryPlan
        Of the storages of kind ``"arena"``, by ``arena`` (storage -> position).
    arenas : dict of Device to (int, int), bytes
        The size of the arena in each memory, and of the scratch of kernels that follows it.
    scratch : dict of int to int
        Step -> storage of its scratch, where that lies in the arena: where steps run in turn, and not ``apart``.
    workspace_bytes : int
        All scratch that follows the arenas.
    devices : list of Device
        All that it uses, in the order in which a run locks them.
    has_own_memory : bool
        One of them has memory of its own.
    peak_bytes : int
        Arena, scratch and results; known before the plan runs.
    overwrites : list of int
        The inputs that it overwrites, of those in ``donated``.
    overwrites_from : int
        The first step that overwrites an input.
    report : MemoryReport or None
        What the memory strategy says of its schedule.
    once : list of Signature
        Those of the steps that a strategy was asked about, each step once; empty where it kept their order.
    times : mapping of Signature to float, ns
        What steps took, where that was measured.
    """

    report: Any = None
    once: Sequence[Signature] = ()

    def __init__(
        self,
        graph: Graph,
        donated: Sequence[int] = (),
        strategy: str = "static",
        times: Any = None,
        apart: bool = False,
    ) -> None:
        self.apart = apart
        choice = find_strategy(strategy)
        self.times: Mapping[Signature, float] = times or {}
        self.donated = tuple(donated)
        budget_bytes = choice.budget_bytes(lambda: self._made(graph, "static").peak_bytes)
        self._ease(graph, strategy, choice.decides_order, budget_bytes)
        floor = ""
        if choice.decides_order:
            ordered, answer, floor = reschedule(
                choice, self, budget_bytes, lambda made: self._made(made, strategy, True).peak_bytes
            )
            if answer is None:
                self._ease(graph, strategy)
            else:
                self.once = [s.slot.node.sig for s in self.steps]
                self._arrange(ordered, donated, strategy, True)
                self.report = answer.report
                check_stated(choice.name, answer.peak_bytes, self.peak_bytes)
        what = f"plan of {len(self.steps)} steps"
        check_limit(self.peak_bytes, memory_limit(), self.largest(3), what, "MGE_MEMORY_LIMIT")
        rule = f'the budget of memory strategy "{choice.name}"'
        if choice.budget.endswith("%") and not waits_for_backward(graph):
            budget_bytes = None  # an aim: there is nothing to give up
        check_limit(self.peak_bytes, budget_bytes, self.largest(3), what, rule, floor)

    def _ease(
        self, graph: Graph, strategy: str, is_base: bool = False, budget_bytes: int | None = None
    ) -> None:
        """Arrange a graph in the order of recording, or in one that takes less; ``is_base``: for a strategy to change.

        Where no strategy and no budget asks, overwrites of inputs come last, so that a failure before loses nothing,
        unless the other order takes much less.
        """
        self._arrange(graph, self.donated, strategy)
        asks = is_base or (budget_bytes is not None and self.peak_bytes > budget_bytes)
        if asks or self.memory.arena_bytes >= EASED:
            parts = split_updates(graph)
            ordered = eased(parts, overwriting(parts, self.donated))
            other = self._made(ordered, strategy, True)
            if other.peak_bytes <= self.peak_bytes * (1 if asks else 1 - GAIN):
                self.__dict__.update(other.__dict__)
            elif is_base:
                self._arrange(parts, self.donated, strategy)

    def _made(self, graph: Graph, strategy: str, keeps_order: bool | None = None) -> Plan:
        """Return another plan of the same inputs, unchecked; without a word on the order, in the best that is known."""
        plan = object.__new__(Plan)
        plan.donated, plan.apart = self.donated, self.apart
        if keeps_order is None:
            plan._ease(graph, strategy)
        else:
            plan._arrange(graph, self.donated, strategy, keeps_order)
        return plan

    def _arrange(
        self, graph: Graph, donated: Sequence[int], strategy: str, keeps_order: bool = False
    ) -> None:
        """Make steps, storages and offsets."""
        self.graph, self.donated, self.strategy = graph, tuple(donated), strategy
        self.guard_bytes = (
            ALIGNMENT if debug.check >= 3 else 0
        )  # after each value, to catch writes past its end
        builder = Builder(graph, set(donated), keeps_order)
        self.memory_of = builder.memory_of
        self.steps, self.values, self.storages, self.outputs = builder.build()
        self.overwrites_from = builder.overwrites_from
        in_turn = not self.apart and runs_in_turn(self.steps)
        self.scratch = builder.scratch(self.steps) if in_turn else {}
        written = {self.values[v].storage for step in self.steps for v in step.outputs}
        self.overwrites = [
            s.source for i, s in enumerate(self.storages) if s.kind == "input" and i in written
        ]
        self.arena = {
            s: i for i, s in enumerate(j for j, s in enumerate(self.storages) if s.kind == "arena")
        }
        ends = self._ends()
        self.memory, self.arenas = self._lay_out(ends)
        self.result_bytes = sum(rounded(s.nbytes) for s in self.storages if s.kind == "result")
        self.workspace_bytes = sum(scratch for _, scratch in self.arenas.values())
        self.peak_bytes = self.memory.arena_bytes + self.workspace_bytes + self.result_bytes
        self.device = (graph.nodes or graph.inputs)[0].sig.device
        used = {n.sig.device for n in (*graph.nodes, *graph.inputs)}
        self.devices = sorted(used, key=str)
        self.has_own_memory = not all(d.is_host for d in used)
        self.bound: Any = None  # the executor's arrays; made at the first run

    def _lay_out(self, ends: list[int]) -> tuple[MemoryPlan, dict[Any, tuple[int, int]]]:
        """Return the offsets of all storages in the arenas of their devices, and how large these are."""
        members: dict[Any, list[int]] = {}
        for i in self.arena:
            members.setdefault(self.storages[i].device, []).append(i)
        layouts: dict[Any, MemoryPlan] = {}
        for device, indices in members.items():
            chosen = [(i, self.storages[i]) for i in indices]
            intervals = [
                Interval(s.start, ends[i], s.nbytes + self.guard_bytes, s.label) for i, s in chosen
            ]
            layouts[device] = plan_memory(intervals, self.strategy)
        arenas = {d: (plan.arena_bytes, 0) for d, plan in layouts.items()}
        apart = {} if self.scratch else workspace_bytes(self.steps)
        for device, scratch in apart.items():
            where = self.memory_of(device)
            arena_bytes, before = arenas.get(where, (0, 0))
            arenas[where] = arena_bytes, before + scratch
        offsets = {
            i: o
            for d, plan in layouts.items()
            for i, o in zip(members[d], plan.offsets, strict=True)
        }
        live = [
            sum(row) for row in zip_longest(*(m.live_bytes for m in layouts.values()), fillvalue=0)
        ]
        total = sum(m.arena_bytes for m in layouts.values())
        return MemoryPlan([offsets[i] for i in self.arena], total, live), arenas

    def _ends(self) -> list[int]:
        """Return the last step at which each storage must be in place."""
        if not any(s.slot.stream for s in self.steps):
            return [s.end for s in self.storages]
        touches: list[list[int]] = [[] for _ in self.storages]
        for i, step in enumerate(self.steps):
            for v in (*step.inputs, *step.outputs):
                touches[self.values[v].storage].append(i)
        beside = ends_beside([s.slot for s in self.steps], touches)
        return [max(s.end, end) for s, end in zip(self.storages, beside)]

    def largest(self, count: int) -> list[tuple[int, str]]:
        """Return the largest storages that the plan allocates, with what they hold."""
        own = [s for s in self.storages if s.kind in ("arena", "result")]
        return [(s.nbytes, s.label) for s in sorted(own, key=lambda s: -s.nbytes)[:count]]

    def timeline(self) -> list[int]:
        """Return the bytes that are live at each step: arena and results."""
        live = [*self.memory.live_bytes, *[0] * (len(self.steps) - len(self.memory.live_bytes))]
        return [b + self.result_bytes for b in live]

    def predicted_ns(self) -> tuple[float, float]:
        """Return the time of all steps, and of those alone that the plan cannot do without; measured, or modelled."""
        sigs = [s.slot.node.sig for s in self.steps]
        costs = {s: self.times.get(s, modelled_ns(s)) for s in sigs}
        return sum(costs[s] for s in sigs), sum(costs[s] for s in self.once or sigs)

    def memory_report(self) -> dict[str, Any]:
        """Return what ``Graph.memory`` describes."""
        time_ns, least_ns = self.predicted_ns()
        live = self.timeline()
        peak = live.index(max(live)) if live else 0
        held = [
            {"bytes": s.nbytes, "value": s.label, "from": s.start, "to": end}
            for s, end in zip(self.storages, self._ends())
            if s.kind == "result" or (s.kind == "arena" and s.start <= peak <= end)
        ]
        return {
            "strategy": self.strategy,
            "peak_bytes": self.peak_bytes,
            "arena_bytes": self.memory.arena_bytes,
            "workspace_bytes": self.workspace_bytes,
            "result_bytes": self.result_bytes,
            "live_bytes": live,
            "peak_step": peak,
            "live_at_peak": sorted(held, key=lambda v: -v["bytes"]),
            "predicted_ns": time_ns,
            "slowdown": time_ns / least_ns - 1 if least_ns else 0.0,
            "is_measured": bool(self.times),
        }

    def __str__(self) -> str:
        """The plan as text: one line a step with kernel, stream and memory; compared by the golden tests."""
        lines = [
            f"plan: {len(self.steps)} steps, arena {self.memory.arena_bytes} bytes, peak {self.peak_bytes} bytes"
        ]
        for i, step in enumerate(self.steps):
            sig = step.slot.node.sig
            where = ", ".join(self._where(v) for v in step.outputs)
            inputs = ", ".join(f"v{v}" for v in step.inputs)
            outputs = ", ".join(f"v{v}: {self.values[v].type}" for v in step.outputs)
            lines.append(
                f"{i:4} {sig.device}/{step.slot.stream} {outputs} = {sig.op.name}({inputs}) @ {where}"
            )
        lines.append("returns " + ", ".join(f"v{v} @ {self._where(v)}" for v in self.outputs))
        return "\n".join(lines)

    def _where(self, value: int) -> str:
        index = self.values[value].storage
        storage = self.storages[index]
        if storage.kind == "arena":
            return f"{self.memory.offsets[self.arena[index]]}+{storage.nbytes}"
        return f"{storage.kind}{storage.source if storage.kind == 'input' else ''}"
