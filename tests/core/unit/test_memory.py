"""Memory: storages that are shared, views that are free, offsets that are verified, limits, and the pool."""

import gc

import numpy as np
import pytest

import mge
import mge.functional as F
from mge.buffer import Pool, aligned_bytes
from mge.debug import debug
from mge.device import as_device, parse_bytes
from mge.errors import ArgumentError, OutOfMemory, PluginContractError, PluginNotInstalled
from mge.jit import trace
from mge.memory import (
    ALIGNMENT,
    STRATEGIES,
    Interval,
    current_strategy,
    live_bytes,
    memory,
    plan_memory,
    rounded,
    verify_offsets,
    with_options,
)
from mge.plan import Plan
from mge.strategy import MemoryStrategy


def ones(*shape):
    return mge.tensor(np.ones(shape, np.float32))


def plan_of(function, *arguments, donated=(), strategy="static"):
    """Return the plan of a function's graph, as the trace compiles it."""
    traced = trace(function)
    with debug(memory_limit=""):
        traced(*arguments)
        graph = mge.passes.optimise(traced.last.graph)
    return Plan(graph, donated, strategy)


def kinds(plan):
    return [s.kind for s in plan.storages]


# In place.


def test_a_chain_is_computed_in_place():
    plan = plan_of(lambda x: F.exp(F.exp(F.exp(x + 1.0) * 2.0) - 3.0), ones(100))
    assert len(plan.steps) == 6
    assert kinds(plan).count("result") == 1 and "arena" not in kinds(plan)
    assert plan.peak_bytes == rounded(400)


def test_a_value_that_is_read_later_is_not_overwritten():
    plan = plan_of(lambda x: (lambda a: F.exp(a) * a)(x + 1.0), ones(100))
    a, e, product = (plan.values[s.outputs[0]].storage for s in plan.steps)
    assert a != e and product in (a, e)


def test_an_input_is_overwritten_only_if_it_is_donated_and_at_the_end():
    def step(w, x):
        loss = (w * x).sum()
        return w - x, loss

    kept = plan_of(step, ones(100), ones(100))
    assert kept.overwrites == [] and "input" not in {
        kept.storages[kept.values[v].storage].kind for v in kept.outputs
    }
    donated = plan_of(step, ones(100), ones(100), donated=(0,))
    assert donated.overwrites == [0]
    assert donated.overwrites_from == len(donated.steps) - 1, "the overwrite runs last"
    assert donated.steps[-1].slot.node.sig.op.name == "sub"


def test_an_operand_of_another_type_is_not_written_over():
    plan = plan_of(lambda x: ((x + 1.0) > 0.0, (x + 2.0).astype("float16")), ones(100))
    storages = {plan.values[v].storage for v in plan.outputs}
    assert len(storages) == 2 and all(plan.storages[s].kind == "result" for s in storages)


def test_an_op_that_reads_one_input_twice_is_not_in_place():
    plan = plan_of(lambda x: (lambda a: a @ a)(x + 1.0), ones(10, 10))
    a, product = (plan.values[s.outputs[0]].storage for s in plan.steps)
    assert a != product


# Views.


def test_views_take_no_step_and_no_memory():
    def step(x):
        y = (x * 2.0).reshape(6, 4)
        return F.expand_dims(y, 0).reshape(24) + 1.0

    plan = plan_of(step, ones(4, 6))
    assert [s.slot.node.sig.op.name for s in plan.steps] == ["mul", "add"]
    assert plan.peak_bytes == rounded(96)


def test_a_view_keeps_what_it_views_alive_and_unwritten():
    def step(x):
        a = x * 2.0
        view = a.reshape(-1)
        b = a + 1.0  # must not be written over a: the view is a result
        return view, b

    plan = plan_of(step, ones(4, 6))
    view, b = (plan.values[v].storage for v in plan.outputs)
    assert view != b
    traced = trace(step)
    for _ in range(2):
        view, b = traced(ones(4, 6))
        assert (view.numpy() == 2).all() and (b.numpy() == 3).all()


def test_a_view_of_an_input_is_the_input():
    traced = trace(lambda x: (x.reshape(-1), x.reshape(2, 2)))
    for _ in range(2):
        x = ones(4, 1)
        a, b = traced(x)
        assert a.numpy().ctypes.data == b.numpy().ctypes.data == x.numpy().ctypes.data
        x += 1
        assert (a.numpy() == 1).all() and (x.numpy() == 2).all()


def test_two_results_that_are_views_of_one_buffer_keep_it():
    traced = trace(lambda x: (lambda y: (y.reshape(2, 2), y))(x * 2.0))
    for _ in range(3):
        a, b = traced(ones(4))
        del b
        gc.collect()
        for _ in range(3):
            (ones(4) * 5.0).numpy()
        assert (a.numpy() == 2).all()


# Offsets.


@pytest.mark.parametrize("strategy", ["static", "naive"])
def test_offsets_are_aligned_and_verified(strategy):
    def step(x):
        made = [F.exp(x * float(i)) for i in range(6)]
        total = made[0]
        for m in made[1:]:
            total = total @ m
        return total

    plan = plan_of(step, ones(30, 30), strategy=strategy)
    offsets = plan.memory.offsets
    assert offsets and all(o % ALIGNMENT == 0 for o in offsets)
    arena = [s for s in plan.storages if s.kind == "arena"]
    assert max(o + s.nbytes for o, s in zip(offsets, arena)) <= plan.memory.arena_bytes
    assert plan.memory.arena_bytes < sum(rounded(s.nbytes) for s in arena) or len(arena) == 1


def test_static_is_no_worse_than_naive():
    intervals = [Interval(i, i + 2 + i % 3, 64 * (1 + (7 * i) % 5)) for i in range(40)]
    assert (
        plan_memory(intervals, "static").arena_bytes <= plan_memory(intervals, "naive").arena_bytes
    )


def test_the_peak_is_at_least_what_is_live():
    intervals = [Interval(0, 3, 100), Interval(1, 2, 300), Interval(3, 3, 64), Interval(2, 5, 0)]
    plan = plan_memory(intervals, "static")
    assert plan.live_bytes == live_bytes(intervals) == [128, 448, 448, 192, 0, 0]
    assert plan.arena_bytes >= 448


class Careless(MemoryStrategy):
    def layout(self, values, alignment):
        return [0] * len(values)


def test_a_planted_overlap_is_refused_by_name(monkeypatch, counts):
    monkeypatch.setitem(STRATEGIES, "careless", Careless())
    x = ones(10, 10)
    with memory("careless"):
        y = (x @ x) @ (x @ (x + 1.0))
        with pytest.raises(
            PluginContractError,
            match=r'memory strategy "careless" put .* over .*, and both are live',
        ) as caught:
            y.numpy()
    assert "f32[10, 10] of" in str(caught.value) and "test_memory.py" in str(caught.value)
    assert y.numpy().shape == (10, 10)  # without that strategy


@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        ([0, 32], "multiples of 64"),
        ([0, -64], "inside"),
        ([0, 4096], "inside"),
        ([0], "1 offsets for 2 values"),
    ],
)
def test_offsets_that_cannot_be(offsets, text):
    with pytest.raises(PluginContractError, match=text):
        verify_offsets(
            [Interval(0, 1, 64, "one"), Interval(1, 2, 64, "two")], offsets, 1024, "planted"
        )


def test_a_strategy_that_is_not_there(counts):
    with pytest.raises(PluginNotInstalled, match='"nothing" was asked for') as caught:
        memory("nothing").__enter__()
    assert "usable: static, naive" in str(caught.value) and __file__ in str(caught.value)
    assert current_strategy() == "static"
    with memory("naive"):
        assert current_strategy() == "naive"
        with memory("static"):
            assert current_strategy() == "static"
    with debug(memory="naive"):
        assert current_strategy() == "naive"


@pytest.mark.parametrize("text", ["static:budget=64KB", "naive:budget=64000"])
def test_a_plan_over_its_budget_is_refused_before_it_runs(counts, text):
    x = ones(100, 100)
    name = text.partition(":")[0]
    with memory(text), pytest.raises(OutOfMemory, match=f'budget of memory strategy "{name}"'):
        (F.exp(x) @ F.log(x)).numpy()
    assert counts.plans_run == counts.first_sight_runs == 0
    with memory(name, budget=10**6):
        assert (F.exp(x) @ F.log(x)).numpy().shape == (100, 100)


def test_a_share_binds_what_waits_for_the_backward_phase(counts):
    """Filling parameters and evaluation have nothing to give up: a share is an aim for them, and bytes a limit."""
    mge.random.seed(1)
    layer = mge.module.Linear(64, 64)
    manager = mge.autodiff.GradManager().attach(layer.parameters())
    x = ones(32, 64)

    def train():
        with manager:
            loss = F.square(F.sigmoid(layer(x))).mean()
            manager.backward(loss)
        return loss

    with memory("static", budget="10%"):
        wanted = layer.weight.numpy(), layer.bias.numpy(), F.exp(layer(x)).numpy()
        assert all(np.isfinite(a).all() for a in wanted)
        before = counts.plans_run
        for step in (train, trace(train)):
            with pytest.raises(OutOfMemory, match="the budget of memory strategy"):
                step().numpy()
        assert counts.plans_run == before
    with memory("static", budget="1KB"), pytest.raises(OutOfMemory, match="1,000 may be used"):
        F.exp(layer(x)).numpy()


class Picky(MemoryStrategy):
    options = {"depth": 3, "share": None, "is_fast": False}

    def check(self, name, value):
        if name == "depth" and value < 1:
            return "1 or more, as 3"
        if name == "share" and value > 100:
            raise KeyError(7)
        return None


def test_a_strategy_checks_options_as_they_are_stated(monkeypatch, counts):
    monkeypatch.setitem(STRATEGIES, "picky", Picky())
    with memory("picky", depth=1, share=2.5), memory("picky:depth=2,is_fast=1"):
        assert float((ones(2) + 1).sum()) == 4
    text = 'memory: option depth of strategy "picky" is 0; it must be 1 or more, as 3'
    with pytest.raises(ArgumentError, match=text) as caught:
        memory("picky", depth=0).__enter__()
    assert "test_memory.py:" in str(caught.value)
    assert "try: leave it out (default: 3)" in str(caught.value)
    with pytest.raises(ArgumentError, match=text):
        trace(lambda x: x, memory="picky:depth=0")
    with debug(memory="picky:depth=0"), pytest.raises(ArgumentError, match=text):
        (ones(2) + 2).numpy()  # as MGE_MEMORY: at first use
    for name, value in [("is_fast", "yes"), ("depth", 1.5), ("share", "nan"), ("share", "inf")]:
        with pytest.raises(ArgumentError, match=f"option {name} .* must be a|true or false"):
            memory("picky", **{name: value}).__enter__()
    with pytest.raises(PluginContractError, match='memory strategy "picky" failed: KeyError: 7'):
        memory("picky", share=101).__enter__()


@pytest.mark.parametrize(
    ("text", "options", "rule"),
    [
        ("static:budget=1GB,budget=2GB", {}, "budget .* is '1GB, 2GB'; it must be given once"),
        ("static:budget=1GB", {"budget": "2GB"}, "budget .* is '1GB, 2GB'; it must be given once"),
        ("static:", {}, "takes no option ''; it takes budget"),
        ("static:budget=1GB,", {}, "takes no option ''; it takes budget"),
    ],
)
def test_texts_that_say_nothing_or_say_it_twice(text, options, rule):
    with pytest.raises(ArgumentError, match=rule):
        memory(text, **options).__enter__()


def test_options_are_added_to_a_text():
    assert with_options("static") == "static"
    assert with_options("static", budget=5) == "static:budget=5"
    with pytest.raises(ArgumentError, match="given once"):
        with_options("static:budget=5", budget=6)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"seed": 3}, "strategy \"static\" takes no option 'seed'; it takes budget"),
        (
            {"budget": "much"},
            "budget of strategy .* is 'much'; it must be a size as 2GB, or a share",
        ),
        *(({"budget": b}, "it must be a size") for b in ("nan%", "inf%", "-5%", -1, "1e400", "")),
        ({"budget": "2,000"}, "option budget is '2,000'; it must hold no comma"),
        ({"budget": "x%"}, "it must be a size as 2GB, or a share as 50%"),
    ],
)
def test_options_that_cannot_be(options, text):
    with pytest.raises(ArgumentError, match=text):
        memory("static", **options).__enter__()


@pytest.mark.parametrize("name", [None, 3, ""])
def test_a_strategy_is_a_name(name):
    for options in ({}, {"budget": 1}):
        with pytest.raises(ArgumentError, match=f"memory: strategy is {name!r}; it must be a name"):
            memory(name, **options).__enter__()


def test_an_empty_variable_is_the_default(counts):
    with debug(memory=""):
        assert current_strategy() == "static" and float((ones(2, 2) * 2).sum()) == 8


# Limits.


def test_the_limit_says_peak_limit_and_the_largest_values(counts):
    x = ones(100, 100)
    with debug(memory_limit="64KB"):
        y = F.exp(x) @ F.log(x)
        with pytest.raises(OutOfMemory) as caught:
            y.numpy()
    text = str(caught.value)
    assert "bytes at its peak and 64,000 may be used (MGE_MEMORY_LIMIT)" in text
    assert "largest: 40,000 bytes f32[100, 100] of" in text and "test_memory.py:" in text
    assert "try: a smaller batch" in text
    assert isinstance(caught.value, MemoryError)
    assert y.numpy()[0, 0] == 0


def test_under_the_limit_it_runs(counts):
    with debug(memory_limit="1MB"):
        for _ in range(3):
            assert (F.exp(ones(100, 100)) @ ones(100, 1)).numpy()[0, 0] == pytest.approx(
                100 * np.e, rel=1e-5
            )


def test_a_traced_function_over_the_limit():
    traced = trace(lambda x: F.exp(x) @ F.log(x))
    with debug(memory_limit="64KB"), pytest.raises(OutOfMemory, match="64,000 may be used"):
        traced(ones(100, 100))
    assert traced(ones(100, 100)).shape == (100, 100)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("2GB", 2 * 10**9),
        ("512MiB", 512 << 20),
        ("1000000", 10**6),
        ("1.5 kb", 1500),
        (77, 77),
        ("8b", 8),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes_as_text(text, nbytes):
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "many", "12 parsecs", "GB", "--3"])
def test_what_is_no_size(text):
    with pytest.raises(ArgumentError, match="is no size"):
        parse_bytes(text)


# The pool and the arena.


def test_blocks_are_aligned_and_come_back():
    pool = Pool()
    blocks = [pool.take(n) for n in (0, 1, 64, 65, 1000, 5000, 100_000)]
    assert all(b.ctypes.data % 64 == 0 for b in blocks)
    assert all(b.nbytes >= n for b, n in zip(blocks, (0, 1, 64, 65, 1000, 5000, 100_000)))
    assert (
        pool.live_blocks == 7
        and pool.in_use_bytes == sum(b.nbytes for b in blocks) == pool.peak_bytes
    )
    address = blocks[-1].ctypes.data
    for b in blocks:
        pool.give(b)
    assert pool.live_blocks == pool.in_use_bytes == 0 and pool.cached_bytes == sum(
        b.nbytes for b in blocks
    )
    assert pool.take(100_000).ctypes.data == address, "a block that came back is used again"
    pool.trim()
    assert pool.cached_bytes == 0


def test_blocks_waste_little():
    for n in (1, 63, 64, 100, 999, 4097, 70_000, 1_000_001, 123_456_789):
        size = Pool.rounded(n)
        assert size >= n and size % 64 == 0
        assert size <= max(64, n * 1.13 + 64)


def test_the_cache_of_the_pool_is_bounded():
    pool = Pool()
    pool.cache_limit_bytes = 10_000
    for _ in range(3):
        blocks = [pool.take(4000) for _ in range(6)]
        for b in blocks:
            pool.give(b)
        assert pool.cached_bytes <= 10_000


def test_arrays_are_aligned():
    for n in (1, 3, 64, 1000):
        assert aligned_bytes(n).ctypes.data % 64 == 0
    x = mge.eval(ones(3) + 1)
    assert x.numpy().ctypes.data % 64 == 0


def test_plans_share_one_arena(counts):
    device = as_device("ref")
    for n in (10, 40, 20):
        x = ones(n, n)
        for _ in range(3):
            (((x @ x) + 1.0) @ (x @ x)).numpy()
    arena = device.arena
    assert arena.nbytes >= 2 * 40 * 40 * 4
    x = ones(10, 10)
    (((x @ x) + 1.0) @ (x @ x)).numpy()
    assert device.arena is arena


def test_a_result_is_never_in_the_arena(counts):
    x = ones(20, 20)
    trace(lambda x: F.exp(x @ x) @ x)(x).numpy()  # so that there is an arena
    results = []
    for i in range(5):
        y = (x @ x) * float(i)
        results.append((y @ x, y))
        mge.sync()
    for i, (z, y) in enumerate(results):
        assert y.numpy()[0, 0] == 20 * i and z.numpy()[0, 0] == 400 * i
        arena = as_device("ref").arena
        start = arena.ctypes.data
        assert not start <= z.numpy().ctypes.data < start + arena.nbytes


def test_the_plan_as_text():
    plan = plan_of(lambda x: F.exp(x) @ x, ones(4, 4))
    text = str(plan)
    assert text.startswith("plan: 2 steps, arena ") and f"peak {plan.peak_bytes} bytes" in text
    assert (
        "= exp(" in text and "= matmul(" in text and text.splitlines()[-1].startswith("returns v")
    )


def test_largest_and_timeline():
    plan = plan_of(lambda x: (F.exp(x) @ x).sum(), ones(40, 40))
    assert plan.largest(1)[0][0] == 6400 and "f32[40, 40] of" in plan.largest(1)[0][1]
    assert len(plan.timeline()) == len(plan.steps) and max(plan.timeline()) <= plan.peak_bytes
