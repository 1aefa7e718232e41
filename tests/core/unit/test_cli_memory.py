"""``mge memory``: the trade-off curve of a script, as a table, as JSON and as a picture."""

import importlib.util
import json

import pytest

from mge.cli import main
from mge.memory import STRATEGIES
from tools.count_lines import ROOT

SCRIPT = """
import sys
import numpy as np
import mge, mge.functional as F, mge.module as M

layers = [M.Linear(32, 32) for _ in range(6)]
manager = mge.autodiff.GradManager().attach([p for l in layers for p in l.parameters()])

@mge.jit.trace
def step(x):
    with manager:
        for layer in layers:
            h = layer(x)
            x = F.sigmoid(h) * h
        loss = x.mean()
        manager.backward(loss)
    return loss

for _ in range(int(sys.argv[1])):
    step(mge.tensor(np.ones((64, 32), "float32"))).item()
print("trained")
"""
TOY = ROOT / "examples" / "mge-toy-memory" / "src" / "mge_toy_memory" / "__init__.py"


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A script that trains, and the strategy of the example as ``toy``."""
    spec = importlib.util.spec_from_file_location("mge_toy_memory_of_cli", TOY)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(STRATEGIES, "toy", module.Toy())
    (tmp_path / "train.py").write_text(SCRIPT)
    return str(tmp_path / "train.py")


def rows_of(capsys, *words):
    assert main(["memory", *words, "--json"]) == 0
    out = capsys.readouterr()
    assert "trained" in out.err, "what the script prints must not mix with the answer"
    return json.loads(out.out)


def test_a_lower_budget_takes_less_memory_and_more_time(script, capsys):
    facts = rows_of(
        capsys,
        script,
        "2",
        "--strategy",
        "toy",
        "--budget",
        "90%",
        "--budget",
        "70%",
        "--budget",
        "1KB",
    )
    static, most, less, none = facts["rows"]
    assert static["strategy"] == "static" and static["peak_bytes"] == facts["static_bytes"]
    assert most["peak_bytes"] <= 0.9 * static["peak_bytes"]
    assert less["peak_bytes"] <= 0.7 * static["peak_bytes"] < most["peak_bytes"]
    assert static["slowdown"] == 0 < most["slowdown"] < less["slowdown"]
    assert static["steps"] < most["steps"] < less["steps"]
    assert not none["fits"] and "floor:" in none["reason"] and "peak_bytes" not in none


def test_a_share_that_is_no_limit_does_not_count_as_kept(script, tmp_path, capsys):
    (tmp_path / "infer.py").write_text(
        SCRIPT.replace("with manager:", "if True:").replace("        manager.backward(loss)\n", "")
    )
    words = ("2", "--strategy", "static", "--budget", "50%", "--budget", "100%")
    _, half, whole = rows_of(capsys, str(tmp_path / "infer.py"), *words)["rows"]
    assert not half["fits"] and "a share is an aim without a backward phase" in half["reason"]
    assert whole["fits"] and whole["slowdown"] == 0


def test_the_table_and_the_page(script, tmp_path, capsys):
    page = tmp_path / "curve.html"
    assert (
        main(
            ["memory", script, "2", "--strategy", "toy", "--budget", "80%", "--picture", str(page)]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "of static" in out and "toy" in out and "80%" in out
    text = page.read_text()
    assert text.count("<polyline") == 2 and text.count("<circle") == 2 and "toy: " in text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["net.mge"], "no Python script"),
        (["no/such.py"], "No such file"),
        (["no/such.py", "--strategy", "nowhere"], "nowhere"),
        (["no/such.py", "--strategy", "static", "--budget", "lots"], "'lots'"),
        (["no/such.py", "--picture", "x.gif"], "must end in .html or .png"),
    ],
)
def test_what_cannot_be_done_is_refused_before_the_script_runs(words, text, capsys):
    assert main(["memory", *words]) == 2
    assert text in capsys.readouterr().err


def test_a_script_that_compiles_nothing(tmp_path, capsys):
    (tmp_path / "idle.py").write_text("print('trained')")
    assert main(["memory", str(tmp_path / "idle.py")]) == 2
    assert "compiled no plan" in capsys.readouterr().err


def test_a_png_says_what_it_needs(script, tmp_path, capsys):
    picture = tmp_path / "curve.png"
    status = main(
        ["memory", script, "2", "--strategy", "toy", "--budget", "80%", "--picture", str(picture)]
    )
    if importlib.util.find_spec("matplotlib") is None:
        assert status == 2 and "pip install matplotlib" in capsys.readouterr().err
    else:
        assert status == 0 and picture.read_bytes()[:4] == b"\x89PNG"
