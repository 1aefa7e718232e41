"""The worker process: waits for tasks, makes batches, sends them back.

In: tasks from the parent's pipe. Out: replies, their arrays in shared memory.
After ``fetch`` and ``shared_arrays``; started by ``pool``.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import SimpleQueue

import numpy as np

from mge.debug import debug

from ..threads import limit_threads
from .failure import Failure
from .fetch import EndOfStream, Fetcher, Kind, Stopped
from .seeding import seeded
from .shared_arrays import Packet, SharedReader, SharedWriter, read_private
from .worker_info import WorkerInfo, set_worker_info

FUSE_SECONDS = 10.0  # how long a worker may go on with its sample after the parent has gone


@dataclass(frozen=True)
class Start:
    """What a worker gets when it starts.

    Attributes
    ----------
    idx, count : int
        This worker's number, and how many there are.
    prefix : str
        Start of the names of all segments of this pool.
    parts : Packet
        The data set, the transform and the collator.
    kind : Kind
        What a task holds; see ``Fetcher``.
    drop_last : bool
        See ``Fetcher``.
    entropy : tuple of int
        Seed of the iteration.
    """

    idx: int
    count: int
    prefix: str
    parts: Packet
    kind: Kind
    drop_last: bool
    entropy: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """One batch to make: its number, the key of its random numbers, the slot to use, and the work."""

    number: int
    key: tuple[int, ...]
    slot: int
    work: Packet


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a task: a batch, a failure, or the end of the stream.

    ``number`` is None where it belongs to no task: the worker is ready, or could not start.
    """

    number: int | None
    batch: Packet | None = None
    failure: Failure | None = None


def result_prefix(prefix: str, idx: int) -> str:
    """Return the start of the names of a worker's results."""
    return f"{prefix}r{idx}_"


def task_prefix(prefix: str, idx: int) -> str:
    """Return the start of the names of a worker's tasks."""
    return f"{prefix}t{idx}_"


def parts_prefix(prefix: str) -> str:
    """Return the start of the name of the loader's parts."""
    return f"{prefix}p"


def worker_main(connection: Connection, start: Start) -> None:
    """Run a worker until the parent closes the connection."""
    # Ctrl-C reaches all processes of a terminal; the parent decides what follows.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit_threads()
    inbox: SimpleQueue[Task | None] = SimpleQueue()
    stopping = threading.Event()
    listener = threading.Thread(target=_listen, args=(connection, inbox, stopping), daemon=True)
    listener.start()
    with debug(threads=1):
        _serve(connection, inbox, stopping, start)


def _listen(
    connection: Connection, inbox: SimpleQueue[Task | None], stopping: threading.Event
) -> None:
    """Take tasks at once, so that the parent never waits in ``send`` for a worker that waits too."""
    try:
        while True:
            inbox.put(connection.recv())
    except (EOFError, OSError):
        pass  # the parent has closed the connection, or has died
    stopping.set()
    inbox.put(None)
    time.sleep(FUSE_SECONDS)
    os._exit(1)


def _serve(
    connection: Connection,
    inbox: SimpleQueue[Task | None],
    stopping: threading.Event,
    start: Start,
) -> None:
    seed = int(np.random.SeedSequence([*start.entropy, start.idx]).generate_state(1)[0])
    set_worker_info(WorkerInfo(start.idx, start.count, seed))
    try:
        dataset, transform, collator = read_private(parts_prefix(start.prefix), start.parts)
    except BaseException as error:
        connection.send(Reply(None, failure=Failure.of(error, "unpickling")))
        return
    fetcher = Fetcher(dataset, transform, collator, start.kind, start.drop_last, stopping.is_set)
    reader = SharedReader(task_prefix(start.prefix, start.idx), removes=False)
    writer = SharedWriter(result_prefix(start.prefix, start.idx), removes=False)
    try:
        connection.send(Reply(None))
        while (task := inbox.get()) is not None:
            connection.send(_reply(task, fetcher, reader, writer, start.entropy))
    except (Stopped, BrokenPipeError, ConnectionError):
        pass
    finally:
        reader.close()
        writer.close()


def _reply(
    task: Task,
    fetcher: Fetcher,
    reader: SharedReader,
    writer: SharedWriter,
    entropy: tuple[int, ...],
) -> Reply:
    try:
        fetcher.step = "unpickling the task"
        work = reader.read(task.slot, task.work)
        with seeded(entropy, task.key, globally=True):
            batch = fetcher.fetch(work)
        fetcher.step = f"pickling the batch ({type(batch).__name__})"
        return Reply(task.number, writer.write(task.slot, batch))
    except EndOfStream:
        return Reply(task.number)
    except Stopped:
        raise
    except BaseException as error:  # SystemExit too: the parent has to know
        return Reply(task.number, failure=Failure.of(error, fetcher.step))
