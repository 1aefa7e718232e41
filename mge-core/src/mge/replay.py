"""Replay: the schedule of a memory strategy, checked and made into a graph that computes values again where it says so.

In: a plan in the order of recording, a strategy. Out: a graph whose nodes are the runs of the schedule, in its order.
After ``cost`` and ``memory``; before ``plan``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from .cost import modelled_ns
from .debug import debug
from .dtype import as_dtype
from .errors import PluginContractError
from .grad import SITES
from .graph import GET, Graph, Node
from .memory import ALIGNMENT, Choice
from .nativeplan import workspace_bytes
from .op import OPS
from .order import is_repeatable
from .passes.verify import verify
from .schedule import inplace_pairs, origin_of
from .strategy import (
    Free,
    MemoryReport,
    MemoryRequest,
    MemorySchedule,
    NodeInfo,
    Offload,
    Prefetch,
    Run,
    ValueInfo,
)
from .strategy import Step as ScheduleStep
from .types import Type

Measure = Callable[[Graph], int]  # a graph in its final order -> the peak of its plan in bytes


def reschedule(
    choice: Choice, base: Any, budget_bytes: int | None, measure: Measure
) -> tuple[Graph, MemorySchedule | None, str]:
    """Ask a strategy what runs when.

    Parameters
    ----------
    choice : Choice
    base : Plan
        Of the graph, in the order of recording.
    budget_bytes : int, bytes, or None
    measure : callable

    Returns
    -------
    (graph, schedule, floor)
        The graph in the order of the schedule; that of ``base`` and None where the strategy keeps its order. The
        last is a line on the least that any schedule takes, for errors.

    Raises
    ------
    PluginContractError
        The strategy raised, or its schedule does not hold; names the strategy and the step.
    """
    graph, nodes = base.graph, [s.slot.node for s in base.steps]

    def measured(steps: Sequence[ScheduleStep]) -> int:
        return measure(_rewritten(graph, nodes, _replayed(choice.name, request, steps), origins))

    request, origins = _request(base, nodes, choice, budget_bytes, measured)
    answer = choice.ask("plan", request)
    if answer is None:
        return graph, None, ""
    if not isinstance(answer, MemorySchedule) or not isinstance(answer.steps, Sequence):
        text = f'memory strategy "{choice.name}" gave {answer!r:.60}'
        raise PluginContractError(f"{text}; it must give a MemorySchedule of a list, or None")
    try:
        floor = _floor(answer.report, request.nodes)
    except (AttributeError, TypeError, ValueError) as error:
        text = f'memory strategy "{choice.name}" gave the report {answer.report!r:.80}'
        raise PluginContractError(f"{text}; it must be a MemoryReport, or None") from error
    order = _replayed(choice.name, request, answer.steps)
    debug.log(1, f'memory strategy "{choice.name}": {len(order)} runs of {len(nodes)} steps')
    made = _rewritten(graph, nodes, order, origins)
    if debug.check:
        verify(made, "replay", graph)
    return made, answer, floor


def waits_for_backward(graph: Graph) -> bool:
    """Whether results of the forward phase wait for the backward phase: what a strategy can give up."""
    backward = {n for n in graph.nodes if (n.code, n.offset) in SITES}
    read = {origin_of(i)[0] for n in backward for i in n.inputs}
    return any(node.inputs for node in read - backward)


def _floor(report: MemoryReport | None, nodes: Sequence[NodeInfo]) -> str:
    """Return as a line what a strategy says of the least that any schedule takes."""
    if report is None or report.floor_bytes is None:
        return ""
    at = report.floor_node
    by = f", set by {_called(nodes[at])}" if at is not None and _is_one_of(at, nodes) else ""
    return f"  floor: {report.floor_bytes:,} bytes{by}. {report.reason}".rstrip(". ") + "\n"


def _is_one_of(number: Any, things: Sequence[Any]) -> bool:
    return hasattr(number, "__index__") and number in range(len(things))


def _called(node: NodeInfo) -> str:
    return f"node {node.number} ({node.op}{f', {node.place}' if node.place else ''})"


def _request(
    base: Any,
    nodes: list[Node],
    choice: Choice,
    budget_bytes: int | None,
    measure: Callable[[Sequence[ScheduleStep]], int],
) -> tuple[MemoryRequest, list[tuple[Node, int]]]:
    graph = base.graph
    ids: dict[tuple[Node, int], int] = {}
    values: list[ValueInfo] = []
    outputs = {origin_of(o) for o in graph.outputs}

    def add(node: Node, kind: str, label: str) -> None:
        for k, type_ in enumerate(node.sig.types):
            index = ids[node, k] = len(values)
            pinned = "output" if not kind and (node, k) in outputs else kind
            nbytes, device = type_.nbytes + base.guard_bytes, str(node.sig.device)
            values.append(ValueInfo(index, nbytes, pinned, device, f"{type_} of {label}"))

    for i, node in enumerate(graph.inputs):
        add(node, "parameter" if node.sig.attrs else "input", f"input {i}")
    for node in graph.nodes:
        if node.sig.op.name == "constant":
            add(node, "constant", "constant")
    for node in nodes:
        add(node, "", f"{node.sig.op.name} ({node.place})" if node.place else node.sig.op.name)
    infos = []
    for i, (step, node) in enumerate(zip(base.steps, nodes)):
        inputs = tuple(ids[origin_of(x)] for x in node.inputs)
        made = tuple(ids[node, k] for k in range(len(node.sig.types)))
        updates = any(base.storages[base.values[v].storage].kind == "input" for v in step.outputs)
        is_backward = (node.code, node.offset) in SITES
        phase = "update" if updates else "backward" if is_backward else "forward"
        scratch, is_pure = sum(workspace_bytes([step]).values()), is_repeatable(node.sig)
        pairs = _usable_pairs(base, node, inputs, made, updates)
        time_ns = base.times.get(node.sig, modelled_ns(node.sig))
        cost = time_ns, node.sig in base.times, scratch, is_pure, pairs
        where = str(node.sig.device), node.place
        infos.append(NodeInfo(i, node.sig.op.name, inputs, made, *cost, phase, *where))
    request = MemoryRequest(infos, values, budget_bytes, choice.options, ALIGNMENT, measure)
    return request, list(ids)


def _usable_pairs(
    base: Any, node: Node, inputs: tuple[int, ...], made: tuple[int, ...], updates: bool
) -> tuple[tuple[int, int], ...]:
    """Return the in-place pairs that the plan builder may use, of equal types, in its order."""
    fixed, donated = len(base.graph.inputs), base.donated if updates else ()
    return tuple(
        (inputs[a], made[b])
        for a, b in inplace_pairs(node)
        if node.inputs[a].type is node.sig.types[b]
        and (inputs[a] in donated if inputs[a] < fixed else not _is_constant(node.inputs[a]))
    )


def _is_constant(node: Node) -> bool:
    return origin_of(node)[0].sig.op.name == "constant"


def _replayed(
    name: str, request: MemoryRequest, steps: Sequence[Any]
) -> list[int | Offload | Prefetch]:
    """Return the nodes that a schedule runs, in order, and what it moves, once the schedule holds."""
    nodes, values = request.nodes, request.values
    where = ""

    def refuse(what: str) -> NoReturn:
        raise PluginContractError(f'memory strategy "{name}"{where} {what}')

    live = {v.number for v in values if v.pinned in ("input", "parameter", "constant")}
    fixed, freed, ran, last = frozenset(live), set[int](), set[int](), -1
    stored = set[int]()
    order: list[int | Offload | Prefetch] = []
    for number, step in enumerate(steps):
        where = f": step {number}"
        if isinstance(step, Run) and _is_one_of(step.node, nodes):
            node = nodes[step.node]
            for v in node.inputs:
                if v not in live:
                    when = "after it was freed" if v in freed else "before it is computed"
                    read = f"value {v} ({values[v].label})"
                    refuse(f"runs {_called(node)}, which reads {read} {when}")
            if not node.is_pure:
                if node.number in ran:
                    refuse(f"runs {_called(node)} again, and the op is not pure")
                if node.number < last:
                    late = f"runs {_called(node)} after {_called(nodes[last])}"
                    refuse(f"{late}; ops that are not pure keep their order")
                last = node.number
            live.update(node.outputs)
            stored.difference_update(node.outputs)
            ran.add(node.number)
            order.append(node.number)
        elif isinstance(step, Prefetch) and _is_one_of(step.value, values):
            if step.value not in stored:
                what = f"value {step.value} ({values[step.value].label})"
                refuse(f"prefetches {what}, which was not offloaded")
            stored.remove(step.value)
            live.add(step.value)
            order.append(step)
        elif isinstance(step, Free | Offload) and _is_one_of(step.value, values):
            if step.value in fixed or step.value not in live:
                which = "not the plan's" if step.value in fixed else "not there"
                refuse(
                    f"{step.kind}s value {step.value} ({values[step.value].label}), which is {which}"
                )
            live.remove(step.value)
            freed.add(step.value)
            if isinstance(step, Offload):
                stored.add(step.value)
                order.append(step)
        else:
            rule = f"Run of one of {len(nodes)} nodes, or Free of one of {len(values)} values"
            refuse(f"is {step!r}; it must be {rule}")
    where = ""
    for node in nodes:
        if node.number not in ran:
            refuse(f"never runs {_called(node)}")
    for value in values:
        if value.pinned == "output" and value.number not in live:
            refuse(f"freed value {value.number} ({value.label}), which is a result of the plan")
    return order


def _rewritten(
    graph: Graph,
    nodes: Sequence[Node],
    order: Sequence[int | Offload | Prefetch],
    origins: Sequence[tuple[Node, int]],
) -> Graph:
    """Return the graph with a node for each run and move; who reads a value reads the latest one.

    ``origins`` has for each value of the request the node that makes it, and which of its outputs it is.
    """
    made: list[Node] = [n for n in graph.nodes if n.sig.op.name == "constant"]
    newest: dict[Node, Node] = {n: n for n in (*graph.inputs, *made)}
    copies: dict[tuple[Node, tuple[Node, ...]], Node] = {}
    loaded: dict[tuple[Node, int], Node] = {}
    tokens: dict[tuple[Node, int], Node] = {}

    def copy(node: Node, inputs: tuple[Node, ...]) -> Node:
        made.append(Node(node.sig, inputs, node.type, None, node.code, node.offset))
        return made[-1]

    def now(node: Node) -> Node:
        origin = (node.inputs[0], node.sig.attrs[0][1]) if node.sig.op is GET else (node, 0)
        if origin in loaded and (node.sig.op is GET or node.sig.single):
            return loaded[origin]
        if node in newest:
            return newest[node]
        inputs = tuple(map(now, node.inputs))  # a view, or one of several outputs
        if (node, inputs) not in copies:
            copies[node, inputs] = copy(node, inputs)
        return copies[node, inputs]

    def call(function: Any, x: Node, type_: Any, site: Node) -> Node:
        attrs = (("function", function), ("types", (repr(type_),)))
        sig = OPS["host_call"].signature((x.type,), attrs, site.sig.device)
        made.append(Node(sig, (x,), sig.type, None, site.code, site.offset))
        return made[-1]

    for step in order:
        if isinstance(step, int):
            for k in range(len(nodes[step].sig.types)):
                loaded.pop((nodes[step], k), None)
            newest[nodes[step]] = copy(nodes[step], tuple(map(now, nodes[step].inputs)))
            continue
        origin = node, k = origins[step.value]
        if isinstance(step, Prefetch):
            loaded[origin] = call(step.load, tokens[origin], node.sig.types[k], node)
            continue
        x = loaded.pop(origin, newest[node])
        if x is newest[node] and not node.sig.single:
            x = next(now(g) for g in graph.nodes if origin_of(g) == origin and g.sig.op is GET)
        tokens[origin] = call(step.store, x, _TOKEN, node)
    outputs = tuple(map(now, graph.outputs))
    return Graph(graph.inputs, tuple(made), outputs)


_TOKEN = Type((1,), as_dtype("int64"))
