"""Rebuilding a graph node by node: what every pass is made of.

In: a graph and a function from an old node and its new inputs to a new node. Out: a new graph without dead nodes.
After ``refdevice``; before the passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..graph import Graph, Node

Visit = Callable[[Node, tuple[Node, ...]], Node]


def rebuild(graph: Graph, visit: Visit, made: list[Node] | None = None) -> Graph:
    """Return the graph in which each node is what ``visit`` made of it.

    ``visit`` may return the node itself, a new node, or a node that exists already. Where it puts several in place of
    one, it adds them to ``made``, in their order.
    """
    made = [] if made is None else made
    new: dict[Node, Node] = {n: n for n in graph.inputs}
    for node in graph.nodes:
        new[node] = visit(node, tuple([new[i] for i in node.inputs]))
        made.append(new[node])
    return collect(graph.inputs, [new[o] for o in graph.outputs], made)


def collect(inputs: Sequence[Node], outputs: Sequence[Node], made: Iterable[Node] = ()) -> Graph:
    """Return the graph from inputs to outputs.

    What is needed of ``made`` keeps its order, which decides how long values live; a node that is not among them
    comes just before its first reader.
    """
    needed, todo = set(inputs), list(outputs)
    while todo:
        node = todo.pop()
        if node not in needed:
            needed.add(node)
            todo.extend(node.inputs)
    order: list[Node] = []
    done = set(inputs)
    for root in (*made, *outputs):
        stack = [root] if root in needed else []
        while stack:
            node = stack[-1]
            if node in done:
                stack.pop()
                continue
            waiting = [i for i in node.inputs if i not in done]
            if waiting:
                stack.extend(reversed(waiting))
                continue
            stack.pop()
            done.add(node)
            order.append(node)
    return Graph(tuple(inputs), tuple(order), tuple(outputs))


def with_inputs(node: Node, inputs: tuple[Node, ...]) -> Node:
    """Return the node with other inputs of the same types; itself where they are the same."""
    if inputs == node.inputs:
        return node
    return Node(node.sig, inputs, node.type, None, node.code, node.offset)


def splice(graph: Graph, inputs: Sequence[Node], site: Node, made: list[Node]) -> list[Node]:
    """Return the outputs of a graph put in place of a node, whose call site its nodes take where they have none.

    The nodes are added to ``made``.
    """
    new: dict[Node, Node] = dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes:
        code, offset = (
            (node.code, node.offset) if node.code is not None else (site.code, site.offset)
        )
        new[node] = Node(
            node.sig, tuple([new[i] for i in node.inputs]), node.type, None, code, offset
        )
        made.append(new[node])
    return [new[o] for o in graph.outputs]
