"""The planner's second plan, by measured times: planted here, so that what was computed twice turns out to be dear."""

import threading
from collections import Counter

import numpy as np
import pytest

import mge
import mge.functional as F
from mge.autodiff import GradManager
from mge.jit import trace
from mge.replan import TIMED, WARM, Trial

from .models import MODELS, prepare, same, train

CALLS = WARM + TIMED + 3


def twice(plan):
    """Return what a plan computes more than once."""
    runs = Counter(s.slot.node.sig for s in plan.steps)
    once = Counter(plan.once)
    return {sig for sig in runs if runs[sig] > once[sig]}


@pytest.fixture
def dear(monkeypatch):
    """Steps that the first plan computes twice take 1 s, all others 1 ms."""

    def see(self, plan, number, start, end):
        sig = plan.steps[number].slot.node.sig
        original(self, plan, number, 0, 10**9 if sig in twice(plan) else 10**6)

    original = Trial.see
    monkeypatch.setattr(Trial, "see", see)


@pytest.mark.parametrize(("name", "budget"), [("chain", 80), ("transformer", 70), ("dense", 80)])
def test_another_plan_keeps_the_budget_and_every_bit(on_device, dear, name, budget):
    wanted = train(name, "static", CALLS)
    text = f"sublinear:budget={budget}%,effort=0.2"
    first = train(name, text, 1)[2]
    run = train(name, text, CALLS)
    plan = run[2]
    assert same(run, wanted)
    assert twice(first) and plan.times and twice(plan) != twice(first)
    assert plan.peak_bytes <= budget / 100 * wanted[2].peak_bytes
    cost = {s: 1e9 if s in twice(first) else 1e6 for s in first.once}
    assert sum(cost[s.slot.node.sig] for s in plan.steps) < 0.98 * sum(
        cost[s.slot.node.sig] for s in first.steps
    )


@pytest.mark.parametrize(
    "strategy", ["sqrt", "dtr:evictee_minimum_size=0", "offload:minimum_size=0"]
)
def test_other_strategies_keep_their_bits(on_device, dear, strategy):
    run = train("resnet", strategy, CALLS)
    assert same(run, train("resnet", "static", CALLS))
    if strategy.startswith("offload"):
        assert not run[2].times, "what moves are worth, steps do not tell"


def test_real_times_keep_every_bit(on_device):
    assert same(train("resnet", "sublinear:budget=70%", CALLS), train("resnet", "static", CALLS))


def test_the_first_plan_stays_where_that_is_wanted(dear):
    text = "sublinear:budget=80%,effort=0.2"
    plans = [train("chain", f"{text},replan=false", count)[2] for count in (1, CALLS)]
    assert str(plans[0]) == str(plans[1]) and not plans[1].times


def test_calls_take_the_shortcut_again_after_the_trial(on_device, dear):
    """The arena is then as large as the new plan says: the old one is given up."""
    _, step = prepare("chain", "sublinear:budget=80%,effort=0.2")
    shape = MODELS["chain"][1]
    x, y = (mge.tensor(np.ones(s, "float32")) for s in (shape, shape[:1]))
    shortcuts = []
    for _ in range(CALLS):
        step(x, y).item()
        shortcuts.append(step.last.shortcut is not None)
    assert not any(shortcuts[: WARM + TIMED])
    assert shortcuts[-1] == (on_device == "x86")
    plan = step._last_plan("memory").plan
    assert plan.bound.arenas == {d: d.arena for d in plan.arenas}


def test_threads_run_while_the_plan_changes(on_device, dear):
    """They share the trace, its plans, and the arena."""
    net = MODELS["dense"][0]()
    manager = GradManager().attach(net.parameters())

    def step(x):
        with manager:
            loss = F.square(net(x)).mean()
            manager.backward(loss)
        grads = [p.grad for p in net.parameters()]
        for p in net.parameters():
            p.grad = None
        return [loss, *grads]

    data = np.random.default_rng(0).normal(size=MODELS["dense"][1]).astype("float32")
    wanted = [t.numpy() for t in trace(step)(mge.tensor(data))]
    traced, made = trace(step, memory="sublinear:budget=80%,effort=0.2"), []
    traced(mge.tensor(data))

    def work():
        for _ in range(CALLS):
            results = [t.numpy() for t in traced(mge.tensor(data))]
            made.append(all(map(np.array_equal, results, wanted)))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(made) == 3 * CALLS and all(made)
    assert traced._last_plan("memory").plan.times
