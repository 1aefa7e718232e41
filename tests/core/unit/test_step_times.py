"""Lines of MGE_DEBUG=2: figures that fit each other, costs by the ops' records, and the summary."""

import re

import numpy as np
import pytest

import mge
import mge.functional as F
from mge.cost import multiply_adds, read_bytes
from mge.debug import debug
from mge.execute import NODE_WATCHERS, WATCHERS
from mge.graph import current_recording
from mge.jit import trace
from mge.utils import step_times
from mge.utils.step_times import Report, figures

LINE = re.compile(
    r"mge: +\d+\.(\d+) (\S+) +in Python +([\d,.]+) µs +(\S+)(?: GFLOP/s)? +([\d.]+) GB/s +(\S.*?)  "
    r"(\S.*) -> (\S.*?)  (\S*)"
)


@pytest.fixture
def report(monkeypatch):
    """An empty report in place of the process's."""
    made = Report()
    monkeypatch.setattr(step_times, "REPORT", made)
    yield made
    for watchers, see in ((WATCHERS, made.see_step), (NODE_WATCHERS, made.see_node)):
        assert see not in watchers


def steps(function, *arguments):
    """Run a trace as a plan under level 2."""
    traced = trace(function)
    with debug(debug=2):
        for _ in range(3):
            traced(*arguments)


def test_figures_fit_each_other():
    made = figures(4_000, 1_000, 500.0, (16e9, 1e9))
    assert made == (0.5, 8.0, 2.0, 2.0, "memory")
    assert figures(64_000, 1_000, 8_000.0, (16e9, 1e9)) == (8.0, 8.0, 0.125, 0.5, "compute")
    assert figures(64_000, 1_000, 8_000.0, None) == (8.0, 8.0, 0.125, None, "-")


def test_a_line_has_the_figures_of_its_step(report, capsys):
    x, y = mge.tensor([[1.0] * 64] * 32), mge.tensor([[1.0] * 48] * 64)
    steps(lambda x, y: F.exp(x @ y), x, y)
    lines = LINE.findall(capsys.readouterr().err)
    assert [line[1] for line in lines] == ["matmul", "exp"] * 3
    for number, op, us, gflops, gbs, share, _, made, place in lines:
        flops = 2 * 32 * 48 * 64 if op == "matmul" else 0
        nbytes = 4 * (32 * 64 + 64 * 48 + 32 * 48 if op == "matmul" else 2 * 32 * 48)
        ns = 1e3 * float(us.replace(",", ""))
        assert number == ("0" if op == "matmul" else "1") and made == "f32[32, 48]"
        assert place.startswith("test_step_times.py:") and share == "-"
        assert float(gbs) == pytest.approx(nbytes / ns, abs=0.06, rel=0.05)
        if flops:
            assert float(gflops) == pytest.approx(flops / ns, abs=0.06, rel=0.05)
        else:
            assert gflops == "-"


def test_the_share_is_of_the_roof_that_the_device_tells(report, monkeypatch, capsys):
    device = mge.tensor([1.0])._node.sig.device
    monkeypatch.setattr(device.backend, "roof", lambda index: (1e9, 1e9), raising=False)
    monkeypatch.setattr(step_times, "_ROOFS", {})
    steps(lambda x: F.exp(x), mge.tensor(np.ones(20_000, np.float32)))
    text = capsys.readouterr().err
    assert "whose roof is 1 GFLOP/s and 1.0 GB/s" in text
    found = re.findall(r"exp .* ([\d.]+) µs .* (\d+) % memory", text)
    assert len(found) == 3
    for us, share in found:
        assert int(share) == pytest.approx(100 * 160.0 / float(us), abs=1, rel=0.05)


def test_the_summary_adds_up(report):
    steps(lambda x: F.exp(F.tanh(x) @ x), mge.tensor([[0.5] * 40] * 40))
    text = report.summary().splitlines()
    sums = {key: later / count for key, (_, later, count) in report.times.items()}
    total = float(re.match(r"one run of each plan: ([\d,.]+) µs", text[0])[1].replace(",", ""))
    assert total == pytest.approx(sum(sums.values()) / 1e3, abs=0.06)
    middle = text.index("by algorithm:")
    assert len(text[1:middle]) == 3 and len(text[middle + 1 :]) == 3
    shares = [float(re.match(r" *([\d.]+) %", line)[1]) for line in text[middle + 1 :]]
    assert sum(shares) == pytest.approx(100, abs=0.2) and shares == sorted(shares, reverse=True)


def test_nothing_is_printed_below_level_2(report, capsys):
    traced = trace(lambda x: F.exp(x) + 1)
    with debug(debug=1):
        traced(mge.tensor([1.0])), traced(mge.tensor([1.0]))
    assert "µs" not in capsys.readouterr().err and not report.times and not report.summary()


def recorded(function, shapes):
    """Return the nodes of a function over tensors of these shapes."""
    arguments = [mge.tensor(np.ones(s, np.float32)) for s in shapes]
    mge.sync()
    result = function(*arguments)
    return current_recording().graph([result._node]).nodes


@pytest.mark.parametrize(
    ("function", "shapes", "count"),
    [
        (lambda x, y: x @ y, [(3, 5), (5, 7)], 105),
        (lambda x, y: F.matmul(x, y, transpose_a=True), [(5, 3), (5, 7)], 105),
        (lambda x, y: F.matmul(x, y, transpose_a=True), [(5,), (5, 7)], 35),
        (lambda x, w: F.linear(x, w), [(2, 3, 5), (7, 5)], 210),
        (lambda x, w: F.conv2d(x, w, padding=1), [(2, 4, 6, 6), (8, 4, 3, 3)], 2 * 8 * 36 * 36),
        (lambda x, w: F.conv2d(x, w, groups=4), [(1, 4, 3, 3), (8, 1, 3, 3)], 72),
        (lambda q, k: F.scaled_dot_product_attention(q, k, k), [(2, 5, 4), (2, 6, 4)], 480),
        (lambda x, y: x + y, [(3, 5), (5,)], 0),
    ],
)
def test_multiply_adds_are_those_of_the_sums(function, shapes, count):
    assert sum(multiply_adds(n.sig) for n in recorded(function, shapes)) == count


def test_what_is_picked_is_read():
    nodes = recorded(lambda table: F.embedding(mge.tensor([3, 1]), table), [(1000, 4)])
    (sig,) = [n.sig for n in nodes if n.sig.op.name == "index"]
    assert read_bytes(sig) == 2 * 4 * 4 + sum(t.nbytes for t in sig.input_types[1:])
