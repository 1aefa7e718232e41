"""Where the nodes of a placed graph run: the figures, and the line about what left its device.

In: a compiled graph. Out: what ``Graph.placement`` returns, and one line of text.
After ``place``; before ``schedule``.
"""

from __future__ import annotations

from typing import Any

from .. import graph as graph_module
from ..debug import debug
from ..graph import Graph
from .islands import crosses, islands


def placement(graph: Graph) -> dict[str, Any]:
    """Return what ``Graph.placement`` describes."""
    devices: dict[str, dict[str, int]] = {}
    refused: dict[tuple, dict[str, Any]] = {}
    compiled: list[dict[str, Any]] = []

    def add(device: Any, **amounts: int) -> None:
        new = {"nodes": 0, "islands": 0, "bytes_in": 0, "bytes_out": 0}
        entry = devices.setdefault(str(device), new)
        for name, amount in amounts.items():
            entry[name] += amount

    for island in islands(graph):
        count = sum(n.sig.notes.get("compiled", {"nodes": 1})["nodes"] for n in island)
        add(island[0].sig.device, islands=1, nodes=count)
    for node in graph.nodes:
        sig = node.sig
        if crosses(node):
            add(sig.device, bytes_in=sig.nbytes)
            add(node.inputs[0].sig.device, bytes_out=sig.nbytes)
        if "compiled" in sig.notes:
            compiled.append(sig.notes["compiled"])
        if "refused" in sig.notes:
            device, reason = sig.notes["refused"]
            entry = {"op": sig.op.name, "device": device, "reason": reason, "count": 0, "bytes": 0}
            entry = refused.setdefault(tuple(entry.values()), entry)
            entry["count"] += 1
            entry["bytes"] += sig.nbytes
    return {
        "nodes": {d: e["nodes"] for d, e in devices.items()},
        "copied_bytes": sum(e["bytes_in"] for e in devices.values()),
        "devices": devices,
        "refused": [*refused.values()],
        "compiled": compiled + graph.notes.get("not compiled", []),
    }


def report(graph: Graph, prologue: Graph | None) -> None:
    """Say in one line what runs on ``ref`` because its device refused it, as ``MGE_FALLBACK`` wants it."""
    parts = [g for g in (graph, prologue) if g is not None]
    if any("refused" in n.sig.notes for g in parts for n in g.nodes):
        line = summary([g.placement() for g in parts])
        debug.once(line) if debug.fallback == "warn" else debug.log(1, line)


def summary(placements: list[dict[str, Any]]) -> str:
    """Return that line for a graph and its prologue, whose copies do not count."""
    refused = [r for p in placements for r in p["refused"]]
    count = sum(r["count"] for r in refused)
    total = sum(n for p in placements for n in p["nodes"].values())
    ops = ", ".join(f"{r['op']} x{r['count']} ({r['reason'][:100]})" for r in refused)
    where = " and ".join(sorted({r["device"] for r in refused}))
    return (
        f"{count} of {total} ops ({placements[0]['copied_bytes']:,} bytes copied a run) run on ref instead of "
        f"{where}: {ops}. MGE_FALLBACK=allow hides this line"
    )


graph_module.placement_of = placement
