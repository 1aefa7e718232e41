"""What few kernels use: values of constants in prepare, and outputs that nobody needs."""

import ctypes

import numpy as np
import pytest

import mge
import mge.functional as F
from mge.debug import debug
from mge.jit import trace


@pytest.fixture
def extras(native_device, library):
    """The device, and the library's own function."""
    return native_device("extras"), ctypes.CDLL(library("extras"))


def test_prepare_is_told_the_values_of_constants(extras):
    """The library adds 100 to a constant that it knew, so that the result shows it."""
    device, _ = extras
    x, y = (mge.tensor(np.arange(4, dtype=np.float32), device=device) for _ in range(2))
    function = trace(lambda x, y: (x + F.concat([F.full(2, 10.0), F.full(2, 30.0)]) * 1.0, x + y))
    known, unknown = function(x, y)
    assert known.tolist() == [110, 111, 132, 133] and unknown.tolist() == [0, 2, 4, 6]


def test_an_output_that_nobody_reads_is_null(extras):
    device, library = extras
    x = mge.tensor(np.array([3, 1, 2, 5], np.float32), device=device)
    cases = [(lambda x: F.sort(x)[0] + x, 1), (lambda x: F.sort(x), 0)]
    cases.append((lambda x: F.sort(x)[1], 0))  # a kernel always gets its first output
    for function, nulls in cases:
        wanted = function(x.to("ref"))
        traced = trace(function)
        traced(x)
        library.extras_nulls()
        given = traced(x)
        assert library.extras_nulls() == nulls
        pairs = zip(given, wanted) if isinstance(given, tuple) else [(given, wanted)]
        assert all(one.tolist() == other.tolist() for one, other in pairs)
        with debug(check=2):
            assert traced(x)[0].tolist() == given[0].tolist()
