"""Normalisation against its formulas; running statistics; large means, halves, and errors."""

import re

import numpy as np
import pytest

import mge
from mge.errors import ArgumentError, ShapeError
from mge.ops.batch_norm_functions import batch_norm, sync_batch_norm
from mge.ops.norm import rms_norm
from mge.ops.norm_functions import (
    general_norm,
    group_norm,
    instance_norm,
    layer_norm,
    local_response_norm,
)


def formula(x, axis, eps=1e-5):
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + eps)


def double(x):
    return mge.tensor(x, dtype="float64")


@pytest.mark.parametrize("shape", [(6, 4), (3, 4, 5), (2, 4, 3, 5), (2, 4, 2, 3, 2)])
def test_each_norm_is_its_formula(shape, rng):
    x = rng.normal(size=shape) * 3 + 5
    w, b = rng.normal(size=4), rng.normal(size=4)
    channel = (1, 4, *(1,) * (len(shape) - 2))

    def affine(z):
        return z * w.reshape(channel) + b.reshape(channel)

    def close(given, wanted):
        np.testing.assert_allclose(given.numpy(), wanted, atol=1e-12)

    batch = tuple(i for i in range(len(shape)) if i != 1)
    close(
        batch_norm(double(x), None, None, double(w), double(b), training=True),
        affine(formula(x, batch)),
    )
    close(sync_batch_norm(double(x), training=True), formula(x, batch))
    groups = x.reshape(shape[0], 2, -1)
    wanted = affine(formula(groups, 2).reshape(shape))
    close(group_norm(double(x), 2, True, double(w), double(b)), wanted)
    close(layer_norm(double(x), shape[1:], False), formula(x, tuple(range(1, len(shape)))))
    last = rng.normal(size=shape[-1:])
    close(
        layer_norm(double(x), shape[-1], True, double(last), double(last)),
        formula(x, -1) * last + last,
    )
    close(general_norm(double(x), (0, -1)), formula(x, (0, -1)))
    first = rng.normal(size=shape[:1])
    column = first.reshape(-1, *(1,) * (len(shape) - 1))
    close(
        general_norm(double(x), 0, True, double(first), double(first)),
        formula(x, 0) * column + column,
    )
    square = np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    close(rms_norm(double(x), double(last)), x / square * last)
    if len(shape) > 2:
        wanted = affine(formula(x, tuple(range(2, len(shape)))))
        close(instance_norm(double(x), True, double(w), double(b)), wanted)
    sums = sum(
        np.pad(x**2, [(0, 0), (1, 1)] + [(0, 0)] * (len(shape) - 2))[:, i : i + 4] for i in range(3)
    )
    close(local_response_norm(double(x), 3, 2.0, 0.1, 0.75), x / (2 + 0.1 * sums) ** 0.75)


@pytest.mark.parametrize("form", [(3,), (1, 3, 1, 1)])
def test_batch_norm_updates_running_statistics(form, rng):
    x = rng.normal(size=(4, 3, 2, 2)) + 1
    mean, var = double(np.zeros(form)), double(np.ones(form))
    y, new_mean, new_var = batch_norm(
        double(x), mean, var, training=True, momentum=0.75, inplace=False
    )
    assert (mean.numpy() == 0).all() and (var.numpy() == 1).all()
    again = batch_norm(double(x), mean, var, training=True, momentum=0.75)
    assert (again.numpy() == y.numpy()).all()
    np.testing.assert_allclose(mean.numpy(), 0.25 * x.mean((0, 2, 3)).reshape(form), atol=1e-12)
    unbiased = x.var((0, 2, 3), ddof=1).reshape(form)
    np.testing.assert_allclose(var.numpy(), 0.75 + 0.25 * unbiased, atol=1e-12)
    assert (new_mean.numpy() == mean.numpy()).all() and (new_var.numpy() == var.numpy()).all()
    used = batch_norm(double(x), mean, var).numpy()
    column = [a.numpy().reshape(1, 3, 1, 1) for a in (mean, var)]
    np.testing.assert_allclose(used, (x - column[0]) / np.sqrt(column[1] + 1e-5), atol=1e-12)


def test_batch_norm_of_one_element_keeps_statistics_finite():
    mean, var = mge.tensor([0.0]), mge.tensor([1.0])
    y = batch_norm(mge.tensor([[3.0]]), mean, var, training=True)
    assert y.tolist() == [[0.0]]
    np.testing.assert_allclose([mean.item(), var.item()], [0.3, 0.9], rtol=1e-6)


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_a_large_mean_costs_no_digits(norm, rng):
    x = (rng.normal(size=(64, 64)) + 1000).astype(np.float32)
    if norm == "batch":
        y, axis = batch_norm(mge.tensor(x), training=True), 0
    else:
        y, axis = layer_norm(mge.tensor(x), 64), 1
    # The difference of mean(x**2) and mean(x)**2 in float32 would be off by about 0.1.
    np.testing.assert_allclose(y.numpy(), formula(x.astype(np.float64), axis), atol=2e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_normalised_in_float32(dtype, rng):
    x = mge.tensor(rng.normal(size=(8, 4, 16)) * 200 + 300, dtype=dtype)
    wide = x.numpy().astype(np.float64)
    mean, var = mge.tensor(np.zeros(4)), mge.tensor(np.ones(4))
    for given, wanted in (
        (batch_norm(x, mean, var, training=True), formula(wide, (0, 2))),
        (layer_norm(x, 16), formula(wide, -1)),
    ):
        assert given.dtype == dtype
        bound = 0.002 if dtype == "float16" else 0.02
        np.testing.assert_allclose(given.numpy().astype(np.float64), wanted, atol=bound, rtol=bound)
    assert mean.dtype == "float32" and np.isfinite(var.numpy()).all()


X = np.ones((2, 4, 3), "f")


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: batch_norm(mge.tensor(X)),
            ArgumentError,
            "running_mean is None and training is False",
        ),
        (
            lambda: batch_norm(mge.tensor(X), weight=mge.tensor(X[0, 0]), training=True),
            ShapeError,
            "needs (4,)",
        ),
        (lambda: batch_norm(mge.tensor(X[:0]), training=True), ShapeError, "at least 1 element"),
        (lambda: batch_norm(mge.tensor(X), training=True, eps=-1.0), ArgumentError, "eps is -1.0"),
        (
            lambda: sync_batch_norm(mge.tensor(X), training=True, eps_mode="max"),
            ArgumentError,
            "eps_mode",
        ),
        (lambda: layer_norm(mge.tensor(X), 4), ShapeError, "must end with normalized_shape, (4,)"),
        (lambda: layer_norm(mge.tensor(X), 3, True), ArgumentError, "weight is None"),
        (lambda: group_norm(mge.tensor(X), 3), ArgumentError, "must divide the 4 channels"),
        (lambda: instance_norm(mge.tensor(X[0])), ShapeError, "3 axes or more"),
        (lambda: rms_norm(mge.tensor(X), mge.tensor(X[0, :, 0])), ShapeError, "needs (3,)"),
        (lambda: local_response_norm(mge.tensor(X), 4), ArgumentError, "odd number"),
    ],
)
def test_an_error_says_what_does_not_fit(call, error, text):
    with pytest.raises(error, match=re.escape(text)):
        call()
