"""The strategy ``offload``: values that wait long are kept in a memory-mapped file, and nothing is computed again.

In: a ``MemoryRequest``. Out: a ``MemorySchedule`` with ``Offload`` and ``Prefetch`` steps.
After ``strategies``; before nothing.
"""

from __future__ import annotations

import functools
import itertools
import mmap
import os
import tempfile
from typing import Any, NamedTuple

import numpy as np

from mge.device import as_device, parse_bytes
from mge.plugin import (
    MemoryReport,
    MemoryRequest,
    MemorySchedule,
    Offload,
    OutOfMemory,
    Prefetch,
    Run,
)

from .strategies import Sublinear, busiest


class _Waiting(NamedTuple):
    """A value with the longest gap between two of its uses, both as numbers of nodes."""

    value: int
    start: int
    end: int
    nbytes: int


class File:
    """A temporary file in which values wait; it has no name, and goes when the plan does.

    Parameters
    ----------
    folder : str
        Where it lies; empty for the system's folder for temporary files.
    sizes : list of int, bytes
    """

    def __init__(self, folder: str, sizes: list[int]) -> None:
        page = mmap.ALLOCATIONGRANULARITY
        ends = np.cumsum([0, *(-(-nbytes // page) * page for nbytes in sizes)]).tolist()
        self._starts, self._ends, self._folder = ends, ends[1:], folder
        self._map: Any = None
        self._forms: dict[int, tuple[Any, Any]] = {}

    def reserve(self) -> None:
        """Make the file, with room on the disk for all of it: a disk that is full later must end no program.

        Raises
        ------
        OutOfMemory
            The system refuses; says why, how many bytes, and where.
        """
        nbytes, folder = self._ends[-1], self._folder
        try:
            folder = folder or tempfile.gettempdir()
            with tempfile.TemporaryFile(dir=folder) as file:
                os.posix_fallocate(file.fileno(), 0, nbytes)
                self._map = mmap.mmap(file.fileno(), nbytes)
        except OSError as error:
            what = f"a file of {nbytes:,} bytes in {folder or 'the temporary folder'}"
            raise OutOfMemory(
                f"memory strategy offload: {what} cannot be made: {error.strerror}",
                hint="another folder: offload:folder=/a/large/disk; or a larger budget, so that less is moved",
            ) from error

    def store(self, slot: int, array: Any) -> np.ndarray:
        """Take a value; return its token."""
        if self._map is None:  # the plan is over its budget, and runs all the same
            self.reserve()
        self._forms[slot] = array.dtype, array.shape
        self._view(slot)[...] = array
        self._forget(slot)
        return np.array([slot], np.int64)

    def load(self, token: Any, ahead: int | None, behind: int | None) -> Any:
        """Return a value as an array over the file, and start to read the one that is loaded next."""
        if behind is not None:
            self._forget(behind)
        if ahead is not None:
            self._advise(ahead, mmap.MADV_WILLNEED)
        return self._view(int(token[0]))

    def _view(self, slot: int) -> np.ndarray:
        dtype, shape = self._forms[slot]
        return np.ndarray(shape, dtype, self._map, self._starts[slot])

    def _advise(self, slot: int, advice: int) -> None:
        low = self._starts[slot]
        self._map.madvise(advice, low, self._ends[slot] - low)

    def _forget(self, slot: int) -> None:
        """Give the pages of a value back to the system, which has them in the file."""
        self._advise(slot, mmap.MADV_DONTNEED)


class OffloadStrategy(Sublinear):
    """Values that wait longest, and are largest, are kept in a file; the next one is read while others are used.

    Options
    -------
    budget : bytes, or a share of what ``static`` takes
        Without one, all that can wait in the file does.
    folder : str
        Where the file lies: best on a fast disk. By default the system's folder for temporary files.
    minimum_size : bytes
        Smaller values stay.
    gigabytes_per_second : float
        How fast the file is, for the time that a plan states.
    """

    name = "offload"
    options = {"folder": "", "minimum_size": "64KB", "gigabytes_per_second": 1.0}

    def plan(self, request: MemoryRequest) -> MemorySchedule:
        """Return what runs, and what moves, when."""
        waiting = _waiting(request)
        budget = request.budget_bytes
        low, high = 0, len(waiting)  # as few as the budget allows
        made, file = self._with(request, waiting if budget is None else [])
        if budget is not None and request.measure(made) > budget:
            made, file = self._with(request, waiting)
            while low < high:
                middle = (low + high) // 2
                tried, its_file = self._with(request, waiting[:middle])
                if request.measure(tried) <= budget:
                    high, made, file = middle, tried, its_file
                else:
                    low = middle + 1
        moved = sum(request.values[s.value].nbytes for s in made if not isinstance(s, Run))
        time_ns = (
            sum(n.time_ns for n in request.nodes) + moved / request.options["gigabytes_per_second"]
        )
        peak = request.measure(made)
        if budget is None or peak <= budget:
            if moved:
                file.reserve()
            return MemorySchedule(made, peak, MemoryReport(time_ns, peak))
        least, reason = request.options["minimum_size"], ""
        if parse_bytes(least):
            reason = f"Values under minimum_size={least} stay: a smaller one may take less. "
        reason += "What is left is in use at once; the strategy sublinear may take less"
        report = MemoryReport(time_ns, peak, busiest(request, made), reason)
        return MemorySchedule(made, peak, report)

    def _with(self, request: MemoryRequest, moved: list[_Waiting]) -> tuple[list[Any], File]:
        """Return steps in which these values wait in a file, and the file."""
        file = File(request.options["folder"], [w.nbytes for w in moved])
        loads = sorted(range(len(moved)), key=lambda i: moved[i].end)
        behind: dict[int, list[Any]] = {}
        ahead: dict[int, list[Any]] = {}
        for last, slot, following in zip([None, *loads], loads, [*loads[1:], None]):
            w = moved[slot]
            store = functools.partial(file.store, slot)
            load = functools.partial(file.load, ahead=following, behind=last)
            behind.setdefault(w.start, []).append(Offload(w.value, store))
            ahead.setdefault(w.end, []).append(Prefetch(w.value, load))
        steps: list[Any] = []
        for number in range(len(request.nodes)):
            steps += ahead.get(number, ())
            steps.append(Run(number))
            steps += behind.get(number, ())
        return steps, file


def _waiting(request: MemoryRequest) -> list[_Waiting]:
    """Return what can wait in a file: the largest, and those that wait longest, first."""
    least = parse_bytes(request.options["minimum_size"])
    uses: dict[int, list[int]] = {}
    for node in request.nodes:
        for v in dict.fromkeys((*node.inputs, *node.outputs)):
            uses.setdefault(v, []).append(node.number)
    found = []
    for v, positions in uses.items():
        value = request.values[v]
        if value.pinned or value.nbytes < max(least, 1) or not as_device(value.device).is_host:
            continue
        start, end = max(itertools.pairwise(positions), key=lambda p: p[1] - p[0], default=(0, 0))
        if end - start > 2:
            found.append(_Waiting(v, start, end, value.nbytes))
    return sorted(found, key=lambda w: w.nbytes * (w.end - w.start), reverse=True)
