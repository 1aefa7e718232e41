"""Pass ``lower``: ops without a kernel on their device become base ops.

In: a flat graph. Out: a graph whose nodes have kernels, where a lowering can bring that about.
After ``simplify``; before ``place``.
"""

from __future__ import annotations

from ..capture import lowered
from ..device import is_free
from ..graph import GET, Graph, Node, Signature
from .inline import inline_calls
from .rewrite import rebuild, splice, with_inputs


def lower(graph: Graph) -> Graph:
    """Return the graph with refused ops replaced by their lowerings, again and again until none is left."""
    while True:
        results: dict[Node, list[Node]] = {}
        made: list[Node] = []
        changed = False

        def visit(
            node: Node,
            inputs: tuple[Node, ...],
            results: dict[Node, list[Node]] = results,
            made: list[Node] = made,
        ) -> Node:
            nonlocal changed
            sig = node.sig
            if sig.op is GET:
                if node.inputs[0] in results:
                    return results[node.inputs[0]][sig.attrs[0][1]]
                return with_inputs(node, inputs)
            if helps(sig) and (body := lowered(sig)) is not None:
                changed = True
                outputs = splice(body, inputs, node, made)
                if sig.single:
                    return outputs[0]
                results[node] = outputs
                return node
            return with_inputs(node, inputs)

        graph = inline_calls(rebuild(graph, visit, made))
        if not changed:
            return graph


def helps(sig: Signature) -> bool:
    """Whether a device refuses an op, and has a kernel for some part of its lowering."""
    if "helps" not in sig.notes:
        sig.notes["helps"] = False
        body = lowered(sig) if sig.device.refusal(sig) is not None else None
        parts = [n.sig for n in body.nodes if n.sig.op is not GET] if body is not None else []
        sig.notes["helps"] = any(
            helps(s) or (s.device.refusal(s) is None and not is_free(s)) for s in parts
        )
    return sig.notes["helps"]
