"""Memory plans: live values never overlap, the stated peak is the real one, and each step reads what was written."""

import random

import numpy as np
import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from mge.errors import PluginContractError
from mge.execute import StepError, execute
from mge.memory import ALIGNMENT, STRATEGIES, Interval, plan_memory, rounded, verify_offsets
from mge.plan import Plan
from mge.strategy import Free, MemorySchedule, MemoryStrategy, Run
from tests.core.property.programs import programs
from tests.core.property.test_print_parse import graph_of

BUILT_IN = ["static", "naive"]
intervals = st.lists(
    st.builds(
        lambda start, length, nbytes: Interval(start, start + length, nbytes),
        st.integers(0, 30),
        st.integers(0, 12),
        st.one_of(st.integers(0, 10), st.integers(0, 2000), st.just(64), st.just(4096)),
    ),
    max_size=40,
)


def meet(one, other):
    return one.start <= other.end and other.start <= one.end


def lines(interval, offset):
    return range(offset // ALIGNMENT, (offset + rounded(interval.nbytes)) // ALIGNMENT)


@pytest.mark.parametrize("strategy", BUILT_IN)
@given(values=intervals)
def test_live_values_never_overlap(strategy, values):
    plan = plan_memory(values, strategy)
    assert len(plan.offsets) == len(values)
    assert all(offset % ALIGNMENT == 0 and offset >= 0 for offset in plan.offsets)
    steps = max((v.end for v in values), default=-1) + 1
    tops, live = [0], []
    for step in range(steps):
        taken = {}
        for i, (value, offset) in enumerate(zip(values, plan.offsets, strict=True)):
            if value.start <= step <= value.end:
                for line in lines(value, offset):
                    assert line not in taken, f"values {i} and {taken[line]} overlap at step {step}"
                    taken[line] = i
        tops.append(max(taken, default=-1) + 1)
        live.append(len(taken) * ALIGNMENT)
    assert plan.arena_bytes == max(tops) * ALIGNMENT, "the stated peak is not the real one"
    assert plan.live_bytes == live
    assert plan.arena_bytes >= max(live, default=0)


@given(intervals)
def test_static_needs_no_more_than_all_values_beside_each_other(values):
    total = sum(rounded(v.nbytes) for v in values)
    assert plan_memory(values, "static").arena_bytes <= total


@given(st.lists(st.integers(1, 500), min_size=1, max_size=20))
def test_a_chain_needs_its_largest_neighbours_only(sizes):
    """Values that hand over to the next one: the best arena is the peak of what is live."""
    values = [Interval(i, i + 1, 64 * size) for i, size in enumerate(sizes)]
    plan = plan_memory(values, "static")
    assert plan.arena_bytes <= 2 * max(plan.live_bytes)


@given(intervals, st.data())
def test_an_overlap_is_found(values, data):
    pairs = [
        (i, j)
        for i, one in enumerate(values)
        for j, other in enumerate(values)
        if i != j and meet(one, other) and one.nbytes and other.nbytes
    ]
    assume(pairs)
    plan = plan_memory(values, "static")
    i, j = data.draw(st.sampled_from(pairs))
    offsets = list(plan.offsets)
    offsets[i] = offsets[j]
    with pytest.raises(PluginContractError, match="both are live"):
        verify_offsets(values, offsets, plan.arena_bytes + rounded(values[i].nbytes), "planted")


@given(intervals, st.sampled_from([-64, 32, 1 << 20]))
def test_a_place_outside_or_unaligned_is_found(values, shift):
    big = [i for i, v in enumerate(values) if v.nbytes]
    assume(big)
    plan = plan_memory(values, "static")
    offsets = list(plan.offsets)
    offsets[big[0]] = shift
    with pytest.raises(PluginContractError, match="planted"):
        verify_offsets(values, offsets, plan.arena_bytes, "planted")


class Planted(MemoryStrategy):
    def layout(self, values, alignment):
        return [0] * len(values)


def test_a_strategy_that_overlaps_is_refused(monkeypatch):
    monkeypatch.setitem(STRATEGIES, "planted", Planted())
    with pytest.raises(PluginContractError, match='memory strategy "planted"'):
        plan_memory([Interval(0, 1, 8, "one"), Interval(1, 2, 8, "two")], "planted")


class Simulation:
    """Runs a plan on names in place of bytes: which value each line of the arena and each storage holds."""

    def __init__(self, plan):
        self.plan = plan
        self.owner = np.full(plan.memory.arena_bytes // ALIGNMENT, -1)
        self.holds = {}  # storage -> the value written last
        written = {v for step in plan.steps for v in step.outputs}
        self.root = []  # a view's source: the value written last to its storage before it
        for v, value in enumerate(plan.values):
            own = v in written or all(plan.values[u].storage != value.storage for u in range(v))
            earlier = [u for u in range(v) if plan.values[u].storage == value.storage]
            self.root.append(v if own else self.root[earlier[-1]])
        for v, value in enumerate(plan.values):
            if plan.storages[value.storage].kind in ("input", "constant"):
                self.holds.setdefault(value.storage, v)

    def place(self, v):
        """Return the lines of the arena where a value lies; none for a value outside of it."""
        storage = self.plan.values[v].storage
        if self.plan.storages[storage].kind != "arena":
            return slice(0, 0)
        offset = self.plan.memory.offsets[self.plan.arena[storage]]
        return slice(
            offset // ALIGNMENT, (offset + rounded(self.plan.storages[storage].nbytes)) // ALIGNMENT
        )

    def read(self, v, where):
        storage = self.plan.values[v].storage
        assert self.holds.get(storage) == self.root[v], (
            f"{where} reads v{v}, its storage was overwritten"
        )
        assert (self.owner[self.place(v)] == storage).all(), (
            f"{where} reads v{v}, its bytes were overwritten"
        )

    def write(self, v, step, where):
        storage = self.plan.values[v].storage
        assert self.plan.storages[storage].kind != "constant", f"{where} writes to a constant"
        allowed = {
            (step.inputs[i], o) for i, o in step.slot.node.sig.op.inplace_pairs(step.slot.node.sig)
        }
        o = step.outputs.index(v)
        for u in step.inputs:
            if self.plan.values[u].storage == storage:
                assert (u, o) in allowed, (
                    f"{where} writes v{v} over its input v{u}, which the op does not allow"
                )
            else:
                assert not (self.owner[self.place(v)] == self.plan.values[u].storage).any(), (
                    f"{where} writes v{v} over the bytes of its input v{u}"
                )
        self.owner[self.place(v)] = storage
        self.holds[storage] = v

    def run(self):
        for number, step in enumerate(self.plan.steps):
            where = f"step {number} ({step.slot.node.sig.op.name})"
            for v in step.inputs:
                self.read(v, where)
            for v in step.outputs:
                self.write(v, step, where)
            places = [self.plan.values[v].storage for v in step.outputs]
            assert len(set(places)) == len(places), f"{where} writes two outputs to one place"
        for v in self.plan.outputs:
            assert self.plan.storages[self.plan.values[v].storage].kind != "arena", (
                f"v{v} leaves, in the arena"
            )
            self.read(v, "the caller")


@pytest.mark.parametrize("strategy", BUILT_IN)
@given(program=programs(most_steps=14), data=st.data())
@settings(max_examples=80)
def test_each_step_reads_what_was_written(strategy, program, data):
    graph = graph_of(program)
    donated = data.draw(st.lists(st.sampled_from(range(len(graph.inputs))), unique=True))
    plan = Plan(graph, donated, strategy)
    Simulation(plan).run()
    check_overwrites(plan, donated)


def check_overwrites(plan, donated):
    """A plan overwrites inputs that are its own, and none before the step that it states."""
    overwritten = {
        plan.storages[plan.values[v].storage].source
        for step in plan.steps
        for v in step.outputs
        if plan.storages[plan.values[v].storage].kind == "input"
    }
    assert overwritten <= set(donated), "the plan overwrites an input that is not its own"
    first = next(
        (
            i
            for i, step in enumerate(plan.steps)
            if any(plan.storages[plan.values[v].storage].kind == "input" for v in step.outputs)
        ),
        len(plan.steps),
    )
    assert first >= plan.overwrites_from, (
        "an input is overwritten before the step that the plan states"
    )


@given(programs(most_steps=14))
@settings(max_examples=80)
def test_the_stated_peak_is_arena_and_results(program):
    plan = Plan(graph_of(program))
    kinds = {"arena": 0, "result": 0}
    for storage in plan.storages:
        if storage.kind in kinds:
            kinds[storage.kind] += rounded(storage.nbytes)
    assert plan.peak_bytes == plan.memory.arena_bytes + kinds["result"]
    assert plan.memory.arena_bytes <= kinds["arena"]
    assert max(plan.timeline(), default=0) <= plan.peak_bytes
    assert f"peak {plan.peak_bytes} bytes" in str(plan)


class Wild(MemoryStrategy):
    """Any order that works, with values freed at random and computed again where they are read."""

    name = "wild"
    options = {"seed": 0, "fault": ""}

    def plan(self, request):
        rng = random.Random(request.options["seed"])
        maker = {v: n for n in request.nodes for v in n.outputs}
        fixed = {v.number for v in request.values if v.pinned in ("input", "parameter", "constant")}
        there, steps, waiting = set(fixed), [], {n.number for n in request.nodes}

        def run(node):
            for v in node.inputs:
                if v not in there:
                    run(maker[v])
            steps.append(Run(node.number))
            there.update(node.outputs)
            waiting.discard(node.number)

        while waiting or rng.random() < 0.5:
            for v in sorted(there - fixed):
                if rng.random() < 0.3:
                    steps.append(Free(v))
                    there.remove(v)
            if request.nodes:
                run(request.nodes[rng.choice(sorted(waiting) or range(len(request.nodes)))])
        for v in request.values:
            if v.number not in there and v.pinned == "output":
                run(maker[v.number])
        peak = request.measure(steps)
        if request.options["fault"]:
            self.break_one(request, steps, rng)
        return MemorySchedule(steps, peak)

    @staticmethod
    def break_one(request, steps, rng):
        """Free a value right before a step that reads it, or leave out all runs of a node."""
        reads = [
            (i, v)
            for i, step in enumerate(steps)
            if isinstance(step, Run)
            for v in request.nodes[step.node].inputs
            if not request.values[v].pinned
        ]
        if reads:
            i, v = rng.choice(reads)
            steps.insert(i, Free(v))
        else:
            node = rng.choice(request.nodes).number
            steps[:] = [s for s in steps if s != Run(node)]


def bits(graph, arrays, strategy, donated=()):
    """Return the outputs of a graph as bytes, and the plan."""
    plan = Plan(graph, donated, strategy)
    with np.errstate(all="ignore"):
        outputs = execute(plan, [graph.inputs[0].sig.device.upload(a) for a in arrays])
    return [b.array.tobytes() for b in outputs], plan


@pytest.fixture
def wild(monkeypatch):
    monkeypatch.setitem(STRATEGIES, "wild", Wild())


def ran(graph, arrays):
    """Return the bits of the static plan; a program whose data an op refuses is drawn again."""
    try:
        return bits(graph, arrays, "static")[0]
    except StepError:
        reject()


@given(program=programs(most_steps=10), seed=st.integers(0, 2**32), data=st.data())
@settings(max_examples=80)
def test_any_legal_schedule_gives_the_same_bits(wild, program, seed, data):
    graph = graph_of(program)
    wanted = ran(graph, program.leaves)
    donated = data.draw(st.lists(st.sampled_from(range(len(graph.inputs))), unique=True))
    made, plan = bits(graph, program.leaves, f"wild:seed={seed}", donated)
    assert made == wanted, f"{plan}\nand in the order of recording\n{Plan(graph)}"
    Simulation(plan).run()
    check_overwrites(plan, donated)


@given(program=programs(most_steps=10), seed=st.integers(0, 2**32))
@settings(max_examples=60)
def test_any_broken_schedule_is_refused_by_name(wild, program, seed):
    graph = graph_of(program)
    assume(Plan(graph).steps)
    with pytest.raises(PluginContractError, match='memory strategy "wild"'):
        Plan(graph, (), f"wild:seed={seed},fault=yes")
