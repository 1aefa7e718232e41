"""The command ``mge``: its commands, its exit status, its errors."""

import gzip
import json
import signal
import struct
import subprocess
import sys

import numpy as np
import pytest

import mge
import mge.functional as F
from mge.cli import main
from mge.debug import VARIABLES
from mge.jit import trace

COMMAND = [sys.executable, "-m", "mge"]


def last_line(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.fixture
def model(tmp_path, rng):
    """A model file for batches of 4, and what it computes."""
    weight = mge.tensor(rng.normal(size=(3, 2)))

    @trace
    def net(x):
        return F.softmax(F.matmul(x, weight), axis=1)

    x = rng.normal(size=(4, 3)).astype(np.float32)
    y = net(mge.tensor(x)).numpy()
    net.dump(tmp_path / "net.mge")
    return tmp_path / "net.mge", x, np.array(y)


def test_version_and_help(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"mge {mge.__version__}\n"
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert (
        all(command in out for command in ("demo", "env", "explain", "run"))
        and "Exit status" in out
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "COMMAND"),
        (["frobnicate"], "frobnicate"),
        (["demo", "--epochs", "0"], "'0' is no whole number from 1 on"),
        (["--set", "colour=1", "env"], "NAME=VALUE with one of device, debug"),
        (["--set", "check=x", "env"], "MGE_CHECK is 'x'"),
        (["explain", "no/such.mge"], "no/such.mge"),
        (["explain", "no/such.py"], "no/such.py: No such file"),
        (["demo", "--device", "warp:0"], 'no installed plugin offers "warp"'),
    ],
)
def test_wrong_usage_is_status_2_and_one_message(words, text, capsys):
    assert main(words) == 2
    captured = capsys.readouterr()
    assert text in captured.err and "Traceback" not in captured.err and captured.out == ""


@pytest.mark.parametrize("command", ["run", "explain", "tune", "compile", "memory"])
def test_a_directory_is_no_model(command, tmp_path, capsys):
    folder = tmp_path / ("folder.py" if command == "memory" else "folder.mge")
    folder.mkdir()
    assert main([command, str(folder), *(["x.npy"] if command == "run" else [])]) == 2
    assert capsys.readouterr().err == f"mge {command}: {folder}: Is a directory, and no file\n"


def test_an_error_shows_its_traceback_where_that_is_asked_for():
    with pytest.raises(FileNotFoundError):
        main(["--set", "debug=1", "explain", "no/such.mge"])


# mge demo


def write_idx(folder, part, images, labels):
    for name, array in (
        (f"{part}-images-idx3-ubyte.gz", images),
        (f"{part}-labels-idx1-ubyte.gz", labels),
    ):
        header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
        (folder / name).write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes()))


@pytest.fixture
def squares(tmp_path, rng):
    """A folder with images of two classes: a bright square at the left or at the right."""
    folder = tmp_path / "squares"
    folder.mkdir()
    for part, count in (("train", 200), ("t10k", 50)):
        images = rng.integers(0, 60, size=(count, 8, 12))
        labels = rng.integers(0, 2, size=count)
        for image, label in zip(images, labels, strict=True):
            image[2:6, 1 + 6 * label : 5 + 6 * label] += 150
        write_idx(folder, part, images, labels)
    return folder


def test_demo_learns_saves_and_checks(squares, tmp_path, capsys):
    out = tmp_path / "squares.mge"
    words = [
        "demo",
        "--data",
        str(squares),
        "--epochs",
        "3",
        "--batch-size",
        "10",
        "--out",
        str(out),
        "--json",
    ]
    assert main(words) == 0
    text = capsys.readouterr().out.splitlines()
    figures = json.loads(text[-1])
    assert figures["test_accuracy"] > 0.9 and figures["predictions_identical"] is True
    assert (
        figures["dataset"] == "squares" and figures["device"] == "ref:0" and figures["epochs"] == 3
    )
    assert figures["seconds"] > 0 and figures["plan_peak_bytes"] > 0
    assert sum(line.startswith("epoch ") for line in text) == 3
    assert mge.load_model(out).inputs[0].type.shape[1:] == (8, 12)


@pytest.mark.slow
def test_demo_on_digits_reaches_its_bar(capsys):
    pytest.importorskip(
        "sklearn", reason="scikit-learn is not installed: pip install mge-core[demo]"
    )
    assert main(["demo", "--dataset", "digits", "--epochs", "6", "--json"]) == 0
    figures = last_line(capsys)
    assert figures["dataset"] == "digits" and figures["test_accuracy"] >= 0.96


def test_demo_gives_the_same_for_the_same_seed(squares, capsys):
    found = []
    for seed in ("1", "1", "2"):
        assert main(["demo", "--data", str(squares), "--epochs", "1", "--seed", seed]) == 0
        found.append(capsys.readouterr().out.splitlines()[2].rpartition(",")[0])
    assert found[0] == found[1] != found[2]


def test_demo_names_the_file_that_is_missing(tmp_path, capsys):
    assert main(["demo", "--data", str(tmp_path)]) == 2
    assert f"no train-images-idx3-ubyte in {tmp_path}" in capsys.readouterr().err


def test_demo_names_the_file_that_is_damaged(squares, capsys):
    path = squares / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    assert main(["demo", "--data", str(squares)]) == 2
    err = capsys.readouterr().err
    assert str(path) in err and "damaged" in err


def test_demo_without_any_data_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr("mge.cli.demo_data.FASHION", "/no/such/folder")
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert main(["demo"]) == 2
    err = capsys.readouterr().err
    assert "mge-core[demo]" in err and "dataset-fashion-mnist" in err and "--data DIR" in err


def test_demo_fails_where_the_fresh_process_differs(squares, monkeypatch, capsys):
    monkeypatch.setattr(
        "mge.cli.demo._scores_of_a_fresh_process",
        lambda path, images, folder: np.zeros((len(images), 2), np.float32),
    )
    assert main(["demo", "--data", str(squares), "--epochs", "1", "--json"]) == 1
    captured = capsys.readouterr().out
    assert (
        "OTHER SCORES" in captured
        and json.loads(captured.splitlines()[-1])["predictions_identical"] is False
    )


# mge run


def test_run_writes_what_the_model_computes(model, tmp_path, capsys):
    path, x, y = model
    given, made = tmp_path / "x.npy", tmp_path / "y.npy"
    np.save(given, np.concatenate([x, x[:3]]))  # more than one batch, and a part of one
    assert main(["run", str(path), str(given), "--out", str(made), "--json"]) == 0
    assert last_line(capsys)["samples"] == 7
    np.testing.assert_array_equal(np.load(made), np.concatenate([y, y[:3]]))


def test_run_refuses_what_does_not_fit(model, tmp_path, capsys):
    path, x, _ = model
    for array, text in ((x[0], "shape (3,)"), (x[:0], "at least one sample")):
        np.save(tmp_path / "x.npy", array)
        assert main(["run", str(path), str(tmp_path / "x.npy")]) == 1
        assert text in capsys.readouterr().err
    assert main(["run", str(path), str(path)]) == 2
    assert "no complete .npy file" in capsys.readouterr().err


# mge env


def test_env_tells_versions_devices_and_settings(capsys):
    assert main(["env", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["mge"] == mge.__version__ and facts["packages"]["numpy"] == np.__version__
    assert {"type": "ref", "count": 1, "priority": 0, "reason": None} in facts["devices"]
    assert facts["settings"].keys() == VARIABLES.keys()
    assert main(["--set", "check=1", "env"]) == 0
    out = capsys.readouterr().out
    assert "MGE_CHECK" in out and "ref:0" in out and "BLAS" in out


# mge explain


def test_explain_a_model_names_each_node_and_the_peak(model, capsys):
    path, _, _ = model
    assert main(["explain", str(path), "--json"]) == 0
    facts = last_line(capsys)
    ops = [node["op"] for node in facts["nodes"]]
    assert "matmul" in ops and all(node["reason"] for node in facts["nodes"])
    steps = [node for node in facts["nodes"] if node["step"] is not None]
    assert (
        all(node["kernel"] and node["device"] == "ref:0" for node in steps)
        and len(steps) == facts["steps"]
    )
    assert (
        facts["peak_bytes"] == max(facts["live_bytes"]) == facts["live_bytes"][facts["peak_step"]]
    )
    assert main(["explain", str(path)]) == 0
    text = capsys.readouterr().out
    assert "matmul" in text and "peak " in text and "memory over" in text


def test_explain_takes_a_batch_where_the_file_leaves_it_open(tmp_path, capsys):
    @trace
    def net(x):
        return F.exp(x) + 1

    net(mge.tensor(np.zeros((4, 5))))
    net.dump(tmp_path / "open.mge", dynamic_batch=True)
    net.dump(tmp_path / "fixed.mge")
    assert main(["explain", str(tmp_path / "open.mge"), "--batch", "9", "--json"]) == 0
    assert last_line(capsys)["outputs"] == ["output0: f32[9, 5]"]
    assert main(["explain", str(tmp_path / "fixed.mge"), "--batch", "9"]) == 2
    assert "dynamic_batch=True" in capsys.readouterr().err


def test_explain_a_script_lists_its_plans(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, mge\n"
        "from mge.jit import trace\n"
        "@trace\n"
        "def double(x):\n"
        "    return x * 2 + 1\n"
        "print(double(mge.tensor([1.0])).item(), sys.argv[1:])\n"
    )
    assert main(["explain", str(script), "word", "--json"]) == 0
    captured = capsys.readouterr()
    (plan,) = json.loads(captured.out)["plans"]
    assert [n["op"] for n in plan["nodes"] if n["step"] is not None] == ["mul", "add"]
    assert plan["nodes"][-1]["place"].endswith("script.py:5")
    assert captured.err == "3.0 ['word']\n"


# The process.


def test_a_reader_that_leaves_is_no_error():
    process = subprocess.Popen([*COMMAND, "env"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 141


def test_control_c_ends_quietly(squares):
    words = ["demo", "--data", str(squares), "--epochs", "100000"]
    process = subprocess.Popen(
        [*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for line in process.stdout:
        if line.startswith("epoch 2"):
            break
    process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    assert process.returncode == 130 and "Traceback" not in err
