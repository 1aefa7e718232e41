"""``python -m mge.testing`` and ``pytest --pyargs mge.testing``: what they print, write and return."""

import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest


@pytest.fixture
def command(workers, tmp_path):
    def run(*words):
        return subprocess.run(
            [sys.executable, "-m", *words], cwd=tmp_path, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    return run


def test_a_run_with_faults(command, tmp_path):
    done = command(
        "mge.testing", "bad_dtype", "--ops", "add,sort", "--level", "L3",
        "--json", "conformance.json", "--junit", "junit.xml",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "FAILED L3/add/0/float16: " in done.stdout
    table = [line.split() for line in done.stdout.splitlines() if line.startswith(("op ", "add "))]
    assert dict(zip(*table))["f16"] == "FAIL" and dict(zip(*table))["f32"] == "ok"
    assert "refused in all uses: 1 ops: sort" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("bad_dtype:0: ")
    assert done.stdout.endswith("trust level L2\n")

    written = json.loads((tmp_path / "conformance.json").read_text())
    assert (written["schema"], written["trust"], written["package"]) == (1, "L2", "planted")
    assert written["ops"]["add"]["float16"] == "failed"
    assert written["only_ops"] == ["add", "sort"]
    counts = written["levels"]["L3"]
    cases = [c for c in written["cases"] if c["case"].startswith("L3/")]
    assert sum(counts.values()) == len(cases)

    suites = {s.get("name"): s for s in ElementTree.parse(tmp_path / "junit.xml").getroot()}
    suite = suites["bad_dtype.L3"]
    assert int(suite.get("tests")) == len(cases) and int(suite.get("failures")) == counts["failed"]
    failed = suite.find("testcase[@classname='L3.add'][@name='0/float16']/failure")
    assert "values are off" in failed.text


def test_a_good_run(command):
    done = command("mge.testing", "good", "--ops=add", "--case=L3/*/0/*", "--quiet")
    assert done.returncode == 0, done.stderr
    assert "trust level none" in done.stdout  # of some cases


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["no_such"], 'no installed plugin offers "no_such"'),
        (["absent"], "no board in this machine"),
        (["good", "--ops=ad"], "ops: there is no op ad"),
        (["good", "--xfails=none.txt"], "xfails: it cannot be read"),
        (["good", "--case=L9/*"], "no case has such a name"),
        (["good", "--level=L9"], "invalid choice: 'L9'"),
    ],
)
def test_a_run_that_cannot_be(command, words, text):
    done = command("mge.testing", *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert text in done.stdout + done.stderr


def test_a_pattern_that_names_no_case(kit, tmp_path):
    from mge.testing import Report, Result, Runner
    from mge.testing.lists import Entry

    report = Report(
        Runner("good", xfails=[Entry("sorted", "typing")]), [Result("L0/a/b", "passed")]
    )
    assert report.unused == ["sorted"]
    assert "sorted: no case has this name" in report.summary()


PYTEST = ["pytest", "-q", "-p", "_mge_pytest", "-p", "no:cacheprovider", "--pyargs", "mge.testing"]


def test_pytest_runs_the_kit(command, tmp_path):
    (tmp_path / "unsupported.txt").write_text("L3/add/1/*: never\n")
    done = command(
        *PYTEST, "-rf", "--mge-device=bad_crash", "--mge-ops=add", "--mge-level=L3",
        "--mge-unsupported=unsupported.txt", "--mge-json=conformance.json", "-n0",
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED" in done.stdout and "test_conformance[L3/add/0/float64]" in done.stdout
    assert "crashed: the process died: SIGSEGV" in done.stdout
    assert "trust level L2" in done.stdout
    written = json.loads((tmp_path / "conformance.json").read_text())
    assert written["ops"]["add"]["float64"] == "crashed"
    assert written["unsupported"] == {"L3/add/1/*": "never"}


def test_pytest_with_another_process(command, tmp_path):
    done = command(
        *PYTEST, "--mge-device=good", "--mge-ops=add", "--mge-level=L3", "--mge-json=c.json", "-n1"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((tmp_path / "c.json").read_text())
    assert (written["trust"], written["package"]) == ("L3", "planted")


def test_pytest_wants_a_device(command):
    done = command(*PYTEST)
    assert done.returncode != 0
    assert "name the device to test: pytest --pyargs mge.testing --mge-device=NAME" in done.stdout
