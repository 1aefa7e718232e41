"""Which samples make which batch.

In: the length of a data set. Out: lists of indices, one list for each batch, for this rank.
After ``dataset``; before ``dataloader``.
"""

from __future__ import annotations

import itertools
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from mge.errors import ArgumentError, DTypeError, ShapeError


class Sampler(ABC):
    """What all samplers share: iterating yields lists of indices, a batch each."""

    @abstractmethod
    def __iter__(self) -> Iterator[list[Any]]:
        """Yield the indices of one batch after the other."""


class MapSampler(Sampler):
    """A sampler for data sets with a length.

    A subclass defines ``sample()``, the indices of one epoch in order. They are spread over the ranks and
    cut into batches here.

    Parameters
    ----------
    dataset : Dataset
        Data set to sample from; only its length is used.
    batch_size : int, default 1
        Samples in a batch, on each rank. At least 1.
    drop_last : bool, default False
        Leave out the last batch if it has less than ``batch_size`` samples.
    num_samples : int, optional
        Samples in one epoch, all ranks together; the length of ``dataset`` by default.
    world_size : int, optional
        Number of ranks; that of ``mge.distributed`` when it is in use, else 1.
    rank : int, optional
        This rank, from 0; that of ``mge.distributed`` when it is in use, else 0.
    seed : int, optional
        Seed of the random samplers. By default it is 0 with more than one rank, where all ranks
        need the same, and taken from the system with one.

    Raises
    ------
    ArgumentError
        An argument outside of its range, or ``drop_last`` would leave no batch at all.
    DTypeError
        An argument of a wrong type.

    Notes
    -----
    Rank ``r`` takes the positions ``r``, ``r + world_size``, ... of the epoch. If the number of samples
    does not divide by ``world_size``, the epoch's first ones are used again at its end, so that all
    ranks have equally many samples and batches.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        drop_last: bool = False,
        num_samples: int | None = None,
        world_size: int | None = None,
        rank: int | None = None,
        seed: int | None = None,
    ) -> None:
        name = type(self).__name__
        if not isinstance(drop_last, bool):
            raise DTypeError(f"{name}: drop_last is {drop_last!r}; it must be True or False")
        own_world, own_rank = _distributed_place()
        self.dataset = dataset
        self.batch_size = _whole(name, "batch_size", batch_size, least=1)
        self.drop_last = drop_last
        self.world_size = _whole(name, "world_size", world_size, least=1, default=own_world)
        self.rank = _whole(name, "rank", rank, least=0, default=own_rank)
        if self.rank >= self.world_size:
            raise ArgumentError(
                f"{name}: rank is {self.rank} and world_size is {self.world_size}; "
                "rank must be less"
            )
        total = _whole(name, "num_samples", num_samples, least=1, default=len(dataset))
        self.num_samples = -(-total // self.world_size)
        if drop_last and self.num_samples < self.batch_size:
            raise ArgumentError(
                f"{name}: a rank has {self.num_samples} samples and batch_size is "
                f"{self.batch_size}; with drop_last=True there is no batch at all"
            )
        if seed is None and self.world_size > 1:
            seed = 0
        self.rng = np.random.RandomState(seed)

    def __iter__(self) -> Iterator[list[Any]]:
        """Yield the indices of one batch after the other, for one epoch."""
        return self.batch()

    def __len__(self) -> int:
        """Return the number of batches of an epoch, on each rank."""
        if self.drop_last:
            return self.num_samples // self.batch_size
        return math.ceil(self.num_samples / self.batch_size)

    def sample(self) -> Iterable[Any]:
        """Return the indices of one epoch, for all ranks together."""
        raise NotImplementedError(f"{type(self).__name__} does not define sample()")

    def scatter(self, indices: list[Any]) -> list[Any]:
        """Return this rank's part of the indices of an epoch."""
        total = self.num_samples * self.world_size if indices else 0
        padded = itertools.islice(itertools.cycle(indices), total)
        return list(itertools.islice(padded, self.rank, None, self.world_size))

    def batch(self) -> Iterator[list[Any]]:
        """Yield lists of ``batch_size`` indices of this rank; the last may be shorter."""
        indices = list(self.sample())
        if self.world_size > 1:
            indices = self.scatter(indices)
        for start in range(0, len(indices), self.batch_size):
            batch = indices[start : start + self.batch_size]
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch


class SequentialSampler(MapSampler):
    """Take the samples in order.

    Parameters
    ----------
    dataset : Dataset
        Data set to sample from.
    batch_size : int, default 1
        Samples in a batch, on each rank.
    drop_last : bool, default False
        Leave out the last batch if it is not full.
    indices : sequence, optional
        Take these indices instead of all.
    world_size, rank : int, optional
        Number of ranks and this rank; see :class:`MapSampler`.

    Examples
    --------
    >>> from mge.data import SequentialSampler
    >>> list(SequentialSampler(range(5), batch_size=2))
    [[0, 1], [2, 3], [4]]
    >>> list(SequentialSampler(range(5), batch_size=2, world_size=2, rank=1))
    [[1, 3], [0]]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        drop_last: bool = False,
        indices: Sequence[Any] | None = None,
        world_size: int | None = None,
        rank: int | None = None,
    ) -> None:
        self.indices = _index_list(type(self).__name__, indices)
        count = None if self.indices is None else len(self.indices)
        super().__init__(dataset, batch_size, drop_last, count, world_size, rank)

    def sample(self) -> Iterable[Any]:
        """Return the indices in order."""
        return range(len(self.dataset)) if self.indices is None else self.indices


class RandomSampler(MapSampler):
    """Take each sample once, in an order that is drawn anew for each epoch.

    Parameters
    ----------
    dataset : Dataset
        Data set to sample from.
    batch_size : int, default 1
        Samples in a batch, on each rank.
    drop_last : bool, default False
        Leave out the last batch if it is not full.
    indices : sequence, optional
        Take these indices instead of all.
    world_size, rank : int, optional
        Number of ranks and this rank; see :class:`MapSampler`.
    seed : int, optional
        Seed of the order; see :class:`MapSampler`.

    Examples
    --------
    >>> from mge.data import RandomSampler
    >>> sampler = RandomSampler(range(4), batch_size=4, seed=0)
    >>> list(sampler), list(sampler)
    ([[2, 3, 1, 0]], [[0, 2, 1, 3]])
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        drop_last: bool = False,
        indices: Sequence[Any] | None = None,
        world_size: int | None = None,
        rank: int | None = None,
        seed: int | None = None,
    ) -> None:
        self.indices = _index_list(type(self).__name__, indices)
        count = None if self.indices is None else len(self.indices)
        super().__init__(dataset, batch_size, drop_last, count, world_size, rank, seed)

    def sample(self) -> list[Any]:
        """Return the indices in a random order."""
        count = len(self.dataset) if self.indices is None else len(self.indices)
        order = self.rng.permutation(count).tolist()
        return order if self.indices is None else [self.indices[place] for place in order]


class ReplacementSampler(MapSampler):
    """Draw samples one by one, so that one may come several times.

    Parameters
    ----------
    dataset : Dataset
        Data set to sample from.
    batch_size : int, default 1
        Samples in a batch, on each rank.
    drop_last : bool, default False
        Leave out the last batch if it is not full.
    num_samples : int, optional
        Samples in one epoch, all ranks together; the length of ``dataset`` by default.
    weights : (n,) sequence of float, optional
        Relative frequency of each sample, at least 0; equal by default.
    world_size, rank : int, optional
        Number of ranks and this rank; see :class:`MapSampler`.
    seed : int, optional
        Seed of the draws; see :class:`MapSampler`.

    Raises
    ------
    ShapeError
        ``weights`` has not one entry for each sample.
    ArgumentError
        A weight is negative or not finite, or all are 0.

    Examples
    --------
    >>> from mge.data import ReplacementSampler
    >>> list(ReplacementSampler(range(3), batch_size=3, weights=[0, 1, 0], seed=0))
    [[1, 1, 1]]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        drop_last: bool = False,
        num_samples: int | None = None,
        weights: Sequence[float] | None = None,
        world_size: int | None = None,
        rank: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(dataset, batch_size, drop_last, num_samples, world_size, rank, seed)
        self.weights = None if weights is None else _frequencies(weights, len(dataset))

    def sample(self) -> list[int]:
        """Return indices drawn with replacement."""
        total = self.num_samples * self.world_size
        if total == 0:
            return []
        return self.rng.choice(len(self.dataset), size=total, p=self.weights).tolist()


class StreamSampler(Sampler):
    """A sampler for streams: it only says how many samples make a batch.

    Parameters
    ----------
    batch_size : int, default 1
        Samples in a batch. At least 1.
    drop_last : bool, default False
        Leave out the last batch of a stream if it is not full.

    Raises
    ------
    ArgumentError
        ``batch_size`` is less than 1.

    Notes
    -----
    With more than one rank, the data set has to yield different samples on each.

    Examples
    --------
    >>> from mge.data import StreamSampler
    >>> next(iter(StreamSampler(batch_size=3)))
    [0, 1, 2]
    """

    def __init__(self, batch_size: int = 1, drop_last: bool = False) -> None:
        self.batch_size = _whole(type(self).__name__, "batch_size", batch_size, least=1)
        self.drop_last = bool(drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield batches of numbers without end."""
        return self.batch()

    def sample(self) -> Iterator[int]:
        """Return the numbers of the samples, without end."""
        return itertools.count()

    def batch(self) -> Iterator[list[int]]:
        """Yield lists of ``batch_size`` numbers."""
        numbers = iter(self.sample())
        while len(batch := list(itertools.islice(numbers, self.batch_size))) == self.batch_size:
            yield batch


class Infinite(Sampler):
    """Start a sampler again whenever it ends.

    Parameters
    ----------
    sampler : Sampler
        Sampler to repeat. Attributes that ``Infinite`` has not are looked up in it.

    Raises
    ------
    ArgumentError
        While iterating: ``sampler`` yields no batch.

    Notes
    -----
    It is its own iterator: a second ``iter()`` goes on where the first one stopped.

    Examples
    --------
    >>> from mge.data import Infinite, SequentialSampler
    >>> endless = Infinite(SequentialSampler(range(3), batch_size=2))
    >>> [next(endless) for _ in range(3)]
    [[0, 1], [2], [0, 1]]
    """

    def __init__(self, sampler: Sampler) -> None:
        if not isinstance(sampler, Sampler):
            raise DTypeError(
                f"Infinite: sampler is a {type(sampler).__name__}; it must be a Sampler"
            )
        self.sampler = sampler
        self.sampler_iter = iter(sampler)

    def __iter__(self) -> Iterator[list[Any]]:
        """Return itself."""
        return self

    def __next__(self) -> list[Any]:
        """Return the next batch of indices."""
        found = next(self.sampler_iter, None)
        if found is None:
            self.sampler_iter = iter(self.sampler)
            found = next(self.sampler_iter, None)
        if found is None:
            raise ArgumentError(
                f"Infinite: {type(self.sampler).__name__} yields no batch to repeat"
            )
        return found

    def __len__(self) -> int:
        """Return the largest length that Python knows."""
        return sys.maxsize

    def __getattr__(self, name: str) -> Any:
        if name == "sampler":  # not there yet: unpickling, or __init__ failed
            raise AttributeError(name)
        return getattr(self.sampler, name)


def _distributed_place() -> tuple[int, int]:
    """Return (world_size, rank) of ``mge.distributed`` if it is in use, else (1, 0)."""
    module = sys.modules.get("mge.distributed")
    if module is not None and module.is_distributed():
        return module.get_world_size(), module.get_rank()
    return 1, 0


def _whole(
    where: str, name: str, value: int | None, *, least: int, default: int | None = None
) -> int:
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ArgumentError(
            f"{where}: {name} is {value!r}; it must be a whole number of at least {least}"
        )
    return int(value)


def _index_list(where: str, indices: Any) -> list[Any] | None:
    if indices is None:
        return None
    if isinstance(indices, np.ndarray) and indices.ndim == 1:
        found = indices.tolist()
    elif isinstance(indices, Sequence) and not isinstance(indices, (str, bytes)):
        found = list(indices)
    else:
        raise DTypeError(
            f"{where}: indices is a {type(indices).__name__}; it must be a sequence or an array (n,)"
        )
    if not found:
        raise ArgumentError(f"{where}: indices is empty; give at least one, or None for all")
    return found


def _frequencies(weights: Sequence[float], count: int) -> np.ndarray:
    found = np.asarray(weights, np.float64)
    if found.shape != (count,):
        raise ShapeError(
            f"ReplacementSampler: weights has shape {found.shape}; {count} samples need ({count},)"
        )
    total = found.sum()
    if not np.isfinite(found).all() or (found < 0).any() or not 0 < total < np.inf:
        raise ArgumentError(
            "ReplacementSampler: weights must be finite and at least 0, with one above 0; they are "
            f"{found.min()} to {found.max()} with sum {total}"
        )
    return found / total
