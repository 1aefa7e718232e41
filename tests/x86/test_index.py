"""Gathering, scattering, sorting and scans of device x86 against the references."""

import numpy as np
import pytest

from mge.device import as_device
from mge.errors import IndexRangeError
from mge.op import OPS
from mge.testing.cases import admit

from .against import check

pytestmark = pytest.mark.usefixtures("x86")


def sizes(rng, low, high, n):
    return tuple(int(v) for v in rng.integers(low, high, n))


def test_index_and_index_set_over_any_axes(rng):
    for _ in range(60):
        shape = sizes(rng, 1, 7, int(rng.integers(1, 5)))
        axes = sorted(rng.choice(len(shape), int(rng.integers(1, len(shape) + 1)), replace=False))
        attrs = {"axes": tuple(int(a) for a in axes)}
        common = sizes(rng, 1, 5, int(rng.integers(0, 3)))
        indices = []
        for axis in attrs["axes"]:
            own = tuple(1 if rng.random() < 0.3 else n for n in common)
            values = rng.integers(-shape[axis], shape[axis], own)
            indices.append(values.astype(rng.choice([np.int8, np.int32, np.int64])))
        for dtype in (np.float32, np.int16, np.float16, np.float64, np.bool_):
            x = (rng.normal(size=shape) * 5).astype(dtype)
            y = OPS["index"]._reference(x, *indices, **attrs)
            value = (rng.normal(size=y.shape) * 5).astype(dtype)
            check("index", [x, *indices], attrs)
            check("index_set", [x, value, *indices], attrs)
            if dtype != np.bool_:
                check("index_set", [x, value, *indices], {**attrs, "mode": "add"})


def test_take_along_and_put_along(rng):
    for _ in range(60):
        shape = sizes(rng, 1, 7, int(rng.integers(1, 5)))
        axis = int(rng.integers(0, len(shape)))
        keeps = rng.random() < 0.5
        own = [n if keeps else int(rng.integers(1, n + 1)) for n in shape]
        own[axis] = int(rng.integers(1, 9))
        index = rng.integers(-shape[axis], shape[axis], own)
        for dtype in (np.float32, np.int8, np.float16, np.float64):
            x, source = ((rng.normal(size=s) * 5).astype(dtype) for s in (shape, own))
            check("take_along", [x, index], {"axis": axis})
            check("put_along", [x, index, source], {"axis": axis})
            check("put_along", [x, index, source], {"axis": axis, "mode": "add"})


@pytest.mark.parametrize(("name", "extra"), [("index_set", 3), ("put_along", 1)])
def test_a_position_out_of_range_is_an_error_before_anything_is_written(rng, name, extra):
    x = rng.normal(size=(4, 3)).astype(np.float32)
    if name == "index_set":
        arrays, attrs = (x, np.ones((2, 3), np.float32), np.array([0, 4])), {"axes": (0,)}
    else:
        arrays, attrs = (x, np.array([[0, 0, 4]]), np.ones((1, 3), np.float32)), {"axis": 0}
    sig = admit(OPS[name], "", arrays, attrs, as_device("x86:0")).sig
    y = np.full((4, 3), 7, np.float32)
    with pytest.raises(
        IndexRangeError, match="index 4 is out of range for axis 0, which has 4 elements"
    ):
        sig.device.kernel(sig)(list(arrays), [y], None)
    assert (y == 7).all()


LINES = [(7,), (1,), (600,), (3000,), (3, 700), (700, 3), (4, 5, 60), (5, 3, 1)]


@pytest.mark.parametrize("shape", LINES, ids=str)
@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.float16, np.int32, np.int64, np.uint8]
)
def test_sorts_and_scans_along_any_axis(rng, shape, dtype):
    x = abs(np.round(rng.normal(size=shape) * 3, 1)).astype(dtype)
    if x.dtype.kind == "f":
        x *= rng.choice([-1, 1], shape).astype(dtype)
        x.flat[0] = -0.0
        if x.size > 3:
            x.flat[1], x.flat[2], x.flat[x.size // 2], x.flat[3] = -np.inf, np.inf, np.nan, -np.nan
    for axis in range(len(shape)):
        for descending in (False, True):
            check("sort", [x], {"dim": axis, "descending": descending})
            check("argsort", [x], {"dim": axis, "descending": descending})
        y = np.where(np.isfinite(x), x, 1).astype(dtype) if x.dtype.kind == "f" else x
        for reverse in (False, True):
            check("cumsum", [y[:50] % 2], {"axis": axis, "reverse": reverse})
        check("cumprod", [(y[:50] > 0).astype(dtype)], {"axis": axis})
    for k in {1, min(5, shape[-1]), shape[-1]}:
        for descending in (False, True):
            check("topk", [x], {"k": k, "descending": descending})
            check("topk", [x], {"k": k, "descending": descending, "kth_only": True})
