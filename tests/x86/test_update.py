"""Optimizer updates and common norms of device x86 against the references: many tensors, mixed dtypes, in place."""

import numpy as np
import pytest

import mge
from mge.autodiff import GradManager
from mge.execute import WATCHERS
from mge.jit import trace

from .against import check

pytestmark = pytest.mark.usefixtures("x86")

SHAPES = [(3,), (5000,), (17, 33), (), (0, 2), (100, 300), (64,), (1,)]
UPDATES = [
    ("sgd_update", 0, (0.1, 0.01), 0, {}),
    ("sgd_update", 1, (0.1, 0.0, 0.9), 0, {"use_momentum": True}),
    ("sgd_update", 1, (0.1, 0.1, 0.9), 0, {"use_momentum": True, "nesterov": True}),
    ("adam_update", 2, (0.1, 0.01), 1, {}),
    ("adamw_update", 2, (0.1, 0.01), len(SHAPES), {}),
    ("adagrad_update", 1, (0.1, 0.01), 1, {"lr_decay": 0.1}),
    ("adadelta_update", 2, (0.1, 0.01), 0, {}),
    ("lamb_update", 2, (0.1, 0.01), 1, {}),
]


@pytest.mark.parametrize(("name", "states", "scalars", "steps", "attrs"), UPDATES, ids=str)
@pytest.mark.parametrize("found_inf", [None, False, True])
def test_updates(rng, name, states, scalars, steps, attrs, found_inf):
    arrays = [rng.normal(size=s) for _ in range(2) for s in SHAPES]
    arrays += [rng.uniform(0.5, 1.5, size=s) for _ in range(states) for s in SHAPES]
    rest = [np.array(3, np.int32)] * steps + [np.array(s, np.float32) for s in scalars]
    rest += [] if found_inf is None else [np.array(found_inf)]
    attrs = {"count": len(SHAPES), "has_found_inf": found_inf is not None, **attrs}
    if steps:
        attrs["steps"] = steps
    for dtype in (np.float32, np.float64):
        check(name, [*(a.astype(dtype) for a in arrays), *rest], attrs)
    if name != "lamb_update":  # 16-bit parameters with float32 state
        halves = 2 * len(SHAPES)
        mixed = [a.astype(np.float16 if i < halves else np.float32) for i, a in enumerate(arrays)]
        check(name, [*mixed, *rest], attrs)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_many_tensors_at_once(rng, dtype):
    tensors = [(rng.normal(size=s) * 0.1).astype(dtype) for s in SHAPES]
    for order in (2.0, 1.0, 3.0, np.inf):
        check("global_norm", tensors, {"ord": float(order)})
    check("scale_all", [*tensors, np.float32(0.3)])
    check("all_finite", tensors)
    for odd in (np.nan, np.inf):
        tensors[5][50, 100] = odd
        check("all_finite", tensors)
        check("global_norm", tensors, {"ord": np.inf})


def test_an_interrupt_after_the_steps_is_told_where_values_were_overwritten(rng):
    """A watcher runs when all steps have: the values are new, and handles do not have them yet."""
    parameters = [mge.Parameter(rng.normal(size=8).astype(np.float32), device="x86") for _ in "ab"]
    manager = GradManager().attach(parameters)
    optimizer = mge.optimizer.SGD(parameters, lr=0.1, momentum=0.9)

    @trace
    def step(x):
        with manager:
            loss = (x * parameters[0] * parameters[1]).sum()
            manager.backward(loss)
        optimizer.step().clear_grad()
        return loss

    def see(*_):
        raise KeyboardInterrupt

    x = mge.tensor(rng.normal(size=8).astype(np.float32), device="x86")
    for _ in range(3):
        step(x).numpy()
    before = [p.numpy().copy() for p in parameters]
    held = parameters[0].detach()
    WATCHERS.append(see)
    try:
        with pytest.raises(KeyboardInterrupt):
            step(x).numpy()
    finally:
        WATCHERS.remove(see)
    assert parameters[0].numpy().tobytes() == before[0].tobytes() == held.numpy().tobytes()
    with pytest.raises(KeyboardInterrupt):
        parameters[1].numpy()
