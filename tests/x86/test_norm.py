"""Norms of device x86 against the references: batch norms in both layouts, layer, group, instance and rms norms."""

import numpy as np
import pytest

from mge.device import as_device
from mge.op import OPS
from mge.testing.cases import admit

from .against import check

pytestmark = pytest.mark.usefixtures("x86")


def draw(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


BATCHES = [
    (5, 3),
    (4, 17, 3),
    (2, 70, 9, 11),
    (3, 16, 28, 28),
    (1, 1, 1, 1),
    (500, 24),
    (9, 300),
    (2, 3, 2, 3, 4),
]


@pytest.mark.parametrize("shape", BATCHES, ids=str)
def test_batch_norm(rng, shape):
    c, axes = shape[1], (0, *range(2, len(shape)))
    x, dy, w, b = draw(rng, *shape) * 2 + 3, draw(rng, *shape), draw(rng, c), draw(rng, c)
    mean, var = x.mean(axis=axes), x.var(axis=axes) + np.float32(0.1)
    for affine in ((), (w,), (w, b)):
        check("batch_norm_train", [x, *affine], {"eps": 0.1})
        check("batch_norm_infer", [x, mean, var, *affine])
    for weight in ((), (w,)):
        check("batch_norm_backward", [x * 0.3, dy / x.size**0.5, mean * 0.3, var, *weight])
    check("batch_norm_train", [x.astype(np.float64), w.astype(np.float64)])


ROWS = [(5, 3), (4, 3, 17), (2, 9, 11, 70), (1, 1), (700, 24), (9, 300), (3, 16)]


@pytest.mark.parametrize("shape", ROWS, ids=str)
@pytest.mark.parametrize("activation", ["", "relu", "relu6"])
def test_batch_norm_with_the_channels_last(rng, shape, activation):
    c, axes = shape[-1], tuple(range(len(shape) - 1))
    x, dy, residual = draw(rng, *shape), draw(rng, *shape) / x_size(shape), draw(rng, *shape)
    w, b = draw(rng, c), draw(rng, c)
    mean, var = x.mean(axis=axes), x.var(axis=axes) + np.float32(0.1)
    attrs = {"activation": activation, "eps": 0.1}
    check("x86::batch_norm_moments", [x])
    check("x86::batch_norm_apply", [x, mean, var, w, b], attrs)
    check("x86::batch_norm_apply", [x, mean, var, w, b, residual], attrs)
    check("x86::batch_norm_backward", [x, dy, mean, var, w, b], attrs)
    check(
        "x86::batch_norm_backward",
        [x, dy, mean, var, w, b, residual * 4],
        {**attrs, "residual": True},
    )
    check("x86::batch_norm_backward", [x, dy, mean, var, w, b], {"residual": True})


def x_size(shape):
    """What keeps a sum over a tensor of this shape near 1."""
    return np.float32(np.prod(shape) ** 0.5)


def test_a_large_mean_costs_no_digits(rng):
    for shape in ((2000, 5), (4, 5, 20, 20)):
        x = draw(rng, *shape) + 1000
        sig = admit(OPS["batch_norm_train"], "", (x,), {}, as_device("x86:0")).sig
        y, mean, var = (np.empty(t.shape, np.float32) for t in sig.types)
        sig.device.kernel(sig)([x], [y, mean, var], None)
        axes, shape = (0, *range(2, x.ndim)), (1, 5, *(1,) * (x.ndim - 2))
        exact = x.astype(np.float64).mean(axis=axes), x.astype(np.float64).var(axis=axes)
        assert np.abs(mean / exact[0] - 1).max() < 2e-7
        assert np.abs(var / exact[1] - 1).max() < 2e-6
        wanted = (x - exact[0].reshape(shape)) / np.sqrt(exact[1].reshape(shape) + 1e-5)
        assert np.abs(y - wanted).max() < 2e-4  # one unit in the last place of the mean is 6e-5


LAYERS = [
    ((12, 768), (-1,), (768,)), ((7, 5, 33), (1, 2), (5, 33)), ((7, 5, 33), (1, 2), (5, 1)), ((3, 40), (1,), None),
    ((7, 6, 8, 9), (2, 3), (6, 1, 1)), ((4, 2, 3, 5, 5), (2, 3, 4), (2, 3, 1, 1)), ((3, 4, 12), (1, 2), (12,)),
    ((3000, 3), (1,), (3,)), ((3, 4000), (1,), (4000,)), ((2, 2, 3), (-1,), (2, 1, 1)), ((6, 7), (0, 1), (6, 7)),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "axis", "weight"), LAYERS, ids=str)
def test_layer_norm(rng, shape, axis, weight):
    x, dy = draw(rng, *shape) + 1, draw(rng, *shape) / x_size(shape)
    affine = [] if weight is None else [draw(rng, *weight), draw(rng, *weight)]
    check("layer_norm", [x, *affine], {"axis": axis, "eps": 0.1})
    check("layer_norm", [x.astype(np.float16), *affine[:1]], {"axis": axis, "eps": 0.1})
    axes = tuple(a % len(shape) for a in axis)
    mean, var = x.mean(axis=axes, keepdims=True), x.var(axis=axes, keepdims=True) + np.float32(0.1)
    check("layer_norm_backward", [x, dy, mean, var, *affine[:1]], {"axis": axis})
    if axis == (-1,) and weight is not None and len(weight) == 1:
        check("rms_norm", [x, affine[0]])
        check("rms_norm", [x])


@pytest.mark.parametrize("h", [1, 16, 17, 70])
def test_gates_of_recurrent_cells(rng, h):
    state = [draw(rng, 3, h) for _ in range(3)]
    four, three, other = draw(rng, 3, 4 * h), draw(rng, 3, 3 * h), draw(rng, 3, 3 * h)
    check("lstm_gates", [four, state[0]])
    check("lstm_gates_grad", [*state[:2], four, state[2]])
    check("gru_gates", [three, other, state[0]])
    check("gru_gates_grad", [state[0], three, other, state[1]])
