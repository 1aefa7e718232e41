"""Pass ``place``: what a device refuses, and cannot be lowered, runs on ``ref``.

In: a lowered graph. Out: each node on a device that has a kernel for it, with copies between devices.
After ``lower``; before ``prologue``.
"""

from __future__ import annotations

from typing import Any

from ..debug import debug
from ..device import as_device, unsupported
from ..graph import GET, Graph, Node, Signature, get_signature
from ..op import OPS
from .rewrite import rebuild, with_inputs


def place(graph: Graph) -> Graph:
    """Return the graph with a device for each node.

    Raises
    ------
    UnsupportedError
        ``MGE_FALLBACK=error`` and a node would have to run on ``ref``.
    """
    ref = as_device("ref")
    copies: dict[tuple[Node, Any], Node] = {}  # a value is copied to a device once, and never back

    def moved(node: Node, device: Any) -> Node:
        if node.sig.device is device:
            return node
        if (node, device) not in copies:
            copy = OPS["copy"]
            sig = copy.signature((node.type,), copy.normal_attrs({"device": str(device)}), device)
            made = copies[node, device] = Node(sig, (node,), sig.type, None, node.code, node.offset)
            copies[made, node.sig.device] = node
        return copies[node, device]

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        sig = node.sig
        if sig.op is GET:
            part = get_signature(inputs[0].sig, sig.attrs[0][1])
            made = Node(part, inputs, part.type, None, node.code, node.offset)
            return moved(made, sig.device)
        reason = sig.device.refusal(sig)
        if reason is None:
            return with_inputs(node, inputs)
        if debug.fallback == "error":
            raise unsupported(sig, reason).add_place(node.place)
        there = _on_ref(sig, reason, ref)
        sources = tuple([moved(i, ref) for i in inputs])
        made = Node(there, sources, node.type, None, node.code, node.offset)
        return moved(made, sig.device) if sig.single else made

    made = rebuild(graph, visit)
    line = summary(made)
    if line:
        debug.once(line) if debug.fallback == "warn" else debug.log(1, line)
    return made


def _on_ref(sig: Signature, reason: str, ref: Any) -> Signature:
    """Return the signature of a refused use on ``ref``; it remembers who refused it and why."""
    found = sig.notes.get("on_ref")
    if found is None:
        found = Signature(sig.op, sig.input_types, sig.attrs, sig.types, ref)
        found.notes["refused"] = (str(sig.device), reason)
        sig.notes["on_ref"] = found
    return found


def summary(graph: Graph) -> str:
    """Return one line on what runs on ``ref`` because its device refused it, or nothing."""
    placement = graph.placement()
    refused = placement["refused"]
    if not refused:
        return ""
    count, total = (sum(r["count"] for r in refused), sum(placement["nodes"].values()))
    ops = ", ".join(f"{r['op']} x{r['count']} ({r['reason']})" for r in refused)
    where = " and ".join(sorted({r["device"] for r in refused}))
    return (
        f"{count} of {total} ops ({placement['copied_bytes']:,} bytes copied a run) run on ref instead of {where}: "
        f"{ops}. MGE_FALLBACK=allow hides this line"
    )
