"""Plans for the native executor: where values lie, what waits for what.

In: plans with native kernels among their steps. Out: ``NativePlan``, which runs them outside the interpreter.
After ``native``; before ``plan``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .native import NativeKernel, load_module, type_codes


def workspace_bytes(steps: Sequence[Any]) -> int:
    """Return the scratch that a plan's kernels need: for each stream as much as its most demanding step."""
    most: dict[tuple[Any, int], int] = {}
    for step in steps:
        if isinstance(step.kernel, NativeKernel):
            lane = (step.slot.node.sig.device, step.slot.stream)
            most[lane] = max(most.get(lane, 0), step.kernel.workspace_bytes)
    return sum(-(-n // 64) * 64 for n in most.values())


class NativePlan:
    """A plan as the native executor holds it, over one arena.

    Attributes
    ----------
    has_calls : bool
        Some steps are Python functions.
    inputs, results : list of int
        Which inputs of the plan, and which storages, a run takes arrays of.
    step : int
        Where the last run failed.
    """

    def __init__(self, plan: Any, calls: Sequence[tuple], arena: Any) -> None:
        native = [isinstance(s.kernel, NativeKernel) for s in plan.steps]
        self.has_calls = not all(native)
        used = sorted({plan.values[v].storage for s in plan.steps for v in (*s.inputs, *s.outputs)})
        moving = {
            kind: [i for i in used if plan.storages[i].kind == kind] for kind in ("input", "result")
        }
        self.inputs = [plan.storages[i].source for i in moving["input"]]
        self.results = moving["result"]
        places: dict[int, tuple[int, int]] = {}
        for i in used:
            kind, source = plan.storages[i].kind, plan.storages[i].source
            if kind == "arena":
                places[i] = (0, plan.memory.offsets[plan.arena[i]])
            elif kind == "constant":
                places[i] = (1, source.ctypes.data)
            else:
                places[i] = (2 if kind == "input" else 3, moving[kind].index(i))
        values = [(*type_codes(v.type), *places.get(v.storage, (1, 0))) for v in plan.values]
        waits = _waits(plan) if any(s.slot.stream for s in plan.steps) or _is_mixed(plan) else {}
        awaited = {w for row in waits.values() for w in row}
        steps = [
            (
                s.kernel.handle if native[i] else None,
                s.inputs,
                s.outputs,
                s.slot.stream,
                waits.get(i, ()),
                i in awaited,
            )
            for i, s in enumerate(plan.steps)
        ]
        python = [None if native[i] else (call[0], call[1:]) for i, call in enumerate(calls)]
        sizes = [[plan.storages[i].nbytes for i in moving[kind]] for kind in ("input", "result")]
        self._plan, self._arena = plan, arena
        self._handle = load_module().Plan(values, steps, python, *sizes)
        if self._handle.failure is not None:
            first = next(s for s in plan.steps if isinstance(s.kernel, NativeKernel))
            raise first.kernel.error(*self._handle.failure)
        self._at = plan.memory.arena_bytes

    @property
    def step(self) -> int:
        """Where the last run failed."""
        return self._handle.step

    def run(self, inputs: list[Any], results: list[Any], times: Any = None) -> None:
        """Run all steps; ``times`` takes start and end of each, in ns.

        Raises
        ------
        MgeError
            A kernel failed: ``step`` says which. What a Python step raises passes through.
        """
        failed = self._handle.run(self._arena, self._at, inputs, results, times)
        if failed is not None:
            raise self._plan.steps[self.step].kernel.error(*failed)


def bind(plan: Any, calls: Sequence[tuple], arena: Any) -> NativePlan | None:
    """Return a plan for the native executor; None where no step has a native kernel.

    Parameters
    ----------
    plan : Plan
    calls : sequence of (kernel, inputs, outputs, stream)
        What runs a step in Python; the lists are filled before each run.
    arena : ndarray
        At least ``plan.memory.arena_bytes + plan.workspace_bytes`` bytes.
    """
    if not any(isinstance(s.kernel, NativeKernel) for s in plan.steps):
        return None
    return NativePlan(plan, calls, arena)


def _lane(step: Any) -> tuple[Any, int] | None:
    """Return the stream that a step runs on; None for one that is complete when its call returns."""
    device = step.slot.node.sig.device
    is_async = isinstance(step.kernel, NativeKernel) and step.kernel.backend.has_streams
    return (device, step.slot.stream) if is_async else None


def _is_mixed(plan: Any) -> bool:
    """Whether work of one stream is read outside it."""
    lanes = {_lane(s) for s in plan.steps}
    return len(lanes) > 1


def _waits(plan: Any) -> dict[int, list[int]]:
    """Return for each step the earlier steps that it must wait for.

    A step depends on each earlier one that touched the same bytes, unless both only read. That covers what flows
    from step to step, and bytes of the arena that are used again. What a wait already implies is left out.
    """
    touched: dict[Any, list[tuple[int, int, int, bool]]] = {}  # memory -> (low, high, step, writes)
    # lane -> lane -> the last step of it that has finished for sure
    known: dict[Any, dict[Any, int]] = {}
    at_step: list[dict[Any, int]] = []
    waits: dict[int, list[int]] = {}
    lanes = [_lane(s) for s in plan.steps]
    for i, step in enumerate(plan.steps):
        uses = [(v, False) for v in step.inputs] + [(v, True) for v in step.outputs]
        needed = set()
        for v, writes in uses:
            memory, low, high = _extent(plan, v)
            needed |= {
                s
                for a, b, s, wrote in touched.get(memory, ())
                if a < high and low < b and (writes or wrote)
            }
        lane = lanes[i]
        mine = known.setdefault(lane, {})
        _merge(mine, known.get(None, {}))  # the host's thread waited before it came here
        row = []
        for s in sorted(needed, reverse=True):
            other = lanes[s]
            if other is None or other == lane or mine.get(other, -1) >= s:
                continue
            row.append(s)
            _merge(mine, at_step[s])
            mine[other] = max(mine.get(other, -1), s)
        if row:
            waits[i] = sorted(row)
        at_step.append(dict(mine))
        for v, writes in uses:
            memory, low, high = _extent(plan, v)
            history = touched.setdefault(memory, [])
            if writes:  # what it covers, it also waited for
                history[:] = [t for t in history if not (low <= t[0] and t[1] <= high)]
            history.append((low, high, i, writes))
    return waits


def _merge(into: dict[Any, int], other: dict[Any, int]) -> None:
    for lane, step in other.items():
        into[lane] = max(into.get(lane, -1), step)


def _extent(plan: Any, v: int) -> tuple[Any, int, int]:
    """Return which memory a value is in, and from where to where."""
    index = plan.values[v].storage
    if index in plan.arena:
        low = plan.memory.offsets[plan.arena[index]]
        return "arena", low, low + plan.storages[index].nbytes
    return index, 0, 1
