"""Tuning on device x86: what is timed, which entries plans take, and that equal entries give equal bits."""

from functools import partial

import numpy as np
import pytest

import mge
import mge.functional as F
import mge.module as M
from mge import native, tuning
from mge.autodiff import GradManager
from mge.cache import PLANS
from mge.debug import debug
from mge.jit import trace
from mge.optimizer import SGD

NAMES = ("direct", "winograd2", "winograd4")


@pytest.fixture(autouse=True)
def cache(x86, tmp_path):
    """An empty tuning cache; device x86 is the default."""
    before = mge.get_default_device()
    mge.set_default_device(x86)
    with debug(cache=str(tmp_path)):
        module = native.load_module()
        module.tuning_open(str(native.tuning_path()))
        PLANS.clear()
        yield module
    PLANS.clear()
    mge.set_default_device(before)
    module.tuning_open(str(native.tuning_path()))


def network():
    """Three convolutions: of one algorithm, of several, of several with other channels."""
    rng = np.random.default_rng(0)
    convs = [
        M.Conv2d(3, 16, 3, padding=1),
        M.Conv2d(16, 24, 3, padding=1),
        M.Conv2d(24, 16, 3, padding=1),
    ]
    net = M.Sequential(*convs, M.Flatten(), M.Linear(16 * 16 * 16, 5))
    for p in net.parameters():
        p[...] = (rng.normal(size=p.shape) * 0.1).astype("float32")
    mge.sync()
    return net


def images():
    return mge.tensor(np.random.default_rng(1).normal(size=(2, 3, 16, 16)).astype("float32"))


def taken(plan):
    """The algorithms of a plan's convolutions, by use."""
    choices = [s.slot.node.sig.device.backend.choice_of(s.slot.node) for s in plan.steps]
    return {use: algorithm for use, algorithm, _ in filter(None, choices)}


def plan_of(function):
    return next(reversed(function.last.plans.values())).plan


def step_of(net, options):
    """A traced training step over fixed labels."""
    manager, optimizer = GradManager().attach(net.parameters()), SGD(net.parameters(), lr=0.01)
    labels = mge.tensor(np.array([1, 2], "int32"))

    @trace(**options)
    def step(x):
        with manager:
            loss = F.cross_entropy(net(x), labels)
            manager.backward(loss)
        optimizer.step().clear_grad()
        return loss

    return step


def test_each_use_that_a_pass_asks_for_is_timed_in_the_plan():
    """A use whose words differ between pass and plan would never get an entry."""
    for training, count in ((False, 2), (True, 4)):
        net, x = network(), images()
        function = step_of(net, {}) if training else trace(net.__call__)
        function(x).numpy()
        entry = function.last
        nodes = entry.inputs([x._node])
        compile = partial(entry._compile, (), "static")
        report = tuning.tune(compile, nodes, 0.5, again=True)
        assert len(report.choices) == count and all(c.new in NAMES for c in report.choices)
        assert all(0 < c.new_ns <= c.old_ns for c in report.choices)
        assert 0 < report.after_ns <= report.before_ns
        assert all(training == c.key.endswith("packed-each-run") for c in report.choices)


def test_a_run_after_tuning_takes_the_entries(cache):
    net, x = network(), images()
    trace(net.__call__, tune=True)(x).numpy()
    after = trace(net.__call__)
    after(x).numpy()
    device = mge.tensor([0.0]).device
    found = {use: cache.tuning_get(tuning._key(device, use)) for use in taken(plan_of(after))}
    kept = {use: value.decode() for use, value in found.items() if value is not None}
    assert len(kept) == 2 and kept.items() <= taken(plan_of(after)).items()


def put_everywhere(cache, algorithm):
    """Give all uses of the network's convolutions an entry."""
    net, x = network(), images()
    function = trace(net.__call__)
    function(x).numpy()
    for use in taken(plan_of(function)):
        cache.tuning_put(tuning._key(x.device, use), algorithm.encode())


@pytest.mark.parametrize("algorithm", NAMES)
def test_equal_entries_give_equal_bits(cache, tmp_path, algorithm):
    put_everywhere(cache, algorithm)
    net, x = network(), images()
    traced = trace(net.__call__)
    y = traced(x).numpy()
    algorithms = list(taken(plan_of(traced)).values())
    assert algorithms == ["direct", algorithm, algorithm]  # the first has three channels
    traced.dump(tmp_path / "net.mge")
    loaded = mge.load_model(tmp_path / "net.mge")(x).numpy()
    compiled = [net(x).numpy() for _ in range(3)][-1]
    for other in (loaded, compiled, trace(network().__call__)(x).numpy()):
        assert other.tobytes() == y.tobytes()


def test_deterministic_runs_take_no_entry(cache):
    put_everywhere(cache, "winograd4")
    with debug(deterministic=True):
        net, x = network(), images()
        traced = trace(net.__call__, tune=True)
        y = traced(x).numpy()
        assert set(taken(plan_of(traced)).values()) == {"direct"}
        PLANS.clear()
        for _ in range(3):
            assert net(x).numpy().tobytes() == y.tobytes()


def test_an_unknown_entry_is_not_taken(cache):
    put_everywhere(cache, "winograd8")
    net, x = network(), images()
    traced = trace(net.__call__)
    traced(x).numpy()
    assert set(taken(plan_of(traced)).values()) <= {*NAMES}
