"""Gradients: when a manager is active, several of them, and derivatives of higher order."""

import gc
import weakref

import numpy as np
import pytest

import mge
import mge.functional as F
from mge.autodiff import GradManager, gradients
from mge.errors import DTypeError, MgeError, TraceError
from mge.jit import trace
from mge.mode import MANAGERS
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


# record, release, with.


def test_record_and_release():
    w = floats(2)
    manager = GradManager().attach(w)
    manager.record()
    y = w * w
    manager.backward(y)
    assert w.grad.item() == 4
    manager.record()
    y = w * w
    manager.release()
    with pytest.raises(TraceError, match="not recording"):
        manager.backward(y)
    manager.release()  # once more does nothing


def test_backward_drops_the_history():
    w = floats(2)
    manager = GradManager().attach(w)
    with manager:
        y = w * w
        manager.backward(y)
        with pytest.raises(TraceError, match="not recording"):
            manager.backward(y)
    with manager:
        manager.backward(y)  # a constant for this pass
    assert w.grad.item() == 4


def test_the_history_is_freed_after_backward_and_release():
    for how in ("backward", "release"):
        w = floats(1, 2)
        manager = GradManager().attach(w)
        manager.record()
        hidden = F.exp(w * 2)
        node = weakref.ref(hidden._node)
        loss = (hidden * hidden).sum()
        del hidden
        loss.numpy()
        assert node() is not None  # the gradient needs it
        manager.backward(loss) if how == "backward" else manager.release()
        mge.sync()
        gc.collect()
        assert node() is None, how
        assert loss.numpy() > 0


def test_no_manager_keeps_no_history():
    x = floats(1, 2)
    hidden = F.exp(x)
    node = weakref.ref(hidden._node)
    y = hidden * 2
    del hidden
    y.numpy()
    assert node() is None


def test_an_error_inside_releases_the_manager():
    w = floats(1)
    manager = GradManager().attach(w)
    with pytest.raises(ZeroDivisionError), manager:
        raise ZeroDivisionError
    assert not ACTIVE and MANAGERS.get() == ()
    with manager:
        manager.backward(w * 2)
    assert w.grad.item() == 2


def test_an_error_in_backward_releases_the_manager():
    w = floats(1)
    manager = GradManager().attach(w)
    with manager, pytest.raises(DTypeError, match="float tensor"):
        manager.backward(mge.tensor([1]))
    assert not ACTIVE


def test_recording_twice_is_an_error():
    manager = GradManager()
    with manager, pytest.raises(TraceError, match="recording already"):
        manager.record()
    assert not ACTIVE


@pytest.mark.parametrize(
    ("attached", "text"),
    [
        (lambda: mge.tensor([1]), "only float tensors"),
        (lambda: 3.0, "only tensors"),
        (lambda: [floats(1), "w"], "only tensors"),
    ],
)
def test_what_cannot_be_attached(attached, text):
    manager = GradManager()
    with pytest.raises(DTypeError, match=text) as caught:
        manager.attach(attached() if not isinstance(attached(), float) else [attached()])
    assert __file__ in str(caught.value)
    assert manager.attached_tensors() == []


@pytest.mark.parametrize(
    ("y", "dy", "text"),
    [
        (lambda w: w * 2, lambda: floats(1, 2, 3), "must be the same"),
        (lambda w: [w, w], lambda: [None], "as many"),
        (lambda w: w > 1, lambda: None, "float tensor"),
        (lambda w: "loss", lambda: None, "float tensor|str"),
    ],
)
def test_what_backward_refuses(y, dy, text):
    w = floats(1, 2)
    manager = GradManager().attach(w)
    with pytest.raises(MgeError, match=text), manager:
        manager.backward(y(w), dy())
    assert w.grad is None and not ACTIVE


def test_attached_tensors_are_held_weakly():
    manager = GradManager()
    w, v = floats(1), floats(2)
    manager.attach([w, v])
    assert manager.attached_tensors() == [w, v] or len(manager.attached_tensors()) == 2
    del v
    assert len(manager.attached_tensors()) == 1
    with manager:
        manager.backward(w * 2)
    assert w.grad.item() == 2


def test_a_new_tensor_at_the_address_of_a_dead_one_is_not_attached():
    manager = GradManager()
    for _ in range(50):
        w = floats(1)
        manager.attach(w)
        del w
    v = floats(3)
    with manager:
        manager.backward(v * 2)
    assert v.grad is None


# Several managers.


def test_two_managers_side_by_side(run):
    """As for a GAN: two models, each with a manager."""
    w, v = floats(2), floats(3)
    first, second = GradManager().attach(w), GradManager().attach(v)

    def step():
        w.grad = v.grad = None
        with first:
            with second:
                y = w * v
                z = w * w * v
                second.backward(z)
            first.backward(y)
        return w.grad, v.grad

    dw, dv = run(step)
    assert (dw.item(), dv.item()) == (3, 4)


def test_managers_one_after_the_other(run):
    w, v = floats(2), floats(3)
    first, second = GradManager().attach(w), GradManager().attach(v)

    def step():
        w.grad = v.grad = None
        with first:
            first.backward(w * v)
        with second:
            second.backward(w * v)
        return w.grad, v.grad

    dw, dv = run(step)
    assert (dw.item(), dv.item()) == (3, 2)


def test_a_group_of_managers(run):
    w, v = floats(2), floats(3)
    first, second = GradManager().attach(w), GradManager().attach(v)

    def step():
        w.grad = v.grad = None
        with first | second as both:
            both.backward(w * w * v)
        return w.grad, v.grad

    dw, dv = run(step)
    assert (dw.item(), dv.item()) == (12, 4)
    assert not ACTIVE


def test_a_group_of_three_and_a_tensor_attached_to_two():
    w = floats(2)
    managers = [GradManager().attach(w) for _ in range(3)]
    group = managers[0] | managers[1] | managers[2]
    with group:
        group.backward(w * w)
    assert w.grad.item() == 12 and not ACTIVE


def test_one_manager_of_a_group_may_go_backward_alone():
    w, v = floats(2), floats(3)
    first, second = GradManager().attach(w), GradManager().attach(v)
    with first | second:
        y = w * v
        first.backward(y)
        second.backward(y * y)
    assert (w.grad.item(), v.grad.item()) == (3, 2 * 3 * 4)


# Higher order.


def test_second_derivative(run):
    w = floats(2, 3)

    def step():
        outer, inner = GradManager().attach(w), GradManager().attach(w)
        w.grad = None
        with outer:
            with inner:
                inner.backward((w * w * w).sum())
            first = w.grad  # 3 w**2
            w.grad = None
            outer.backward(first)
        return first, w.grad

    first, second = run(step)
    assert first.numpy().tolist() == [12, 27] and second.numpy().tolist() == [12, 18]


def test_third_derivative(run):
    w = floats(2, 3)

    def step():
        managers = [GradManager().attach(w) for _ in range(3)]
        w.grad = None
        y = None
        for m in managers:
            m.record()
        y = w**4
        for m in reversed(managers):
            m.backward(y)
            y, w.grad = w.grad, None
        return y

    assert run(step).numpy().tolist() == [48, 72]


def test_gradients_function_to_high_order(run):
    x = floats(0.3, 1.1)
    manager = GradManager().attach(x)

    def step():
        with manager:  # for eager mode, where without a manager each value is a constant at once
            y = F.sin(x)
            for _ in range(4):
                (y,) = gradients([y.sum()], [x])
        return y

    assert np.allclose(run(step).numpy(), np.sin([0.3, 1.1]), atol=1e-6)


def test_gradient_penalty(run):
    """The norm of a gradient by the input is part of a loss, as in WGAN-GP."""
    rng = np.random.default_rng(3)
    x = mge.tensor(rng.normal(size=(4, 3)).astype("float32"))
    w = mge.tensor(rng.normal(size=(3, 5)).astype("float32"))
    v = mge.tensor(rng.normal(size=(5, 1)).astype("float32"))
    by_x, by_w = GradManager(), GradManager().attach([w, v])

    def loss_of(w_, v_):
        with by_w:
            by_x.attach(x)
            with by_x:
                by_x.backward((F.tanh(x @ w_) @ v_).sum())
            dx, x.grad = x.grad, None
            penalty = ((F.sqrt((dx * dx).sum(1)) - 1) ** 2).mean()
            by_w.backward(penalty)
            return penalty

    def step():
        w.grad = v.grad = None
        penalty = loss_of(w, v)
        return penalty, w.grad, v.grad

    penalty, dw, dv = (t.numpy() for t in run(step))

    def by_hand(wn, vn):
        hidden = np.tanh(x.numpy().astype(np.float64) @ wn)
        dx = ((1 - hidden**2) * vn[:, 0]) @ wn.T
        return ((np.sqrt((dx**2).sum(1)) - 1) ** 2).mean()

    wn, vn = w.numpy().astype(np.float64), v.numpy().astype(np.float64)
    assert np.allclose(penalty, by_hand(wn, vn), atol=1e-5)
    eps = 1e-6
    for given, array, place in ((dw, wn, (1, 2)), (dv, vn, (3, 0))):
        shifted = array.copy()
        shifted[place] += eps
        args = (shifted, vn) if array is wn else (wn, shifted)
        assert np.isclose(
            (by_hand(*args) - by_hand(wn, vn)) / eps, given[place], rtol=1e-3, atol=1e-4
        )


def test_an_outer_manager_survives_the_release_of_an_inner_one_after_a_read():
    w = floats(2, 3)
    outer, inner = GradManager().attach(w), GradManager().attach(w)
    with outer:
        with inner:
            y = (w * w * w).sum()
            y.numpy()
            inner.backward(y)
        w.grad.numpy()
        first, w.grad = w.grad, None
        outer.backward(first * 1.0)
    assert w.grad.numpy().tolist() == [12, 18]


def test_what_an_inner_manager_did_before_is_constant_for_a_later_one():
    w = floats(2)
    first, second = GradManager().attach(w), GradManager().attach(w)
    with first:
        y = w * w
        y.numpy()
        with second:
            second.backward(y * w)  # y is constant
        assert w.grad.item() == 4
        w.grad = None
        first.backward(y)
    assert w.grad.item() == 4


# The gradient of a pending graph is found by the graph's structure.


def derivative(build, x, **options):
    """Return the gradient of ``build(x).sum()`` by ``x``, as floats."""
    x.grad = None
    gm = GradManager().attach(x)
    with gm:
        gm.backward(build(x).sum(), **options)
    return x.grad.tolist()


def test_a_step_that_looks_the_same_builds_its_gradient_once(counts):
    x = mge.tensor([1.0, 2.0])
    found = [derivative(lambda x: x * x, x) for _ in range(3)]
    assert found == [[2.0, 4.0]] * 3 and counts.gradients_built <= 1


def test_a_step_that_changes_gets_its_own_gradient():
    x = mge.tensor([1.0, 2.0])
    for _ in range(2):
        assert derivative(lambda x: x * x, x) == [2.0, 4.0]
        assert derivative(lambda x: x * x * x, x) == [3.0, 12.0]
        assert derivative(lambda x: x.detach() * x, x) == [1.0, 2.0]
        assert derivative(lambda x: x * x, x, dy=mge.tensor(2.0)) == [4.0, 8.0]


def test_what_was_recorded_before_the_manager_stays_constant():
    for early in (False, True, False):
        x = mge.tensor([3.0])
        gm = GradManager().attach(x)
        y = x * x if early else None
        with gm:
            y = x * x if y is None else y
            gm.backward((y * x).sum())
        assert x.grad.tolist() == ([9.0] if early else [27.0])


def test_a_value_that_is_read_halfway_keeps_its_history():
    for reads in (False, True, False):
        x = mge.tensor([3.0])
        gm = GradManager().attach(x)
        with gm:
            y = x * x
            if reads:
                y.numpy()
            gm.backward((y * x).sum())
        assert x.grad.tolist() == [27.0]


def test_outputs_of_one_call_give_gradients_each_time():
    weight, bias = mge.tensor([2.0, 1.0]), mge.tensor([0.0, 1.0])
    x = mge.tensor([[1.0, 2.0], [3.0, 5.0]])
    found = [
        derivative(lambda x: F.batch_norm(x, weight=weight, bias=bias, training=True) ** 2, x)
        for _ in range(3)
    ]
    assert found[0] == found[1] == found[2] and np.abs(found[0]).max() > 0
