"""The tuning cache as Python sees it, and where its file is."""

import os
import subprocess
import sys

import pytest

from mge import native
from mge.debug import debug


@pytest.fixture
def tuning(module, tmp_path):
    path = tmp_path / "tuning.txt"
    module.tuning_open(str(path))
    yield module, path
    module.tuning_open(str(native.tuning_path()))


def test_what_is_put_is_there_for_the_next_process(tuning):
    module, path = tuning
    module.tuning_put("x86 conv 1", b"\0winograd")
    assert module.tuning_get("x86 conv 1") == b"\0winograd" and module.tuning_get("other") is None
    first = module.tuning_statistics()
    module.tuning_open(str(path))
    assert module.tuning_get("x86 conv 1") == b"\0winograd" and module.tuning_statistics() == first


def test_the_hash_tells_contents_apart(tuning):
    module, _ = tuning
    hashes = []
    for key, value in (("a", b"1"), ("a", b"2"), ("b", b"1"), ("b", b"1")):
        module.tuning_put(key, value)
        hashes.append(module.tuning_statistics()[2])
    assert len(set(hashes)) == 3 and hashes[2] == hashes[3]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-5],
        lambda data: data + b"half a line",
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: b"something else\n" + data,
        lambda data: data[:30] + bytes(10) + data[40:],
        lambda data: b"",
        lambda data: bytes(1000),
        lambda data: b"mge-tuning 2\n",
    ],
)
def test_damage_costs_the_damaged_lines_only(tuning, damage):
    module, path = tuning
    for i in range(5):
        module.tuning_put(f"key {i}", str(i).encode())
    path.write_bytes(damage(path.read_bytes()))
    module.tuning_open(str(path))
    for i in range(5):
        assert module.tuning_get(f"key {i}") in (None, str(i).encode())
    module.tuning_put("after", b"good")
    module.tuning_open(str(path))
    assert module.tuning_get("after") == b"good"


def test_the_file_is_the_machines(tmp_path):
    with debug(cache=str(tmp_path / "new" / "folder")):
        path = native.tuning_path()
        assert (
            path == native.tuning_path()
            and path.parent.is_dir()
            and path.name.startswith("tuning-1-")
        )


def test_a_folder_that_cannot_be_made_is_no_error(module, tmp_path):
    (tmp_path / "file").write_text("")
    with debug(cache=str(tmp_path / "file" / "folder")):
        module.tuning_open(str(native.tuning_path()))
    module.tuning_put("kept", b"here")
    assert module.tuning_get("kept") == b"here"
    module.tuning_open(str(native.tuning_path()))


def test_the_number_of_threads_is_the_settings(module):
    code = "from mge.native import load_module; print(load_module().thread_count())"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    for threads in (1, 3):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=env | {"MGE_THREADS": str(threads)},
            capture_output=True,
            text=True,
        )
        assert done.stdout == f"{threads}\n", done.stderr
    with debug(threads=7):
        assert native.thread_count() == 7
    assert native.thread_count() >= 1
