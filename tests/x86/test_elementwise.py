"""Elementwise ops and copies on device x86: shapes of all kinds, special values, sizes that use several threads."""

import ml_dtypes
import numpy as np
import pytest

from mge.op import OPS

from .against import check

pytestmark = pytest.mark.usefixtures("x86")

SIZES = (1, 2, 3, 5, 16, 17, 33, 100, 1025)
FLOATS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
MATH = """exp expm1 log log1p tanh erf sin cos tan sigmoid silu softplus logsigmoid mish gelu elu hswish hsigmoid relu
    relu6 softsign sqrt rsqrt abs sign floor ceil round neg square isnan isinf isfinite logical_not""".split()
PAIRS = "add sub mul div maximum minimum pow atan2 less equal logical_and logaddexp".split()
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    np.inf,
    -np.inf,
    np.nan,
    1e-40,
    -1e-40,
    3e38,
    -3e38,
    88.5,
    -88.5,
    0.5,
    1e-8,
    2.5,
]


def shapes(rng, count):
    """An output's shape, and shapes that broadcast to it together."""
    full = rng.choice(SIZES, rng.integers(0, 5))
    while full.size and np.prod(full) > 300_000:
        full[rng.integers(full.size)] = 1
    if full.size and rng.random() < 0.05:
        full[rng.integers(full.size)] = 0
    made = []
    for _ in range(count):
        shape = np.where(rng.random(full.size) < 0.35, 1, full)
        made.append(
            tuple(int(n) for n in shape[rng.integers(0, full.size + 1) * (rng.random() < 0.3) :])
        )
    return made


def test_any_shapes_broadcast(rng):
    for _ in range(150):
        x, y = (rng.normal(size=s).astype(np.float32) for s in shapes(rng, 2))
        check(rng.choice(["add", "sub", "mul", "maximum"]), (x, y))


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int8, np.int64, np.bool_])
def test_any_shapes_broadcast_in_other_dtypes(rng, dtype):
    for _ in range(25):
        x, y = (rng.integers(0, 2, s).astype(dtype) for s in shapes(rng, 2))
        check(rng.choice(["add", "mul", "less"]), (x, y))


def test_rows_that_just_do_not_fill_a_buffer(rng):
    for rows, columns in [(1025, 100), (16, 272), (2048, 341)]:
        x, y = rng.integers(0, 99, (rows, 1)), rng.integers(0, 99, columns)
        check("add", (x, y))


def test_where_broadcasts_three_inputs(rng):
    for dtype in (np.float32, np.float64, np.float16, np.int8):
        for _ in range(20):
            mask, x, y = shapes(rng, 3)
            check(
                "where",
                (
                    rng.random(mask) < 0.5,
                    rng.normal(size=x).astype(dtype),
                    rng.normal(size=y).astype(dtype),
                ),
            )


def test_large_tensors_use_all_threads(rng):
    for x, y in [
        ((1_000_003,), (1_000_003,)),
        ((1000, 1100), (1100,)),
        ((1000, 1100), (1000, 1)),
        ((64, 3, 77, 77), (3, 1, 1)),
    ]:
        check("add", (rng.normal(size=x).astype(np.float32), rng.normal(size=y).astype(np.float32)))
    check("tanh", (rng.normal(size=(500, 1001)).astype(np.float32),))


@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values(dtype):
    with np.errstate(all="ignore"):
        values = np.array(SPECIAL).astype(dtype)
    for name in MATH:
        check(name, (values,))
    for name in PAIRS:
        check(name, (values[:, None], values[None, :]))


@pytest.mark.parametrize(
    "dtype", [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
)
def test_integers_at_their_limits(dtype):
    info = np.iinfo(dtype)
    values = np.array([info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 7], dtype)
    values = np.concatenate([values, -values]) if info.min else values
    names = [
        "add",
        "sub",
        "mul",
        "floor_div",
        "mod",
        "maximum",
        "less",
        "bitwise_xor",
        "left_shift",
        "right_shift",
    ]
    with np.errstate(all="ignore"):
        for name in names:
            check(name, (values[:, None], values[None, :]))
        for name in ["neg", "abs", "sign", "square", "bitwise_not", "relu6"]:
            check(name, (values,))


def test_casts_between_all_dtypes(rng):
    from mge.dtype import DTYPES

    for source in DTYPES.values():
        x = (
            rng.integers(-100, 100, 1111)
            .astype(np.float32)
            .clip(-100 * source.is_signed, 100)
            .astype(source.dtype)
        )
        for target in DTYPES.values():
            check("cast", (x,), {"dtype": target})


def test_transposes(rng):
    for _ in range(120):
        shape = shapes(rng, 1)[0]
        dtype = rng.choice(["float32", "float64", "int8", "float16"])
        check(
            "transpose",
            (rng.integers(0, 100, shape).astype(dtype),),
            {"pattern": tuple(map(int, rng.permutation(len(shape))))},
        )


def test_layouts_of_images(rng):
    for shape in [(2, 3, 17, 19), (1, 64, 56, 56), (3, 70, 7, 7), (2, 1, 5, 5), (0, 3, 4, 4)]:
        x = rng.normal(size=shape).astype(np.float32)
        check("transpose", (x,), {"pattern": (0, 2, 3, 1)})
        check("transpose", (x,), {"pattern": (0, 3, 1, 2)})


def test_slices_and_their_inverse(rng):
    for _ in range(120):
        shape = shapes(rng, 1)[0]
        cut = {"starts": [], "stops": [], "steps": []}
        for n in shape:
            start, stop = sorted(map(int, rng.integers(0, n + 1, 2)))
            step = int(rng.integers(1, 4))
            if rng.random() < 0.4 and stop > start:
                start, stop, step = stop - 1, start - 1, -step
            for name, value in zip(cut, (start, stop, step)):
                cut[name].append(value)
        cut = {name: tuple(values) for name, values in cut.items()}
        x = rng.normal(size=shape).astype(rng.choice(["float32", "float16", "float64"]))
        check("slice", (x,), cut)
        part = OPS["slice"]._reference(x, **cut)
        check("slice_set", (x, rng.normal(size=part.shape).astype(x.dtype)), cut)


def test_joins_and_repetitions(rng):
    for _ in range(60):
        full = shapes(rng, 1)[0]
        check(
            "broadcast_to",
            (rng.normal(size=[1 if rng.random() < 0.4 else n for n in full]).astype(np.float32),),
            {"shape": full},
        )
        if full:
            axis = int(rng.integers(len(full)))
            parts = [
                [int(rng.integers(0, 5)) if i == axis else n for i, n in enumerate(full)]
                for _ in range(3)
            ]
            check(
                "concat",
                [rng.normal(size=p).astype(np.float32) for p in parts],
                {"axis": axis - len(full) * int(rng.integers(2))},
            )
            check("iota", (), {"shape": full, "axis": axis})


def test_bits_do_not_depend_on_the_number_of_threads(x86, run_python):
    program = (
        "import mge, mge.functional as F, numpy as np, hashlib\n"
        "x = mge.tensor(np.random.default_rng(0).normal(size=(700, 900)).astype('float32'), device='x86:0')\n"
        "y = F.tanh(x) * F.exp(x) + F.transpose(F.sigmoid(F.transpose(x, (1, 0))), (1, 0))\n"
        "print(hashlib.sha256(y.numpy().tobytes()).hexdigest())"
    )
    digests = {run_python("-c", program, MGE_THREADS=str(n)) for n in (1, 2, 4)}
    assert len(digests) == 1
