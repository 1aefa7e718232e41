"""The schedule: steps in order, on the streams of their devices, with events between them.

In: a graph of placed nodes. Out: the order, and for each node its stream and the events that it waits for.
After ``passes``; before ``memory``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Sequence
from typing import NamedTuple

from .graph import GET, Graph, Node
from .passes.islands import made_by


class Slot(NamedTuple):
    """Where and when one node runs.

    Attributes
    ----------
    node : Node
    stream : int
        Of the node's device.
    waits : tuple of int
        Positions of earlier slots, on other streams or devices, that must have finished.
    records : bool
        A later slot waits for this one.
    """

    node: Node
    stream: int
    waits: tuple[int, ...]
    records: bool


def schedule(graph: Graph, late: Container[Node] = (), keeps_order: bool = False) -> list[Slot]:
    """Return the slots of a graph in the order in which they start.

    Nodes keep the order of the graph, but for those in ``late``, which no other node reads: they come last, unless
    the graph ``keeps_order``. A node
    continues the stream of an input that is last on its stream; otherwise it takes the stream that has been free
    for longest. A device with one stream never waits for itself.
    """
    nodes = [n for n in graph.nodes if n.sig.op is not GET and n.sig.op.name != "constant"]
    if not keeps_order:
        nodes = [n for n in nodes if n not in late] + [n for n in nodes if n in late]
    tails: dict[tuple[object, int], int] = {}  # (device, stream) -> position of its last slot
    place: dict[Node, int] = {}
    readers: dict[Node, list[int]] = {}
    streams: list[int] = []
    waits: list[tuple[int, ...]] = []
    for position, node in enumerate(nodes):
        device = node.sig.device
        count = getattr(device.backend, "stream_count", 1)
        sources = sorted({place[p] for i in node.inputs if (p := made_by(i)) in place})
        mine = [s for s in sources if nodes[s].sig.device is device]
        stream = next((streams[s] for s in reversed(mine) if tails[device, streams[s]] == s), None)
        if stream is None:
            stream = min(range(count), key=lambda s: tails.get((device, s), -1))
        if (
            count > 1 and node in late
        ):  # it may overwrite an input: after all that read it, on each stream
            latest = {
                streams[s]: s
                for i in node.inputs
                for s in readers.get(i, ())
                if nodes[s].sig.device is device
            }
            sources = sorted({*sources, *latest.values()})
        waits.append(
            tuple(s for s in sources if (nodes[s].sig.device, streams[s]) != (device, stream))
        )
        if late:
            for i in node.inputs:
                readers.setdefault(i, []).append(position)
        streams.append(stream)
        tails[device, stream] = position
        place[node] = position
    awaited = {s for w in waits for s in w}
    return [Slot(n, streams[i], waits[i], i in awaited) for i, n in enumerate(nodes)]


def ends_beside(slots: Sequence[Slot], touches: Sequence[Sequence[int]]) -> list[int]:
    """Return, for each set of slots, the last slot that might run before one of these has finished.

    What the slots touch must stay in place until then: streams run beside each other, whatever the order of slots.
    """
    lanes = [(s.node.sig.device, s.stream) for s in slots]
    finished = _finished(slots, lanes)
    by_lane: dict[tuple[object, int], list[int]] = {}
    for i, lane in enumerate(lanes):
        by_lane.setdefault(lane, []).append(i)
    ends = []
    for positions in touches:
        end = max(positions, default=0)
        latest = {lanes[p]: p for p in sorted(positions)}
        for lane, position in latest.items():
            for other, places in by_lane.items():
                if other != lane:
                    done = [finished[t].get(lane, -1) for t in places]
                    count = bisect_left(done, position)
                    end = max(end, places[count - 1] if count else 0)
        ends.append(end)
    return ends


def _finished(
    slots: Sequence[Slot], lanes: Sequence[tuple[object, int]]
) -> list[dict[tuple[object, int], int]]:
    """Return for each slot, by stream, the last position that has surely finished when it starts."""
    known: dict[tuple[object, int], dict[tuple[object, int], int]] = {}
    found: list[dict[tuple[object, int], int]] = []
    for i, slot in enumerate(slots):
        mine = known.setdefault(lanes[i], {})
        for w in slot.waits:
            for lane, position in (*found[w].items(), (lanes[w], w)):
                mine[lane] = max(mine.get(lane, -1), position)
        found.append(dict(mine))
    return found


def is_view(node: Node) -> bool:
    """Whether a node only gives its input's bytes another shape, so that it needs no step."""
    return node.sig.is_view


def overwriting(graph: Graph, donated: Container[int]) -> dict[Node, list[Node]]:
    """Return the nodes that overwrite donated inputs, and which: nothing reads their results, so they can come last."""
    wanted = {n for i, n in enumerate(graph.inputs) if i in donated}
    nodes = [n for n in graph.nodes if n.sig.op is not GET]
    read = {made_by(i) for n in nodes for i in n.inputs}
    found = {
        n: [x for i, _ in inplace_pairs(n) if (x := n.inputs[i]) in wanted]
        for n in nodes
        if n not in read
    }
    return {n: inputs for n, inputs in found.items() if inputs}


def takes_step(node: Node) -> bool:
    """Whether a node is a step of a plan: no view, constant or part of several results."""
    return node.sig.op is not GET and not is_view(node) and node.sig.op.name != "constant"


def origin_of(node: Node) -> tuple[Node, int]:
    """Return whose bytes a node stands for: a leaf, constant or step, and which output of it."""
    while is_view(node):
        node = node.inputs[0]
    if node.sig.op is not GET:
        return node, 0
    return node.inputs[0], node.sig.attrs[0][1]


def inplace_pairs(node: Node) -> list[tuple[int, int]]:
    """Return the (input, output) pairs that may share memory: the op and its kernel must both allow them."""
    pairs = node.sig.op.inplace_pairs(node.sig)
    if not pairs:
        return pairs
    allowed = getattr(node.sig.device.kernel(node.sig), "inplace", None)
    return pairs if allowed is None else [p for p in pairs if p in allowed]
