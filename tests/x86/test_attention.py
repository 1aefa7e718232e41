"""Attention on device x86 against the references: tails of tiles, masks, blocks of keys, and what passes make of it."""

import ml_dtypes
import numpy as np
import pytest

from .against import check

pytestmark = pytest.mark.usefixtures("x86")


def draw(rng, *shape, dtype=np.float32):
    return rng.normal(size=shape).astype(dtype)


def check_both(rng, query, key, value, *mask, size=1, **attrs):
    check("attention", (query, key, value, *mask), attrs)
    batch = np.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    dy = draw(rng, *batch, query.shape[-2], value.shape[-1], dtype=query.dtype) * query.dtype.type(
        size
    )
    check("attention_backward", (dy, query, key, value, *mask), attrs)


def matrices(rng, batch, queries, keys, width, depth, dtype=np.float32):
    return (
        draw(rng, *batch, *shape, dtype=dtype)
        for shape in ((queries, width), (keys, width), (keys, depth))
    )


@pytest.mark.parametrize("is_causal", [False, True])
def test_all_tails(rng, is_causal):
    for queries in (*range(1, 18), 29, 57, 130):
        keys, width, depth = (int(n) for n in rng.integers(1, 71, 3))
        check_both(rng, *matrices(rng, (2,), queries, keys, width, depth), is_causal=is_causal)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    ("batch", "queries", "keys", "width", "depth"),
    [
        ((1, 3), 196, 196, 64, 64), ((4, 2), 128, 128, 64, 64), ((1, 1), 300, 1100, 16, 24), ((2,), 7, 2500, 8, 8),
        ((1,), 140, 150, 300, 520), ((), 33, 65, 64, 1), ((0, 2), 5, 6, 7, 8), ((2,), 0, 6, 7, 8), ((2,), 5, 6, 0, 8),
        ((2,), 5, 6, 7, 0),
    ],
)  # fmt: skip
def test_blocks_parts_and_empty(rng, is_causal, batch, queries, keys, width, depth):
    check_both(rng, *matrices(rng, batch, queries, keys, width, depth), is_causal=is_causal)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    "shape", [(70, 90), (1, 90), (70, 1), (90,), (), (2, 1, 1, 90), (1, 3, 70, 90), (2, 3, 70, 1)]
)
def test_masks_repeat(rng, shape, is_causal):
    given = list(matrices(rng, (2, 3), 70, 90, 20, 30))
    check_both(rng, *given, rng.random(shape) < 0.5, is_causal=is_causal)
    check_both(rng, *given, draw(rng, *shape), is_causal=is_causal)


def test_long_rows_with_blocks_that_a_mask_hides(rng):
    given = list(matrices(rng, (2,), 20, 1500, 16, 16))
    seen = np.zeros((20, 1500), bool)
    seen[np.arange(19), rng.integers(0, 1500, 19)] = True  # the last query sees nothing
    check_both(rng, *given, seen)
    check_both(rng, *given, np.where(seen, np.float32(0), np.float32(-3.4028235e38)))
    check_both(
        rng,
        *given,
        np.where(seen | (np.arange(1500) > 1400), np.float32(0), -np.inf).astype(np.float32),
    )


def test_batches_broadcast(rng):
    check_both(rng, draw(rng, 2, 1, 5, 8), draw(rng, 1, 3, 6, 8), draw(rng, 6, 4))
    check_both(rng, draw(rng, 5, 8), draw(rng, 2, 3, 6, 8), draw(rng, 2, 1, 6, 4), scale=0.3)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_halves(rng, dtype):
    check_both(rng, *matrices(rng, (2, 2), 20, 30, 16, 16, dtype))
    check_both(rng, *matrices(rng, (2, 2), 20, 30, 16, 16, dtype), draw(rng, 20, 30, dtype=dtype))


def test_large_scores(rng):
    query, key = (
        rng.integers(-30, 31, (2, n, 16)).astype(np.float32) for n in (20, 30)
    )  # products are exact
    for scale in (1.0, -1.0, 0.0078125):
        check_both(rng, query, key, draw(rng, 2, 30, 16), scale=scale, size=0.03)


@pytest.mark.parametrize("is_causal", [False, True])
def test_tokens_before_heads(rng, is_causal):
    for n, queries, keys, heads, width, depth in [
        (2, 37, 51, 3, 16, 8),
        (1, 60, 60, 1, 64, 64),
        (3, 1, 20, 4, 5, 6),
        (1, 200, 200, 2, 16, 16),  # heads are cut into parts
    ]:
        given = [
            draw(rng, n, t, heads, d) for t, d in ((queries, width), (keys, width), (keys, depth))
        ]
        dy, mask = draw(rng, n, queries, heads, depth), draw(rng, n, 1, queries, keys)
        for more in ((), (mask,)):
            check("x86::attention", (*given, *more), {"is_causal": is_causal})
            check("x86::attention_backward", (dy, *given, *more), {"is_causal": is_causal})


PROGRAM = """
import hashlib, mge, numpy as np, mge.functional as F
from mge.autodiff import GradManager
mge.set_default_device('x86:0')
digest, rng = hashlib.sha256(), np.random.default_rng(0)
for shape, causal in (((2, 3, 196, 64), False), ((1, 1, 700, 20), True), ((5, 4, 33, 16), False)):
    q, k, v = (mge.tensor(rng.normal(size=shape).astype('float32')) for _ in range(3))
    manager = GradManager().attach([q, k, v])
    with manager:
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        manager.backward(y, y * y)
    for found in (y, q.grad, k.grad, v.grad):
        digest.update(found.numpy().tobytes())
print(digest.hexdigest())
"""


def test_equal_bits_for_every_number_of_threads(x86, run_python):
    assert len({run_python("-c", PROGRAM, MGE_THREADS=str(n)) for n in (1, 2, 4)}) == 1


def test_each_level_of_the_instruction_set(on_level):
    chosen = "all_tails or parts or masks_repeat or tokens_before"
    on_level("-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", chosen)
