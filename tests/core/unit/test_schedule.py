"""The schedule: order, streams, and events just where one stream must wait for another."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mge
from mge.graph import Graph, Node, make_leaf
from mge.op import OPS
from mge.passes.islands import made_by
from mge.schedule import schedule
from mge.types import Type


class FakeDevice:
    """A device with some streams; it runs nothing."""

    def __init__(self, name, streams):
        self.name, self.type = name, name
        self.backend = SimpleNamespace(name=name, stream_count=streams)

    def __repr__(self):
        return self.name


TYPE = Type((3,), mge.dtype.float32)


def use(name, *inputs, device, **attrs):
    op = OPS[name]
    sig = op.signature([n.type for n in inputs], op.normal_attrs(attrs), device)
    return Node(sig, tuple(inputs), sig.type)


def leaf(device):
    return make_leaf(TYPE, device)


def graph_of(inputs, nodes, outputs=None):
    return Graph(tuple(inputs), tuple(nodes), tuple(outputs or nodes[-1:]))


def check(graph, slots, late=()):
    """Each slot starts after what it reads, by the order on its stream or by an event; nothing is left out."""
    wanted = [n for n in graph.nodes if n.sig.op.name not in ("get", "constant")]
    assert sorted(map(id, wanted)) == sorted(id(s.node) for s in slots)
    position = {s.node: i for i, s in enumerate(slots)}
    before = []  # slot -> the slots that have finished when it starts, by streams and events alone
    last = {}
    for i, slot in enumerate(slots):
        done = set()
        key = (slot.node.sig.device, slot.stream)
        assert 0 <= slot.stream < slot.node.sig.device.backend.stream_count
        for j in [*slot.waits, *([last[key]] if key in last else [])]:
            assert j < i, "a slot waits for a later one"
            done |= before[j] | {j}
        for j in slot.waits:
            assert slots[j].records, "a slot is awaited and records no event"
            assert (slots[j].node.sig.device, slots[j].stream) != key, "a stream waits for itself"
        for x in slot.node.inputs:
            j = position.get(made_by(x))
            assert j is None or j in done, f"slot {i} may start before slot {j}, which it reads"
        before.append(done)
        last[key] = i
    awaited = {j for s in slots for j in s.waits}
    assert {i for i, s in enumerate(slots) if s.records} == awaited, (
        "an event that nobody waits for"
    )
    for n in late:
        assert position[n] >= len(slots) - len(late)


def test_one_stream_keeps_the_order_and_never_waits():
    device = FakeDevice("one", 1)
    x = leaf(device)
    a = use("exp", x, device=device)
    b = use("log", x, device=device)
    c = use("add", a, b, device=device)
    graph = graph_of([x], [a, b, c])
    slots = schedule(graph)
    assert [s.node for s in slots] == [a, b, c]
    assert all(s.stream == 0 and s.waits == () and not s.records for s in slots)
    check(graph, slots)


def test_independent_chains_take_two_streams_and_meet_with_one_event():
    device = FakeDevice("two", 2)
    x, y = leaf(device), leaf(device)
    a1, b1 = use("exp", x, device=device), use("exp", y, device=device)
    a2, b2 = use("log", a1, device=device), use("log", b1, device=device)
    c = use("add", a2, b2, device=device)
    graph = graph_of([x, y], [a1, b1, a2, b2, c])
    slots = schedule(graph)
    check(graph, slots)
    by_node = {s.node: s for s in slots}
    assert by_node[a1].stream == by_node[a2].stream
    assert by_node[b1].stream == by_node[b2].stream != by_node[a1].stream
    assert sum(len(s.waits) for s in slots) == 1 and len(by_node[c].waits) == 1
    assert [s.records for s in slots].count(True) == 1


def test_a_chain_stays_on_one_stream():
    device = FakeDevice("two", 2)
    nodes = [leaf(device)]
    for _ in range(6):
        nodes.append(use("exp", nodes[-1], device=device))
    graph = graph_of(nodes[:1], nodes[1:])
    slots = schedule(graph)
    check(graph, slots)
    assert len({s.stream for s in slots}) == 1 and not any(s.waits for s in slots)


def test_a_fork_waits_for_its_source():
    device = FakeDevice("two", 2)
    x = leaf(device)
    a = use("exp", x, device=device)
    b, c = use("log", a, device=device), use("sqrt", a, device=device)
    graph = graph_of([x], [a, b, c], [b, c])
    slots = schedule(graph)
    check(graph, slots)
    assert {s.stream for s in slots} == {0, 1}
    assert sum(len(s.waits) for s in slots) == 1


def test_two_devices_wait_for_each_other():
    one, two = FakeDevice("one", 1), FakeDevice("other", 2)
    x = leaf(one)
    a = use("exp", x, device=one)
    copied = use("log", a, device=two)
    b = use("sqrt", copied, device=two)
    c = use("add", a, b, device=one)
    graph = graph_of([x], [a, copied, b, c])
    slots = schedule(graph)
    check(graph, slots)
    assert [len(s.waits) for s in slots] == [0, 1, 0, 1]


def test_late_nodes_come_last():
    device = FakeDevice("two", 2)
    x = leaf(device)
    update = use("add", x, x, device=device)
    a = use("exp", x, device=device)
    b = use("log", a, device=device)
    graph = graph_of([x], [update, a, b], [update, b])
    slots = schedule(graph, {update})
    check(graph, slots, [update])
    assert [s.node for s in slots] == [a, b, update]


def test_a_late_node_that_overwrites_waits_for_those_that_read_the_old_value():
    """An update in place runs after every reader of its input, also one on another stream."""
    device = FakeDevice("two", 2)
    w = leaf(device)
    a = use("exp", w, device=device)
    b = use("log", w, device=device)
    update = use("add", w, w, device=device)
    graph = graph_of([w], [a, b, update], [a, b, update])
    slots = schedule(graph, {update})
    check(graph, slots, [update])
    done = reached_by(slots, len(slots) - 1)
    readers = {i for i, s in enumerate(slots) if w in s.node.inputs and s.node is not update}
    assert readers <= done, "the update may overwrite a value that another stream still reads"


def reached_by(slots, i):
    """Return the slots that have certainly finished when slot ``i`` starts."""
    before, last = [], {}
    for j, slot in enumerate(slots):
        key = (slot.node.sig.device, slot.stream)
        done = set()
        for k in [*slot.waits, *([last[key]] if key in last else [])]:
            done |= before[k] | {k}
        before.append(done)
        last[key] = j
    return before[i]


@pytest.mark.parametrize("streams", [1, 2, 3])
@given(data=st.data())
def test_any_graph(streams, data):
    devices = [FakeDevice("a", streams), FakeDevice("b", 2)]
    known = [leaf(devices[0]), leaf(devices[1])]
    nodes = []
    for _ in range(data.draw(st.integers(1, 14))):
        device = devices[data.draw(st.sampled_from([0, 0, 0, 1]))]
        x, y = (known[data.draw(st.integers(0, len(known) - 1))] for _ in range(2))
        if data.draw(st.booleans()):
            made = use("add", x, y, device=device)
        elif data.draw(st.booleans()):
            made = use("topk", x, device=device, k=3)
            nodes.append(made)
            sig = mge.graph.get_signature(made.sig, 0)
            made = Node(sig, (made,), sig.type)
        else:
            made = use("exp", x, device=device)
        nodes.append(made)
        known.append(made)
    graph = graph_of(known[:2], nodes)
    check(graph, schedule(graph))


def test_constants_and_gets_take_no_slot():
    device = FakeDevice("one", 1)
    x = leaf(device)
    constant = use(
        "constant",
        device=device,
        data=np.ones(3, np.float32).tobytes(),
        shape=(3,),
        dtype="float32",
    )
    a = use("add", x, constant, device=device)
    pair = use("topk", a, device=device, k=2)
    sig = mge.graph.get_signature(pair.sig, 1)
    get = Node(sig, (pair,), sig.type)
    graph = graph_of([x], [constant, a, pair, get])
    assert [s.node for s in schedule(graph)] == [a, pair]
