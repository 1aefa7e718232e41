"""Pass ``batch_norm``: in training, a batch norm adds a residual and clamps in the pass over memory that applies it.

In: ``batch_norm_train`` and ``batch_norm_backward`` over rows (n * h * w, c). Out: ``x86::batch_norm_moments``,
``x86::batch_norm_apply`` and ``x86::batch_norm_backward``.
After ``layout``; before ``epilogue``.

Forward: the statistics, then norm, ``+ residual``, ReLU in one op where nothing else reads what lies between. A plan
that computes the result again reads the same statistics. Backward: the gradient of the ReLU, ``where(0 < y, dy, 0)``,
is taken inside the gradient of the norm, which returns it as the gradient of the residual, too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mge.graph import GET, Graph, Node
from mge.passes.rewrite import rebuild, with_inputs
from mge.passes.simplify import constant_value

from .build import RESHAPES, Builder, is_mine, uses

MOMENTS, APPLY = "x86::batch_norm_moments", "x86::batch_norm_apply"
BACKWARD = "x86::batch_norm_backward"
LIMITS = {"relu": None, "relu6": 6.0}


class _Forward(NamedTuple):
    """A norm with what follows it: the node whose value the new op gives, a residual, an activation."""

    top: Node
    residual: Node | None
    activation: str


class _Backward(NamedTuple):
    """The gradient of a norm: the norm, what reaches it before the clamp, and whether it is a residual's, too."""

    norm: Node
    gradient: Node
    activation: str
    is_shared: bool


def fuse_batch_norm(graph: Graph) -> Graph:
    """Return the graph with fused batch norms."""
    norms = [n for n in graph.nodes if n.sig.op.name == "batch_norm_train" and _is_fit(n)]
    if not norms:
        return graph
    build = Builder()
    match = _Match(graph, norms, build)
    tops = {f.top: norm for norm, f in match.forward.items()}
    shared = {_seen_through(n.inputs[1]): n for n, b in match.backward.items() if b.is_shared}
    made: dict[Node, Node] = {n: n for n in graph.inputs}

    def differentiated(node: Node) -> Node:
        back = match.backward[node]
        return _differentiated(build, node, back, match.forward[back.norm], made)

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        made[node] = with_inputs(node, inputs)
        if node in match.forward:
            made[node] = _normalised(build, node, match.forward[node], made)
        elif node in match.backward:
            made[node] = differentiated(node)
        elif node in shared:
            gradient = build.get(differentiated(shared[node]), 3)
            made[node] = build.reshape(gradient, node.type.shape, node)
        elif node in tops:
            made[node] = build.reshape(made[tops[node]], node.type.shape, node)
        elif node.sig.op is GET and inputs[0].sig.op.name in (APPLY, BACKWARD):
            made[node] = _output(build, inputs[0], node.sig.attrs[0][1])
        return made[node]

    return rebuild(graph, visit)


def _output(build: Builder, made: Node, index: int) -> Node:
    """Return an output of a node; of what became of a norm, its result or a statistic that it reads."""
    if made.sig.op.name == APPLY:
        return made.inputs[index] if index else made
    return build.get(made, index)


def _is_fit(norm: Node) -> bool:
    x, *affine = norm.inputs
    shapes = [a.type.shape for a in affine]
    return (
        is_mine(norm)
        and shapes == [x.type.shape[1:]] * 2
        and all(i.type.dtype.name == "float32" for i in norm.inputs)
    )


class _Match:
    """Finds in a graph what can be fused.

    Attributes
    ----------
    forward : dict of Node to _Forward
        By ``batch_norm_train`` node.
    backward : dict of Node to _Backward
        By ``batch_norm_backward`` node.
    """

    def __init__(self, graph: Graph, norms: list[Node], build: Builder) -> None:
        self._count = uses(graph)
        self._position = {n: i for i, n in enumerate((*graph.inputs, *graph.nodes))}
        self._readers: dict[Node, list[Node]] = {}
        for node in graph.nodes:
            for i in node.inputs:
                self._readers.setdefault(i, []).append(node)
        self.forward = {n: f for n in norms if (f := self._after(n)) and _can_apply(build, n, f)}
        self.backward = {
            n: b
            for n in graph.nodes
            if n.sig.op.name == "batch_norm_backward"
            and (b := self._before(n))
            and _can_differentiate(build, n, b, self.forward[b.norm])
        }

    def _only_reader(self, node: Node) -> Node | None:
        """Return the one node that reads another; views are passed."""
        while self._count[node] == 1 and (readers := self._readers.get(node)):
            if readers[0].sig.op.name not in RESHAPES:
                return readers[0]
            node = readers[0]
        return None

    def _computed(self, node: Node) -> int:
        """Return where the bytes of a node are computed."""
        node = _seen_through(node)
        return self._position[node.inputs[0] if node.sig.op is GET else node]

    def _after(self, norm: Node) -> _Forward | None:
        y = next((r for r in self._readers.get(norm, ()) if r.sig.attrs[0][1] == 0), None)
        if y is None:
            return None
        top, residual, activation = y, None, ""
        reader = self._only_reader(top)
        if reader is not None and reader.sig.op.name == "add":
            a, b = reader.inputs
            other = b if _seen_through(a) is y else a
            # What was computed before the norm does not depend on it.
            if other.type is reader.type and self._computed(other) < self._computed(norm):
                top, residual = reader, other
                reader = self._only_reader(top)
        if reader is not None and reader.sig.op.name in LIMITS and reader.type.size == y.type.size:
            top, activation = reader, reader.sig.op.name
        return _Forward(top, residual, activation)

    def _before(self, node: Node) -> _Backward | None:
        x, dy, mean, var, *weight = node.inputs
        norm = mean.inputs[0] if mean.sig.op is GET else None
        if (
            norm not in self.forward
            or norm.inputs[:2] != (x, *weight)
            or norm.sig.attrs != node.sig.attrs
        ):
            return None
        if [(s.sig.op is GET and s.inputs[0] is norm, s.sig.attrs) for s in (mean, var)] != [
            (True, (("index", 1),)), (True, (("index", 2),)),
        ]:  # fmt: skip
            return None
        forward, clamped = self.forward[norm], _seen_through(dy)
        if not forward.activation or not _is_clamp(clamped, forward):
            return _Backward(norm, dy, "", False)
        is_shared = self._only_reader(clamped) is not node
        if is_shared and forward.residual is None:
            return _Backward(norm, dy, "", False)  # it is computed anyway
        return _Backward(norm, clamped.inputs[1], forward.activation, is_shared)


def _seen_through(node: Node) -> Node:
    """Return what a view shows."""
    while node.sig.op.name in RESHAPES:
        node = node.inputs[0]
    return node


def _is_clamp(node: Node, forward: _Forward) -> bool:
    """Whether a node is ``where(0 < y, dy, 0)``, or with ``y < 6`` besides, for the result y of a norm."""
    if node.sig.op.name != "where" or not _is_number(node.inputs[2], 0.0):
        return False
    if node.inputs[1].type is not node.type:
        return False
    mask, limit = node.inputs[0], LIMITS[forward.activation]
    parts = (
        [mask] if limit is None else list(mask.inputs) if mask.sig.op.name == "logical_and" else []
    )
    wanted = [(0.0, None), (None, limit)][: 1 if limit is None else 2]
    return len(parts) == len(wanted) and all(
        part.sig.op.name == "less"
        and all(
            x is forward.top if number is None else _is_number(x, number)
            for x, number in zip(part.inputs, pair)
        )
        for part, pair in zip(parts, wanted)
    )


def _is_number(node: Node, value: float) -> bool:
    return node.sig.op.name == "constant" and not node.type.ndim and constant_value(node) == value


def _can_apply(build: Builder, norm: Node, forward: _Forward) -> bool:
    made = {n: n for n in norm.inputs}
    if forward.residual is not None:
        made[forward.residual] = forward.residual
    return _normalised(build, norm, forward, made) is not norm


def _normalised(build: Builder, norm: Node, forward: _Forward, made: dict[Node, Node]) -> Node:
    """Return the fused norm; the norm itself where the device refuses it."""
    x, *affine = (made[i] for i in norm.inputs)
    moments = build.try_make(MOMENTS, [x], norm)
    if moments is None:
        return norm
    inputs = [x, build.get(moments, 0), build.get(moments, 1), *affine]
    if forward.residual is not None:
        residual = _made(build, forward.residual, made)
        inputs.append(build.reshape(residual, x.type.shape, norm))
    attrs: dict[str, Any] = {**dict(norm.sig.attrs), "activation": forward.activation}
    return build.try_make(APPLY, inputs, norm, **attrs) or norm


def _made(build: Builder, node: Node, made: dict[Node, Node]) -> Node:
    """Return what became of a node; a view or an output of what is computed may itself come later in the graph."""
    if node in made:
        return made[node]
    source = _made(build, node.inputs[0], made)
    if node.sig.op is GET:
        return _output(build, source, node.sig.attrs[0][1])
    return build.reshape(source, node.type.shape, node)


def _can_differentiate(build: Builder, node: Node, back: _Backward, forward: _Forward) -> bool:
    given = (*node.inputs, *back.norm.inputs, back.norm, forward.top, back.gradient)
    return _differentiated(build, node, back, forward, {n: n for n in given}) is not node


def _differentiated(
    build: Builder, node: Node, back: _Backward, forward: _Forward, made: dict[Node, Node]
) -> Node:
    """Return the fused gradient; the node itself where the device refuses it."""
    x, weight, bias = (made[i] for i in back.norm.inputs)
    dy = build.reshape(made[back.gradient], x.type.shape, node)
    statistics = [_output(build, made[back.norm], i) for i in (1, 2)]
    inputs = [x, dy, *statistics, weight, bias]
    if back.activation and forward.residual is not None:
        inputs.append(build.reshape(made[forward.top], x.type.shape, node))
    attrs: dict[str, Any] = {"activation": back.activation, "residual": back.is_shared}
    return build.try_make(BACKWARD, inputs, node, **dict(node.sig.attrs), **attrs) or node
