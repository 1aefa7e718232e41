"""Pools of device x86 against the references: random windows over one to three axes, in both layouts."""

import numpy as np
import pytest

from mge import tensor
from mge.jit import trace
from mge.op import OPS

from .against import check

pytestmark = pytest.mark.usefixtures("x86")


def last(x):
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def random_case(rng):
    """Return a shape (n, c, *size) and the attributes of a pool that fits it."""
    n = int(rng.integers(1, 4))
    kernel, stride = rng.integers(1, 5, n), rng.integers(1, 4, n)
    before, after = (rng.integers(0, kernel) for _ in range(2))
    size = np.maximum(1, kernel - before - after) + rng.integers(0, 9, n)
    attrs = {"kernel": kernel, "stride": stride, "padding": (*before, *after)}
    attrs = {name: tuple(int(v) for v in value) for name, value in attrs.items()}
    return (int(rng.integers(0, 4)), int(rng.integers(1, 71)), *map(int, size)), attrs


FIXED = [
    ((2, 5, 30, 31), {"kernel": (17, 17), "stride": (2, 3), "padding": (3, 0, 2, 2)}),
    ((2, 70, 7, 7), {"kernel": (7, 7), "stride": (1, 1), "padding": (0, 0, 0, 0)}),
    ((1, 3, 9, 150), {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1, 1, 1)}),
]


def check_pools(rng, shape, attrs):
    x = rng.normal(size=shape).astype(np.float32)
    odd = rng.integers(-3, 3, shape).astype(np.float32)
    odd[odd == 2], odd[odd == -3] = np.nan, -np.inf
    for v in (x, odd, x.astype(np.float64)):
        check("max_pool", [v], attrs)
        check("x86::max_pool", [last(v)], attrs)
    check("max_pool", [(x * 5).astype(np.int8)], attrs)
    y, index = OPS["max_pool"]._reference(x, **attrs)
    dy = rng.normal(size=y.shape).astype(np.float32)
    back = {"input_shape": shape, **attrs}
    back_last = {"input_shape": last(x).shape, **attrs}
    check("max_pool_backward", [index, dy], back)
    check("x86::max_pool_backward", [last(index), last(dy)], back_last)
    for count in ({"count_padding": False}, {"count_padding": True}):
        check("avg_pool", [x], {**attrs, **count})
        check("x86::avg_pool", [last(x)], {**attrs, **count})
        check("avg_pool_backward", [dy], {**back, **count})
        check("x86::avg_pool_backward", [last(dy)], {**back_last, **count})


@pytest.mark.parametrize("name", ["max_pool", "x86::max_pool"])
@pytest.mark.parametrize("channels", [3, 6, 16, 70])
def test_places_that_nobody_needs(rng, name, channels):
    attrs = {"kernel": (2, 3), "stride": (2, 2), "padding": (0, 1, 0, 0)}
    x = rng.normal(size=(2, 9, 7, channels)).astype(np.float32)
    x[0, 3, 4, 1] = np.nan
    largest = trace(lambda inp: OPS[name](inp, **attrs)[0])
    for _ in range(3):
        y = largest(tensor(x, device="x86:0"))
    np.testing.assert_array_equal(y.numpy(), OPS[name]._reference(x, **attrs)[0])


@pytest.mark.parametrize(("shape", "attrs"), FIXED, ids=str)
def test_usual_windows(rng, shape, attrs):
    check_pools(rng, shape, attrs)


def test_random_windows(rng):
    for _ in range(40):
        check_pools(rng, *random_case(rng))
