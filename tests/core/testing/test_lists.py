"""The vendor's lists: files, patterns, and what they make of a case."""

import pytest

from mge.errors import ArgumentError
from mge.testing.lists import find, read_list


@pytest.fixture
def listed(tmp_path):
    def write(text, table="xfails", name="list.txt"):
        path = tmp_path / name
        path.write_text(text)
        return read_list(path, table)

    return write


def test_text(listed):
    entries = listed("# young\nL3/sort/*: no ties  # yet\n\nvision::nms: later: in 2.0\n")
    assert [(e.pattern, e.reason) for e in entries] == [
        ("L3/sort/*", "no ties"),
        ("vision::nms", "later: in 2.0"),
    ]


def test_toml(listed):
    text = '[unsupported]\n"L3/sort/*" = "never"\n[xfails]\nconv = "soon"\n'
    assert [(e.pattern, e.reason) for e in listed(text, "unsupported", "a.toml")] == [
        ("L3/sort/*", "never")
    ]
    assert [(e.pattern, e.reason) for e in listed(text, "xfails", "a.toml")] == [("conv", "soon")]
    assert [e.pattern for e in listed('conv = "soon"', "xfails", "b.toml")] == ["conv"]
    assert listed('[unsupported]\nconv = "never"', "xfails", "c.toml") == []


def test_patterns():
    from mge.testing.lists import Entry

    op, case = Entry("con*", "r"), Entry("L3/*/float16", "r")
    assert (
        op.names("L3/conv/0/float32")
        and op.names("L6/concat/leak")
        and not op.names("L3/add/0/con")
    )
    assert case.names("L3/add/0/float16") and not case.names("L4/add/0/float16")
    assert find([case, op], "L3/conv/0/float16") is case
    assert op.used and case.used
    assert find([op], "L3/add/0/float32") is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("L3/sort/*\n", "a.txt"),
        ("L3/sort/*:  \n", "a.txt"),
        (": why\n", "a.txt"),
        ('sort = ""', "a.toml"),
        ("sort = 3", "a.toml"),
    ],
)
def test_a_line_without_a_reason(listed, text, name):
    with pytest.raises(ArgumentError, match=r"has no reason\n  at: .*a\.\w+, .*\n  try: a line is"):
        listed(text, name=name)


def test_unreadable_files(listed, tmp_path):
    with pytest.raises(ArgumentError, match=r"cannot be read: [^\n]*\n  at: .*a\.toml"):
        listed("sort = ", name="a.toml")
    with pytest.raises(ArgumentError, match=r"cannot be read.*\n  at: .*none\.txt"):
        read_list(tmp_path / "none.txt", "xfails")


def test_an_unsupported_case_is_not_run(kit, listed):
    entries = listed("add: this chip has none\n", "unsupported")
    report = kit("bad_crash", patterns=["L3/add/0/*"], ops=["add"], unsupported=entries)
    assert not report.bad
    assert {(r.outcome, r.text) for r in report.results} == {
        ("skipped", "unsupported: this chip has none")
    }


def test_an_expected_failure(kit, listed):
    entries = listed("L3/add/*/float64: ticket 12\nL3/mul/0/*: ticket 13\n")
    report = kit("bad_crash", patterns=["L3/*/0/*"], ops=["add", "mul"], xfails=entries)
    outcomes = {r.case: r for r in report.results}
    crashed = outcomes["L3/add/0/float64"]
    assert crashed.outcome == "xfailed" and crashed.text.startswith(
        "expected to fail: ticket 12\ncrashed: "
    )
    assert outcomes["L3/add/0/float32"].outcome == "passed"
    passed = outcomes["L3/mul/0/float32"]
    assert (
        passed.outcome == "failed"
        and "it passes, and is on the list of expected failures" in passed.text
    )
    assert outcomes["L3/mul/0/int8"].outcome == "refused"  # refusing is no pass


def test_expected_failures_bound_the_trust(kit, listed):
    report = kit(
        "bad_dtype", last="L3", ops=["add"], xfails=listed("L3/add/[0-3l]*/float16: ticket 14\n")
    )
    assert not report.bad
    assert report.trust() == "L2"
