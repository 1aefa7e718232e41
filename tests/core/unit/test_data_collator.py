"""The collator: what a batch of each kind of sample is."""

import collections

import numpy as np
import pytest

from mge.data import Collator
from mge.errors import ArgumentError, DTypeError, ShapeError

Pair = collections.namedtuple("Pair", "x y")
collate = Collator().apply


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "float64", "bool", "complex64"])
def test_arrays_and_scalars_keep_their_dtype(dtype):
    batch = collate([np.ones((2, 3), dtype).T] * 4)
    assert batch.shape == (4, 3, 2) and batch.dtype == dtype and batch.flags.c_contiguous
    batch = collate([np.ones(2, dtype)[0]] * 4)
    assert batch.shape == (4,) and batch.dtype == dtype


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1.5, 2], "float32"),
        ([1, 2.5], "float32"),
        ([1, -2], "int32"),
        ([True, False], "bool"),
        ([True, 2], "int32"),
    ],
)
def test_python_numbers_get_the_defaults_of_mge(values, dtype):
    batch = collate(values)
    assert batch.dtype == dtype and batch.tolist() == values


def test_an_int_outside_of_int32_is_refused():
    assert collate([2**31 - 1, -(2**31)]).tolist() == [2**31 - 1, -(2**31)]
    with pytest.raises(
        ArgumentError, match=r"sample\[1\] 1 is 2147483648.*int32(.|\n)*numpy\.int64"
    ):
        collate([(0, 1), (0, 2**31)])


def test_structures_are_kept():
    samples = [
        {"a": (np.zeros(2), "x"), "b": [1, b"y"], "c": Pair(1.0, np.float64(2))},
        {"b": [2, b"z"], "a": (np.ones(2), "w"), "c": Pair(3.0, np.float64(4))},
    ]
    batch = collate(samples)
    assert list(batch) == ["a", "b", "c"]
    array, words = batch["a"]
    assert isinstance(batch["a"], tuple) and array.shape == (2, 2) and words == ["x", "w"]
    assert isinstance(batch["b"], list) and batch["b"][0].tolist() == [1, 2]
    assert batch["b"][1] == [b"y", b"z"]
    assert isinstance(batch["c"], Pair) and batch["c"].x.dtype == np.float32
    assert batch["c"].y.dtype == np.float64
    assert collate([(), ()]) == ()


def test_shapes_must_agree():
    with pytest.raises(
        ShapeError,
        match=r"sample\[0\] 2 has shape \(3,\) and sample\[0\] 0 has \(2,\)(.|\n)*crop or pad",
    ):
        collate([(np.zeros(2),), (np.zeros(2),), (np.zeros(3),)])
    with pytest.raises(ShapeError, match="sample 1 has 1 entries and sample 0 has 2 entries"):
        collate([(1, 2), (1,)])
    with pytest.raises(ShapeError, match="sample 1 has int and"):
        collate([(1, 2), 1])


def test_other_types_are_refused():
    with pytest.raises(DTypeError, match="sample 0 is a object"):
        collate([object()])
    with pytest.raises(DTypeError, match=r"sample\['k'\] 0 is a NoneType"):
        collate([{"k": None}])
    with pytest.raises(DTypeError, match="Python objects"):
        collate([np.array([None])])
    with pytest.raises(DTypeError, match="sample 1 is a str and sample 0 is a int"):
        collate([1, "a"])
    with pytest.raises(ArgumentError, match=r"sample 1 has keys \['b'\]; sample 0 has \['a'\]"):
        collate([{"a": 1}, {"b": 1}])
    with pytest.raises(ArgumentError, match="at least one"):
        collate([])
