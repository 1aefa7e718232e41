"""Pass ``place``: a device for each node, and copies where values cross between devices.

In: a lowered graph. Out: each node on a device that has a kernel for it, with copies between devices.
After ``lower`` and ``islands``; before ``placement`` and ``prologue``.

Four steps, each linear in the graph:

1. A node stays on the device that it was recorded on: that of its inputs, or the one that ``copy`` names. What that
   device refuses goes to ``ref``.
2. Small integers that only nodes of step 1 read (shapes, indices) go to ``ref`` with them, where the device has
   memory of its own.
3. An island is a set of a device's nodes that read each other's values. One of fewer than ``min_nodes`` nodes,
   with values from ``ref`` and values for it, goes to ``ref`` too where that makes copies cheaper. Values for which
   the user wrote a copy do not count as such: they are where they should be.
4. Copies: a value goes to a device once, and never back. A view is where its source is, and on another device a view
   of the source's copy. A constant is made where it is read.

Devices in host memory have ``min_nodes`` 1, so step 3 leaves them alone: a copy there costs less than what their
kernel gains over the reference.
"""

from __future__ import annotations

from ..debug import debug
from ..device import Device, as_device, unsupported
from ..errors import ArgumentError
from ..graph import GET, Graph, Node, Signature, get_signature
from ..op import OPS
from .islands import crosses, islands, made_by, shown
from .rewrite import collect, with_inputs

MIN_NODES = 4  # of an island, on a device with memory of its own
SMALL_BYTES = 1024  # of integers that are taken for shapes and indices
COPY_BYTES = 1 << 16  # what a copy costs beside its own bytes: 10 us of a bus with 6 GB/s

Moves = dict[Node, str]  # the nodes that leave their device, with the reason


def place(graph: Graph) -> Graph:
    """Return the graph with a device for each node.

    Raises
    ------
    UnsupportedError
        ``MGE_FALLBACK=error`` and a node would have to run on ``ref``.
    """
    if debug.fallback not in ("allow", "warn", "error"):
        raise ArgumentError(
            f"environment: MGE_FALLBACK is {debug.fallback!r}; it must be allow, warn or error"
        )
    moves = _refused(graph)
    if moves:
        _take_small_integers(graph, moves)
        _merge_islands(graph, moves)
    elif not any(map(crosses, graph.nodes)):
        return graph
    return _with_copies(graph, moves)


def min_nodes(device: Device) -> int:
    """Return the size below which an island of a device is not worth its copies."""
    stated = getattr(device.backend, "min_nodes", None)
    return (1 if device.backend.is_host else MIN_NODES) if stated is None else stated


def _refused(graph: Graph) -> Moves:
    moves: Moves = {}
    for node in graph.nodes:
        if node.sig.op is GET or crosses(node):
            continue
        reason = node.sig.device.refusal(node.sig)
        if reason is not None:
            if debug.fallback == "error":
                raise unsupported(node.sig, reason).add_place(node.place)
            moves[node] = reason
    return moves


def _take_small_integers(graph: Graph, moves: Moves) -> None:
    """Add what computes small integers from small integers, for nodes that leave the device."""
    stays = {made_by(o) for o in graph.outputs}  # nodes that something else reads
    for node in reversed(graph.nodes):
        sig = node.sig
        if sig.op is GET or sig.op.name == "constant" or node in moves:
            continue
        types = (*sig.types, *sig.input_types)
        small = all(t.dtype.is_integer and t.nbytes <= SMALL_BYTES for t in types)
        own = not sig.device.backend.is_host and sig.op.is_pure and not crosses(node)
        if node not in stays and own and small:
            moves[node] = "small integers that only ref reads"
        else:
            stays.update(made_by(i) for i in node.inputs)


def _merge_islands(graph: Graph, moves: Moves) -> None:
    """Add the islands that are not worth their copies."""
    source = shown(graph)
    read: dict[Node, set[Node]] = {}  # maker -> its values that nodes in ``moves`` read
    given: dict[Node, set[Node]] = {}  # maker -> its values that the graph gives
    for node in moves:
        for i in node.inputs:
            read.setdefault(made_by(source[i]), set()).add(source[i])
    for o in graph.outputs:
        given.setdefault(made_by(source[o]), set()).add(source[o])
    for island in islands(graph, moves):
        if len(island) >= min_nodes(island[0].sig.device):
            continue
        needs = {source[i] for n in island for i in n.inputs if source[i].sig.op.name != "constant"}
        needs = {v for v in needs if made_by(v) not in island}
        come = {v for v in needs if made_by(v) in moves}
        go = {v for n in island for v in read.get(n, ())}
        copied = {v for v in needs if v in read.get(made_by(v), ())}  # to ref in any case
        kept = {v for n in island for v in given.get(n, ())}
        if come and go and _cost(come | go) > _cost((needs - come - copied) | kept):
            count = len(island)
            moves |= dict.fromkeys(island, f"island of {count} node{'s' * (count > 1)}")


def _cost(values: set[Node]) -> int:
    """Return what copies of some values cost, in bytes."""
    return sum(v.type.nbytes + COPY_BYTES for v in values)


def _with_copies(graph: Graph, moves: Moves) -> Graph:
    """Return the graph in which nodes in ``moves`` are on ``ref``, with copies where devices differ."""
    ref = as_device("ref")
    new: dict[Node, Node] = {n: n for n in graph.inputs}
    there: dict[tuple[Node, Device], Node] = {}  # a value on a device where it was not made

    origin: dict[Node, Node] = {}  # the value that it is a copy of

    def moved(node: Node, device: Device) -> Node:
        views = []
        node = origin.get(node, node)
        while node.sig.device is not device and (node, device) not in there and node.sig.is_view:
            views.append(node)
            node = origin.get(node.inputs[0], node.inputs[0])
        made = node if node.sig.device is device else there.get((node, device))
        if made is None:
            made = there[node, device] = _constant_or_copy(node, device)
            origin[made] = node
        for view in reversed(views):
            sig = _on(view.sig, device)
            made = Node(sig, (made,), view.type, None, view.code, view.offset)
            there[view, device], origin[made] = made, view
        return made

    for node in graph.nodes:
        sig, inputs = node.sig, [new[i] for i in node.inputs]
        device = ref if node in moves else sig.device
        if crosses(node):
            new[node] = moved(inputs[0], device)
            continue
        if sig.is_view or sig.op is GET:
            device = inputs[0].sig.device
        if sig.op is GET:
            sig = get_signature(inputs[0].sig, sig.attrs[0][1])
        else:
            inputs = [moved(i, device) for i in inputs]
        if sig.device is not device:
            sig = _on(sig, device, moves.get(node))
        same = sig is node.sig
        new[node] = (
            with_inputs(node, tuple(inputs))
            if same
            else Node(sig, tuple(inputs), node.type, None, node.code, node.offset)
        )
    outputs = [moved(new[o], o.sig.device) for o in graph.outputs]
    return collect(graph.inputs, outputs, new.values())


def _on(sig: Signature, device: Device, reason: str | None = None) -> Signature:
    """Return the signature of a use on another device; it remembers which one it left, and why."""
    known = sig.notes.setdefault("elsewhere", {})
    found = known.get((device, reason))
    if found is None:
        found = Signature(sig.op, sig.input_types, sig.attrs, sig.types, device)
        if reason is not None:
            found.notes["refused"] = (str(sig.device), reason)
        known[device, reason] = found
    return found


def _constant_or_copy(node: Node, device: Device) -> Node:
    if node.sig.op.name == "constant":
        return Node(_on(node.sig, device), (), node.type, None, node.code, node.offset)
    copy = OPS["copy"]
    sig = copy.signature((node.type,), copy.normal_attrs({"device": str(device)}), device)
    return Node(sig, (node,), sig.type, None, node.code, node.offset)
