"""The unit tests in C++, under sanitizers."""

import os
import subprocess

import pytest

from tests.core.native.build import HERE, NATIVE, compiled

SOURCES = ["backend", "executor", "memory_pool", "thread_pool", "tuning_cache"]


def can_build(compiler, flags, folder):
    """Whether a program with this sanitizer can be built and run here."""
    source = folder / "try.cc"
    source.write_text("int main() { return 0; }")
    try:
        target = compiled(folder / "try", source, flags=flags, shared=False)
    except AssertionError:
        return False
    return subprocess.run([target], capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_the_parts_are_clean(compiler, tmp_path, sanitizers):
    if not NATIVE.is_dir():
        pytest.skip("the sources of the native core are not here")
    flags = [
        f"-fsanitize={sanitizers}",
        "-fno-sanitize-recover=all",
        "-DFAKE_DELAY_US=20",
        "-DOWN_DELAY_US=5",
    ]
    if not can_build(compiler, flags, tmp_path):
        pytest.skip(f"no -fsanitize={sanitizers} here")
    for name in ("probe", "fake_async", "own_memory"):
        compiled(tmp_path / f"lib{name}.so", HERE / "libraries" / f"{name}.cc", flags=flags)
    program = compiled(
        tmp_path / "parts_test",
        HERE / "parts_test.cc",
        *[NATIVE / f"{s}.cc" for s in SOURCES],
        flags=flags,
        shared=False,
    )
    done = subprocess.run(
        [program, str(tmp_path), str(tmp_path)],
        env=os.environ | {"ASAN_OPTIONS": "detect_leaks=1", "TSAN_OPTIONS": "halt_on_error=1"},
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout == "good\n", done.stdout + done.stderr[-5000:]
