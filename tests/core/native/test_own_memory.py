"""A library whose memory is its own: pages that the host cannot touch, without and with (late) streams."""

import ctypes
import gc

import numpy as np
import pytest

import mge
import mge.functional as F
from mge import device as devices
from mge import nativeplan
from mge.buffer import DeviceArray
from mge.cache import PLANS
from mge.debug import debug
from mge.errors import DeviceError, OutOfMemory
from mge.jit import trace
from mge.native import NativeBackend
from tests.core.native.plans import BINARY, compiled_plan, random_function
from tests.core.plugins.training import LeNet, Training, mlp

FLAGS = {"own_sync": ("-DOWN_STREAMS=0", '-DOWN_NAME="own_sync"'), "own_memory": ()}


@pytest.fixture(params=FLAGS)
def own(request, module, library):
    """The device, and the fake's own functions."""
    name = request.param
    path = library("own_memory", *FLAGS[name])
    found = ctypes.CDLL(path)
    found.own_bytes.restype = found.own_copied.restype = ctypes.c_int64
    found.own_delay(50)
    found.own_fail(-1)
    devices.BACKENDS[name] = NativeBackend(path)
    PLANS.clear()
    with debug(fallback="allow"):
        yield devices.as_device(name), found
    found.own_fail(-1)
    PLANS.clear()
    del devices.BACKENDS[name]
    devices._DEVICES.pop(f"{name}:0")


def random_values(rng, device, shape=(8,)):
    return [
        mge.tensor(rng.standard_normal(shape).astype(np.float32), device=device) for _ in range(4)
    ]


def test_values_go_there_and_come_back(own):
    device, _ = own
    x = mge.tensor(np.arange(6, dtype=np.float32).reshape(2, 3), device=device)
    array = x._node.buffer.array
    assert isinstance(array, DeviceArray) and array.address % 64 == 0 and not device.is_host
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]] and x.item(5) == 5
    for _ in range(3):
        assert (x + 1.5).tolist() == [[1.5, 2.5, 3.5], [4.5, 5.5, 6.5]]
        assert (F.copy(F.copy(x, device="ref:0") * 2.0, device=str(device)) + x).tolist() == [
            [0, 3, 6],
            [9, 12, 15],
        ]
    with pytest.raises(DeviceError, match="whose memory is its own"):
        np.from_dlpack(x)
    with pytest.raises(DeviceError, match="NumPy cannot read it"):
        np.asarray(array)


@pytest.mark.parametrize("how", ["traced", "undecorated", "eager", "checked"])
@pytest.mark.parametrize("make", [mlp, LeNet])
def test_nets_train_as_on_ref(own, how, make):
    device, library = own
    library.own_delay(5)
    with debug(check=3 if how == "checked" else 0), mge.eager(how == "eager"):
        losses = [Training(d, make, how == "traced", adam=True).losses(6) for d in (device, "ref")]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert losses[0][0] != losses[0][5]


@pytest.mark.parametrize("seed", range(8))
def test_random_plans_across_the_device_and_ref(own, seed):
    """Steps of the host read what streams write, and the other way round; copies are steps of the native executor."""
    rng = np.random.default_rng(seed)
    device, library = own
    library.own_delay(300)
    mine = random_values(rng, device, (4, 4))
    function = random_function(rng, 24, binary=BINARY[:3], unary=[F.sin, lambda x: -x, F.square])
    plan, _, _ = compiled_plan(function, *mine)
    refs = [x.to("ref") for x in mine]
    wanted = [t.numpy() for t in function(*refs)]
    for _ in range(3):
        given = [t.numpy() for t in function(*mine)]
        for x, y in zip(given, wanted):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
    copies = [s for s in plan.steps if s.slot.node.sig.op.name == "copy"]
    owners = [nativeplan._owner(s) for s in copies]
    assert all(owner is device for owner in owners)
    assert not copies or {d.name for d in plan.arenas} <= {device.name, "ref:0"}


def test_what_stays_on_the_device_is_not_copied(own):
    device, library = own
    x = mge.tensor(np.ones((64, 64), np.float32), device=device)
    function = trace(lambda x: F.exp(x @ x * 0.01).reshape(-1) + 1.0)
    for _ in range(3):
        y = function(x)
    y.numpy()
    for kind in range(3):
        library.own_copied(kind)
    function(x).numpy()
    assert [library.own_copied(kind) for kind in range(3)] == [0, 64 * 64 * 4, 0]


def test_a_thousand_runs_hold_no_more_memory(own):
    device, library = own
    library.own_delay(0)
    training = Training(device, mlp)
    training.losses(6)

    def held():
        mge.sync()
        gc.collect()
        return (
            device.pool.live_blocks,
            device.pool.in_use_bytes,
            library.own_bytes(),
            library.own_kernels(),
        )

    before = held()
    training.losses(1000)
    assert held() == before


def test_a_failing_kernel_leaves_all_values_as_they_were(own):
    device, library = own
    library.own_delay(0)
    training = Training(device, mlp)
    training.losses(4)
    before = training.values()
    for count in (0, 3, 7):
        library.own_fail(count)
        with mge.eager(False):
            training.losses(1)  # the plan fails; then node by node it works
        library.own_fail(-1)
    reference = Training("ref", mlp)
    reference.losses(7)
    for x, y in zip(training.values(), reference.values()):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    assert any(x.tobytes() != y.tobytes() for x, y in zip(before, training.values()))


def test_out_of_memory_names_the_device_and_its_figures(own):
    device, _ = own
    x = mge.tensor([1.0, 2.0], device=device)
    text = rf"memory of {device}: 80000000 bytes were asked for, 64 are in use, and the device gives no more: no such"
    for _ in range(2):
        with pytest.raises(OutOfMemory, match=text):
            mge.tensor(np.zeros(20_000_000, np.float32), device=device)
    assert x.tolist() == [1, 2]
    function = trace(
        lambda x: (
            x.reshape(2, 1) + mge.tensor(np.zeros((1, 6_000_000), np.float32), device=device)
        ).sum()
    )
    for _ in range(3):
        with pytest.raises(OutOfMemory, match=f"memory of {device}: "):
            function(x).item()
    device.pool.limit(1000)
    with pytest.raises(OutOfMemory, match="the limit is 1000"):
        mge.tensor(np.zeros(1000, np.float32), device=device)
    device.pool.limit(0)
    assert (x + 1.0).tolist() == [2, 3]
