"""Pooling: NaN, padding, ties, large windows, ceil_mode, and errors."""

import re

import numpy as np
import pytest

import mge
from mge.errors import ArgumentError, DTypeError, ShapeError
from mge.grad import gradients
from mge.ops.adaptive_pool import adaptive_avg_pool2d, adaptive_max_pool2d
from mge.ops.pool_functions import avg_pool2d, max_pool1d, max_pool2d

INF, NAN = np.inf, np.nan


def naive(x, reduce, kernel, stride, padding, fill):
    padded = np.pad(
        x, [(0, 0), (0, 0), (padding, padding), (padding, padding)], constant_values=fill
    )
    count = [(n - kernel) // stride + 1 for n in padded.shape[2:]]
    y = np.empty((*x.shape[:2], *count))
    for i, j in np.ndindex(*count):
        part = padded[:, :, i * stride : i * stride + kernel, j * stride : j * stride + kernel]
        y[:, :, i, j] = reduce(part, axis=(2, 3))
    return y


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [(2, 2, 0), (3, 2, 1), (3, 1, 2), (2, 3, 1), (9, 2, 3), (9, 9, 0)],
)
def test_pools_are_their_loops(kernel, stride, padding, rng):
    x = rng.normal(size=(2, 3, 19, 18))
    given = mge.tensor(x, dtype="float64")
    largest = max_pool2d(given, kernel, stride, padding)
    assert (largest.numpy() == naive(x, np.max, kernel, stride, padding, -INF)).all()
    mean = avg_pool2d(given, kernel, stride, padding, mode="average").numpy()
    np.testing.assert_allclose(mean, naive(x, np.mean, kernel, stride, padding, 0), atol=1e-14)
    mean = avg_pool2d(given, kernel, stride, padding).numpy()
    np.testing.assert_allclose(mean, naive(x, np.nanmean, kernel, stride, padding, NAN), atol=1e-14)


@pytest.mark.parametrize("kernel", [3, 17])
def test_max_pool_gradient_goes_to_the_maximum(kernel, rng):
    x = rng.permutation(2 * 20 * 20).reshape(1, 2, 20, 20).astype(float)
    inp = mge.tensor(x, dtype="float64")
    y = max_pool2d(inp, kernel, 2, 1)
    dy = rng.normal(size=y.shape)
    (dx,) = gradients([y], [inp], [mge.tensor(dy, dtype="float64")])
    wanted = np.zeros_like(x)
    for (n, c, *_), value, share in zip(
        np.ndindex(*y.shape), y.numpy().ravel(), dy.ravel(), strict=True
    ):
        i, j = np.argwhere(x[n, c] == value)[0]
        wanted[n, c, i, j] += share
    np.testing.assert_allclose(dx.numpy(), wanted, atol=1e-14)


def test_max_pool_of_nan_infinities_and_ties():
    x = mge.tensor([[[2.0, NAN, 5.0, NAN], [-INF, -INF, 1.0, 1.0]]])
    y, index = mge.op.OPS["max_pool"](x, kernel=(2,), stride=(2,), padding=(0, 0))
    np.testing.assert_array_equal(y.numpy(), [[[NAN, NAN], [-INF, 1.0]]])
    assert index.tolist() == [[[1, 1], [0, 0]]]
    y = max_pool1d(x, 2)
    (dx,) = gradients([y], [x], [mge.tensor([[[1.0, INF], [NAN, 4.0]]])])
    np.testing.assert_array_equal(dx.numpy(), [[[0, 1, 0, INF], [NAN, 0, 4, 0]]])


def test_max_pool_padding_is_never_the_maximum():
    x = mge.tensor(np.full((1, 1, 3, 3), -INF))
    y = max_pool2d(x, 3, 2, 1)
    (dx,) = gradients([y], [x], [mge.tensor(np.ones((1, 1, 2, 2)))])
    assert dx.numpy().sum() == 4  # none was lost in the padding
    low = mge.tensor(np.full((1, 1, 3, 3), -128), dtype="int8")
    assert (max_pool2d(low, 3, 2, 1).numpy() == -128).all()


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "count"),
    [
        (7, 2, 2, 0, 4),
        (6, 2, 2, 0, 3),
        (7, 3, 2, 1, 4),
        (8, 3, 3, 1, 3),
        (5, 2, 3, 1, 2),
        (4, 1, 3, 0, 2),
    ],
)
def test_ceil_mode_adds_windows_that_begin_inside(size, kernel, stride, padding, count, rng):
    x = rng.normal(size=(1, 1, size))
    y = max_pool1d(mge.tensor(x, dtype="float64"), kernel, stride, padding, ceil_mode=True)
    starts = [i * stride - padding for i in range(count)]
    wanted = [x[0, 0, max(s, 0) : s + kernel].max() for s in starts]
    assert starts[-1] < size and starts[-1] + stride + kernel > size + padding
    assert y.tolist() == [[wanted]]


def test_adaptive_pools_have_windows_of_one_size(rng):
    x = rng.normal(size=(1, 2, 7, 6))
    given = mge.tensor(x, dtype="float64")
    # 7 to 3: stride 2, kernel 3; 6 to 2: stride 3, kernel 3.
    wanted = [
        [[x[0, c, 2 * i : 2 * i + 3, 3 * j : 3 * j + 3].max() for j in (0, 1)] for i in (0, 1, 2)]
        for c in (0, 1)
    ]
    assert adaptive_max_pool2d(given, (3, 2)).tolist() == [wanted]
    np.testing.assert_allclose(
        adaptive_avg_pool2d(given, 1).numpy(), x.mean((2, 3), keepdims=True), atol=1e-14
    )


IMAGE = np.ones((1, 2, 4, 4), "f")


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: max_pool2d(mge.tensor(IMAGE[0]), 2), ShapeError, "must have 4 axes"),
        (lambda: max_pool2d(IMAGE, 5), ShapeError, "a window spans (5, 5)"),
        (lambda: max_pool2d(IMAGE, 2, 2, 2), ArgumentError, "must be below its kernel size"),
        (lambda: max_pool2d(IMAGE, 2, 0), ArgumentError, "stride is (0, 0)"),
        (lambda: max_pool2d(IMAGE, (2, 2, 2)), ArgumentError, "kernel_size is (2, 2, 2)"),
        (lambda: max_pool2d(IMAGE > 0, 2), DTypeError, "inp is bool"),
        (lambda: avg_pool2d(IMAGE, 2, mode="mean"), ArgumentError, "mode is 'mean'"),
        (lambda: avg_pool2d(IMAGE[:, :, :0], 2), ShapeError, "at least 1 element"),
        (lambda: adaptive_avg_pool2d(IMAGE, 5), ShapeError, "oshp is (5, 5)"),
    ],
)
def test_an_error_says_what_does_not_fit(call, error, text):
    with pytest.raises(error, match=re.escape(text)):
        call()
