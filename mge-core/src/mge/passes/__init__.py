"""The passes, in their order: functions from graph to graph.

In: what was recorded. Out: a graph that is ready for the schedule.
After ``refdevice``; before ``schedule``.
"""

from __future__ import annotations

from collections.abc import Callable

from ..debug import debug
from ..graph import Graph
from .inline import inline_calls
from .lower import lower
from .place import place
from .simplify import simplify
from .verify import verify

PASSES: list[tuple[str, Callable[[Graph], Graph]]] = [
    ("inline", inline_calls),
    ("simplify", simplify),
    ("lower", lower),
    ("tidy", simplify),
    ("place", place),
]


def optimise(graph: Graph, watch: Callable[[str, Graph], None] | None = None) -> Graph:
    """Run all passes; ``watch`` is told each pass's name and result.

    Raises
    ------
    InternalError
        ``MGE_CHECK`` is set and a pass made a graph that does not hold together.
    """
    if watch is not None:
        watch("recorded", graph)
    before = graph
    for name, function in PASSES:
        graph = function(graph)
        if debug.check:
            verify(graph, name, before)
        if debug.debug >= 3:
            debug.log(3, f"after {name}:\n{graph}")
        if watch is not None:
            watch(name, graph)
    return graph
