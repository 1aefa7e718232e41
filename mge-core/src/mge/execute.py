"""The executor: runs a plan's steps over buffers. The seam for the native executor.

In: a plan and a buffer for each input. Out: a buffer for each output.
After ``plan``; before ``cache``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .debug import debug
from .device import ALIGNMENT, BACKENDS, Buffer
from .errors import InternalError, MgeError, user_place
from .graph import Node, Signature
from .nativeplan import NativePlan, bind
from .plan import Plan
from .types import Type

# Told about each step: (plan, step number, start ns, end ns). The profiler adds itself here.
WATCHERS: list[Callable[[Plan, int, int, int], None]] = []
# The same for nodes that run one by one: (signature, node, start ns, end ns).
NODE_WATCHERS: list[Callable[[Signature, Node, int, int], None]] = []


GUARD = 0xA5  # what guard bytes hold


class StepError(Exception):
    """A step failed. ``overwritten``: inputs of the plan may have been changed already."""

    def __init__(self, error: BaseException, overwritten: bool) -> None:
        super().__init__(str(error))
        self.error, self.overwritten = error, overwritten


class _Bound:
    """A plan's steps with arrays in their places, over one arena.

    Attributes
    ----------
    calls : list of (kernel, inputs, outputs, None)
        The lists are shared with ``slots``, which put this run's arrays into them.
    inputs, results : list of (input or storage, places)
        Storages that change from run to run. Their arrays go to ``places``: by type, (list, position) each.
    native : NativePlan or None
        The same steps for the native executor, where some of them have native kernels.
    reached : int
        The step that a watched run is at.
    """

    def __init__(self, plan: Plan, arena: np.ndarray) -> None:
        self.arena = arena
        self.calls: list[tuple] = []
        self.reached = 0
        dynamic: dict[int, dict[Type, list[tuple[list, int]]]]
        dynamic = {i: {} for i, s in enumerate(plan.storages) if s.kind in ("input", "result")}
        arrays = [self._array(plan, v, arena) for v in range(len(plan.values))]
        for step in plan.steps:
            lists = []
            for ids in (step.inputs, step.outputs):
                made: list[Any] = [arrays[v] for v in ids]
                for position, v in enumerate(ids):
                    value = plan.values[v]
                    if value.storage in dynamic:
                        dynamic[value.storage].setdefault(value.type, []).append((made, position))
                lists.append(made)
            self.calls.append((step.kernel, *lists, None))
        self.inputs = [
            (s.source, list(dynamic[i].items()))
            for i, s in enumerate(plan.storages)
            if s.kind == "input"
        ]
        self.results = [
            (i, list(dynamic[i].items())) for i, s in enumerate(plan.storages) if s.kind == "result"
        ]
        self.native = bind(plan, self.calls, arena)

    @staticmethod
    def _array(plan: Plan, v: int, arena: np.ndarray) -> Any:
        """Return the array of a value that stays in place from run to run, else None."""
        type_, index, _ = plan.values[v]
        storage = plan.storages[index]
        if storage.kind == "constant":
            return storage.source.view(type_.dtype.dtype).reshape(type_.shape)
        if storage.kind == "arena":
            offset = plan.memory.offsets[plan.arena[index]]
            return _typed(arena[offset:], type_)
        return None


def _arena(plan: Plan) -> np.ndarray:
    """Return the device's arena, at least as large as the plan needs; plans of one device share it."""
    device = plan.device
    arena = device.arena
    nbytes = plan.memory.arena_bytes + plan.workspace_bytes
    if arena is None or arena.nbytes < nbytes:
        arena = device.arena = device.pool.allocate(max(nbytes, ALIGNMENT))
    return arena


def execute(plan: Plan, buffers: Sequence[Any]) -> list[Any]:
    """Run a plan.

    Parameters
    ----------
    plan : Plan
    buffers : sequence of Buffer
        One for each input of its graph. Those in ``plan.donated`` may be overwritten.

    Returns
    -------
    list of Buffer
        One for each output.

    Raises
    ------
    StepError
        A step failed, or the run was interrupted.
    """
    device = plan.device
    with device.lock, np.errstate(all="ignore"):
        arena = _arena(plan)
        bound = plan.bound
        if bound is None or bound.arena is not arena:
            bound = plan.bound = _Bound(plan, arena)
        watched = debug.debug >= 2 or debug.check >= 2 or (bool(WATCHERS) and bound.native is None)
        native = None if watched else bound.native
        fills = native is None or native.has_calls  # some step takes its arrays from the lists
        for source, places in bound.inputs:
            if places and fills:
                array = buffers[source].array
                for type_, uses in places:
                    typed = array if array.shape == type_.shape else array.reshape(type_.shape)
                    for made, position in uses:
                        made[position] = typed
        pool = device.pool
        results: dict[int, Buffer] = {}
        for index, places in bound.results:
            block = pool.take(plan.storages[index].nbytes)
            results[index] = Buffer(block, block, pool)
            for type_, uses in places if fills else ():
                typed = _typed(block, type_)
                for made, position in uses:
                    made[position] = typed
        inputs: Any = None
        try:
            if native is not None:
                _run_native(plan, native, buffers, results)
            elif watched:
                _run_watched(plan, bound)
            else:
                for kernel, inputs, outputs, stream in bound.calls:
                    kernel(inputs, outputs, stream)
        except BaseException as error:
            if native is not None:
                number = native.step
            elif watched:
                number = bound.reached
            else:
                number = next((i for i, call in enumerate(bound.calls) if call[1] is inputs), 0)
            if isinstance(error, Exception) and plan.steps:
                located(error, plan.steps[number].slot.node)
            raise StepError(error, bool(plan.donated) and number >= plan.overwrites_from) from error
    debug.counts["plans_run"] += 1
    debug.counts["steps_run"] += len(bound.calls)
    return [_output(plan, v, buffers, results) for v in plan.outputs]


def _run_native(
    plan: Plan, native: NativePlan, buffers: Sequence[Any], results: dict[int, Buffer]
) -> None:
    """Run the steps outside the interpreter; tell the watchers afterwards."""
    times = np.zeros((len(plan.steps), 2), np.int64) if WATCHERS else None
    native.run(
        [buffers[i].array for i in native.inputs], [results[i].block for i in native.results], times
    )
    if times is not None:
        for number, (start, end) in enumerate(times.tolist()):
            for watcher in WATCHERS:
                watcher(plan, number, start, end)


def located(error: Exception, node: Node) -> Exception:
    """Add to an error where the failing call was recorded, and where its value was read."""
    if isinstance(error, MgeError):
        place, read = node.place, user_place()
        error.add_place(f"{place}, read at {read}" if place and read and read != place else place)
    elif node.place:
        error.add_note(f"  at: {node.place}")
    return error


def _typed(block: np.ndarray, type_: Type) -> np.ndarray:
    """Return the first bytes of a block as an array of a type."""
    return block[: type_.nbytes].view(type_.dtype.dtype).reshape(type_.shape)


def _output(plan: Plan, v: int, buffers: Sequence[Any], results: dict[int, Buffer]) -> Any:
    """Return the buffer of one output: a result's, an input's that passed through or was overwritten, a constant's."""
    type_, index, _ = plan.values[v]
    storage = plan.storages[index]
    if storage.kind == "result":
        owner = results[index]
        whole = _typed(owner.block, type_)
        if owner.array is owner.block:  # the first output of this storage takes it
            owner.array = whole
            return owner
        return Buffer(whole, owner)  # a view of it keeps it alive
    if storage.kind == "input":
        owner = buffers[storage.source]
        array = owner.array
        return owner if array.shape == type_.shape else Buffer(array.reshape(type_.shape), owner)
    return Buffer(storage.source.view(type_.dtype.dtype).reshape(type_.shape), storage.source)


def _run_watched(plan: Plan, bound: _Bound) -> None:
    """Run the steps one by one, with times, checks and messages."""
    inputs: Any = None
    for number, (kernel, inputs, outputs, stream) in enumerate(bound.calls):
        bound.reached = number
        guards = _guards(plan, number, bound.arena) if plan.guard_bytes else []
        for _, guard in guards:
            guard[:] = GUARD
        given = (
            [np.copy(a) for a in inputs] if debug.check >= 2 else inputs
        )  # it may write over them
        start = time.perf_counter_ns()
        kernel(inputs, outputs, stream)
        end = time.perf_counter_ns()
        for watcher in WATCHERS:
            watcher(plan, number, start, end)
        node = plan.steps[number].slot.node
        if debug.debug >= 2:
            debug.log(
                2,
                f"step {number}: {node.sig!r} on {node.sig.device}, {end - start} ns, {node.sig.nbytes} bytes",
            )
        for label, guard in guards:
            if (guard != GUARD).any():
                raise InternalError(
                    f"step {number} ({node.sig.op.name}, {node.place}) wrote past the end of {label}"
                )
        if debug.check >= 2:
            _check_step(plan, number, given, outputs)


def _guards(plan: Plan, number: int, arena: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Return the bytes after each output that lies in the arena, with what the output is."""
    found = []
    for v in plan.steps[number].outputs:
        index = plan.values[v].storage
        if index in plan.arena:
            end = plan.memory.offsets[plan.arena[index]] + plan.storages[index].nbytes
            found.append((plan.storages[index].label, arena[end : end + plan.guard_bytes]))
    return found


def _has_nan(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" and bool(np.isnan(array).any())


def stop_at_nan(node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Raise where a node made a NaN from inputs without one, under ``MGE_CHECK=3``.

    Raises
    ------
    InternalError
        Names the op and the user's line.
    """
    for array in outputs:
        if array is not None and _has_nan(array) and not any(map(_has_nan, inputs)):
            error = InternalError(
                f"{node.sig.op.name} ({node.place}) made a NaN from inputs without one"
            )
            error.hint = "MGE_CHECK=3 stops here; look at the values that this line gets"
            raise error


def _check_step(plan: Plan, number: int, inputs: list, outputs: list) -> None:
    """Compare a step with ``ref``, and stop at the first NaN that its inputs do not hold."""
    node = plan.steps[number].slot.node
    sig = node.sig
    if debug.check >= 3:
        stop_at_nan(node, inputs, outputs)
    if sig.device.type != "ref" and sig.op.is_pure and sig.op._reference is not None:
        wanted = [np.empty(t.shape, t.dtype.dtype) for t in sig.types]
        BACKENDS["ref"].kernel(0, sig)(inputs, wanted, None)
        for made, right in zip(outputs, wanted):
            if made is not None and not np.allclose(
                made, right, rtol=1e-3, atol=1e-5, equal_nan=True
            ):
                raise InternalError(
                    f"step {number} ({sig.op.name}, {node.place}) on {sig.device} differs from ref"
                )
