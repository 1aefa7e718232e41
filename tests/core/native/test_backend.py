"""A vendor's library as a device: what it is told, its errors, its memory."""

import gc

import numpy as np
import pytest

import mge
import mge.functional as F
from mge.debug import debug
from mge.dtype import DTYPES
from mge.errors import ArgumentError, DeviceError, IndexRangeError, OutOfMemory, PluginContractError
from mge.graph import Graph, Signature
from mge.native import NativeBackend, NativePool
from mge.op import OPS
from mge.types import Type

f32 = mge.float32


def use(name, *shapes, dtype=f32, **attrs):
    op = OPS[name]
    return op.signature([Type(s, dtype) for s in shapes], op.normal_attrs(attrs), None)


@pytest.fixture
def probe(module, library):
    return NativeBackend(library("probe"))


def test_refusals_carry_the_librarys_words(probe):
    assert probe.supports(0, use("add", (2, 3), (2, 3))) is None
    assert probe.supports(0, use("add", (2, 3), (3,))) == "only equal shapes"
    assert (
        probe.supports(0, use("add", (2, 3), (2, 3), dtype=mge.float64))
        == "no kernel for this dtype"
    )
    assert probe.supports(0, use("matmul", (2, 3), (3, 2))) == "no kernel"


@pytest.mark.parametrize(
    ("attrs", "text"),
    [
        ({"axis": (0, 1), "keepdims": True}, "sum 1 axis 0 axis 1 keepdims"),
        ({"axis": 1}, "sum 1 axis 1"),
        ({"axis": ()}, "sum 1"),
        ({"axis": None}, "sum 1"),
    ],
)
def test_attributes_arrive(probe, attrs, text):
    assert probe.supports(0, use("sum", (2, 3), **attrs)) == text


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        -1.5,
        "text",
        b"\0bytes",
        f32,
        (),
        (1, 2),
        (1.0, 2),
        (True,),
        ("a", "b"),
        (f32, mge.int8),
    ],
)
def test_each_kind_of_attribute_can_be_told(probe, value):
    sig = Signature(OPS["sum"], (Type((2,), f32),), (("axis", value),), (Type((), f32),), None)
    assert "sum 1" in probe.supports(0, sig)


def test_a_graph_is_an_attribute(probe, module):
    from mge.graph import make_leaf

    x = make_leaf(Type((2,), f32), None)
    sig = Signature(
        OPS["sum"], (Type((2,), f32),), (("axis", Graph((x,), (), (x,))),), (Type((), f32),), None
    )
    assert probe.supports(0, sig) == "sum 1"


@pytest.mark.parametrize("value", [print, (1, "a"), ((1, 2), (3, 4)), 1 << 70])
def test_what_the_contract_cannot_say_is_refused(probe, value):
    sig = Signature(OPS["sum"], (Type((2,), f32),), (("axis", value),), (Type((), f32),), None)
    assert "sum 1" not in probe.supports(0, sig)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_each_dtype_has_a_code(module, dtype):
    from mge.native import _dtype

    kinds = {"bool": 6, "bfloat": 4, "float": 2, "uint": 1, "int": 0}  # DLPack's
    assert _dtype(dtype) == (kinds[dtype.name.rstrip("0123456789")], dtype.itemsize * 8)


def test_a_kernel_says_what_it_needs(probe):
    kernel = probe.kernel(0, use("mul", (4, 5), (4, 5)))
    assert kernel.workspace_bytes == 80 and kernel.inplace == [] and kernel.name == "mul"
    assert probe.kernel(0, use("add", (4, 5), (4, 5))).inplace == [(0, 0), (1, 0)]


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (1001, DeviceError, "the value is 1001"),
        (1002, IndexRangeError, "index 1002 is out of range"),
        (1003, OutOfMemory, "out of host memory"),
        (1004, ArgumentError, "1004 is no argument"),
        (
            1005,
            PluginContractError,
            "it refused after supports accepted the op: not 1005(.|\n)*report it to Probe Ltd.",
        ),
        (1006, DeviceError, "an exception that is no std::exception"),
    ],
)
def test_a_failing_kernel_raises_the_right_error(native_device, value, error, text):
    device = native_device("probe")
    x = mge.tensor(np.array([1, value, 3], np.float32), device=device)
    with pytest.raises(error, match=f"neg on probe:0: {text}") as caught:
        (-x).numpy()  # at first sight, by itself
    assert "test_backend.py" in str(caught.value)


def test_arrays_of_the_wrong_size_are_not_passed_on(probe):
    kernel = probe.kernel(0, use("add", (4,), (4,)))
    good, short = np.zeros(4, np.float32), np.zeros(3, np.float32)
    with pytest.raises(ValueError, match="another size"):
        kernel([good, short], [good.copy()], None)
    with pytest.raises(ValueError, match="not dense"):
        kernel([good, np.zeros(8, np.float32)[::2]], [good.copy()], None)
    with pytest.raises(ValueError, match="number of arrays"):
        kernel([good], [good.copy()], None)
    with pytest.raises(ValueError, match="OPTIONAL_OUT"):
        kernel([good, good], [None], None)


def test_empty_tensors_run(native_device):
    device = native_device("probe")
    x = mge.tensor(np.zeros((0, 3), np.float32), device=device)
    for _ in range(3):
        assert (x + x).numpy().shape == (0, 3)


def test_what_the_library_lacks_runs_by_its_reference(native_device):
    device = native_device("probe")
    x = mge.tensor(np.array([[1.0, 2], [3, 4]], np.float32), device=device)
    for _ in range(3):
        y = F.matmul(x, x) + x
        assert y.device == "probe:0" and y.numpy().tolist() == [[8, 12], [18, 26]]


def test_memory_comes_from_the_library_and_goes_back(native_device):
    device = native_device("probe")
    before = device.pool.live_blocks
    x = mge.tensor(np.zeros((100, 100), np.float32), device=device)
    assert device.pool.live_blocks == before + 1 and device.pool.in_use_bytes >= 40_000
    assert x.numpy().ctypes.data % 64 == 0
    view = x.numpy()
    del x
    gc.collect()
    assert device.pool.live_blocks == before + 1, "an array that was handed out keeps its block"
    del view
    gc.collect()
    assert device.pool.live_blocks == before
    assert mge.get_allocated_memory(device) == device.pool.in_use_bytes
    mge.reset_max_memory_stats(device)
    assert mge.get_max_allocated_memory(device) == device.pool.in_use_bytes


def test_an_arena_takes_what_its_plan_says_and_no_more(probe):
    pool = NativePool(probe.handle, 0, "probe:0", True)
    for nbytes, lines in [(1, 64), (64, 64), (1_000_000, 1_000_000), (5_000_001, 5_000_064)]:
        assert pool.allocate(nbytes).nbytes == lines


def test_the_pool_caches_counts_and_limits(probe):
    pool = NativePool(probe.handle, 0, "probe:0", True)
    blocks = [pool.take(n) for n in (0, 1, 1000, 100_000)]
    assert [b.nbytes for b in blocks] == [64, 64, 1024, 106_496] and all(
        b.ctypes.data % 64 == 0 for b in blocks
    )
    assert (
        pool.live_blocks == 4
        and pool.allocations == 4
        and pool.in_use_bytes == sum(b.nbytes for b in blocks)
    )
    address = blocks[2].ctypes.data
    del blocks
    assert pool.live_blocks == 0 and pool.in_use_bytes == 0 and pool.cached_bytes == pool.peak_bytes
    again = pool.take(1001)
    assert again.ctypes.data == address and pool.cache_hits == 1
    pool.trim()
    assert pool.cached_bytes == 0
    pool.limit(10_000)
    with pytest.raises(
        OutOfMemory,
        match=r"memory of probe:0: 9500 bytes were asked for; 1024 are in use and the limit is 10000",
    ):
        pool.take(9500)
    pool.limit(0)
    with pytest.raises(OutOfMemory, match="the device gives no more: no such block of host memory"):
        pool.take(1 << 60)
    pool.reset_peak()
    assert pool.peak_bytes == pool.in_use_bytes == 1024
    with pytest.raises(AttributeError):
        _ = pool.no_such_thing


def test_blocks_waste_little(probe):
    pool = NativePool(probe.handle, 0, "probe:0", True)
    for n in (1, 63, 64, 100, 999, 4097, 70_000, 1_000_001):
        assert n <= pool.take(n).nbytes <= max(64, n * 1.13 + 64)


def test_capabilities_are_the_vendors(module, library):
    assert NativeBackend(library("probe")).capabilities(0) == {}
    assert NativeBackend(library("fake_async")).capabilities(0) == {"streams": 3}


def test_deterministic_and_tune_are_told(probe, monkeypatch):
    from mge import native

    told = []
    real = native.load_module().Op

    class Recorder:
        def __getattr__(self, name):
            return getattr(native._module_kept, name)

        def Op(self, *args):
            told.append(args[4])  # the flags
            return real(*args)

    monkeypatch.setattr(native, "_module_kept", native._module, raising=False)
    monkeypatch.setattr(native, "_module", Recorder())
    for settings, flags in (({}, 0), ({"tune": True}, 1), ({"deterministic": True}, 2)):
        with debug(**settings):
            op = OPS["add"]
            sig = Signature(op, (Type((2,), f32),) * 2, (), (Type((2,), f32),), None)
            probe.supports(0, sig)
        assert told[-1] == flags
