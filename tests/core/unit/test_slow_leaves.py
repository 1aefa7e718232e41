"""Slow leaves: what depends on parameters alone is computed once for each of their versions."""

import gc
import weakref

import numpy as np
import pytest

import mge
import mge.functional as F
from mge import autodiff
from mge.device import as_device
from mge.tensor import ModuleBuffer


def parameter(*shape, value=1.0, kind=mge.Parameter):
    return kind(np.full(shape, value, np.float32))


def folded(w, gamma):
    """Weights times a scale, as for a folded normalisation: a function of slow leaves alone."""
    return F.exp(w) * gamma.reshape(-1, 1)


def forward(x, w, gamma):
    return x @ folded(w, gamma).T


def inputs(value=1.0):
    return mge.tensor(np.full((4, 3), value, np.float32))


@pytest.fixture
def model(counts):
    w, gamma = parameter(2, 3), parameter(2, value=2.0)
    for _ in range(2):  # first sight, then compiled
        forward(inputs(), w, gamma).numpy()
    counts.reset()
    return w, gamma


def wanted(x, w, gamma):
    return x.numpy() @ (np.exp(w.numpy()) * gamma.numpy()[:, None]).T


def check(w, gamma, value=1.0):
    x = inputs(value)
    assert np.allclose(forward(x, w, gamma).numpy(), wanted(x, w, gamma))


def test_the_prologue_runs_once(model, counts):
    for i in range(5):
        check(*model, value=i)
    assert (counts.prologues_run, counts.prologue_hits) == (0, 5)
    assert counts.plans_compiled == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda w: w.set_value(np.zeros((2, 3))),
        lambda w: w.__iadd__(1),
        lambda w: w.__setitem__(0, 3),
        lambda w: w._assign(w * 2),
        lambda w: w.reset_zero(),
    ],
)
def test_a_rebind_bumps_the_version(model, counts, change):
    w, gamma = model
    change(w)
    mge.sync()
    check(w, gamma)
    assert counts.prologues_run == 1
    check(w, gamma)
    assert counts.prologues_run == 1


def test_either_leaf_counts(model, counts):
    w, gamma = model
    gamma += 1
    mge.sync()
    check(w, gamma)
    assert counts.prologues_run == 1


def test_an_update_in_place_bumps_the_version(model, counts):
    """The same buffer with new contents is another version."""
    w, gamma = model
    for _ in range(6):
        w += 0.5
        mge.sync()
        check(w, gamma)
    assert counts.prologues_run == 6


def test_module_buffers_are_slow_and_plain_tensors_are_not(counts):
    for kind, hits in ((ModuleBuffer, 2), (mge.Parameter, 2), (mge.Tensor, 0)):
        mge.cache.PLANS.clear()
        counts.reset()
        w, gamma = parameter(2, 3, kind=kind), parameter(2, kind=kind)
        for _ in range(4):
            check(w, gamma)
        assert counts.prologue_hits == hits, kind


def test_plans_share_a_prologue(model, counts):
    w, gamma = model
    for _ in range(2):  # another graph over the same folded weights
        (inputs() @ folded(w, gamma).T * 2 + 1).numpy()
    assert counts.plans_compiled == 1
    assert (counts.prologues_run, counts.prologue_hits) == (0, 1)


def test_shapes_of_inputs_share_a_prologue(model, counts):
    w, gamma = model
    for rows in (7, 7, 9, 9):
        x = mge.tensor(np.ones((rows, 3), np.float32))
        assert np.allclose(forward(x, w, gamma).numpy(), wanted(x, w, gamma))
    assert counts.plans_compiled == 2 and counts.prologues_run == 0


def test_two_models_of_one_structure_do_not_push_each_other_out(model, counts):
    other = parameter(2, 3, value=0.5), parameter(2, value=3.0)
    for _ in range(4):
        check(*model)
        check(*other)
    assert counts.prologues_run == 1 and counts.plans_compiled == 0


def test_many_models_are_bounded(model, counts):
    models = [(parameter(2, 3, value=i), parameter(2)) for i in range(10)]
    for m in models:
        check(*m)
    for m in models:
        check(*m)


def test_results_are_dropped_when_the_parameter_dies(counts):
    mge.sync()
    gc.collect()
    pool = as_device("ref").pool
    before = pool.live_blocks
    w, gamma = parameter(20, 30), parameter(20)
    x = mge.tensor(np.ones((4, 30), np.float32))
    for _ in range(3):
        forward(x, w, gamma).numpy()
    assert counts.prologues_run == 1
    node = weakref.ref(w._node)
    del w, gamma, x
    assert node() is None, "a prologue keeps a parameter alive"
    other = parameter(20, 30, value=2), parameter(20)
    forward(mge.tensor(np.ones((4, 30), np.float32)), *other).numpy()
    del other
    other = parameter(20, 30, value=3), parameter(20)
    forward(mge.tensor(np.ones((4, 30), np.float32)), *other).numpy()
    del other
    assert pool.live_blocks <= before + 2, "results for parameters that are gone pile up"


def test_kept_results_are_counted_in_memory(model):
    w, _ = model
    prologues = [p for p in mge.cache._PROLOGUES.values() if p.nbytes]
    assert sum(p.nbytes for p in prologues) >= w.size * 4


def test_what_is_read_of_the_prologue_itself(model, counts):
    """A folded weight that is held is a result of the plan too."""
    w, gamma = model
    for _ in range(3):
        scaled = folded(w, gamma)
        y = inputs() @ scaled.T
        assert np.allclose(y.numpy(), wanted(inputs(), w, gamma))
        assert np.allclose(scaled.numpy(), np.exp(w.numpy()) * 2)
        scaled *= 0  # a new value: what the prologue keeps stays
    check(w, gamma)


def test_a_result_of_the_prologue_is_never_overwritten(model):
    w, gamma = model
    held = [folded(w, gamma) for _ in range(4)]
    for h in held:
        y = inputs() @ h.T
        y.numpy()
        h += 100
        mge.sync()
    check(w, gamma)


def test_in_training_there_is_no_prologue_of_what_the_plan_replaces(counts, descend):
    """Folded weights are computed once a step there: in the one plan with forward, backward and update."""
    w, gamma = parameter(2, 3, value=0.1), parameter(2)
    manager = autodiff.GradManager().attach([w, gamma])
    losses = []
    for _ in range(6):
        with manager:
            loss = (forward(inputs(), w, gamma) ** 2).mean()
            manager.backward(loss)
        descend([w, gamma], 0.001)
        w.grad = gamma.grad = None
        losses.append(loss)
    values = [x.item() for x in losses]
    assert values == sorted(values, reverse=True) and len(set(values)) == 6
    assert counts.plans_compiled == 1 and counts.prologues_run <= 1


def test_training_and_evaluation_take_turns(counts, descend):
    w, gamma = parameter(2, 3, value=0.1), parameter(2)
    manager = autodiff.GradManager().attach([w, gamma])
    for _ in range(5):
        with manager:
            manager.backward((forward(inputs(), w, gamma) ** 2).mean())
        descend([w, gamma], 0.001)
        w.grad = gamma.grad = None
        for _ in range(3):
            check(w, gamma)
    assert counts.prologues_run <= 5 and counts.prologue_hits >= 6


def test_one_frozen_parameter_among_trained_ones(counts, descend):
    """Only the frozen one's functions may be kept; what depends on a trained one follows it."""
    frozen, w = parameter(3, 3, value=0.1), parameter(2, 3, value=0.1)
    manager = autodiff.GradManager().attach(w)
    losses = []
    for _ in range(6):
        with manager:
            loss = ((inputs() @ F.exp(frozen) @ F.exp(w).T) ** 2).mean()
            manager.backward(loss)
        descend([w], 0.0001)
        w.grad = None
        losses.append(loss.item())
    assert len(set(losses)) == 6 and losses == sorted(losses, reverse=True)
    assert counts.prologues_run == 1


def test_draws_are_not_in_a_prologue(counts):
    w = parameter(4)
    values = set()
    for _ in range(4):
        y = F.dropout(w, 0.5, True) + w
        values.add(tuple(y.numpy().tolist()))
    many = [tuple((F.dropout(w, 0.5, True) + w).numpy().tolist()) for _ in range(8)]
    assert len(values.union(many)) > 1
