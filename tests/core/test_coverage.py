"""The page of MegEngine's names: nothing is missing, and docs/coverage.md is what the code gives."""

import pytest

from tools import coverage


@pytest.mark.parametrize("module", coverage.EXPECTED)
def test_each_expected_name_exists(module):
    assert coverage.missing([module]) == []


def test_the_page_is_up_to_date():
    assert coverage.PAGE.read_text() == coverage.page(), "run python tools/coverage.py"


def test_a_missing_name_is_seen(monkeypatch):
    monkeypatch.setitem(coverage.EXPECTED, "mge", "tensors: Tensor no_such_name")
    assert coverage.missing()[0] == "mge.no_such_name"
    assert "| `no_such_name` | **missing** |" in coverage.page()


def test_signatures_hold_names_and_defaults():
    def function(inp: int, axis: int = -1, *, key=len):
        pass

    assert coverage.signature(function) == "(inp, axis=-1, *, key=len)"
