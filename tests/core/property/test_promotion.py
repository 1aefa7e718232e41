"""Promotion: one table, NumPy's for every pair that NumPy knows; numbers from Python are weak."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mge
from mge.dtype import DTYPES, bfloat16, float16, float32, float_of, promote, sum_of
from mge.op import OPS

ALL = list(DTYPES.values())
NUMPYS = [d for d in ALL if d is not bfloat16]
dtypes = st.sampled_from(ALL)


@pytest.mark.parametrize("one", NUMPYS, ids=str)
def test_pairs_are_numpys(one):
    for other in NUMPYS:
        assert promote(one, other) == np.result_type(one.dtype, other.dtype), other


def test_bfloat16_behaves_as_float16_does():
    for other in set(ALL) - {float16, bfloat16}:
        like = promote(float16, other)
        assert promote(bfloat16, other) is (bfloat16 if like is float16 else like), other
    assert promote(float16, bfloat16) is float32


@given(dtypes, dtypes)
def test_the_order_of_two_does_not_matter(one, other):
    assert promote(one, other) is promote(other, one)
    assert promote(one, one) is one
    assert promote(promote(one, other), other) is promote(one, other)


def test_grouping_matters_only_where_it_does_for_numpy():
    """NumPy's table is no lattice: (int8 + uint8) + float16 is float32, int8 + (uint8 + float16) is float16."""
    for a, b, c in itertools.product(ALL, repeat=3):
        if promote(promote(a, b), c) is not promote(a, promote(b, c)):
            a, b, c = (float16.dtype if d is bfloat16 else d.dtype for d in (a, b, c))
            left = np.promote_types(np.promote_types(a, b), c)
            right = np.promote_types(a, np.promote_types(b, c))
            # float16 and bfloat16 together meet at float32, which is what a grouping may skip.
            assert left != right or np.dtype(np.float16) in (a, b, c), (a, b, c)


@given(dtypes, st.sampled_from([bool, int, float]))
def test_a_number_changes_the_kind_and_not_the_width(dtype, kind):
    rank = {bool: 0, int: 1, float: 2}[kind]
    own = 2 if dtype.is_float else 1 if dtype.is_integer else 0
    wanted = dtype if own >= rank else mge.tensor(kind(1)).dtype
    assert promote(dtype, kind) is wanted
    assert promote(kind, dtype) is wanted


@given(dtypes)
def test_float_functions_and_sums(dtype):
    assert float_of(dtype) is (dtype if dtype.is_float else float32)
    total = sum_of(dtype)
    assert total.is_float == dtype.is_float
    assert total.itemsize >= (dtype.itemsize if dtype.is_float else max(dtype.itemsize, 4))
    assert total.is_signed == (dtype.is_signed or dtype.is_bool)


@pytest.mark.parametrize("name", ["add", "mul", "maximum"])
def test_tensors_promote_by_the_table(name):
    for one, other in itertools.product(ALL, repeat=2):
        result = OPS[name](mge.tensor([1, 0], dtype=one), mge.tensor([1, 1], dtype=other))
        assert result.dtype is promote(one, other), (one, other)


@given(dtypes, st.sampled_from([True, 2, 2.5]), st.booleans())
def test_tensors_and_numbers(dtype, number, number_first):
    x = mge.tensor([1, 0], dtype=dtype)
    result = number * x if number_first else x * number
    assert result.dtype is promote(dtype, type(number))
    wanted = np.array([1, 0], dtype.dtype).astype(result.dtype.dtype) * np.array(
        number, result.dtype.dtype
    )
    assert result.numpy().tobytes() == wanted.tobytes()


def test_defaults_of_new_tensors():
    assert str(mge.tensor(1.0).dtype) == str(mge.tensor(np.float64([1])).dtype) == "float32"
    assert str(mge.tensor(1).dtype) == str(mge.tensor(np.int64([1])).dtype) == "int32"
    assert str(mge.tensor(True).dtype) == "bool"
    for dtype in set(ALL) - {DTYPES["float64"], DTYPES["int64"]}:
        assert mge.tensor(np.zeros(2, dtype.dtype)).dtype is dtype
    for dtype in ALL:
        assert mge.tensor(np.zeros(2, dtype.dtype), dtype=dtype).dtype is dtype
