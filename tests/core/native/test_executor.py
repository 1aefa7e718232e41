"""The native plan executor: the same bits as the Python path, errors with their step, no leaks."""

import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import mge
import mge.functional as F
from mge import execute
from mge.autodiff import GradManager
from mge.cache import PLANS
from mge.debug import debug
from mge.errors import DeviceError, IndexRangeError
from tests.core.native.plans import compiled_plan, random_function, run


def leaves(rng, device, count=3, shape=(4, 6)):
    return [
        mge.tensor(rng.standard_normal(shape).astype(np.float32), device=device)
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(12))
def test_random_plans_give_the_bits_of_the_python_path(native_device, seed):
    rng = np.random.default_rng(seed)
    device = native_device("toy_native")
    function = random_function(rng, 5 + 5 * seed)
    plan, buffers, _ = compiled_plan(function, *leaves(rng, device))
    native, python = run(plan, buffers), run(plan, buffers, native=False)
    assert len(native) == len(python) > 0
    for x, y in zip(native, python):
        assert x.tobytes() == y.tobytes()


@pytest.mark.parametrize("seed", range(4))
def test_plans_equal_ref(native_device, seed):
    rng = np.random.default_rng(seed)
    device = native_device("toy_native")
    mine = leaves(rng, device)
    function = random_function(rng, 25)
    _, _, results = compiled_plan(function, *mine)
    refs = [mge.tensor(x.numpy(), device="ref:0") for x in mine]
    for x, y in zip(results, function(*refs)):
        np.testing.assert_allclose(x, y.numpy(), rtol=1e-5, atol=1e-5)


def test_a_plan_of_native_kernels_makes_no_python_call(native_device):
    device = native_device("toy_native")
    x, y = leaves(np.random.default_rng(0), device, 2)
    plan, buffers, _ = compiled_plan(lambda a, b: ((a + b) * b, a - b), x, y)
    assert not plan.bound.native.has_calls
    calls = []
    sys.setprofile(
        lambda frame, event, arg: calls.append(frame.f_code.co_name) if event == "call" else None
    )
    try:
        execute.execute(plan, buffers)
    finally:
        sys.setprofile(None)
    assert "__call__" not in calls and "run" in calls


def test_training_on_two_devices_equals_ref(native_device):
    """A small net trains across the library and ``ref``, with losses as on ``ref`` alone."""
    rng = np.random.default_rng(1)
    data = rng.standard_normal((16, 8)).astype(np.float32)
    start = [rng.standard_normal(s).astype(np.float32) * 0.3 for s in ((8, 12), (12,), (12, 4))]

    def losses(device):
        parameters = [mge.Parameter(p, device=device) for p in start]
        x = mge.tensor(data, device=device)
        manager, found = GradManager().attach(parameters), []
        for _ in range(8):
            with manager:
                h = F.relu(F.matmul(x, parameters[0]) + parameters[1])
                loss = (F.softmax(F.matmul(h, parameters[2]), axis=1) ** 2).mean()
                manager.backward(loss)
            for p in parameters:
                p -= 0.1 * p.grad
                p.grad = None
            found.append(float(loss))
        return found

    native_device("toy_native")
    mine, ref = losses("toy_native:0"), losses("ref:0")
    assert mine[0] != mine[-1]
    np.testing.assert_allclose(mine, ref, rtol=1e-4)


@pytest.mark.parametrize("value", [1001, 1002])
def test_a_failing_step_is_named_and_later_runs_work(native_device, value):
    device = native_device("probe")
    bad = np.array([1, value, 3], np.float32)
    x, y = (mge.tensor(v, device=device) for v in (bad, np.ones(3, np.float32)))

    def function(a, b):
        return (-(a * b)) + b, b + b

    good = mge.tensor(np.zeros(3, np.float32), device=device)
    plan, buffers, _ = compiled_plan(function, good, y)
    buffers[0] = x._node.buffer if buffers[0] is good._node.buffer else buffers[0]
    with pytest.raises(execute.StepError) as caught:
        execute.execute(plan, buffers)
    error = caught.value.error
    assert isinstance(error, IndexRangeError if value == 1002 else DeviceError)
    assert (
        f"neg on probe:0: {'index 1002 is out' if value == 1002 else 'the value is 1001'}"
        in str(error)
    )
    assert "test_executor.py" in str(error), "the user's line"
    step = plan.bound.native.step
    assert plan.steps[step].slot.node.sig.op.name == "neg"
    buffers[0] = good._node.buffer
    assert (run(plan, buffers)[0] == 1).all()


def test_a_failing_python_step_is_named(native_device):
    device = native_device("probe")

    def fail(a):
        if a[0] == 7:
            raise KeyError("seven")
        return a

    def function(a):
        b = a + a
        c = mge.host_call(fail, [(a.shape, a.dtype)], b)
        c = c[0] if isinstance(c, (list, tuple)) else c
        return c + a, b

    for number in (1.0, 1.0, 2.0, 3.5):
        x = mge.tensor(np.full(3, number, np.float32), device=device)
        if number == 3.5:
            with pytest.raises(KeyError, match="seven"):
                function(x)[0].numpy()
        else:
            assert (function(x)[0].numpy() == 3 * number).all()


@pytest.mark.parametrize("name", ["toy_native", "probe"])
def test_a_thousand_runs_leak_nothing(native_device, name):
    device = native_device(name)
    x, y = leaves(np.random.default_rng(0), device, 2, (64, 64))
    plan, buffers, _ = compiled_plan(lambda a, b: ((a + b) * b + a, F.sin(a) + b), x, y)
    for _ in range(50):
        execute.execute(plan, buffers)
    gc.collect()
    blocks, allocations = device.pool.live_blocks, device.pool.allocations
    counted = sys.getallocatedblocks()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(1000):
        execute.execute(plan, buffers)
    gc.collect()
    assert device.pool.live_blocks == blocks and device.pool.allocations == allocations
    assert sys.getallocatedblocks() - counted < 200
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2048, "KiB"


def test_kernels_and_plans_are_released(native_device):
    device = native_device("probe")
    before = device.pool.live_blocks
    x = mge.tensor(np.ones(10, np.float32), device=device)
    for n in range(30):
        function = random_function(np.random.default_rng(n), 6, unary=[lambda v: -v])
        compiled_plan(function, x, x)
    PLANS.clear()
    del x
    gc.collect()
    assert device.pool.live_blocks == before


def test_the_profile_has_each_step(native_device):
    device = native_device("toy_native")
    x, y = leaves(np.random.default_rng(0), device, 2, (200, 200))
    plan, buffers, _ = compiled_plan(lambda a, b: (F.matmul(a, b) + a, F.sin(a) * b), x, y)
    seen = []
    execute.WATCHERS.append(lambda *row: seen.append(row))
    try:
        before = time.perf_counter_ns()
        execute.execute(plan, buffers)
        after = time.perf_counter_ns()
    finally:
        execute.WATCHERS.pop()
    assert [row[1] for row in seen] == list(range(len(plan.steps)))
    times = [t for row in seen for t in row[2:]]
    assert times == sorted(times) and before <= times[0] and times[-1] <= after
    longest = max(seen, key=lambda row: row[3] - row[2])
    assert plan.steps[longest[1]].slot.node.sig.op.name == "matmul"


def test_checks_run_in_python(native_device):
    device = native_device("toy_native")
    x, y = leaves(np.random.default_rng(0), device, 2)
    plan, buffers, _ = compiled_plan(lambda a, b: (a + b, a * b), x, y)
    good = run(plan, buffers)
    with debug(check=2):
        assert [a.tobytes() for a in run(plan, buffers)] == [a.tobytes() for a in good]


def test_constants_views_and_unused_inputs(native_device):
    device = native_device("toy_native")
    x, y = leaves(np.random.default_rng(0), device, 2)

    def function(a, b):
        c = (a * 2.0).reshape(6, 4) + mge.tensor(np.arange(4, dtype=np.float32), device=device)
        return c.reshape(4, 6) + b, c

    plan, buffers, _ = compiled_plan(function, x, y)
    for a, b in zip(run(plan, buffers), run(plan, buffers, native=False)):
        assert a.tobytes() == b.tobytes()


def test_overwritten_inputs(native_device):
    """An update in place: the buffer of the old value takes the new one."""
    device = native_device("toy_native")
    w = mge.tensor(np.zeros((8, 8), np.float32), device=device)
    g = mge.tensor(np.ones((8, 8), np.float32), device=device)
    for _n in range(6):
        w += g
        mge.sync()
    assert (w.numpy() == 6).all()


def test_an_interrupt_stops_a_long_plan(native_device):
    device = native_device("toy_native")
    x = mge.tensor(np.eye(160, dtype=np.float32), device=device)

    def function(a):
        for _ in range(600):
            a = F.matmul(a, a)
        return a, a

    plan, buffers, _ = compiled_plan(function, x)
    start = time.perf_counter()
    execute.execute(plan, buffers)
    whole = time.perf_counter() - start
    timer = threading.Timer(whole / 10, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()

    def run_many():  # on a busy machine the timer may be late; it may also strike between two runs
        for _ in range(1_000):
            execute.execute(plan, buffers)

    with pytest.raises((execute.StepError, KeyboardInterrupt)) as caught:
        run_many()
    timer.join()
    assert isinstance(getattr(caught.value, "error", caught.value), KeyboardInterrupt)
    assert np.array_equal(run(plan, buffers)[0], np.eye(160))


def test_plans_of_threads_do_not_mix(native_device):
    device = native_device("toy_native")
    wrong = []

    def work(number):
        x = mge.tensor(np.full((16, 16), number, np.float32), device=device)
        for n in range(40):
            y = x
            for _ in range(1 + n % 3):
                y = y + x
            if not (y.numpy() == number * (2 + n % 3)).all():
                wrong.append((number, n))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


BITS = """
import hashlib, sys
import numpy as np
import mge, mge.functional as F
from mge import device
from mge.native import NativeBackend, load_module
backend = device.BACKENDS["toy_native"] = NativeBackend(sys.argv[1])
rng = np.random.default_rng(0)
x, y = (mge.tensor(rng.standard_normal((300, 300)).astype("f"), device="toy_native:0") for _ in range(2))
for _ in range(3):
    z = (F.matmul(x, y) * x + F.exp(y)).numpy()
print(load_module().thread_count(), hashlib.sha256(z.tobytes()).hexdigest())
"""


def test_the_bits_do_not_depend_on_the_number_of_threads(module, library):
    found = {}
    for threads in (1, 2, 5):
        done = subprocess.run(
            [sys.executable, "-c", BITS, library("toy_native")],
            env=os.environ | {"MGE_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        count, found[threads] = done.stdout.split()
        assert int(count) == threads
    assert len(set(found.values())) == 1


FORK = """
import os, sys
import numpy as np
import mge, mge.functional as F
from mge import device
from mge.native import NativeBackend, load_module
device.BACKENDS["probe"] = NativeBackend(sys.argv[1])
x = mge.tensor(np.zeros(10_000, np.float32), device="probe:0")
assert (F.exp(x).numpy() == 1).all()
pid = os.fork()
y = F.exp(x).numpy()  # in both: the child's pool is built anew
assert (y == 1).all()
if pid == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
print("good")
"""


def test_a_forked_child_has_a_pool_of_its_own(module, library):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, library("probe")],
        env=os.environ | {"MGE_THREADS": "4", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "good\n", done.stderr


def test_an_exception_in_a_parallel_body_is_the_steps_error(native_device):
    device = native_device("probe")
    x = np.zeros(1000, np.float32)
    x[700] = 2000
    with pytest.raises(DeviceError, match="exp on probe:0: too large"):
        F.exp(mge.tensor(x, device=device)).numpy()


def test_ref_alone_does_not_load_the_native_part():
    code = (
        "import sys, mge; mge.eval(mge.tensor([1.0]) + 1); assert 'mge._native' not in sys.modules"
    )
    env = os.environ | {"MGE_PLUGINS": "", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
