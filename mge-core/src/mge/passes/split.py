"""Optimizer updates taken apart, one for each parameter, so that a gradient can go as soon as its parameter has moved.

In: a graph that a memory strategy will order. Out: the same with an update op for each parameter.
After ``rewrite``; before ``plan``.
"""

from __future__ import annotations

from ..graph import GET, Graph, Node, get_signature
from ..ops.update_layout import LAYOUTS
from .rewrite import rebuild


def split_updates(graph: Graph) -> Graph:
    """Return the graph with updates of one parameter each.

    An update that looks at all gradients (``found_inf``) waits for them in any case, and stays whole. A counter that
    parameters share comes from the last of them. Bits stay the same: updates work parameter by parameter.
    """
    outputs: dict[Node, list[Node]] = {}  # of a whole update, in their order
    made: list[Node] = []

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        sig = node.sig
        if sig.op is GET and inputs[0] in outputs:
            return outputs[inputs[0]][sig.attrs[0][1]]
        same = all(a is b for a, b in zip(inputs, node.inputs))
        new = node if same else Node(sig, inputs, node.type, None, node.code, node.offset)
        if sig.op.name in LAYOUTS and not sig.single:
            parts = _parts(new)
            if parts:
                outputs[new] = parts
                made.extend(dict.fromkeys(p.inputs[0] if p.sig.op is GET else p for p in parts))
        return new

    return rebuild(graph, visit, made)


def _parts(node: Node) -> list[Node]:
    """Return nodes for the outputs of an update, each of an update of one parameter; none where it stays whole."""
    attrs = dict(node.sig.attrs)
    layout = LAYOUTS[node.sig.op.name](**attrs)
    if layout.has_found_inf or layout.parameters == 1:
        return []
    each, steps, scalars, _ = layout.split(node.inputs)
    rows: list[list[Node]] = []
    for i, row in enumerate(each):
        counters = [steps[i]] if len(steps) == len(each) else steps
        inputs = (*row, *counters, *scalars)
        given = attrs | {"count": 1} | ({"steps": len(counters)} if "steps" in attrs else {})
        op = node.sig.op
        types = [x.type for x in inputs]
        sig = op.signature(types, op.normal_attrs(given), node.sig.device)
        part = Node(sig, inputs, sig.type, None, node.code, node.offset)
        gets = [
            Node(get_signature(sig, k), (part,), t, None, node.code, node.offset)
            for k, t in enumerate(sig.types)
        ]
        rows.append([part] if sig.single else gets)
    kinds = 1 + len(layout.states)
    found = [row[k] for k in range(kinds) for row in rows]
    return found + [row[kinds] for row in (rows if len(steps) == len(each) else rows[-1:]) if steps]
