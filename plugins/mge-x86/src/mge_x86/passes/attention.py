"""Passes for attention: ``softmax`` between products becomes one op, which reads its inputs where they lie.

In: ``matmul(softmax(matmul(q, k)), v)``; ``attention`` and its gradient between transposes of (n, tokens, heads, size).
Out: ``attention``; ``x86::attention`` without the transposes. After ``linear``; before ``epilogue``.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from mge.graph import GET, Graph, Node
from mge.passes.rewrite import rebuild, with_inputs
from mge.passes.simplify import constant_value

from .build import Builder, is_mine, uses

TURN = (0, 2, 1, 3)
TENSORS = {"attention": 3, "attention_backward": 4}  # inputs before the mask


def find_attention(graph: Graph) -> Graph:
    """Return the graph with ``attention`` in place of its steps, where nothing else reads these."""
    if not any(n.sig.op.name == "softmax" for n in graph.nodes):
        return graph
    build, count, new = Builder(), uses(graph), dict[Node, Node]()

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        made = _joined(build, node, count, new) if is_mine(node) else None
        new[node] = with_inputs(node, inputs) if made is None else made
        return new[node]

    return rebuild(graph, visit)


class _Scores(NamedTuple):
    """``scale(query @ key.T) + mask``, as nodes of the graph before the pass."""

    query: Node
    key: Node
    mask: Node | None
    scaling: Node | None  # the node that multiplies or divides by a number, and the number
    factor: Node | None


def _joined(build: Builder, node: Node, count: Counter[Node], new: dict[Node, Node]) -> Node | None:
    """Return ``attention`` for the last product of its steps; None for any other node."""
    attrs = dict(node.sig.attrs)
    if node.sig.op.name != "matmul" or attrs["transpose_a"] or attrs["transpose_b"]:
        return None
    weights, value = node.inputs
    if weights.sig.op.name != "softmax" or count[weights] > 1 or node.type.dtype.name != "float32":
        return None
    axis, last = dict(weights.sig.attrs)["axis"], weights.type.ndim - 1
    scores = _scores(weights.inputs[0], count) if axis in (-1, last, (-1,), (last,)) else None
    if scores is None or min(scores.query.type.ndim, scores.key.type.ndim, value.type.ndim) < 2:
        return None
    query, key, value, *mask = (
        new.get(n, n) for n in (scores.query, scores.key, value, scores.mask) if n is not None
    )
    number, factor = 1.0, scores.factor
    if factor is not None and scores.scaling is not None:
        if factor.sig.op.name == "constant":
            number = float(constant_value(factor).item())
            if scores.scaling.sig.op.name == "div":
                if not number:
                    return None
                number = 1 / number
        else:  # a number that may change from run to run
            query = build.same(scores.scaling, [query, new.get(factor, factor)])
    return build.try_make("attention", [query, key, value, *mask], node, scale=number)


def _scores(node: Node, count: Counter[Node]) -> _Scores | None:
    """Return the parts of scores; None for anything else."""
    mask = scaling = factor = None
    if node.sig.op.name == "add" and count[node] == 1:
        given = [i for i in node.inputs if i.sig.op.name in ("matmul", "mul", "div")]
        if not given or given[0].type is not node.type:
            return None
        mask = node.inputs[1] if given[0] is node.inputs[0] else node.inputs[0]
        node = given[0]
    if node.sig.op.name in ("mul", "div") and count[node] == 1:
        scaling, (node, factor) = node, node.inputs
        if scaling.sig.op.name == "mul" and not node.type.ndim:
            node, factor = factor, node
        if factor.type.ndim:
            return None
    attrs = dict(node.sig.attrs)
    if node.sig.op.name != "matmul" or count[node] > 1 or attrs["transpose_a"]:
        return None
    query, key = node.inputs
    if not attrs["transpose_b"]:
        turned = (*range(key.type.ndim - 2), key.type.ndim - 1, key.type.ndim - 2)
        pattern = dict(key.sig.attrs).get("pattern") if key.sig.op.name == "transpose" else None
        if pattern is None or tuple(p % key.type.ndim for p in pattern) != turned:
            return None
        key = key.inputs[0]
    return _Scores(query, key, mask, scaling, factor)


def turn_attention(graph: Graph) -> Graph:
    """Return the graph with the tokens before the heads in attention, where its inputs were transposed for it."""
    if not any(n.sig.op.name in TENSORS for n in graph.nodes):
        return graph
    build, turned = Builder(), set[Node]()

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        if not is_mine(node):
            return with_inputs(node, inputs)
        name = node.sig.op.name
        if name in TENSORS and (made := _without_transposes(build, node, inputs)):
            turned.add(made)
            return build.transpose(made, TURN, node) if node.sig.single else made
        if node.sig.op is GET and inputs[0] in turned:
            return build.transpose(build.get(inputs[0], dict(node.sig.attrs)["index"]), TURN, node)
        if name == "transpose" and inputs[0].sig.op.name == "transpose":
            pattern = dict(node.sig.attrs)["pattern"]
            n = node.type.ndim
            axes = range(n)[::-1] if pattern is None else (p % n for p in pattern)
            return build.transpose(inputs[0], tuple(axes), node)
        return with_inputs(node, inputs)

    return rebuild(graph, visit)


def _without_transposes(build: Builder, node: Node, inputs: tuple[Node, ...]) -> Node | None:
    """Return the op on the tensors before their transposes; None where more would move than now."""
    count = TENSORS[node.sig.op.name]
    if any(x.type.ndim != 4 for x in inputs[:count]):
        return None
    before = [build.transpose(x, TURN, node) for x in inputs[:count]]
    if any(x.sig.op.name == "transpose" for x in before):
        return None
    return build.try_make(
        f"x86::{node.sig.op.name}", [*before, *inputs[count:]], node, **dict(node.sig.attrs)
    )
