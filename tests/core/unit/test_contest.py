"""The verdicts of bench/peers.py, and its table of rows."""

import sys

import pytest

from tools.count_lines import ROOT


@pytest.fixture(scope="module")
def peers():
    before = sys.path[:]
    sys.path.insert(0, str(ROOT / "bench"))
    import peers

    yield peers
    sys.path[:] = before


def named(peers, name):
    (row,) = [row for row in peers.ROWS if row.name == name]
    return row


def test_each_row_has_its_own_name(peers):
    names = [row.name for row in peers.ROWS]
    assert len(names) == len(set(names)) and all("," not in name for name in names)
    for wanted in peers.SMOKE:
        assert any(name == wanted or name.startswith(f"{wanted}/") for name in names), wanted


@pytest.mark.parametrize(
    ("name", "record", "state"),
    [
        ("infer/resnet18/b1", {"ours": 1.0, "peer": 1.3, "ratio": 1.3}, "holds"),
        ("infer/resnet18/b1", {"ours": 1.0, "peer": 1.2, "ratio": 1.2}, "misses"),
        ("memory/resnet18/b32", {"ours": 6.0, "peer": 10.0, "ratio": 0.6}, "holds"),
        ("memory/resnet18/b32", {"ours": 8.0, "peer": 10.0, "ratio": 0.8}, "misses"),
        ("kernel/gemm/512", {"ours": 0.94}, "holds"),
        ("kernel/gemm/512", {"ours": 0.92}, "misses"),
        ("package/load", {"ours": 31.0}, "misses"),
        ("tune/seconds", {"skipped": "no mge-x86"}, "skipped"),
    ],
)
def test_a_verdict_follows_from_the_bar(peers, name, record, state):
    assert peers.judged(named(peers, name), 2, record)["state"] == state


def test_an_output_that_differs_is_no_success(peers):
    record = {"ratio": 9.0, "columns": {"mge": {"difference": 2e-3}, "ort": {"difference": 1.0}}}
    assert peers.judged(named(peers, "infer/mlp/b1"), 2, record)["state"] == "differs"
    record["columns"]["mge"]["difference"] = 9e-4
    assert peers.judged(named(peers, "infer/mlp/b1"), 2, record)["state"] == "holds"
    record["columns"] = {"mge": {"difference": 3e-3}, "torch-cl": {"difference": 7e-3}}
    assert peers.judged(named(peers, "infer/mlp/b1"), 2, record)["state"] == "holds"


def test_a_row_without_figures_says_why(peers):
    record = {"columns": {"torch": {"error": "no answer in 240 s"}, "mge": {"ms": 1.0}}}
    made = peers.judged(named(peers, "train/mlp/b64"), 2, record)
    assert made["state"] == "skipped" and made["skipped"] == "torch: no answer in 240 s"


def test_what_the_undecorated_function_may_cost(peers):
    def excess(plain, traced, calls):
        columns = {"mge": {"ms": plain, "calls": calls}, "mge-traced": {"ms": traced}}
        return peers._undecorated(columns)["undecorated"]

    assert excess(21.0, 20.0, 100) == {"percent": 5.0, "holds": True}
    assert excess(22.0, 20.0, 100) == {"percent": 10.0, "holds": False}
    assert excess(1.2, 1.0, 100) == {"us_a_call": 2.0, "holds": True}
    assert excess(1.4, 1.0, 100) == {"us_a_call": 4.0, "holds": False}
