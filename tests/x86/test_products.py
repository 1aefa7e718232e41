"""Matrix products on device x86 against the references: tails of tiles, batches, transposes, parts of long sums."""

import ml_dtypes
import numpy as np
import pytest

from mge.op import OPS

from .against import check

pytestmark = pytest.mark.usefixtures("x86")

ACTIVATIONS = ("", "relu", "relu6", "sigmoid", "tanh", "silu", "hswish", "hsigmoid", "gelu")


def draw(rng, *shape, terms=1, dtype=np.float32):
    """Normal values, so small that the rounding of a sum of so many products stays within the tolerance."""
    return (rng.normal(size=shape) / max(1, terms) ** 0.5).astype(dtype)


def matrices(rng, m, n, k, turned_a, turned_b, dtype=np.float32):
    a = draw(rng, *((k, m) if turned_a else (m, k)), terms=k, dtype=dtype)
    b = draw(rng, *((n, k) if turned_b else (k, n)), terms=k, dtype=dtype)
    return (a, b), {"transpose_a": turned_a, "transpose_b": turned_b}


def test_all_tails_of_tiles(rng):
    for m in (*range(1, 18), 29, 57):
        n, k = int(rng.integers(1, 71)), int(rng.integers(1, 71))
        check("matmul", *matrices(rng, m, n, k, rng.random() < 0.5, rng.random() < 0.5))


@pytest.mark.parametrize("turned_a", [False, True])
@pytest.mark.parametrize("turned_b", [False, True])
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(300, 300, 300), (33, 290, 1025), (256, 320, 256), (1, 700, 900), (700, 1, 900), (2, 3, 4000),
     (196, 301, 192), (200, 40, 700)],
)  # fmt: skip
def test_blocks_and_long_sums(rng, m, n, k, turned_a, turned_b):
    check("matmul", *matrices(rng, m, n, k, turned_a, turned_b))


def test_a_step_of_a_power_of_two(rng):  # rows are copied, columns too
    for m, n, k in [(40, 100, 1024), (1024, 100, 40), (256, 256, 256)]:
        check("matmul", *matrices(rng, m, n, k, False, False))
        check("matmul", *matrices(rng, m, n, k, True, False))


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_other_floats(rng, dtype):
    for m, n, k in [(5, 19, 33), (1, 40, 70), (64, 17, 3)]:
        check("matmul", *matrices(rng, m, n, k, rng.random() < 0.5, rng.random() < 0.5, dtype))


@pytest.mark.parametrize(
    "dtype",
    [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64, bool],
)
def test_integers_wrap(rng, dtype):
    for m, n, k in [(5, 19, 33), (1, 40, 70), (9, 8, 0)]:
        low, high = (0, 2) if dtype is bool else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        a, b = (rng.integers(low, high, size, np.int64 if dtype is bool else dtype, endpoint=dtype is not bool)
                for size in ((m, k), (k, n)))  # fmt: skip
        check("matmul", (a.astype(dtype), b.astype(dtype)))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((4, 3, 5), (5, 6)), ((5,), (5,)), ((3, 5), (5,)), ((5,), (5, 3)), ((2, 1, 3, 5), (4, 5, 6)),
        ((4, 3, 5), (5,)), ((5,), (4, 5, 3)), ((3, 5), (2, 4, 5, 6)), ((0, 5), (5, 3)), ((3, 0), (0, 4)),
        ((0, 3, 5), (0, 5, 2)), ((3, 0), (0,)), ((8, 200, 64), (8, 64, 200)), ((2, 3, 1, 7), (1, 3, 7, 5)),
    ],
)  # fmt: skip
def test_batches_and_vectors(rng, a, b):
    check("matmul", (draw(rng, *a, terms=a[-1]), draw(rng, *b, terms=a[-1])))


def test_nan_and_infinity_meet_only_their_rows(rng):
    a, b = draw(rng, 20, 30), draw(rng, 30, 40)
    a[3, 4], a[7, 8], b[:, 5] = np.nan, np.inf, 0
    check("matmul", (a, b))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_packed_products_with_what_comes_before_the_store(rng, activation):
    for lead, k, n in [
        ((1,), 70, 50),
        ((3, 5), 33, 32),
        ((40,), 600, 70),
        ((2,), 1100, 300),
        ((200,), 64, 128),
        ((7,), 0, 5),
    ]:
        b = draw(rng, k, n, terms=k)
        packed = OPS["x86::pack_matrix"]._reference(b, transpose=False)
        check("x86::pack_matrix", (b,))
        check("x86::pack_matrix", (np.ascontiguousarray(b.T),), {"transpose": True})
        for bias, residual in [(False, False), (True, False), (False, True), (True, True)]:
            extras = [draw(rng, n)] * bias + [draw(rng, *lead, n)] * residual
            attrs = {"columns": n, "bias": bias, "residual": residual, "activation": activation}
            check("x86::linear", (draw(rng, *lead, k, terms=k), packed, *extras), attrs)


def test_linear_layers(rng):
    for shape, n in [((5, 33), 17), ((1, 300), 90), ((2, 3, 40), 64), ((0, 4), 3), ((300,), 70)]:
        k = shape[-1]
        x, weight, bias = draw(rng, *shape, terms=k), draw(rng, n, k, terms=k), draw(rng, n)
        check("linear", (x, weight))
        check("linear", (x, weight, bias))
