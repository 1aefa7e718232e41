"""Offload: convex parts of a graph that a device compiles as a whole."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

import mge
import mge.functional as F
import mge.module as M
from mge.autodiff import GradManager
from mge.control import run_reference
from mge.debug import debug
from mge.device import _DEVICES, BACKENDS, as_device
from mge.errors import MgeError, PluginContractError, UnsupportedError
from mge.graph import GET, Graph, Node, get_signature, make_leaf
from mge.jit import trace
from mge.op import OPS
from mge.optimizer import SGD
from mge.passes.islands import made_by
from mge.passes.offload import partition
from mge.types import Type
from tests.core.plugins.conftest import Partial
from tests.core.plugins.opaque import Opaque
from tests.core.plugins.test_placement import vector
from tests.core.property.programs import programs

FEW = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
TYPE = Type((2,), mge.float32)


def use(name, *inputs):
    """Return the values of a new node."""
    sig = OPS[name].signature(
        [TYPE] * len(inputs), OPS[name].normal_attrs({}), inputs[0].sig.device
    )
    node = Node(sig, inputs, sig.type)
    if sig.single:
        return [node]
    gets = [get_signature(sig, k) for k in range(len(sig.types))]
    return [node, *[Node(g, (node,), g.type) for g in gets]]


@st.composite
def graphs(draw):
    """Draw a graph, and the nodes that a device accepts."""
    ref = as_device("ref")
    leaves = [make_leaf(TYPE, ref) for _ in range(2)]
    values, nodes, accepted = list(leaves), [], set()
    for _ in range(draw(st.integers(1, 16))):
        i, j = [draw(st.integers(max(0, len(values) - 6), len(values) - 1)) for _ in range(2)]
        name = draw(st.sampled_from(["neg", "add", "mul", "sort"]))
        made = use(name, *[values[i], values[j]][: 2 if name in ("add", "mul") else 1])
        nodes += made
        values += [made[0]] if len(made) == 1 else [made[1]]  # the values, of sort the first output
        if draw(st.booleans()):
            accepted.add(made[0])
    outputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True))
    return Graph(tuple(leaves), tuple(nodes), tuple(outputs)), accepted


def edges(graph, parts):
    """Return who reads whom once each part is one node."""
    of = {n: frozenset(p) for p in parts for n in p}
    found = {}
    for node in graph.nodes:
        if node.sig.op is GET:
            continue
        mine = of.get(node, node)
        found.setdefault(mine, set())
        for i in node.inputs:
            if i not in graph.inputs and of.get(made_by(i), made_by(i)) != mine:
                found.setdefault(of.get(made_by(i), made_by(i)), set()).add(mine)
    return found


def has_cycle(after):
    """Whether there is no order in which the nodes can run."""
    before = {n: sum(n in r for r in after.values()) for n in after}
    ready = [n for n, count in before.items() if not count]
    for node in ready:
        for reader in after[node]:
            before[reader] -= 1
            if not before[reader]:
                ready.append(reader)
    return len(ready) < len(after)


@settings(max_examples=300, deadline=None)
@given(graphs())
def test_parts_are_convex_connected_and_maximal(drawn):
    graph, accepted = drawn
    parts = partition(graph, accepted)
    assert sorted(map(id, accepted)) == sorted(id(n) for p in parts for n in p)
    after = edges(graph, parts)
    assert not has_cycle(after)
    for part in parts:
        seen, stack = set(), [part[0]]
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                stack += [m for i in node.inputs if (m := made_by(i)) in part]
                stack += [n for n in part if node in map(made_by, n.inputs)]
        assert seen == set(part)
    for one in parts:  # that two that read each other stay apart has a reason
        for other in parts:
            if frozenset(other) in after[frozenset(one)]:
                rest = [p for p in parts if p is not one and p is not other]
                assert has_cycle(edges(graph, [*rest, [*one, *other]]))


def test_a_way_through_others_cuts_and_a_way_beside_does_not():
    x = make_leaf(TYPE, as_device("ref"))
    (a,), (b,) = use("neg", x), use("neg", x)
    (other,) = use("sin", a)
    (c,) = use("add", other, a)
    (d,) = use("add", c, b)
    graph = Graph((x,), (a, b, other, c, d), (d,))
    parts = {frozenset(p) for p in partition(graph, {a, b, c, d})}
    assert parts == {frozenset({a}), frozenset({b, c, d})}


def test_a_part_is_joined_with_all_that_read_it():
    x = make_leaf(TYPE, as_device("ref"))
    (a,), (c,) = use("neg", x), use("neg", x)
    (one,), (two,) = use("sin", c), use("cos", c)
    (d,), (e,) = use("add", one, a), use("mul", two, a)
    graph = Graph((x,), (a, c, one, two, d, e), (d, e))
    parts = {frozenset(p) for p in partition(graph, {a, c, d, e})}
    assert parts == {frozenset({c}), frozenset({a, d, e})}


# What a device gets, and what becomes of it.


def run(device, function, *arrays):
    """Trace a function on a device and on ref; return the trace, and whether the results have the same bits."""
    traced = trace(function)
    made = traced(*[mge.tensor(a, a.dtype, device) for a in arrays])
    wanted = trace(function)(*[mge.tensor(a, a.dtype, "ref") for a in arrays])
    for one, other in zip(made, wanted, strict=True):
        assert one.device is device and one.numpy().tobytes() == other.numpy().tobytes()
    return traced


X = np.arange(1, 7, dtype="float32")


def test_a_graph_is_compiled_as_a_whole(partial):
    device = partial(graphs=True)
    traced = run(device, lambda x: (F.sin(x * 2.0).reshape(2, 3).sum(0), F.sort(x)[1]), X)
    (graph,) = device.backend.graphs
    assert [n.op.name for n in graph.nodes] == ["constant", "mul", "sin", "reshape", "sum"]
    placement = traced.placement()
    assert placement["compiled"] == [
        {"device": "partial0:0", "nodes": 3, "kernel": None, "reason": None}
    ]
    assert placement["nodes"] == {"partial0:0": 4}
    plan = next(iter(traced.last.plans.values())).plan
    assert [s.slot.node.op.name for s in plan.steps] == ["call", "sort"]


def test_several_outputs_and_inputs_cross(partial):
    device = partial({"tan"}, graphs=True)

    def function(x, y):
        a, b = x + y, x * y
        values, places = F.sort(a - b)
        return F.tan(a) + b, values + x, places, b.reshape(2, 3)

    traced = run(device, function, X, X[::-1].copy())
    assert [g.outputs[0].type.shape for g in device.backend.graphs] == [(6,)]
    assert [p["nodes"] for p in traced.placement()["compiled"]] == [5]
    assert traced.placement()["nodes"] == {"partial0:0": 6, "ref:0": 1}


def test_what_reads_a_refused_node_is_another_part(partial):
    device = partial({"tan"}, graphs=True)
    with debug(fallback="allow"):
        traced = run(device, lambda x: [F.sin(F.cos(x) + x) * F.tan(F.cos(x)) * x], X)
    assert [p["nodes"] for p in traced.placement()["compiled"]] == [3, 2]


def test_plans_share_what_was_compiled(partial):
    device = partial(graphs=True)
    for _ in range(2):
        trace(lambda x: F.sin(x + x))(vector(device)).numpy()
    assert len(device.backend.graphs) == 1


def test_parts_below_min_nodes_and_deterministic_runs_stay_single(partial):
    device = partial(min_nodes=4, graphs=True)
    assert run(device, lambda x: [F.sin(x + x) * x], X).placement()["compiled"] == []
    with debug(deterministic=True):
        assert run(device, lambda x: [F.sin(F.sin(x + x) * x)], X).placement()["compiled"] == []
    assert run(device, lambda x: [F.sin(F.sin(x + x) * x)], X).placement()["compiled"] != []


def test_views_that_the_device_refuses_are_not_in_its_graphs(partial):
    device = partial({"reshape"}, graphs=True)
    with debug(fallback="error"):
        run(device, lambda x: [F.sin(F.cos(x + x).reshape(2, 3)) * 2.0], X)
    ops = [[n.op.name for n in g.nodes] for g in device.backend.graphs]
    assert ops == [["add", "cos"], ["sin", "constant", "mul"]]


def test_parameters_are_marked_and_their_part_is_in_the_prologue(partial):
    device = partial(graphs=True)
    w = mge.Parameter(np.ones(6, np.float32), device=device)
    trace(lambda x: F.sin(x * w) + F.exp(w))(vector(device)).numpy()
    (graph,) = device.backend.graphs
    assert [n.op.name for n in graph.nodes] == ["mul", "sin", "add"]
    assert [bool(n.sig.attrs) for n in graph.inputs] == [False, True, False]


class Picky(Partial):
    """Takes no graph with ``exp``."""

    def compile(self, dev, graph):
        if any(n.op.name == "exp" for n in graph.nodes):
            raise UnsupportedError("no exp in graphs")
        return super().compile(dev, graph)


def test_a_refused_graph_runs_node_by_node(partial, capsys):
    device = partial(graphs=True, kind=Picky)
    traced = run(device, lambda x: [F.exp(x * x) + x], X)
    assert traced.placement()["compiled"] == [
        {"device": "partial0:0", "nodes": 3, "kernel": None, "reason": "no exp in graphs"}
    ]
    plan = next(iter(traced.last.plans.values())).plan
    assert [s.slot.node.op.name for s in plan.steps] == ["mul", "exp", "add"]
    assert not capsys.readouterr().err  # it is on its device


class Broken(Partial):
    """Does not keep the contract of ``compile``."""

    result = None

    def compile(self, dev, graph):
        return 1 // 0 if self.result is None else self.result


def test_a_compile_that_breaks_the_contract_is_named(partial):
    device = partial(graphs=True, kind=Broken)
    with pytest.raises(
        PluginContractError, match=r"partial0: compile, for .* raised ZeroDivisionError"
    ):
        trace(lambda x: F.sin(x + x))(vector(device))
    device.backend.result = 3
    with pytest.raises(PluginContractError, match="gave 3; it must give a kernel"):
        trace(lambda x: F.sin(x + x))(vector(device))


class Failing(Partial):
    """Compiles graphs to kernels that raise."""

    def compile(self, dev, graph):
        return lambda inputs, outputs, stream: 1 // 0


@pytest.mark.parametrize("how", ["traced", "undecorated"])
def test_a_part_that_fails_is_not_run_in_another_way(partial, how):
    device = partial(graphs=True, kind=Failing)

    def work(x):
        return F.sin(x + x)

    if how == "traced":
        work = trace(work)
    else:
        work(vector(device)).numpy()  # a first sight runs node by node
    with pytest.raises(ZeroDivisionError) as caught:
        work(vector(device)).numpy()
    notes = "\n".join(caught.value.__notes__)
    assert 'by plugin "partial0"' in notes and f"at: {__file__}" in notes


def test_explain_tells_parts(partial, capsys):
    from mge.cli.explain import explain_plan, text_of

    device = partial(graphs=True, kind=Picky)
    texts = []
    for function in (lambda x: F.sin(x + x), lambda x: F.exp(x + x)):
        traced = trace(function)
        traced(vector(device))
        texts.append(text_of(explain_plan(next(iter(traced.last.plans.values())).plan)))
    assert "2 nodes compiled as a whole" in texts[0]
    assert "partial0:0: 2 nodes were not compiled as a whole: no exp in graphs" in texts[1]


@FEW
@given(
    programs(), st.sets(st.sampled_from(["add", "mul", "cast", "reshape", "sum", "exp", "select"]))
)
def test_random_programs_have_the_bits_of_ref(partial, program, refused):
    try:
        trace(program)(*program.tensors())
    except MgeError:  # as of a singular matrix
        reject()
    device = partial(refused, graphs=True)
    with debug(fallback="allow", check=2):
        run(device, program, *program.leaves)


@pytest.mark.parametrize("how", ["traced", "undecorated"])
def test_a_net_trains_with_the_bits_of_ref(partial, how):
    device = partial({"max", "sum"}, graphs=True)

    def train(where):
        rng = np.random.default_rng(3)
        net = M.Sequential(M.Linear(8, 16), M.Tanh(), M.Linear(16, 4))
        for p in net.parameters():
            p[...] = mge.tensor(rng.normal(size=p.shape).astype("float32") * 0.3, device=where)
        manager = GradManager().attach(net.parameters())
        optimizer = SGD(net.parameters(), lr=0.1, momentum=0.9)

        def step(x, y):
            with manager:
                loss = ((net(x) - y) ** 2).mean()
                manager.backward(loss)
            optimizer.step().clear_grad()
            return loss

        step = trace(step) if how == "traced" else step
        losses = []
        for _ in range(5):
            x, y = (
                mge.tensor(rng.normal(size=(16, n)).astype("float32"), device=where) for n in (8, 4)
            )
            losses.append(step(x, y).item())
        return losses

    def on(where):
        mge.set_default_device(where)
        try:
            return train(where)
        finally:
            mge.set_default_device("ref")

    with debug(fallback="allow"):
        losses = on(device)
        assert device.backend.graphs and losses == on("ref")
    assert losses[-1] < losses[0]


class Compiling(Opaque):
    """Takes graphs over memory of its own."""

    name, has_graphs = "compiling", True

    def compile(self, dev, graph):
        def kernel(inputs, outputs, stream):
            made = run_reference(graph, [self.values_of(i) for i in inputs])
            for output, result in zip(outputs, made, strict=True):
                self.values_of(output)[...] = result

        return kernel


def test_a_device_with_memory_of_its_own_compiles_and_merges_islands(monkeypatch):
    backend = Compiling()
    monkeypatch.setitem(BACKENDS, "compiling", backend)
    device = as_device("compiling")

    def function(x):
        a = F.exp(x * 2.0 + x) - x  # a part of four nodes
        b = F.tan(a) + 1.0  # an island of one node, between nodes that it refuses
        return [F.tan(b), a.reshape(2, 3)]

    with debug(fallback="allow", check=2):
        placement = run(device, function, X).placement()
    del _DEVICES["compiling:0"]
    assert [p["nodes"] for p in placement["compiled"]] == [4]
    assert {r["reason"] for r in placement["refused"] if r["op"] == "add"} == {"island of 1 node"}
    assert placement["devices"]["ref:0"] == {
        "nodes": 3, "islands": 1, "bytes_in": 24, "bytes_out": 24,
    }  # fmt: skip
