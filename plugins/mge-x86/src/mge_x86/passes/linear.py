"""Pass ``linear``: products with parameters read them as their kernel wants them.

In: ``linear``, and ``matmul`` by a matrix of parameters. Out: ``x86::linear`` over ``x86::pack_matrix``.
After ``layout``; before ``epilogue``.

Of fixed parameters the prologue packs the matrix once. A matrix that is trained is packed in each run, which many
rows pay for and few do not.
"""

from __future__ import annotations

import math

from mge.graph import Graph, Node
from mge.passes.rewrite import rebuild, with_inputs

from .build import Builder, is_mine, slow_nodes, trained_nodes

ROWS_PER_PACKING = 16


def pack_linear(graph: Graph) -> Graph:
    """Return the graph with packed parameters on the right of its matrix products."""
    if not any(n.sig.op.name in ("linear", "matmul") for n in graph.nodes):
        return graph
    build, slow, trained = Builder(), slow_nodes(graph), trained_nodes(graph)
    changing = set(trained)
    for node in graph.nodes:
        if any(i in changing for i in node.inputs):
            changing.add(node)

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        name = node.sig.op.name
        if name in ("linear", "matmul") and is_mine(node) and len(node.inputs[1].type.shape) == 2:
            x, weight = node.inputs[:2]
            attrs = dict(node.sig.attrs)
            pays = weight not in changing or _rows(x) >= ROWS_PER_PACKING
            fits = name == "linear" or (not attrs["transpose_a"] and x.type.ndim > 1)
            if weight in slow and pays and fits:
                turned = name == "linear" or attrs["transpose_b"]
                made = _packed(build, node, inputs, turned)
                return with_inputs(node, inputs) if made is None else made
        return with_inputs(node, inputs)

    return rebuild(graph, visit)


def _rows(x: Node) -> int:
    return math.prod(x.type.shape[:-1])


def _packed(build: Builder, node: Node, inputs: tuple[Node, ...], turned: bool) -> Node | None:
    x, weight, *bias = inputs
    packed = build.try_make("x86::pack_matrix", [weight], node, transpose=turned)
    if packed is None:
        return None
    columns = node.type.shape[-1]
    return build.try_make("x86::linear", [x, packed, *bias], node, columns=columns, bias=bool(bias))
