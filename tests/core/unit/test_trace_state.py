"""Traces: captured tensors count with their current values, and what the function changes is replayed."""

import copy
import functools
import inspect

import numpy as np
import pytest

import mge
import mge.functional as F
import mge.module as M
from mge import autodiff
from mge.errors import (
    MgeError,
)
from mge.jit import trace
from mge.tensor import ModuleBuffer

SCALE = 2.0
CONFIG = {"rate": 0.5, "sizes": [1, 2]}


class Settings:
    bias = 1.0


def line():
    return inspect.currentframe().f_back.f_lineno


def floats(*values):
    return mge.tensor(np.array(values, np.float32))


# Captured tensors.


def test_captured_tensors_are_inputs_with_their_current_values(calls):
    w = floats(1)

    @trace
    def scaled(x):
        calls()
        return x * w

    assert scaled(floats(3)).item() == 3
    w += 1
    assert scaled(floats(3)).item() == 6
    w.set_value([10])
    assert scaled(floats(3)).item() == 30
    w._assign(w * 2)
    assert scaled(floats(3)).item() == 60
    assert len(calls) == 1


def test_a_captured_tensor_of_another_shape_retraces(calls):
    w = floats(1)

    @trace
    def scaled(x):
        calls()
        return x * w

    assert scaled(floats(3)).item() == 3
    w._assign(floats(1, 2, 3))
    assert scaled(floats(3)).numpy().tolist() == [3, 6, 9]
    assert len(calls) == 2


def test_a_captured_variable_that_stands_for_another_tensor(calls):
    w = floats(2)

    def make():
        @trace
        def scaled(x):
            calls()
            return x * w

        return scaled

    scaled = make()
    assert scaled(floats(3)).item() == 6
    w = floats(5)  # another handle under the name
    assert scaled(floats(3)).item() == 15
    assert scaled(floats(3)).item() == 15


def test_a_list_of_captured_tensors(calls):
    weights = [floats(1), floats(2)]

    @trace
    def total(x):
        calls()
        for w in weights:
            x = x * w
        return x

    assert total(floats(3)).item() == 6
    weights[1] += 1
    assert total(floats(3)).item() == 9
    assert len(calls) == 1


def test_constants_made_inside_stay():
    @trace
    def shifted(x):
        return x + mge.tensor([1.0, 2.0]) + np.array([10, 20], np.float32) + F.zeros((2,))

    for _ in range(3):
        assert shifted(floats(0, 0)).numpy().tolist() == [11, 22]


# What the function changes.


def test_rebinding_is_replayed(calls):
    w, b = mge.Parameter(floats(1)), ModuleBuffer(floats(0))

    @trace
    def step(x):
        calls()
        nonlocal_free = x * w
        w._assign(w * 2)
        b.__iadd__(x)
        return nonlocal_free

    results = [step(floats(1)).item() for _ in range(5)]
    assert results == [1, 2, 4, 8, 16] and w.item() == 32 and b.item() == 5
    assert len(calls) == 1


def test_a_handle_that_is_rebound_and_read_again_inside():
    w = floats(1)

    @trace
    def step():
        w.__iadd__(1)
        y = w * 10
        w.__imul__(2)
        return y

    assert [step().item() for _ in range(4)] == [20, 50, 110, 230]
    assert w.item() == 46


def test_swap():
    a, b = floats(1), floats(2)

    @trace
    def swap():
        old = copy.copy(a)
        a._assign(b)
        b._assign(old)

    for i in range(4):
        swap()
        assert (a.item(), b.item()) == ((2, 1) if i % 2 == 0 else (1, 2))


def test_rebinding_an_argument_is_seen_outside():
    """``x += 1`` on an argument: the caller's handle, as without a trace."""

    def step(x):
        x += 1
        return x * 2

    plain, traced = floats(1), floats(1)
    for _ in range(3):
        assert step(plain).item() == trace(step)(traced).item()
    assert plain.item() == 4


def test_item_assignment_to_a_captured_tensor():
    cache = mge.tensor(np.zeros((3, 2), np.float32))

    @trace
    def store(i, row):
        cache[i] = row
        return cache.sum()

    totals = [store(mge.tensor(i), floats(i + 1, 1)).item() for i in range(3)]
    assert totals == [2, 5, 9] and cache.numpy().tolist() == [[1, 1], [2, 1], [3, 1]]


def test_grad_is_replayed(calls):
    w = floats(1, 2)
    manager = autodiff.GradManager().attach(w)

    @trace
    def step(x):
        calls()
        with manager:
            loss = (w * w * x).sum()
            manager.backward(loss)
        return loss

    step(floats(1, 1))
    assert w.grad.numpy().tolist() == [2, 4]
    step(floats(1, 1))  # now there is a grad to add to: another graph
    assert w.grad.numpy().tolist() == [4, 8]
    step(floats(1, 10))
    assert w.grad.numpy().tolist() == [6, 48]
    assert len(calls) == 2
    w.grad = None
    step(floats(1, 1))
    assert w.grad.numpy().tolist() == [2, 4]
    assert len(calls) == 2


def test_a_grad_that_is_cleared_inside(calls):
    w = floats(1, 2)
    manager = autodiff.GradManager().attach(w)

    @trace
    def step():
        calls()
        w.grad = None
        with manager:
            manager.backward((w * w).sum())
        w._assign(w - w.grad * 0.25)
        w.grad = None

    for _ in range(3):
        step()
    assert w.grad is None and w.numpy().tolist() == [0.125, 0.25] and len(calls) == 1


def test_a_grad_that_is_set_outside_is_an_input(calls):
    w = floats(1)

    @trace
    def update():
        calls()
        w._assign(w - w.grad)

    for i in range(4):
        w.grad = floats(i)
        update()
    assert w.item() == 1 - 6 and len(calls) == 1


def test_parameters_are_written_in_place(counts):
    w = mge.Parameter(np.ones(1000, np.float32))

    @trace
    def step():
        w._assign(w * 2)

    addresses = set()
    for _ in range(6):
        step()
        addresses.add(w._node.buffer.array.ctypes.data)
    assert len(addresses) <= 2 and w.numpy()[0] == 64
    old = w.numpy()
    step()
    assert old[0] == 64 and w.numpy()[0] == 128


def test_generator_state_is_replayed(calls):
    rng = mge.random.RNG(seed=7)
    wanted = [rng.uniform(size=3).numpy().tolist() for _ in range(5)]
    rng = mge.random.RNG(seed=7)

    @trace
    def draw():
        calls()
        return rng.uniform(size=3)

    assert [draw().numpy().tolist() for _ in range(4)] == wanted[:4]
    assert rng.uniform(size=3).numpy().tolist() == wanted[4]
    assert len(calls) == 1


def test_the_default_generator_is_replayed():
    def draw(x):
        return F.dropout(x, 0.5, True)

    x = mge.tensor(np.ones(20, np.float32))
    mge.random.seed(5)
    wanted = [draw(x).numpy().tolist() for _ in range(4)]
    mge.random.seed(5)
    traced = trace(draw)
    assert [traced(x).numpy().tolist() for _ in range(4)] == wanted
    mge.random.seed(5)
    assert traced(x).numpy().tolist() == wanted[0]


# What passes through handles.


def test_a_copy_from_one_handle_to_another_is_replayed():
    """As for a target network: the value is that of the source at the time of each call."""
    source, target = floats(1), floats(0)
    for copy_over in (lambda: target._assign(source), lambda: target.set_value(source)):
        traced = trace(copy_over)
        for i in range(4):
            source.set_value([i])
            traced()
            assert target.item() == i


def test_a_captured_tensor_that_is_returned():
    w = floats(1)
    traced = trace(lambda x: (w, mge.Tensor(w), copy.copy(w), x))
    for i in range(3):
        w.set_value([i])
        assert [t.item() for t in traced(floats(9))] == [i, i, i, 9]


def test_a_gradient_that_is_given_from_outside():
    w, dy = floats(2), floats(1)
    manager = autodiff.GradManager().attach(w)

    @trace
    def step():
        w.grad = None
        with manager:
            manager.backward(w * w, dy)
        return w.grad

    for i in range(3):
        dy.set_value([i])
        assert step().item() == 4 * i


def test_branches_use_current_values():
    w = floats(1)

    @trace
    def step(x):
        (y,) = F.while_loop(lambda v: v.sum() < 10, lambda v: (v + w,), [x])
        return F.cond(x.sum() > 0, lambda x: x * w, lambda x: x - w, x), y

    for i in range(1, 4):
        w.set_value([i])
        for _ in range(2):
            y, z = step(floats(2))
            assert y.item() == 2 * i and z.item() == next(v for v in range(2, 99, i) if v >= 10)
            assert step(floats(-1))[0].item() == -1 - i


def test_an_argument_is_rebound_outside():
    @trace
    def step(pair, scale):
        x, y = pair
        x += scale
        old = x * 1
        y._assign(old)
        return old

    for mode in ("plain", "under a manager"):
        x, y = floats(1), floats(5)
        for i in range(1, 4):
            if mode == "plain":
                step((x, y), 1.0)
            else:
                manager = autodiff.GradManager().attach(x)
                with manager:
                    manager.backward(step([x, y], 1.0))
                assert x.grad.item() == i
            assert (x.item(), y.item()) == (1 + i, 1 + i)


def test_swapped_arguments():
    @trace
    def swap(x, y):
        old = copy.copy(x)
        x._assign(y)
        y._assign(old)

    x, y = floats(1), floats(2)
    for i in range(4):
        swap(x, y)
        assert (x.item(), y.item()) == ((2, 1) if i % 2 == 0 else (1, 2))


def test_an_escaped_value_is_an_error_when_it_is_read():
    kept = []
    traced = trace(lambda x: kept.append(x * 2) or x + 1)
    assert traced(floats(1)).item() == 2
    with pytest.raises(MgeError, match="inside a traced function"):
        kept[0].numpy()
    assert traced(floats(5)).item() == 6


# What is returned.


def test_what_is_returned_is_the_value_at_the_end():
    w = floats(1)

    @trace
    def step(x):
        w._assign(w * 2)
        x += 5
        return w, x, [w, x * 1]

    for i in range(1, 4):
        a, b, (c, d) = step(floats(i))
        assert [t.item() for t in (a, b, c, d)] == [2**i, i + 5, 2**i, i + 5]
    a += 1
    assert w.item() == 8 and c.item() == 8


def test_a_grad_from_outside_that_is_changed_in_place():
    w = floats(1)

    @trace
    def unscale():
        w.grad *= 0.5

    for i in range(1, 4):
        w.grad = floats(i)
        unscale()
        assert w.grad.item() == i / 2
        unscale()
        assert w.grad.item() == i / 4


def test_a_number_that_is_returned():
    traced = trace(lambda n, rate: (n, rate, n * 2 + 1, rate / 4))
    for n, rate in ((1, 0.5), (7, 0.25)):
        made = traced(n, rate)
        assert [float(v) for v in made] == [n, rate, 2 * n + 1, rate / 4]


def test_autocast_belongs_to_the_key():
    function = trace(lambda x: F.matmul(x, x))
    x = mge.tensor(np.ones((4, 4)))
    assert function(x).dtype == "float32"
    with mge.amp.autocast():
        assert function(x).dtype == "float16"
    assert function(x).dtype == "float32"


def test_a_generator_made_inside_a_trace_goes_on(monkeypatch):
    from mge.ops import generators

    monkeypatch.setattr(generators, "_default_states", {})
    noise = trace(lambda x: x + mge.random.uniform(size=(4,)))
    drawn = [noise(mge.tensor([0.0])).numpy().tolist() for _ in range(3)]
    assert drawn[0] != drawn[1] != drawn[2]


def test_an_array_from_outside_is_guarded_by_its_elements():
    array = np.zeros(1, np.float32)
    function = trace(lambda x: x + array)
    assert function(mge.tensor([1.0])).item() == 1
    array[0] = 9
    assert function(mge.tensor([1.0])).item() == 10


def test_values_inside_a_modules_attributes_are_guarded():
    class Options:
        scale = 1.0

    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.named, self.listed, self.options = {"z": 1.0}, [1.0], Options()

        def forward(self, x):
            return x * self.named["z"] + self.listed[0] + self.options.scale

    net = Net()
    function = trace(lambda x: net(x))
    x = mge.tensor([1.0])
    assert function(x).item() == 3
    net.named["z"] = 2.0
    assert function(x).item() == 4
    net.listed[0] = 5.0
    assert function(x).item() == 8
    net.options.scale = 9.0
    assert function(x).item() == 16


def test_a_module_and_a_partial_can_be_traced():
    net = M.Linear(2, 3)
    x = mge.tensor(np.ones((1, 2)))
    assert np.array_equal(trace(net)(x).numpy(), net(x).numpy())
    assert trace(functools.partial(F.mul, x))(x).shape == (1, 2)
