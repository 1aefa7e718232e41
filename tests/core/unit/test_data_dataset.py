"""Data sets: arrays, joined ones, streams."""

import numpy as np
import pytest

from mge.data import ArrayDataset, ConcatDataset, Dataset, StreamDataset
from mge.errors import ArgumentError, ShapeError
from tests.core.unit.test_data_support import Count, Numbers


def test_array_dataset_takes_one_entry_of_each_array():
    dataset = ArrayDataset(np.eye(3), [7, 8, 9])
    image, label = dataset[1]
    assert len(dataset) == 3 and label == 8
    assert np.array_equal(image, [0, 1, 0])


def test_array_dataset_refuses_other_lengths():
    with pytest.raises(ShapeError, match=r"lengths \[3, 2\]; they must be equal"):
        ArrayDataset(np.zeros(3), np.zeros(2))
    with pytest.raises(ArgumentError, match="at least one"):
        ArrayDataset()


def test_concat_dataset_counts_on():
    joined = ConcatDataset([Numbers(2), Numbers(0), Numbers(3)])
    assert [joined[i] for i in range(len(joined))] == [0, 1, 0, 1, 2]
    assert joined[-1] == 2 and joined[-5] == 0
    for index in (5, -6):
        with pytest.raises(IndexError, match=f"index {index} is outside of 5 samples"):
            joined[index]


def test_concat_dataset_refuses_streams():
    with pytest.raises(ArgumentError, match=r"datasets\[1\] is a stream \(Count\)"):
        ConcatDataset([Numbers(), Count()])
    with pytest.raises(ArgumentError, match="at least one"):
        ConcatDataset([])


def test_a_stream_has_no_indices_and_no_length():
    stream = Count(3)
    assert list(stream) == [0, 1, 2]
    with pytest.raises(TypeError, match="no samples by index"):
        stream[0]
    with pytest.raises(TypeError, match="no length"):
        len(stream)


def test_abstract_data_sets_have_no_objects():
    for kind in (Dataset, StreamDataset):
        with pytest.raises(TypeError, match="abstract"):
            kind()
