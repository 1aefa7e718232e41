"""Worker processes: what fails in them, how they die, and what they leave behind: nothing."""

import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mge.data import DataLoader, LoaderTimeout, SequentialSampler, StreamSampler, WorkerError
from mge.data import shared_arrays as shared
from tests.core.unit.test_data_support import Count, Failing, NoUnpickling, Numbers, Rows

SHARED = pathlib.Path("/dev/shm")


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    assert multiprocessing.active_children() == []
    assert list(SHARED.glob(f"mge{os.getpid():x}*")) == []


def take(dataset, **arguments):
    """Return the batches before the error, and the error."""
    loader = DataLoader(dataset, SequentialSampler(dataset, 2), **arguments)
    taken = []
    try:
        for batch in loader:
            taken.append(batch)
    except Exception as error:
        return len(taken), error
    raise AssertionError("no error")


def text_of(error):
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


@pytest.mark.parametrize("preload", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_keeps_its_type_and_tells_where_it_was(workers, preload):
    count, error = take(Failing("raise_key_error"), num_workers=workers, preload=preload)
    assert count == 1 and type(error) is KeyError and error.args == ("no such picture",)
    text = text_of(error)
    assert "batch 1 (samples [2, 3])" in text and "in Failing[3]" in text
    if workers:
        assert "worker 1 (pid" in text and "in raise_key_error" in text and "Traceback" in text


@pytest.mark.parametrize("how", ["raise_stop", "leave", "raise_odd"])
def test_an_exception_that_cannot_travel_becomes_a_worker_error(how):
    count, error = take(Failing(how), num_workers=1)
    assert count == 1 and type(error) is WorkerError and isinstance(error, RuntimeError)
    assert f"in {how}" in text_of(error) and "samples [2, 3]" in str(error)


def test_stop_iteration_does_not_look_like_the_end():
    count, error = take(Failing("raise_stop"))
    assert count == 1 and type(error) is WorkerError
    assert isinstance(error.__cause__, StopIteration)


@pytest.mark.parametrize("preload", [False, True])
@pytest.mark.parametrize(
    ("how", "text"),
    [("exit_at_once", "ended with exit code 3"), ("be_killed", "was killed by SIGKILL")],
)
def test_a_dead_worker_is_an_error(how, text, preload):
    start = time.monotonic()
    count, error = take(Failing(how), num_workers=2, preload=preload)
    assert type(error) is WorkerError and count <= 1
    assert text in str(error) and "during batch 1 (samples [2, 3])" in str(error)
    assert time.monotonic() - start < 10


def test_a_worker_killed_from_outside_is_an_error():
    batches = iter(DataLoader(Numbers(100, slow={5: 60}), num_workers=1))
    next(batches)
    (worker,) = multiprocessing.active_children()
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match=r"was killed by SIGKILL(.|\n)*memory"):
        list(batches)


def test_a_timeout_is_an_error():
    start = time.monotonic()
    count, error = take(Failing("hang"), num_workers=2, timeout=0.5)
    assert count == 1 and type(error) is LoaderTimeout and isinstance(error, TimeoutError)
    assert "batch 1 (samples [2, 3]), worker 1" in str(error) and "timeout=0.5 s" in str(error)
    assert time.monotonic() - start < 10


def test_what_cannot_be_pickled_is_named():
    dataset = Numbers()
    dataset.open_file = lambda: None
    with pytest.raises(
        WorkerError, match=r"dataset \(Numbers\) cannot be sent(.|\n)*top level of a module"
    ):
        iter(DataLoader(dataset, num_workers=1))


def test_what_cannot_be_unpickled_is_named():
    with pytest.raises(WorkerError, match=r"could not unpickle.*state of another version"):
        list(DataLoader(NoUnpickling(), num_workers=2))


def test_a_worker_has_no_workers():
    _, error = take(Failing("nest"), num_workers=1)
    assert type(error) is WorkerError and "a daemon process" in str(error)


def test_a_broken_stream_hands_out_what_came_before():
    for workers in (0, 2):
        batches = iter(DataLoader(Count(9, fail_at=5), StreamSampler(2), num_workers=workers))
        assert [next(batches).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises(OSError, match="the stream broke"):
            next(batches)
        assert list(batches) == [] or workers == 0


def test_a_forked_copy_leaves_the_workers_alone():
    batches = iter(DataLoader(Rows(20), num_workers=1))
    next(batches)
    pid = os.fork()
    if pid == 0:
        batches.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert len(list(batches)) == 19


SCRIPT = """
import sys, time
import numpy as np
from mge.data import DataLoader
from tests.core.unit.test_data_support import Rows, Numbers

def main():
    {body}

{call}
"""


def script(tmp_path, body, call="if __name__ == '__main__':\n    main()", interrupt=False):
    """Run a program in a process group of its own; return (code, stdout, stderr, what it left)."""
    path = tmp_path / "program.py"
    body = textwrap.indent(textwrap.dedent(body).strip(), "    ").strip()
    path.write_text(SCRIPT.format(body=body, call=call))
    process = subprocess.Popen(
        [sys.executable, "-W", "error", str(path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        process_group=0, restore_signals=True,
    )  # fmt: skip
    if interrupt:
        process.stdout.readline()
        time.sleep(0.2)
        os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and group(process.pid):
        time.sleep(0.05)
    left = group(process.pid) + [p.name for p in SHARED.glob(f"mge{process.pid:x}*")]
    return process.returncode, out, err, left


def group(pid):
    """Return the living processes of a group."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            state, _, group_id = (folder / "stat").read_text().rsplit(")", 1)[1].split()[:3]
        except OSError:
            continue
        if int(group_id) == pid and state != "Z":
            found.append(folder.name)
    return found


linux = pytest.mark.skipif(not pathlib.Path("/proc").exists(), reason="needs /proc")


@linux
@pytest.mark.parametrize("preload", [False, True])
def test_a_program_that_ends_in_a_loop_leaves_nothing(tmp_path, preload):
    body = f"""
        global batches
        batches = iter(DataLoader(Rows(50), num_workers=2, preload={preload}))
        print(next(batches)[1])
    """
    assert script(tmp_path, body) == (0, "[0]\n", "", [])


@linux
@pytest.mark.parametrize("preload", [False, True])
def test_ctrl_c_leaves_nothing(tmp_path, preload):
    body = f"""
        import signal
        signal.signal(signal.SIGINT, signal.default_int_handler)
        slow = dict.fromkeys(range(1, 50), 0.5)
        for batch in DataLoader(Numbers(50, slow), num_workers=2, preload={preload}):
            print("ready", flush=True)
    """
    code, _, err, left = script(tmp_path, body, interrupt=True)
    assert left == [] and code != 0
    assert err.count("Traceback") == 1 and err.strip().endswith("KeyboardInterrupt")


@linux
def test_workers_end_when_their_parent_is_killed(tmp_path):
    body = """
        import os
        batches = iter(DataLoader(Numbers(50, {5: 0.3}), num_workers=2))
        next(batches)
        os.kill(os.getpid(), 9)
    """
    code, _, _, left = script(tmp_path, body)
    assert code == -9 and left == []


@linux
def test_a_script_without_its_guard_is_told_so(tmp_path):
    body = "print(list(DataLoader([1, 2], num_workers=1)))"
    code, out, err, left = script(tmp_path, body, call="main()")
    assert code == 1 and out == "" and left == []
    *_, what, place, hint = err.strip().splitlines()
    assert "worker 0" in what and "before it was ready" in what
    assert "program.py" in place and 'below `if __name__ == "__main__":`' in hint


@linux
def test_a_class_of_no_file_is_told_so():
    program = (
        "from mge.data import *\n"
        "class D(Dataset):\n"
        "    def __getitem__(self, i): return i\n"
        "    def __len__(self): return 2\n"
        "list(DataLoader(D(), num_workers=1))\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    for arguments, text in ((["-c", program], None), (["-"], program)):
        done = subprocess.run(
            [sys.executable, *arguments], input=text, env=environment, capture_output=True, text=True,
            timeout=60,
        )  # fmt: skip
        assert done.returncode == 1
        assert "into a .py file" in done.stderr or "program into a file" in done.stderr


NESTED = st.recursive(
    st.one_of(
        st.integers(), st.text(max_size=5), st.none(),
        arrays.arrays(
            st.sampled_from(["u1", "f4", "f8", "?", "c8"]),
            st.sampled_from([(), (3,), (2, 0), (5000,), (40, 50)]),
            elements={"allow_nan": False},
            fill=st.just(1),
        ),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def same(x, y):
    if isinstance(x, list):
        return len(x) == len(y) and all(map(same, x, y))
    if isinstance(x, dict):
        return x.keys() == y.keys() and all(same(x[k], y[k]) for k in x)
    if isinstance(x, np.ndarray):
        return x.dtype == y.dtype and x.shape == y.shape and np.array_equal(x, y)
    return type(x) is type(y) and x == y


@given(st.lists(NESTED, min_size=1, max_size=4))
def test_values_pass_through_shared_memory_unchanged(values):
    prefix = f"mge{os.getpid():x}x"
    writer = shared.SharedWriter(prefix, removes=False)
    reader = shared.SharedReader(prefix, removes=True)
    try:
        found = [reader.read(0, writer.write(0, value)) for value in values]
    finally:
        writer.close()
        reader.close(1)
    assert same(values, found)
    for value in found:
        if isinstance(value, np.ndarray):
            value[...] = 0


def test_large_arrays_stay_out_of_the_packet():
    writer = shared.SharedWriter(f"mge{os.getpid():x}y", removes=True)
    value = [np.zeros(10**6), np.zeros((1000, 100)).T, np.zeros(3)]
    packet = writer.write(0, value)
    assert len(packet.head) < 2000 and [n for _, n in packet.spans] == [8 * 10**6, 8 * 10**5]
    writer.close()


def test_an_unannounced_segment_is_removed():
    prefix = f"mge{os.getpid():x}z"
    writer = shared.SharedWriter(prefix, removes=False)
    reader = shared.SharedReader(prefix, removes=True)
    reader.read(0, writer.write(0, np.zeros(1000)))
    writer.write(0, np.zeros(9000))  # the reader never hears of this one
    writer.write(1, np.zeros(1000))
    writer.close()
    assert len(list(SHARED.glob(prefix + "*"))) == 3
    reader.close(2)
    assert list(SHARED.glob(prefix + "*")) == []


def test_no_room_in_shared_memory(monkeypatch):
    def full(file, offset, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    writer = shared.SharedWriter(f"mge{os.getpid():x}w", removes=True)
    packet = writer.write(0, np.arange(2000))
    assert packet.spilled and packet.spans == ()
    assert np.array_equal(shared.SharedReader("", removes=True).read(0, packet), np.arange(2000))
