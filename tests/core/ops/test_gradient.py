"""What follows from each op record: first and second derivatives against central differences in float64."""

import numpy as np
import pytest

import mge
from mge.grad import gradients
from mge.op import OPS
from tests.core.ops.cases import (
    SMOOTH,
    Faults,
    admit,
    kernel_inputs,
    recorded,
    reference,
    sample,
    variants,
)

STEP = 4e-4
RELATIVE = 1e-6
each_case = pytest.mark.parametrize(("name", "index"), SMOOTH)


class AtAKink(Exception):
    """The differences do not converge, so they say nothing about the derivative."""


def derivative(function, where=STEP):
    """Return d/dt of ``function(t)`` at 0, from central differences extrapolated twice.

    With steps h, h/2 and h/4 the error is O(h**6); what the last extrapolation changed estimates it.
    """
    d = [(function(h) - function(-h)) / (2 * h) for h in (where, where / 2, where / 4)]
    r = [(4 * d[1] - d[0]) / 3, (4 * d[2] - d[1]) / 3]
    best = (16 * r[1] - r[0]) / 15
    if not np.isfinite(best) or abs(r[1] - r[0]) > 0.2 * RELATIVE * (1 + abs(best)):
        raise AtAKink(f"central differences {d} do not converge")
    return best


def dot(one, other):
    return float(sum((a.astype(np.float64) * b).sum() for a, b in zip(one, other, strict=True)))


def compare(what, analytic, numeric, parts):
    """Assert that two derivatives along a direction agree; ``parts`` are the terms that ``analytic`` sums."""
    scale = abs(numeric) + float(np.sqrt(sum((p**2).sum() for p in parts))) + 1e-3
    assert abs(analytic - numeric) <= RELATIVE * scale, (
        f"{what}: the gradient rule gives {analytic:.12g}, central differences give {numeric:.12g}"
    )


def steady(check, name, index, rng):
    """Run a check; where a sample happens to lie at a kink, draw others before giving up."""
    for _ in range(4):
        try:
            return check(name, index, rng)
        except AtAKink as error:
            reason = error
    raise AssertionError(f"{name}: sample {index} lies at a kink in 4 draws: {reason}")


def prepared(name, index, rng):
    """Return the float64 variant, its arrays, the positions of float inputs, and weights of float outputs."""
    op = OPS[name]
    arrays, attrs = sample(op, index, rng)
    variant = admit(op, "float64", arrays, attrs)
    arrays = kernel_inputs(variant)
    floats = [i for i, a in enumerate(arrays) if a.dtype == np.float64]
    outputs = [k for k, t in enumerate(variant.sig.types) if t.dtype == np.float64]
    weights = {k: rng.normal(size=variant.sig.types[k].shape) for k in outputs}
    return variant, arrays, floats, weights


@each_case
def test_gradient_in_each_dtype(name, index, rng):
    """Gradients have their inputs' types in each float dtype, and in float32 the values of float64."""
    faults = Faults()
    for variant in variants(name, index, rng):
        floats = [i for i, t in enumerate(variant.sig.input_types) if t.dtype.is_float]
        outputs = [k for k, t in enumerate(variant.sig.types) if t.dtype.is_float]
        if variant.label not in ("float16", "bfloat16", "float32") or not floats or not outputs:
            continue
        arrays = kernel_inputs(variant)
        weights = {
            k: rng.normal(size=variant.sig.types[k].shape).astype(variant.sig.types[k].dtype.dtype)
            for k in outputs
        }
        _, _, grads = recorded(variant, arrays, floats, weights)
        for i, grad in zip(floats, grads, strict=True):
            if grad is not None and grad._node.type is not variant.sig.input_types[i]:
                faults.note(variant, f"the gradient of input {i} is {grad._node.type}")
        values = [None if g is None else g.numpy() for g in grads]
        if variant.label != "float32":
            continue
        wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in arrays]
        other = admit(variant.op, "float64", tuple(wide), variant.attrs)
        if other is None or [t.shape for t in other.sig.types] != [
            t.shape for t in variant.sig.types
        ]:
            continue
        wide_weights = {k: weights[k].astype(other.sig.types[k].dtype.dtype) for k in weights}
        _, _, wanted = recorded(other, wide, floats, wide_weights)
        for i, value, exact in zip(floats, values, wanted, strict=True):
            if value is not None:
                error = np.abs(value - exact.numpy())
                scale = 1 + np.abs(exact.numpy()).max(initial=0)
                if not (error <= 1e-4 * scale).all():
                    faults.note(
                        variant, f"the gradient of input {i} is {error.max()} off that of float64"
                    )
    faults.check()


def moved(arrays, position, direction, t):
    """Return the arrays with one of them moved along a direction."""
    return [a + t * direction if i == position else a for i, a in enumerate(arrays)]


def check_gradient(name, index, rng):
    variant, arrays, floats, weights = prepared(name, index, rng)
    _, _, grads = recorded(variant, arrays, floats, weights)
    if all(g is None for g in grads):
        return  # no gradient by meaning: compare, floor, detach
    for i, grad in zip(floats, grads, strict=True):
        what = f"{name}, input {i} of shape {arrays[i].shape}, {variant.attrs}"
        if grad is not None:
            assert (grad.shape, grad.dtype) == (arrays[i].shape, arrays[i].dtype), (
                f"{what}: the gradient is {grad.dtype}{grad.shape}"
            )
        direction = rng.normal(size=arrays[i].shape)

        def along(t, i=i, direction=direction):
            results = reference(variant, moved(arrays, i, direction, t))
            return dot([results[k] for k in weights], weights.values())

        numeric = derivative(along)
        part = np.zeros(1) if grad is None else grad.numpy() * direction
        compare(what, float(part.sum()), numeric, [part])


@each_case
def test_gradient(name, index, rng):
    """The gradient is the numeric derivative along a random direction, input by input."""
    steady(check_gradient, name, index, rng)


def check_second(name, index, rng):
    variant, arrays, floats, weights = prepared(name, index, rng)
    xs, dys, grads = recorded(variant, arrays, floats, weights)
    kept = [k for k, g in enumerate(grads) if g is not None]
    if not kept:
        return
    inner = {k: rng.normal(size=grads[k].shape) for k in kept}  # the weights of the gradients
    outer = gradients(
        [grads[k] for k in kept],
        [*xs, *dys],
        [mge.tensor(w, dtype=np.float64) for w in inner.values()],
    )
    values = [None if g is None else g.numpy() for g in outer]
    starts = [arrays[i] for i in floats] + list(weights.values())
    directions = [rng.normal(size=a.shape) for a in starts]

    def along(t):
        here = [a + t * v for a, v in zip(starts, directions, strict=True)]
        changed = list(arrays)
        for i, a in zip(floats, here, strict=False):
            changed[i] = a
        dys = dict(zip(weights, here[len(floats) :], strict=True))
        _, _, again = recorded(variant, changed, floats, dys)
        return dot([again[k].numpy() for k in kept], inner.values())

    numeric = derivative(along)
    parts = [v * d for v, d in zip(values, directions, strict=True) if v is not None]
    analytic = float(sum(p.sum() for p in parts))
    compare(f"{name}, second order, {variant.attrs}", analytic, numeric, parts)


@each_case
def test_second_order(name, index, rng):
    """The gradient's own gradient is its numeric derivative, in the inputs and in ``dy`` together."""
    steady(check_second, name, index, rng)
