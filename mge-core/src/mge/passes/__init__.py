"""The passes, in their order: functions from graph to graph.

In: what was recorded. Out: a graph that is ready for the schedule.
After ``refdevice``; before ``schedule``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ..debug import debug
from ..discovery import first_line
from ..errors import InternalError, PluginContractError
from ..graph import Graph
from ..registry import call_hooks
from .inline import inline_calls
from .lower import lower
from .order import order
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
    for name, function in list(_offered(graph)):
        graph = _run_offered(name, function, graph)
        if watch is not None:
            watch(name, graph)
    graph = order(graph)
    if debug.check:
        verify(graph, "order", before)
    if watch is not None:
        watch("order", graph)
    return graph


def _offered(graph: Graph) -> Iterator[tuple[str, Callable[[Graph], Graph]]]:
    """Yield the passes that devices of a graph, and plugins, have for it."""
    for device in sorted({n.sig.device for n in graph.nodes}, key=str):
        level = 0 if debug.deterministic or device.type == "ref" else 1
        yield from _named(device.type, getattr(device.backend, "passes", tuple))
        for plugin, passes in call_hooks("mge_graph_passes", device=device, level=level):
            yield from _named(plugin.name, passes.copy)


def _named(owner: str, passes: Callable[[], Iterable]) -> list[tuple[str, Callable]]:
    """Return passes with their owner in their names; where it offers no such thing, none and a warning line."""
    try:
        return [(f"{owner}:{name}", function) for name, function in passes()]
    except Exception as error:
        text = f"{type(error).__name__}: {first_line(error)}"
        debug.once(f'passes() of plugin "{owner}" was left out: {text}')
        return []


def _run_offered(name: str, function: Callable[[Graph], Graph], graph: Graph) -> Graph:
    """Run a plugin's pass; one that raises is left out, with a warning line."""
    try:
        made = function(graph)
        if not isinstance(made, Graph):
            raise TypeError(f"it gave {type(made).__name__}, and not a Graph")
    except Exception as error:
        debug.once(f'pass "{name}" was left out: {type(error).__name__}: {first_line(error)}')
        return graph
    if debug.check:
        try:
            verify(made, name, graph)
        except InternalError as error:
            raise PluginContractError(first_line(error)) from None
    return made
