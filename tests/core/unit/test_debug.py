"""Settings: each variable is read, and does what its line in the table says."""

import re

import numpy as np
import pytest

import mge
import mge.functional as F
from mge.debug import VARIABLES, Debug, debug
from mge.device import _default, as_device, default_device, parse_bytes
from mge.errors import (
    ArgumentError,
    DeviceError,
    InternalError,
    OutOfMemory,
    PluginNotInstalled,
    ShapeError,
)
from mge.graph import Graph, Node, Signature
from mge.jit import trace
from mge.passes import PASSES
from mge.types import abstract

SAMPLES = {int: ("3", 3), bool: ("on", True), str: ("some text", "some text")}


def traced(function, *arrays):
    """Compile and run a function; return its results as an array."""
    return trace(function)(*[mge.tensor(a) for a in arrays]).numpy()


@pytest.mark.parametrize("name", VARIABLES)
def test_each_variable_is_read_from_the_environment(name, monkeypatch):
    kind, default, effect, most = VARIABLES[name]
    setting = name.removeprefix("MGE_").lower()
    monkeypatch.delenv(name, raising=False)
    assert getattr(Debug(), setting) == default and isinstance(default, kind) and effect
    text, value = SAMPLES[kind]
    monkeypatch.setenv(name, text)
    assert getattr(Debug(), setting) == value
    for wrong in () if kind is str else ("maybe", "-1", str((most or 1) + 1) if most else "2.5"):
        monkeypatch.setenv(name, wrong)
        with pytest.raises(ArgumentError, match=f"{name} is '{wrong}'"):
            Debug()


@pytest.mark.parametrize(
    ("text", "value"), [("0", False), ("1", True), (" True ", True), ("off", False), ("", False)]
)
def test_words_for_yes_and_no(text, value, monkeypatch):
    monkeypatch.setenv("MGE_EAGER", text)
    assert Debug().eager is value
    monkeypatch.setenv("MGE_DEBUG", text)
    assert Debug().debug == int(value)


def test_a_context_changes_settings_for_a_while():
    before = debug.check
    with debug(check=2, memory="naive"):
        assert (debug.check, debug.memory) == (2, "naive")
    with pytest.raises(ZeroDivisionError), debug(check=before + 1):
        1 / 0  # noqa: B018
    assert debug.check == before
    with pytest.raises(ArgumentError, match="unknown settings"), debug(colour=1):
        pass
    with pytest.raises(AttributeError, match="no setting 'colour'"):
        debug.colour  # noqa: B018


def test_counters_count():
    debug.reset()
    traced(lambda x: x + 1, [1.0])
    stats = debug.stats()
    assert stats["plans_compiled"] == 1 and stats["plans_run"] == 1 and stats["steps_run"] == 1


@pytest.mark.parametrize("level", [0, 1, 2, 3, 4])
def test_debug_levels_tell_more_and_more(level, capsys):
    with debug(debug=level):
        traced(lambda x: F.exp(x) + 1, [1.0, 2.0])
    text = capsys.readouterr().err
    assert ("compiled a plan of 2 steps, peak " in text) == (level >= 1)
    assert bool(re.search(r"\d\.0 exp +in Python +[\d.]+ µs", text)) == (level >= 2)
    assert ("after simplify:\ngraph(%0: f32[2]) {" in text) == (level >= 3)


def test_debug_1_says_why_a_function_is_traced_again(capsys):
    factor = [2.0]
    function = trace(lambda x: x * factor[0])
    with debug(debug=1):
        function(mge.tensor([1.0]))
        factor[0] = 3.0
        assert function(mge.tensor([1.0])).item() == 3.0
    assert "traced again, since" in capsys.readouterr().err


def broken(graph):
    """A pass that says a wrong type."""
    node = graph.nodes[-1]
    wrong = abstract((9, 9), node.type.dtype)
    sig = Signature(node.sig.op, node.sig.input_types, node.sig.attrs, (wrong,), node.sig.device)
    made = Node(sig, node.inputs, wrong)
    return Graph(graph.inputs, (*graph.nodes[:-1], made), (made,))


def test_check_1_finds_the_pass_that_broke_a_graph(monkeypatch):
    monkeypatch.setattr("mge.passes.PASSES", [("broken", broken), *PASSES])
    with debug(check=1), pytest.raises(InternalError, match='"broken"'):
        traced(lambda x: x + 1, [1.0])


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_check_levels_change_no_result(level, rng):
    x = rng.normal(size=(3, 4)).astype(np.float32)
    with debug(check=level):
        made = traced(lambda x: F.softmax(x @ x.T, axis=1).sum(axis=0), x)
    np.testing.assert_array_equal(made, traced(lambda x: F.softmax(x @ x.T, axis=1).sum(axis=0), x))


def test_check_3_stops_at_the_first_nan():
    with debug(check=3), pytest.raises(InternalError, match=r"log .*made a NaN"):
        traced(lambda x: F.log(x) + 1, [-1.0])
    with debug(check=2):
        assert np.isnan(traced(lambda x: F.log(x) + 1, [-1.0])).all()


def test_trace_0_runs_the_python_function_each_time():
    calls = []
    function = trace(lambda x: (calls.append(1), x + 1)[1])
    with debug(trace=False):
        for _ in range(3):
            function(mge.tensor([1.0]))
    assert len(calls) == 3


def test_memory_chooses_the_strategy():
    function = trace(lambda x: F.exp(F.exp(x)))
    with debug(memory="naive"):
        function(mge.tensor([1.0]))
        assert {plan.plan.strategy for plan in function.last.plans.values()} == {"naive"}
    with debug(memory="nonesuch"), pytest.raises(PluginNotInstalled, match="nonesuch"):
        traced(lambda x: x + 1, [1.0])


def test_memory_limit_refuses_a_plan_before_it_runs():
    with debug(memory_limit="1KiB"), pytest.raises(OutOfMemory, match="1,024 may be used"):
        traced(lambda x: F.exp(x), np.ones(1000, np.float32))
    assert parse_bytes("2GB") == 2 * 10**9 and parse_bytes("1.5 MiB") == 3 << 19
    with pytest.raises(ArgumentError, match="'much' is no size"):
        parse_bytes("much")


def test_device_chooses_the_default_device(monkeypatch):
    monkeypatch.setattr("mge.device._default", [])
    with debug(device="ref:0"):
        assert default_device() is as_device("ref")
    monkeypatch.setattr("mge.device._default", [])
    with debug(device="ref:7"), pytest.raises(DeviceError, match="ref:7"):
        default_device()
    assert _default == [] or _default[0] is as_device("ref")


def test_errors_come_at_the_call_whatever_is_set():
    for settings in ({}, {"check": 1}, {"debug": 1}, {"trace": False}):
        with debug(**settings), pytest.raises(ShapeError, match="matmul"):
            mge.tensor(np.ones((2, 3))) @ mge.tensor(np.ones((2, 3)))


def test_the_nan_stop_covers_first_sight_and_plans():
    for _ in range(3):
        with mge.debug(check=3), pytest.raises(mge.InternalError, match="made a NaN"):
            (F.log(mge.tensor([-1.0, 1.0])) + 1).numpy()
