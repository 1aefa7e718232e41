"""Gradients: managers, what counts as constant, callbacks, several managers, higher order, functions of one's own."""

import gc
import weakref

import numpy as np
import pytest

import mge
import mge.functional as F
from mge.autodiff import Function, GradManager, gradients
from mge.errors import ArgumentError, DTypeError, MgeError, ShapeError, TraceError, UnsupportedError
from mge.grad import ACTIVE
from mge.jit import trace
from mge.mode import MANAGERS


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
        1 / 0
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
    [(lambda: mge.tensor([1]), "only float tensors"), (lambda: 3.0, "only tensors"), (lambda: [floats(1), "w"], "only tensors")],
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
        assert np.isclose((by_hand(*args) - by_hand(wn, vn)) / eps, given[place], rtol=1e-3, atol=1e-4)


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


# The gradient graph is cached.


def test_the_gradient_of_a_structure_is_built_once(counts):
    w = floats(1, 2)
    manager = GradManager().attach(w)
    for i in range(5):
        w.grad = None
        with manager:
            manager.backward((F.exp(w * float(i)) * 2).sum())
        w.grad.numpy()
    assert counts.gradients_built <= 1  # the structure may be known from before


def test_the_cached_gradient_depends_on_roots_attached_and_dy(counts):
    w, v = floats(2), floats(3)
    for targets, roots in (("wv", 1), ("w", 1), ("v", 1), ("wv", 2)):
        for dy in (False, True):
            for _ in range(2):
                w.grad = v.grad = None
                manager = GradManager().attach([{"w": w, "v": v}[t] for t in targets])
                with manager:
                    y, z = w * w * v, w * v
                    ys = [y, z][:roots]
                    manager.backward(ys, [floats(10)] * roots if dy else None)
                scale = 10 if dy else 1
                dw = (12 + (3 if roots == 2 else 0)) * scale if "w" in targets else None
                dv = (4 + (2 if roots == 2 else 0)) * scale if "v" in targets else None
                assert [None if g is None else g.item() for g in (w.grad, v.grad)] == [dw, dv]


def test_gradients_refuse_what_does_not_fit():
    x = floats(1, 2)
    with pytest.raises(DTypeError, match="float"):
        gradients([mge.tensor([1])], [x])
    with pytest.raises(ShapeError, match="must be the same"):
        gradients([x * 2], [x], [floats(1)])
    assert gradients([floats(1)], [x]) == [None]


def test_the_boundary_after_backward_and_no_read_in_a_pass(counts):
    w = floats(1, 2)
    manager = GradManager().attach(w)
    with manager:
        manager.backward((w * w).sum())
    assert counts.steps_run == 0


# Function.


class Clipped(Function):
    """The identity, with a gradient that is clipped: unlike what the rules would give."""

    def __init__(self, bound):
        self.bound = bound

    def forward(self, x):
        return x * 1

    def backward(self, dy):
        return F.clip(dy, -self.bound, self.bound)


class Saved(Function):
    """Uses a value of forward in backward."""

    def forward(self, x, y):
        self.x = x
        self.e = F.exp(y)
        return self.x * self.e, x + y

    def backward(self, dp, ds):
        return dp * self.e + ds, dp * self.x * self.e + ds


def test_a_function_has_its_own_gradient(run):
    w = floats(1, 2)
    manager = GradManager().attach(w)

    def step():
        w.grad = None
        with manager:
            manager.backward((Clipped(2.0)(w) * floats(1, 10)).sum())
        return w.grad

    assert run(step).numpy().tolist() == [1, 2]


def test_a_function_with_several_inputs_and_outputs_and_saved_values(run):
    x, y = floats(2, 3), floats(0.5, 1)
    manager = GradManager().attach([x, y])

    def step():
        x.grad = y.grad = None
        with manager:
            p, s = Saved()(x, y)
            manager.backward((p * 2 + s).sum())
        return p, s, x.grad, y.grad

    p, s, dx, dy = (t.numpy() for t in run(step))
    e = np.exp([0.5, 1]).astype(np.float32)
    assert np.allclose(p, [2, 3] * e) and np.allclose(s, [2.5, 4])
    assert np.allclose(dx, 2 * e + 1) and np.allclose(dy, 2 * e * [2, 3] + 1)


def test_an_output_of_a_function_that_is_not_used(run):
    x, y = floats(2, 3), floats(0.5, 1)
    manager = GradManager().attach([x, y])

    def step():
        x.grad = y.grad = None
        with manager:
            _, s = Saved()(x, y)
            manager.backward(s.sum())
        return x.grad, y.grad

    dx, dy = run(step)
    assert dx.numpy().tolist() == dy.numpy().tolist() == [1, 1]


def test_a_function_without_gradient_for_an_input():
    class First(Function):
        def forward(self, x, y):
            return x * y

        def backward(self, dy):
            return dy * 7, None

    x, y = floats(2), floats(3)
    manager = GradManager().attach([x, y])
    with manager:
        manager.backward(First()(x, y))
    assert x.grad.item() == 7 and (y.grad is None or y.grad.item() == 0)


def test_a_function_without_a_manager_and_with_integers():
    class Pick(Function):
        def forward(self, x, i):
            return F.expand_dims(x[i], 0)

        def backward(self, dy):
            return F.broadcast_to(dy, (3,)), None

    x, i = floats(1, 2, 3), mge.tensor(2)
    assert Pick()(x, i).numpy().tolist() == [3]
    manager = GradManager().attach(x)
    with manager:
        manager.backward(Pick()(x, i))
    assert x.grad.numpy().tolist() == [1, 1, 1]


def test_a_function_differentiates_to_second_order():
    """What backward computes from saved results counts as constant by them, and as a function of dy."""
    x = floats(2)
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer:
        with inner:
            y = Clipped(100.0)(x * x)
            inner.backward(y)
        first, x.grad = x.grad, None
        outer.backward(first * 3)
    assert x.grad.item() == 6


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (type("NoForward", (Function,), {}), "forward is not written"),
        (type("NoBackward", (Function,), {"forward": lambda self, x: x * 2}), "backward is not written"),
        (
            type("Reads", (Function,), {"forward": lambda self, x: x * 2, "backward": lambda self, dy: dy * dy.item()}),
            "value of a tensor",
        ),
        (
            type("Two", (Function,), {"forward": lambda self, x: x * 2, "backward": lambda self, dy: (dy, dy)}),
            "2 gradients for 1 inputs",
        ),
    ],
)
def test_what_a_function_does_wrong(kind, text):
    x = floats(1)
    manager = GradManager().attach(x)
    with pytest.raises((MgeError, NotImplementedError), match=text), manager:
        manager.backward(kind()(x))
    assert not ACTIVE


def test_a_function_takes_tensors():
    with pytest.raises(DTypeError, match="positional inputs must be tensors"):
        Clipped(1.0)(3.0)


def test_an_op_without_a_gradient_says_so():
    x = floats(1, 2)
    manager = GradManager().attach(x)
    with manager:
        y = F.host_call(lambda a: a * 2, [((2,), "float32")], x)
        manager.backward(y)  # Python at execution is a constant
    assert x.grad is None or (x.grad.numpy() == 0).all()
    manager = GradManager().attach(x)
    with pytest.raises(UnsupportedError, match="max_trips"), manager:
        (y,) = F.while_loop(lambda v: v.sum() < 10, lambda v: (v * 2,), [x])
        manager.backward(y)
