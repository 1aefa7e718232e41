"""What the generated tests cannot see of the elementwise ops: numbers as arguments, kinks, errors, accuracy."""

import math

import numpy as np
import pytest

import mge
from mge.errors import ArgumentError, DTypeError, ShapeError
from mge.grad import gradients
from mge.op import OPS
from mge.ops.activation import hardtanh
from mge.ops.broadcasting import unbroadcast
from mge.ops.elu import celu, selu
from mge.ops.gelu import erf_of
from mge.ops.power import pow
from mge.ops.select import clip
from mge.ops.sigmoid import glu


def gradient(name, *values, **attrs):
    """Return the gradient of each input of an op at some values, for a ``dy`` of ones."""
    xs = [mge.tensor(v, dtype="float64") for v in values]
    found = gradients([OPS[name](*xs, **attrs)], xs)
    return [None if g is None else g.numpy().tolist() for g in found]


def op_of(tensor):
    return tensor._node.sig.op.name


def test_erf_agrees_with_the_c_library():
    x = np.concatenate([np.linspace(-7, 7, 4001), np.logspace(-300, 0, 301), [np.inf, -np.inf]])
    wanted = np.array([math.erf(v) for v in x])
    np.testing.assert_allclose(erf_of(x), wanted, rtol=1e-15, atol=0)
    assert np.isnan(erf_of(np.array([np.nan]))).all()


def test_a_number_as_exponent_is_part_of_the_graph():
    x = mge.tensor([4.0, 9.0])
    assert op_of(pow(x, 2)) == "square"
    assert op_of(pow(x, 0.5)) == "sqrt"
    assert op_of(pow(x, 3)) == "pow_scalar"
    assert op_of(pow(x, mge.tensor(3.0))) == "pow"
    assert op_of(pow(2.0, x)) == "pow"
    np.testing.assert_allclose(pow(x, -1.5).numpy(), [0.125, 1 / 27], rtol=1e-6)


def test_a_power_of_integers():
    x = mge.tensor([1, -2, 3])
    assert pow(x, 3).dtype == "int32"
    assert pow(x, 3).tolist() == [1, -8, 27]
    assert pow(x, 2.0).dtype == "float32"
    assert pow(mge.tensor([1, -1, -1, 5, 0]), mge.tensor([-3, -3, -2, -1, -1])).tolist() == [
        1, -1, 1, 0, 0,
    ]  # fmt: skip
    with pytest.raises(DTypeError, match=r"x is int32 and exponent is -1\.0"):
        pow(x, -1)


def test_the_gradient_of_a_power_at_zero():
    assert gradient("pow", [0.0, 0.0, 0.0], [2.0, 1.0, 0.0]) == [[0.0, 1.0, 0.0], [0.0] * 3]
    assert gradient("pow_scalar", [0.0, 5.0], exponent=1) == [[1.0, 1.0]]


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_ties_share_the_gradient(name):
    (a, b) = gradient(name, [1.0, 2.0, 3.0], [2.0, 2.0, 2.0])
    assert a[1] == b[1] == 0.5
    assert np.add(a, b).tolist() == [1.0, 1.0, 1.0]


def test_gradients_at_kinks():
    at = [-1.0, 0.0, 1.0]
    assert gradient("abs", at) == [[-1.0, 0.0, 1.0]]
    assert gradient("relu", at) == [[0.0, 0.0, 1.0]]
    assert gradient("relu6", [0.0, 3.0, 6.0]) == [[0.0, 1.0, 0.0]]
    assert gradient("leaky_relu", at, negative_slope=0.5) == [[0.5, 0.5, 1.0]]
    assert gradient("clip", [-2.0, *at], lower=-1.0, upper=1.0) == [[0.0, 1.0, 1.0, 1.0]]
    assert gradient("elu", at, alpha=1.0)[0][1:] == [1.0, 1.0]


def test_the_value_not_taken_gives_no_gradient():
    x = mge.tensor([float("inf"), float("nan"), 1.0])
    (dx,) = gradients([OPS["where"](mge.tensor([False, False, True]), x, 0.0)], [x])
    assert dx.tolist() == [0.0, 0.0, 1.0]


def test_clip_takes_numbers_and_tensors():
    x = mge.tensor([-3, 0, 200])
    assert clip(x, -1, 100).tolist() == [-1, 0, 100]
    assert op_of(clip(x, -1, 100)) == "clip"
    assert clip(x, mge.tensor([0, 1, 2]), 100).tolist() == [0, 1, 100]
    assert clip(x.astype("int8"), -1000, upper=50).tolist() == [-3, 0, -56]
    with pytest.raises(ArgumentError, match="at least one must be a number"):
        clip(x)
    with pytest.raises(ArgumentError, match=r"lower is 2\.0 and upper is 1\.0"):
        clip(x, 2, 1)
    with pytest.raises(DTypeError, match="bounds of integers are whole"):
        clip(x, 0.5)


def test_compositions():
    values = np.array([-2.0, -0.5, 0.0, 3.0])
    x = mge.tensor(values, dtype="float64")
    below = np.expm1(np.minimum(values, 0))
    assert hardtanh(x).tolist() == [-1.0, -0.5, 0.0, 1.0]
    np.testing.assert_allclose(
        celu(x, 2.0).numpy(), np.where(values > 0, values, 2 * np.expm1(values / 2))
    )
    np.testing.assert_allclose(
        selu(x).numpy(),
        1.0507009873554805 * np.where(values > 0, values, 1.6732632423543772 * below),
    )
    np.testing.assert_allclose(glu(x).numpy(), values[:2] / (1 + np.exp(-values[2:])))
    assert glu(mge.tensor(np.ones((4, 3))), axis=0).shape == (2, 3)
    with pytest.raises(ShapeError, match=r"shape \(3,\); its size on axis -1 must be even"):
        glu(x[:3])
    with pytest.raises(ArgumentError, match="alpha is 0; it must be above 0"):
        celu(x, 0)


def test_unbroadcast_sums_over_repeated_axes():
    dx = mge.tensor(np.arange(24.0).reshape(2, 3, 4))
    like = mge.tensor(np.zeros((3, 1)))
    assert unbroadcast(dx, like).tolist() == [[60.0], [92.0], [124.0]]
    assert unbroadcast(dx, dx) is dx
    assert unbroadcast(mge.tensor(1.0), like).tolist() == [[1.0], [1.0], [1.0]]


def test_prelu_has_one_slope_for_each_channel():
    prelu = OPS["prelu"]
    x = mge.tensor(-np.ones((2, 3, 4)))
    assert prelu(x, mge.tensor([1.0, 2.0, 3.0])).numpy()[0, :, 0].tolist() == [-1.0, -2.0, -3.0]
    assert prelu(x, 0.5).numpy()[1, 2, 3] == -0.5
    with pytest.raises(ShapeError, match=r"weight has \(4,\)"):
        prelu(x, mge.tensor(np.ones(4)))


@pytest.mark.parametrize("name", ["sub", "floor_div", "mod", "pow"])
def test_bools_have_no_such_arithmetic(name):
    truth = mge.tensor([True, False])
    with pytest.raises(DTypeError, match=f"{name}: the inputs are bool"):
        OPS[name](truth, truth)


@pytest.mark.parametrize("name", ["bitwise_and", "left_shift"])
def test_floats_have_no_bits(name):
    with pytest.raises(DTypeError, match=f"{name}: the inputs are float32"):
        OPS[name](mge.tensor([1.0]), 1)


def test_shapes_that_do_not_broadcast():
    with pytest.raises(ShapeError, match=r"add: shapes \(2, 3\) and \(4,\) do not broadcast"):
        OPS["add"](mge.tensor(np.ones((2, 3))), mge.tensor(np.ones(4)))
