"""Worker processes: start them, give them tasks, take their replies, and end them.

In: the parts of a loader and tasks. Out: finished batches, in the order in which workers finish.
After ``worker``; used by ``iterators``.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import secrets
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import connection as pipes
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from mge.debug import debug

from .failure import Failure, WorkerError
from .fetch import Kind
from .shared_arrays import SharedReader, SharedWriter
from .worker import (
    Reply,
    Start,
    Task,
    parts_prefix,
    result_prefix,
    task_prefix,
    worker_main,
)

SLOTS = 2  # tasks that a worker may hold: one in work, one waiting
GRACE_SECONDS = 2.0  # how long a worker may go on with its sample at the end
_GUARD = (
    'a script starts workers below `if __name__ == "__main__":`, because each worker imports the script; '
    "num_workers=0 needs none"
)


@dataclass
class _Worker:
    process: BaseProcess
    pipe: pipes.Connection
    tasks_out: SharedWriter
    results_in: SharedReader
    free: list[int] = field(default_factory=lambda: list(range(SLOTS)))
    tasks: dict[int, tuple[int, str]] = field(default_factory=dict)  # number: (slot, text)
    ready: bool = False


@dataclass
class Done:
    """A finished task: its batch, or its failure (and its ``place``), or the end of a stream."""

    number: int
    worker: int
    ended: bool = False
    batch: Any = None
    failure: Failure | None = None
    place: str = ""


class WorkerPool:
    """The workers of one iteration.

    Parameters
    ----------
    parts : (dataset, transform, collator)
        Sent to each worker once.
    count : int
        Number of workers.
    kind : Kind
        What a task holds; see ``Fetcher``.
    drop_last : bool
        See ``Fetcher``.
    entropy : tuple of int
        Seed of the iteration.

    Raises
    ------
    WorkerError
        Workers cannot be started here, or the parts cannot be pickled.

    Notes
    -----
    One thread uses the pool at a time; ``terminate`` and ``close`` may come from another.
    """

    def __init__(
        self,
        parts: tuple[Any, Any, Any],
        count: int,
        kind: Kind,
        drop_last: bool,
        entropy: tuple[int, ...],
    ) -> None:
        _check_process()
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._prefix = f"mge{self._owner:x}{secrets.token_hex(3)}"
        self._parts = SharedWriter(parts_prefix(self._prefix), removes=True)
        self._workers: list[_Worker] = []
        self.spilled = False  # whether shared memory had no room for a batch
        try:
            packet = self._parts.write(0, _picklable(parts))
            context = _context()
            for idx in range(count):
                start = Start(idx, count, self._prefix, packet, kind, drop_last, entropy)
                self._workers.append(_start(context, start))
        except BaseException:
            self.close()
            raise

    def free_slots(self, worker: int) -> int:
        """Return how many tasks a worker can take."""
        return len(self._workers[worker].free)

    def submit(self, worker: int, number: int, key: tuple[int, ...], work: Any, text: str) -> None:
        """Give a worker with a free slot a task; ``text`` names it in errors."""
        target = self._workers[worker]
        slot = target.free.pop()
        target.tasks[number] = (slot, text)
        packet = target.tasks_out.write(slot, work)
        try:
            target.pipe.send(Task(number, key, slot, packet))
        except OSError:
            raise self._death(worker) from None

    def receive(self, timeout: float | None) -> Done | None:
        """Wait for a worker; None after ``timeout`` seconds, or when a worker reports that it is ready.

        Raises
        ------
        WorkerError
            A worker has died, or cannot start.
        """
        sentinels = [worker.process.sentinel for worker in self._workers]
        ready = pipes.wait([*(worker.pipe for worker in self._workers), *sentinels], timeout)
        for idx, worker in enumerate(self._workers):
            if worker.pipe in ready:
                try:
                    reply = worker.pipe.recv()
                except (EOFError, OSError):
                    raise self._death(idx) from None
                return self._accept(idx, reply)
        for idx, worker in enumerate(self._workers):
            if worker.process.sentinel in ready and not worker.pipe.poll():
                raise self._death(idx)
        return None

    def describe(self, number: int) -> str:
        """Say which task a number is, and who has it."""
        for idx, worker in enumerate(self._workers):
            if number in worker.tasks:
                text = worker.tasks[number][1]
                return f"batch {number}{text}, worker {idx} (pid {worker.process.pid})"
        return f"batch {number}"

    def terminate(self) -> None:
        """Ask all workers to die at once; wakes up a ``receive`` in another thread."""
        if os.getpid() == self._owner:
            for worker in self._workers:
                with suppress(ValueError, OSError):  # closed already
                    worker.process.terminate()

    def close(self) -> None:
        """End all workers and remove the shared memory. May be called again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if os.getpid() != self._owner:
            return  # a forked copy of the parent: nothing of this belongs to it
        for worker in self._workers:
            worker.pipe.close()  # which tells the worker to stop
        _end([worker.process for worker in self._workers])
        for worker in self._workers:
            worker.tasks_out.close()
            worker.results_in.close(SLOTS)
        self._parts.close()

    def _accept(self, idx: int, reply: Reply) -> Done | None:
        worker = self._workers[idx]
        if reply.number is None:
            if reply.failure is not None:
                raise _start_failure(idx, reply.failure)
            worker.ready = True
            return None
        slot, text = worker.tasks[reply.number]
        done = Done(reply.number, idx, failure=reply.failure)
        if reply.batch is not None:
            self.spilled |= reply.batch.spilled
            done.batch = worker.results_in.read(slot, reply.batch)
        elif reply.failure is None:
            done.ended = True
        else:
            done.place = f"batch {reply.number}{text}, worker {idx} (pid {worker.process.pid})"
        del worker.tasks[reply.number]
        worker.free.append(slot)
        return done

    def _death(self, idx: int) -> WorkerError:
        worker = self._workers[idx]
        worker.process.join(5)
        code = worker.process.exitcode
        how = "ended" if code is None else f"ended with exit code {code}"
        if code is not None and code < 0:
            with suppress(ValueError):
                how = f"was killed by {signal.Signals(-code).name}"
        what = "before it was ready"
        hint = "run with num_workers=0 to see the error in this process"
        if worker.ready:
            what = "while it waited"
            if worker.tasks:
                number = min(worker.tasks)
                what = f"during batch {number}{worker.tasks[number][1]}"
        elif code == 1:
            what += "; its own error is printed above"
            hint = _GUARD
        if code == -signal.SIGTERM or code == -getattr(signal, "SIGKILL", 9):
            hint = "if memory ran out: fewer workers, or smaller batches"
        return WorkerError(
            f"DataLoader: worker {idx} (pid {worker.process.pid}) {how} {what}", hint=hint
        )


def _check_process() -> None:
    process = multiprocessing.current_process()
    if getattr(process, "_inheriting", False):
        raise WorkerError(
            "DataLoader: workers were asked for while this process, a worker itself, imports the main script",
            hint=_GUARD,
        )
    if process.daemon:
        raise WorkerError(
            f"DataLoader: workers were asked for in {process.name}, a daemon process, which may "
            "not have children",
            hint="num_workers=0, or start that process with daemon=False",
        )
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if path and getattr(main, "__spec__", None) is None and not os.path.exists(path):
        raise WorkerError(
            f"DataLoader: workers import the main script, and there is no file {path!r}",
            hint="put the program into a file, or num_workers=0",
        )


def _picklable(parts: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """Return the parts; an error names the one that cannot be pickled."""
    for name, part in zip(("dataset", "transform", "collator"), parts):
        try:
            # Large arrays are not copied for this check.
            pickle.dumps(part, protocol=5, buffer_callback=lambda buffer: None)
        except Exception as error:  # objects may raise anything here
            kind = "" if isinstance(error, pickle.PicklingError) else f"{type(error).__name__}: "
            raise WorkerError(
                f"DataLoader: {name} ({type(part).__name__}) cannot be sent to a worker process: "
                f"{kind}{error}",
                hint="define classes and functions at the top level of a module (no lambda or local "
                "function), and open files, locks and connections on first use; or num_workers=0",
            ) from error
    return parts


def _context() -> BaseContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver  # the state that the module itself uses
    # The server imports NumPy and this package once, and workers start as copies of it. The program's
    # own list of modules, and a server that runs already, stay as they are.
    fresh = getattr(server, "_forkserver_pid", 0) is None
    if fresh and getattr(server, "_preload_modules", None) == ["__main__"]:
        server.set_forkserver_preload(["__main__", "mge.data.worker"])
    return multiprocessing.get_context("forkserver")


def _start(context: BaseContext, start: Start) -> _Worker:
    ours, theirs = context.Pipe(duplex=True)
    # A BaseContext has Process in all of its subclasses.
    process = context.Process(  # type: ignore[attr-defined]
        target=worker_main, args=(theirs, start), name=f"mge-data-{start.idx}", daemon=True
    )
    try:
        process.start()
    except (OSError, EOFError) as error:
        ours.close()
        raise WorkerError(
            f"DataLoader: worker {start.idx} cannot be started: {type(error).__name__}: {error}",
            hint=_GUARD,
        ) from error
    finally:
        theirs.close()
    return _Worker(
        process,
        ours,
        SharedWriter(task_prefix(start.prefix, start.idx), removes=True),
        SharedReader(result_prefix(start.prefix, start.idx), removes=True),
    )


def _start_failure(idx: int, failure: Failure) -> WorkerError:
    hint = "import the class's module in a worker as in this process, or num_workers=0"
    if "__main__" in failure.summary or "__mp_main__" in failure.summary:
        hint = (
            "a class of an interactive session, a notebook or `python -c` is not known to a worker: "
            "put it into a .py file and import it, or num_workers=0"
        )
    error = WorkerError(
        f"DataLoader: worker {idx} could not unpickle the data set, transform or collator: "
        f"{failure.summary}",
        hint=hint,
    )
    error.add_note(failure.text)
    return error


def _end(processes: list[BaseProcess]) -> None:
    """Wait for processes that were told to stop; terminate, and then kill, those that do not."""
    steps = (
        (GRACE_SECONDS, lambda process: process.terminate()),
        (1.0, lambda process: process.kill()),
        (5.0, lambda process: debug.log(1, f"data: {process.name} does not die")),
    )
    for seconds, then in steps:
        deadline = time.monotonic() + seconds
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        for process in processes:
            if process.is_alive():
                then(process)
    for process in processes:
        with suppress(ValueError):  # still alive
            process.close()
