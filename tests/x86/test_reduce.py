"""Reductions of device x86 against the references: axes of all kinds, odd sizes, NaN, accuracy, truth and positions."""

import itertools

import numpy as np
import pytest

from mge.device import as_device
from mge.op import OPS
from mge.testing.cases import admit

from .against import check

pytestmark = pytest.mark.usefixtures("x86")

SHAPES = [
    (7,),
    (1, 1),
    (4097,),
    (3, 1000),
    (1000, 3),
    (129, 65),
    (5, 7, 11, 13),
    (9, 1, 5, 1),
    (2, 3, 0, 4),
]


def every_axis(ndim):
    axes = [a for r in range(1, ndim + 1) for a in itertools.combinations(range(ndim), r)]
    return [None, (), *axes]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_reductions_over_every_set_of_axes(rng, shape):
    wide = rng.normal(size=shape).astype(np.float32)
    x = (
        wide / np.float32(max(1, wide.size)) ** 0.5
    )  # sums near 1, so that the tolerance is of the terms, too
    for axis in every_axis(len(shape)):
        attrs = {"axis": axis, "keepdims": bool(axis)}
        for name in ("sum", "mean", "max", "min"):
            if x.size or name in ("sum", "mean"):
                check(name, [x], attrs)
        check("sum", [(wide * 10).astype(np.int8)], attrs)
        check("sum", [x.astype(np.float64)], attrs)
        check("count_nonzero", [np.round(wide)], attrs)
        check("any", [np.round(wide)], attrs)
        check("all", [np.round(wide).astype(np.int32)], attrs)


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_a_nan_wins(rng, name):
    x = rng.normal(size=(37, 53)).astype(np.float32)
    x[rng.random(x.shape) < 0.02] = np.nan
    for axis in (0, 1, None):
        check(name, [x], {"axis": axis})
        check(name, [x.astype(np.float64)], {"axis": axis})


def test_positions_are_the_first_of_equal_elements(rng):
    for shape in ((20_000,), (3, 9000), (300, 70), (4, 5, 6)):
        x = rng.integers(-3, 4, shape)
        for dtype, axis in itertools.product((np.float32, np.int32, np.uint8), range(len(shape))):
            check("argmax", [abs(x).astype(dtype)], {"axis": axis})
            check("argmin", [abs(x).astype(dtype)], {"axis": axis})


@pytest.mark.parametrize(("shape", "axis"), [((1 << 20,), 0), ((50_000, 24), 0), ((20, 50_000), 1)])
def test_sums_keep_their_digits(rng, shape, axis):
    x = (rng.normal(size=shape) + 1).astype(np.float32)
    sig = admit(OPS["sum"], "", (x,), {"axis": axis}, as_device("x86:0")).sig
    y = np.empty(sig.types[0].shape, np.float32)
    sig.device.kernel(sig)([x], [y], None)
    exact = x.astype(np.float64).sum(axis)
    assert np.abs(y / exact - 1).max() < 4e-7


PROGRAM = """
import hashlib, sys
import numpy as np
import mge
from mge.device import as_device
from mge.op import OPS
from mge.testing.cases import admit

rng, found = np.random.default_rng(5), hashlib.sha256()
def run(name, arrays, **attrs):
    sig = admit(OPS[name], "", arrays, attrs, as_device("x86:0")).sig
    outputs = [np.empty(t.shape, t.dtype.dtype) for t in sig.types]
    sig.device.kernel(sig)(list(arrays), outputs, None)
    for y in outputs:
        found.update(y.tobytes())
draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
x, one = draw(60_000, 24), draw(24)
for axis in (0, 1, (0, 1)):
    run("sum", (x,), axis=axis)
run("sum", (draw(3, 400_000),), axis=(0, 1))
run("batch_norm_train", (x, one, one))
run("batch_norm_backward", (x, draw(60_000, 24), one, abs(one), one))
run("batch_norm_train", (draw(8, 16, 40, 40),))
run("layer_norm_backward", (x, x, draw(60_000, 1), abs(draw(60_000, 1)), one), axis=(1,))
run("softmax", (x,), axis=1)
run("softmax", (x,), axis=0)
run("global_norm", (x, draw(5), x))
run("cumsum", (x,), axis=0)
run("uniform", (np.array([3, 1], np.uint64),), shape=(100_001,))
print(found.hexdigest())
"""


def test_results_have_the_same_bits_for_every_number_of_threads(run_python):
    assert len({run_python("-c", PROGRAM, MGE_THREADS=n) for n in ("1", "2", "3")}) == 1
