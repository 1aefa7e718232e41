"""Pass ``layout``: images lie with their channels last, from the first convolution to where that ends.

In: a graph as recorded, (n, c, h, w). Out: the same function, with transposes only where the two orders meet.
After ``fold``; before ``epilogue``.

Each node is visited once, in order. A rule (``layout_rules``, ``convolution``) may compute it in another order of its
axes; what has no rule is computed as recorded. Values keep the order in which they were computed, and get another
form when a reader asks for it, so orders travel as far down the graph as their readers go along.
"""

from __future__ import annotations

from collections.abc import Callable

from mge.graph import GET, Graph, Node
from mge.passes.rewrite import collect

from .build import Axes, Builder, fixed_nodes, is_mine
from .forms import Forms, moved, plain

Rule = Callable[["Layout", Node], bool]  # False: computed as recorded


class Layout:
    """One run of the pass.

    Attributes
    ----------
    forms : Forms
    build : Builder
    fixed : set of Node
        What depends on parameters alone that the graph does not replace: computed once, not in every run.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.build = Builder()
        self.forms = Forms(self.build)
        self.fixed = fixed_nodes(graph)
        self._parts: dict[Node, tuple[Node, list[Axes]]] = {}

    def run(self, rules: dict[str, Rule]) -> Graph:
        """Return the new graph."""
        for leaf in self.graph.inputs:
            self.forms.put(leaf, plain(leaf.type.ndim), leaf)
        for node in self.graph.nodes:
            if node.sig.op is GET:
                self._get(node)
                continue
            rule = rules.get(node.sig.op.name) if is_mine(node) else None
            if rule is None or not rule(self, node):
                self._keep(node)
        outputs = [self.forms.plain(o) for o in self.graph.outputs]
        return collect(self.graph.inputs, outputs, self.build.made)

    def put(self, old: Node, new: Node, *orders: Axes) -> bool:
        """Note what a node became: each of its outputs, in which order; its shape may be any that holds the bytes."""
        if old.sig.single:
            self._put(old, new, orders[0])
        else:
            self._parts[old] = (new, list(orders))
        return True

    def _put(self, old: Node, new: Node, axes: Axes) -> None:
        self.forms.put(old, axes, self.build.reshape(new, moved(old.type.shape, axes), old))

    def _keep(self, node: Node) -> None:
        new = self.build.same(node, [self.forms.plain(i) for i in node.inputs])
        self.put(node, new, *(plain(t.ndim) for t in node.sig.types))

    def _get(self, node: Node) -> None:
        index = node.sig.attrs[0][1]
        new, orders = self._parts[node.inputs[0]]
        made = new if new.sig.single else self.build.get(new, index)
        self._put(node, made, orders[index])


def layout(graph: Graph) -> Graph:
    """Return the graph with channels last around its convolutions and pools."""
    from .layout_rules import RULES

    return Layout(graph).run(RULES) if any(n.sig.op.name in STARTS for n in graph.nodes) else graph


# Without one of these there is nothing to gain.
STARTS = frozenset(
    ["conv", "conv_backward_data", "conv_backward_weight", "max_pool", "avg_pool"]
    + ["max_pool_backward", "avg_pool_backward", "batch_norm_train"]
)
