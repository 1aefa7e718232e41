"""Islands: nodes of one device that read each other's values.

In: a graph. Out: ``islands``, and what tells nodes that compute from those that only pass values on.
After ``rewrite``; before ``place``.
"""

from __future__ import annotations

from collections.abc import Container

from ..graph import GET, Graph, Node


def crosses(node: Node) -> bool:
    """Whether a node copies a value to another device."""
    return node.sig.op.name == "copy" and node.inputs[0].sig.device is not node.sig.device


def computes(node: Node) -> bool:
    """Whether a node is work for its device: no view, constant, or copy between devices."""
    passes_on = node.sig.op is GET or node.sig.is_view or crosses(node)
    return not passes_on and node.sig.op.name != "constant"


def made_by(value: Node) -> Node:
    """Return the node that computes a value: for a ``get`` node, the one it reads."""
    return value.inputs[0] if value.sig.op is GET else value


def shown(graph: Graph) -> dict[Node, Node]:
    """Return for each value the one whose bytes it shows: for a view, its source; else itself."""
    found = {n: n for n in graph.inputs}
    for node in graph.nodes:
        found[node] = found[node.inputs[0]] if node.sig.is_view else node
    return found


class Groups:
    """Nodes in groups that only grow together.

    Attributes
    ----------
    up : dict of Node to Node
        From each node that is in a group towards the one that stands for the group.
    """

    def __init__(self) -> None:
        self.up: dict[Node, Node] = {}

    def root(self, node: Node) -> Node:
        """Return the node that stands for a node's group; itself where it is in none."""
        up = self.up
        while up.get(node, node) is not node:
            up[node] = node = up[up[node]]
        return node

    def join(self, one: Node, other: Node) -> None:
        """Make one group of two; ``root(other)`` stands for it."""
        self.up[self.root(one)] = self.root(other)

    def lists(self) -> list[list[Node]]:
        """Return the groups, with nodes in the order in which they were added."""
        found: dict[Node, list[Node]] = {}
        for node in self.up:
            found.setdefault(self.root(node), []).append(node)
        return list(found.values())


def islands(graph: Graph, without: Container[Node] = ()) -> list[list[Node]]:
    """Return the nodes that compute, in groups of one device that read each other's values."""
    source, groups = shown(graph), Groups()
    for node in graph.nodes:
        if node in without or not computes(node):
            continue
        groups.up[node] = node
        for i in node.inputs:
            maker = made_by(source[i])
            if maker in groups.up and maker.sig.device is node.sig.device:
                groups.join(maker, node)
    return groups.lists()
