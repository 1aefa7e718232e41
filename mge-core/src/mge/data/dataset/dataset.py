"""The kinds of data sets: by index, as a stream, from arrays, joined.

In: arrays or other data sets. Out: samples.
First file of ``data.dataset``.
"""

from __future__ import annotations

import bisect
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from mge.errors import ArgumentError, ShapeError


class Dataset(ABC):
    """A data set whose samples are read by index.

    A subclass defines ``__getitem__(index)``, which returns one sample (an array, a number, a string, or
    a tuple or dict of these), and ``__len__()``. With ``num_workers > 0`` it has to be picklable, and its
    class has to be importable by name in another process.

    Examples
    --------
    >>> from mge.data import DataLoader, Dataset
    >>> class Squares(Dataset):
    ...     def __getitem__(self, index):
    ...         return float(index**2)
    ...     def __len__(self):
    ...         return 3
    >>> [batch.tolist() for batch in DataLoader(Squares())]
    [[0.0], [1.0], [4.0]]
    """

    @abstractmethod
    def __getitem__(self, index: Any) -> Any:
        """Return one sample."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""


class StreamDataset(Dataset):
    """A data set that is read in order, and may have no end.

    A subclass defines ``__iter__()``, which yields samples.

    Notes
    -----
    With ``DataLoader(parallel_stream=True)`` each worker reads a copy of its own, so ``__iter__`` has to
    yield only this worker's part, by :func:`get_worker_info`.

    Examples
    --------
    >>> from mge.data import DataLoader, StreamDataset, StreamSampler
    >>> class Count(StreamDataset):
    ...     def __iter__(self):
    ...         yield from range(5)
    >>> [batch.tolist() for batch in DataLoader(Count(), StreamSampler(batch_size=2))]
    [[0, 1], [2, 3], [4]]
    """

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """Yield samples."""

    def __getitem__(self, index: Any) -> Any:
        """Raise TypeError: a stream has no indices."""
        raise TypeError(f"{type(self).__name__}: a StreamDataset has no samples by index; iterate")

    def __len__(self) -> int:
        """Raise TypeError: the length of a stream is not known."""
        raise TypeError(f"{type(self).__name__}: a StreamDataset has no length")


class ArrayDataset(Dataset):
    """A data set of arrays whose first axes are the samples.

    Parameters
    ----------
    *arrays : (n, ...) numpy.ndarray or sequence
        At least one, all of the same length. Sample ``i`` is ``tuple(a[i] for a in arrays)``.

    Raises
    ------
    ArgumentError
        No array was given.
    ShapeError
        The lengths differ.

    Notes
    -----
    Workers share one copy of the arrays, in memory; so does a ``numpy.memmap``, whose whole content is read
    for it. For files larger than memory, write a data set that opens its file on first use.

    Examples
    --------
    >>> from mge.data import ArrayDataset
    >>> data = ArrayDataset(np.eye(3), np.arange(3))
    >>> len(data), data[1][0].tolist()
    (3, [0.0, 1.0, 0.0])
    """

    def __init__(self, *arrays: Any) -> None:
        if not arrays:
            raise ArgumentError("ArrayDataset: no array was given; at least one is needed")
        lengths = [len(array) for array in arrays]
        if len(set(lengths)) > 1:
            raise ShapeError(f"ArrayDataset: the arrays have lengths {lengths}; they must be equal")
        self.arrays = arrays

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        """Return entry ``index`` of each array."""
        return tuple(array[index] for array in self.arrays)

    def __len__(self) -> int:
        """Return the length of the arrays."""
        return len(self.arrays[0])


class ConcatDataset(Dataset):
    """Data sets one after the other.

    Parameters
    ----------
    datasets : sequence of Dataset
        At least one, none of them a stream.

    Raises
    ------
    ArgumentError
        No data set was given, or one of them is a stream.

    Examples
    --------
    >>> from mge.data import ArrayDataset, ConcatDataset
    >>> both = ConcatDataset([ArrayDataset([1, 2]), ArrayDataset([3])])
    >>> len(both), both[2], both[-3]
    (3, (3,), (1,))
    """

    def __init__(self, datasets: Sequence[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ArgumentError("ConcatDataset: no data set was given; at least one is needed")
        for place, dataset in enumerate(self.datasets):
            if isinstance(dataset, StreamDataset):
                raise ArgumentError(
                    f"ConcatDataset: datasets[{place}] is a stream ({type(dataset).__name__}); "
                    "only data sets with a length can be joined"
                )
        self.cumulative_sizes = list(itertools.accumulate(len(d) for d in self.datasets))

    def __getitem__(self, index: int) -> Any:
        """Return sample ``index``, counted over all data sets; negative from the end."""
        wanted = index + len(self) if index < 0 else index
        if not 0 <= wanted < len(self):
            raise IndexError(f"ConcatDataset: index {index} is outside of {len(self)} samples")
        place = bisect.bisect_right(self.cumulative_sizes, wanted)
        before = self.cumulative_sizes[place - 1] if place else 0
        return self.datasets[place][wanted - before]

    def __len__(self) -> int:
        """Return the number of samples of all data sets."""
        return self.cumulative_sizes[-1]
