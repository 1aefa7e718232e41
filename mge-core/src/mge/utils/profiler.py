"""Write a timeline of kernels, plans and scopes, for Perfetto and Chrome.

In: the steps of plans and the nodes that run one by one, as the executor tells them. Out: a JSON file of trace events.
After ``trace``; an interface file.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ContextDecorator
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple, Self

from ..errors import INTERNAL_CODE, ArgumentError, FileFormatError, line_of, user_place
from ..execute import NODE_WATCHERS, WATCHERS
from ..graph import Node, Signature, current_recording
from ..plan import Plan
from ..run import sync

__all__ = ["Profiler", "merge_trace_events", "profile", "scope"]

FORMAT = "chrome_timeline.json"
LIMIT_EVENTS = 2_000_000  # later ones are counted, not kept

_ACTIVE: list[Profiler] = []


class _Scopes(threading.local):
    def __init__(self) -> None:
        self.open: list[scope] = []  # of this thread, outermost first


_SCOPES = _Scopes()


class _Step(NamedTuple):
    plan: Plan | None
    number: int
    sig: Signature
    site: tuple[CodeType | None, int]  # not the node: that would keep its value
    start: int
    end: int
    backtrace: tuple[str, ...]


class _Scope(NamedTuple):
    name: str
    thread: int
    start: int
    end: int


class Profiler(ContextDecorator):
    """Write a timeline of what runs in a ``with`` block or in a function.

    Parameters
    ----------
    path : str, default "profile"
        The folder of the file, which is named by the process, as ``profile/4711.chrome_timeline.json``.
    format : str, default "chrome_timeline.json"
        The one format there is: trace events, for https://ui.perfetto.dev or chrome://tracing.
    formats : str or sequence of str, optional
        MegEngine's other spelling of ``format``.
    with_backtrace : bool, default False
        Keep for each step the stack of user code that asked for the value, not only the line that recorded it.
    with_scopes : bool, default False
        Compute at the end of each ``scope`` what was recorded in it, so that its slice covers the computing. This
        cuts plans, which may then be slower.
    **options
        MegEngine's other options are accepted and ignored.

    Attributes
    ----------
    files : list of str
        What was written so far.

    Raises
    ------
    ArgumentError
        Another format.

    Notes
    -----
    Calls are computed later than they are recorded, so a ``scope`` shows when its calls were recorded; each step
    says in ``args`` to which scope its line belongs. Entering and leaving compute what is pending (``mge.sync``).
    A slice has the op, types, bytes, device and the user's line; steps of a plan lie inside a slice of the plan,
    and a counter shows the bytes that are live. At most 2,000,000 steps are kept.

    Examples
    --------
    >>> from mge.utils.profiler import Profiler, scope
    >>> with Profiler("out") as profiler:
    ...     with scope("product"):
    ...         y = tensor([1.0, 2.0]) * 3
    >>> len(profiler.files)
    1
    """

    _numbers = itertools.count(1)

    def __init__(
        self,
        path: str = "profile",
        format: str = FORMAT,
        *,
        formats: str | Sequence[str] | None = None,
        with_backtrace: bool = False,
        with_scopes: bool = False,
        **options: Any,
    ) -> None:
        wanted = (
            [format]
            if formats is None
            else [formats]
            if isinstance(formats, str)
            else list(formats)
        )
        unknown = [f for f in wanted if f != FORMAT]
        if unknown or not wanted:
            raise ArgumentError(
                f"Profiler: format is {', '.join(unknown) or 'empty'}; it must be {FORMAT}"
            ).add_place(user_place())
        self.path = os.fspath(path)
        self.with_backtrace, self.with_scopes = with_backtrace, with_scopes
        self.files: list[str] = []
        self._clear()

    def _clear(self) -> None:
        self._steps: list[_Step] = []
        self._scopes: list[_Scope] = []
        self._sites: dict[tuple[Any, int], dict[str, None]] = defaultdict(dict)
        self._dropped = 0

    def start(self) -> Self:
        """Compute what is pending, then begin to record."""
        if self in _ACTIVE:
            raise ArgumentError("Profiler: it records already").add_place(user_place())
        sync()
        self._clear()
        _ACTIVE.append(self)
        WATCHERS.append(self._see_step)
        NODE_WATCHERS.append(self._see_node)
        return self

    def stop(self) -> str:
        """Compute what is pending, end, and write the file; returns its path."""
        if self not in _ACTIVE:
            raise ArgumentError("Profiler: it does not record").add_place(user_place())
        try:
            sync()
        finally:
            _ACTIVE.remove(self)
            WATCHERS.remove(self._see_step)
            NODE_WATCHERS.remove(self._see_node)
            path = self.dump()
        return path

    def dump(self) -> str:
        """Write what was recorded last; returns the path of the file."""
        os.makedirs(self.path, exist_ok=True)
        number = next(self._numbers)
        name = f"{os.getpid()}.{FORMAT}" if number == 1 else f"{os.getpid()}-{number}.{FORMAT}"
        path = os.path.join(self.path, name)
        _write(path, self.events())
        self.files.append(path)
        return path

    def events(self) -> list[dict[str, Any]]:
        """Return what was recorded as trace events, times in µs."""
        events = [*self._step_events(), *self._scope_events()]
        if self._dropped:
            note = {"name": f"{self._dropped:,} later steps left out", "ph": "i", "s": "g"}
            events.append({**note, "ts": self._steps[-1].end / 1000, "pid": os.getpid(), "tid": 0})
        return events

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: Any
    ) -> None:
        self.stop()

    # What the executor tells.

    def _see_step(self, plan: Plan, number: int, start: int, end: int) -> None:
        node = plan.steps[number].slot.node
        self._keep(
            _Step(plan, number, node.sig, (node.code, node.offset), start, end, self._backtrace())
        )

    def _see_node(self, sig: Signature, node: Node, start: int, end: int) -> None:
        self._keep(_Step(None, 0, sig, (node.code, node.offset), start, end, self._backtrace()))

    def _keep(self, step: _Step) -> None:
        if len(self._steps) < LIMIT_EVENTS:
            self._steps.append(step)
        else:
            self._dropped += 1

    def _backtrace(self) -> tuple[str, ...]:
        if not self.with_backtrace:
            return ()
        found, frame = [], sys._getframe(1)
        while frame is not None:
            if not INTERNAL_CODE[frame.f_code]:
                found.append(
                    f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
                )
            frame = frame.f_back  # type: ignore[assignment]
        return tuple(found)

    def _see_nodes(self, path: str, nodes: Iterable[Node]) -> None:
        """Take in the nodes that were recorded in a scope: their lines belong to it."""
        for node in nodes:
            self._sites[node.code, node.offset].setdefault(path)

    def _see_scope(self, name: str, start: int) -> None:
        """Take in a scope that ends now."""
        self._scopes.append(_Scope(name, threading.get_native_id(), start, time.perf_counter_ns()))

    # Trace events.

    def _step_events(self) -> Iterator[dict[str, Any]]:
        tracks: dict[str, int] = {}
        names: dict[int, int] = {}  # of plans, by id
        running: dict[int, _Step] = {}
        timelines: dict[int, list[int]] = {}
        for step in self._steps:
            device = str(step.sig.device)
            if device not in tracks:
                tracks[device] = os.getpid() * 100 + len(tracks)
                yield _name("process", tracks[device], 0, f"{device} (process {os.getpid()})")
                yield _name("thread", tracks[device], 0, "stream 0")
            pid, tid = tracks[device], 0
            if step.plan is not None:
                tid = step.plan.steps[step.number].slot.stream
                number = names.setdefault(id(step.plan), len(names) + 1)
                if step.number == 0:
                    running[id(step.plan)] = step
                live = timelines.setdefault(id(step.plan), step.plan.timeline())[step.number]
                yield {
                    "name": "live bytes",
                    "ph": "C",
                    "ts": step.start / 1000,
                    "pid": pid,
                    "args": {"bytes": live},
                }
                first = running.get(id(step.plan))
                if first is not None and step.number == len(step.plan.steps) - 1:
                    args = {
                        "steps": len(step.plan.steps),
                        "peak_bytes": step.plan.peak_bytes,
                        "strategy": step.plan.strategy,
                    }
                    yield _slice(f"plan {number}", "plan", first.start, step.end, pid, 0, args)
            kind = "step" if step.plan else "node"
            yield _slice(step.sig.op.name, kind, step.start, step.end, pid, tid, self._args(step))

    def _args(self, step: _Step) -> dict[str, Any]:
        sig, (code, offset) = step.sig, step.site
        args: dict[str, Any] = {
            "inputs": [str(t) for t in sig.input_types],
            "outputs": [str(t) for t in sig.types],
            "attributes": {name: str(value)[:200] for name, value in sig.attrs},
            "bytes": sum(t.nbytes for t in sig.input_types) + sig.nbytes,
            "line": f"{code.co_filename}:{line_of(code, offset)}" if code is not None else None,
        }
        scopes = self._sites.get(step.site)
        if scopes:
            args["scope"] = " | ".join(scopes)
        if step.plan is not None:
            args["step"] = step.number
        if step.backtrace:
            args["read by"] = list(step.backtrace)
        return args

    def _scope_events(self) -> Iterator[dict[str, Any]]:
        pid = os.getpid()
        if self._scopes:
            yield _name("process", pid, 0, f"Python (process {pid})")
        threads = {t.native_id: t.name for t in threading.enumerate()}
        for thread in dict.fromkeys(s.thread for s in self._scopes):
            yield _name("thread", pid, thread, threads.get(thread, f"thread {thread}"))
        for s in self._scopes:
            yield _slice(s.name, "scope", s.start, s.end, pid, s.thread, {})


class scope(ContextDecorator):
    """Name a part of the timeline: a ``with`` block or a decorated function.

    Parameters
    ----------
    name : str
        Scopes may lie in each other.

    Notes
    -----
    Without an active Profiler it does nothing.

    Examples
    --------
    >>> from mge.utils.profiler import scope
    >>> with scope("forward"):
    ...     y = tensor([1.0]) + 1
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def _recreate_cm(self) -> scope:
        return scope(self.name)

    def __enter__(self) -> Self:
        self._profilers = list(_ACTIVE)
        if self._profilers:
            if _SCOPES.open:
                _SCOPES.open[-1]._note()
            self._path = " / ".join([*(s.name for s in _SCOPES.open), self.name])
            _SCOPES.open.append(self)
            self._begin()
        self._start = time.perf_counter_ns()
        return self

    def __exit__(self, *error: object) -> None:
        if self._profilers:
            self._note()
            _SCOPES.open.remove(self)
            if any(p.with_scopes for p in self._profilers):
                sync()
            for profiler in self._profilers:
                profiler._see_scope(self.name, self._start)
            if _SCOPES.open:
                _SCOPES.open[-1]._begin()

    def _begin(self) -> None:
        """From here on, what is recorded belongs to this scope."""
        self._recording = current_recording()
        self._first = len(self._recording.index)

    def _note(self) -> None:
        """Up to here, what was recorded belongs to this scope."""
        nodes = list(itertools.islice(self._recording.index, self._first, None))
        now = current_recording()
        if now is not self._recording:  # a value was read in between
            nodes += now.index
        for profiler in self._profilers:
            profiler._see_nodes(self._path, nodes)


def profile(*args: Any, **options: Any) -> Any:
    """Profile a function at each call: ``@profile`` or ``@profile(path="out")``.

    Parameters
    ----------
    *args
        The function; or the first arguments of ``Profiler``.
    **options
        Arguments of ``Profiler``.

    Returns
    -------
    The function, profiled; without a function a decorator.

    Examples
    --------
    >>> from mge.utils.profiler import profile
    >>> @profile(path="out")
    ... def double(x):
    ...     return x * 2
    >>> double(tensor([1.0]))
    Tensor([2.], dtype=float32, device=ref:0)
    """
    if len(args) == 1 and callable(args[0]):
        function: Callable[..., Any] = args[0]
        return Profiler(**options)(function)
    return Profiler(*args, **options)


def merge_trace_events(directory: str) -> str:
    """Merge the files of several processes into ``merge.chrome_timeline.json``.

    Parameters
    ----------
    directory : str
        A folder where Profilers wrote.

    Returns
    -------
    str
        The path of the merged file.

    Raises
    ------
    FileNotFoundError
        There is no such folder, or no file of a Profiler in it.
    FileFormatError
        A file is damaged.

    Examples
    --------
    >>> from mge.utils.profiler import Profiler, merge_trace_events
    >>> with Profiler("out"):
    ...     y = tensor([1.0]) + 1
    >>> import os
    >>> os.path.basename(merge_trace_events("out"))
    'merge.chrome_timeline.json'
    """
    target = Path(directory, f"merge.{FORMAT}")
    files = sorted(
        p for p in Path(directory).iterdir() if p.name.endswith(f".{FORMAT}") and p != target
    )
    if not files:
        raise FileNotFoundError(f"merge_trace_events: no file *.{FORMAT} in {directory}")
    events: list[Any] = []
    for path in files:
        try:
            events += json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        except (ValueError, KeyError, TypeError) as error:
            raise FileFormatError(
                f"merge_trace_events: {path} is no file of trace events: {error}"
            ) from None
    _write(str(target), events)
    return str(target)


def _slice(
    name: str, kind: str, start: int, end: int, pid: int, tid: int, args: dict[str, Any]
) -> dict[str, Any]:
    times = {"ts": start / 1000, "dur": (end - start) / 1000}
    return {"name": name, "cat": kind, "ph": "X", **times, "pid": pid, "tid": tid, "args": args}


def _name(of: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": f"{of}_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _write(path: str, events: list[dict[str, Any]]) -> None:
    part = f"{path}.part"
    with open(part, "w", encoding="utf-8") as file:
        json.dump({"displayTimeUnit": "ns", "traceEvents": events}, file)
    os.replace(part, path)
