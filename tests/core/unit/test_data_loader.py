"""The loader: batches, their order and their random numbers, for any number of workers."""

# ruff: noqa: NPY002 (the global generator is part of what is tested)

import itertools
import multiprocessing
import os
import pathlib
import time

import numpy as np
import pytest

from mge.data import (
    ArrayDataset,
    Collator,
    DataLoader,
    Infinite,
    RandomSampler,
    SequentialSampler,
    StreamSampler,
    current_rng,
    transform,
)
from mge.errors import ArgumentError, DTypeError
from tests.core.unit.test_data_support import (
    Count,
    Draws,
    Endless,
    Facts,
    FullMemory,
    Growing,
    Numbers,
    Rows,
    Writing,
)

MODES = [(0, False), (0, True), (1, False), (2, False), (2, True)]


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    assert multiprocessing.active_children() == []
    folder = pathlib.Path("/dev/shm")
    assert [p for p in folder.glob(f"mge{os.getpid():x}*") if folder.exists()] == []


def lists(loader):
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize(("workers", "preload"), MODES)
def test_batches_are_whole_and_in_order(workers, preload):
    dataset = Rows(11)
    loader = DataLoader(
        dataset, SequentialSampler(dataset, 3), num_workers=workers, preload=preload
    )
    batches = list(loader)
    assert len(batches) == len(loader) == 4
    assert [labels.tolist() for _, labels in batches] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10]]
    for rows, labels in batches:
        assert rows.dtype == np.float32 and labels.dtype == np.int32
        assert (rows == labels[:, None]).all() and rows.shape[1] == 3000
        rows += 1  # the caller owns it
    assert len(list(loader)) == 4


def test_order_does_not_depend_on_who_is_first():
    dataset = Numbers(8, slow={0: 0.3, 3: 0.1})
    assert lists(DataLoader(dataset, num_workers=3)) == [[i] for i in range(8)]


@pytest.mark.parametrize(("workers", "preload"), MODES)
def test_random_numbers_do_not_depend_on_workers(workers, preload):
    def run(*arguments):
        np.random.seed(5)
        dataset = Numbers(7)
        loader = DataLoader(dataset, RandomSampler(dataset, 2, seed=1), Draws(), None, *arguments)
        return [np.concatenate(list(loader)) for _ in range(2)]

    expected = run()
    got = run(workers, 0, preload)
    assert np.array_equal(expected, got)
    assert len(np.unique(expected)) == 14  # no two samples, and no two passes, draw the same


def test_a_seed_fixes_each_pass():
    def run(seed, workers):
        loader = DataLoader(Numbers(4), transform=Draws(), num_workers=workers, seed=seed)
        return np.concatenate([np.concatenate(list(loader)), np.concatenate(list(loader))])

    assert np.array_equal(run(3, 0), run(3, 2))
    assert len(np.unique([run(3, 0), run(4, 0)])) == 16


def test_workers_seed_the_global_generators():
    def run(workers):
        loader = DataLoader(Numbers(4), transform=Draws(True), num_workers=workers, seed=9)
        return np.concatenate(list(loader))

    assert np.array_equal(run(1), run(2))
    assert len(np.unique(run(1))) == 12


def test_this_process_keeps_its_global_generator():
    loader = DataLoader(Numbers(4), transform=Draws(), seed=9)
    np.random.seed(0)
    expected = np.random.random(3)
    np.random.seed(0)
    list(loader)
    assert np.array_equal(np.random.random(3), expected)


def test_outside_of_a_loader_the_global_generator_is_used():
    np.random.seed(0)
    first = current_rng().random(), np.random.random()
    np.random.seed(0)
    assert (current_rng().random(), np.random.random()) == first


def test_workers_run_ahead_and_no_further():
    drawn = []

    class Watched(SequentialSampler):
        def sample(self):
            for index in super().sample():
                drawn.append(index)
                yield index

        def batch(self):
            for index in self.sample():
                yield [index]

    dataset = Rows(100)
    batches = iter(DataLoader(dataset, Watched(dataset), num_workers=2))
    for taken in range(1, 6):
        next(batches)
        assert len(drawn) <= taken + 4
    batches.close()


def test_a_broken_off_loop_ends_the_workers():
    loader = DataLoader(Endless(), StreamSampler(2), num_workers=2, preload=True)
    for batch in loader:
        assert batch[1, 0] == 1
        break
    del batch
    for preload in (False, True):
        batches = iter(DataLoader(Rows(50), num_workers=2, preload=preload))
        next(batches)
        assert len(multiprocessing.active_children()) == 2
        start = time.monotonic()
        del batches
        assert multiprocessing.active_children() == []
        assert time.monotonic() - start < 1.5


def test_a_failing_consumer_ends_the_workers():
    def consume():
        for rows, _ in DataLoader(Rows(50), num_workers=1):
            rows[0] = 1 // 0

    with pytest.raises(ZeroDivisionError):
        consume()


def test_a_closed_iterator_has_ended():
    for preload in (False, True):
        for workers in (0, 1):
            batches = iter(DataLoader(Numbers(5), num_workers=workers, preload=preload))
            next(batches)
            batches.close()
            batches.close()
            assert list(batches) == []


def test_two_passes_at_a_time():
    loader = DataLoader(Numbers(4), num_workers=1)
    assert [(a.item(), b.item()) for a, b in zip(loader, loader)] == [(i, i) for i in range(4)]


def test_segments_grow_with_the_batches():
    for number, batch in enumerate(DataLoader(Growing(9), num_workers=2)):
        assert batch.shape == (1, 2000 * (number + 1)) and (batch == number).all()


def test_a_full_shared_memory_falls_back_to_the_pipe():
    loader = DataLoader(FullMemory(6), num_workers=2)
    with pytest.warns(RuntimeWarning, match="no room for a batch.*--shm-size"):
        batches = list(loader)
    assert all((rows == i).all() for i, (rows, _) in enumerate(batches)) and len(batches) == 6


def test_what_workers_are():
    pids, threads, idx, count = zip(*DataLoader(Facts(8), num_workers=2))
    assert {p.item() for p in pids}.isdisjoint({os.getpid()}) and len({p.item() for p in pids}) <= 2
    assert {t.item() for t in threads} == {1}
    assert {i.item() for i in idx} <= {0, 1} and {c.item() for c in count} == {2}


def test_a_worker_changes_its_own_copy_of_the_data():
    dataset = Writing(6)
    sampler = SequentialSampler(dataset, 1, indices=[0, 0, 0, 0, 0, 0])
    first = np.concatenate(list(DataLoader(dataset, sampler, num_workers=2)))
    assert first.max() < 7 and first.min() == 1 and sorted(first.tolist()) != [1] * 6
    assert dataset.rows[0, 0] == 0


def test_a_sequence_and_own_parts():
    class Sum(Collator):
        def apply(self, inputs):
            return sum(inputs)

    class Double(transform.Transform):
        def apply(self, sample):
            return 2 * sample

    assert list(DataLoader([1, 2, 3], SequentialSampler([0] * 3, 2), Double(), Sum())) == [6, 6]
    words = DataLoader(ArrayDataset(["a", "b"]), num_workers=1)
    assert list(words) == [(["a"],), (["b"],)]


def test_infinite_goes_on():
    dataset = Numbers(3)
    loader = DataLoader(dataset, Infinite(SequentialSampler(dataset, 2)), num_workers=1)
    assert [b.tolist() for b in itertools.islice(loader, 4)] == [[0, 1], [2], [0, 1], [2]]


@pytest.mark.parametrize(("workers", "preload"), MODES)
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_stream_is_read_in_order(workers, preload, drop_last):
    loader = DataLoader(Count(7), StreamSampler(3, drop_last), num_workers=workers, preload=preload)
    assert lists(loader) == [[0, 1, 2], [3, 4, 5], [6]][: 2 if drop_last else 3]
    with pytest.raises(TypeError, match="length of a StreamDataset is not known"):
        len(loader)


def test_a_stream_draws_the_same_for_any_number_of_workers():
    def run(workers):
        loader = DataLoader(Count(5), StreamSampler(2), Draws(), num_workers=workers, seed=1)
        return np.concatenate(list(loader))

    assert np.array_equal(run(0), run(2))


def test_large_stream_samples_reach_the_workers():
    loader = DataLoader(Endless(), StreamSampler(2), num_workers=2)
    for number, batch in enumerate(itertools.islice(loader, 6)):
        assert batch[:, 0].tolist() == [2 * number, 2 * number + 1]


def test_workers_that_read_a_stream_take_turns():
    loader = DataLoader(
        Count(11, split=True), StreamSampler(2), num_workers=2, parallel_stream=True
    )
    # Worker 0 has 0, 2, ..., 10 and worker 1 has 1, 3, ..., 9.
    expected = [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9]]
    assert lists(loader) == expected
    uneven = DataLoader(Count(2, split=True), num_workers=3, parallel_stream=True)
    assert lists(uneven) == [[0], [1]]
    assert lists(DataLoader(Count(2, split=True), parallel_stream=True)) == [[0], [1]]


def test_workers_that_read_a_stream_draw_the_same_each_time():
    def run():
        loader = DataLoader(
            Count(9, split=True), transform=Draws(), num_workers=2, parallel_stream=True, seed=2
        )
        return np.concatenate(list(loader))

    first = run()
    assert np.array_equal(first, run()) and len(np.unique(first)) == 9


def test_arguments_are_checked():
    dataset = Numbers()
    for workers in (-1, 1.5, True):
        with pytest.raises(ArgumentError, match="num_workers is"):
            DataLoader(dataset, num_workers=workers)
    for timeout in (-1, "3", float("inf")):
        with pytest.raises(ArgumentError, match="timeout is"):
            DataLoader(dataset, timeout=timeout)
    with pytest.raises(ArgumentError, match="seed is -1"):
        DataLoader(dataset, seed=-1)
    with pytest.raises(DTypeError, match="dataset is a int; it needs __getitem__"):
        DataLoader(3)
    with pytest.raises(
        DTypeError, match=r"sampler is a int(.|\n)*batch_size is an argument of the sampler"
    ):
        DataLoader(dataset, 32)
    with pytest.raises(DTypeError, match="Numbers is no stream and the sampler is a StreamSampler"):
        DataLoader(dataset, StreamSampler())
    with pytest.raises(
        DTypeError, match="Count is a stream and the sampler is a SequentialSampler"
    ):
        DataLoader(Count(), Infinite(SequentialSampler(dataset)))
    with pytest.raises(DTypeError, match=r"transform is function.*method apply_batch"):
        DataLoader(dataset, transform=lambda x: x)
    with pytest.raises(DTypeError, match="collator is the class Collator"):
        DataLoader(dataset, collator=Collator)
