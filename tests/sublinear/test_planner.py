"""The planner: its simulator against a twin in Python, on drawn graphs; what the search may and may not return."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mge.plugin import MemoryRequest, NodeInfo, ValueInfo

from . import exact, twin

native = pytest.importorskip("mge_sublinear.native", reason="mge-sublinear is not installed")


def drawn(seed, count=None):
    """Return a request: a few inputs, layers that read earlier values, then readers in reverse, as gradients do."""
    rng = random.Random(seed)
    count = count or rng.randint(1, 14)
    values, nodes = [], []

    def value(pinned=""):
        values.append(
            ValueInfo(len(values), rng.choice([0, 10, 64, 100, 640, 4096]), pinned, "ref:0", "")
        )
        return len(values) - 1

    def node(inputs, outputs, phase, pairs=()):
        is_pure = phase != "forward" or rng.random() < 0.9
        nodes.append(
            NodeInfo(len(nodes), rng.choice("abc"), tuple(inputs), tuple(outputs), rng.choice([1.0, 5.0, 50.0]), False,
                     rng.choice([0, 0, 64, 1000]), is_pure, tuple(pairs), phase, "ref:0", None)
        )  # fmt: skip

    fixed = [value("parameter") for _ in range(2)]
    known, forward = list(fixed), []
    for _ in range(count):
        inputs = [rng.choice(known[-4:]) for _ in range(rng.randint(1, 3))]
        outputs = [value() for _ in range(rng.choice([1, 1, 1, 2]))]
        pairs = [
            (v, outputs[0])
            for v in inputs
            if v not in fixed and values[v].nbytes == values[outputs[0]].nbytes
        ]
        node(inputs, outputs, "forward", pairs if pairs and rng.random() < 0.7 else [])
        known += outputs
        forward.append((inputs, outputs))
    gradient = known[-1]
    for inputs, outputs in reversed(forward):
        made = value("output" if rng.random() < 0.1 else "")
        node([gradient, *inputs, *outputs], [made], "backward")
        gradient = made
    if rng.random() < 0.5:
        node([fixed[0], gradient], [value("output")], "update", [(fixed[0], len(values) - 1)])
    return MemoryRequest(nodes, values, None, {}, 64, lambda steps: 0)


def kept(request):
    has_gap = {v: gap for v, (_, gap) in twin.gaps(request).items()}
    return [native.KEEP if has_gap.get(v.number, True) else 0 for v in request.values]


@settings(max_examples=150)
@given(seed=st.integers(0, 2**32 - 1), data=st.data())
def test_the_simulator_agrees_with_its_twin(seed, data):
    request = drawn(seed)
    problem = native.Problem(request, 0)
    assert problem.simulate().runs == list(range(len(request.nodes)))
    may_go, hold = twin.gaps(request), kept(request)
    for v in may_go:
        after = data.draw(st.sampled_from([native.KEEP, 0, 2, 7, native.RETAIN]))
        hold[v] = (
            after
            if after < 0
            else data.draw(st.sampled_from([0, 1, 2, 3, 5, 128, 130])) << 23 | after
        )
    found = problem.simulate([hold[v] for v in problem.values])
    order = twin.runs(request, hold)
    assert found.runs == order
    assert found.live_bytes == twin.peak(request, order)
    assert found.time_ns == pytest.approx(sum(request.nodes[t].time_ns for t in order))


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1))
def test_what_the_search_finds_is_what_it_says(seed):
    request = drawn(seed, 12)
    problem = native.Problem(request)
    plans = problem.search(0, 1500)
    assert [p.runs for p in plans] == [p.runs for p in problem.search(0, 1500)]
    assert all(
        a.live_bytes > b.live_bytes and a.time_ns < b.time_ns for a, b in itertools.pairwise(plans)
    )
    for plan in plans:
        assert plan.live_bytes == twin.peak(request, plan.runs)
        assert plan.time_ns == pytest.approx(sum(request.nodes[t].time_ns for t in plan.runs))
        assert set(plan.runs) == set(range(len(request.nodes)))
        once = [t for t in plan.runs if not request.nodes[t].is_pure]
        assert once == sorted(set(once))


def layered(seed, count):
    """Return a request: layers, some with a skip connection, and backward steps that read what is needed of each."""
    rng = random.Random(seed)
    values, nodes, layers, known = [ValueInfo(0, 64, "input", "ref:0", "")], [], [], [0]

    def make(inputs, phase, nbytes, time):
        inputs, made = tuple(dict.fromkeys(inputs)), len(values)
        values.append(ValueInfo(made, nbytes, "", "ref:0", ""))
        same = [v for v in inputs if v and values[v].nbytes == nbytes]
        pairs = ((same[0], made),) if same and rng.random() < 0.5 else ()
        nodes.append(
            NodeInfo(len(nodes), rng.choice("ab"), inputs, (made,), time, False, 0, True, pairs, phase, "ref:0", None)
        )  # fmt: skip
        return made

    for _ in range(count):
        inputs, time = [known[-1]], rng.choice([1.0, 2.0, 8.0, 20.0])
        if len(known) > 3 and rng.random() < 0.3:
            inputs.append(rng.choice(known[-4:-1]))
        known.append(make(inputs, "forward", 64 * rng.choice([1, 2, 4, 4, 8]), time))
        layers.append((inputs, known[-1], time))
    gradient = known[-1]
    for inputs, made, time in reversed(layers):
        needed = rng.choice([inputs, inputs, [*inputs[1:], made], [*inputs, made]])
        gradient = make(
            [gradient, *needed], "backward", max(64, values[inputs[0]].nbytes), 2 * time
        )
    return MemoryRequest(nodes, values, None, {}, 64, lambda steps: 0)


def test_plans_are_near_the_fastest_of_all_schedules():
    """Within 3% for nearly all budgets, of graphs that are small enough to try everything: recomputation anywhere."""
    gaps = []
    for count, seed in itertools.product([4, 5, 6, 7], range(12)):
        request = layered(seed, count)
        problem = native.Problem(request)
        full = problem.simulate()
        plans = [full, *problem.search(0, 20_000)]
        for share in (0.8, 0.65, 0.5):
            budget = int(share * full.live_bytes)
            best = exact.fastest(request, budget)
            found = min((p.time_ns for p in plans if p.live_bytes <= budget), default=None)
            if best is None:
                assert found is None, "a plan for which there is no schedule"
                continue
            assert found is None or found >= best, "a plan takes less than the least"
            gaps.append(found is None or found > 1.03 * best)
    assert len(gaps) > 50
    assert sum(gaps) <= len(gaps) / 10


def chain(count):
    """Return a chain of layers with backward steps that read what the layers read, all of one size."""
    values = [ValueInfo(0, 64, "input", "ref:0", "")]
    nodes = []

    def make(inputs, phase):
        return nodes.append(
            NodeInfo(
                len(nodes),
                "layer",
                inputs,
                (len(values) - 1,),
                1.0,
                False,
                0,
                True,
                (),
                phase,
                "ref:0",
                None,
            )
        )

    for _ in range(count):
        values.append(ValueInfo(len(values), 64, "", "ref:0", ""))
        make((len(values) - 2,), "forward")
    for i in reversed(range(count)):
        values.append(ValueInfo(len(values), 64, "output" if i == 0 else "", "ref:0", ""))
        make((len(values) - 2, i), "backward")
    return MemoryRequest(nodes, values, None, {}, 64, lambda steps: 0)


def test_a_long_chain_needs_little_memory_for_its_time():
    problem = native.Problem(chain(256))
    full = problem.simulate()
    plans = problem.search(0, 4000)

    def within(share):
        return min(p.live_bytes for p in plans if p.time_ns <= share * full.time_ns)

    assert within(1.5) <= full.live_bytes / 7, (
        "checkpoints at the square root take 2 * 16 of 256 values"
    )
    assert within(2.0) <= full.live_bytes / 10


def test_the_search_tries_as_many_plans_as_it_is_told():
    """The cost of planning is a number of simulations that no clock decides: the same on a busy machine."""
    problem = native.Problem(drawn(3, 14))
    few, many = ([(p.time_ns, p.live_bytes) for p in problem.search(0, n)] for n in (100, 4000))
    assert few == [(p.time_ns, p.live_bytes) for p in problem.search(0, 100)]
    for time_ns, live_bytes in few:
        assert any(t <= time_ns and b <= live_bytes for t, b in many), "more tries found less"
