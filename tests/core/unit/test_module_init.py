"""mge.module.init: distributions, fans and gains."""

import math

import numpy as np
import pytest

import mge
from mge.errors import ArgumentError, ShapeError
from mge.module import Conv2d, init


def weight(*shape):
    return mge.Parameter(np.zeros(shape))


def test_init_keeps_the_handle_and_its_dtype():
    w = mge.Parameter(np.zeros((3, 4)), dtype="float64")
    handle = w
    init.normal_(w, 5.0, 0.1)
    assert handle is w and w.dtype == "float64" and abs(w.numpy().mean() - 5) < 0.2


@pytest.mark.parametrize(
    ("function", "value"), [(init.zeros_, 0), (init.ones_, 1), (lambda w: init.fill_(w, 2.5), 2.5)]
)
def test_init_fills(function, value):
    w = mge.Parameter(np.full((2, 3), 9.0))
    function(w)
    np.testing.assert_array_equal(w.numpy(), np.full((2, 3), value))


@pytest.mark.parametrize(
    ("function", "std"),
    [
        (lambda w: init.uniform_(w, -1, 1), 1 / math.sqrt(3)),
        (lambda w: init.normal_(w, 0, 0.5), 0.5),
        (init.xavier_uniform_, math.sqrt(2 / 300)),
        (lambda w: init.xavier_normal_(w, gain=2), 2 * math.sqrt(2 / 300)),
        (init.msra_uniform_, math.sqrt(2 / 200)),
        (lambda w: init.msra_normal_(w, mode="fan_out", nonlinearity="relu"), math.sqrt(2 / 100)),
        (lambda w: init.msra_normal_(w, a=1), math.sqrt(1 / 200)),
    ],
)
def test_init_draws_with_the_right_spread(function, std):
    w = weight(100, 200)
    function(w)
    drawn = w.numpy()
    assert drawn.std() == pytest.approx(std, rel=0.05)
    assert abs(drawn.mean()) < 0.05 * std


def test_init_repeats_with_a_seed():
    w = weight(5, 5)
    draws = []
    for _ in range(2):
        mge.random.seed(3)
        init.normal_(w)
        draws.append(w.numpy())
    np.testing.assert_array_equal(*draws)


def test_init_fans():
    assert init.calculate_fan_in_and_fan_out(weight(8, 4)) == (4, 8)
    assert init.calculate_fan_in_and_fan_out(weight(8, 4, 3, 3)) == (36, 72)
    assert init.calculate_fan_in_and_fan_out(weight(8, 4, 2, 2, 2)) == (32, 64)
    assert init.calculate_fan_in_and_fan_out(weight(2, 8, 4, 3, 3), grouped=True) == (36, 72)
    assert init.calculate_fan_in_and_fan_out(Conv2d(8, 16, 3, groups=2).weight) == (36, 72)
    with pytest.raises(ShapeError, match="must have 2 axes"):
        init.calculate_fan_in_and_fan_out(weight(3))
    with pytest.raises(ArgumentError, match="'fan_in' or 'fan_out'"):
        init.calculate_correct_fan(weight(3, 3), "fan")


def test_init_gains():
    assert init.calculate_gain("relu") == pytest.approx(math.sqrt(2))
    assert init.calculate_gain("leaky_relu", 0.2) == pytest.approx(math.sqrt(2 / 1.04))
    assert init.calculate_gain("conv2d") == 1
    with pytest.raises(ArgumentError, match="nonlinearity is 'swish'"):
        init.calculate_gain("swish")


@pytest.mark.parametrize("shape", [(4, 4), (3, 6), (6, 3), (4, 2, 2)])
def test_init_orthogonal(shape):
    w = weight(*shape)
    init.orthogonal_(w, gain=2.0)
    matrix = w.numpy().reshape(shape[0], -1) / 2
    if matrix.shape[0] > matrix.shape[1]:
        matrix = matrix.T
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(len(matrix)), atol=1e-5)
