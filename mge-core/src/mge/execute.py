"""The executor: runs a plan's steps over buffers. The seam for the native executor.

In: a plan and a buffer for each input. Out: a buffer for each output.
After ``plan``; before ``cache``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from typing import Any

import numpy as np

from .buffer import ALIGNMENT, Buffer, DeviceArray, in_host, transfer
from .debug import debug
from .device import BACKENDS, Device, is_free
from .discovery import first_line
from .errors import InternalError, MgeError, PluginContractError, user_place
from .graph import Node, Signature
from .native import NativeKernel
from .nativeplan import NativePlan, bind
from .plan import Plan
from .types import Type

# Told about each step: (plan, step number, start ns, end ns). The profiler adds itself here.
WATCHERS: list[Callable[[Plan, int, int, int], None]] = []
# The same for nodes that run one by one: (signature, node, start ns, end ns).
NODE_WATCHERS: list[Callable[[Signature, Node, int, int], None]] = []


GUARD = 0xA5  # what guard bytes hold


class StepError(Exception):
    """A step failed.

    ``overwritten``: inputs of the plan may have been changed already. ``is_final``: running its nodes one by one
    would hide the fault, as that of a part that a device compiled.
    """

    def __init__(self, error: BaseException, overwritten: bool, is_final: bool = False) -> None:
        super().__init__(str(error))
        self.error, self.overwritten, self.is_final = error, overwritten, is_final


class _Bound:
    """A plan's steps with arrays in their places, over one arena in each memory.

    Attributes
    ----------
    arenas : dict of Device to array
    constants : dict of int to Buffer
        By storage, what was copied to a device's own memory.
    calls : list of (kernel, inputs, outputs, stream)
        The lists are shared with ``slots``, which put this run's arrays into them.
    inputs, results : list of (input or storage, places)
        Storages that change from run to run. Their arrays go to ``places``: by type, (list, position) each.
    passed : list of int or None
        For each output the input that it is, overwritten or not.
    native : NativePlan or None
        The same steps for the native executor, where some of them have native kernels.
    streams : list of Stream
        Of devices of backends in Python. Only the last of them may have work that no step waited for.
    reached : int
        The step that a watched run is at.
    """

    def __init__(self, plan: Plan, arenas: dict[Device, Any]) -> None:
        self.arenas = arenas
        self.constants = {
            i: s.device.upload(s.source)
            for i, s in enumerate(plan.storages)
            if s.kind == "constant" and not s.device.is_host
        }
        self.calls: list[tuple] = []
        self.streams: list[Any] = []
        self._numbers: dict[int, tuple[bytes, Buffer]] = {}
        self.reached = 0
        dynamic: dict[int, dict[Type, list[tuple[list, int]]]]
        dynamic = {i: {} for i, s in enumerate(plan.storages) if s.kind in ("input", "result")}
        arrays = [self._array(plan, v) for v in range(len(plan.values))]
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
        if plan.has_own_memory and not any(isinstance(s.kernel, NativeKernel) for s in plan.steps):
            self._put_on_streams(plan)
        places = [(i, plan.storages[i], list(uses.items())) for i, uses in dynamic.items()]
        self.inputs = [(s.source, uses) for _, s, uses in places if s.kind == "input"]
        self.results = [(i, uses) for i, s, uses in places if s.kind == "result"]
        self.passed = [_passed(plan, v) for v in plan.outputs]
        self.native = bind(plan, self)

    def _array(self, plan: Plan, v: int) -> Any:
        """Return the array of a value that stays in place from run to run, else None."""
        type_, index, _ = plan.values[v]
        storage = plan.storages[index]
        if storage.kind == "constant":
            return self.constant(plan, v)
        if storage.kind == "arena":
            offset = plan.memory.offsets[plan.arena[index]]
            return _typed(self.arenas[storage.device][offset:], type_)
        return None

    def constant(self, plan: Plan, v: int) -> Any:
        """Return the array of a constant, in its device's memory."""
        type_, index, _ = plan.values[v]
        made = self.constants.get(index)
        array = plan.storages[index].source if made is None else made.array
        return array.view(type_.dtype.dtype).reshape(type_.shape)

    def _put_on_streams(self, plan: Plan) -> None:
        """Let steps of a Python backend's device run on its stream; the next step elsewhere waits for that."""
        before = None
        for i, (kernel, inputs, outputs, _) in enumerate(self.calls):
            sig = plan.steps[i].slot.node.sig
            own = sig.device.refusal(sig) is None and not is_free(sig)
            stream = sig.device.stream() if own else None
            if before is not None and before is not stream:
                kernel = _after(before, kernel)
            before = stream
            if stream is not None and stream not in self.streams:
                self.streams.append(stream)
            self.calls[i] = (kernel, inputs, outputs, stream)

    def local(self, plan: Plan, buffers: Sequence[Any]) -> list[Any]:
        """Return the inputs' buffers, with numbers copied to the memory where kernels read them."""
        made = list(buffers)
        for storage in plan.storages:
            if storage.kind != "input" or storage.device.is_host:
                continue
            i = storage.source
            array = buffers[i].array
            if array.__class__ is DeviceArray:
                continue
            old, raw = self._numbers.get(i), array.tobytes()
            if old is None or old[0] != raw:  # a new buffer: the old one may have left the plan
                old = self._numbers[i] = raw, storage.device.upload(array)
            made[i] = old[1]
        return made


def _passed(plan: Plan, v: int) -> int | None:
    """Return the input that an output is as it came or overwritten, with its type; None for other outputs."""
    type_, index, _ = plan.values[v]
    storage = plan.storages[index]
    same = storage.kind == "input" and plan.graph.inputs[storage.source].type is type_
    return storage.source if same else None


def _after(stream: Any, kernel: Any) -> Any:
    """Return a kernel that waits for a stream first."""

    def waiting(inputs: Any, outputs: Any, own: Any) -> None:
        stream.sync()
        kernel(inputs, outputs, own)

    return waiting


def _arenas(plan: Plan) -> dict[Device, Any]:
    """Return each memory's arena, at least as large as the plan needs; plans of one device share it."""
    for device, sizes in plan.arenas.items():
        if device.arena is None or device.arena.nbytes < sum(sizes):
            device.arena = None  # it goes first where no other plan is bound to it
            device.arena = device.pool.allocate(max(sum(sizes), ALIGNMENT))
    return {device: device.arena for device in plan.arenas}


def execute(
    plan: Plan, buffers: Sequence[Any], see: Callable[[Plan, int, int, int], None] | None = None
) -> list[Any]:
    """Run a plan.

    Parameters
    ----------
    plan : Plan
    buffers : sequence of Buffer
        One for each input of its graph. Those in ``plan.donated`` may be overwritten.
    see : callable, optional
        Told about the steps of this run, beside ``WATCHERS``.

    Returns
    -------
    list of Buffer
        One for each output.

    Raises
    ------
    StepError
        A step failed, or the run was interrupted.
    """
    watchers = WATCHERS if see is None else [*WATCHERS, see]
    if len(plan.devices) == 1:
        with plan.devices[0].lock:
            return _execute(plan, buffers, watchers)
    with ExitStack() as stack:
        for device in plan.devices:
            stack.enter_context(device.lock)
        return _execute(plan, buffers, watchers)


def _execute(plan: Plan, buffers: Sequence[Any], watchers: Sequence[Any]) -> list[Any]:
    bound = plan.bound
    arenas = _arenas(plan)
    if bound is None or any(bound.arenas[d] is not arena for d, arena in arenas.items()):
        bound = plan.bound = _Bound(plan, arenas)
    if plan.has_own_memory:
        buffers = bound.local(plan, buffers)
    watched = debug.check >= 2 or (bool(watchers) and bound.native is None)
    native = None if watched else bound.native
    fills = native is None or native.has_calls  # some step takes its arrays from the lists
    for source, places in bound.inputs if fills else ():
        if places:
            array = buffers[source].array
            for type_, uses in places:
                typed = array if array.shape == type_.shape else array.reshape(type_.shape)
                for made, position in uses:
                    made[position] = typed
    results: dict[int, Buffer] = {}
    for index, places in bound.results:
        storage = plan.storages[index]
        pool = storage.device.pool
        block = pool.take(storage.nbytes)
        results[index] = Buffer(block, block, pool)
        for type_, uses in places if fills else ():
            typed = _typed(block, type_)
            for made, position in uses:
                made[position] = typed
    inputs: Any = None
    if native is not None:
        native.reset()
    try:
        with np.errstate(all="ignore") if fills else nullcontext():
            if native is not None:
                _run_native(plan, native, buffers, results, watchers)
            elif watched:
                _run_watched(plan, bound, watchers)
            else:
                for kernel, inputs, outputs, stream in bound.calls:
                    kernel(inputs, outputs, stream)
        for stream in bound.streams:
            stream.sync()
        made = [
            buffers[source] if source is not None else _output(plan, v, buffers, results, bound)
            for v, source in zip(plan.outputs, bound.passed)
        ]
    except BaseException as error:
        if native is not None:
            number = native.step
        elif watched:
            number = bound.reached
        else:
            number = next((i for i, call in enumerate(bound.calls) if call[1] is inputs), 0)
        _settle(bound)
        is_final = not isinstance(error, Exception)
        if isinstance(error, Exception) and plan.steps:
            node = plan.steps[min(number, len(plan.steps) - 1)].slot.node
            error, is_final = located(error, node), "compiled" in node.sig.notes
        overwritten = bool(plan.donated) and number >= plan.overwrites_from
        raise StepError(error, overwritten, is_final) from error
    debug.counts["plans_run"] += 1
    debug.counts["steps_run"] += len(bound.calls)
    return made


def _settle(bound: _Bound) -> None:
    """After a failure: wait for work that may still write to memory that is given up now."""
    for stream in bound.streams:
        with suppress(Exception):
            stream.sync()


def _run_native(
    plan: Plan,
    native: NativePlan,
    buffers: Sequence[Any],
    results: dict[int, Buffer],
    watchers: Sequence[Any],
) -> None:
    """Run the steps outside the interpreter; tell the watchers afterwards."""
    times = np.zeros((len(plan.steps), 2), np.int64) if watchers else None
    blocks = [results[i].block for i in native.results]
    native.run([buffers[i].array for i in native.inputs], blocks, times)
    if times is not None:
        for number, (start, end) in enumerate(times.tolist()):
            for watcher in watchers:
                watcher(plan, number, start, end)


def located(error: Exception, node: Node, sig: Signature | None = None) -> Exception:
    """Add to an error where the failing call was recorded, where its value was read, and whose kernel failed.

    A kernel of a plugin that says that it does not support its use breaks the contract.
    """
    sig = sig or node.sig
    plugin = _owner(sig)
    if plugin and isinstance(error, NotImplementedError):
        text = f"{plugin}: supports accepted {sig!r}, and its kernel raised {type(error).__name__}"
        made = PluginContractError(f"{text}: {first_line(error)}")
        error = made.with_traceback(error.__traceback__)
    elif plugin and not isinstance(error, PluginContractError | InternalError):
        error.add_note(f'  in: {sig!r} on {sig.device}, by plugin "{plugin}"')
    if isinstance(error, MgeError):
        place, read = node.place, user_place()
        error.add_place(f"{place}, read at {read}" if place and read and read != place else place)
    elif node.place:
        error.add_note(f"  at: {node.place}")
    return error


def _owner(sig: Signature) -> str:
    """Return the name of the plugin whose kernel computes a use of an op; nothing where the core does."""
    notes = sig.notes
    own = sig.device.type != "ref" and notes.get("refusal", "") is None and not is_free(sig)
    return notes.get("library") or (sig.device.type if own or "compiled" in notes else "")


def _typed(block: Any, type_: Type) -> Any:
    """Return the first bytes of a block as an array of a type."""
    return block[: type_.nbytes].view(type_.dtype.dtype).reshape(type_.shape)


def _output(
    plan: Plan, v: int, buffers: Sequence[Any], results: dict[int, Buffer], bound: _Bound
) -> Any:
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
    return Buffer(bound.constant(plan, v), bound.constants.get(index, storage.source))


def _run_watched(plan: Plan, bound: _Bound, watchers: Sequence[Any]) -> None:
    """Run the steps one by one, with times, checks and messages."""
    inputs: Any = None
    for number, (kernel, inputs, outputs, stream) in enumerate(bound.calls):
        bound.reached = number
        guards = _guards(plan, number, bound) if plan.guard_bytes else []
        for _, guard in guards:
            transfer(guard, np.full(guard.nbytes, GUARD, np.uint8))
        # it may write over them
        given = [np.copy(in_host(a)) for a in inputs] if debug.check >= 2 else inputs
        start = time.perf_counter_ns()
        kernel(inputs, outputs, stream)
        if stream is not None:
            stream.sync()
        end = time.perf_counter_ns()
        for watcher in watchers:
            watcher(plan, number, start, end)
        for label, guard in guards:
            if (in_host(guard) != GUARD).any():
                node = plan.steps[number].slot.node
                step = f"step {number} ({node.sig.op.name}, {node.place})"
                raise InternalError(f"{step} wrote past the end of {label}")
        if debug.check >= 2:
            _check_step(plan, number, given, [None if a is None else in_host(a) for a in outputs])


def _guards(plan: Plan, number: int, bound: _Bound) -> list[tuple[str, Any]]:
    """Return the bytes after each output that lies in the arena, with what the output is."""
    found = []
    for v in plan.steps[number].outputs:
        index = plan.values[v].storage
        if index in plan.arena:
            storage = plan.storages[index]
            end = plan.memory.offsets[plan.arena[index]] + storage.nbytes
            arena = bound.arenas[storage.device]
            found.append((storage.label, arena[end : end + plan.guard_bytes]))
    return found


def _has_nan(array: Any) -> bool:
    array = in_host(array)
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
            text = f"{node.sig.op.name} ({node.place}) made a NaN from inputs without one"
            error = InternalError(text)
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
            if made is not None and not np.allclose(made, right, 1e-3, 1e-5, equal_nan=True):
                step = f"step {number} ({sig.op.name}, {node.place})"
                raise InternalError(f"{step} on {sig.device} differs from ref")
