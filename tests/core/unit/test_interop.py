"""Memory shared with NumPy and PyTorch, and copies: who owns it, who may write, and how long it lives."""

import copy
import gc
import pickle
import warnings
import weakref

import numpy as np
import pytest

import mge
from mge.buffer import ALIGNMENT, aligned_bytes
from mge.dtype import DTYPES
from mge.errors import ArgumentError, DeviceError, DTypeError
from mge.graph import make_leaf
from mge.interop import from_dlpack, to_dlpack
from mge.jit import trace
from mge.tensor import ModuleBuffer, Parameter, Tensor, tensor
from mge.utils import dlpack


def aligned(values, dtype="float32"):
    """Return an array at an address that can be borrowed."""
    values = np.asarray(values, dtype)
    block = aligned_bytes(max(values.nbytes, 1))[: values.nbytes].view(dtype).reshape(values.shape)
    block[...] = values
    return block


def address(tensor):
    return tensor._node.buffer.array.ctypes.data


class Old:
    """An array of a library from before DLPack 1.0."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return (1, 0)


# Import.


def test_memory_is_borrowed_and_its_owner_kept():
    class Owner(np.ndarray):
        pass

    array = aligned([[1.0, 2.0], [3.0, 4.0]]).view(Owner)
    alive = weakref.ref(array)
    x = from_dlpack(array)
    assert address(x) == array.ctypes.data and x.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    array[0, 0] = 7.0
    assert x.tolist()[0] == [7.0, 2.0]
    del array
    gc.collect()
    assert alive() is not None and x.tolist()[0] == [7.0, 2.0]
    y = x + 1
    del x
    assert y.tolist()[0] == [8.0, 3.0]
    del y
    gc.collect()
    assert alive() is None


def test_borrowed_memory_is_never_written():
    array = aligned(np.arange(6.0))
    for _ in range(6):  # by plans too, which overwrite what nobody sees
        x = from_dlpack(array)
        x += 1
        x *= 2
        assert x.tolist() == [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]
        y = from_dlpack(array).reshape(2, 3)
        mge.sync()
        y += 1
        mge.sync()
    held = from_dlpack(array)

    @trace
    def grow(x):
        held.set_value(held + x)

    for _ in range(4):
        grow(tensor(1.0))
    assert held.tolist()[0] == 4.0
    assert array.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert not from_dlpack(array).numpy().flags.writeable


@pytest.mark.parametrize(
    "array",
    [
        aligned(np.arange(6.0).reshape(2, 3)).T,
        aligned(np.arange(9.0))[1:],
        aligned(np.arange(8.0))[::2],
    ],
    ids=["transposed", "unaligned", "strided"],
)
def test_other_memory_is_copied(array):
    x = from_dlpack(array)
    assert address(x) % ALIGNMENT == 0 and not np.shares_memory(x.numpy(), array)
    assert x.tolist() == array.tolist()
    with pytest.raises(ArgumentError, match="is not dense, row-major and aligned to 64 bytes"):
        from_dlpack(array, copy=False)


def test_a_copy_can_be_asked_for():
    array = aligned([1.0])
    x = from_dlpack(array, copy=True)
    array[0] = 5.0
    assert x.item() == 1.0
    assert address(from_dlpack(array, copy=False)) == array.ctypes.data


def test_numpy_arrays_of_each_dtype():
    for name, dtype in DTYPES.items():
        if name != "bfloat16":
            x = from_dlpack(np.ones((2, 3), dtype.dtype))
            assert x.dtype == name and x.shape == (2, 3) and x.numpy().all()
    assert from_dlpack(np.array(3)).item() == 3
    assert from_dlpack(np.zeros((0, 3))).shape == (0, 3)


def test_read_only_and_old_producers():
    array = aligned([1.0, 2.0])
    array.flags.writeable = False
    assert address(from_dlpack(array)) == array.ctypes.data
    assert from_dlpack(Old(aligned([3.0]))).tolist() == [3.0]


def test_what_cannot_be_borrowed():
    with pytest.raises(DTypeError, match="complex64"):
        from_dlpack(np.zeros(2, np.complex64))
    with pytest.raises(ArgumentError, match="int has no __dlpack__"):
        from_dlpack(3)
    elsewhere = type(
        "Elsewhere", (), {"__dlpack__": None, "__dlpack_device__": lambda self: (2, 0)}
    )
    with pytest.raises(DeviceError, match="device of DLPack's type 2") as error:
        from_dlpack(elsewhere())
    assert __file__ in str(error.value)
    capsule = np.zeros(2).__dlpack__()
    from_dlpack(capsule)
    with pytest.raises(ArgumentError, match="each can be consumed once"):
        from_dlpack(capsule)


# Export.


def test_numpy_takes_a_tensor():
    x = tensor([[1.0, 2.0]])
    array = np.from_dlpack(x)
    assert array.tolist() == [[1.0, 2.0]] and np.shares_memory(array, x.numpy())
    assert not array.flags.writeable
    assert np.from_dlpack(x + 1).tolist() == [[2.0, 3.0]]
    assert np.from_dlpack(x, copy=True).flags.writeable
    assert x.__dlpack_device__() == (1, 0)


def test_a_round_trip_keeps_each_dtype_and_the_memory():
    for name in DTYPES:
        x = tensor([[1, 0], [1, 1]], dtype=name)
        for made in (
            from_dlpack(x),
            from_dlpack(to_dlpack(x)),
            dlpack.from_dlpack(dlpack.to_dlpack(x)),
        ):
            assert made.dtype == name and made.numpy().tobytes() == x.numpy().tobytes()
            assert address(made) == address(x)


@pytest.mark.parametrize("export", [np.from_dlpack, Tensor.numpy, lambda x: np.from_dlpack(Old(x))])
def test_an_export_is_a_snapshot(export):
    """Many plans run after it, which reuse and overwrite buffers; the exported memory stays as it was."""
    x = tensor(np.arange(1000.0))
    exported, wanted = [], []
    for i in range(30):
        x += 1
        y = x * i
        exported += [export(x), export(y)]
        wanted += [np.array(x.numpy()), np.array(y.numpy())]
        x *= 1.5
        del y
        mge.sync()
    del x
    gc.collect()
    for _ in range(20):
        tensor(np.full(1000, -1.0)).numpy()
    for one, other in zip(exported, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_unused_capsule_frees_its_buffer():
    pool = tensor([0.0]).device.pool
    x = tensor(np.zeros(5000))
    mge.sync()
    before = pool.live_blocks
    capsule = to_dlpack(x)
    del x
    assert pool.live_blocks == before
    del capsule
    assert pool.live_blocks == before - 1


def test_requests_of_the_consumer():
    x = tensor([1.0])
    with pytest.raises(DeviceError, match="no streams"):
        x.__dlpack__(stream=7)
    with pytest.raises(DeviceError, match="dl_device"):
        x.__dlpack__(dl_device=(2, 0))
    x.__dlpack__(stream=None, max_version=(1, 1), dl_device=(1, 0), copy=None)
    assert np.asarray(x).tolist() == [1.0]
    assert np.array(x, dtype="float64").dtype == np.float64


# PyTorch.


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.mark.parametrize(
    "name",
    [
        "float32",
        "float64",
        "float16",
        "bfloat16",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "bool",
    ],
)
def test_pytorch_both_ways(torch, name):
    given = torch.arange(6).reshape(2, 3).to(getattr(torch, name))
    x = from_dlpack(given)
    assert x.dtype == name
    assert address(x) == given.data_ptr()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch has no read-only tensors, and may say so
        back = torch.from_dlpack(x)
        assert back.data_ptr() == given.data_ptr() and torch.equal(back, given)
        assert torch.equal(torch.utils.dlpack.from_dlpack(dlpack.to_dlpack(x)), given)
        assert torch.equal(torch.from_dlpack(x * 1), given)
    assert (
        dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(given)).numpy().tobytes()
        == x.numpy().tobytes()
    )


def test_pytorch_tensors_that_are_not_plain_memory(torch):
    given = torch.arange(12.0).reshape(3, 4)
    assert from_dlpack(given.T).tolist() == given.T.tolist()
    assert from_dlpack(given[:, 1]).tolist() == given[:, 1].tolist()
    with pytest.raises(ArgumentError, match="require gradient"):
        from_dlpack(given.requires_grad_())
    with pytest.raises((ArgumentError, DeviceError)):
        from_dlpack(torch.zeros(2, device="meta"))
    with pytest.raises(DTypeError):
        from_dlpack(torch.zeros(2, dtype=torch.complex64))


def test_pytorch_keeps_an_exported_buffer(torch):
    x = tensor(np.arange(100.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        held = torch.from_dlpack(x + 1)
    for _ in range(10):
        x = x * 2 + 1
        x.numpy()
    assert held.tolist() == (np.arange(100.0) + 1).tolist()


# Copies.


@pytest.mark.parametrize("cls", [Tensor, Parameter, ModuleBuffer])
@pytest.mark.parametrize(
    "copied",
    [
        copy.copy,
        copy.deepcopy,
        *[lambda x, p=p: pickle.loads(pickle.dumps(x, p)) for p in range(2, 6)],
    ],
)
def test_copies_of_tensors(cls, copied):
    for name in ("float32", "bfloat16", "bool", "int64"):
        x = cls([[1, 0]], dtype=name, name="weight")
        y = copied(x)
        assert type(y) is cls and y.dtype == name and y.shape == (1, 2) and y.device is x.device
        assert y.numpy().tobytes() == x.numpy().tobytes()
        y += y
        assert x.numpy().tobytes() != y.numpy().tobytes() or name == "bool"
    pending = cls([1.0, 2.0])
    pending *= 2
    assert copied(pending).tolist() == [2.0, 4.0]


def test_names_survive_pickle_and_deepcopy():
    x = Parameter([1.0], name="weight")
    assert pickle.loads(pickle.dumps(x)).name == copy.deepcopy(x).name == "weight"


def test_deepcopy_keeps_sharing():
    x = Parameter([1.0])
    one, other = copy.deepcopy([x, x])
    assert one is other and one is not x


def test_a_value_inside_a_trace_cannot_be_exported():
    @trace
    def function(x):
        np.from_dlpack(x)

    with pytest.raises(mge.TraceError, match="was read while the function is being recorded"):
        function(tensor([1.0]))
    assert make_leaf(tensor([1.0])._node.type, "ref:0").buffer is None
