"""The view: one HTML page with each compiled plan, its passes, memory and times.

In: the graph after each pass, and the plan. Out: the file that ``MGE_VIEW`` names, which needs nothing beside it.
After ``plan``; before ``cache``. The page itself is in the folder ``view_page``.
"""

from __future__ import annotations

import atexit
import json
import linecache
import os
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from .debug import debug
from .execute import WATCHERS
from .graph import GET, Graph, Node
from .passes.simplify import constant_value
from .text import print_attrs

__all__ = ["VIEW"]

LIMIT_NODES = 4_000  # of one graph; the rest is left out, and the page says so
LIMIT_BYTES = 24 << 20  # of all plans together; the oldest are left out first
LIMIT_TEXT = 400  # characters of one node's attributes
PATIENCE = 0.05  # part of the time that may go into writing, but for the last time
_PAGE = Path(__file__).with_name("view_page")


class View:
    """Collects plans and writes the page: at each plan, unless that would take long, and at the end."""

    def __init__(self) -> None:
        self._plans: deque[_Entry] = deque()
        self._entries: WeakKeyDictionary[Any, _Entry] = WeakKeyDictionary()
        self._count = 0
        self._path = ""
        self._started = time.time()
        self._not_before = 0.0  # on the clock of ``time.monotonic``
        self.collector: Callable[..., None] | None = None  # takes in plans in place of the page

    def add(self, stages: Sequence[tuple[str, Graph]], plan: Any, prologue: Any = None) -> None:
        """Take in a plan with the graph after each pass; write the page.

        Parameters
        ----------
        stages : sequence of (name, Graph)
        plan : Plan
        prologue : Plan, optional
            What is computed before it, once for each version of the parameters.
        """
        if self.collector is not None:
            self.collector(stages, plan, prologue)
            return
        self._path = debug.view
        self._count += 1
        entry = self._entries[plan] = _Entry(self._count, stages, plan, prologue)
        self._plans.append(entry)
        while len(self._plans) > 1 and sum(len(p.text) for p in self._plans) > LIMIT_BYTES:
            self._plans.popleft()
        if time.monotonic() >= self._not_before:
            self.write()

    def watch(self, plan: Any, number: int, start: int, end: int) -> None:
        """Take in the time of one step; the executor calls this."""
        entry = self._entries.get(plan)
        if entry is not None:
            entry.time(number, start, end)

    def write(self) -> None:
        """Write the page in place of an earlier one, in one move."""
        start = time.monotonic()
        path = Path(self._path or debug.view)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            part.write_text(self.page(), encoding="utf-8")
            os.replace(part, path)
        except OSError as error:
            debug.once(f"view: {path} cannot be written: {error.strerror or error}")
            part.unlink(missing_ok=True)
        end = time.monotonic()
        self._not_before = end + (end - start) / PATIENCE

    def page(self) -> str:
        """Return the page as text."""
        about = {
            "program": " ".join([os.path.basename(sys.argv[0] or "python"), *sys.argv[1:]])[:200],
            "started": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self._started)),
            "folder": os.getcwd(),
            "left_out": self._count - len(self._plans),
            "counts": debug.stats(),
            "times": {p.number: p.times() for p in self._plans},
        }
        data = f'{{"about":{json.dumps(about)},"plans":[{",".join(p.text for p in self._plans)}]}}'
        page = (_PAGE / "page.html").read_text(encoding="utf-8")
        style = (_PAGE / "page.css").read_text(encoding="utf-8")
        scripts = [p.read_text(encoding="utf-8") for p in sorted(_PAGE.glob("*.js"))]
        for mark, text in (
            ("/* style */", style),
            ("/* script */", "\n".join(scripts)),
            ("/* data */", data.replace("<", "\\u003c")),
        ):
            before, _, after = page.partition(mark)
            page = before + text + after
        return page

    def finish(self) -> None:
        """Write the page a last time, also where no plan was compiled: it says why."""
        if self._path or debug.view:
            self.write()


class _Entry:
    """One plan as JSON text, with the times of its steps beside it."""

    def __init__(
        self, number: int, stages: Sequence[tuple[str, Graph]], plan: Any, prologue: Any
    ) -> None:
        self.number = number
        described = {"number": number, **_described_stages(stages, plan), **_described_plan(plan)}
        if prologue is not None:
            described["prologue"] = _described_plan(prologue)
        self.text = json.dumps(described, separators=(",", ":"))
        self.runs = 0
        self.first: list[int] = []  # ns, of the first run
        self.best: list[int] = []
        self.last: list[tuple[int, int]] = []  # start and end

    def time(self, number: int, start: int, end: int) -> None:
        """Keep the first, best and latest time of a step."""
        if number == 0:
            self.runs += 1
            self.last = []
        self.last.append((start, end))
        if self.runs == 1:
            self.first.append(end - start)
            self.best.append(end - start)
        elif number < len(self.best):
            self.best[number] = min(self.best[number], end - start)

    def times(self) -> dict[str, Any]:
        """Return the times in ns, from the start of each run."""
        begin = self.last[0][0] if self.last else 0
        last = [(start - begin, end - begin) for start, end in self.last]
        return {"runs": self.runs, "first": self.first, "best": self.best, "last": last}


def _described_stages(stages: Sequence[tuple[str, Graph]], plan: Any) -> dict[str, Any]:
    """Return nodes and stages: a node that a pass leaves alone has the same number before and after."""
    nodes: list[list[Any]] = []
    places: dict[str, int] = {}
    made: list[dict[str, Any]] = []
    known: dict[Node, int] = {}  # of the stage before
    for name, graph in [*stages, ("planned", plan.graph)]:
        every = [*graph.inputs, *graph.nodes]
        kept = every[:LIMIT_NODES]
        waiting: dict[tuple, deque[int]] = defaultdict(deque)
        same = {n: known[n] for n in kept if n in known}
        for number in sorted(set(known.values()) - set(same.values())):
            waiting[tuple(nodes[number])].append(number)
        numbers: dict[Node, int] = {}
        for node in kept:
            if node in same:
                numbers[node] = same[node]
                continue
            facts = _facts(node, places)
            alike = waiting.get(tuple(facts))
            numbers[node] = alike.popleft() if alike else len(nodes)
            if numbers[node] == len(nodes):
                nodes.append(facts)
        made.append(
            {
                "name": name,
                "nodes": [
                    [numbers[n], [numbers[i] for i in n.inputs if i in numbers]] for n in kept
                ],
                "inputs": len(graph.inputs),
                "outputs": [numbers[o] for o in graph.outputs if o in numbers],
                "left_out": len(every) - len(kept),
            }
        )
        known = numbers
    steps = [known.get(s.slot.node, -1) for s in plan.steps]
    lines = [[place, _source(place)] for place in places]
    return {"nodes": nodes, "places": lines, "stages": made, "step_nodes": steps}


def _facts(node: Node, places: dict[str, int]) -> list[Any]:
    """Return kind, op, types, attributes, place, device and bytes of a node, for people to read."""
    sig = node.sig
    kind = "op"
    if sig.op.is_leaf:
        kind = "parameter" if sig.attrs else "input"
    elif sig.op is GET:
        kind = "get"
    elif sig.op.name == "constant":
        kind = "constant"
    attrs = print_attrs(tuple((k, _short(v)) for k, v in sig.attrs if not sig.op.is_leaf)).strip(
        " {}"
    )
    if kind == "constant" and sig.type.size <= 8:
        attrs = f"value={constant_value(node).tolist()}"
    place = -1 if node.place is None else places.setdefault(node.place, len(places))
    types = ", ".join(map(repr, sig.types))
    return [kind, sig.op.name, types, attrs[:LIMIT_TEXT], place, str(sig.device), sig.nbytes]


class _Words(str):
    """Text that prints as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _short(value: Any) -> Any:
    """Return an attribute, or a few words for one that is long."""
    if isinstance(value, (bytes, bytearray)) and len(value) > 16:
        return _Words(f"{len(value):,} bytes")
    if isinstance(value, Graph):
        return _Words(f"a graph of {len(value.nodes)} nodes")
    return value


def _source(place: str) -> str:
    """Return the text of a ``file:line``, or nothing."""
    file, _, line = place.rpartition(":")
    return linecache.getline(file, int(line)).strip()[:200]


def _described_plan(plan: Any) -> dict[str, Any]:
    """Return steps, values, storages and memory of a plan."""
    storages = []
    for i, s in enumerate(plan.storages):
        offset = plan.memory.offsets[plan.arena[i]] if s.kind == "arena" else None
        source = s.source if isinstance(s.source, int) else None
        storages.append([s.kind, s.nbytes, offset, s.start, s.end, s.label, source])
    return {
        "device": str(plan.device),
        "strategy": plan.strategy,
        "arena_bytes": plan.memory.arena_bytes,
        "result_bytes": plan.result_bytes,
        "peak_bytes": plan.peak_bytes,
        "timeline": plan.timeline(),
        "donated": list(plan.donated),
        "overwrites_from": plan.overwrites_from,
        "outputs": list(plan.outputs),
        "values": [[repr(v.type), v.storage] for v in plan.values],
        "storages": storages,
        "steps": [
            [
                s.slot.node.sig.op.name,
                f"{s.slot.node.sig.device}/{s.slot.stream}",
                list(s.inputs),
                list(s.outputs),
                list(s.slot.waits),
                getattr(s.kernel, "name", ""),
            ]
            for s in plan.steps
        ],
    }


VIEW = View()
WATCHERS.append(VIEW.watch)
atexit.register(VIEW.finish)
