"""The runner: gives cases to a worker process, and makes its deaths and its silence results.

In: a device's name and settings. Out: a ``Result`` for each case.
After ``worker``; before ``report``.
"""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from ..errors import ArgumentError
from .lists import Entry, find

LIMIT_S = 60.0  # for one case
START_LIMIT_S = 120.0  # for loading the backend, and for naming the cases
BAD = ("failed", "crashed", "hanging")
OUTCOMES = ("passed", "refused", "skipped", "xfailed", *BAD)


class Result(NamedTuple):
    """What became of one case.

    Attributes
    ----------
    case : str
        ``"L3/add/0/float32"``.
    outcome : str
        One of ``OUTCOMES``.
    text : str
        The reason, or what is wrong.
    seconds : float
    """

    case: str
    outcome: str
    text: str = ""
    seconds: float = 0.0

    @property
    def level(self) -> str:
        """``"L3"``."""
        return self.case.split("/")[0]

    @property
    def is_bad(self) -> bool:
        """Whether the backend does something wrong."""
        return self.outcome in BAD


class Died(Exception):
    """The worker gives no answer: ``outcome`` is ``"crashed"`` or ``"hanging"``."""

    def __init__(self, outcome: str, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome


class Worker:
    """One process and what it says.

    Parameters
    ----------
    options : dict
        ``device``, ``seed`` and ``ops``.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mge.testing.worker", json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            encoding="utf-8",
        )
        self.answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.mark = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put("")

    def ask(self, within_s: float, **request: Any) -> dict[str, Any]:
        """Return the answer to a request.

        Raises
        ------
        Died
            The process ended or did not answer in time; it is gone then.
        """
        assert self.process.stdin is not None
        self.mark = self.errors.seek(0, 2)
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.answers.get(timeout=within_s)
        except queue.Empty:
            text = f"no answer within {within_s:g} s\n{self.said()}".strip()
            self.kill()
            raise Died("hanging", text) from None
        except OSError:
            line = ""
        if not line:
            self.process.wait()
            text = f"the process died: {self.cause()}\n{self.said()}".strip()
            self.kill()
            raise Died("crashed", text)
        return json.loads(line)

    def cause(self) -> str:
        """Return how the process ended."""
        code = self.process.returncode
        if code is not None and code < 0:
            try:
                return signal.Signals(-code).name
            except ValueError:
                return f"signal {-code}"
        return f"exit status {code}"

    def said(self) -> str:
        """Return the end of what it wrote to standard error since the last request."""
        end = self.errors.seek(0, 2)
        self.errors.seek(max(self.mark, end - 3000))
        return self.errors.read().decode("utf-8", "replace").strip()

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.wait()
        self._close()

    def end(self, limit_s: float) -> str | None:
        """Let the process end by itself; say what is wrong with that, or return None."""
        assert self.process.stdin is not None
        self.mark = self.errors.seek(0, 2)
        self.process.stdin.close()
        try:
            self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return f"the process did not end within {limit_s:g} s"
        problem = f"the process ended with {self.cause()}\n{self.said()}".strip()
        bad = self.process.returncode != 0
        self._close()
        return problem if bad else None

    def _close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            try:
                if stream is not None:
                    stream.close()
            except OSError:
                pass


class Runner:
    """Runs the cases of one device.

    Parameters
    ----------
    device : str
        As ``"acme"`` or ``"acme:0"``.
    last : str
        The highest level that is run.
    ops : list of str, optional
        The only ops to try, for young backends.
    unsupported, xfails : list of Entry
        What the device never does; what fails for now.
    patterns : list of str
        Run only the cases that one of them matches; empty: all.
    seed : int
    limit_s : float, s
        For each case.
    """

    def __init__(
        self,
        device: str,
        last: str = "L6",
        ops: list[str] | None = None,
        unsupported: Iterable[Entry] = (),
        xfails: Iterable[Entry] = (),
        patterns: Iterable[str] = (),
        seed: int = 0,
        limit_s: float = LIMIT_S,
    ) -> None:
        self.device, self.last, self.ops, self.seed, self.limit_s = device, last, ops, seed, limit_s
        self.unsupported, self.xfails, self.patterns = (
            list(unsupported),
            list(xfails),
            list(patterns),
        )
        self.info: dict[str, Any] = {}
        self.is_absent = False  # not installed, or not usable on this machine
        self.start_result = Result("L0/plugin/load", "passed")
        self._worker: Worker | None = None

    def cases(self) -> list[str]:
        """Load the backend in a worker; return the names of the cases.

        There is just one where it does not load.

        Raises
        ------
        ArgumentError
            An op that was asked for does not exist.
        """
        names = [self.start_result.case]
        try:
            worker = self._started()
            if self.info.get("unknown_ops"):
                raise ArgumentError(f"ops: there is no op {', '.join(self.info['unknown_ops'])}")
            names += worker.ask(START_LIMIT_S, do="list", last=self.last)["cases"]
            if self.last >= "L6":
                names.append("L6/process/end")
        except Died as death:
            self._worker = None
            self.start_result = Result(
                names[0], death.outcome, f"while its backend was loaded: {death}"
            )
        except LoadError as error:
            self.start_result = Result(names[0], "failed", str(error))
        return [
            n for n in names if not self.patterns or any(fnmatchcase(n, p) for p in self.patterns)
        ]

    def results(self) -> Iterator[Result]:
        """Run all cases, one after the other."""
        for case in self.cases():
            yield self.run(case)

    def run(self, case: str) -> Result:
        """Run one case."""
        entry = find(self.unsupported, case)
        if entry is not None:
            return Result(case, "skipped", f"unsupported: {entry.reason}")
        result = self._run(case)
        entry = find(self.xfails, case)
        if entry is not None and result.is_bad:
            text = f"expected to fail: {entry.reason}\n{result.outcome}: {result.text}"
            return result._replace(outcome="xfailed", text=text)
        if entry is not None and result.outcome == "passed":
            text = f"it passes, and is on the list of expected failures ({entry.pattern}: {entry.reason}): take it off"
            return result._replace(outcome="failed", text=text)
        return result

    def _run(self, case: str) -> Result:
        if case == self.start_result.case:
            return self.start_result
        try:
            worker = self._started()
            if case == "L6/process/end":
                return self._end(case, worker)
            answer = worker.ask(self.limit_s, do="run", case=case, limit_s=self.limit_s)
        except Died as death:
            self._worker = None
            return Result(
                case, death.outcome, str(death), self.limit_s * (death.outcome == "hanging")
            )
        except LoadError as error:
            return Result(
                case, "crashed", f"after an earlier crash the backend does not load: {error}"
            )
        return Result(case, answer["outcome"], answer["text"], answer["seconds"])

    def _end(self, case: str, worker: Worker) -> Result:
        """A process that has used the backend ends cleanly."""
        self._worker = None
        problem = worker.end(START_LIMIT_S)
        return Result(case, "crashed" if problem else "passed", problem or "")

    def _started(self) -> Worker:
        """Return the worker; a new one where the last one died."""
        if self._worker is None:
            worker = Worker({"device": self.device, "seed": self.seed, "ops": self.ops})
            answer = worker.ask(START_LIMIT_S, do="load")
            if "error" in answer:
                worker.kill()
                self.is_absent = answer["absent"]
                raise LoadError(answer["error"])
            self._worker, self.info = worker, answer
        return self._worker

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None


class LoadError(Exception):
    """The backend cannot be loaded, and the core says why."""
