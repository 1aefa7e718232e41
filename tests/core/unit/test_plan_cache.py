"""The plan cache: what is in a key, when a plan is compiled, which plan may serve, and its bounds."""

import sys

import numpy as np
import pytest

import mge
import mge.functional as F
from mge import cache
from mge.cache import PLANS
from mge.debug import debug
from mge.memory import STRATEGIES, Naive, memory


def floats(*shape, value=1.0, dtype="float32"):
    return mge.tensor(np.full(shape, value), dtype=dtype)


def runs(counts):
    return counts.first_sight_runs, counts.plans_compiled, counts.plans_run


def test_first_sight_runs_the_steps_and_the_second_compiles(counts):
    for i, wanted in enumerate([(1, 0, 0), (1, 1, 1), (1, 1, 2), (1, 1, 3)]):
        x = floats(3, value=i)
        assert (F.exp(x) * 2 + 1).numpy()[0] == pytest.approx(2 * np.exp(i) + 1)
        assert runs(counts) == wanted


def test_code_whose_structure_changes_never_compiles(counts):
    x = floats(3)
    for n in range(1, 12):
        y = x
        for _ in range(n):
            y = y + 1
        y.numpy()
    assert runs(counts) == (11, 0, 0)


BASE = {
    "op": lambda: F.exp(floats(3)),
    "attribute": lambda: F.sum(floats(2, 3), axis=0),
    "wiring": lambda: (lambda x, y: x - y)(floats(3), floats(3)),
    "shape": lambda: floats(3) + 1,
    "dtype": lambda: floats(3) + 1,
    "slow leaf": lambda: floats(3) + 1,
}
OTHER = {
    "op": lambda: F.log(floats(3)),
    "attribute": lambda: F.sum(floats(2, 3), axis=1),
    "wiring": lambda: (lambda x: x - x)(floats(3)),
    "shape": lambda: floats(4) + 1,
    "dtype": lambda: floats(3, dtype="float64") + 1,
    "slow leaf": lambda: mge.Parameter(floats(3)) + 1,
}


@pytest.mark.parametrize("name", BASE)
def test_the_key_holds(name, counts):
    BASE[name]().numpy()
    OTHER[name]().numpy()
    assert runs(counts)[:2] == (2, 0), "two structures shared a key"
    BASE[name]().numpy()
    assert runs(counts) == (2, 1, 1)


def test_operands_in_another_order_are_another_structure(counts):
    x, y = floats(3, value=5), floats(3, value=2)
    total = x + y
    assert ((x - total).numpy()[0], counts.first_sight_runs) == (-2, 1)
    total = x + y
    assert ((total - x).numpy()[0], counts.first_sight_runs) == (2, 2)


def test_leaf_values_and_the_line_are_not_in_the_key(counts):
    (floats(3, value=1) * 2).numpy()
    (floats(3, value=7) * 3).numpy()
    assert runs(counts) == (1, 1, 1)


def test_names_of_handles_are_not_in_the_key(counts):
    x = floats(3)
    for name in "abc":
        x.name = name
        (x + 1).numpy()
    assert runs(counts) == (1, 1, 2)


def test_the_held_outputs_are_in_the_key(counts):
    x = floats(3)
    a = x + 1
    b = a * 2
    b.numpy()
    assert runs(counts) == (1, 0, 0)
    del a, b
    a = x + 1
    b = a * 2
    del a
    b.numpy()
    assert runs(counts) == (1, 1, 1)
    assert len(PLANS) == 1


def test_a_plan_that_computes_more_may_serve(counts):
    x = floats(3)

    def run(keep):
        a = x + 1
        b = a * 2
        kept = a if keep else None
        del a
        assert b.numpy()[0] == 4
        return kept

    run(True), run(True)
    assert runs(counts) == (1, 1, 1)
    run(False)
    assert runs(counts) == (1, 1, 2)


def test_a_plan_that_overwrites_more_may_not_serve(counts):
    for _ in range(3):
        w = floats(500)
        w += 1
        mge.sync()
    compiled = counts.plans_compiled
    old = w.numpy()
    w += 1
    mge.sync()
    assert old[0] == 2 and w.numpy()[0] == 3
    assert counts.plans_compiled == compiled + 1
    del old
    w += 1
    mge.sync()
    assert counts.plans_compiled == compiled + 1


def test_after_three_variants_the_union_is_compiled(counts):
    x = floats(3)

    def run(*keep):
        made = [x + 1]
        for _ in range(5):
            made.append(made[-1] * 2)
        kept = [made[i] for i in keep]
        del made
        mge.sync()
        assert [k.numpy()[0] for k in kept] == [2 * 2**i for i in keep]

    for i in range(4):
        run(i)
    assert counts.plans_compiled == 3
    run(4)
    assert counts.plans_compiled == 4, "the union of the variants was not compiled"
    for i in range(5):
        run(i)
    run(0, 4)
    run(1, 2, 3)
    assert counts.plans_compiled == 4, "the union does not serve its parts"


def test_a_strategy_is_in_the_key_and_each_gives_the_same(counts):
    x = floats(3)
    (F.exp(x) + 1).numpy()
    with memory("naive"):
        assert np.allclose((F.exp(x) + 1).numpy(), np.e + 1)
        assert runs(counts) == (2, 0, 0)
        assert np.allclose((F.exp(x) + 1).numpy(), np.e + 1)
    assert runs(counts) == (2, 1, 1)


def test_a_strategy_of_a_plugin_compiles_at_first_sight(counts, monkeypatch):
    monkeypatch.setitem(STRATEGIES, "planted", Naive())
    with memory("planted"):
        (F.exp(floats(3)) + 1).numpy()
    assert runs(counts) == (0, 1, 1)


def test_a_peak_above_half_of_the_limit_compiles_at_first_sight(counts):
    with debug(memory_limit="1MB"):
        (F.exp(floats(100)) + 1).numpy()
        assert runs(counts) == (1, 0, 0)
        x = floats(60_000)
        y = x
        for _ in range(6):  # each of these is 240 kB: one by one they are freed in time
            y = F.exp(y) * 0 + x
        y.numpy()
    assert runs(counts)[1:] == (1, 1)


def test_more_than_eight_sets_of_shapes_warn_once(counts, capsys):
    for n in range(1, 20):
        F.exp(floats(n)).numpy()
    text = capsys.readouterr().err
    assert text.count("more than 8 sets of shapes") == 1 and "bucketing" in text
    assert counts.plans_compiled == 0


def test_eight_sets_of_shapes_do_not_warn(counts, capsys):
    for _ in range(3):
        for n in range(1, 9):
            F.exp(floats(n)).numpy()
    assert capsys.readouterr().err == ""


def test_the_cache_drops_what_was_used_least_recently(counts, monkeypatch):
    monkeypatch.setattr(cache, "LIMIT_PLANS", 4)

    def run(n):
        return F.exp(floats(n)).numpy()

    for n in range(1, 4):
        run(n), run(n)
    assert counts.plans_compiled == 3
    run(1)  # used again: it stays
    for n in range(10, 12):
        run(n), run(n)
    assert len(PLANS) <= 4
    compiled = counts.plans_compiled
    run(1)
    assert counts.plans_compiled == compiled
    first = counts.first_sight_runs
    run(2)
    assert counts.first_sight_runs == first + 1, (
        "the plan that was used least recently is still here"
    )


def test_the_cache_is_bounded_by_bytes(counts, monkeypatch):
    monkeypatch.setattr(cache, "LIMIT_BYTES", 1)
    for n in range(1, 5):
        F.exp(floats(n)).numpy(), F.exp(floats(n)).numpy()
    assert len(PLANS) <= 1


def test_clear_forgets_plans(counts):
    for _ in range(2):
        F.exp(floats(3)).numpy()
    assert len(PLANS) == 1
    PLANS.clear()
    assert len(PLANS) == 0
    F.exp(floats(3)).numpy()
    assert counts.first_sight_runs == 2


def test_a_plan_keeps_no_values_alive(counts):
    from mge.device import as_device

    pool = as_device("ref").pool
    for _ in range(3):
        (floats(1000) + 1).numpy()
    mge.sync()
    before = pool.live_blocks
    for _ in range(5):
        (floats(1000) + 1).numpy()
    assert pool.live_blocks == before


def test_plans_run_without_handles_of_their_first_run(counts):
    for i in range(4):
        x, y = floats(3, value=i), floats(3, value=10 * i)
        z = x * y + x
        del x, y
        assert z.numpy()[0] == 10 * i * i + i
    assert counts.plans_compiled == 1


def test_results_of_a_plan_are_buffers_of_their_own():
    made = [F.exp(floats(3, value=i)) for i in range(1)]
    results = []
    for i in range(5):
        results.append(mge.eval(F.exp(floats(3, value=i)) * 2))
    assert [r.numpy()[0] for r in results] == pytest.approx([2 * np.exp(i) for i in range(5)])
    assert made[0].numpy()[0] == 1


def test_one_leaf_in_two_places_and_two_equal_leaves(counts):
    for _ in range(3):
        x, y = floats(3, value=2), floats(3, value=5)
        assert (x * x + y).numpy()[0] == 9
        assert (x * y + y).numpy()[0] == 15
    assert counts.plans_compiled == 2


def test_results_that_are_inputs_and_constants(counts):
    for _ in range(3):
        x = floats(2, 3, value=3)
        same, zero, view = x.astype("float32"), F.zeros((2,)) + 0, x.reshape(3, 2)
        mge.sync()
        assert same is x and zero.numpy().tolist() == [0, 0] and (view.numpy() == 3).all()
        x += 1
        assert (view.numpy() == 3).all() and (x.numpy() == 4).all()


def test_keys_do_not_keep_models_alive(counts):
    import weakref

    w = mge.Parameter(floats(4))
    for _ in range(3):
        (w * 2).numpy()
    handle, node = weakref.ref(w), weakref.ref(w._node)
    del w
    assert handle() is None and node() is None


def test_stats_and_reset():
    assert {
        "plans_compiled",
        "plans_run",
        "first_sight_runs",
        "steps_run",
        "retraces",
        "trace_hits",
    } <= set(mge.debug.stats())
    assert all(isinstance(v, int) for v in mge.debug.stats().values())
    assert sys.getsizeof(mge.debug.stats()) < 10_000
