"""Pass ``order``: what can wait comes just before its first reader, where that keeps fewer bytes alive.

In: a graph in the order of recording. Out: the same nodes in another order.
After the passes of devices; before ``prologue`` and ``schedule``.

A packed weight, which is made of a parameter alone, waits for the product that reads it. The gradient of a weight does
not: it would keep two images alive for its own few bytes.
"""

from __future__ import annotations

from ..graph import GET, Graph, Node

# A place in the new order. A node that waits for a reader at (..., i, END) gets (..., its own position, END).
Place = tuple[float, ...]
END = float("inf")


def order(graph: Graph) -> Graph:
    """Return the graph with each node where it was, or just before its first reader."""
    position = {node: i for i, node in enumerate(graph.nodes)}
    outputs, shown = set(graph.outputs), {n: n for n in graph.inputs}
    readers: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        is_view = node.sig.op is not GET and node.sig.op.aliases and node.inputs
        shown[node] = shown[node.inputs[0]] if is_view else node  # the node whose bytes it is
        for i in dict.fromkeys(node.inputs):
            readers.setdefault(i, []).append(node)
    places: dict[Node, Place] = {}
    last: dict[Node, Place] = {shown[o]: (END,) for o in outputs}  # where bytes are read last
    for node in reversed(graph.nodes):
        here: Place = (position[node], END)
        if node.sig.op.is_pure and node in readers and node not in outputs:
            first = min(places[r] for r in readers[node])
            there = (*first[:-1], position[node], END)
            sources = {shown[i] for i in node.inputs if not shown[i].sig.op.is_leaf}
            longer = sum(s.type.nbytes for s in sources if last.get(s, here) < there)
            if node.sig.op is GET or shown[node] is not node or longer < node.sig.nbytes:
                here = there
        places[node] = here
        for i in node.inputs:
            last[shown[i]] = max(last.get(shown[i], here), here)
    return Graph(graph.inputs, tuple(sorted(graph.nodes, key=places.__getitem__)), graph.outputs)
