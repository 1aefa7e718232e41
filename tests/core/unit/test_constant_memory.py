"""Ten thousand iterations of training hold as much memory as a hundred."""

import gc
import resource

import numpy as np
import pytest

import mge
import mge.functional as F
from mge import graph
from mge.device import as_device


def resident_bytes():
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure():
    mge.sync()
    gc.collect()
    return as_device("ref").pool.live_blocks, resident_bytes()


@pytest.mark.parametrize("way", ["plain", "traced", "reading"])
def test_memory_of_ten_thousand_iterations(way, counts):
    rng = np.random.default_rng(0)
    w = mge.Parameter(rng.normal(size=(3, 4)).astype("float32"))
    v = mge.Parameter(rng.normal(size=(4, 1)).astype("float32"))
    manager = mge.autodiff.GradManager().attach([w, v])
    x = mge.tensor(rng.normal(size=(5, 3)).astype("float32"))

    def step(x):
        with manager:
            loss = (F.tanh(x @ w) @ v).mean()
            manager.backward(loss)
        for p, new in [(p, p - p.grad * 0.001) for p in (w, v)]:
            p._assign(new)
        w.grad = v.grad = None
        return loss

    chosen = mge.jit.trace(step) if way == "traced" else step
    marks = {}
    for i in range(1, 10_001 if way != "reading" else 3_001):
        loss = chosen(x)
        if way == "plain":
            graph.request_flush()
        elif way == "reading":
            assert np.isfinite(loss.item())
        if i in (200, 500) or i % 1000 == 0:
            marks[i] = measure()
    blocks = [b for b, _ in marks.values()]
    assert max(blocks) == min(blocks), marks
    sizes = [s for _, s in marks.values()]
    assert sizes[-1] - sizes[1] < 4 << 20, marks
    assert counts.plans_compiled <= 2


def test_memory_of_results_that_are_kept_for_a_while(counts):
    kept = []
    marks = []
    for i in range(3_000):
        kept.append(mge.tensor(np.full(10, i, np.float32)) * 2 + 1)
        if len(kept) == 20:
            assert kept[0].numpy()[0] == 2 * (i - 19) + 1
            kept.clear()
            if i > 500:
                marks.append(as_device("ref").pool.live_blocks)
    assert max(marks) - min(marks) <= 1
