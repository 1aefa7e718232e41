"""Pass ``prologue``: what depends on parameters alone is computed once for each of their versions.

In: a placed graph. Out: a graph for the prologue, and the rest, which takes the prologue's results as inputs.
After ``place``; before ``schedule``.
"""

from __future__ import annotations

from collections.abc import Container

from ..graph import GET, Graph, Node, make_leaf
from .rewrite import collect, rebuild, with_inputs


def split_prologue(graph: Graph, changing: Container[int]) -> tuple[Graph | None, list[int], Graph]:
    """Take out the nodes that depend on slow leaves and constants alone.

    Parameters
    ----------
    changing : container of int
        Inputs that this very graph replaces (parameters in training): nothing is taken out for them.

    Returns
    -------
    (prologue, sources, rest)
        The prologue, or None where there is nothing to take out; which inputs of the graph it takes; and the rest,
        whose inputs are those of the graph, then the prologue's results.
    """
    slow = {n for i, n in enumerate(graph.inputs) if n.sig.attrs and i not in changing}
    constant: set[Node] = set()
    inside: set[Node] = set()
    for node in graph.nodes:
        if not node.sig.op.is_pure:
            continue
        if all(i in constant for i in node.inputs):
            constant.add(node)
        elif all(i in slow or i in inside or i in constant for i in node.inputs):
            inside.add(node)
    used = {i for n in graph.nodes if n not in inside for i in n.inputs} | set(graph.outputs)
    results = [
        n
        for n in graph.nodes
        if n in inside and n in used and n.sig.single and not _is_view_of_leaf(n, slow)
    ]
    if not results:
        return None, [], graph
    whole = collect(graph.inputs, results)
    read = {i for n in whole.nodes for i in n.inputs}
    sources = [i for i, n in enumerate(graph.inputs) if n in read]
    prologue = Graph(tuple(graph.inputs[i] for i in sources), whole.nodes, whole.outputs)
    leaves = {n: make_leaf(n.type, n.sig.device) for n in results}
    rest = rebuild(graph, lambda node, inputs: leaves.get(node) or with_inputs(node, inputs))
    nodes = tuple(n for n in rest.nodes if n.inputs or not n.sig.op.is_leaf)
    return prologue, sources, Graph((*graph.inputs, *leaves.values()), nodes, rest.outputs)


def _is_view_of_leaf(node: Node, slow: Container[Node]) -> bool:
    """Whether a node only reshapes a parameter: that costs nothing where it is used."""
    return node.sig.op is not GET and node.sig.op.aliases and node.inputs[0] in slow
