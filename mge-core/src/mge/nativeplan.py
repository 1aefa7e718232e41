"""Plans for the native executor: where values lie, what waits for what.

In: plans with native kernels among their steps. Out: ``NativePlan``, which runs them outside the interpreter.
After ``native``; before ``plan``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .buffer import CopyKind, DeviceArray
from .errors import MgeError
from .graph import Node, leaf_signature
from .native import NativeBackend, NativeKernel, error_of, load_module, type_codes

_NONE = 0xFFFFFFFF  # NO_VALUE of executor.hpp


def workspace_bytes(steps: Sequence[Any]) -> dict[Any, int]:
    """Return by device the scratch that a plan's kernels need: for each stream as much as its most demanding step."""
    most: dict[tuple[Any, int], int] = {}
    for step in steps:
        if isinstance(step.kernel, NativeKernel):
            lane = (step.slot.node.sig.device, step.slot.stream)
            most[lane] = max(most.get(lane, 0), step.kernel.workspace_bytes)
    found: dict[Any, int] = {}
    for (device, _), nbytes in most.items():
        found[device] = found.get(device, 0) + -(-nbytes // 64) * 64
    return found


class NativePlan:
    """A plan as the native executor holds it, over one arena in each memory.

    Attributes
    ----------
    has_calls : bool
        Some steps are Python functions.
    inputs, results : list of int
        Which inputs of the plan, and which storages, a run takes arrays of.
    step : int
        Where the last run ended.
    """

    def __init__(self, plan: Any, bound: Any) -> None:
        owners = [_owner(s) for s in plan.steps]
        self.has_calls = None in owners
        used = sorted({plan.values[v].storage for s in plan.steps for v in (*s.inputs, *s.outputs)})
        moving = {
            kind: [i for i in used if plan.storages[i].kind == kind] for kind in ("input", "result")
        }
        self.inputs = [plan.storages[i].source for i in moving["input"]]
        self.results = moving["result"]
        memories = {s.device: 0 for s in plan.storages} | dict.fromkeys(plan.arenas, 0)
        memories = {device: number for number, device in enumerate(memories)}
        places: dict[int, tuple[int, int]] = {}
        for i in used:
            storage = plan.storages[i]
            if storage.kind == "arena":
                places[i] = (0, plan.memory.offsets[plan.arena[i]])
            elif storage.kind == "constant":
                own = bound.constants.get(i)
                at = storage.source.ctypes.data if own is None else address(own.array)
                places[i] = (1, at)
            else:
                kind = storage.kind
                places[i] = (2 if kind == "input" else 3, moving[kind].index(i))
        values = [
            (
                *type_codes(v.type),
                *places.get(v.storage, (1, 0)),
                memories[plan.storages[v.storage].device],
            )
            for v in plan.values
        ]
        read = {plan.values[v].storage for s in plan.steps for v in s.inputs}
        read |= {plan.values[v].storage for v in plan.outputs}

        def drops(step: Any, v: int) -> bool:
            optional = getattr(step.kernel, "has_optional_outputs", False)
            # the first one is what the op is for: kernels write it in any case
            return optional and v != step.outputs[0] and plan.values[v].storage not in read

        waits = _waits(plan) if any(s.slot.stream for s in plan.steps) or _is_mixed(plan) else {}
        awaited = {w for row in waits.values() for w in row}
        steps = [
            (
                s.kernel.handle if isinstance(s.kernel, NativeKernel) else _copy(plan, s, owner),
                s.inputs,
                [_NONE if drops(s, v) else v for v in s.outputs],
                s.slot.stream,
                waits.get(i, ()),
                i in awaited,
                memories.get(plan.memory_of(s.slot.node.sig.device), 0),
                plan.memory.offsets[plan.arena[plan.scratch[i]]] if i in plan.scratch else None,
            )
            for i, (s, owner) in enumerate(zip(plan.steps, owners))
        ]
        python = [(c[0], c[1:]) if o is None else None for o, c in zip(owners, bound.calls)]
        sizes = [[plan.storages[i].nbytes for i in moving[kind]] for kind in ("input", "result")]
        self._plan, self._owners = plan, owners
        self._arenas = [address(bound.arenas.get(d)) for d in memories]
        self._kept = bound.arenas
        scratch = [plan.arenas.get(d, (0, 0)) for d in memories]
        kinds = [d.dlpack_device() for d in memories]
        self._handle = load_module().Plan(values, steps, python, *sizes, kinds, scratch)
        if self._handle.failure is not None:
            first = next(s for s in plan.steps if isinstance(s.kernel, NativeKernel))
            raise first.kernel.error(*self._handle.failure)

    @property
    def step(self) -> int:
        """Where the last run failed; the number of steps after one that did not, 0 after ``reset``."""
        return self._handle.step

    def reset(self) -> None:
        """Forget where the last run ended, before the next one."""
        self._handle.reset()

    def run(self, inputs: list[Any], results: list[Any], times: Any = None) -> None:
        """Run all steps; ``times`` takes start and end of each, in ns.

        Raises
        ------
        MgeError
            A kernel or a copy failed: ``step`` says which. What a Python step raises passes through.
        """
        if self._plan.has_own_memory:
            inputs, results = ([_passed(a) for a in arrays] for arrays in (inputs, results))
        failed = self._handle.run(self._arenas, inputs, results, times)
        if failed is not None:
            raise self.error(*failed)

    def error(self, status: int, text: str) -> MgeError:
        """Return the error for a step that failed."""
        kernel = self._plan.steps[self.step].kernel
        if isinstance(kernel, NativeKernel):
            return kernel.error(status, text)
        owner = self._owners[self.step]
        return error_of(f"copy on {owner}", owner.backend, status, text)

    def call(self, traced: Any, nodes: list[Node], extra: list[Any], *places: Any) -> Any:
        """Return a function from nodes for the arguments to a list of new tensors, in one native call.

        It gives None where something else changed than arguments and state, and (status, text) where a step failed.
        None where a run has more to do than its steps: steps in Python, memory of devices, outputs that share memory.

        Parameters
        ----------
        traced : traced.Traced
        nodes, extra : list of Node, list of Buffer
            The inputs of a run: arguments, what was captured; then the plan's further ones.
        *places
            Positions in ``nodes``: of what must stay as it is, and of what the plan may overwrite.
        """
        plan, pool = self._plan, self._plan.devices[0].pool
        if self.has_calls or len(plan.devices) > 1 or not getattr(pool, "is_host", False):
            return None
        outputs = []
        for v, node in zip(plan.outputs, plan.graph.outputs):
            index = plan.values[v].storage
            kind, source = plan.storages[index].kind, plan.storages[index].source
            number = self.results.index(index) if index in self.results else source
            leaf = leaf_signature(node.type, node.sig.device)
            outputs.append((kind, None if kind == "constant" else number, leaf))
        make, memory = load_module().traced_call, (pool.handle, pool)
        return make(self._handle, *memory, self.inputs, nodes, extra, traced, *places, outputs)


def bind(plan: Any, bound: Any) -> NativePlan | None:
    """Return a plan for the native executor; None where no step has a native kernel.

    Parameters
    ----------
    plan : Plan
    bound : execute._Bound
        Its calls run steps in Python: their lists are filled before each run. Its arenas are large enough.
    """
    if not any(isinstance(s.kernel, NativeKernel) for s in plan.steps):
        return None
    return NativePlan(plan, bound)


def address(array: Any) -> int:
    """Return where an array is; 0 for none, and for a device that has no addresses."""
    if array is None:
        return 0
    if isinstance(array, DeviceArray):
        return array.address if isinstance(array.memory, int) else 0
    return int(array.ctypes.data)


def _passed(array: Any) -> Any:
    return address(array) if isinstance(array, DeviceArray) else array


def _owner(step: Any) -> Any:
    """Return the device of a library whose kernel or copy a step is; None for a step in Python."""
    sig = step.slot.node.sig
    if isinstance(step.kernel, NativeKernel):
        return sig.device
    if sig.op.name != "copy":
        return None
    sides = {d for d in (sig.device, step.slot.node.inputs[0].sig.device) if not d.is_host}
    owner = sides.pop() if len(sides) == 1 else None
    return owner if owner is not None and isinstance(owner.backend, NativeBackend) else None


def _copy(plan: Any, step: Any, owner: Any) -> Any:
    """Return a copy as the native executor takes it; None for other steps."""
    if owner is None:
        return None
    source, target = step.slot.node.inputs[0].sig.device, step.slot.node.sig.device
    kind = CopyKind.DEVICE_TO_DEVICE
    if source is not target:
        kind = CopyKind.HOST_TO_DEVICE if target is owner else CopyKind.DEVICE_TO_HOST
    nbytes = plan.values[step.outputs[0]].type.nbytes
    return owner.backend.handle, owner.index, int(kind), nbytes


def _lane(step: Any) -> tuple[Any, int] | None:
    """Return the stream that a step runs on; None for one that is complete when its call returns."""
    owner = _owner(step)
    return (owner, step.slot.stream) if owner is not None and owner.backend.has_streams else None


def runs_in_turn(steps: Sequence[Any]) -> bool:
    """Whether each step is complete before the next one starts."""
    return all(not s.slot.stream and _lane(s) is None for s in steps)


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
        return plan.storages[index].device, low, low + plan.storages[index].nbytes
    return index, 0, 1
