"""Pass ``attention``: it reads queries, keys and values where linear layers leave them.

In: ``attention`` and its gradient between transposes of (n, tokens, heads, size). Out: ``x86::attention`` without.
After ``linear``; before ``epilogue``.
"""

from __future__ import annotations

from mge.graph import GET, Graph, Node
from mge.passes.rewrite import rebuild, with_inputs

from .build import Builder, is_mine

TURN = (0, 2, 1, 3)
TENSORS = {"attention": 3, "attention_backward": 4}  # inputs before the mask


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
