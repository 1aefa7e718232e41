"""Running: what is computed when a value is needed, and the executor of plans.

In: recordings, plans. Out: buffers on the recorded nodes.
After ``plan``; before ``trace``.

A flush takes a whole recording: it computes every result that is still held, and drops the rest. The first time
that a structure is seen it runs node by node; the second time it is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any

import numpy as np

from . import cache, holding
from . import graph as graph_module
from . import op as op_module
from .buffer import Failure
from .cache import PLANS, Key, compile_graph
from .capture import lowered
from .debug import debug
from .discovery import first_line
from .errors import InternalError
from .execute import NODE_WATCHERS, StepError, located, stop_at_nan
from .grad import saved_set
from .graph import GET, LOCAL, Graph, Node, Recording, Signature
from .memory import current_strategy
from .mode import MANAGERS, MODE
from .passes.inline import inline_calls
from .passes.lower import helps
from .tape import ACTIVE

SOFT_CAP_NODES = 2_000
SOFT_CAP_BYTES = 256 << 20


def evaluate(nodes: Sequence[Node]) -> None:
    """Give each node its value: run the pending graph that holds it, or just its ancestors."""
    for node in nodes:
        if node.buffer is None and LOCAL.requested is not None:
            run_requested()
        if node.buffer is None and node in LOCAL.recording.index:
            flush_pending()
        if node.buffer is None:  # recorded by another thread, or history without a value
            alone = Recording()
            alone.enlist(node)
            flush(alone, only=(node,))


def flush_pending() -> None:
    """Run this thread's pending graph."""
    recording, LOCAL.recording = LOCAL.recording, Recording()
    flush(recording)


def run_requested() -> None:
    """Run the recording that ``step()`` left."""
    recording, LOCAL.requested = LOCAL.requested, None
    if recording is not None:
        flush(recording)


def request_flush() -> None:
    """Ask for the pending graph to run at the next call, read or boundary; what is dropped until then never runs."""
    if MODE.get().recording is None:
        run_requested()
        LOCAL.requested, LOCAL.recording = LOCAL.recording, Recording()


def boundary() -> None:
    """Mark a place where the pending graph may be cut; cut it if it has grown over a soft cap."""
    if MODE.get().recording is not None or MANAGERS.get():
        return
    run_requested()
    recording = LOCAL.recording
    count = len(recording.tokens)
    if count > recording.boundary:
        recording.weight += next(reversed(recording.index)).type.nbytes
        recording.boundary = count
        if count > SOFT_CAP_NODES or recording.weight > SOFT_CAP_BYTES:
            flush_pending()


def over_cap(recording: Recording) -> None:
    """Cut a pending graph over the hard cap: at the last boundary, or here, with one warning."""
    if recording is not LOCAL.recording:
        return
    cut = recording.boundary
    if not cut:
        debug.once(
            f"a graph of {len(recording.tokens):,} calls was recorded and no value was read; it is computed here. "
            "Read a value or call mge.sync() now and then"
        )
        flush_pending()
        return
    nodes = recording.nodes
    first, rest = Recording(), Recording()
    for node in nodes[:cut]:
        first.index[node] = len(first.tokens)
        first.tokens.append(recording.tokens[len(first.tokens)])
    first.rebinds = recording.rebinds
    LOCAL.recording = rest
    pending = nodes[cut:]
    del nodes
    flush(first)
    for node in pending:
        rest.enlist(node)


def _history(nodes: list[Node], tokens: list[Any], wanted: list[int]) -> list[int]:
    """Add to ``wanted`` what gradients of active tapes will read; return the positions whose inputs to keep."""
    depends: list[bool] = []
    saved = set(wanted)
    kept: list[int] = []
    gets: dict[tuple[int, int], int] = {}
    for i, token in enumerate(tokens):
        node = nodes[i]
        if token.__class__ is not tuple:
            depends.append(bool(node.inputs) or any(node in tape.watched for tape in ACTIVE))
            continue
        depends.append(
            any([depends[p] for p in token[1:]]) or any(node in tape.watched for tape in ACTIVE)
        )
        if token[0].op is GET:
            gets[token[1], token[0].attrs[0][1]] = i
        if depends[i]:
            kept.append(i)
    for i in kept:
        sig = tokens[i][0]
        if sig.op is GET:
            continue
        inputs, outputs = saved_set(sig)
        saved.update(tokens[i][1 + k] for k in inputs)
        saved.update(
            [i] if sig.single and outputs else [gets[i, k] for k in outputs if (i, k) in gets]
        )
    wanted[:] = sorted(p for p in saved if tokens[p].__class__ is tuple and tokens[p][0].single)
    return kept


def flush(recording: Recording, only: Sequence[Node] = ()) -> None:
    """Compute the held results of a recording; with ``only``, just those nodes."""
    nodes, tokens = recording.nodes, recording.tokens
    wanted, donated = (
        ([recording.index[n] for n in only], []) if only else holding.held(recording, nodes)
    )
    kept = _history(nodes, tokens, wanted) if ACTIVE and not only else []
    wanted = [i for i in wanted if nodes[i].buffer is None]
    if not wanted:
        return
    try:
        values = _compute(recording, nodes, wanted, donated)
    except BaseException:
        _undo(recording)
        raise
    history = set(kept)
    failure: Failure | None = None
    for i in wanted:
        node, value = nodes[i], values[i]
        node.buffer = value
        if i not in history:
            node.inputs = ()
        if value.__class__ is Failure:
            failure = failure or value
    for i in kept:
        for tape in ACTIVE:
            tape.keep(nodes[i])
    if failure is not None:
        _undo(recording)
        raise failure.error


def _undo(recording: Recording) -> None:
    """Give each handle that was rebound, and has no value now, the last value that it had."""
    for ref, before in recording.rebinds.values():
        handle = ref()
        if handle is not None and handle._node in recording.index:
            handle._node = before


def _compute(
    recording: Recording, nodes: list[Node], wanted: list[int], donated: list[int]
) -> dict[int, Any]:
    """Return a buffer for each wanted position: by a plan where the structure was seen before, else node by node."""
    if MODE.get().eager:
        return interpret(nodes, recording.tokens, wanted)
    key = Key(tuple(recording.tokens), tuple(wanted), tuple(donated), current_strategy())

    def made(positions: tuple[int, ...]) -> Graph:
        graph = recording.graph([nodes[i] for i in positions], recording.leaves)
        if debug.tune:
            given = graph, key.tokens, positions, (), key.strategy, key.donated
            cache.tune(lambda: compile_graph(*given), recording.leaves)
        return graph

    plan = PLANS.find(key, made)
    if plan is None:
        debug.counts["first_sight_runs"] += 1
        return interpret(nodes, recording.tokens, wanted)
    try:
        results = plan.run([nodes[i] for i in plan.leaves])
    except StepError as failure:
        if failure.overwritten:
            _poison(plan, nodes, failure.error)
            raise failure.error from None
        if failure.is_final or isinstance(failure.error, InternalError):
            raise failure.error from None
        if not all(t[0].op.is_pure for t in recording.tokens if type(t) is tuple):
            raise failure.error from None
        # Finds the node that fails, and computes what does not need it.
        found = interpret(nodes, recording.tokens, wanted)
        if not any(b.__class__ is Failure for b in found.values()):
            text = f"{type(failure.error).__name__}: {first_line(failure.error)}"
            debug.once(f"a compiled plan failed where its calls one by one do not: {text}")
        return found
    by_position = dict(zip(plan.wanted, results))
    return {i: by_position[i] for i in wanted}


def _poison(plan: Any, nodes: list[Node], error: BaseException) -> None:
    """After a failure while old values were being overwritten: those values are lost, and reading them says why."""
    for i in plan.donated:
        nodes[i].buffer = Failure(error)


def interpret(nodes: list[Node], tokens: list[Any], wanted: Sequence[int]) -> dict[int, Any]:
    """Compute the wanted positions one node at a time, without optimisation; free what is no longer needed.

    A node that fails, and what depends on it, becomes a Failure; the rest is computed.
    """
    uses = [0] * len(tokens)
    for i in wanted:
        uses[i] = 1
    for i in range(len(tokens) - 1, -1, -1):
        if uses[i] and tokens[i].__class__ is tuple:
            for position in tokens[i][1:]:
                uses[position] += 1
    values: dict[int, Any] = {}
    for i, token in enumerate(tokens):
        if not uses[i]:
            continue
        if token.__class__ is not tuple:
            values[i] = nodes[i].buffer
            continue
        sig = token[0]
        inputs = [values[p] for p in token[1:]]
        failed = next((b for b in inputs if b.__class__ is Failure), None)
        if failed is not None:
            values[i] = failed
        elif sig.op is GET:
            values[i] = inputs[0][sig.attrs[0][1]]
        else:
            values[i] = run_node(sig, inputs, nodes[i])
        for position in token[1:]:
            uses[position] -= 1
            if not uses[position]:
                values.pop(position, None)
    return values


def run_node(sig: Signature, inputs: list[Any], node: Node) -> Any:
    """Run one node at once: a buffer, a tuple of buffers, or a Failure."""
    if helps(sig):
        return _run_parts(sig, inputs, node)
    outputs = [sig.device.array(t) for t in sig.types]
    if sig.op.name != "copy":
        inputs = [sig.device.local(b) for b in inputs]
    try:
        with sig.device.lock, np.errstate(all="ignore"):
            kernel, start = sig.device.kernel(sig), perf_counter_ns()
            kernel([b.array for b in inputs], [b.array for b in outputs], None)
            if debug.check >= 3:
                stop_at_nan(node, [b.array for b in inputs], [b.array for b in outputs])
            for watcher in NODE_WATCHERS:
                watcher(sig, node, start, perf_counter_ns())
    except Exception as error:
        return Failure(located(error, node, sig))
    debug.counts["steps_run"] += 1
    return outputs[0] if sig.single else tuple(outputs)


def _run_parts(sig: Signature, inputs: list[Any], node: Node) -> Any:
    """Run the lowering of an op that its device refuses, as plans do: so both give the same bits."""
    graph = sig.notes.get("parts")
    if graph is None:
        graph = sig.notes["parts"] = inline_calls(lowered(sig))  # type: ignore[arg-type]
    values: dict[Node, Any] = dict(zip(graph.inputs, inputs))
    for part in graph.nodes:
        given = [values[i] for i in part.inputs]
        failed = next((b for b in given if b.__class__ is Failure), None)
        if failed is not None:
            return failed
        is_get = part.sig.op is GET
        values[part] = given[0][part.sig.attrs[0][1]] if is_get else run_node(part.sig, given, node)
    results = [values[o] for o in graph.outputs]
    return results[0] if sig.single else tuple(results)


def sync(device: Any = None) -> None:
    """Compute everything that this thread has recorded and still holds.

    Parameters
    ----------
    device : str or Device, optional
        Accepted for symmetry; all devices are synchronised.
    """
    run_requested()
    flush_pending()


def eval(*tensors: Any) -> Any:
    """Compute tensors now; returns them.

    Parameters
    ----------
    *tensors : tensor

    Returns
    -------
    The tensor, or a tuple of them.
    """
    evaluate([t._node for t in tensors])
    return tensors[0] if len(tensors) == 1 else tensors


graph_module.evaluate = evaluate
graph_module.run_requested = run_requested
graph_module.boundary = boundary
graph_module.request_flush = request_flush
op_module.over_cap = over_cap
op_module.compute_now = lambda tensors: evaluate([t._node for t in tensors])
