"""Iterate over batches: in this process, by workers, or ahead of time in a thread.

In: a loader's parts and its sampler. Out: batches in the sampler's order.
After ``pool``; made by ``dataloader``.
"""

from __future__ import annotations

import queue
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from .failure import LoaderTimeout, WorkerError, describe_samples
from .fetch import EndOfStream, Fetcher, Kind
from .pool import SLOTS, Done, WorkerPool
from .seeding import seeded

_END = object()


class SerialIterator(Iterator[Any]):
    """Makes each batch when it is asked for, in the thread that asks.

    Parameters
    ----------
    fetcher : Fetcher
        Makes the batches.
    batches : iterator of list
        The sampler's batches.
    entropy : tuple of int
        Seed of the iteration.
    """

    def __init__(
        self, fetcher: Fetcher, batches: Iterator[list[Any]], entropy: tuple[int, ...]
    ) -> None:
        self._fetcher = fetcher
        self._batches = batches
        self._entropy = entropy
        self._number = 0
        self._closed = False

    def __next__(self) -> Any:
        if self._closed:
            raise StopIteration
        number, self._number = self._number, self._number + 1
        indices = next(self._batches)
        work = len(indices) if self._fetcher.kind == "stream" else indices
        try:
            with seeded(self._entropy, (number,)):
                return self._fetcher.fetch(work)
        except EndOfStream:
            self._closed = True
            raise StopIteration from None
        except Exception as error:
            place = f"batch {number}{_named(work)}, in {self._fetcher.step}"
            if isinstance(error, StopIteration):  # it would look like the end of the data
                raise WorkerError(f"DataLoader: {place}: StopIteration was raised") from error
            error.add_note(f"DataLoader: {place}")
            raise

    def cancel(self) -> None:
        """Make no further batch."""
        self._closed = True

    def close(self) -> None:
        """Make no further batch."""
        self._closed = True


class ParallelIterator(Iterator[Any]):
    """Has batches made by workers, and hands them out in order.

    Parameters
    ----------
    fetcher : Fetcher
        The loader's parts. Kind "items" reads its stream here, and workers do the rest.
    batches : iterator of list
        The sampler's batches.
    entropy : tuple of int
        Seed of the iteration.
    workers : int
        Number of workers.
    timeout : float, seconds
        How long to wait for a batch; 0 waits for ever.

    Notes
    -----
    At most ``2 * workers`` batches are being made or waiting. A stream that workers read goes round:
    batch ``k`` of worker 0, of worker 1, and so on, without those whose part has ended.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        batches: Iterator[list[Any]],
        entropy: tuple[int, ...],
        workers: int,
        timeout: float,
    ) -> None:
        self._fetcher = fetcher
        self._kind: Kind = fetcher.kind
        self._batches = batches
        self._timeout = timeout
        self._live = list(range(workers))  # for a stream that workers read: whose part goes on
        self._turn = 0
        self._made = [0] * workers
        self._sent = 0  # number of the next task
        self._next = 0  # number of the next batch to hand out
        self._done: dict[int, Done] = {}
        self._exhausted = False
        self._error: Exception | None = None  # of the sampler, or of a stream that is read here
        parts = (
            None if self._kind == "items" else fetcher.dataset,
            fetcher.transform,
            fetcher.collator,
        )
        self._pool = WorkerPool(parts, workers, self._kind, fetcher.drop_last, entropy)
        self._limit = SLOTS * workers
        # Also when the program breaks off its loop, fails, or ends.
        self._finalizer = weakref.finalize(self, self._pool.close)

    def __next__(self) -> Any:
        if not self._finalizer.alive:
            raise StopIteration
        try:
            return self._advance()
        except BaseException:  # StopIteration and KeyboardInterrupt too
            self.close()
            raise

    def cancel(self) -> None:
        """Wake up a ``__next__`` in another thread, with an error."""
        self._pool.terminate()

    def close(self) -> None:
        """End the workers."""
        self._finalizer()

    def _advance(self) -> Any:
        while True:
            self._submit()
            if self._next == self._sent:
                raise self._error or StopIteration
            done = self._wait(self._next)
            self._next += 1
            if done.ended:
                continue
            if done.failure is not None:
                raise done.failure.error(done.place)
            if self._kind != "items":  # the next batch may take its time to read; this one is here
                self._submit()
            return done.batch

    def _submit(self) -> None:
        # A slow stream is read here: not all of the first batches at once, the caller waits for the first.
        budget = SLOTS if self._kind == "items" else self._limit
        while budget > 0 and not self._exhausted and self._sent - self._next < self._limit:
            worker = self._choose()
            if worker is None:
                return
            try:
                work, text, key = self._task(worker)
            except (StopIteration, EndOfStream):
                self._exhausted = True
                return
            except Exception as error:  # raised when the batches before it have been handed out
                error.add_note(f"DataLoader: batch {self._sent}, before it went to a worker")
                self._exhausted, self._error = True, error
                return
            number, self._sent = self._sent, self._sent + 1
            self._pool.submit(worker, number, key, work, text)
            budget -= 1

    def _choose(self) -> int | None:
        """Return the worker for the next task; None while it has no room."""
        if self._kind == "stream":
            if not self._live:
                self._exhausted = True
                return None
            worker = next((w for w in self._live if w >= self._turn), self._live[0])
        else:
            worker = max(self._live, key=self._pool.free_slots)
        if not self._pool.free_slots(worker):
            return None
        self._turn = worker + 1
        return worker

    def _task(self, worker: int) -> tuple[Any, str, tuple[int, ...]]:
        """Return the work of the next task, its text, and the key of its random numbers."""
        indices = next(self._batches)
        if self._kind == "map":
            return indices, _named(indices), (self._sent,)
        if self._kind == "items":
            return self._fetcher.read(len(indices)), "", (self._sent,)
        made, self._made[worker] = self._made[worker], self._made[worker] + 1
        # Not the task's number: how many tasks come after the end of a part depends on the time.
        return len(indices), f" ({made} of this worker)", (worker, made)

    def _wait(self, number: int) -> Done:
        deadline = time.monotonic() + self._timeout
        while number not in self._done:
            left = max(0.0, deadline - time.monotonic()) if self._timeout else None
            done = self._pool.receive(left)
            if done is not None:
                self._done[done.number] = done
                if done.ended and done.worker in self._live:
                    self._live.remove(done.worker)
            elif left == 0.0:
                raise LoaderTimeout(
                    f"DataLoader: {self._pool.describe(number)} did not arrive within "
                    f"timeout={self._timeout:g} s",
                    hint="a longer timeout, or more workers; num_workers=0 shows where the time goes",
                )
        if self._pool.spilled:
            self._pool.spilled = False
            warnings.warn(
                "DataLoader: shared memory (/dev/shm) has no room for a batch; it went through a pipe, which is "
                "slower. In a container, give it more (docker run --shm-size=1g).",
                RuntimeWarning,
                stacklevel=4,
            )
        return self._done.pop(number)


class PreloadIterator(Iterator[Any]):
    """Keeps the next batches of another iterator ready, in a thread.

    Parameters
    ----------
    source : SerialIterator or ParallelIterator
        Used by the thread alone from now on.
    depth : int, default 2
        Batches to keep ready.
    """

    def __init__(self, source: SerialIterator | ParallelIterator, depth: int = 2) -> None:
        self._ready: queue.Queue[Any] = queue.Queue(depth)
        stop = threading.Event()
        # The thread holds no reference to this object, so that the object can be collected.
        self._thread = threading.Thread(
            target=_fill, args=(source, self._ready, stop), name="mge-data-preload", daemon=True
        )
        self._finalizer = weakref.finalize(
            self, _stop_thread, source, self._ready, stop, self._thread
        )
        self._thread.start()

    def __next__(self) -> Any:
        if not self._finalizer.alive:
            raise StopIteration
        try:
            found = self._take()
        except BaseException:
            self.close()
            raise
        if isinstance(found, _Raised):
            self.close()
            raise found.error
        if found is _END:
            self.close()
            raise StopIteration
        return found

    def close(self) -> None:
        """End the thread, and what it uses."""
        self._finalizer()

    def _take(self) -> Any:
        while True:
            # With a timeout, Ctrl-C is seen on all systems.
            with suppress(queue.Empty):
                return self._ready.get(timeout=1.0)
            if not self._thread.is_alive() and self._ready.empty():
                raise WorkerError("DataLoader: the preload thread has ended without a result")


class _Raised:
    """An exception on its way from the thread; a class of its own, as a batch may be anything."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _fill(
    source: SerialIterator | ParallelIterator, ready: queue.Queue[Any], stop: threading.Event
) -> None:
    try:
        for batch in source:
            if not _put(ready, batch, stop):
                return
            del batch
        _put(ready, _END, stop)
    except BaseException as error:
        _put(ready, _Raised(error), stop)
    finally:
        source.close()


def _put(ready: queue.Queue[Any], value: Any, stop: threading.Event) -> bool:
    while not stop.is_set():
        try:
            ready.put(value, timeout=0.1)
            return True
        except queue.Full:
            pass
    return False


def _stop_thread(
    source: SerialIterator | ParallelIterator,
    ready: queue.Queue[Any],
    stop: threading.Event,
    thread: threading.Thread,
) -> None:
    stop.set()
    if thread is not threading.current_thread() and thread.is_alive():
        source.cancel()
        thread.join(5.0)
    source.close()
    with suppress(queue.Empty):
        while True:
            ready.get_nowait()


def _named(work: Any) -> str:
    samples = describe_samples(work)
    return f" ({samples})" if samples else ""
