"""``einsum``, ``dot`` and their kin, and the sums and products that go through BLAS, against NumPy."""

import itertools
import re

import numpy as np
import pytest

import mge
from mge.errors import ArgumentError, ShapeError
from mge.grad import gradients
from mge.op import OPS
from mge.ops.einsum import einsum
from mge.ops.linalg import dot
from mge.ops.statistics import cosine_similarity, normalize

SIZES = {"i": 3, "j": 4, "k": 2, "l": 5, "b": 2}
EQUATIONS = [
    "ij,jk->ik", "ij,jk", "ij,kj->ik", "ji,jk->ki", "bij,bjk->bik", "bihd,bjhd->bhij", "bhij,bjhd->bihd",
    "i,i", "i,j", "i,i->i", "ji", "ij->", "ij->j", "ii", "ii->i", "iij->j", "iijj->ij", "iii->i", "ij,ij->",
    "ij,jk,kl->il", "ijk,ilm,njm,nlk,abc->", "...ij,...jk->...ik", "...ij,jk->...ik", "i...->...",
    "i...,i...->...", "...,...", "a,b,c->cba", "ij,j->", "ab,ab,ab->ab", "ea,fb,abcd,gc,hd->efgh", "->", ",->",
]  # fmt: skip


def drawn(equation, rng):
    """Return float64 arrays for an equation; the axes of ``...`` have sizes 3 and 2, or 2 alone after the first."""
    arrays = []
    for term in equation.split("->")[0].split(","):
        dots = (3, 2) if not arrays else (2,)
        parts = re.findall(r"\.\.\.|[a-z]", term)
        shape = [n for p in parts for n in (dots if p == "..." else (SIZES.get(p, 2),))]
        arrays.append(rng.normal(size=shape))
    return arrays


def doubles(arrays):
    return [mge.tensor(a, dtype="float64") for a in arrays]


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum_is_numpys(equation, rng):
    arrays = drawn(equation, rng)
    wanted = np.einsum(equation, *arrays)
    given = einsum(equation, *doubles(arrays))
    assert given.shape == wanted.shape
    np.testing.assert_allclose(given.numpy(), wanted, atol=1e-12)


@pytest.mark.parametrize(
    "equation", ["ij,jk->ik", "iij->j", "...ij,jk->...ik", "ij,jk,kl->il", "i,j"]
)
def test_einsum_gradient(equation, rng):
    arrays = drawn(equation, rng)
    directions = [rng.normal(size=a.shape) for a in arrays]
    inputs = doubles(arrays)
    y = einsum(equation, *inputs)
    weight = rng.normal(size=y.shape)
    found = gradients([y], inputs, [mge.tensor(weight, dtype="float64")])
    analytic = sum(float((g.numpy() * d).sum()) for g, d in zip(found, directions, strict=True))
    # An equation is linear in each tensor, so the product rule is exact.
    numeric = sum(
        (weight * np.einsum(equation, *arrays[:i], d, *arrays[i + 1 :])).sum()
        for i, d in enumerate(directions)
    )
    np.testing.assert_allclose(analytic, numeric, rtol=1e-10, atol=1e-10)


def test_einsum_broadcasts_axes_of_size_1(rng):
    one, other = rng.normal(size=(1, 4)), rng.normal(size=(3, 4))
    for equation in ["ij,ij->i", "ij,ij->j", "ij,ij->ij"]:
        given = einsum(equation, *doubles([one, other])).numpy()
        np.testing.assert_allclose(given, np.einsum(equation, one, other), atol=1e-12)


@pytest.mark.parametrize(
    ("equation", "error", "text"),
    [
        ("ij,jk", ArgumentError, "names 2 tensors; 1 were given"),
        ("i*->i", ArgumentError, "malformed"),
        ("i->i->i", ArgumentError, "malformed"),
        ("ij->ik", ArgumentError, "has the letter 'k'"),
        ("ij->ii", ArgumentError, "has the letter 'i'"),
        ("ijk->i", ShapeError, "has 3 letters"),
        ("i->i", ShapeError, "has 1 letters"),
        ("ii->i", ShapeError, "sizes 2 and 3"),
    ],
)
def test_einsum_refuses(equation, error, text):
    with pytest.raises(error, match=text):
        einsum(equation, mge.tensor(np.ones((2, 3))))


SHAPES = [
    (64, 512),
    (8, 16, 9, 9),
    (9999,),
    (3, 7001),
    (7001, 3),
    (500, 3, 4),
    (1, 8192, 1, 2),
    (99991,),
    (64, 1, 99, 1),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_large_sums(shape, rng):
    """Sums that go through BLAS agree with float64 along every set of axes."""
    x = rng.normal(size=shape).astype(np.float32)
    for count, keepdims in itertools.product(range(len(shape) + 1), (False, True)):
        for axis in itertools.combinations(range(len(shape)), count):
            out = np.empty(np.add.reduce(x, axis=axis, keepdims=keepdims).shape, np.float32)
            OPS["sum"]._reference(x, axis=axis, keepdims=keepdims, out=out)
            wanted, size = (
                np.add.reduce(a, axis=axis, keepdims=keepdims, dtype=float) for a in (x, np.abs(x))
            )
            assert (np.abs(out - wanted) <= 2e-6 * size).all(), (axis, keepdims)


def test_large_sums_keep_nan_and_infinity_in_their_place():
    x = np.zeros((100, 100), np.float32)
    x[3, 7], x[50, 8] = np.nan, np.inf
    found = mge.tensor(x)
    assert np.flatnonzero(~np.isfinite(OPS["sum"](found, axis=0).numpy())).tolist() == [7, 8]
    assert np.flatnonzero(~np.isfinite(OPS["sum"](found, axis=1).numpy())).tolist() == [3, 50]


def test_matmul_of_narrow_integers_is_exact(rng):
    for dtype in ("int8", "uint8", "int16"):
        info = np.iinfo(dtype)
        a, b = (
            rng.integers(info.min, info.max + 1, shape).astype(dtype)
            for shape in [(3, 300), (300, 5)]
        )
        given = OPS["matmul"](mge.tensor(a), mge.tensor(b))
        wanted = a.astype(np.int64) @ b.astype(np.int64)
        np.testing.assert_array_equal(given.numpy(), wanted.astype(given.dtype.dtype))


def test_compositions(rng):
    a, b = rng.normal(size=(2, 3, 4))
    x, y = doubles([a, b])
    np.testing.assert_allclose(dot(x[0], y[0]).numpy(), a[0] @ b[0])
    np.testing.assert_allclose(
        normalize(x, axis=1).numpy(), a / np.linalg.norm(a, axis=1, keepdims=True)
    )
    assert not normalize(mge.tensor(np.zeros((2, 2))), axis=1).numpy().any()
    wanted = (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    np.testing.assert_allclose(cosine_similarity(x, y).numpy(), wanted)
    with pytest.raises(ShapeError, match="both must be vectors"):
        dot(x, y)
