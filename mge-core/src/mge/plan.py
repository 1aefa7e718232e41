"""The plan: steps, kernels, streams and memory offsets, made once from a graph. The only thing that the executor runs.

In: an optimised graph, and which inputs may be overwritten. Out: ``Plan``.
After ``memory``; before ``run``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from .buffer import ALIGNMENT, aligned_bytes
from .cost import modelled_ns
from .debug import debug
from .device import Kernel, memory_limit
from .graph import GET, Graph, Node, Signature
from .memory import (
    Interval,
    MemoryPlan,
    check_limit,
    check_stated,
    find_strategy,
    plan_memory,
    rounded,
)
from .native import NativeKernel
from .nativeplan import runs_in_turn, workspace_bytes
from .order import eased
from .passes.simplify import constant_value
from .passes.split import split_updates
from .replay import reschedule, waits_for_backward
from .schedule import Slot, ends_beside, inplace_pairs, is_view, overwriting, schedule
from .types import Type

EASED = 16 << 20  # bytes of an arena from which on another order is tried, where no strategy asks
GAIN = 1 / 32  # share of the peak for which overwrites come early


class Step(NamedTuple):
    """One kernel call. ``inputs`` and ``outputs`` name values of the plan."""

    kernel: Kernel
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    slot: Slot


class Value(NamedTuple):
    """One value of a plan: its type, and the storage whose bytes it is (or is a view of)."""

    type: Type
    storage: int
    place: str | None


class Storage:
    """Bytes that one or several values share, one after the other or as views.

    Attributes
    ----------
    kind : {"input", "constant", "arena", "result"}
    source : int or ndarray or None
        The input's position; the constant's array.
    nbytes : int, bytes
    start, end : int
        First and last step that touches it.
    device : Device
        Whose memory it is in; for host memory, the first host device of the plan.
    """

    __slots__ = ("device", "end", "kind", "label", "nbytes", "source", "start")

    def __init__(
        self, kind: str, nbytes: int, source: Any, start: int, label: str, device: Any
    ) -> None:
        self.kind, self.nbytes, self.source, self.label = kind, nbytes, source, label
        self.start = self.end = start
        self.device = device


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
        builder = _Builder(graph, set(donated), keeps_order)
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


class _Builder:
    """Turns a graph into steps and storages.

    First every output of every node becomes a value, and a view the same storage as what it views. Then, slot by
    slot, outputs get a storage: that of an input which dies there, where the op allows it, or a new one.
    """

    def __init__(self, graph: Graph, donated: set[int], keeps_order: bool) -> None:
        self.graph, self.donated, self.keeps_order = graph, donated, keeps_order
        self.memory_of = memory_of(graph)
        self.values: list[Value] = []
        self.storages: list[Storage] = []
        self.ids: dict[Node, tuple[int, ...]] = {}  # the values of each node
        self.root: list[int] = []  # value -> the value whose bytes it views, or itself
        self.last: dict[int, int] = {}  # root -> the slot that reads it last
        self.overwrites_from = 0

    def build(self) -> tuple[list[Step], list[Value], list[Storage], list[int]]:
        """Return steps, values, storages and the value of each output."""
        late = overwriting(self.graph, self.donated)
        slots = schedule(self.graph, late, self.keeps_order)
        slots, types = self._number_values(slots)
        self._find_last_reads(slots)
        storage_of: dict[int, int] = {}
        for i, node in enumerate(self.graph.inputs):
            storage_of[self.ids[node][0]] = self._storage(
                "input", node.type.nbytes, i, 0, f"input {i}", node
            )
        for node in self.graph.nodes:
            if node.sig.op.name == "constant":
                storage_of[self.ids[node][0]] = self._storage(
                    "constant", node.type.nbytes, _aligned(node), 0, "constant", node
                )
        for position, slot in enumerate(slots):
            self._place_outputs(slot.node, position, slot.node in late, storage_of)
        outputs = [self._value_of(o) for o in self.graph.outputs]
        for v, (type_, place) in enumerate(types):
            self.values.append(Value(type_, storage_of[self.root[v]], place))
        for v in outputs:
            storage = self.storages[self.values[v].storage]
            if storage.kind == "arena":
                storage.kind = "result"
        positions = (i for i, s in enumerate(slots) if s.node in late)
        self.overwrites_from = next(positions, len(slots))
        steps = [
            Step(
                _kernel(s.node),
                tuple(self._value_of(i) for i in s.node.inputs),
                self.ids[s.node],
                s,
            )
            for s in slots
        ]
        return steps, self.values, self.storages, outputs

    def scratch(self, steps: list[Step]) -> dict[int, int]:
        """Give the scratch of each kernel a storage for its step; return these by step."""
        found = {}
        for i, step in enumerate(steps):
            if isinstance(step.kernel, NativeKernel) and step.kernel.workspace_bytes:
                node = step.slot.node
                label, size = f"scratch of {_described(node)}", step.kernel.workspace_bytes
                found[i] = self._storage("arena", size, None, i, label, node)
                self.storages[found[i]].end = i
        return found

    def _number_values(self, slots: list[Slot]) -> tuple[list[Slot], list[tuple[Type, str | None]]]:
        """Give each output of each node a number; return the slots that are no views, and the values' types."""
        types: list[tuple[Type, str | None]] = []
        constants = [n for n in self.graph.nodes if n.sig.op.name == "constant"]
        kept = []
        items: list[Node | Slot] = [*self.graph.inputs, *constants, *slots]
        for item in items:
            slot = item if isinstance(item, Slot) else None
            node = item.node if isinstance(item, Slot) else item
            first = len(types)
            types += [(t, node.place) for t in node.sig.types]
            self.ids[node] = tuple(range(first, len(types)))
            if slot is not None and is_view(node):
                self.root.append(self.root[self._value_of(node.inputs[0])])
            else:
                self.root += self.ids[node]
                if slot is not None:
                    kept.append(slot)
        if len(kept) < len(slots):  # positions of events moved
            number = {s.node: i for i, s in enumerate(kept)}
            old = [s.node for s in slots]
            for i, s in enumerate(kept):
                awaited = {number[n] for w in s.waits if (n := self._step_of(old[w])) in number}
                kept[i] = s._replace(waits=tuple(sorted(awaited)))
        return kept, types

    def _step_of(self, node: Node) -> Node:
        """Return the node whose step computes the bytes of a (view) node."""
        while is_view(node):
            node = node.inputs[0].inputs[0] if node.inputs[0].sig.op is GET else node.inputs[0]
        return node

    def _find_last_reads(self, slots: list[Slot]) -> None:
        for position, slot in enumerate(slots):
            for i in slot.node.inputs:
                self.last[self.root[self._value_of(i)]] = position
        for output in self.graph.outputs:
            self.last[self.root[self._value_of(output)]] = len(
                slots
            )  # beyond the last slot: it leaves

    def _value_of(self, node: Node) -> int:
        if node.sig.op is GET:
            return self.ids[node.inputs[0]][node.sig.attrs[0][1]]
        return self.ids[node][0]

    def _storage(
        self, kind: str, nbytes: int, source: Any, start: int, label: str, node: Node
    ) -> int:
        device = self.memory_of(node.sig.device)
        self.storages.append(Storage(kind, nbytes, source, start, label, device))
        return len(self.storages) - 1

    def _place_outputs(
        self, node: Node, position: int, is_late: bool, storage_of: dict[int, int]
    ) -> None:
        """Give each output of a node a storage, and extend those of its inputs to this slot."""
        read = [storage_of[self.root[self._value_of(i)]] for i in node.inputs]
        for s in read:
            self.storages[s].end = max(self.storages[s].end, position)
        pairs = inplace_pairs(node)
        taken: set[int | None] = {None}
        for k, v in enumerate(self.ids[node]):
            type_ = node.sig.types[k]
            found = (
                self._dying_input(node, i, type_, position, is_late, read)
                for i, o in pairs
                if o == k
            )
            storage = next((s for s in found if s not in taken), None)
            if storage is None:
                label = f"{type_} of {_described(node)}"
                storage = self._storage("arena", type_.nbytes, None, position, label, node)
            taken.add(storage)
            storage_of[v] = storage
            self.storages[storage].end = position

    def _dying_input(
        self, node: Node, i: int, type_: Type, position: int, is_late: bool, read: list[int]
    ) -> int | None:
        """Return the storage of input ``i`` if the output may be written over it, else None."""
        source = node.inputs[i]
        root = self.root[self._value_of(source)]
        storage = self.storages[read[i]]
        may_write = storage.kind == "arena" or (
            storage.kind == "input" and is_late and storage.source in self.donated
        )
        fits = source.type is type_ and storage.nbytes == type_.nbytes
        fits = fits and storage.device is self.memory_of(node.sig.device)
        dies = self.last.get(root, -1) <= position and read.count(read[i]) == 1
        return read[i] if may_write and fits and dies else None


def _kernel(node: Node) -> Kernel:
    """Return the kernel for a node; a library's is made for the values of its inputs that are constants."""
    sig = node.sig
    kernel = sig.device.kernel(sig)
    values = [constant_value(i) if i.sig.op.name == "constant" else None for i in node.inputs]
    is_own = isinstance(kernel, NativeKernel) and kernel.backend is sig.device.backend
    if not is_own or "compiled" in sig.notes or all(v is None for v in values):
        return kernel
    return sig.device.backend.kernel(sig.device.index, sig, values)


def memory_of(graph: Graph) -> Callable[[Any], Any]:
    """Return a function from a device to the one whose arena and pool its values are in.

    That is the device itself, or for all that work in host memory the first of them in the graph.
    """
    nodes = (*graph.nodes, *graph.inputs)
    host = next((n.sig.device for n in nodes if n.sig.device.is_host), None)
    return lambda device: host if device.is_host else device


def _described(node: Node) -> str:
    place = node.place
    return f"{node.sig.op.name} ({place})" if place else node.sig.op.name


def _aligned(node: Node) -> np.ndarray:
    """Return the array of a constant node, aligned as kernels expect."""
    array = constant_value(node)
    copy = (
        aligned_bytes(max(array.nbytes, ALIGNMENT))[: array.nbytes]
        .view(array.dtype)
        .reshape(array.shape)
    )
    copy[...] = array
    return copy
