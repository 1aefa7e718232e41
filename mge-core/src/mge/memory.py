"""Memory: offsets in one arena for values that live at different times, by the strategy that the user chose.

In: how long each value lives and how large it is. Out: offsets, the peak in bytes, and a check of both.
After ``schedule``; before ``replay``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import index
from typing import Any, NamedTuple

import numpy as np

from .debug import debug
from .device import parse_bytes
from .discovery import first_line
from .errors import ArgumentError, OutOfMemory, PluginContractError
from .mode import MODE, changed
from .registry import load
from .strategy import MemoryStrategy

ALIGNMENT = 64
PAGE = 1 << 21  # bytes that a layout may leave free beside each value
REPAIRS = 6  # of a layout


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


def rounded(nbytes: int) -> int:
    """Return a size as a multiple of the alignment; an empty value takes no room."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def best_layout(intervals: Sequence[Interval]) -> list[int]:
    """Return offsets by the best of several greedy orders.

    First comes what lives when most is live, with or without scratch, by size or by lifetime; then by size, lifetime,
    their product, first or last step. After these, what reaches the top of the best one goes first, a few times.
    """
    live = live_bytes(intervals)
    bound = max(live, default=0)
    most = [max(live[v.start : v.end + 1]) for v in intervals]  # that is live while it is
    orders: list[Callable[[Interval, int], Any]] = [
        lambda v, most: (v.end > v.start, most, v.nbytes),
        lambda v, most: (most, v.nbytes),
        lambda v, most: (most, v.end - v.start, v.nbytes),
        lambda v, _: v.nbytes,
        lambda v, _: (v.end - v.start, v.nbytes),
        lambda v, _: v.nbytes * (v.end - v.start + 1),
        lambda v, _: -v.start,
        lambda v, _: v.end,
    ]
    found: list[tuple[int, list[int], list[int]]] = []  # the top, offsets, the order
    for order in orders:
        keys = list(map(order, intervals, most))
        ranked = sorted(range(len(intervals)), key=keys.__getitem__, reverse=True)
        offsets = _best_fit(intervals, ranked)
        found.append((_top(intervals, offsets), offsets, ranked))
        if found[-1][0] == bound:
            return offsets  # no layout is smaller
    _, offsets, ranked = min(found, key=lambda f: f[0])
    for _ in range(REPAIRS):
        top = max(ranked, key=lambda i: offsets[i] + intervals[i].nbytes)
        ranked = [top, *(i for i in ranked if i != top)]
        offsets = _best_fit(intervals, ranked)
        found.append((_top(intervals, offsets), offsets, ranked))
    return min(found, key=lambda f: f[0])[1]


class Static(MemoryStrategy):
    """The best order and the best of several layouts that the core knows: what the base class does."""

    name = "static"


class Naive(MemoryStrategy):
    """That order, and offsets as an allocator finds them that frees each value at its last use."""

    name = "naive"

    def layout(self, values: Sequence[Any], alignment: int) -> list[int]:
        """Place values in the order in which they are made."""
        return _best_fit(values, sorted(range(len(values)), key=lambda i: values[i].start))


def _best_fit(intervals: Sequence[Interval], order: Sequence[int]) -> list[int]:
    """Place values in this order, each into the smallest gap between those that live at the same time."""
    offsets = [0] * len(intervals)
    placed = np.empty((4, len(intervals)), np.int64)  # by offset: start, end, offset, offset behind
    count, none = 0, 1 << 62
    for i in order:
        start, end, size = intervals[i].start, intervals[i].end, rounded(intervals[i].nbytes)
        if not size:
            continue
        starts, ends, lows, highs = placed[:, :count]
        beside = np.flatnonzero((starts <= end) & (ends >= start))
        if beside.size:
            reach = np.maximum.accumulate(highs[beside])
            gaps = lows[beside]
            gaps[1:] -= reach[:-1]
            gaps[gaps < size] = none
            k = int(gaps.argmin())
            before = k - 1 if gaps[k] < none else -1
            offsets[i] = int(reach[before]) if k or gaps[k] == none else 0
        at = int(np.searchsorted(lows, offsets[i], side="right"))
        placed[:, at + 1 : count + 1] = placed[:, at:count].copy()
        placed[:, at] = start, end, offsets[i], offsets[i] + size
        count += 1
    return offsets


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
    PluginContractError
        Names the strategy and the two values.
    """
    if len(offsets) != len(intervals):
        text = f"{len(offsets)} offsets for {len(intervals)} values"
        raise PluginContractError(f'memory strategy "{strategy}" gave {text}')
    filled = [(i, v) for i, v in enumerate(intervals) if v.nbytes]
    events = sorted([(v.start, 1, i) for i, v in filled] + [(v.end + 1, 0, i) for i, v in filled])
    live: dict[int, int] = {}
    for _, starts, i in events:
        if not starts:
            del live[i]
            continue
        put = f'memory strategy "{strategy}" put {intervals[i].label or i}'
        low, high = offsets[i], offsets[i] + intervals[i].nbytes
        if low < 0 or high > arena_bytes or low % ALIGNMENT:
            rule = f"offsets must be inside and multiples of {ALIGNMENT}"
            place = f"at bytes {low} to {high} of an arena of {arena_bytes}"
            raise PluginContractError(f"{put} {place}; {rule}")
        for j, offset in live.items():
            if offset < high and low < offset + intervals[j].nbytes:
                other = intervals[j].label or j
                raise PluginContractError(f"{put} over {other}, and both are live")
        live[i] = low


STRATEGIES: dict[str, MemoryStrategy] = {"static": Static(), "naive": Naive()}


class Choice(NamedTuple):
    """A strategy as the user asked for it.

    Attributes
    ----------
    name : str
    strategy : MemoryStrategy
    budget : str
        ``"2GB"``, ``"50%"`` of the peak of ``static``, or empty for no budget.
    options : dict
        Those that the strategy declares.
    replan : bool
        A plan may be replaced once its steps have been timed.
    """

    name: str
    strategy: Any
    budget: str
    options: dict[str, Any]
    replan: bool = True

    @property
    def decides_order(self) -> bool:
        """Whether the strategy says what runs when."""
        return getattr(self.strategy.plan, "__func__", None) is not MemoryStrategy.plan

    def budget_bytes(self, static_peak: Callable[[], int]) -> int | None:
        """Return the budget of a plan; ``static_peak()`` gives what the strategy ``static`` takes for it."""
        if self.budget.endswith("%"):
            return int(static_peak() * float(self.budget[:-1]) / 100)
        return parse_bytes(self.budget) if self.budget else None

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the strategy.

        Raises
        ------
        OutOfMemory
            It says that nothing fits.
        PluginContractError
            It raised anything else; names the strategy.
        """
        try:
            return getattr(self.strategy, method)(*arguments)
        except (OutOfMemory, PluginContractError, KeyboardInterrupt):
            raise
        except BaseException as error:  # SystemExit, too: a plugin must not end the program
            text = f"{type(error).__name__}: {first_line(error)}"
            raise PluginContractError(f'memory strategy "{self.name}" failed: {text}') from error


def plan_memory(intervals: Sequence[Interval], strategy: str) -> MemoryPlan:
    """Return verified offsets by a strategy, as ``find_strategy`` takes it."""
    choice = find_strategy(strategy)
    has_layout = hasattr(choice.strategy, "layout")
    given = choice.ask("layout", intervals, ALIGNMENT) if has_layout else None
    try:
        offsets = best_layout(intervals) if given is None else [*map(index, given)]
        arena_bytes = _top(intervals, offsets)
        if arena_bytes > sum(rounded(v.nbytes) + PAGE for v in intervals):
            raise ValueError
    except (TypeError, ValueError) as error:
        text = f'memory strategy "{choice.name}" gave a layout {given!r:.60}'
        raise PluginContractError(f"{text}; it must be offsets in bytes, close together") from error
    verify_offsets(intervals, offsets, arena_bytes, choice.name)
    return MemoryPlan(offsets, arena_bytes, live_bytes(intervals))


def find_strategy(text: str) -> Choice:
    """Return a strategy by name, with options as in ``"sublinear:budget=2GB,seed=3"``, once it takes them.

    Raises
    ------
    PluginNotInstalled
        No installed strategy has that name.
    ArgumentError
        The strategy takes no such option, or not that value, or the option is given twice.
    """
    if not isinstance(text, str) or not text:
        raise ArgumentError(f"memory: strategy is {text!r}; it must be a name, as 'static'")
    name, colon, words = text.partition(":")
    strategy = STRATEGIES.get(name) or load("memory", name)
    defaults: dict[str, Any] = {"budget": "", "replan": True, **getattr(strategy, "options", {})}
    stated: dict[str, str] = {}
    for word in words.split(",") if colon else ():
        key, _, value = (part.strip() for part in word.partition("="))
        if key not in defaults:
            known = ", ".join(defaults)
            text = f'memory: strategy "{name}" takes no option {key!r}; it takes {known}'
            raise ArgumentError(text)
        if key in stated:
            raise _refused(name, key, f"{stated[key]}, {value}", "given once", defaults[key])
        stated[key] = value
    values = {k: _option(name, k, stated[k], d) if k in stated else d for k, d in defaults.items()}
    budget, replan = values.pop("budget"), values.pop("replan")
    choice = Choice(name, strategy, budget, replan=replan, options=values)
    for key in [k for k in stated if k in values and hasattr(strategy, "check")]:
        if (rule := choice.ask("check", key, values[key])) is not None:
            raise _refused(name, key, values[key], rule, defaults[key])
    return choice


def _option(name: str, key: str, text: str, default: Any) -> Any:
    """Return the value of an option, of the kind of its default."""
    words = {"true": True, "1": True, "false": False, "0": False}
    kinds = {bool: "true or false", int: "a whole number", float: "a finite number"}
    kind = float if default is None else type(default)
    try:
        size = 0.0
        if key == "budget":
            size = float(text[:-1]) if text.endswith("%") else parse_bytes(text)
        value = words[text.lower()] if kind is bool else kind(text)
        if not 0 <= size < np.inf or (kind is float and not np.isfinite(value)):
            raise ValueError
        return value
    except (ValueError, KeyError):
        what = "a size as 2GB, or a share as 50%" if key == "budget" else kinds[kind]
        raise _refused(name, key, text, what, default) from None


def _refused(name: str, key: str, value: Any, rule: str, default: Any) -> ArgumentError:
    where = f'memory: option {key} of strategy "{name}"'
    hint = "leave it out" + (f" (default: {default})" if default not in (None, "") else "")
    return ArgumentError(f"{where} is {value!r}; it must be {rule}", hint=hint)


def with_options(strategy: str, **options: Any) -> str:
    """Return a strategy with further options, as ``"sublinear:seed=3,budget=2GB"``, once it takes them all."""
    find_strategy(strategy)
    for key in (key for key, value in options.items() if "," in str(value)):
        raise ArgumentError(f"memory: option {key} is {options[key]!r}; it must hold no comma")
    words = ",".join(f"{key}={value}" for key, value in sorted(options.items()))
    text = strategy + ("," if ":" in strategy else ":") + words if words else strategy
    find_strategy(text)
    return text


def current_strategy() -> str:
    """Return the strategy with its options in this context: ``memory(...)``, or ``MGE_MEMORY``."""
    return MODE.get().memory or debug.memory or "static"


@contextmanager
def memory(strategy: str, **options: Any) -> Iterator[None]:
    """Use a memory strategy for plans made inside the block.

    Parameters
    ----------
    strategy : str
        ``"static"`` (one arena, best of several layouts), ``"naive"`` (as an allocator would), or a plugin's name;
        options may follow, as in ``"sublinear:budget=2GB"``.
    **options
        ``budget``: bytes that the arena, the scratch of kernels and the results of a plan may take, as ``2GB``, a
        number, or ``50%`` of what ``static`` takes; a plan that needs more is an ``OutOfMemory`` before it runs.
        ``replan=False``: keep the first plan, also where a second one, by times of its first runs, would be faster.
        Further options are the strategy's own.

    Raises
    ------
    PluginNotInstalled
        No installed strategy has that name.
    ArgumentError
        The strategy takes no such option, or not that value, or the option is given twice.

    Examples
    --------
    >>> with memory("naive", budget="1MB"):
    ...     float((tensor([1.0, 2.0]) * 2).sum())
    6.0
    """
    with changed(memory=with_options(strategy, **options)):
        yield


def check_stated(name: str, stated_bytes: int | None, peak_bytes: int) -> None:
    """Raise where a plan takes more than its strategy stated.

    Raises
    ------
    PluginContractError
        Names the strategy.
    """
    is_number = hasattr(stated_bytes, "__index__")
    if stated_bytes is not None and not (is_number and peak_bytes <= stated_bytes):
        text = f'memory strategy "{name}" stated a peak of {stated_bytes!r} bytes'
        raise PluginContractError(f"{text}, and its plan takes {peak_bytes}")


def check_limit(
    peak_bytes: int,
    limit: int | None,
    largest: Sequence[tuple[int, str]],
    what: str,
    rule: str,
    floor: str = "",
) -> None:
    """Raise where a peak is over the limit that a rule sets.

    Raises
    ------
    OutOfMemory
        Says the peak, the limit, the rule, and the largest values with the lines that made them.
    """
    if limit is not None and peak_bytes > limit:
        values = "; ".join(f"{nbytes:,} bytes {label}" for nbytes, label in largest)
        raise OutOfMemory(
            f"{what}: it needs {peak_bytes:,} bytes at its peak and {limit:,} may be used ({rule})\n"
            f"{floor}  largest: {values}",
            hint="a smaller batch, a lower precision, or a memory strategy: mge.memory(...)",
        )
