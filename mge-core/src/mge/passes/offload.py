"""Offload: parts of a graph that a device compiles as a whole become one node each.

In: a placed graph, without its prologue. Out: the same with a ``call`` node for each part that its device took.
After ``placement``; before ``schedule``.

A part is convex: no path leaves it and comes back, so it can run at once. Parts are found in two steps:

1. The level of a node is how often a path to it leaves the accepted nodes, at most. A path between accepted nodes
   through others raises the level. So accepted nodes of one level that read each other's values are convex, and
   contracting all these groups leaves no cycle. This is linear in the graph.
2. Groups of different levels, one of which reads the other, are joined where no other way leads from one to the
   other. Each try is linear; there are as many as groups that read each other.
"""

from __future__ import annotations

from collections.abc import Container
from functools import lru_cache
from typing import Any

from ..debug import debug
from ..device import Device
from ..discovery import first_line
from ..errors import MgeError, PluginContractError, UnsupportedError
from ..graph import GET, Graph, Node, Signature, get_signature, make_leaf
from ..op import OPS
from .islands import Groups, computes, crosses, made_by
from .place import min_nodes
from .rewrite import collect, with_inputs

KEPT = 64  # compiled parts: plans of one graph share them


def offload(graph: Graph) -> Graph:
    """Return the graph with its parts compiled, where devices take graphs.

    ``MGE_DETERMINISTIC=1`` leaves it as it is: a part need not have the bits of its nodes.

    Raises
    ------
    PluginContractError
        A device raised another error than ``UnsupportedError``, or gave no kernel.
    """
    refused: list[dict[str, Any]] = []
    for device in dict.fromkeys(n.sig.device for n in graph.nodes):
        if getattr(device.backend, "has_graphs", False) and not debug.deterministic:
            graph = _offload(graph, device, refused)
    if refused:
        graph.notes["not compiled"] = refused
    return graph


def partition(graph: Graph, accepted: Container[Node]) -> list[list[Node]]:
    """Return the accepted nodes in convex parts, none of which could be joined with another that it reads."""
    groups = Groups()
    level: dict[Node, int] = {}
    nodes = [n for n in graph.nodes if n.sig.op is not GET]
    for node in nodes:
        inside = node in accepted
        makers = [m for i in node.inputs if (m := made_by(i)) in level]
        level[node] = max((level[m] + (m in accepted and not inside) for m in makers), default=0)
        if inside:
            groups.up[node] = node
            for maker in makers:
                if maker in groups.up and level[maker] == level[node]:
                    groups.join(maker, node)
    after: dict[Node, set[Node]] = {groups.root(n): set() for n in nodes}  # who reads whom
    for node in nodes:
        for i in node.inputs:
            if (maker := made_by(i)) in level:
                after[groups.root(maker)].add(groups.root(node))
    _join(groups, after)
    return groups.lists()


def _join(groups: Groups, after: dict[Node, set[Node]]) -> None:
    """Join groups that read each other, as long as that makes no cycle."""

    def readers(node: Node) -> set[Node]:
        return {groups.root(n) for n in after[node]} - {node}

    def is_only_way(one: Node, other: Node) -> bool:
        stack = list(readers(one) - {other})
        seen = set(stack)
        while stack:
            found = readers(stack.pop()) - seen
            if other in found:
                return False
            seen |= found
            stack.extend(found)
        return True

    waiting = [g for g in after if g in groups.up]
    while waiting:
        one = waiting.pop()
        if groups.root(one) is not one:
            continue
        other = next((o for o in readers(one) if o in groups.up and is_only_way(one, o)), None)
        if other is not None:
            groups.join(one, other)
            after[other] |= after[one]
            roots = [g for g in after if g in groups.up and groups.root(g) is g]
            waiting += [g for g in roots if g is other or other in readers(g)]


def _offload(graph: Graph, device: Device, refused: list[dict[str, Any]]) -> Graph:
    part_of: dict[Node, _Part] = {}
    for nodes in partition(graph, {n for n in graph.nodes if _is_taken(n, device)}):
        if sum(map(computes, nodes)) >= max(2, min_nodes(device)):
            part_of |= dict.fromkeys(nodes, _Part())
    for node in graph.nodes:
        part = part_of.get(made_by(node))
        if part is not None:
            part.nodes.append(node)
        for i in node.inputs:
            maker = part_of.get(made_by(i))
            if maker is not part:
                if part is not None and i.sig.op.name != "constant":
                    part.inputs[i] = None
                if maker is not None:
                    maker.outputs[i] = None
    for output in graph.outputs:
        if made_by(output) in part_of:
            part_of[made_by(output)].outputs[output] = None
    for part in dict.fromkeys(part_of.values()):
        part.compile(device)
        if part.sig is None:
            refused.append(part.facts)
    return _with_calls(graph, {n: p for n, p in part_of.items() if p.sig is not None})


def _is_taken(node: Node, device: Device) -> bool:
    """Whether a device has a kernel of its own for a node, also where the core would do without."""
    sig = node.sig
    if sig.device is not device or sig.op is GET or sig.op.name == "constant" or crosses(node):
        return False
    if "in graphs" not in sig.notes:
        sig.notes["in graphs"] = sig.op.is_pure and device._ask("supports", sig) is None
    return sig.notes["in graphs"]


class _Part:
    """Nodes of a graph that are to be one, and the values that they read and give.

    Attributes
    ----------
    nodes : list of Node
    inputs, outputs : dict with Node as keys
    facts : dict
        As ``Graph.placement`` gives them.
    sig : Signature or None
        Of the node that does their work; None where the device does not take them.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.inputs: dict[Node, None] = {}
        self.outputs: dict[Node, None] = {}
        self.facts: dict[str, Any] = {}
        self.sig: Signature | None = None

    def compile(self, device: Device) -> None:
        """Ask the device for a kernel."""
        new: dict[Node, Node] = {}
        for i in self.inputs:
            new[i] = make_leaf(i.type, device, i.sig.op.is_leaf and bool(i.sig.attrs))
        leaves = tuple(new.values())
        for node in self.nodes:
            new[node] = with_inputs(node, tuple([new.get(i, i) for i in node.inputs]))
        graph = collect(leaves, [new[o] for o in self.outputs], new.values())
        self.sig, self.facts = _compiled(device, graph)


@lru_cache(KEPT)
def _compiled(device: Device, graph: Graph) -> tuple[Signature | None, dict[str, Any]]:
    """Return the signature of a node that runs a graph on a device, if the device takes it; and facts."""
    count = sum(map(computes, graph.nodes))
    facts = {"device": str(device), "nodes": count, "kernel": None, "reason": None}
    where = f"{device.type}: compile, for a graph of {count} nodes,"
    try:
        kernel = device.backend.compile(device.index, graph)
    except UnsupportedError as error:
        return None, {**facts, "reason": first_line(error)}
    except MgeError:
        raise
    except Exception as error:
        text = f"{where} raised {type(error).__name__}: {first_line(error)}"
        raise PluginContractError(text) from error
    if not callable(kernel):
        raise PluginContractError(f"{where} gave {kernel!r}; it must give a kernel")
    op, types = OPS["call"], [tuple(n.type for n in side) for side in (graph.inputs, graph.outputs)]
    sig = Signature(op, types[0], op.normal_attrs({"graph": graph}), types[1], device)
    facts["kernel"] = getattr(kernel, "name", None)
    sig.notes |= {"kernel": kernel, "compiled": facts}
    return sig, facts


def _with_calls(graph: Graph, part_of: dict[Node, _Part]) -> Graph:
    """Return the graph in which a node stands for each part."""
    new: dict[Node, Node] = {n: n for n in graph.inputs}
    parts = {n: part_of.get(made_by(n)) for n in graph.nodes}
    stack = [n for n, part in reversed(parts.items()) if part is None or n in part.outputs]
    while stack:
        node = stack[-1]
        part = parts.get(node)
        inputs = node.inputs if part is None else (*part.inputs,)
        waiting = [i for i in inputs if i not in new]
        if node in new or not waiting:
            stack.pop()
        if node in new:
            continue
        if waiting:
            stack.extend(reversed(waiting))
        elif part is None:
            new[node] = with_inputs(node, tuple([new[i] for i in inputs]))
        else:
            sites = [n for n in part.nodes if n.code is not None] or [node]
            code, offset = sites[0].code, sites[0].offset
            sig: Any = part.sig
            call = Node(sig, tuple([new[i] for i in inputs]), sig.type, None, code, offset)
            for k, output in enumerate(part.outputs):
                get = get_signature(sig, k)
                made = Node(get, (call,), get.type, None, code, offset)
                new[output] = call if sig.single else made
    return collect(graph.inputs, [new[o] for o in graph.outputs], new.values())
