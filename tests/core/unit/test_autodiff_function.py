"""Gradients: the cache of gradient graphs, and functions with a gradient of one's own."""

import numpy as np
import pytest

import mge
import mge.functional as F
from mge.autodiff import Function, GradManager, gradients
from mge.errors import DTypeError, MgeError, ShapeError, UnsupportedError
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
        (
            type("NoBackward", (Function,), {"forward": lambda self, x: x * 2}),
            "backward is not written",
        ),
        (
            type(
                "Reads",
                (Function,),
                {"forward": lambda self, x: x * 2, "backward": lambda self, dy: dy * dy.item()},
            ),
            "value of a tensor",
        ),
        (
            type(
                "Two",
                (Function,),
                {"forward": lambda self, x: x * 2, "backward": lambda self, dy: (dy, dy)},
            ),
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
    with pytest.raises(UnsupportedError, match="max_trips"), manager:  # noqa: PT012
        (y,) = F.while_loop(lambda v: v.sum() < 10, lambda v: (v * 2,), [x])
        manager.backward(y)


class _Square(Function):
    def forward(self, x):
        self.x = x
        return x * x

    def backward(self, dy):
        return 2 * self.x * dy


class _Exp(Function):
    def forward(self, x):
        self.y = F.exp(x)
        return self.y

    def backward(self, dy):
        return self.y * dy


@pytest.mark.parametrize("decorate", [lambda f: f, trace])
@pytest.mark.parametrize(
    ("function", "second"),
    [
        (lambda x: _Square()(x), lambda x: 2 * np.ones_like(x)),
        (lambda x: _Square()(x) * x, lambda x: 6 * x),
        (lambda x: _Exp()(x), np.exp),
    ],
)
def test_saved_inputs_and_results_are_differentiable(decorate, function, second):
    x = mge.tensor([1.0, 2.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)

    def run():
        with outer:
            with inner:
                inner.backward(F.sum(function(x)))
            first, x.grad = x.grad, None
            outer.backward(F.sum(first))
        found, x.grad = x.grad, None
        return found

    np.testing.assert_allclose(decorate(run)().numpy(), second(np.array([1.0, 2.0])), rtol=1e-6)


def test_a_gradient_of_a_wrong_shape_names_the_class():
    class Wrong(Function):
        def forward(self, x):
            return x * 2

        def backward(self, dy):
            return dy.sum()

    x = mge.tensor([1.0, 2.0])
    with (
        pytest.raises(mge.ShapeError, match=r"Wrong\.backward: gradient 0"),
        GradManager().attach(x),
    ):
        Wrong()(x)
