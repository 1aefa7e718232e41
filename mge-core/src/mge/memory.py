"""Memory: offsets in one arena for values that live at different times.

In: how long each value lives and how large it is. Out: offsets, the peak in bytes, and a check of both.
After ``schedule``; before ``plan``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .debug import debug
from .discovery import first_line
from .errors import ArgumentError, InternalError, OutOfMemory, PluginContractError
from .mode import MODE, changed
from .registry import load

ALIGNMENT = 64


class Interval(NamedTuple):
    """One storage: it lives from step ``start`` to step ``end``, both included.

    Attributes
    ----------
    start, end : int
    nbytes : int, bytes
    label : str
        What it holds, for error messages.
    """

    start: int
    end: int
    nbytes: int
    label: str = ""


class MemoryPlan(NamedTuple):
    """Where each storage lies in the arena.

    Attributes
    ----------
    offsets : list of int, bytes
    arena_bytes : int
        The size of the arena: the peak of the layout.
    live_bytes : list of int
        What is live at each step: a lower bound of the arena at that step.
    """

    offsets: list[int]
    arena_bytes: int
    live_bytes: list[int]


Strategy = Callable[[Sequence[Interval]], list[int]]


def rounded(nbytes: int) -> int:
    """Return a size as a multiple of the alignment; an empty value takes no room."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def static(intervals: Sequence[Interval]) -> list[int]:
    """Return offsets by the best of four greedy orders: by size, by lifetime, by their product, by first step."""
    orders: list[Callable[[Interval], Any]] = [
        lambda v: v.nbytes,
        lambda v: (v.end - v.start, v.nbytes),
        lambda v: v.nbytes * (v.end - v.start + 1),
        lambda v: -v.start,
    ]
    layouts = []
    for order in orders:
        ranked = sorted(range(len(intervals)), key=lambda i: order(intervals[i]), reverse=True)
        layouts.append(_best_fit(intervals, ranked))
        if _top(intervals, layouts[-1]) == max(live_bytes(intervals), default=0):
            break  # no layout is smaller
    return min(layouts, key=lambda offsets: _top(intervals, offsets))


def naive(intervals: Sequence[Interval]) -> list[int]:
    """Return offsets as an allocator finds them that takes values in order and frees each at its last use."""
    return _best_fit(intervals, sorted(range(len(intervals)), key=lambda i: intervals[i].start))


def _best_fit(intervals: Sequence[Interval], order: Sequence[int]) -> list[int]:
    """Place values in this order, each into the smallest gap between those that live at the same time."""
    count = len(intervals)
    starts = np.array([v.start for v in intervals])
    ends = np.array([v.end for v in intervals])
    sizes = np.array([rounded(v.nbytes) for v in intervals])
    offsets = np.zeros(count, np.int64)
    placed = np.zeros(count, bool)
    for i in order:
        others = np.flatnonzero(placed & (starts <= ends[i]) & (ends >= starts[i]) & (sizes > 0))
        others = others[np.argsort(offsets[others], kind="stable")]
        best, best_gap, top = None, None, 0
        for low, size in zip(offsets[others].tolist(), sizes[others].tolist()):
            gap = low - top
            if gap >= sizes[i] and (best_gap is None or gap < best_gap):
                best, best_gap = top, gap
            top = max(top, low + size)
        offsets[i] = top if best is None else best
        placed[i] = True
    return offsets.tolist()


def _top(intervals: Sequence[Interval], offsets: Sequence[int]) -> int:
    return max((o + rounded(v.nbytes) for v, o in zip(intervals, offsets)), default=0)


def live_bytes(intervals: Sequence[Interval]) -> list[int]:
    """Return the bytes that are live at each step."""
    steps = max((v.end for v in intervals), default=-1) + 1
    change = [0] * (steps + 1)
    for v in intervals:
        change[v.start] += rounded(v.nbytes)
        change[v.end + 1] -= rounded(v.nbytes)
    return np.cumsum(change[:steps]).tolist() if steps else []


def verify_offsets(
    intervals: Sequence[Interval], offsets: Sequence[int], arena_bytes: int, strategy: str
) -> None:
    """Check that no two values overlap in place and time, and that all lie inside the arena.

    Raises
    ------
    InternalError
        Names the strategy and the two values.
    """
    if len(offsets) != len(intervals):
        raise InternalError(
            f'memory strategy "{strategy}" gave {len(offsets)} offsets for {len(intervals)} values'
        )
    events = sorted(
        [(v.start, 1, i) for i, v in enumerate(intervals) if v.nbytes]
        + [(v.end + 1, 0, i) for i, v in enumerate(intervals) if v.nbytes]
    )
    live: dict[int, int] = {}
    for _, starts, i in events:
        if not starts:
            del live[i]
            continue
        low, high = offsets[i], offsets[i] + intervals[i].nbytes
        if low < 0 or high > arena_bytes or low % ALIGNMENT:
            raise InternalError(
                f'memory strategy "{strategy}" put {intervals[i].label or i} at bytes {low} to {high} '
                f"of an arena of {arena_bytes}; offsets must be inside and multiples of {ALIGNMENT}"
            )
        for j, offset in live.items():
            if offset < high and low < offset + intervals[j].nbytes:
                raise InternalError(
                    f'memory strategy "{strategy}" put {intervals[i].label or i} over {intervals[j].label or j}, '
                    "and both are live"
                )
        live[i] = low


STRATEGIES: dict[str, Strategy] = {"static": static, "naive": naive}


def plan_memory(intervals: Sequence[Interval], strategy: str) -> MemoryPlan:
    """Return verified offsets by a strategy's name."""
    offsets = find_strategy(strategy)(intervals)
    arena_bytes = _top(intervals, offsets)
    verify_offsets(intervals, offsets, arena_bytes, strategy)
    return MemoryPlan(offsets, arena_bytes, live_bytes(intervals))


def find_strategy(name: str) -> Strategy:
    """Return a strategy by name.

    Raises
    ------
    PluginNotInstalled
        No installed strategy has that name.
    """
    if name in STRATEGIES:
        return STRATEGIES[name]
    return partial(_planned, name, load("memory", name))


def _planned(name: str, strategy: Any, intervals: Sequence[Interval]) -> list[int]:
    """Return the offsets that a plugin's strategy gives, once they hold."""
    from .plugin import MemoryRequest

    try:
        schedule = strategy.plan(MemoryRequest(intervals, ALIGNMENT))
        offsets = [int(o) for o in schedule.offsets]
        top = _top(intervals, offsets)
        verify_offsets(intervals, offsets, top, name)
        if schedule.peak_bytes is not None and top > schedule.peak_bytes:
            raise ValueError(
                f"it stated a peak of {schedule.peak_bytes:,} bytes, and its layout takes {top:,}"
            )
    except InternalError as error:
        raise PluginContractError(first_line(error)) from None
    except Exception as error:
        text = f'memory strategy "{name}" failed: {type(error).__name__}: {first_line(error)}'
        raise PluginContractError(text) from error
    return offsets


def current_strategy() -> str:
    """Return the strategy's name in this context: ``memory(...)``, or ``MGE_MEMORY``."""
    return MODE.get().memory or debug.memory


@contextmanager
def memory(strategy: str, **options: Any) -> Iterator[None]:
    """Use a memory strategy for plans made inside the block.

    Parameters
    ----------
    strategy : str
        ``"static"`` (one arena, best of several layouts), ``"naive"`` (as an allocator would), or a plugin's name.
    **options
        Of the strategy, as ``budget="2GB"``; the built-in ones take none.

    Raises
    ------
    PluginNotInstalled
        No installed strategy has that name.
    ArgumentError
        The strategy takes no such option.

    Examples
    --------
    >>> with memory("naive"):
    ...     float((tensor([1.0, 2.0]) * 2).sum())
    6.0
    """
    find_strategy(strategy)
    if options:
        raise ArgumentError(f'memory: strategy "{strategy}" takes no option {sorted(options)[0]!r}')
    with changed(memory=strategy):
        yield


def check_limit(
    peak_bytes: int, limit: int | None, largest: Sequence[tuple[int, str]], what: str
) -> None:
    """Raise where a peak is over the limit.

    Raises
    ------
    OutOfMemory
        Says the peak, the limit, and the largest values with the lines that made them.
    """
    if limit is not None and peak_bytes > limit:
        values = "; ".join(f"{nbytes:,} bytes {label}" for nbytes, label in largest)
        raise OutOfMemory(
            f"{what}: it needs {peak_bytes:,} bytes at its peak and {limit:,} may be used (MGE_MEMORY_LIMIT)\n"
            f"  largest: {values}",
            hint="a smaller batch, a lower precision, or a memory strategy: mge.memory(...)",
        )
