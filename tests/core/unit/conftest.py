"""Fixtures of the tests of model files."""

import pytest

from mge.jit import trace
from mge.tensor import tensor


@pytest.fixture
def images(rng):
    return lambda n: tensor(rng.normal(size=(n, 3, 4, 4)))


@pytest.fixture
def doubled():
    @trace
    def doubled(x):
        return x * 2

    doubled(tensor([[1.0, 2.0]]))
    return doubled
