"""Traces: recorded once for each kind of arguments; trees, numbers and objects as arguments; switches."""

import collections
import inspect

import numpy as np
import pytest

import mge
import mge.functional as F
from mge import graph, jit
from mge.debug import debug
from mge.errors import (
    DTypeError,
    MgeError,
    PluginNotInstalled,
    TraceError,
)
from mge.jit import trace

SCALE = 2.0
CONFIG = {"rate": 0.5, "sizes": [1, 2]}


class Settings:
    bias = 1.0


def line():
    return inspect.currentframe().f_back.f_lineno


def floats(*values):
    return mge.tensor(np.array(values, np.float32))


# The Python function runs once.


def test_the_function_runs_once_for_each_kind_of_arguments(calls, counts):
    @trace
    def double(x):
        calls()
        return x * 2

    for i in range(5):
        assert double(floats(i, 1)).numpy().tolist() == [2 * i, 2]
    assert len(calls) == 1 and counts.trace_hits == 4
    double(floats(1, 2, 3))
    double(mge.tensor([1, 2]))
    assert len(calls) == 3
    double(floats(1, 2)), double(floats(1, 2, 3))
    assert len(calls) == 3


def test_a_trace_looks_like_its_function():
    @trace
    def double(x):
        """Twice x."""
        return x * 2

    assert (double.__name__, double.__doc__) == ("double", "Twice x.")
    assert double.__wrapped__(floats(1)).item() == 2


def test_a_trace_of_a_method():
    class Model:
        def __init__(self):
            self.w = floats(2)

        @trace
        def forward(self, x):
            return x * self.w

    one, two = Model(), Model()
    two.w = floats(5)
    for _ in range(2):
        assert one.forward(floats(3)).item() == 6
        assert two.forward(floats(3)).item() == 15


def test_a_trace_with_options():
    @trace(memory="naive", symbolic=True, capture_as_const=True)
    def double(x):
        return x * 2

    assert double(floats(1)).item() == 2 and double(floats(2)).item() == 4
    with pytest.raises(TraceError, match="callable"):
        trace(3)
    with pytest.raises(PluginNotInstalled, match="no_such"):
        trace(lambda x: x, memory="no_such")
    assert trace(lambda x: x * 2)(floats(3)).item() == 6


def test_one_plan_and_nothing_recorded(counts):
    @trace
    def step(x):
        return F.exp(x) * 2 + 1

    for i in range(5):
        step(floats(i))
        assert not graph.LOCAL.recording.tokens
    assert counts.plans_compiled == 1 and counts.plans_run == 5 and counts.first_sight_runs == 0


def test_a_pending_argument_is_computed_first():
    @trace
    def double(x):
        return x * 2

    for i in range(3):
        assert double(floats(i) + 1).item() == 2 * (i + 1)


# Trees.


Pair = collections.namedtuple("Pair", "a b")


def test_arguments_and_results_are_trees(calls):
    @trace
    def mix(batch, pair, *, options):
        calls()
        total = batch["x"] + batch["more"][0] * pair.b
        made = {"sum": total, "list": [total * 2, None], "pair": Pair(total, "text")}
        return made | {"n": 3, "options": options["mode"]}

    for i in range(3):
        batch = {"x": floats(i), "more": [floats(10), floats(0)]}
        made = mix(batch, Pair(floats(1), floats(2)), options={"mode": "fast"})
        assert (
            made["sum"].item() == i + 20
            and made["list"][0].item() == 2 * (i + 20)
            and made["list"][1] is None
        )
        assert isinstance(made["pair"], Pair) and made["pair"].b == "text" and made["n"] == 3
        assert made["options"] == "fast"
    assert len(calls) == 1
    mix(batch, Pair(floats(1), floats(2)), options={"mode": "slow"})
    assert len(calls) == 2


def test_no_result_and_no_arguments():
    w = floats(1)

    @trace
    def step():
        w._assign(w * 2)

    for _ in range(3):
        assert step() is None
    assert w.item() == 8


def test_arrays_are_inputs(calls):
    @trace
    def double(x):
        calls()
        return x * 2

    for i in range(3):
        assert double(np.array([i, 1], np.float32)).numpy().tolist() == [2 * i, 2]
    assert len(calls) == 1


def test_an_argument_that_is_returned_or_returned_twice():
    @trace
    def same(x, y):
        z = x + y
        return x, z, z, y

    for i in range(3):
        x, y = floats(i), floats(5)
        a, b, c, d = same(x, y)
        assert (a.item(), b.item(), c.item(), d.item()) == (i, i + 5, i + 5, 5)
        a += 100
        assert x.item() == i and b.item() == i + 5


def test_the_same_tensor_twice():
    @trace
    def mix(x, y):
        return x * 10 + y

    x = floats(2)
    for _ in range(3):
        assert mix(x, x).item() == 22
        assert mix(x, floats(1)).item() == 21


SHIFT = floats(1)


def test_keyword_arguments_and_defaults(calls):
    @trace
    def scaled(x, factor=2.0, *, shift=SHIFT):
        calls()
        return x * factor + shift

    for _ in range(2):
        assert scaled(floats(3)).item() == 7
        assert scaled(floats(3), factor=3.0).item() == 10
        assert scaled(floats(3), 4.0).item() == 13
        assert scaled(floats(3), shift=floats(10)).item() == 16
        assert scaled(x=floats(3)).item() == 7


# Numbers.


def test_numbers_are_inputs(calls):
    @trace
    def scaled(x, rate, n):
        calls()
        return x * rate - n

    for i in range(5):
        assert scaled(floats(2), 0.5 * i, i).item() == 0
    assert len(calls) == 1
    assert scaled(floats(2), 2, 1).item() == 3  # an int is another kind than a float
    assert len(calls) == 2


def test_numbers_are_weakly_typed_inside():
    @trace
    def scaled(x, rate):
        return x * rate, rate * 2

    for dtype in ("float16", "float64", "float32"):
        y, twice = scaled(mge.tensor([2.0], dtype=dtype), 0.5)
        assert y.dtype == dtype and y.item() == 1 and twice.item() == 1.0


def test_arithmetic_with_numbers_is_recorded(calls):
    @trace
    def schedule(x, step, base):
        calls()
        rate = -(base / (1 + step * 0.5) - 1.0) + 2
        return x * rate

    def wanted(step, base):
        return 2 * (-(base / (1 + step * 0.5) - 1) + 2)

    for step in range(4):
        assert schedule(floats(2), step, 0.1 * step).item() == pytest.approx(
            wanted(step, 0.1 * step), rel=1e-6
        )
    assert len(calls) == 1


def test_a_number_whose_value_is_read_belongs_to_the_kind(calls):
    @trace
    def repeat(x, n, factor):
        calls()
        for _ in range(n):
            x = x * factor
        return x if n < 10 else -x

    for n, result in ((1, 2), (3, 8), (1, 2), (3, 8), (0, 1)):
        assert repeat(floats(1), n, 2.0).item() == result
    before = len(calls)
    assert repeat(floats(1), 3, 3.0).item() == 27  # the factor is still an input
    assert len(calls) == before


def test_a_number_in_an_attribute_is_read(calls):
    @trace
    def total(x, axis):
        return F.sum(x, axis=axis)

    x = mge.tensor([[1.0, 2.0], [3.0, 4.0]])
    for _ in range(2):
        assert total(x, 0).numpy().tolist() == [4, 6] and total(x, 1).numpy().tolist() == [3, 7]


def test_bool_none_and_text_belong_to_the_kind(calls):
    @trace
    def apply(x, flag, mode, nothing):
        calls()
        x = x * 2 if flag else x
        return x + 1 if mode == "add" else x

    for flag, mode, result in (
        (True, "add", 7),
        (False, "add", 4),
        (True, "no", 6),
        (True, "add", 7),
    ):
        assert apply(floats(3), flag, mode, None).item() == result
    assert len(calls) == 3


def test_an_integer_too_large_for_int32():
    @trace
    def shifted(x, n):
        return x + n

    x = mge.tensor([1], dtype="int64")
    for n in (2**40, 2**41):
        assert shifted(x, n).item() == n + 1


def test_a_large_python_float_does_not_lose_digits_in_float64():
    @trace
    def shifted(x, n):
        return x + n

    x = mge.tensor([0.0], dtype="float64")
    for n in (0.1, 1 / 3):
        assert shifted(x, n).item() == n


# Switches.


def test_eager_mode_and_mge_trace_0_run_the_function(calls):
    @trace
    def double(x):
        calls()
        return x * 2

    with mge.eager():
        assert double(floats(1))._node.buffer is not None
        double(floats(1))
    with debug(trace=False):
        double(floats(1))
        double(floats(1))
    assert len(calls) == 4
    double(floats(1)), double(floats(1))
    assert len(calls) == 5


def test_profiling_keeps_the_steps():
    @trace(profiling=True)
    def step(x):
        return F.exp(x) + 1

    step(floats(1)), step(floats(1))
    profile = step.get_profile()
    assert [p["op"] for p in profile] == ["exp", "add"] and all(p["ns"] >= 0 for p in profile)
    assert __file__ in profile[0]["place"]


def test_a_function_that_returns_no_tree():
    marker = object()
    traced = trace(lambda x: (x, marker, {"a": marker}))
    for _ in range(2):
        result = traced(floats(1))
        assert result[1] is marker and result[2]["a"] is marker


def test_arguments_that_are_objects():
    class Batch:
        def __init__(self, x):
            self.x = x

    @trace
    def total(batch):
        return batch.x * 2

    batch = Batch(floats(1))
    assert total(batch).item() == 2
    batch.x += 1
    assert total(batch).item() == 4
    assert total(Batch(floats(7))).item() == 14


def test_dtypes_and_devices_of_results():
    @trace
    def cast(x):
        return x.astype("float16"), x > 1, x.argmax()

    for _ in range(2):
        a, b, c = cast(floats(1, 2))
        assert (a.dtype, b.dtype, c.dtype, a.device) == ("float16", "bool", "int32", "ref:0")


def test_wrong_arguments_raise_as_the_function_does():
    @trace
    def double(x, y):
        return x * y

    with pytest.raises(TypeError):
        double(floats(1))
    with pytest.raises((DTypeError, MgeError)):
        double(floats(1), "text")
    assert double(floats(2), floats(3)).item() == 6


def test_traces_share_no_state_between_functions():
    made = [trace(lambda x, n=n: x * n) for n in (1.0, 2.0, 3.0)]
    for _ in range(2):
        assert [f(floats(2)).item() for f in made] == [2, 4, 6]
    assert jit.trace is trace
