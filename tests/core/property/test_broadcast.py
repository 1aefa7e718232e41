"""Broadcasting: NumPy's shapes, NumPy's refusals, and gradients of the inputs' own shapes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import mge
from mge.errors import ShapeError
from mge.grad import gradients
from mge.op import OPS
from mge.types import broadcast

shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3)
fitting = st.integers(1, 4).flatmap(
    lambda n: hnp.mutually_broadcastable_shapes(num_shapes=n, min_side=0, max_side=3, max_dims=4)
)
two_fitting = hnp.mutually_broadcastable_shapes(num_shapes=2, min_side=0, max_side=3, max_dims=4)


@given(fitting)
def test_shapes_that_fit(drawn):
    assert broadcast(*drawn.input_shapes) == drawn.result_shape


@given(st.lists(shapes, min_size=1, max_size=4))
def test_numpy_and_mge_refuse_the_same(given_shapes):
    try:
        wanted = np.broadcast_shapes(*given_shapes)
    except ValueError:
        with pytest.raises(ShapeError, match="do not broadcast"):
            broadcast(*given_shapes)
    else:
        assert broadcast(*given_shapes) == wanted


@given(
    two_fitting, st.sampled_from(["add", "mul", "sub", "maximum", "less"]), st.integers(0, 2**32)
)
def test_values_are_numpys(drawn, name, seed):
    rng = np.random.default_rng(seed)
    x, y = (rng.normal(size=s).astype(np.float32) for s in drawn.input_shapes)
    ufunc = {"mul": np.multiply, "sub": np.subtract}.get(name) or getattr(np, name)
    result = OPS[name](mge.tensor(x), mge.tensor(y))
    assert result.shape == drawn.result_shape
    assert result.numpy().tobytes() == np.asarray(ufunc(x, y)).tobytes()


@given(two_fitting, st.integers(0, 2**32))
def test_a_gradient_has_its_inputs_shape(drawn, seed):
    rng = np.random.default_rng(seed)
    x, y = (rng.normal(size=s) for s in drawn.input_shapes)
    dz = rng.normal(size=drawn.result_shape)
    tx, ty, tz = (mge.tensor(a, dtype="float64") for a in (x, y, dz))
    dx, dy = gradients([tx * ty], [tx, ty], [tz])
    for gradient, own, other in ((dx, x, y), (dy, y, x)):
        wide = np.broadcast_to(dz * other, drawn.result_shape)
        lead = wide.ndim - own.ndim
        axes = tuple(range(lead)) + tuple(
            i + lead for i, n in enumerate(own.shape) if n == 1 and wide.shape[i + lead] != 1
        )
        wanted = wide.sum(axis=axes, keepdims=True).reshape(own.shape)
        assert gradient.shape == own.shape
        np.testing.assert_allclose(gradient.numpy(), wanted, rtol=1e-12, atol=1e-12)


@given(fitting.filter(lambda d: d.input_shapes[0] != d.result_shape))
def test_broadcast_to(drawn):
    shape, wanted = drawn.input_shapes[0], drawn.result_shape
    x = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    result = OPS["broadcast_to"](mge.tensor(x), wanted)
    assert result.numpy().tobytes() == np.broadcast_to(x, wanted).tobytes()
