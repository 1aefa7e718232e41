"""Traces: plain values from closures, globals, defaults and objects are guarded."""

import inspect
import math

import numpy as np
import pytest

import mge
import mge.functional as F
from mge import graph
from mge.debug import debug
from mge.jit import trace
from mge.mode import MODE

SCALE = 2.0
CONFIG = {"rate": 0.5, "sizes": [1, 2]}


class Settings:
    bias = 1.0


def line():
    return inspect.currentframe().f_back.f_lineno


def floats(*values):
    return mge.tensor(np.array(values, np.float32))


# Guards.


def scaled_by_global(x):
    return x * SCALE


def calls_another(x):
    return scaled_by_global(x) + CONFIG["rate"]


def reads_class(x):
    return x + Settings.bias


def test_a_global_is_guarded(monkeypatch, counts):
    traced = trace(scaled_by_global)
    assert traced(floats(3)).item() == 6
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    assert traced(floats(3)).item() == 15
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    assert traced(floats(3)).item() == 6
    assert counts.traces == 2, "an earlier graph fits again"


def test_a_global_of_a_called_function_and_a_container(monkeypatch, counts):
    traced = trace(calls_another)
    assert traced(floats(3)).item() == 6.5
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert traced(floats(3)).item() == 9.5
    monkeypatch.setitem(CONFIG, "rate", 1.0)
    assert traced(floats(3)).item() == 10
    assert traced(floats(3)).item() == 10
    assert counts.traces == 3


def test_a_called_function_that_is_replaced(monkeypatch):
    traced = trace(calls_another)
    assert traced(floats(3)).item() == 6.5
    monkeypatch.setitem(globals(), "scaled_by_global", lambda x: x * 100)
    assert traced(floats(3)).item() == 300.5


def test_an_attribute_of_a_global(monkeypatch):
    traced = trace(reads_class)
    assert traced(floats(3)).item() == 4
    monkeypatch.setattr(Settings, "bias", 10.0)
    assert traced(floats(3)).item() == 13


def test_a_closure_is_guarded(calls):
    scale, sizes = 2.0, [1, 2]

    @trace
    def scaled(x):
        calls()
        return x * scale + sum(sizes)

    assert scaled(floats(3)).item() == 9
    scale = 4.0
    assert scaled(floats(3)).item() == 15
    sizes.append(10)
    assert scaled(floats(3)).item() == 25
    assert scaled(floats(3)).item() == 25
    assert len(calls) == 3


def test_an_attribute_of_a_closure_object():
    settings = Settings()
    settings.factor = 2.0

    @trace
    def scaled(x):
        return x * settings.factor

    assert scaled(floats(3)).item() == 6
    settings.factor = 7.0
    assert scaled(floats(3)).item() == 21


def test_a_closure_of_an_inner_function():
    factor = 2.0

    def inner(x):
        return x * factor

    @trace
    def outer(x):
        return inner(x) + 1

    assert outer(floats(3)).item() == 7
    factor = 3.0
    assert outer(floats(3)).item() == 10


def test_a_default_is_guarded():
    def scaled(x, factor=2.0):
        return x * factor

    def outer(x):
        return scaled(x)

    traced = trace(outer)
    assert traced(floats(3)).item() == 6
    scaled.__defaults__ = (5.0,)
    assert traced(floats(3)).item() == 15


def test_a_default_of_the_function_itself_is_guarded():
    def scaled(x, factor=2.0, *, mode="mul"):
        return x * factor if mode == "mul" else x + factor

    traced = trace(scaled)
    assert traced(floats(3)).item() == 6
    scaled.__defaults__ = (5.0,)
    assert traced(floats(3)).item() == 15
    scaled.__kwdefaults__ = {"mode": "add"}
    assert traced(floats(3)).item() == 8


def test_equal_values_are_the_same(monkeypatch, counts):
    traced = trace(calls_another)
    traced(floats(3))
    monkeypatch.setitem(
        globals(), "CONFIG", {"rate": 0.5, "sizes": [1, 2]}
    )  # by identity, then by value
    traced(floats(3))
    monkeypatch.setitem(globals(), "SCALE", float("2.0"))
    traced(floats(3))
    assert counts.traces == 1


def test_true_and_one_are_not_the_same():
    flag = True

    @trace
    def chosen(x):
        return x * 2 if flag is True else x

    assert chosen(floats(3)).item() == 6
    flag = 1
    assert chosen(floats(3)).item() == 3


def test_nan_is_the_same_as_nan(counts):
    limit = math.nan

    @trace
    def shifted(x):
        return x if limit != limit else x + limit

    shifted(floats(3))
    limit = float("nan")
    shifted(floats(3))
    assert counts.traces == 1


def test_a_failed_guard_says_why(monkeypatch, capsys):
    traced = trace(scaled_by_global)
    with debug(debug=1):
        traced(floats(3))
        monkeypatch.setitem(globals(), "SCALE", 5.0)
        traced(floats(3))
    text = capsys.readouterr().err
    assert "scaled_by_global" in text and "SCALE" in text and "2.0" in text and "5.0" in text


def test_retraces_are_counted(monkeypatch, counts):
    traced = trace(scaled_by_global)
    traced(floats(3))
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    traced(floats(3))
    traced(floats(3))
    assert counts.retraces == 1 and counts.traces == 2


def test_after_eight_retraces_it_runs_untraced(calls, counts, capsys):
    factor = 0.0

    @trace
    def scaled(x):
        calls()
        return F.clip(x * 100, 0, factor)

    for i in range(20):
        factor = float(i)
        assert scaled(floats(3)).item() == i
    assert len(calls) == 20 and counts.traces == 9
    text = capsys.readouterr().err
    assert text.count("runs untraced") == 1 and "scaled" in text and "8 different graphs" in text


def test_a_guard_that_changes_nothing_in_the_graph_never_gives_up(calls):
    """A counter that is read, as for logging every tenth call: the graph stays the same."""
    count = 0

    @trace
    def scaled(x):
        calls()
        if count % 10 == 11:
            raise AssertionError
        return x * 2

    for i in range(15):
        count = i
        assert scaled(floats(i)).item() == 2 * i
    assert scaled._untraced is None


# More guards.


class Plain:
    """An object of the user's, which tells nobody when it changes."""

    def __init__(self):
        self.rate = 2.0
        self.inner = Settings()

    @property
    def doubled(self):
        return self.rate * 2

    def scaled(self, x):
        return x * self.rate

    @trace
    def traced(self, x):
        return x * self.doubled + self.inner.bias


def test_attributes_of_an_object_that_is_an_argument():
    thing = Plain()
    assert thing.traced(floats(3)).item() == 13
    thing.rate = 5.0
    assert thing.traced(floats(3)).item() == 31
    thing.inner.bias = 2.0
    assert thing.traced(floats(3)).item() == 32
    thing.inner = Settings()
    assert thing.traced(floats(3)).item() == 31


def test_attributes_of_an_object_in_a_method_that_is_called():
    thing = Plain()
    traced = trace(lambda x: thing.scaled(x))
    assert traced(floats(3)).item() == 6
    thing.rate = 5.0
    assert traced(floats(3)).item() == 15
    thing = Plain()
    assert traced(floats(3)).item() == 6


def test_a_closure_through_an_inner_lambda():
    scale = 2.0

    @trace
    def scaled(x):
        return F.cond(x.sum() > 0, lambda x: x * scale, lambda x: x, x)

    assert scaled(floats(3)).item() == 6
    scale = 5.0
    assert scaled(floats(3)).item() == 15


def test_functions_of_one_code_and_different_closures():
    def factory(holder):
        factor = holder[0]

        def scaled(x):
            return x * factor

        def change(value):
            nonlocal factor
            factor = value

        return scaled, change

    (one, change_one), (two, change_two) = factory([2.0]), factory([3.0])
    traced = trace(lambda x: two(one(x)))
    assert traced(floats(1)).item() == 6
    change_two(10.0)
    assert traced(floats(1)).item() == 20
    change_one(7.0)
    assert traced(floats(1)).item() == 70


def test_a_local_variable_that_an_inner_function_writes_is_no_side_effect(capsys):
    @trace
    def total(x):
        count = 0

        def add(y):
            nonlocal count
            count += 1
            return y + count

        return add(add(x))

    assert total(floats(0)).item() == 3 and total(floats(1)).item() == 4
    assert capsys.readouterr().err == ""


def test_an_attribute_that_the_function_writes_is_a_side_effect(capsys, counts):
    state = Settings()
    state.step = 0

    @trace
    def count(x):
        state.step += 1
        state.last = "seen"
        return x * 2

    for i in range(4):
        assert count(floats(i)).item() == 2 * i
    text = capsys.readouterr().err
    assert counts.traces == 1 and state.step == 1
    assert "state.step" in text and "state.last" in text


def test_guards_hold_no_text_of_tensors(capsys):
    """Why a guard failed is told without reading anything."""
    w = floats(1) + 1

    @trace
    def scaled(x):
        return x * w

    with debug(debug=1):
        scaled(floats(3))
        w = floats(5) + 1
        assert scaled(floats(3)).item() == 18
    assert "w was a Tensor" in capsys.readouterr().err


def test_a_property_of_a_tensor_is_not_evaluated_to_check(counts):
    w = mge.tensor([[1.0, 2.0]])

    @trace
    def product(x):
        return x @ w.T

    for _ in range(3):
        assert product(mge.tensor([[1.0, 1.0]])).item() == 3
        assert not graph.LOCAL.recording.tokens
    assert counts.traces == 1


def test_exceptions_in_the_function_leave_no_profile_and_no_mode():
    import sys

    @trace
    def fails(x):
        raise KeyError("no")

    before = sys.getprofile()
    with pytest.raises(KeyError):
        fails(floats(1))
    assert sys.getprofile() is before and MODE.get().recording is None


def test_a_trace_frees_what_it_recorded():
    import gc
    import weakref

    w = floats(1, 2, 3)
    node = weakref.ref(w._node)
    traced = trace(lambda x: x * w)
    traced(floats(1, 1, 1))
    w += 1
    mge.sync()
    gc.disable()
    try:
        assert node() is None, "the recording of a trace keeps old values"
    finally:
        gc.enable()


def test_a_container_of_tensors_is_guarded_by_its_elements(calls):
    weights, named = [floats(1), floats(2)], {"w": floats(3)}

    @trace
    def product(x):
        calls()
        for w in weights:
            x = x * w
        return x * named["w"]

    assert product(floats(1)).item() == 6 and product(floats(2)).item() == 12
    assert len(calls) == 1
    weights[1] = floats(10)  # another handle in the same list
    assert product(floats(1)).item() == 30
    named["w"] = floats(5)
    assert product(floats(1)).item() == 50
    weights.append(floats(2))
    assert product(floats(1)).item() == 100 and product(floats(1)).item() == 100
    assert len(calls) == 4


def test_a_traced_module_needs_no_guards_for_what_modules_read_themselves():
    net = mge.module.Sequential(mge.module.ReLU(), mge.module.ReLU())
    traced = trace(net.__call__)
    x = mge.tensor([-1.0, 2.0])
    assert traced(x).numpy().tolist() == [0, 2]
    assert traced.last.guards == []
    hook = net[0].register_forward_hook(lambda module, inputs, output: output + 1)
    assert traced(x).numpy().tolist() == [1, 3]
    hook.remove()
    assert traced(x).numpy().tolist() == [0, 2]
