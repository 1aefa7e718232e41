"""A device that lacks ops: what runs node by node has the bits of what runs as a plan."""

import numpy as np
import pytest

import mge
import mge.functional as F
from mge import device
from mge.debug import debug
from mge.errors import UnsupportedError
from mge.jit import trace
from mge.plugin import HostBackend

KERNELS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "exp": np.exp,
    "sum": lambda inputs, outputs, *, axis, keepdims: np.copyto(
        outputs[0], np.flip(inputs[0]).sum(axis=axis, keepdims=keepdims) if axis is None
        else np.add.reduce(inputs[0].astype("float64"), axis=axis, keepdims=keepdims), casting="same_kind"
    ),
}  # fmt: skip


class Few(HostBackend):
    name = "few"
    kernels = KERNELS


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setitem(device.BACKENDS, "few", Few())
    monkeypatch.delitem(device._DEVICES, "few:0", raising=False)
    yield "few"
    device._DEVICES.pop("few:0", None)


FUNCTIONS = {
    "softmax": lambda x: F.softmax(x, axis=1),
    "logsumexp": lambda x: F.logsumexp(x, axis=1),
    "mean": lambda x: F.mean(x, axis=1),
    "silu": F.silu,
    "layer_norm": lambda x: F.layer_norm(x, 9, False),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_first_sight_eager_plan_and_trace_have_the_same_bits(few, name):
    x = np.random.default_rng(0).normal(size=(5, 9)).astype("float32")
    function = FUNCTIONS[name]
    with debug(fallback="allow", deterministic=True):
        runs = [function(mge.tensor(x, device=few)).numpy() for _ in range(3)]
        with mge.eager():
            runs.append(function(mge.tensor(x, device=few)).numpy())
        runs.append(trace(function)(mge.tensor(x, device=few)).numpy())
    assert all(np.array_equal(runs[0], r) for r in runs[1:])


def test_what_the_device_can_do_by_parts_is_not_refused(few):
    with debug(fallback="error"):
        assert F.square(mge.tensor([3.0], device=few)).item() == 9.0
        with pytest.raises(UnsupportedError, match="sin"):
            F.sin(mge.tensor([3.0], device=few)).numpy()


def test_arrays_and_lists_go_to_the_device_of_the_tensors(few):
    x = mge.tensor([1.0, 2.0], device=few)
    for other in (np.float32([3.0, 4.0]), [3.0, 4.0]):
        for y in (x + other, F.add(other, x), F.mul(x, other)):
            assert str(y.device) == "few:0" and y.numpy()[1] in (6.0, 8.0)
        assert str(F.square_loss(x, other).device) == "few:0"
    assert str(F.cross_entropy(mge.tensor([[1.0, 2.0]], device=few), [1]).device) == "few:0"
    assert str((x[[1, 0]]).device) == "few:0"
