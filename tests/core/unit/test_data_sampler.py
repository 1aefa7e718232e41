"""Samplers: each sample once, equal shares of ranks, the length that they state."""

import collections
import itertools
import sys
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mge.data import (
    Infinite,
    MapSampler,
    RandomSampler,
    ReplacementSampler,
    Sampler,
    SequentialSampler,
    StreamSampler,
)
from mge.errors import ArgumentError, DTypeError, ShapeError

SIZES = {"count": st.integers(0, 40), "batch": st.integers(1, 9), "world": st.integers(1, 5)}


@given(**SIZES, drop=st.booleans(), kind=st.sampled_from([SequentialSampler, RandomSampler]))
def test_ranks_share_all_samples_evenly(count, batch, world, drop, kind):
    share = -(-count // world)
    if drop and share < batch:
        with pytest.raises(ArgumentError, match="no batch at all"):
            kind(range(count), batch, drop, world_size=world, rank=0)
        return
    ranks = [kind(range(count), batch, drop, world_size=world, rank=r) for r in range(world)]
    batches = [list(sampler) for sampler in ranks]
    for sampler, own in zip(ranks, batches):
        assert len(own) == len(sampler) == (share // batch if drop else -(-share // batch))
        assert all(len(b) == batch for b in own[:-1])
        assert sum(map(len, own)) == (share // batch * batch if drop else share)
    if not drop:
        counts = collections.Counter(i for own in batches for b in own for i in b)
        assert set(counts) == set(range(count))
        # Padding repeats the first samples of the epoch, as evenly as it can.
        assert sum(counts.values()) == share * world
        assert not counts or max(counts.values()) - min(counts.values()) <= 1


@given(**SIZES, seed=st.integers(0, 2**32 - 1))
def test_random_sampler_repeats_with_its_seed_and_changes_each_epoch(count, batch, world, seed):
    first = RandomSampler(range(count), batch, seed=seed)
    again = RandomSampler(range(count), batch, seed=seed)
    assert list(first) == list(again)
    assert list(first) == list(again)
    assert sorted(itertools.chain(*first)) == list(range(count))


def test_random_sampler_draws_a_new_order_each_epoch():
    sampler = RandomSampler(range(50), 50, seed=3)
    assert list(sampler) != list(sampler)


def test_sequential_sampler_pads_with_the_first_samples():
    got = [list(SequentialSampler(range(5), 2, world_size=3, rank=r)) for r in range(3)]
    assert got == [[[0, 3]], [[1, 4]], [[2, 0]]]
    small = [list(SequentialSampler(range(1), 2, world_size=3, rank=r)) for r in range(3)]
    assert small == [[[0]], [[0]], [[0]]]


@pytest.mark.parametrize("indices", [[4, 2, 9], (4, 2, 9), np.array([4, 2, 9])])
def test_indices_replace_the_whole(indices):
    assert list(SequentialSampler(range(10), 2, indices=indices)) == [[4, 2], [9]]
    sampler = RandomSampler(range(10), 2, indices=indices, seed=0)
    assert len(sampler) == 2
    assert sorted(itertools.chain(*sampler)) == [2, 4, 9]


def test_indices_may_be_keys():
    got = RandomSampler({"a": 1, "b": 2}, 2, indices=["a", "b"], seed=0)
    assert sorted(next(iter(got))) == ["a", "b"]


@given(count=st.integers(1, 30), total=st.integers(1, 60), world=st.integers(1, 4))
def test_replacement_sampler_draws_what_has_weight(count, total, world):
    weights = np.arange(count) % 2 + (count == 1)
    samplers = [
        ReplacementSampler(range(count), 7, False, total, weights.tolist(), world, rank, seed=1)
        for rank in range(world)
    ]
    for sampler in samplers:
        drawn = list(itertools.chain(*sampler))
        assert len(drawn) == -(-total // world)
        assert all(weights[i] > 0 for i in drawn)


def test_replacement_sampler_follows_its_weights():
    sampler = ReplacementSampler(range(2), 4000, num_samples=4000, weights=[1, 3], seed=0)
    assert abs(np.mean(next(iter(sampler))) - 0.75) < 0.03  # 4.4 standard deviations
    assert len(list(ReplacementSampler(range(3), 2, seed=0))) == 2


def test_replacement_sampler_checks_weights():
    with pytest.raises(ShapeError, match=r"weights has shape \(2,\); 3 samples need \(3,\)"):
        ReplacementSampler(range(3), weights=[1, 2])
    for weights in ([0, 0, 0], [1, -1, 1], [1, np.nan, 1]):
        with pytest.raises(ArgumentError, match="finite and at least 0"):
            ReplacementSampler(range(3), weights=weights)


def test_infinite_starts_again_and_passes_attributes_on():
    endless = Infinite(SequentialSampler(range(3), 2))
    assert list(itertools.islice(endless, 4)) == [[0, 1], [2], [0, 1], [2]]
    assert endless.batch_size == 2 and len(endless) == sys.maxsize
    with pytest.raises(AttributeError, match="nothing"):
        _ = endless.nothing
    with pytest.raises(ArgumentError, match="yields no batch"):
        next(Infinite(SequentialSampler([])))
    with pytest.raises(DTypeError, match="must be a Sampler"):
        Infinite([1])


def test_stream_sampler_counts_without_end():
    assert list(itertools.islice(StreamSampler(2), 2)) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3"])
def test_batch_size_is_checked(value):
    with pytest.raises(ArgumentError, match=r"batch_size is .*at least 1"):
        SequentialSampler(range(3), value)
    with pytest.raises(ArgumentError, match="batch_size"):
        StreamSampler(value)


def test_other_arguments_are_checked():
    with pytest.raises(DTypeError, match="drop_last is 1"):
        SequentialSampler(range(3), drop_last=1)
    with pytest.raises(ArgumentError, match="rank is 2 and world_size is 2"):
        SequentialSampler(range(3), world_size=2, rank=2)
    with pytest.raises(ArgumentError, match="num_samples is 0"):
        ReplacementSampler(range(3), num_samples=0)
    with pytest.raises(ArgumentError, match="indices is empty"):
        SequentialSampler(range(3), indices=[])
    with pytest.raises(DTypeError, match="indices is a int"):
        RandomSampler(range(3), indices=4)


def test_own_samplers():
    class Backwards(MapSampler):
        def sample(self):
            return range(len(self.dataset) - 1, -1, -1)

    assert list(Backwards(range(3), 2)) == [[2, 1], [0]]
    with pytest.raises(NotImplementedError, match=r"does not define sample\(\)"):
        list(MapSampler(range(3)))
    with pytest.raises(TypeError, match="abstract"):
        Sampler()


def test_ranks_come_from_distributed_when_it_is_in_use(monkeypatch):
    place = types.SimpleNamespace(
        is_distributed=lambda: True, get_world_size=lambda: 2, get_rank=lambda: 1
    )
    monkeypatch.setitem(sys.modules, "mge.distributed", place)
    assert list(SequentialSampler(range(4), 2)) == [[1, 3]]
