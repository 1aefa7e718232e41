"""Making nodes inside a pass: equal ones once, views folded into each other.

In: the name of an op, inputs, attributes, and the node whose place the new one takes. Out: nodes.
After nothing; before the passes of this folder.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from mge.errors import MgeError
from mge.graph import GET, Graph, Node, get_signature
from mge.op import OPS
from mge.passes.simplify import constant_of

DEVICE = "x86"
RESHAPES = ("reshape", "flatten", "squeeze", "expand_dims", "detach")

Axes = tuple[int, ...]


class Builder:
    """Makes nodes; asked twice for the same one, it gives the first again.

    Attributes
    ----------
    made : list of Node
        In the order of their making.
    """

    def __init__(self) -> None:
        self.made: list[Node] = []
        self._known: dict[tuple, Node] = {}

    def make(self, name: str, inputs: Sequence[Node], site: Node, **attrs: Any) -> Node:
        """Return the node of an op at the call site of another node, on its device."""
        op = OPS[name]
        sig = op.signature([i.type for i in inputs], op.normal_attrs(attrs), site.sig.device)
        return self._unique(sig, tuple(inputs), site)

    def try_make(self, name: str, inputs: Sequence[Node], site: Node, **attrs: Any) -> Node | None:
        """Return the node, or None where the op's rule or the device refuses it."""
        if name not in OPS:
            return None
        try:
            node = self.make(name, inputs, site, **attrs)
        except MgeError:
            return None
        return node if node.sig.device.refusal(node.sig) is None else None

    def same(self, node: Node, inputs: Sequence[Node]) -> Node:
        """Return the op of a node with its attributes, for other inputs."""
        op = node.sig.op
        sig = op.signature([i.type for i in inputs], node.sig.attrs, node.sig.device)
        return self._unique(sig, tuple(inputs), node)

    def get(self, node: Node, index: int) -> Node:
        """Return one output of a node with several."""
        return self._unique(get_signature(node.sig, index), (node,), node)

    def constant(self, value: float, site: Node) -> Node:
        """Return a scalar of the dtype of a node's first output."""
        made = constant_of(np.array(value, site.type.dtype.dtype), site)
        return self._unique(made.sig, (), site)

    def reshape(self, x: Node, shape: Sequence[int], site: Node) -> Node:
        """Return the same bytes in another shape; a view of a view is one view."""
        shape = tuple(shape)
        while x.sig.op.name in RESHAPES and x.type.shape != shape:
            x = x.inputs[0]
        return x if x.type.shape == shape else self.make("reshape", [x], site, shape=shape)

    def transpose(self, x: Node, pattern: Axes, site: Node) -> Node:
        """Return ``x`` with its axes in another order: a view where no element moves, and what is undone is undone."""
        shape = tuple(x.type.shape[p] for p in pattern)
        if x.sig.op.name == "transpose":
            before = dict(x.sig.attrs)["pattern"]
            n = x.type.ndim
            before = tuple(range(n))[::-1] if before is None else tuple(p % n for p in before)
            return self.transpose(x.inputs[0], tuple(before[p] for p in pattern), site)
        if is_ordered([p for p in pattern if x.type.shape[p] != 1]):
            return self.reshape(x, shape, site)
        return self.make("transpose", [x], site, pattern=pattern)

    def _unique(self, sig: Any, inputs: tuple[Node, ...], site: Node) -> Node:
        found = self._known.get((sig, inputs))
        if found is None:
            found = Node(sig, inputs, sig.type, None, site.code, site.offset)
            self.made.append(found)
            if sig.op is GET or sig.op.is_pure:
                self._known[sig, inputs] = found
        return found


def is_ordered(axes: Sequence[int]) -> bool:
    """Whether numbers grow from left to right."""
    return all(a < b for a, b in itertools.pairwise(axes))


def is_mine(node: Node) -> bool:
    """Whether a node runs on this device."""
    return node.sig.device.type == DEVICE


def uses(graph: Graph) -> Counter[Node]:
    """Return how often each node is read, outputs of the graph included."""
    return Counter([*(i for n in graph.nodes for i in n.inputs), *graph.outputs])


def slow_nodes(graph: Graph) -> set[Node]:
    """Return what depends on parameters and constants alone: the prologue computes it."""
    found = {n for n in graph.inputs if n.sig.attrs}
    for node in graph.nodes:
        if node.sig.op.is_pure and all(i in found for i in node.inputs):
            found.add(node)
    return found


def fixed_nodes(graph: Graph) -> set[Node]:
    """Return what depends on constants alone and on parameters that this graph does not replace."""
    changing = trained_nodes(graph)
    for node in graph.nodes:
        if any(i in changing for i in node.inputs):
            changing.add(node)
    return slow_nodes(graph) - changing


def trained_nodes(graph: Graph) -> set[Node]:
    """Return the parameters that this graph itself replaces: what is made of them is made in every run."""
    updates = [n for n in graph.nodes if n.sig.op.name.endswith("_update")]
    return {i for n in updates for i in n.inputs if i.sig.op.is_leaf and i.sig.attrs}
