"""The profiler: trace events of plans, nodes and scopes."""

import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest

import mge
import mge.functional as F
from mge.cache import PLANS
from mge.errors import ArgumentError, FileFormatError
from mge.execute import NODE_WATCHERS, WATCHERS
from mge.jit import trace
from mge.utils.profiler import Profiler, merge_trace_events, profile, scope


def slices(profiler, kind=None):
    events = json.loads(Path(profiler.files[-1]).read_text())["traceEvents"]
    return [e for e in events if e["ph"] == "X" and kind in (None, e["cat"])]


def contains(outer, inner):
    return (
        outer["ts"] <= inner["ts"]
        and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 1e-3
    )


@pytest.fixture(autouse=True)
def _no_watcher_stays():
    PLANS.clear()  # so that a structure is seen for the first time
    before = len(WATCHERS), len(NODE_WATCHERS)
    yield
    assert (len(WATCHERS), len(NODE_WATCHERS)) == before


def test_each_node_of_a_first_run_is_a_slice(tmp_path):
    x = mge.tensor(np.ones((2, 3)))
    with Profiler(str(tmp_path)) as profiler:
        y = F.exp(x) + 1
    (path,) = profiler.files
    assert os.path.basename(path).endswith(".chrome_timeline.json")
    exp, add = slices(profiler)
    assert (exp["name"], add["name"]) == ("exp", "add") and exp["cat"] == "node"
    assert (
        exp["args"]["inputs"] == exp["args"]["outputs"] == ["f32[2, 3]"]
        and exp["args"]["bytes"] == 48
    )
    assert exp["args"]["line"].startswith(f"{__file__}:") and exp["dur"] >= 0
    assert exp["ts"] + exp["dur"] <= add["ts"] + 1e-3
    assert y.shape == (2, 3)


def test_the_steps_of_a_plan_lie_inside_its_slice(tmp_path):
    @trace
    def function(x):
        return F.tanh(F.exp(x)).sum()

    x = mge.tensor([1.0, 2.0])
    function(x)
    with Profiler(str(tmp_path)) as profiler:
        function(x)
        function(x)
    steps, plans = slices(profiler, "step"), slices(profiler, "plan")
    assert [s["name"] for s in steps] == ["exp", "tanh", "sum"] * 2
    assert [p["name"] for p in plans] == ["plan 1", "plan 1"]
    assert all(contains(plans[0], s) for s in steps[:3]) and all(
        contains(plans[1], s) for s in steps[3:]
    )
    assert [s["args"]["step"] for s in steps] == [0, 1, 2] * 2
    events = profiler.events()
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert any(name.startswith("ref:0") for name in names)
    counters = [e["args"]["bytes"] for e in events if e["ph"] == "C"]
    assert len(counters) == 6 and max(counters) == function.last.plans.popitem()[1].plan.peak_bytes


def test_scopes_nest_and_say_which_steps_are_theirs(tmp_path):
    x = mge.tensor([1.0, 2.0])
    with Profiler(str(tmp_path), with_scopes=True) as profiler:
        with scope("outer"):
            y = F.exp(x)
            with scope("inner"):
                z = F.sin(y)
        w = F.cos(x)
    inner, outer = slices(profiler, "scope")
    assert (inner["name"], outer["name"]) == ("inner", "outer") and contains(outer, inner)
    assert inner["tid"] == outer["tid"] == threading.get_native_id() and inner["pid"] == os.getpid()
    nodes = {n["name"]: n for n in slices(profiler, "node")}
    assert (
        nodes["sin"]["args"]["scope"] == "outer / inner"
        and nodes["exp"]["args"]["scope"] == "outer"
    )
    assert "scope" not in nodes["cos"]["args"]
    assert contains(outer, nodes["exp"]) and contains(inner, nodes["sin"])
    assert z.shape == w.shape


def test_a_scope_without_a_profiler_does_nothing():
    @scope("function")
    def function(x):
        return x + 1

    assert function(mge.tensor(1.0)).item() == 2


def test_a_backtrace_names_who_asked_for_the_value(tmp_path):
    def reader(t):
        return t.numpy()

    with Profiler(str(tmp_path), with_backtrace=True) as profiler:
        reader(mge.tensor([1.0]) + 1)
    (add,) = slices(profiler)
    assert any(line.endswith("in reader") for line in add["args"]["read by"])


def test_profile_decorates_a_function(tmp_path):
    @profile
    def plain():
        return 1

    @profile(path=str(tmp_path / "deep" / "folder"))
    def function(x):
        return (x * 2).numpy()

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert plain() == 1
        assert len(os.listdir(tmp_path / "profile")) == 1
    function(mge.tensor([1.0]))
    function(mge.tensor([1.0]))
    assert len(os.listdir(tmp_path / "deep" / "folder")) == 2


def test_a_profile_is_written_though_the_block_fails(tmp_path):
    profiler = Profiler(str(tmp_path))
    with pytest.raises(ZeroDivisionError), profiler:
        1 / 0  # noqa: B018
    assert len(profiler.files) == 1


def test_the_profiler_keeps_no_values(tmp_path):
    import gc
    import weakref

    with Profiler(str(tmp_path)) as profiler:
        y = F.exp(mge.tensor([1.0]))
        y.numpy()
        buffer = weakref.ref(y._node.buffer)
        del y
        gc.collect()
        assert buffer() is None
    assert slices(profiler)


def test_files_of_several_processes_merge(tmp_path):
    for _ in range(2):
        with Profiler(str(tmp_path)):
            mge.sync()
            (mge.tensor([1.0]) + 1).numpy()
    merged = merge_trace_events(str(tmp_path))
    merged = merge_trace_events(str(tmp_path))  # not of itself
    events = json.loads(Path(merged).read_text())["traceEvents"]
    assert sum(e["name"] == "add" for e in events) == 2


def test_wrong_use_is_a_clear_error(tmp_path):
    with pytest.raises(ArgumentError, match=r"format is memory_flow\.svg"):
        Profiler(str(tmp_path), formats=["memory_flow.svg"])
    with pytest.raises(ArgumentError, match="does not record"):
        Profiler(str(tmp_path)).stop()
    with Profiler(str(tmp_path)) as profiler, pytest.raises(ArgumentError, match="records already"):
        profiler.start()
    with pytest.raises(FileNotFoundError):
        merge_trace_events(str(tmp_path / "none"))
    (tmp_path / "1.chrome_timeline.json").write_text("[")
    with pytest.raises(FileFormatError, match=r"1\.chrome_timeline\.json"):
        merge_trace_events(str(tmp_path))
