"""Pass ``place``: what a device refuses, and cannot be lowered, runs on ``ref``.

In: a lowered graph. Out: each node on a device that has a kernel for it, with copies between devices.
After ``lower``; before ``prologue``.
"""

from __future__ import annotations

from collections import Counter

from ..debug import debug
from ..device import as_device
from ..errors import UnsupportedError
from ..graph import GET, Graph, Node, Signature, get_signature
from ..op import OPS
from .rewrite import rebuild


def place(graph: Graph) -> Graph:
    """Return the graph with a device for each node.

    Raises
    ------
    UnsupportedError
        ``MGE_FALLBACK=error`` and a node would have to run on ``ref``.
    """
    refused: Counter[str] = Counter()
    copied = 0

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        nonlocal copied
        sig = node.sig
        if sig.op is GET:
            parent = inputs[0]
            made = get_signature(parent.sig, sig.attrs[0][1])
            return _back(Node(made, (parent,), made.type, None, node.code, node.offset), sig.device)
        reason = sig.device.backend.supports(sig)
        if reason is None:
            if inputs == node.inputs:
                return node
            return Node(sig, inputs, node.type, None, node.code, node.offset)
        if debug.fallback == "error":
            raise UnsupportedError(
                f"{sig.op.name}: no kernel on {sig.device} for {sig!r}, and MGE_FALLBACK is error\n  refused: {reason}",
                hint='MGE_FALLBACK=allow, or device "ref"',
            ).add_place(node.place)
        refused[sig.op.name] += 1
        copied += sum(i.type.nbytes for i in inputs) + sig.nbytes
        there = _on_ref(node, inputs)
        return there if not sig.single else _back(there, sig.device)

    made = rebuild(graph, visit)
    if refused:
        device = graph.nodes[0].sig.device
        line = f"{sum(refused.values())}/{len(graph.nodes)} nodes fall back from {device} to ref, {copied:,} bytes copied"
        line += f" [ops: {', '.join(sorted(refused))}]"
        debug.once(line) if debug.fallback == "warn" else debug.log(1, line)
    return made


def _on_ref(node: Node, inputs: tuple[Node, ...]) -> Node:
    ref = as_device("ref")
    moved = tuple(_copied(i, ref) for i in inputs)
    sig = Signature(node.sig.op, node.sig.input_types, node.sig.attrs, node.sig.types, ref)
    return Node(sig, moved, node.type, None, node.code, node.offset)


def _back(node: Node, device: object) -> Node:
    return node if node.sig.device is device else _copied(node, device)


def _copied(node: Node, device: object) -> Node:
    op = OPS["copy"]
    sig = op.signature((node.type,), op.normal_attrs({"device": str(device)}), device)
    return Node(sig, (node,), sig.type, None, node.code, node.offset)
