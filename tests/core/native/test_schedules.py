"""Schedules of memory strategies on a device with late streams: recomputation beside work that still runs."""

import ctypes

import numpy as np
import pytest

import mge
import mge.functional as F
from mge.memory import STRATEGIES, memory
from tests.core.native.plans import BINARY, compiled_plan, random_function, run
from tests.core.property.test_memory_plan import Wild


@pytest.mark.parametrize("seed", range(8))
def test_any_legal_schedule_gives_the_numbers_of_ref(native_device, library, monkeypatch, seed):
    monkeypatch.setitem(STRATEGIES, "wild", Wild())
    device, fake = native_device("fake_async"), ctypes.CDLL(library("fake_async"))
    fake.fake_delay(200)
    rng = np.random.default_rng(seed)
    mine = [mge.tensor(rng.normal(size=(4, 4)).astype("float32"), device=device) for _ in range(4)]
    function = random_function(rng, 20, binary=BINARY[:2], unary=[F.sin, lambda x: -x])
    with memory("wild", seed=seed):
        plan, buffers, _ = compiled_plan(function, *mine)
    assert plan.strategy == f"wild:seed={seed}"
    refs = [mge.tensor(x.numpy(), device="ref:0") for x in mine]
    wanted = [t.numpy() for t in function(*refs)]
    for _ in range(3):
        for x, y in zip(run(plan, buffers), wanted, strict=True):
            assert x.tobytes() == y.tobytes()
