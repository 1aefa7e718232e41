"""Traced calls as one native call: the same results and state as any run, and left where something else changed."""

import gc
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import mge
import mge.functional as F
from mge import traced
from mge.autodiff import GradManager
from mge.debug import debug
from mge.errors import DeviceError
from mge.jit import trace
from mge.optimizer import SGD


@pytest.fixture
def toy(native_device):
    return native_device("toy_native")


def value(device, *numbers):
    return mge.tensor(np.array(numbers, np.float32), device=device)


@pytest.fixture
def runs(monkeypatch):
    """The list of runs that took the long way."""
    found = []
    run = traced.Traced.run

    def counted(self, *args, **options):
        found.append(self)
        return run(self, *args, **options)

    monkeypatch.setattr(traced.Traced, "run", counted)
    return found


def test_only_the_first_call_takes_the_long_way(toy, runs):
    add = trace(lambda x, y: (x + y, [x * y]))
    before = debug.stats()["plans_run"]
    for i in range(4):
        total, (product,) = add(value(toy, i, 2), value(toy, 3, 4))
        assert total.tolist() == [i + 3, 6] and product.tolist() == [3 * i, 8]
    assert len(runs) == 1 and debug.stats()["plans_run"] == before + 4


def test_results_are_values_of_their_own(toy, runs):
    double = trace(lambda x: x + x)
    results = [double(value(toy, i)) for i in range(5)]
    arrays = [r.numpy() for r in results]
    assert [a.item() for a in arrays] == [0, 2, 4, 6, 8]
    assert not arrays[0].flags.writeable
    del results
    more = [double(value(toy, 9)).numpy() for _ in range(5)]
    assert [a.item() for a in arrays] == [0, 2, 4, 6, 8] and all(m.item() == 18 for m in more)
    assert len(runs) == 1


def test_an_argument_without_a_value_is_computed_first(toy, runs):
    double = trace(lambda x: x + x)
    for i in range(4):
        assert double(value(toy, i) * 2).tolist() == [4 * i]
    assert len(runs) == 1


def test_captured_tensors_count_with_their_values_now(toy, runs):
    state = value(toy, 1)
    scaled = trace(lambda x: x * state)
    for i in range(5):
        assert scaled(value(toy, 3)).tolist() == [3 * (1 + i)]
        state += 1
    assert scaled(value(toy, 3)).tolist() == [18]


def test_parameters_that_change_are_seen(toy, runs):
    weight = mge.Parameter(np.eye(2, dtype=np.float32), device=toy)
    x = mge.tensor(np.ones((1, 2), np.float32), device=toy)
    product = trace(lambda x: F.matmul(x, weight + weight))
    for factor in (1, 1, 2, 2, 2):
        weight.set_value(np.eye(2, dtype=np.float32) * factor)
        assert product(x).tolist() == [[2 * factor, 2 * factor]]


def test_what_the_function_read_is_looked_at_again(toy, runs):
    settings = SimpleNamespace(scale=2.0, names={}, shape=(1, 2), inner=SimpleNamespace(shift=1))

    def function(x):
        return x * settings.scale + len(settings.names) + settings.inner.shift + settings.shape[1]

    scaled = trace(function)
    assert [scaled(value(toy, 3)).item() for _ in range(3)] == [9, 9, 9] and len(runs) == 1
    settings.scale, settings.names, settings.shape = float("2"), {}, (1, len("ab"))  # equal
    assert scaled(value(toy, 3)).item() == 9 and len(runs) == 1
    settings.names["one"] = 1
    assert scaled(value(toy, 3)).item() == 10
    settings.inner = SimpleNamespace(shift=True)  # equal, but of another type
    traces = debug.stats()["traces"]
    assert scaled(value(toy, 3)).item() == 10 and debug.stats()["traces"] == traces + 1
    settings.shape = (1, 5)
    assert scaled(value(toy, 3)).item() == 13
    settings.scale = 0.5
    assert scaled(value(toy, 3)).item() == 8.5
    del settings.inner.shift
    with pytest.raises(AttributeError, match="shift"):
        scaled(value(toy, 3))


def test_another_type_device_or_setting_takes_the_long_way(toy, runs):
    double = trace(lambda x: x + x)
    for _ in range(2):
        double(value(toy, 1))
        double(value(toy, 1, 2))
    assert len(runs) == 2
    double(value("ref", 1))
    assert len(runs) == 3
    double(value(toy, 1))
    with debug(check=2):
        assert double(value(toy, 5)).tolist() == [10]
    with mge.memory("naive"):
        assert double(value(toy, 6)).tolist() == [12]
    assert len(runs) >= 5


def train(device, steps, held=False):
    w = mge.Parameter(np.array([1.0, 2.0], np.float32), device=device)
    manager, optimizer = GradManager().attach([w]), SGD([w], lr=0.1, momentum=0.9)

    @trace
    def step(x):
        with manager:
            loss = (w * x * w).sum()
            manager.backward(loss)
        optimizer.step().clear_grad()
        return loss

    losses, kept = [], []
    for i in range(steps):
        losses.append(step(value(device, 1 + i, 1)).item())
        if held and i % 3 == 0:
            kept.append((w.detach(), w.numpy().copy()))
    for old, then in kept:
        assert (old.numpy() == then).all(), "a value that somebody holds is never written over"
    assert w.grad is None
    return losses, w.tolist()


@pytest.mark.parametrize("held", [False, True])
def test_a_training_step_changes_its_state(toy, held):
    mine, ref = train(toy, 8, held), train("ref", 8)
    np.testing.assert_allclose(mine[0], ref[0], rtol=1e-5)
    np.testing.assert_allclose(mine[1], ref[1], rtol=1e-5)


@pytest.mark.parametrize("name", ["toy_native", "probe"])
def test_state_is_written_over_where_nobody_else_sees_it(native_device, runs, name):
    device = native_device(name)
    total = value(device, 0, 0)

    @trace
    def add(x):
        total.set_value(total + x)
        return x * x

    seen = []
    for i in range(8):
        assert add(value(device, i, 1)).tolist() == [i * i, 1]
        seen.append(total._node.buffer.array.ctypes.data)
        assert total.tolist() == [sum(range(i + 1)), i + 1]
    assert len(set(seen[-4:])) == 1 and len(runs) <= 3
    held, array = total.detach(), total.numpy()
    add(value(device, 1, 1))
    assert held.tolist() == array.tolist() == [28, 8] and total.tolist() == [29, 9]
    for _ in range(3):
        add(value(device, 1, 1))
    assert held.tolist() == array.tolist() == [28, 8] and total.tolist() == [32, 12]


def test_a_failure_leaves_the_state_as_it_was(native_device, runs):
    probe = native_device("probe")
    total = value(probe, 0, 0)

    @trace
    def add(x):
        total.set_value(total + x)
        return -(x * x)

    for i in range(5):
        add(value(probe, i, 1))
    ways = len(runs)
    with pytest.raises(DeviceError, match="the value is 1001"):
        add(value(probe, np.sqrt(np.float32(1001)), 1))
    assert total.tolist() == [10, 5]
    add(value(probe, 1, 1))
    assert total.tolist() == [11, 6] and len(runs) == ways


def test_a_gradient_that_appears_takes_the_long_way(toy):
    w = mge.Parameter(np.array([1.0, 2.0], np.float32), device=toy)
    manager = GradManager().attach([w])

    @trace
    def backward(x):
        with manager:
            manager.backward((w * x).sum())

    for i in range(3):
        backward(value(toy, 1, 2))
        assert w.grad.tolist() == [1 + i, 2 + 2 * i]
    w.grad = None
    backward(value(toy, 1, 2))
    assert w.grad.tolist() == [1, 2]


def test_a_step_that_fails_is_named_and_later_calls_work(native_device, runs):
    probe = native_device("probe")
    negated = trace(lambda x, y: -(x * y))
    one = value(probe, 1, 1)
    for _ in range(3):
        assert negated(value(probe, 1, 2), one).tolist() == [-1, -2]
    with pytest.raises(DeviceError, match=r"neg on probe:0: the value is 1001") as caught:
        negated(value(probe, 1, 1001), one)
    assert "test_traced_calls.py" in str(caught.value), "the user's line"
    assert negated(value(probe, 1, 2), one).tolist() == [-1, -2]
    assert len(runs) == 1


def test_threads_take_turns(toy):
    double = trace(lambda x: (x + x) * x)
    inputs = [value(toy, *range(i, i + 64)) for i in range(4)]
    wrong = []

    def work(i):
        for _ in range(200):
            array = double(inputs[i]).numpy()
            if not np.array_equal(array, 2 * np.arange(i, i + 64, dtype=np.float32) ** 2):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_thousand_calls_leak_nothing(toy):
    double, x = trace(lambda x: x + x), value(toy, 1, 2)
    for _ in range(10):
        double(x)
    gc.collect()
    blocks = toy.pool.live_blocks
    for _ in range(1000):
        double(x)
    assert toy.pool.live_blocks == blocks


def test_calls_of_ops_are_recorded_with_the_users_line(toy):
    x = value(toy, 1)
    node = F.relu(x)._node
    assert node.place.partition("test_traced_calls.py:")[2].isdigit()
    assert (x + x)._node.place.partition(":")[0] == __file__
    with pytest.raises(mge.errors.ShapeError, match="test_traced_calls"):
        F.matmul(x, mge.tensor(np.ones((2, 2), np.float32), device=toy))
    for _ in range(2):
        assert F.split(value(toy, 1, 2), 2)[1].tolist() == [2]
        assert F.concat([x, x], axis=0).tolist() == [1, 1]
        assert F.sum(value(toy, 1, 2), axis=0, keepdims=True).tolist() == [3]
