"""Memory strategies of plugins: picked up by name, and every schedule and layout checked before it is used."""

import re
from pathlib import Path

import numpy as np
import pytest

import mge
import mge.functional as F
import mge.module as M
from mge.autodiff import GradManager
from mge.debug import debug
from mge.errors import ArgumentError, OutOfMemory, PluginContractError
from mge.jit import trace
from mge.memory import current_strategy, find_strategy
from mge.optimizer import SGD

# Drops every cheap result of the forward phase, computes it again where it is read, and runs first what frees most.
FORGET = """
    from collections import Counter
    from mge.plugin import Free, MemoryReport, MemorySchedule, MemoryStrategy, Run

    CHEAP = {"add", "mul", "sub", "relu", "sigmoid", "batch_norm_train"}


    class Forget(MemoryStrategy):
        name = "acme"
        options = {"keep": 0, "max_slowdown": None, "eager": False, "word": "a"}

        def plan(self, request):
            values, maker = request.values, {v: n for n in request.nodes for v in n.outputs}
            reads = Counter(v for n in request.nodes for v in n.inputs)
            forward = [n for n in request.nodes if n.phase == "forward"]
            cheap = {v for n in forward[request.options["keep"]:] if n.op in CHEAP for v in n.outputs}
            cheap = {v for v in cheap if not values[v].pinned and maker[v].is_pure}
            there = {v.number for v in values if v.pinned in ("input", "parameter", "constant")}
            steps = []

            def run(node):
                for v in node.inputs:
                    if v not in there:
                        run(maker[v])
                steps.append(Run(node.number))
                there.update(node.outputs)

            for node in forward:
                run(node)
                reads.subtract(node.inputs)
            steps += [Free(v) for v in sorted(there & cheap)]
            there -= cheap

            def gain(node):
                dying = sum(values[v].nbytes for v in set(node.inputs) if reads[v] == 1)
                return dying - sum(values[v].nbytes for v in node.outputs)

            rest = [n for n in request.nodes if n.phase != "forward"]
            while rest:
                ready = [n for n in rest if all(v in there or v in cheap for v in n.inputs)]
                node = max(ready, key=lambda n: (n.phase != "update", gain(n)))
                run(node)
                reads.subtract(node.inputs)
                rest.remove(node)
            peak = request.measure(steps)
            ns = sum(request.nodes[s.node].time_ns for s in steps if isinstance(s, Run))
            report = MemoryReport(ns, peak, 0, "it keeps what costs most")
            return MemorySchedule(steps, peak, report)
"""


class Mlp(M.Module):
    """Layers with SiLU, written out: sigmoid and product are worth forgetting."""

    def __init__(self):
        super().__init__()
        self.layers = [M.Linear(32, 32) for _ in range(6)]

    def forward(self, x):
        for layer in self.layers:
            h = layer(x)
            x = F.sigmoid(h) * h
        return x.mean(axis=1)


class Convnet(M.Module):
    """Convolutions with batch norm, ReLU and a skip connection."""

    def __init__(self):
        super().__init__()
        self.first = M.Conv2d(2, 8, 3, padding=1)
        self.convs = [M.Conv2d(8, 8, 3, padding=1) for _ in range(3)]
        self.norms = [M.BatchNorm2d(8) for _ in range(3)]
        self.drop = M.Dropout(0.25)

    def forward(self, x):
        x = self.first(x)
        for conv, norm in zip(self.convs, self.norms):
            x = F.relu(norm(conv(x))) + x * 0.5
        return self.drop(x).mean(axis=(1, 2, 3))


def train(make, shape, strategy):
    """Train for a few steps; return the losses, the parameters, and the plan."""
    mge.random.seed(7)
    model = make()
    manager = GradManager().attach(model.parameters())
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)

    @trace(memory=strategy)
    def step(x, y):
        with manager:
            loss = F.square(model(x) - y).mean()
            manager.backward(loss)
        optimizer.step().clear_grad()
        return loss

    rng, losses = np.random.default_rng(3), []
    for _ in range(4):
        x = mge.tensor(rng.normal(size=shape).astype("float32"))
        y = mge.tensor(rng.normal(size=shape[:1]).astype("float32"))
        losses.append(step(x, y).item())
    state = [np.array(p.numpy()) for p in (*model.parameters(), *model.buffers())]
    (compiled,) = step.last.plans.values()
    return losses, state, compiled.plan


def add(here, source):
    here.add("acme-memory", {"mge.memory": {"acme": "acme_memory:Forget"}}, {"acme_memory": source})


@pytest.mark.parametrize(
    ("make", "shape", "share"), [(Mlp, (64, 32), 0.7), (Convnet, (6, 2, 9, 9), 0.9)]
)
def test_a_strategy_that_forgets_trains_the_same_in_less_memory(here, make, shape, share):
    add(here, FORGET)
    wanted, state, static = train(make, shape, "static")
    losses, state_too, plan = train(make, shape, "acme")
    assert losses == wanted
    assert all(np.array_equal(a, b) for a, b in zip(state, state_too))
    assert plan.memory.arena_bytes < share * static.memory.arena_bytes
    assert len(plan.steps) > len(static.steps), "nothing was computed again"
    assert plan.report.floor_bytes == plan.peak_bytes and plan.report.predicted_ns > 0


def test_the_strategy_of_the_documents_works(here):
    text = (Path(__file__).parents[3] / "docs" / "plugins.md").read_text()
    (source,) = [
        b for b in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "class Forget" in b
    ]
    add(here, source.replace('"forget"', '"acme"'))
    losses, _, plan = train(Mlp, (64, 32), "acme:op=sigmoid")
    wanted, _, static = train(Mlp, (64, 32), "static")
    assert losses == wanted and len(plan.steps) > len(static.steps)


def test_phases_and_costs_reach_the_strategy(here):
    seen = "\n        seen = []\n\n        def plan(self, request):\n            self.seen.append(request)"
    add(here, FORGET.replace("\n        def plan(self, request):", seen, 1))
    train(Mlp, (64, 32), "acme")
    import acme_memory

    (request,) = acme_memory.Forget.seen
    phases = [n.phase for n in request.nodes]
    assert {"forward", "backward", "update"} == set(phases)
    first = phases.index("backward")
    assert "forward" not in phases[first:] and "update" not in phases[:first]
    assert phases[-1] == "update" and "backward" in phases[phases.index("update") :]
    linear = next(n for n in request.nodes if n.op == "linear")
    assert linear.time_ns == pytest.approx(
        64 * 32 * 32 * 2 / 350 + 4 * (2 * 64 * 32 + 32 * 33) / 20
    )
    assert "test_strategies.py:" in linear.place and not linear.is_measured
    assert {x.device for x in (*request.nodes, *request.values)} == {"ref:0"}
    update = next(n for n in request.nodes if n.phase == "update")
    assert all(request.values[a].pinned in ("parameter", "input") for a, _ in update.inplace)
    in_order = [acme_memory.Run(n.number) for n in request.nodes]
    assert request.measure(in_order) > request.measure(acme_memory.Forget().plan(request).steps)


# By name.


def test_options_are_those_that_the_strategy_declares(here):
    add(here, FORGET)
    for given, text in [
        ({"budget": "2GB", "keep": 3}, "acme:budget=2GB,keep=3"),
        (
            {"max_slowdown": 0.1, "eager": True, "word": "b"},
            "acme:eager=True,max_slowdown=0.1,word=b",
        ),
    ]:
        with mge.memory("acme", **given):
            assert current_strategy() == text
    choice = find_strategy("acme:eager=true, max_slowdown=0.1")
    assert choice.options == {"keep": 0, "max_slowdown": 0.1, "eager": True, "word": "a"}
    with pytest.raises(
        ArgumentError, match=r"no option 'depth'; it takes budget, replan, keep, max_slowdown"
    ):
        mge.memory("acme", depth=3).__enter__()
    with pytest.raises(
        ArgumentError, match="option keep of strategy \"acme\" is 'many'; it must be a whole number"
    ):
        trace(lambda x: x, memory="acme:keep=many")


def test_options_are_part_of_the_key(here, counts):
    add(here, FORGET)
    x = mge.tensor(np.eye(4, dtype="float32"))
    for options in ({}, {"keep": 1}, {"keep": 2}, {"keep": 1}, {}):
        with mge.memory("acme", **options):
            assert (F.relu(x @ x) + x).numpy()[0, 0] == 2
    assert counts.plans_compiled == 3 and counts.first_sight_runs == 0


def test_the_environment_names_a_strategy_with_options(site):
    add(site, FORGET)
    code = """
        import mge
        try:
            print((mge.tensor([[1.0, 2.0]]) @ mge.tensor([[1.0], [1.0]])).item())
        except mge.OutOfMemory as error:
            print(error)
    """
    assert site.python(code, MGE_MEMORY="acme:budget=1MB,keep=2")[0] == "3.0\n"
    printed, _ = site.python(code, MGE_MEMORY="acme:budget=8")
    assert (
        'needs 64 bytes at its peak and 8 may be used (the budget of memory strategy "acme")'
        in printed
    )


@pytest.mark.parametrize("budget", ["50%", 100_000])
def test_a_plan_over_budget_says_the_floor_before_it_runs(here, counts, budget):
    add(here, FORGET)
    with pytest.raises(OutOfMemory) as caught:
        train(Convnet, (6, 2, 30, 30), f"acme:budget={budget}")
    text = str(caught.value)
    assert 'may be used (the budget of memory strategy "acme")' in text
    assert (
        "floor: " in text
        and "bytes, set by node 0 (" in text
        and "it keeps what costs most" in text
    )
    assert counts.plans_run == 0


def test_a_budget_between_the_two_peaks_is_kept(here):
    add(here, FORGET)
    _, _, static = train(Mlp, (64, 32), "static")
    with pytest.raises(OutOfMemory, match='budget of memory strategy "static"'):
        train(Mlp, (64, 32), "static:budget=95%")
    _, _, plan = train(Mlp, (64, 32), "acme:budget=95%")
    assert plan.peak_bytes <= 0.95 * static.peak_bytes


# Wrong ones.

WRONG = """
    from mge.plugin import Free, MemoryReport, MemorySchedule, MemoryStrategy, Run

    class Forget(MemoryStrategy):
        name = "acme"

        def plan(self, request):
            nodes = {n.number: n for n in request.nodes}
            order = [Run(i) for i in nodes]
            call = next(n for n in request.nodes if n.op == "host_call")
            last = [n for n in request.nodes if n.op == "host_call"][-1]
            product = next(n for n in request.nodes if n.op == "matmul")
            result = next(v for v in request.values if v.pinned == "output")
            CODE
"""
SCHEDULES = {
    "early": (
        "return MemorySchedule(order[::-1])",
        r"step 0 runs node .* which reads value .* before it is computed",
    ),
    "freed": (
        "return MemorySchedule([*order[:1], Free(nodes[0].outputs[0]), *order[1:]])",
        r"step 2 runs node 1 \(.*test_strategies.py:.*reads value .* \(f32\[8, 8\] of matmul .*after it was freed",
    ),
    "never": ("return MemorySchedule(order[:-1])", "never runs node"),
    "impure": (
        "return MemorySchedule([*order[:call.number + 1], Run(call.number), *order[call.number + 1:]])",
        r"runs node . \(host_call.* again, and the op is not pure",
    ),
    "order": (
        "return MemorySchedule([Run(last.number - 1), Run(last.number), *order])",
        r"runs node . \(host_call.* after node . \(host_call.* keep their order",
    ),
    "input": (
        "return MemorySchedule([Free(0), *order])",
        "step 0 frees value 0 .*which is not the plan's",
    ),
    "twice": (
        "return MemorySchedule([Free(product.outputs[0]), *order])",
        "step 0 frees value .* which is not there",
    ),
    "output": (
        "return MemorySchedule([*order, Free(result.number)])",
        "freed value .* which is a result of the plan",
    ),
    "odd": ("return MemorySchedule([3, *order])", r"step 0 is 3; it must be Run of one of . nodes"),
    "range": ("return MemorySchedule([Run(99), *order])", r"step 0 is Run\(node=99"),
    "lie": (
        "return MemorySchedule(order, request.measure(order) - 64)",
        "stated a peak of .* bytes, and its plan takes",
    ),
    "kind": ("return order", "gave .Run.*; it must give a MemorySchedule of a list, or None"),
    "raises": ("raise KeyError(7)", "failed: KeyError: 7"),
    "steps": ("return MemorySchedule(None)", "it must give a MemorySchedule of a list, or None"),
    "float": ("return MemorySchedule([Run(0.0), *order])", r"step 0 is Run\(node=0.0"),
    "peak": ("return MemorySchedule(order, 'little')", "stated a peak of 'little' bytes"),
    "report": (
        "return MemorySchedule(order, None, 'hello')",
        "gave the report 'hello'; it must be",
    ),
    "floor": (
        "from mge.plugin import MemoryReport; return MemorySchedule(order, None, MemoryReport(0, 'x'))",
        "gave the report .*'x'.*; it must be a MemoryReport, or None",
    ),
    "exits": ("raise SystemExit(3)", "failed: SystemExit: 3"),
    "measures": ("request.measure(order[:-1])", "never runs node"),
}


@pytest.fixture
def work():
    """A traced function with two calls of Python, and no plan yet."""

    def note(x):
        return x + 1

    @trace
    def work(x):
        y = mge.host_call(note, [((8, 8), "float32")], (x @ x) * 0.5)
        return (y + mge.host_call(note, [((8, 8), "float32")], x * 0.25)).sum()

    return work


EYE = np.eye(8, dtype="float32")
SUM = 8 * 0.75 + 64 * 2


@pytest.mark.parametrize("fault", SCHEDULES)
def test_a_wrong_schedule_is_refused_by_name(here, work, fault):
    code, text = SCHEDULES[fault]
    add(here, WRONG.replace("CODE", code))
    with (
        mge.memory("acme"),
        pytest.raises(PluginContractError, match=f'memory strategy "acme".*{text}'),
    ):
        work(mge.tensor(EYE)).numpy()
    assert work(mge.tensor(EYE)).item() == SUM  # without it


def test_a_schedule_that_keeps_the_order_runs(here, work):
    add(here, WRONG.replace("CODE", "return MemorySchedule(order, request.measure(order))"))
    with mge.memory("acme"), debug(check=1):
        assert work(mge.tensor(EYE)).item() == SUM


# Layouts.

LAYOUT = """
    from mge.plugin import MemoryStrategy

    class Forget(MemoryStrategy):
        name = "acme"

        def layout(self, values, alignment):
            top, offsets = 0, []
            for value in values:
                offsets.append(top)
                top += -(-value.nbytes // alignment) * alignment
            CODE
"""
LAYOUTS = {
    "overlap": ("return [0] * len(offsets)", "put .* over .*, and both are live"),
    "odd": ("return [o + 4 for o in offsets]", "multiples of 64"),
    "short": ("return offsets[1:]", "gave . offsets for . values"),
    "raises": ("raise KeyError(7)", "failed: KeyError: 7"),
    "fraction": ("return [float(o) for o in offsets]", "gave a layout .*; it must be offsets"),
    "far": (
        "return [*offsets[:-1], 2**50]",
        "gave a layout .*; it must be offsets .* close together",
    ),
    "kind": ("return [None] * len(offsets)", "gave a layout .*; it must be offsets in bytes"),
}


def test_a_layout_is_used(here, work):
    add(here, LAYOUT.replace("CODE", "return offsets"))
    with mge.memory("acme"):
        assert work(mge.tensor(EYE)).item() == SUM
    (compiled,) = work.last.plans.values()
    memory = compiled.plan.memory
    assert memory.arena_bytes == 64 + sum(256 for _ in memory.offsets[1:]) or memory.offsets[
        :2
    ] == [0, 256]


@pytest.mark.parametrize("fault", LAYOUTS)
def test_a_wrong_layout_is_refused_by_name(here, work, fault):
    code, text = LAYOUTS[fault]
    add(here, LAYOUT.replace("CODE", code))
    with (
        mge.memory("acme"),
        pytest.raises(PluginContractError, match=f'memory strategy "acme" .*{text}'),
    ):
        work(mge.tensor(EYE)).numpy()
    assert work(mge.tensor(EYE)).item() == SUM
