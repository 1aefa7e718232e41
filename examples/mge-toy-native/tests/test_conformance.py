"""mge's conformance kit on device ``toy_native``: each of its cases runs in a process that may die."""

import subprocess
import sys
from pathlib import Path

LISTS = Path(__file__).parents[1]


def test_the_kit_finds_no_fault(tmp_path):
    command = [sys.executable, "-m", "mge.testing", "toy_native"]
    command += ["--unsupported", LISTS / "unsupported.txt", "--xfails", LISTS / "xfails.txt"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
