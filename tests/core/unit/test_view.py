"""The page that MGE_VIEW names: whole, self-contained, bounded, and drawn without an error."""

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

import mge
import mge.functional as F
import mge.view
from mge import execute
from mge.debug import debug
from mge.jit import trace
from mge.view import View


class Page(HTMLParser):
    """Collects tags, what they refer to, and the data; refuses tags that do not close in order."""

    VOID = {"meta", "br", "input", "link", "img", "hr"}

    def __init__(self, text):
        super().__init__()
        self.open, self.links, self.data, self.tags = [], [], "", set()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.links += [
            value for name, value in attrs if name in ("src", "href", "srcset", "action", "data")
        ]
        if tag not in self.VOID:
            self.open.append((tag, dict(attrs)))

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, text):
        if self.open and self.open[-1] == ("script", {"type": "application/json", "id": "data"}):
            self.data += text


def data_of(path):
    return json.loads(Page(path.read_text()).data)


@pytest.fixture
def view(tmp_path, monkeypatch):
    """Collect plans in a view of this test, written to ``view.html``."""
    made = View()
    monkeypatch.setattr(mge.view, "VIEW", made)
    monkeypatch.setattr(execute, "WATCHERS", [made.watch])
    path = tmp_path / "view.html"
    with debug(view=str(path)):
        yield made, path


def run_model(times=2):
    weight = mge.Parameter(np.ones((3, 4), np.float32))

    @trace
    def function(x):
        return F.softmax(F.relu(F.matmul(x, weight) + 1), axis=1).sum()

    for _ in range(times):
        function(mge.tensor(np.ones((2, 3), np.float32)))
    (entry,) = function.last.plans.values()
    return entry.plan


def test_the_page_is_whole_and_loads_nothing(view):
    _, path = view
    run_model()
    text = path.read_text()
    page = Page(text)
    assert {"html", "head", "body", "main", "nav", "style", "script", "title"} <= page.tags
    assert page.links == ["#main"]
    assert not re.search(
        r"https?:|//\w|url\(|@import|\bimport\s*\(|fetch\(", text.partition("</style>")[0]
    )
    assert not re.search(r"https?://|url\(|\bfetch\(|XMLHttpRequest|\bimport\(", text)
    assert "default-src 'none'" in text and "prefers-color-scheme: dark" in text


def test_every_node_step_and_value_is_in_it(view):
    made, path = view
    plan = run_model(3)
    made.write()
    data = data_of(path)
    (found,) = data["plans"]
    assert found["stages"][0]["name"] == "recorded" and found["stages"][-1]["name"] == "planned"
    for stage in found["stages"]:
        known = {number for number, _ in stage["nodes"]}
        assert {i for _, inputs in stage["nodes"] for i in inputs} | set(stage["outputs"]) <= known
    ops = {node[1] for node in found["nodes"]}
    assert {node.op.name for node in plan.graph.nodes} | {"softmax", "matmul"} <= ops
    assert [s[0] for s in found["steps"]] == [s.slot.node.op.name for s in plan.steps]
    assert all(
        found["nodes"][i][1] == s[0]
        for i, s in zip(found["step_nodes"], found["steps"], strict=True)
    )
    assert found["peak_bytes"] == plan.peak_bytes and found["timeline"] == plan.timeline()
    assert len(found["values"]) == len(plan.values) and len(found["storages"]) == len(plan.storages)
    assert [place for place, _ in found["places"]] and all(
        p.startswith(__file__) for p, _ in found["places"]
    )
    assert any("F.softmax" in source for _, source in found["places"])
    times = data["about"]["times"][str(found["number"])]
    assert times["runs"] == 3 and len(times["best"]) == len(times["last"]) == len(plan.steps)
    assert all(0 <= start <= end for start, end in times["last"])


def test_a_pass_that_changes_nothing_keeps_all_numbers(view):
    _, path = view

    @trace
    def function(x):
        return (x + 1) * (x + 1) * 1.0

    function(mge.tensor([1.0, 2.0]))
    (found,) = data_of(path)["plans"]
    stages = {s["name"]: {n for n, _ in s["nodes"]} for s in found["stages"]}
    assert stages["tidy"] == stages["place"] == stages["planned"]
    removed = stages["recorded"] - stages["place"]
    assert removed and "add" in {found["nodes"][n][1] for n in removed}  # the repeated sum


def test_text_from_the_program_cannot_end_the_data(view, monkeypatch):
    made, path = view
    monkeypatch.setattr(sys, "argv", ["</script><script>alert(1)</script>"])
    run_model()
    made.write()
    assert data_of(path)["about"]["program"].endswith("script>")
    assert path.read_text().count("</script>") == 2


def test_the_page_stays_small(view, monkeypatch):
    made, path = view
    monkeypatch.setattr(mge.view, "LIMIT_NODES", 3)
    monkeypatch.setattr(mge.view, "LIMIT_BYTES", 9_000)
    for _ in range(6):
        run_model(1)
    made.write()
    data = data_of(path)
    assert (
        data["about"]["left_out"] == 6 - len(data["plans"]) > 0 and data["plans"][-1]["number"] == 6
    )
    assert all(len(s["nodes"]) <= 3 for s in data["plans"][0]["stages"])
    assert data["plans"][0]["stages"][0]["left_out"] > 0


def test_without_a_plan_the_page_says_why(view):
    made, path = view
    made.finish()
    assert data_of(path)["plans"] == [] and "No plan was compiled" in path.read_text()


def test_a_page_that_cannot_be_written_is_one_warning(view, capsys):
    with debug(view="/no/such/folder/view.html"):
        run_model()
        run_model()
    err = capsys.readouterr().err
    assert err.count("/no/such/folder/view.html cannot be written") == 1


def test_the_page_appears_in_one_move(view):
    _, path = view
    run_model()
    assert [p.name for p in path.parent.iterdir()] == ["view.html"]


def test_the_page_is_written_when_the_program_ends(tmp_path):
    path = tmp_path / "view.html"
    code = "import mge\nfrom mge.jit import trace\nprint(trace(lambda x: x + 1)(mge.tensor([1.0])).item())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"MGE_VIEW": str(path)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "2.0\n" and done.stderr == ""
    assert len(data_of(path)["plans"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("tab", ["graph", "plan", "memory", "time"])
def test_a_browser_draws_it(view, tab, tmp_path):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium here")
    made, path = view
    plan = run_model()
    made.write()
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
         "--virtual-time-budget=3000", "--enable-logging=stderr", "--dump-dom", f"{path.as_uri()}#tab={tab}"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr, done.stderr
    drawn = done.stdout
    if tab == "graph":
        assert all(
            f">{node.op.name}</text>" in drawn
            for node in plan.graph.nodes
            if node.op.name != "constant"
        )
    elif tab == "plan":
        assert drawn.count('id="step-') == len(plan.steps)
    else:
        assert drawn.count('class="block') >= 1 and "NaN" not in drawn.partition("</script>")[0]
