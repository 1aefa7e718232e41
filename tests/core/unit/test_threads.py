"""Threads and processes: a pending graph each, values shared, modes apart, and life after a fork."""

import contextvars
import os
import sys
import threading

import numpy as np
import pytest

import mge
import mge.functional as F
from mge import autodiff, graph, mode
from mge.device import as_device
from mge.graph import LOCAL
from mge.jit import trace
from mge.memory import current_strategy, memory
from mge.mode import MANAGERS, MODE


def floats(*values):
    return mge.tensor(np.array(values, np.float32))


def in_thread(function, *args):
    """Run a function in a thread; return its result or raise its error."""
    box = []

    def target():
        try:
            box.append((function(*args), None))
        except BaseException as error:
            box.append((None, error))

    thread = threading.Thread(target=target)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "the thread hangs"
    result, error = box[0]
    if error is not None:
        raise error
    return result


def in_threads(count, function):
    """Run ``function(i)`` in so many threads that start together; return the results in order."""
    results, errors = [None] * count, []
    start = threading.Barrier(count)

    def target(i):
        try:
            start.wait(30)
            results[i] = function(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=target, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not any(t.is_alive() for t in threads), "a thread hangs"
    if errors:
        raise errors[0]
    return results


def test_the_pending_graph_is_per_thread(counts):
    x = floats(1) + 1
    mine = LOCAL.recording

    def other():
        assert LOCAL.recording is not mine
        y = floats(2) * 3
        assert y._node in LOCAL.recording.index and y._node not in mine.index
        mge.sync()
        return y.numpy().tolist(), x._node.buffer is None

    assert in_thread(other) == ([6], True), "a sync in another thread ran this thread's graph"
    assert x.item() == 2


def test_reading_the_tensor_of_another_thread_evaluates_only_its_ancestors(counts):
    a = floats(1) + 1
    b = a * 10
    unrelated = F.exp(floats(3))
    assert in_thread(b.numpy).tolist() == [20]
    assert counts.steps_run == 2
    assert unrelated._node.buffer is None and b._node.buffer is not None
    assert unrelated.item() == pytest.approx(np.exp(3))
    assert a.item() == 2


def test_a_calculation_goes_on_in_another_thread():
    def make():
        x = floats(1, 2)
        y = x * 2
        mge.eval(x)
        return y

    y = in_thread(make)
    assert y._node.buffer is None
    z = y + 1  # recorded here, over what the other thread left pending
    assert z.numpy().tolist() == [3, 5]
    assert y.numpy().tolist() == [2, 4]


def test_both_threads_read_the_same_pending_tensor():
    for _ in range(20):
        x = F.exp(floats(1, 2)) * 2
        y = x + 1
        results = in_threads(4, lambda i, x=x, y=y: (y.numpy().tolist(), x.numpy().tolist()))
        assert all(r == results[0] for r in results)


def test_many_threads_compute_the_same(counts):
    rng = np.random.default_rng(0)
    w = mge.Parameter(rng.normal(size=(6, 6)).astype("float32"))

    def work(i):
        made = []
        for k in range(30):
            x = mge.tensor(np.full((3, 6), 0.1 * (i + k), np.float32))
            made.append(F.tanh(x @ w).sum() * 2)
            if k % 3 == 0:
                made[-1].item()
        return [m.item() for m in made]

    wanted = [work(i) for i in range(4)]
    assert in_threads(4, work) == wanted


def test_training_in_several_threads_at_once(descend):
    def work(i):
        rng = np.random.default_rng(7)
        w = mge.Parameter(rng.normal(size=(4, 1)).astype("float32"))
        x = mge.tensor(rng.normal(size=(5, 4)).astype("float32"))
        manager = autodiff.GradManager().attach(w)
        losses = []
        for k in range(20):
            with manager:
                loss = ((x @ w) ** 2).mean()
                if k % 4 == i:
                    loss.item()
                manager.backward(loss)
            descend([w], 0.01)
            w.grad = None
            losses.append(loss)
        return [x.item() for x in losses]

    wanted = work(0)
    assert in_threads(4, work) == [wanted] * 4
    assert not mge.tape.ACTIVE


def test_one_traced_function_in_several_threads():
    w = floats(2)

    @trace
    def double(x):
        return F.exp(x) * w

    def work(i):
        return [double(floats(i + k)).item() for k in range(30)]

    wanted = [[float(np.exp(np.float32(i + k)) * 2) for k in range(30)] for i in range(4)]
    made = in_threads(4, work)
    assert np.allclose(made, wanted, rtol=1e-6)


def test_runs_on_one_device_are_serialised():
    running, most = [], []

    def note(a):
        running.append(1)
        most.append(len(running))
        for _ in range(200):
            a = a + 0
        running.pop()
        return a

    def work(i):
        for _ in range(10):
            F.host_call(note, [((2,), "float32")], floats(i, 1)).numpy()

    in_threads(4, work)
    assert max(most) == 1


# Context variables.


def test_eager_autocast_memory_and_managers_are_of_one_context():
    manager = autodiff.GradManager().attach(floats(1))

    def look():
        return MODE.get().eager, MODE.get().cast, current_strategy(), MANAGERS.get()

    with mge.eager(), memory("naive"), mge.amp.autocast(), manager:
        inside = look()
        outside = in_thread(look)
    assert (
        inside[0] is True and inside[1] is not None and inside[2] == "naive" and len(inside[3]) == 1
    )
    assert outside == look() == (False, None, "static", ())


def test_a_copied_context_keeps_its_mode():
    with mge.eager():
        context = contextvars.copy_context()
    x = context.run(lambda: floats(1) + 1)
    assert x._node.buffer is not None
    assert (floats(1) + 1)._node.buffer is None


def test_tasks_have_modes_of_their_own():
    import asyncio

    async def one():
        with mge.eager():
            await asyncio.sleep(0.01)
            return (floats(1) + 1)._node.buffer is not None

    async def two():
        await asyncio.sleep(0.005)
        return (floats(1) + 1)._node.buffer is None

    async def both():
        return await asyncio.gather(one(), two())

    assert asyncio.run(both()) == [True, True]


def test_a_default_device_of_a_context():
    with mode.changed(device=as_device("ref:0")):
        assert mge.tensor([1.0]).device == "ref:0"


# Processes.


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_after_a_fork_the_child_computes():
    x = floats(1, 2)
    warm = [(x * 3).numpy() for _ in range(3)]
    pending = x * 5
    code = """
import os, sys, warnings
warnings.simplefilter("ignore")
import numpy as np
import mge
x = mge.tensor(np.array([1.0, 2.0], np.float32))
for _ in range(3):
    (x * 3).numpy()
pending = x * 5
child = os.fork()
if child == 0:
    ok = (x * 3).numpy().tolist() == [3, 6] and pending.numpy().tolist() == [5, 10]
    os._exit(0 if ok else 1)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), pending.numpy().tolist())
"""
    import subprocess

    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.stdout.strip() == "0 [5.0, 10.0]", result.stderr
    assert warm[0].tolist() == [3, 6] and pending.numpy().tolist() == [5, 10]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_while_another_thread_runs_does_not_hang():
    code = """
import os, threading, warnings
warnings.simplefilter("ignore")
import numpy as np
import mge, mge.functional as F
x = mge.tensor(np.ones((200, 200), np.float32))
stop = threading.Event()
def work():
    while not stop.is_set():
        (x @ x).numpy()
thread = threading.Thread(target=work)
thread.start()
(x @ x).numpy()
codes = []
for _ in range(5):
    child = os.fork()
    if child == 0:
        import signal
        signal.alarm(20)
        ok = (x @ x).numpy()[0, 0] == 200
        os._exit(0 if ok else 1)
    _, status = os.waitpid(child, 0)
    codes.append(os.waitstatus_to_exitcode(status))
stop.set()
thread.join()
print(codes)
"""
    import subprocess

    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env=environment,
    )
    assert result.stdout.strip() == "[0, 0, 0, 0, 0]", (result.stdout, result.stderr)


def test_a_thread_that_ends_leaves_usable_tensors():
    made = in_thread(lambda: [floats(i) * 2 for i in range(5)])
    import gc

    gc.collect()
    assert [m.item() for m in made] == [0, 2, 4, 6, 8]


def test_a_requested_flush_of_another_thread_is_not_run_here():
    def other():
        x = floats(1) + 1
        graph.request_flush()
        return x

    x = in_thread(other)
    floats(2) * 2
    assert x._node.buffer is None
    assert x.item() == 2
