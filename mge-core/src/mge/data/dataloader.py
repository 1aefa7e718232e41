"""The loader: a data set, a sampler, a transform and a collator make batches.

In: these four. Out: an iterator over batches of NumPy arrays.
Last file of ``mge.data``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from mge.errors import ArgumentError, DTypeError

from .collator import Collator
from .dataset import StreamDataset
from .fetch import Fetcher, Kind
from .iterators import ParallelIterator, PreloadIterator, SerialIterator
from .sampler import Infinite, Sampler, SequentialSampler, StreamSampler
from .seeding import fresh_entropy
from .transform import PseudoTransform
from .worker_info import get_worker_info

__all__ = ["DataLoader", "get_worker_info"]


class DataLoader:
    """Iterate over a data set in batches.

    For each list of indices of the sampler: read the samples, apply the transform to them, and make one
    batch with the collator. Each ``iter()`` is one pass over the sampler.

    Parameters
    ----------
    dataset : Dataset, StreamDataset, or a sequence of samples
        Where the samples are.
    sampler : Sampler, optional
        Which samples make a batch. By default: one by one, in order.
    transform : Transform, optional
        Its ``apply_batch`` gets the list of samples of a batch.
    collator : Collator, optional
        Its ``apply`` makes the batch; see :class:`Collator` for the default.
    num_workers : int, default 0
        Processes that make batches; 0 makes them in this process.
    timeout : float, seconds, default 0
        How long to wait for a batch from workers; 0 waits for ever. No effect without workers.
    preload : bool, default False
        Keep the next 2 batches ready, in a thread.
    parallel_stream : bool, default False
        For a stream with workers: each worker reads its own copy of the stream. By default this process
        reads it, and workers transform and collate.
    seed : int, optional
        Seed of transforms: pass ``e`` (from 0) uses ``(seed, e)``. By default each ``iter()`` draws its
        seed from ``numpy.random``, so that ``numpy.random.seed`` fixes it.

    Raises
    ------
    ArgumentError
        An argument outside of its range.
    DTypeError
        An argument of a wrong type, or a sampler that does not fit the data set.
    WorkerError
        While iterating: workers cannot be started, or one of them died.
    LoaderTimeout
        While iterating: a batch did not arrive in time.

    Notes
    -----
    *Order.* Batches come in the sampler's order, whichever worker is first.

    *Errors.* An exception in a data set, transform or collator is raised here, with a note that names the
    batch, its samples and the step, and holds the worker's traceback.

    *Random numbers.* Batch ``b`` of a pass draws from one generator, :func:`current_rng`, seeded with the
    pass's seed and ``b``. So the result does not depend on ``num_workers``. (With ``parallel_stream`` the
    generator depends on the worker and its own count of batches.) In workers, ``random`` and
    ``numpy.random`` are seeded in the same way; without workers they are left alone.

    *Workers* start by ``forkserver``, or ``spawn`` where there is none, with one thread for each numerical
    library. They import the main script, so a script has to iterate below
    ``if __name__ == "__main__":``. Large arrays go through shared memory, at most ``2 * num_workers``
    batches at a time; a returned batch is a copy that the caller owns. Arrays of the data set are shared
    by all workers; what a worker writes into them stays its own. Workers end with the pass, when the iterator is closed
    (``close()``) or collected, and with the program.

    Examples
    --------
    >>> from mge.data import ArrayDataset, DataLoader, SequentialSampler
    >>> data = ArrayDataset(np.arange(6.0).reshape(3, 2), np.array([7, 8, 9], np.int32))
    >>> for x, y in DataLoader(data, SequentialSampler(data, batch_size=2)):
    ...     print(x.shape, y)
    (2, 2) [7 8]
    (1, 2) [9]
    """

    def __init__(
        self,
        dataset: Any,
        sampler: Sampler | None = None,
        transform: Any = None,
        collator: Any = None,
        num_workers: int = 0,
        timeout: float = 0,
        preload: bool = False,
        parallel_stream: bool = False,
        *,
        seed: int | None = None,
    ) -> None:
        if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 0:
            raise ArgumentError(
                f"DataLoader: num_workers is {num_workers!r}; it must be a whole number, at least 0"
            )
        if not isinstance(timeout, (int, float)) or not 0 <= timeout < math.inf:
            raise ArgumentError(
                f"DataLoader: timeout is {timeout!r}; it must be seconds, at least 0"
            )
        if seed is not None and (not isinstance(seed, int) or seed < 0):
            raise ArgumentError(f"DataLoader: seed is {seed!r}; it must be an int, at least 0")
        is_stream = isinstance(dataset, StreamDataset)
        if not is_stream and not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            raise DTypeError(
                f"DataLoader: dataset is a {type(dataset).__name__}; it needs __getitem__ and __len__, or must be "
                "a StreamDataset"
            )
        self.dataset = dataset
        self.sampler = _fitting(sampler, dataset, is_stream)
        self.transform = PseudoTransform() if transform is None else transform
        self.collator = Collator() if collator is None else collator
        _check_method("transform", self.transform, "apply_batch", "a Transform")
        _check_method("collator", self.collator, "apply", "a Collator")
        self.num_workers = num_workers
        self.timeout = timeout
        self.preload = preload
        self.parallel_stream = parallel_stream
        self.seed = seed
        self._passes = 0

    def __iter__(self) -> Iterator[Any]:
        """Start a pass over the sampler."""
        entropy = fresh_entropy() if self.seed is None else (self.seed, self._passes)
        self._passes += 1
        kind: Kind = "map"
        if isinstance(self.dataset, StreamDataset):
            kind = "stream" if self.parallel_stream or not self.num_workers else "items"
        drop_last = kind != "map" and bool(getattr(self.sampler, "drop_last", False))
        fetcher = Fetcher(self.dataset, self.transform, self.collator, kind, drop_last)
        batches = iter(self.sampler)
        source: SerialIterator | ParallelIterator
        if self.num_workers:
            source = ParallelIterator(fetcher, batches, entropy, self.num_workers, self.timeout)
        else:
            source = SerialIterator(fetcher, batches, entropy)
        return PreloadIterator(source) if self.preload else source

    def __len__(self) -> int:
        """Return the number of batches of a pass; TypeError for a stream."""
        if isinstance(self.dataset, StreamDataset):
            raise TypeError("DataLoader: the length of a StreamDataset is not known")
        return len(self.sampler)  # type: ignore[arg-type]


def _fitting(sampler: Sampler | None, dataset: Any, is_stream: bool) -> Sampler:
    """Return the sampler, or the default one, if it goes with the kind of data set."""
    if sampler is None:
        return StreamSampler() if is_stream else SequentialSampler(dataset)
    if not isinstance(sampler, Sampler):
        raise DTypeError(
            f"DataLoader: sampler is a {type(sampler).__name__}; it must be a Sampler",
            hint="batch_size is an argument of the sampler: SequentialSampler(dataset, batch_size=32)",
        )
    innermost = sampler
    while isinstance(innermost, Infinite):
        innermost = innermost.sampler
    if isinstance(innermost, StreamSampler) != is_stream:
        raise DTypeError(
            f"DataLoader: {type(dataset).__name__} is {'a stream' if is_stream else 'no stream'} and the "
            f"sampler is a {type(innermost).__name__}",
            hint="StreamSampler goes with StreamDataset, the others with data sets that have a length",
        )
    return sampler


def _check_method(name: str, value: Any, method: str, wanted: str) -> None:
    if not callable(getattr(value, method, None)) or isinstance(value, type):
        given = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise DTypeError(
            f"DataLoader: {name} is {given}; it must be {wanted}, with a method {method}"
        )
