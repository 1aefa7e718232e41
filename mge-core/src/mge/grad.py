"""Gradients, graph to graph: reverse mode over nodes, with the rules of the ops.

In: results and the tensors to differentiate by. Out: gradients, which are ordinary nodes.
After ``tape``; before ``discovery``.

The rules run once for each structure of the history: what they record becomes a graph, kept by the structure's key
and attached as one ``call`` node. So a training step records its backward pass as one node.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Sequence
from typing import Any, NamedTuple

from .capture import Capture, inline, lowered
from .debug import debug
from .errors import DTypeError, InternalError, ShapeError, UnsupportedError, user_place
from .graph import (
    GET,
    LOCAL,
    Graph,
    Node,
    Signature,
    current_recording,
    get_signature,
    make_leaf,
)
from .mode import MODE, changed
from .op import OPS, record_nodes
from .ops import create
from .ops.slicing import add_part
from .tape import ACTIVE
from .tensor import Tensor


def gradients(
    ys: Sequence[Tensor], xs: Sequence[Tensor], dys: Sequence[Any] | None = None
) -> list[Tensor | None]:
    """Return the gradient of the sum of ``dys * ys`` by each of ``xs``.

    Parameters
    ----------
    ys : sequence of float tensor
    xs : sequence of float tensor
        By the node that each stands for now; what led to it counts as constant.
    dys : sequence of tensor or None, optional
        Of the shapes and dtypes of ``ys``; None means ones.

    Returns
    -------
    list of tensor or None
        Of the shapes and dtypes of ``xs``; None where there is no dependence. A value that was computed while
        no ``GradManager`` was active is a constant, so in eager mode this function works inside a manager only.

    Raises
    ------
    DTypeError
        A tensor is not of a float dtype.
    ShapeError
        A ``dy`` has another shape than its ``y``.
    """
    dys = [None] * len(ys) if dys is None else dys
    for y, dy in zip(ys, dys, strict=True):
        if not y.dtype.is_float:
            raise DTypeError(
                f"gradients: y is {y._node.type}; only float tensors have gradients"
            ).add_place(user_place())
        if dy is not None and dy._node.type is not y._node.type:
            raise ShapeError(
                f"gradients: dy is {dy._node.type} and y is {y._node.type}; they must be the same"
            ).add_place(user_place())
    return gradient_nodes([y._node for y in ys], [x._node for x in xs], dys)


def gradient_nodes(
    roots: Sequence[Node],
    targets: Sequence[Node],
    dys: Sequence[Tensor | None],
    constant: Container[Node] = (),
) -> list[Tensor | None]:
    """Return gradients of ``roots`` by ``targets``; the graph that computes them is recorded as one node.

    What led to a node in ``constant`` is not looked at.
    """
    pending = _pending_key(roots, targets, dys, constant)
    known = _PENDING.get(pending)
    if known is not None:
        block, places = known
        recorded = LOCAL.recording.nodes
        nodes = [recorded[p] for p in places]
    else:
        region = _Region(roots, targets, constant)
        block = _block_of(region, roots, targets, dys)
        for dy in dys:
            if dy is not None:
                current_recording().enlist(dy._node, dy)
        nodes = [_source(s, region, dys) for s in block.sources]
        places = [current_recording().index.get(n) for n in nodes]
        if pending is not None and None not in places:
            _PENDING[pending] = block, places
            if len(_PENDING) > _BLOCKS_LIMIT:
                del _PENDING[next(iter(_PENDING))]
    if block.sig is None:
        return [None] * len(targets)
    outputs = record_nodes(block.sig, nodes, later=True)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    SITES.add((outputs[0]._node.code, outputs[0]._node.offset))
    return [outputs[i] if i is not None else None for i in block.positions]


# Where gradients were recorded, as nodes have it. Their nodes carry such a place, whatever passes make of them.
SITES: set[tuple[Any, int]] = set()


class _Block(NamedTuple):
    """The gradient of one structure: a ``call``, where its inputs come from, and which output each target gets."""

    sig: Signature | None
    sources: list[tuple]
    positions: list[int | None]


_BLOCKS: OrderedDict[tuple, _Block] = OrderedDict()
_BLOCKS_LIMIT = 512
# The same by ``_pending_key``, with the positions of the call's inputs in the pending graph.
_PENDING: dict[tuple | None, tuple[_Block, list[Any]]] = {}


def _pending_key(
    roots: Sequence[Node], targets: Sequence[Node], dys: Sequence[Any], tape: Any
) -> tuple | None:
    """Return what decides on a gradient whose whole history is in the pending graph; None where it may not be."""
    recording = LOCAL.recording
    is_simple = len(ACTIVE) == 1 and ACTIVE[0] is tape and not tape.kept
    if not is_simple or MODE.get().recording is not None or dys.count(None) < len(dys):
        return None
    places = tuple(map(recording.index.get, roots))
    if None in places or any([n.buffer is None for n in tape.watched]):
        return None
    start = next((count for r, count in tape.earlier if r is recording), 0)
    return tuple(recording.tokens), start, places, tuple(map(recording.index.get, targets))


def _block_of(
    region: _Region, roots: Sequence[Node], targets: Sequence[Node], dys: Sequence[Any]
) -> _Block:
    if not region.order:
        return _Block(None, [], [])
    key = (*region.key, tuple(dy is None for dy in dys))
    block = _BLOCKS.get(key)
    if block is None:
        debug.counts["gradients_built"] += 1
        block = _BLOCKS[key] = _build(region, roots, targets, dys)
        if len(_BLOCKS) > _BLOCKS_LIMIT:
            _BLOCKS.popitem(last=False)
    else:
        _BLOCKS.move_to_end(key)
    return block


class _Region:
    """The history between targets and roots.

    Attributes
    ----------
    order : list of Node
        What depends on a target, targets included, inputs first. Empty if no root does.
    inner : set of Node
        Those of ``order`` that gradients pass through.
    index, outside : dict of Node to int
        Position in ``order``; number of an input of an inner node that is not in ``order``.
    """

    def __init__(
        self, roots: Sequence[Node], targets: Sequence[Node], constant: Container[Node]
    ) -> None:
        self.order: list[Node] = []
        self.inner: set[Node] = set()
        reaches: dict[Node, bool] = {}
        wanted = set(targets)
        for root in roots:
            stack = [root]
            while stack:
                node = stack[-1]
                if node in reaches:
                    stack.pop()
                    continue
                inputs = () if node in constant else node.inputs
                waiting = [i for i in inputs if i not in reaches]
                if waiting:
                    stack.extend(waiting)
                    continue
                stack.pop()
                passes = any([reaches[i] for i in inputs])
                reaches[node] = passes or node in wanted
                if reaches[node]:
                    self.order.append(node)
                if passes:
                    self.inner.add(node)
        if not any(reaches[r] for r in roots):
            self.order = []
        self.index = {node: i for i, node in enumerate(self.order)}
        self.outside: dict[Node, int] = {}
        tokens: list[Any] = []
        for node in self.order:
            if node in self.inner:
                tokens.append((node.sig, *[self._number(i) for i in node.inputs]))
            else:
                tokens.append(node.type)
        self.key = (*tokens, tuple(map(self.index.get, roots)), tuple(map(self.index.get, targets)))

    def _number(self, node: Node) -> int:
        found = self.index.get(node)
        return found if found is not None else -1 - self.outside.setdefault(node, len(self.outside))


def _build(
    region: _Region, roots: Sequence[Node], targets: Sequence[Node], dys: Sequence[Any]
) -> _Block:
    """Run the rules backwards over a region and keep what they record."""
    device = roots[0].sig.device
    owner = Capture("gradient", device)
    sources: dict[Node, tuple] = {}  # placeholder -> where its value comes from
    made: dict[tuple, Node] = {}

    def placeholder(source: tuple, type_: Any) -> Tensor:
        leaf = made.get(source)
        if leaf is None:
            leaf = made[source] = make_leaf(type_, device)
            sources[leaf] = source
        return Tensor.from_node(leaf)

    def value(node: Node) -> Tensor:
        i = region.index.get(node)
        return placeholder(
            ("outside", region.outside[node]) if i is None else ("node", i), node.type
        )

    def result(node: Node) -> Any:
        if node.sig.single:
            return value(node)
        return tuple(
            placeholder(("get", region.index[node], i), t) for i, t in enumerate(node.sig.types)
        )

    with changed(recording=owner.recording, eager=False, cast=None):
        cotangents: dict[Node, Tensor] = {}
        for k, (root, dy) in enumerate(zip(roots, dys)):
            if root in region.index:
                seed = _ones(root.type) if dy is None else placeholder(("dy", k), root.type)
                cotangents[root] = cotangents[root] + seed if root in cotangents else seed
        inner = [n for n in region.order if n in region.inner]
        finals = _reverse(inner, value, result, cotangents, region.index.keys(), set(targets))
        found = [finals.get(t) for t in targets]
        outputs = [g._node for g in found if g is not None]
        for node in outputs:
            owner.recording.enlist(node)
    graph = owner.recording.graph(outputs)
    positions: list[int | None] = []
    for g in found:
        positions.append(None if g is None else sum(p is not None for p in positions))
    if not outputs:
        return _Block(None, [], positions)
    return _Block(
        _call_signature(graph, device),
        [sources[leaf] for leaf in owner.recording.leaves],
        positions,
    )


def _call_signature(graph: Graph, device: Any) -> Signature:
    call = OPS["call"]
    return call.signature(
        [n.type for n in graph.inputs], call.normal_attrs({"graph": graph}), device
    )


def _source(source: tuple, region: _Region, dys: Sequence[Any]) -> Node:
    """Return the node that a placeholder of a block stands for, in this history."""
    kind = source[0]
    if kind == "node":
        return region.order[source[1]]
    if kind == "outside":
        return next(n for n, k in region.outside.items() if k == source[1])
    if kind == "dy":
        return dys[source[1]]._node
    parent, i = region.order[source[1]], source[2]
    for tape in ACTIVE:
        found = tape.outputs.get((parent, i))
        if found is not None:
            return found
    recording, sig = current_recording(), get_signature(parent.sig, i)
    after = recording.index.get(parent, -1) + 1 + i  # where its call put this output
    for found in recording.nodes[after : after + 1]:
        if found.sig is sig and found.inputs == (parent,):
            return found
    return Node(
        sig,
        (parent,),
        parent.sig.types[i],
        None,
        parent.code,
        parent.offset,
    )


def _ones(type_: Any) -> Tensor:
    return create.ones(type_.shape, dtype=type_.dtype)


def _reverse(
    order: Iterable[Node],
    value: Any,
    result: Any,
    cotangents: dict[Node, Tensor],
    depends: Container[Node],
    targets: Container[Node] = (),
) -> dict[Node, Tensor]:
    """Go backwards over nodes, turning the cotangent of each into those of its inputs; return what is left."""
    finals: dict[Node, Tensor] = {}
    several: dict[Node, list[Tensor | None]] = {}
    for node in reversed(list(order)):
        if node.sig.op is GET:
            dy: Any = cotangents.pop(node, None)
            if dy is not None:
                if node in targets:
                    finals[node] = dy
                parent, i = node.inputs[0], node.sig.attrs[0][1]
                waiting = several.setdefault(parent, [None] * len(parent.sig.types))
                waiting[i] = dy if waiting[i] is None else waiting[i] + dy
            continue
        dy = cotangents.pop(node, None) if node.sig.single else tuple(several.pop(node, ()))
        if dy is None or (isinstance(dy, tuple) and all(d is None for d in dy)):
            continue
        if node in targets:
            finals[node] = dy
        found = apply_rule(node.sig, dy, result(node), [value(x) for x in node.inputs])
        for x, g in zip(node.inputs, found):
            if g is not None and x in depends and x.type.dtype.is_float:
                if g._node.type is not x.type:
                    raise InternalError(
                        f"gradient of {node.sig.op.name}: it gave {g._node.type} for an input {x.type}"
                    )
                cotangents[x] = add_part(cotangents[x], g) if x in cotangents else g
    return finals | cotangents


def apply_rule(sig: Signature, dy: Any, y: Any, inputs: list[Tensor]) -> Sequence[Tensor | None]:
    """Return the gradient by each input of one node, from its rule or through its lowering."""
    op = sig.op
    if op._gradient is not None:
        return op._gradient(dy, y, *inputs, **dict(sig.attrs))
    graph = lowered(sig)
    if graph is None:
        raise UnsupportedError(
            f"{op.name}: the op has neither a gradient nor a lowering", hint=".detach() its inputs"
        )
    return graph_gradient(graph, inputs, dy if isinstance(dy, tuple) else (dy,))


def graph_gradient(
    graph: Graph, inputs: Sequence[Tensor], dys: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Record the gradient of a graph's outputs by its inputs."""
    given = tuple(d is not None for d in dys)
    wanted = tuple(n.type.dtype.is_float for n in graph.inputs)
    backward = gradient_graph(graph, given, wanted)
    made = iter(inline(backward, [*inputs, *(d for d in dys if d is not None)]))
    return [next(made) if has else None for has in backward.notes["has"]]


def gradient_graph(
    graph: Graph, given: tuple[bool, ...], wanted: tuple[bool, ...], zeros: bool = False
) -> Graph:
    """Return the graph ``(*inputs, *dys) -> gradients`` of a graph; made once for each question.

    Parameters
    ----------
    given : tuple of bool
        Which outputs have a ``dy``.
    wanted : tuple of bool
        By which inputs to differentiate.
    zeros : bool
        Give zeros where there is no dependence; otherwise the gradient is left out, and ``notes["has"]`` says so.
    """
    key = ("gradient", given, wanted, zeros)
    if key not in graph.notes:
        graph.notes[key] = _gradient_graph(graph, given, wanted, zeros)
    return graph.notes[key]


def _gradient_graph(
    graph: Graph, given: tuple[bool, ...], wanted: tuple[bool, ...], zeros: bool
) -> Graph:
    device = (graph.inputs or graph.nodes)[0].sig.device
    owner = Capture("gradient", device)
    with changed(recording=owner.recording, eager=False, cast=None):
        leaves = [make_leaf(n.type, device) for n in graph.inputs]
        seeds = [make_leaf(o.type, device) for o, g in zip(graph.outputs, given) if g]
        for leaf in (*leaves, *seeds):
            owner.recording.enlist(leaf)
        values: dict[Node, Any] = {
            n: Tensor.from_node(leaf) for n, leaf in zip(graph.inputs, leaves)
        }
        depends = {n for n, w in zip(graph.inputs, wanted) if w}
        for node in graph.nodes:
            if node.sig.op is GET:
                values[node] = values[node.inputs[0]][node.sig.attrs[0][1]]
            else:
                values[node] = record_nodes(node.sig, [values[i]._node for i in node.inputs])
            if any(i in depends for i in node.inputs):
                depends.add(node)
        cotangents: dict[Node, Tensor] = {}
        waiting = iter(seeds)
        for output, g in zip(graph.outputs, given):
            if g:
                dy = Tensor.from_node(next(waiting))
                if output in depends and output.type.dtype.is_float:
                    cotangents[output] = cotangents[output] + dy if output in cotangents else dy
        _reverse(
            [n for n in graph.nodes if n in depends], values.get, values.get, cotangents, depends
        )
        found = [cotangents.get(n) if w else None for n, w in zip(graph.inputs, wanted)]
        if zeros:
            found = [
                create.zeros(n.type.shape, dtype=n.type.dtype) if w and g is None else g
                for n, g, w in zip(graph.inputs, found, wanted)
            ]
        outputs = [g._node for g in found if g is not None]
    made = owner.recording.graph(outputs, [*leaves, *seeds])
    made.notes["has"] = tuple(g is not None for g in found)
    return made


def saved_set(sig: Signature) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return which inputs and which outputs of an op its gradient reads: what must be kept for it."""
    found = sig.notes.get("saved")
    if found is None:
        found = sig.notes["saved"] = _saved_set(sig)
    return found


def _saved_set(sig: Signature) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if not any(t.dtype.is_float for t in sig.types):
        return (), ()
    owner = Capture("gradient", sig.device)
    with changed(recording=owner.recording, eager=False, cast=None):
        inputs = [make_leaf(t, sig.device) for t in sig.input_types]
        outputs = [make_leaf(t, sig.device) for t in sig.types]
        seeds = [
            Tensor.from_node(make_leaf(t, sig.device)) if t.dtype.is_float else None
            for t in sig.types
        ]
        y = [Tensor.from_node(n) for n in outputs]
        try:
            found = apply_rule(
                sig, seeds[0] if sig.single else tuple(seeds), y[0] if sig.single else tuple(y),
                [Tensor.from_node(n) for n in inputs],
            )  # fmt: skip
        except UnsupportedError:
            return (), ()
        results = [
            g._node for g, t in zip(found, sig.input_types) if g is not None and t.dtype.is_float
        ]
        for node in results:
            owner.recording.enlist(node)
        read = owner.recording._needed(results)
    return (
        tuple(i for i, n in enumerate(inputs) if n in read),
        tuple(i for i, n in enumerate(outputs) if n in read),
    )
