"""Streams and events, on a fake device whose streams are late in different ways."""

import ctypes

import numpy as np
import pytest

import mge
import mge.functional as F
from mge import nativeplan
from tests.core.native.plans import BINARY, compiled_plan, random_function, run


@pytest.fixture
def fake(native_device, library):
    """The device, and the fake's own functions."""
    found = ctypes.CDLL(library("fake_async"))
    found.fake_delay(300)
    found.fake_fail(-1)
    yield native_device("fake_async"), found
    found.fake_fail(-1)


def values(rng, device, count=4, shape=(8,)):
    return [
        mge.tensor(rng.standard_normal(shape).astype(np.float32), device=device)
        for _ in range(count)
    ]


def two_chains(length):
    def function(a, b):
        x, y = a, b
        for _ in range(length):
            x, y = x + a, y * b
        return x, y, x + y

    return function


def test_two_streams_run_side_by_side(fake):
    device, library = fake
    a, b = values(np.random.default_rng(0), device, 2)
    plan, buffers, _ = compiled_plan(lambda x, y: two_chains(6)(x, y)[:2], a, b)
    assert len({s.slot.stream for s in plan.steps}) >= 2
    library.fake_delay(3000)
    library.fake_most_running()
    results = run(plan, buffers)
    assert library.fake_most_running() >= 2
    x, y = a.numpy(), b.numpy()
    for _ in range(6):
        x, y = x + a.numpy(), y * b.numpy()
    assert np.array_equal(results[0], x) and np.array_equal(results[1], y)


@pytest.mark.parametrize("seed", range(10))
def test_random_plans_give_the_numbers_of_ref(fake, seed):
    rng = np.random.default_rng(seed)
    device, _ = fake
    mine = values(rng, device)
    function = random_function(rng, 30, binary=BINARY[:2], unary=None)
    plan, buffers, _ = compiled_plan(function, *mine)
    refs = [mge.tensor(x.numpy(), device="ref:0") for x in mine]
    wanted = [t.numpy() for t in function(*refs)]
    for _ in range(2):
        for x, y in zip(run(plan, buffers), wanted):
            assert x.tobytes() == y.tobytes()


@pytest.mark.parametrize("seed", range(6))
def test_random_plans_with_steps_on_the_host(fake, seed):
    """Steps of the host read what streams wrote, and the other way round."""
    rng = np.random.default_rng(seed)
    device, _ = fake
    mine = values(rng, device, shape=(4, 4))
    function = random_function(rng, 24, binary=BINARY[:2], unary=[F.sin, lambda x: -x])
    plan, buffers, _ = compiled_plan(function, *mine)
    refs = [mge.tensor(x.numpy(), device="ref:0") for x in mine]
    for x, y in zip(run(plan, buffers), function(*refs)):
        assert x.tobytes() == y.numpy().tobytes()


def test_the_fake_gives_wrong_numbers_where_events_are_ignored(fake, monkeypatch):
    """So the tests above would see a missing wait."""
    device, _ = fake
    monkeypatch.setattr(nativeplan, "_waits", lambda plan: {})
    wrong = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        mine = values(rng, device)
        function = random_function(rng, 30, binary=BINARY[:2], unary=None)
        plan, buffers, _ = compiled_plan(function, *mine)
        refs = [mge.tensor(x.numpy(), device="ref:0") for x in mine]
        pairs = zip(run(plan, buffers), function(*refs))
        wrong += any(x.tobytes() != y.numpy().tobytes() for x, y in pairs)
    assert wrong >= 2


def test_memory_is_not_shared_with_what_may_still_run(fake):
    """A value of one stream keeps its place while another stream may still run before or beside it."""
    device, _ = fake
    a, b = values(np.random.default_rng(3), device, 2, (64,))
    plan, _, _ = compiled_plan(two_chains(8), a, b)
    waits = nativeplan._waits(plan)
    lanes = [nativeplan._lane(s) for s in plan.steps]
    assert sum(len(w) for w in waits.values()) <= 2, (
        "chains wait for each other only where they meet"
    )
    assert len(set(lanes)) >= 2


def test_a_failing_step_waits_for_the_streams(fake):
    device, library = fake
    a, b = values(np.random.default_rng(0), device, 2)
    plan, buffers, _ = compiled_plan(two_chains(5), a, b)
    good = run(plan, buffers)
    library.fake_fail(4)
    with pytest.raises(Exception, match="on fake_async:0: planned") as caught:
        run(plan, buffers)
    assert plan.bound.native.step == 4, caught
    library.fake_fail(-1)
    assert [x.tobytes() for x in run(plan, buffers)] == [x.tobytes() for x in good]


def test_streams_and_events_go_with_their_plan(fake):
    import gc

    from mge.cache import PLANS

    device, library = fake
    PLANS.clear()
    gc.collect()
    before = library.fake_live()
    a, b = values(np.random.default_rng(0), device, 2)
    plan, _, _ = compiled_plan(two_chains(5), a, b)
    assert library.fake_live() > before
    del plan
    PLANS.clear()
    gc.collect()
    assert library.fake_live() <= before + 1, "one stream stays, for kernels that run by themselves"
