"""``Graph.memory`` and ``trace.memory_report``: the peak before anything runs, over time, and what is live there."""

import numpy as np
import pytest

import mge
import mge.functional as F
from mge import TraceError
from mge.graph import LOCAL


def _graph():
    x = mge.tensor(np.ones((64, 64), "float32"))
    y = F.exp(F.matmul(x, x))
    total = F.matmul(y, F.sin(y)).sum()
    return LOCAL.recording.graph([total._node]), total


def test_the_peak_is_the_sum_of_its_parts_and_is_reached():
    graph, _ = _graph()
    report = graph.memory()
    assert report["strategy"] == "static"
    parts = ("arena_bytes", "workspace_bytes", "result_bytes")
    assert report["peak_bytes"] == sum(report[p] for p in parts)
    live, peak = report["live_bytes"], report["peak_step"]
    assert live[peak] == max(live) <= report["arena_bytes"] + report["result_bytes"]
    held = report["live_at_peak"]
    assert all(v["from"] <= peak <= v["to"] for v in held if v["bytes"] > 64)
    assert [v["bytes"] for v in held] == sorted((v["bytes"] for v in held), reverse=True)
    # y, sin(y) and their product are there at once: what a matmul makes is never one of its inputs.
    assert held[0]["bytes"] == 64 * 64 * 4
    assert sum(-(-v["bytes"] // 64) * 64 for v in held) == live[peak]


def test_values_at_the_peak_carry_the_line_of_the_user():
    graph, _ = _graph()
    values = [v["value"] for v in graph.memory()["live_at_peak"]]
    assert any("test_memory_report.py" in v for v in values)


def test_strategies_are_compared_without_running():
    graph, total = _graph()
    assert graph.memory("naive")["strategy"] == "naive"
    with mge.memory("naive"):
        assert graph.memory()["strategy"] == "naive"
    assert total._node.buffer is None
    with pytest.raises(mge.OutOfMemory, match="may be used"):
        graph.memory("static:budget=1KB")


def test_a_trace_reports_the_plan_that_it_ran():
    @mge.jit.trace
    def step(x):
        return F.matmul(F.exp(x), x).sum()

    with pytest.raises(TraceError, match="memory is known once"):
        step.memory_report()
    x = mge.tensor(np.ones((32, 32), "float32"))
    for _ in range(3):
        step(x).numpy()
    report = step.memory_report()
    assert report["peak_bytes"] >= 2 * 32 * 32 * 4
    assert len(report["live_bytes"]) == 3
