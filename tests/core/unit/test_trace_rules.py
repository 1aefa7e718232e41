"""Traces: the epoch, side effects, reading inside, an outer manager, and ``check=True``."""

import inspect

import numpy as np
import pytest

import mge
import mge.functional as F
from mge import autodiff, graph
from mge.errors import (
    InternalError,
    ShapeError,
    TraceError,
)
from mge.jit import trace
from mge.mode import MODE
from mge.tensor import ModuleBuffer

SCALE = 2.0
CONFIG = {"rate": 0.5, "sizes": [1, 2]}


class Settings:
    bias = 1.0


def line():
    return inspect.currentframe().f_back.f_lineno


def floats(*values):
    return mge.tensor(np.array(values, np.float32))


# The epoch of Modules and Optimizers.


def test_a_bumped_epoch_checks_again(calls, counts):
    class Thing:
        mode = "add"

        def __setattr__(self, name, value):
            object.__setattr__(self, name, value)
            graph.bump_epoch()

        def __call__(self, x):
            return x + 1 if self.mode == "add" else x * 10

    holder = {"thing": Thing()}
    traced = trace(lambda x: calls() or holder["thing"](x))
    assert traced(floats(3)).item() == 4
    holder["thing"].mode = "mul"
    assert traced(floats(3)).item() == 30
    assert traced(floats(3)).item() == 30
    holder["thing"].mode = "add"
    assert traced(floats(3)).item() == 4
    epoch = graph.EPOCH[0]
    before = len(calls)
    traced(floats(3))
    assert graph.EPOCH[0] == epoch and len(calls) == before, "an unchanged epoch costs nothing"


def test_train_and_eval_of_a_module(counts):
    import mge.module as M

    net = M.Sequential(M.Linear(3, 3), M.Dropout(0.5))
    traced = trace(lambda x: net(x))
    x = mge.tensor(np.ones((4, 3), np.float32))
    net.eval()
    wanted = net(x).numpy()
    assert (traced(x).numpy() == wanted).all() and (traced(x).numpy() == wanted).all()
    net.train()
    first, second = traced(x).numpy(), traced(x).numpy()
    assert (first == 0).any() or (second == 0).any()
    assert (first != second).any()
    net.eval()
    assert (traced(x).numpy() == wanted).all()


def test_an_attribute_and_a_hook_of_a_module():
    import mge.module as M

    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.factor = 2.0

        def forward(self, x):
            return x * self.factor

    net = Net()
    traced = trace(lambda x: net(x))
    assert traced(floats(3)).item() == 6
    net.factor = 5.0
    assert traced(floats(3)).item() == 15
    hook = net.register_forward_hook(lambda module, args, result: result + 1)
    assert traced(floats(3)).item() == 16
    hook.remove()
    assert traced(floats(3)).item() == 15


def test_statistics_of_batch_norm_are_replayed():
    import mge.module as M

    rng = np.random.default_rng(0)
    data = [mge.tensor(rng.normal(size=(6, 3)).astype("float32")) for _ in range(4)]
    plain, net = M.BatchNorm1d(3), M.BatchNorm1d(3)
    traced = trace(lambda x: net(x))
    for x in data:
        assert (plain(x).numpy() == traced(x).numpy()).all()
    for name in ("running_mean", "running_var"):
        assert (getattr(plain, name).numpy() == getattr(net, name).numpy()).all()


# Side effects.


def test_a_value_that_the_function_writes_is_a_side_effect(capsys, counts):
    step = 0

    @trace
    def count(x):
        nonlocal step
        step += 1
        return x * 2

    for i in range(4):
        assert count(floats(i)).item() == 2 * i
    assert step == 1 and counts.traces == 1  # neither guarded nor replayed
    text = capsys.readouterr().err
    assert text.count("step") == 1 and "count" in text and "only while it is traced" in text


COUNTER = 0


def test_a_global_that_the_function_writes(capsys, counts):
    def count(x):
        global COUNTER
        COUNTER += 1
        return x * 2

    traced = trace(count)
    for i in range(3):
        assert traced(floats(i)).item() == 2 * i
    assert counts.traces == 1 and "COUNTER" in capsys.readouterr().err


# Reading.


READS = {
    "numpy": lambda x: x.numpy(),
    "item": lambda x: x.item(),
    "bool": lambda x: 1 if x > 0 else 2,
    "int": lambda x: int(x),
    "float": lambda x: float(x),
    "format": lambda x: f"{x:.1f}",
    "tolist": lambda x: x.tolist(),
    "asarray": lambda x: np.asarray(x),
    "range": lambda x: range(x.astype("int32")),
    "min of two": lambda x: min(x, x * 2),
}


@pytest.mark.parametrize("name", READS)
def test_reading_inside_is_an_error_that_names_the_line(name):
    first = inspect.getsourcelines(READS[name])[1]

    @trace
    def reads(x):
        return READS[name](x.sum() * 2)

    with pytest.raises(TraceError, match="value of a tensor") as caught:
        reads(floats(1, 2))
    assert caught.value.place == f"{__file__}:{first}" and "reads" in str(caught.value)
    assert MODE.get().recording is None
    assert (floats(1) + 1).item() == 2  # all is well afterwards


def test_a_shape_from_data_inside_names_the_other_form():
    @trace
    def positives(x):
        return F.cond_take(x > 0, x)

    with pytest.raises(TraceError, match="size="):
        positives(floats(1, -1, 2))

    @trace
    def padded(x):
        values, _, count = F.cond_take(x > 0, x, size=3)
        return values, count

    for _ in range(2):
        values, count = padded(floats(1, -1, 2))
        assert values.numpy()[: count.item()].tolist() == [1, 2]


def test_printing_inside_shows_the_type():
    @trace
    def shown(x):
        shown.text = repr(x * 2)
        return x

    shown(floats(1, 2))
    assert "f32[2]" in shown.text


def test_a_captured_tensor_is_not_read_either():
    w = floats(1)

    @trace
    def reads(x):
        return x * w.item()

    with pytest.raises(TraceError):
        reads(floats(1))


def test_an_error_inside_leaves_everything_as_it_was():
    w = floats(1)
    w.grad = floats(7)

    @trace
    def fails(x):
        w._assign(w * 2)
        w.grad = None
        return x @ x.reshape(3, 1)

    with pytest.raises(ShapeError) as caught:
        fails(floats(1, 2))
    assert __file__ in str(caught.value)
    assert w.item() == 1 and w.grad.item() == 7 and MODE.get().recording is None


# Under a manager.


def test_under_an_outer_manager_it_is_one_differentiable_node(counts):
    w = floats(2)
    manager = autodiff.GradManager().attach(w)

    @trace
    def model(x):
        return F.exp(x * w) * w

    for i in range(4):
        w.grad = None
        x = floats(0.1 * i)
        with manager:
            y = model(x)
            assert y._node.sig.op.name in ("call", "get")
            manager.backward(y)
        wanted = np.exp(0.2 * i) * (1 + 0.1 * i * 2)
        assert w.grad.item() == pytest.approx(wanted, rel=1e-5)
    assert counts.traces == 1


def test_an_argument_is_differentiated_through_a_trace():
    x = floats(2, 3)
    manager = autodiff.GradManager().attach(x)
    model = trace(lambda x: {"y": x * x, "z": x.sum()})
    for _ in range(3):
        x.grad = None
        with manager:
            made = model(x)
            manager.backward((made["y"] * 2).sum() + made["z"] * 10)
        assert x.grad.numpy().tolist() == [18, 22]


def test_a_trace_that_rebinds_under_a_manager():
    w, mean = floats(2), ModuleBuffer(floats(0))
    manager = autodiff.GradManager().attach(w)

    @trace
    def model(x):
        mean._assign(mean * 0.5 + x.detach() * 0.5)
        return (x * w - mean) ** 2

    for i in range(4):
        w.grad = None
        with manager:
            manager.backward(model(floats(1)))
        m = 1 - 0.5 ** (i + 1)
        assert mean.item() == pytest.approx(m)
        assert w.grad.item() == pytest.approx(2 * (2 - m))


def test_a_trace_inside_a_trace(calls):
    @trace
    def inner(x):
        calls()
        return x * 2

    @trace
    def outer(x):
        return inner(x) + 1

    for i in range(3):
        assert outer(floats(i)).item() == 2 * i + 1
    assert inner(floats(5)).item() == 10


def test_gradients_of_gradients_through_a_trace():
    x = floats(2, 3)
    model = trace(lambda x: x * x * x)
    for _ in range(3):
        x.grad = None
        outer, inner = autodiff.GradManager().attach(x), autodiff.GradManager().attach(x)
        with outer:
            with inner:
                inner.backward(model(x).sum())
            first, x.grad = x.grad, None
            outer.backward(first.sum())
        assert x.grad.numpy().tolist() == [12, 18]


# check=True.


def test_check_compares_with_the_python_function(calls):
    w = mge.Parameter(floats(1))

    @trace(check=True)
    def step(x):
        calls()
        y = x * w
        w._assign(w * 2)
        return y

    assert [step(floats(3)).item() for _ in range(4)] == [3, 6, 12, 24]
    assert w.item() == 16
    assert len(calls) >= 4


def test_check_finds_what_a_trace_does_not_see():
    hidden = {"n": 0}

    def sneaky():
        hidden["n"] += 1
        return hidden["n"]

    @trace(check=True)
    def step(x):
        return x * float(sneaky())

    with pytest.raises(InternalError, match="differs from that of the Python function"):
        [step(floats(3)) for _ in range(3)]


def test_check_with_random_numbers():
    rng = mge.random.RNG(seed=3)

    @trace(check=True)
    def draw(x):
        return x + rng.uniform(size=2)

    for _ in range(3):
        draw(floats(0, 0))
