"""Order: what waits for its reader, what runs as soon as it can, and that no plan takes more than before."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mge
import mge.functional as F
from mge.autodiff import GradManager
from mge.errors import OutOfMemory
from mge.graph import GET, Graph, Node, make_leaf
from mge.jit import trace
from mge.op import OPS
from mge.optimizer import SGD
from mge.order import eased
from mge.passes.order import order
from mge.passes.verify import verify
from mge.plan import Plan
from mge.schedule import overwriting
from mge.types import Type


def ordered(text):
    """Return the names of the ops in their new order."""
    graph = mge.parse_graph(text)
    made = order(graph)
    verify(made, "order", graph)
    return [n.sig.op.name for n in made.nodes]


def test_what_is_made_of_a_parameter_waits_for_its_reader():
    names = ordered("""graph(%0: f32[4, 4], %1: f32[4, 4] slow) {
      %2: f32[4, 4] = neg(%1)
      %3: f32[4, 4] = exp(%0)
      %4: f32[4, 4] = sin(%3)
      %5: f32[4, 4] = mul(%4, %2)
      return %5
    }""")
    assert names == ["exp", "sin", "neg", "mul"]


def test_what_frees_more_than_it_makes_does_not_wait():
    names = ordered("""graph(%0: f32[4, 4]) {
      %1: f32[4, 4] = exp(%0)
      %2: f32[4] = sum(%1) {axis=0, keepdims=False}
      %3: f32[4, 4] = sin(%0)
      %4: f32[4, 4] = cos(%3)
      %5: f32[4, 4] = add(%4, %2)
      return %5
    }""")
    assert names == ["exp", "sum", "sin", "cos", "add"]


def test_what_reads_a_value_that_lives_on_waits_with_its_views():
    names = ordered("""graph(%0: f32[4, 4]) {
      %1: f32[4, 4] = exp(%0)
      %2: f32[16] = reshape(%1) {shape=(16,)}
      %3: f32[16] = neg(%2)
      %4: f32[4, 4] = sin(%0)
      %5: f32[16] = reshape(%4) {shape=(16,)}
      %6: f32[16] = add(%5, %3)
      %7: f32[4, 4] = cos(%1)
      return %6, %7
    }""")
    assert names == ["exp", "reshape", "neg", "sin", "reshape", "add", "cos"]


def test_parts_of_several_results_stay_with_their_readers():
    names = ordered("""graph(%0: f32[2, 3]) {
      %1: (f32[2, 3], f32[3], f32[3]) = batch_norm_train(%0) {eps=0.1}
      %2: f32[3] = get(%1) {index=1}
      %3: f32[2, 3] = get(%1) {index=0}
      %4: f32[2, 3] = exp(%3)
      %5: f32[2, 3] = add(%4, %2)
      return %5
    }""")
    assert names == ["batch_norm_train", "get", "exp", "get", "add"]


def test_results_stay():
    names = ordered("""graph(%0: f32[4], %1: f32[4]) {
      %2: f32[4] = neg(%0)
      %3: f32[4] = exp(%1)
      %4: f32[4] = add(%3, %2)
      return %2, %4
    }""")
    assert names == ["neg", "exp", "add"]


# Lists that take less.


def listed(text, donated=()):
    """Return the names of the steps in an order in which less is live."""
    graph = mge.parse_graph(text)
    made = eased(graph, overwriting(graph, donated))
    verify(made, "order", graph)
    return [n.sig.op.name for n in made.nodes if n.sig.op is not GET]


def test_what_frees_more_than_it_makes_runs_at_once():
    names = listed("""graph(%0: f32[4, 4]) {
      %1: f32[4, 4] = exp(%0)
      %2: f32[4, 4] = sin(%1)
      %3: f32[4, 4] = cos(%2)
      %4: f32[] = mean(%3)
      %5: f32[] = sum(%1) {axis=None, keepdims=False}
      %6: f32[] = add(%4, %5)
      return %6
    }""")
    assert names == ["exp", "sin", "sum", "cos", "mean", "add"]


def test_what_makes_more_than_it_frees_keeps_its_place():
    names = listed("""graph(%0: f32[4]) {
      %1: f32[4] = exp(%0)
      %2: f32[4] = sin(%1)
      %3: f32[4, 4] = broadcast_to(%1) {shape=(4, 4)}
      %4: f32[4] = cos(%2)
      %5: f32[4, 4] = mul(%3, %4)
      return %5
    }""")
    assert names == ["exp", "sin", "cos", "broadcast_to", "mul"]


def test_what_reads_inputs_alone_waits_for_its_reader():
    names = listed("""graph(%0: f32[4, 4], %1: f32[4, 4]) {
      %2: f32[4, 4] = neg(%1)
      %3: f32[4, 4] = exp(%0)
      %4: f32[4, 4] = sin(%3)
      %5: f32[4, 4] = mul(%4, %2)
      return %5
    }""")
    assert names == ["exp", "sin", "neg", "mul"]


def test_an_update_comes_as_soon_as_nothing_reads_its_parameter():
    text = """graph(%0: f32[4, 4], %1: f32[4, 4], %2: f32[4, 4]) {
      %3: f32[4, 4] = exp(%2)
      %4: f32[4, 4] = mul(%3, %0)
      %5: f32[4, 4] = cos(%4)
      %6: f32[4, 4] = mul(%5, %1)
      %7: f32[4, 4] = tanh(%6)
      %8: f32[4, 4] = sub(%0, %3)
      %9: f32[4, 4] = sub(%1, %5)
      return %7, %8, %9
    }"""
    assert listed(text, (0, 1)) == ["exp", "mul", "sub", "cos", "mul", "sub", "tanh"]
    later = text.replace("mul(%5, %1)", "mul(%5, %0)")
    assert listed(later, (0, 1)) == ["exp", "mul", "cos", "sub", "mul", "sub", "tanh"]


TYPE = Type((3,), mge.dtype.float32)


@given(data=st.data())
def test_any_list_is_an_order_that_works(data):
    known = [make_leaf(TYPE, mge.device.as_device("ref")) for _ in range(3)]
    leaves, nodes = tuple(known), []
    for _ in range(data.draw(st.integers(1, 16))):
        kind = data.draw(st.sampled_from(["exp", "add", "topk", "host_call"]))
        given_ = [data.draw(st.sampled_from(known)) for _ in range(1 + (kind == "add"))]
        attrs = {"k": 3} if kind == "topk" else {}
        if kind == "host_call":
            attrs = {"function": abs, "types": (repr(TYPE),)}
        types = [n.type for n in given_]
        sig = OPS[kind].signature(types, OPS[kind].normal_attrs(attrs), leaves[0].sig.device)
        made = Node(sig, tuple(given_), sig.type)
        nodes.append(made)
        if not sig.single:
            get = mge.graph.get_signature(sig, 0)
            made = Node(get, (made,), get.type)
            nodes.append(made)
        known.append(made)
    graph = Graph(leaves, tuple(nodes), tuple(n for n in nodes if n.sig.op is GET or n.sig.single))
    late = overwriting(graph, data.draw(st.sets(st.integers(0, 2))))
    made = eased(graph, late)
    assert sorted(map(id, made.nodes)) == sorted(map(id, graph.nodes))
    verify(made, "order", graph)
    place = {n: i for i, n in enumerate(made.nodes)}
    calls = [n for n in graph.nodes if n.sig.op.name == "host_call"]
    assert calls == sorted(calls, key=place.__getitem__), "what is not pure changed places"
    for node, inputs in late.items():
        readers = {n for n in nodes if n is not node and {*n.inputs}.intersection(inputs)}
        others = readers - late.keys()
        assert all(place[n] < place[node] for n in others if n.sig.op is not GET)


def training(width=64, depth=6):
    """Return the graph of a training step, and which inputs it may overwrite."""
    rng = np.random.default_rng(0)
    layers = [
        mge.Parameter(rng.normal(size=(width, width)).astype("float32")) for _ in range(depth)
    ]
    manager, move = GradManager().attach(layers), SGD(layers, lr=0.1, momentum=0.9)

    def step(x):
        with manager:
            for w in layers:
                x = F.tanh(x @ w)
            loss = x.mean()
            manager.backward(loss)
        move.step().clear_grad()
        return loss

    return layers, trace(step)


def plan_of(traced):
    (compiled,) = traced.last.plans.values()
    return compiled.plan


def test_gradients_of_a_static_plan_do_not_wait_for_each_other(monkeypatch):
    x = mge.tensor(np.ones((2, 64), np.float32))
    layers, recorded = training()
    losses = [recorded(x).item() for _ in range(3)]
    monkeypatch.setattr("mge.plan.EASED", 0)
    moved, small = training()
    assert [small(x).item() for _ in range(3)] == losses
    assert all((a.numpy() == b.numpy()).all() for a, b in zip(layers, moved))
    before, after = plan_of(recorded), plan_of(small)
    assert before.overwrites_from == len(before.steps) - 1 and len(before.overwrites) == 12
    assert after.overwrites_from < len(after.steps) - 6 and len(after.overwrites) == 12
    assert after.peak_bytes < before.peak_bytes / 2, "six gradients were live, and two are"


def test_another_order_is_kept_only_where_it_takes_less(monkeypatch):
    monkeypatch.setattr("mge.plan.EASED", 0)
    x = mge.tensor(np.ones((4096, 4), np.float32))
    _, traced = training(4, 3)  # the images are all, and gradients nothing
    traced(x).item()
    plan = plan_of(traced)
    assert plan.overwrites_from == len(plan.steps) - 1


def test_a_budget_brings_overwrites_forward():
    x = mge.tensor(np.ones((2, 64), np.float32))
    _, traced = training()
    traced(x).item()
    plan = plan_of(traced)
    less = Plan(plan.graph, plan.donated, f"static:budget={plan.peak_bytes // 2}")
    assert less.peak_bytes <= plan.peak_bytes // 2 < plan.peak_bytes
    with pytest.raises(OutOfMemory):
        Plan(plan.graph, plan.donated, "static:budget=1KB")
