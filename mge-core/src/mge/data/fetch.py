"""Make one batch: read samples, transform them, collate them.

In: the indices of a batch (or its samples, or how many to read). Out: the batch.
After ``collator`` and ``transform``; used by ``iterators`` in this process, and by ``worker`` in another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["map", "items", "stream"]


class EndOfStream(Exception):
    """A stream has no more samples."""


class Stopped(Exception):
    """The batch is not wanted any more."""


@dataclass
class Fetcher:
    """Makes batches from the three parts of a loader.

    Parameters
    ----------
    dataset, transform, collator
        As in ``DataLoader``.
    kind : "map", "items" or "stream"
        What ``fetch`` gets: indices, samples already read, or how many samples to read.
    drop_last : bool
        For a stream: leave out a last batch that is not full.
    stopping : callable
        Asked before each sample; when true, ``Stopped`` is raised.
    """

    dataset: Any
    transform: Any
    collator: Any
    kind: Kind
    drop_last: bool = False
    stopping: Callable[[], bool] = lambda: False
    step: str = ""  # what is being done, for error texts
    _stream: Iterator[Any] | None = field(default=None, init=False)

    def fetch(self, work: Any) -> Any:
        """Return the batch for ``work``; raises EndOfStream where nothing is left."""
        if self.kind == "map":
            samples = self._by_index(work)
        elif self.kind == "items":
            samples = work
        else:
            samples = self.read(work)
        self.step = f"{type(self.transform).__name__}.apply_batch"
        transformed = self.transform.apply_batch(samples)
        self.step = f"{type(self.collator).__name__}.apply"
        return self.collator.apply(transformed)

    def read(self, count: int) -> list[Any]:
        """Read the next ``count`` samples of the stream; fewer at its end."""
        self.step = f"{type(self.dataset).__name__}.__iter__"
        if self._stream is None:
            self._stream = iter(self.dataset)
        samples: list[Any] = []
        while len(samples) < count:
            self._check()
            try:
                samples.append(next(self._stream))
            except StopIteration:
                break
        if not samples or (self.drop_last and len(samples) < count):
            raise EndOfStream
        return samples

    def _by_index(self, indices: list[Any]) -> list[Any]:
        samples = []
        for index in indices:
            self._check()
            self.step = f"{type(self.dataset).__name__}[{index!r}]"
            samples.append(self.dataset[index])
        return samples

    def _check(self) -> None:
        if self.stopping():
            raise Stopped
