"""Gradients: the basics in each way of running, what counts as constant, and callbacks."""

import numpy as np
import pytest

import mge
import mge.functional as F
from mge.autodiff import GradManager
from mge.errors import ArgumentError
from mge.jit import trace
from mge.tape import ACTIVE


def floats(*values):
    return mge.tensor(np.array(values, np.float32))


@pytest.fixture(params=["plain", "traced", "eager"])
def run(request):
    """Call a function of no arguments: as it is, traced, or eagerly; three times, so that plans come in."""

    def call(function, times=3):
        if request.param == "eager":
            with mge.eager():
                for _ in range(times):
                    result = function()
                return result
        chosen = trace(function) if request.param == "traced" else function
        for _ in range(times):
            result = chosen()
        return result

    call.mode = request.param
    return call


# The basics, in each way of running.


def test_gradients_are_added_to_grad(run):
    w = floats(1, 2, 3)
    manager = GradManager().attach(w)

    def step():
        with manager:
            loss = (w * w).sum()
            manager.backward(loss)
        return loss

    loss = run(step, 3)
    assert loss.item() == 14
    assert w.grad.numpy().tolist() == [6, 12, 18]  # three times 2w: nobody cleared it


def test_a_cleared_grad_starts_anew(run):
    w = floats(1, 2, 3)
    manager = GradManager().attach(w)

    def step():
        w.grad = None
        with manager:
            manager.backward((w * w).sum())
        return w.grad

    assert run(step, 4).numpy().tolist() == [2, 4, 6]
    assert w.grad.numpy().tolist() == [2, 4, 6]


def test_an_update_inside(run):
    w = floats(1, 2)
    manager = GradManager().attach(w)

    def step():
        with manager:
            loss = (w * w).sum()
            manager.backward(loss)
        w._assign(w - w.grad * 0.25)
        w.grad = None
        return loss

    losses = [run(step, 1).item() for _ in range(4)]
    assert losses == [5, 1.25, 0.3125, 0.078125]
    assert np.allclose(w.numpy(), [1 / 16, 2 / 16]) and w.grad is None


def test_a_branch_that_no_gradient_reaches_has_none(run):
    w, v = floats(1, 2), floats(3)
    manager = GradManager().attach([w, v])

    def step():
        w.grad = None
        with manager:
            manager.backward((w * 3).sum())
        return w.grad

    assert run(step).numpy().tolist() == [3, 3]
    assert v.grad is None


def test_detach_stops_gradients(run):
    w = floats(2, 3)
    manager = GradManager().attach(w)

    def step():
        w.grad = None
        with manager:
            manager.backward((w * (w * w).detach()).sum())
        return w.grad

    assert run(step).numpy().tolist() == [4, 9]


def test_dy_weighs_the_result(run):
    w = floats(1, 2)
    dy = floats(10, 100)
    manager = GradManager().attach(w)

    def step():
        w.grad = None
        with manager:
            manager.backward(w * w, dy)
        return w.grad

    assert run(step).numpy().tolist() == [20, 400]


def test_a_result_that_is_no_scalar_counts_as_its_sum(run):
    w = floats(1, 2)
    manager = GradManager().attach(w)

    def step():
        w.grad = None
        with manager:
            manager.backward(w * w)
        return w.grad

    assert run(step).numpy().tolist() == [2, 4]


def test_several_results(run):
    w = floats(1, 2)
    manager = GradManager().attach(w)

    def step():
        w.grad = None
        with manager:
            manager.backward([w * 2, w * w, w], [None, floats(1, 10), floats(5, 5)])
        return w.grad

    assert run(step).numpy().tolist() == [2 + 2 + 5, 2 + 40 + 5]


def test_a_result_given_twice_counts_twice():
    w = floats(1, 2)
    manager = GradManager().attach(w)
    with manager:
        y = w * 3
        manager.backward([y, y])
    assert w.grad.numpy().tolist() == [6, 6]


def test_the_result_may_be_the_attached_tensor():
    w = floats(1, 2)
    manager = GradManager().attach(w)
    with manager:
        manager.backward(w)
    assert w.grad.numpy().tolist() == [1, 1]


def test_a_node_that_is_target_and_inner(run):
    """Both a tensor and what was computed from it are attached."""
    w = floats(2, 3)

    def step():
        manager = GradManager().attach(w)
        w.grad = None
        with manager:
            y = w * w
            manager.attach(y)
            manager.backward((y * 5).sum())
            return w.grad, y.grad

    dw, dy = run(step)
    assert dy.numpy().tolist() == [5, 5] and dw.numpy().tolist() == [20, 30]


def test_grad_has_the_type_of_the_tensor():
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        w = mge.tensor([[1.0], [2.0]], dtype=dtype)
        manager = GradManager().attach(w)
        with manager:
            manager.backward((w * mge.tensor([[1.0, 2.0, 3.0]], dtype=dtype)).sum())
        assert (w.grad.dtype, w.grad.shape) == (dtype, (2, 1))
        assert w.grad.numpy().tolist() == [[6], [6]]


# What counts.


def test_what_was_recorded_earlier_is_constant(run):
    w = floats(2, 3)
    manager = GradManager().attach(w)

    def step():
        w.grad = None
        y = w * w  # pending, and constant
        with manager:
            manager.backward((w * y).sum())
        return w.grad

    assert run(step).numpy().tolist() == [4, 9]


def test_an_attached_tensor_counts_as_what_it_was_at_record(run):
    w = floats(2, 3)
    manager = GradManager()

    def step():
        x = w * w
        manager.attach(x)
        with manager:
            manager.backward((x * 3).sum())
            return x.grad

    assert run(step).numpy().tolist() == [3, 3]
    assert w.grad is None


def test_a_rebound_handle_is_a_recorded_value(run):
    """``x += 1`` inside starts a recorded value; the gradient is by what was attached."""
    w = floats(2, 3)
    manager = GradManager().attach(w)

    def step():
        w.set_value([2, 3])
        w.grad = None
        with manager:
            w.__imul__(w)
            manager.backward((w * 5).sum())
        return w.grad

    assert run(step).numpy().tolist() == [20, 30]
    assert w.numpy().tolist() == [4, 9]


def test_item_assignment_inside(run):
    w, v = floats(1, 2, 3), floats(10)
    manager = GradManager().attach([w, v])

    def step():
        w.grad = v.grad = None
        with manager:
            x = w * 2
            x[1:2] = v * 3
            manager.backward((x * x).sum())
        return w.grad, v.grad

    dw, dv = run(step)
    assert dw.numpy().tolist() == [8, 0, 24] and dv.numpy().tolist() == [180]


def test_attach_while_active(run):
    w, v = floats(2, 3), floats(5, 7)

    def step():
        manager = GradManager()
        w.grad = None
        with manager:
            y = v * 2
            manager.attach(w)
            z = w * y
            z.sum() if run.mode == "traced" else z.sum().numpy()  # a read on the way keeps the history
            manager.backward((z * w).sum())
        return w.grad

    assert run(step).numpy().tolist() == [40, 84]


def test_an_attached_handle_that_changed_before_record():
    w = floats(2)
    manager = GradManager().attach(w)
    w += 1
    with manager:
        manager.backward(w * w)
    assert w.grad.item() == 6


def test_reading_inside_changes_nothing():
    for reads in (0, 1, 2):
        w = floats(1, 2)
        manager = GradManager().attach(w)
        for _ in range(3):
            w.grad = None
            with manager:
                a = w * w
                if reads:
                    a.numpy()
                b = F.exp(a * 0.1)
                if reads > 1:
                    b.numpy()
                c = (b * a).sum()
                c.numpy()
                manager.backward(c)
            wanted = np.exp([0.1, 0.4]) * (0.1 * np.array([1, 4]) + 1) * np.array([2, 4])
            assert np.allclose(w.grad.numpy(), wanted), reads


@pytest.mark.parametrize("reads", [False, True])
def test_a_read_keeps_what_gradients_need_and_computes_nothing_twice(reads, counts):
    calls = []

    def note(x):
        calls.append(1)
        return x.copy()

    w = floats(1, 2)
    manager = GradManager().attach(w)
    for _ in range(3):
        w.grad = None
        calls.clear()
        with manager:
            noted = F.host_call(note, [((2,), "float32")], floats(3, 4))
            y = F.exp(w * noted)
            loss = y.sum()
            del y, noted
            if reads:
                loss.numpy()
            manager.backward(loss)
        w.grad.numpy()
        assert len(calls) == 1
        assert np.allclose(w.grad.numpy(), np.exp([3, 8]) * [3, 4])


def test_ops_with_several_outputs_after_a_read():
    w = floats(3, 1, 2)
    manager = GradManager().attach(w)
    for read in (False, True, True):
        w.grad = None
        with manager:
            values, indices = F.topk(w, 2, descending=True)
            loss = (values * values).sum()
            if read:
                loss.numpy()
            del indices
            manager.backward(loss)
        assert w.grad.numpy().tolist() == [6, 0, 4]


# Callbacks.


def test_callbacks_run_in_order_once_per_tensor_after_the_whole_backward(run):
    w, v = floats(1, 2), floats(3, 4)
    calls = []

    def one(tensor, grad):
        calls.append(("one", tensor is w))
        return grad * 2

    def two(tensor, grad):
        calls.append(("two", tensor is w))
        return grad + 1

    manager = GradManager().attach([w, v], callbacks=[one, two])

    def step():
        w.grad = v.grad = None
        calls.clear()
        with manager:
            manager.backward((w * v + w * v).sum())  # two paths: still one call for each tensor
        return w.grad, v.grad

    dw, dv = run(step, 2)
    assert dw.numpy().tolist() == [2 * 6 + 1, 2 * 8 + 1] and dv.numpy().tolist() == [5, 9]
    if run.mode != "traced":
        assert calls == [("one", True), ("two", True), ("one", False), ("two", False)]


def test_callbacks_get_the_gradient_of_this_pass_alone():
    w = floats(1, 2)
    seen = []
    manager = GradManager().attach(w, callbacks=lambda t, g: seen.append(g.numpy().tolist()) or g)
    for _ in range(3):
        with manager:
            manager.backward((w * 3).sum())
    assert seen == [[3, 3]] * 3 and w.grad.numpy().tolist() == [9, 9]


def test_attaching_again_adds_callbacks():
    w = floats(1)
    manager = GradManager().attach(w, lambda t, g: g * 2).attach(w, [lambda t, g: g + 1])
    with manager:
        manager.backward(w * 5)
    assert w.grad.item() == 11


def test_a_callback_must_return_a_tensor():
    w = floats(1)
    manager = GradManager().attach(w, lambda t, g: None)
    with pytest.raises(ArgumentError, match="callback returned None"), manager:
        manager.backward(w * 5)
    assert not ACTIVE and w.grad is None


def test_backward_without_a_result_does_nothing_but_release():
    w = floats(1)
    manager = GradManager().attach(w)
    with manager:
        manager.backward()
    assert w.grad is None and not ACTIVE
