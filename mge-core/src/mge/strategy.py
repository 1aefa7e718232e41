"""The contract of memory strategies: what one is asked, and what it answers.

In: nothing. Out: ``MemoryRequest``, ``MemorySchedule`` and its steps, ``MemoryStrategy``.
After ``native``; before ``plugin``, which offers these names. ``replay`` checks and carries out the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class NodeInfo(NamedTuple):
    """One step that the plan has to run.

    Attributes
    ----------
    number : int
        Its position in ``MemoryRequest.nodes``, whose order is one that works.
    op : str
    inputs, outputs : tuple of int
        Values. Views (``reshape`` and the like) take no step: who reads a view reads what it is a view of.
    time_ns : float
        Modelled from multiply-adds and bytes, or measured.
    is_measured : bool
    workspace_bytes : int, bytes
        Scratch while it runs.
    is_pure : bool
        It may run several times, and anywhere. The others run once, in the order of ``number``.
    inplace : tuple of (int, int)
        Pairs (input, output) of values. An output takes the bytes of the first of its inputs that no later step reads,
        that the step reads once, and that no output before it took. An input of the plan among them is one that may be
        overwritten.
    phase : {"forward", "backward", "update"}
        ``"update"`` writes over an input of the plan.
    device : str
    place : str or None
        The user's line.
    """

    number: int
    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    time_ns: float
    is_measured: bool
    workspace_bytes: int
    is_pure: bool
    inplace: tuple[tuple[int, int], ...]
    phase: str
    device: str
    place: str | None


class ValueInfo(NamedTuple):
    """One value that steps read or make.

    Attributes
    ----------
    number : int
        Its position in ``MemoryRequest.values``.
    nbytes : int, bytes
    pinned : {"", "input", "parameter", "constant", "output"}
        ``"output"`` must be there at the end, and takes memory of its own beside the arena. The three before are
        there all the time, take no memory of the plan, and cannot be freed.
    device : str
        In whose memory it is.
    label : str
        What it holds, for messages.
    """

    number: int
    nbytes: int
    pinned: str
    device: str
    label: str


class Run(NamedTuple):
    """A step: compute a node. Later steps read the values that it makes now."""

    node: int
    kind: str = "run"


class Free(NamedTuple):
    """A step: give up a value. It may be read again after a further ``Run`` of the node that makes it."""

    value: int
    kind: str = "free"


class Offload(NamedTuple):
    """A step: ``store(array)`` takes a value elsewhere, and the value is given up.

    ``store`` returns a token, an int64 array of shape (1,), that ``Prefetch`` gives back. In host memory only.
    """

    value: int
    store: Callable[[Any], Any]
    kind: str = "offload"


class Prefetch(NamedTuple):
    """A step: ``load(token)`` returns the array of a value that was offloaded; later steps read it."""

    value: int
    load: Callable[[Any], Any]
    kind: str = "prefetch"


Step = Run | Free | Offload | Prefetch


class MemoryRequest(NamedTuple):
    """What a memory strategy is asked for.

    Attributes
    ----------
    nodes : sequence of NodeInfo
    values : sequence of ValueInfo
    budget_bytes : int, bytes, or None
        Arena, scratch of kernels and results, of all devices together, may take no more.
    options : mapping of str to value
        Those that the strategy declares, as the user set them.
    alignment : int, bytes
        Every value takes a multiple of it.
    measure : callable
        ``measure(steps)`` returns the peak in bytes that the plan has with these steps: what
        ``MemorySchedule.peak_bytes`` may state. It lays out the whole plan, so it costs milliseconds.
    """

    nodes: Sequence[NodeInfo]
    values: Sequence[ValueInfo]
    budget_bytes: int | None
    options: Mapping[str, Any]
    alignment: int
    measure: Callable[[Sequence[Step]], int]


class MemoryReport(NamedTuple):
    """What a strategy knows of its schedule beside the steps.

    Attributes
    ----------
    predicted_ns : float
        Time of all its runs.
    floor_bytes : int, bytes, or None
        The least that any schedule of the strategy takes.
    floor_node : int or None
        Which node sets the floor.
    reason : str
        Why no schedule keeps the budget, and what would help.
    """

    predicted_ns: float = 0.0
    floor_bytes: int | None = None
    floor_node: int | None = None
    reason: str = ""


class MemorySchedule(NamedTuple):
    """What a memory strategy answers. The core replays and checks it before anything runs.

    Attributes
    ----------
    steps : sequence of Run, Free, Offload and Prefetch
        Each node runs at least once, after what it reads. A value whose last reader ran is freed in any case.
    peak_bytes : int, bytes, or None
        Arena, scratch and results, where the strategy states them; the plan must not take more.
    report : MemoryReport or None
    """

    steps: Sequence[Step]
    peak_bytes: int | None = None
    report: MemoryReport | None = None


class MemoryStrategy:
    """A way to use memory: the base of what an entry point in ``mge.memory`` gives.

    It may decide what runs when (``plan``), where values lie (``layout``), or both.

    Attributes
    ----------
    name : str
        The entry point's name, as in ``mge.memory("sublinear")``.
    options : mapping of str to value
        The options that users may set, beside ``budget``, with their defaults: bool, int, float, str, or None for
        a finite number without default. By custom ``max_slowdown`` is a share of the time (0.1), ``seed`` an int and
        ``time_limit`` seconds of planning.
    """

    name = ""
    options: Mapping[str, Any] = {}

    def check(self, name: str, value: Any) -> str | None:
        """Return the rule that an option breaks, as ``"0 or more, as 0.1"``; None where the value is fine.

        It is asked when users state an option, with a value of the kind of the default. The error that they get
        names strategy, option and value, and ends in "it must be" and the rule.
        """
        return None

    def plan(self, request: MemoryRequest) -> MemorySchedule | None:
        """Return what runs when; None keeps the order of ``request.nodes``."""
        return None

    def layout(self, values: Sequence[Any], alignment: int) -> Sequence[int] | None:
        """Return where each value begins in the arena, in bytes; None takes the best of several greedy layouts.

        Parameters
        ----------
        values : sequence of Interval
            Each with ``start`` and ``end`` (its first and last step), ``nbytes`` and ``label``. Values that share
            bytes, in place or as views, are one here.
        alignment : int, bytes
            Offsets are multiples of it.
        """
        return None
