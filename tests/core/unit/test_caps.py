"""Caps: a pending graph that nobody reads is cut at boundaries, so that keys repeat and memory stays."""

import gc

import numpy as np

import mge
import mge.functional as F
from mge import graph, op, run
from mge.device import as_device


def parameters(width=8):
    rng = np.random.default_rng(0)
    return [
        mge.Parameter(rng.normal(size=(width, width)).astype("float32") * 0.3) for _ in range(3)
    ]


def forward(x, weights):
    for w in weights:
        x = F.relu(x @ w)
    graph.boundary()  # as at the exit of the outermost Module
    return x.sum()


def batch(i, width=8):
    return mge.tensor(np.full((4, width), 0.1 * (i % 7), np.float32))


def live_bytes():
    gc.collect()
    return as_device("ref").pool.in_use_bytes


def test_a_thousand_batches_in_a_list_need_two_plans_and_constant_memory(counts, capsys):
    weights = parameters()
    results, pending, live = [], [], []
    for i in range(1000):
        results.append(forward(batch(i), weights))
        pending.append(len(graph.LOCAL.recording.tokens))
        if i % 100 == 99:
            live.append(live_bytes())
    assert counts.plans_compiled <= 2
    assert max(pending) <= run.SOFT_CAP_NODES + 20
    # What grows is what the list holds: one small buffer a batch (and a wave of inputs that wait for the next cut).
    small = as_device("ref").pool.rounded(4)
    assert live[-1] - live[3] <= 600 * small + 300 * 2 * 256
    wanted = [forward(batch(i), weights).item() for i in range(7)]
    assert [r.item() for r in results[:70]] == wanted * 10
    assert counts.plans_compiled <= 3
    assert capsys.readouterr().err == ""


def test_a_module_marks_a_boundary(counts):
    import mge.module as M

    net = M.Sequential(M.Linear(8, 8), M.ReLU(), M.Linear(8, 8), M.ReLU(), M.Linear(8, 2))
    results = [net(batch(i)) for i in range(1000)]
    assert counts.plans_compiled <= 2
    assert len(graph.LOCAL.recording.tokens) <= run.SOFT_CAP_NODES + 20
    assert (results[0].numpy() == results[7].numpy()).all()


def test_bytes_arm_the_next_boundary_too(counts):
    wide = 1 << 20
    peak = 0
    kept = []
    for i in range(400):
        x = mge.tensor(np.full(wide // 4, i, np.float32))  # 1 MB each
        kept.append(x[:2])
        del x
        graph.boundary()
        peak = max(peak, as_device("ref").pool.in_use_bytes)
    assert peak < run.SOFT_CAP_BYTES + (64 << 20)
    assert [k.numpy()[0] for k in kept[:3]] == [0, 1, 2]


def test_nothing_is_cut_below_the_soft_cap(counts):
    weights = parameters()
    results = [forward(batch(i), weights) for i in range(50)]
    assert counts.first_sight_runs == counts.plans_run == 0
    assert results[0].item() == 0


def test_the_hard_cap_cuts_at_the_last_boundary(counts, monkeypatch, capsys):
    monkeypatch.setattr(op, "HARD_CAP", 300)
    x = mge.tensor(np.ones(2, np.float32))
    held = []
    for _ in range(12):
        y = x
        for _ in range(50):
            y = y + 1
        held.append(y)
        if len(held) == 3:
            graph.boundary()
    assert counts.first_sight_runs >= 1
    assert [h.numpy()[0] for h in held] == [51] * 12
    assert "no value was read" not in capsys.readouterr().err or counts.first_sight_runs > 1


def test_without_a_boundary_it_cuts_here_with_one_warning(counts, monkeypatch, capsys):
    monkeypatch.setattr(op, "HARD_CAP", 200)
    y = mge.tensor(np.zeros(2, np.float32))
    for _ in range(1000):
        y = y + 1
    assert counts.first_sight_runs + counts.plans_run >= 4
    assert y.numpy().tolist() == [1000, 1000]
    assert capsys.readouterr().err.count("no value was read") == 1


def test_a_cut_in_the_middle_of_gradients_changes_nothing(counts, monkeypatch):
    monkeypatch.setattr(op, "HARD_CAP", 60)
    w = mge.tensor(np.full(2, 0.5, np.float32))
    manager = mge.autodiff.GradManager().attach(w)
    for _ in range(3):
        w.grad = None
        with manager:
            y = w
            for _ in range(100):
                y = y * 0.9 + w * 0.1
            manager.backward(y.sum())
        assert np.allclose(w.grad.numpy(), 1, atol=1e-5)


def test_a_boundary_inside_a_manager_does_not_cut(counts, monkeypatch):
    monkeypatch.setattr(run, "SOFT_CAP_NODES", 10)
    w = mge.tensor(np.ones(2, np.float32))
    manager = mge.autodiff.GradManager().attach(w)
    with manager:
        y = w
        for _ in range(30):
            y = y + w
            graph.boundary()
        assert counts.steps_run == 0
        manager.backward(y.sum())  # the end of backward is a boundary
    assert counts.steps_run > 0
    assert w.grad.numpy().tolist() == [31, 31]


def test_leaves_of_a_cut_are_let_go(counts, monkeypatch):
    """A cut graph frees inputs that only it held."""
    monkeypatch.setattr(run, "SOFT_CAP_NODES", 50)
    weights = parameters(4)
    mge.sync()
    before = live_bytes()
    sums = []
    for i in range(200):
        sums.append(forward(batch(i, 4), weights))
        if len(sums) > 10:
            sums.pop(0)
    sums.clear()
    mge.sync()
    assert live_bytes() <= before + 64 * 20
