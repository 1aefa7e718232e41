"""What tests of mge-x86 share: they skip where it is not installed, and run code on each level of instructions."""

import os
import subprocess
import sys

import pytest

LEVELS = ("sse4", "avx2", "avx512", "avx512vnni")


def installed():
    """Why mge-x86 cannot be used here; None where it can."""
    try:
        import mge_x86

        mge_x86.backend()
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


@pytest.fixture
def x86():
    """The device's name."""
    reason = installed()
    if reason:
        pytest.skip(f"mge-x86 is not installed, or does not work here: {reason}")
    return "x86:0"


def run_program(*arguments, **settings):
    """Run Python in a new process with environment settings; return the finished process."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True)


@pytest.fixture
def run_python():
    """A function that runs Python in a new process, and returns what it prints."""

    def run(*arguments, **settings):
        done = run_program(*arguments, **settings)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture(params=LEVELS)
def on_level(request, x86):
    """The same on one level of the instruction set; skips where the processor lacks it."""
    level = request.param

    def run(*arguments, **settings):
        done = run_program(*arguments, MGE_X86_ISA=level, **settings)
        if "this processor has the levels" in done.stdout + done.stderr:
            pytest.skip(f"this processor lacks {level}")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
