"""Pass ``inline``: put the graph of each ``call`` in its place.

In: a graph with calls (gradients, traced functions). Out: one flat graph, so that later passes see all of it.
After ``rewrite``; before ``simplify``.
"""

from __future__ import annotations

from ..graph import GET, Graph, Node
from .rewrite import rebuild, splice, with_inputs


def inline_calls(graph: Graph) -> Graph:
    """Return the graph without ``call`` nodes, also those inside the graphs of calls."""
    while any(n.sig.op.name == "call" for n in graph.nodes):
        graph = _inline_once(graph)
    return graph


def _inline_once(graph: Graph) -> Graph:
    results: dict[Node, list[Node]] = {}
    made: list[Node] = []

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        if node.sig.op.name == "call":
            called = dict(node.sig.attrs)["graph"]
            outputs = splice(called, inputs, node, made)
            if node.sig.single:
                return outputs[0]
            results[node] = outputs
            return node
        if node.sig.op is GET and node.inputs[0] in results:
            return results[node.inputs[0]][node.sig.attrs[0][1]]
        return with_inputs(node, inputs)

    return rebuild(graph, visit, made)
