"""Device ``x86`` by NumPy references: tests of the passes need no native kernels, and no particular processor.

In: nothing. Out: ``device()``; ``recorded`` graphs of functions, and ``values`` of graphs.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from mge.device import Device
from mge.graph import GET, LOCAL, Graph, Recording
from mge.passes import optimise
from mge.refdevice import RefBackend

mge_x86 = pytest.importorskip("mge_x86", reason="the plugin mge-x86 is not installed")
ops = importlib.import_module("mge_x86.ops")
for _module in pkgutil.iter_modules(ops.__path__):
    importlib.import_module(f"{ops.__name__}.{_module.name}")
passes = importlib.import_module("mge_x86.passes")


class StandIn(RefBackend):
    """References for kernels, and the passes of the real device."""

    name = "x86"
    refused: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()

    def supports(self, dev: int, sig: Any) -> str | None:
        """Refuse what a test wants refused."""
        return "refused by the test" if sig.op.name in self.refused else None

    def passes(self) -> Any:
        """Return the passes of the real device, but those that a test leaves out."""
        return [
            (name, _noting(name, run)) for name, run in passes.passes() if name not in self.without
        ]


FAILED: list[str] = []  # the core leaves out a pass that raises; tests must not


def _noting(name: str, run: Callable[[Graph], Graph]) -> Callable[[Graph], Graph]:
    """Return a pass that notes what it raises."""

    def noted(graph: Graph) -> Graph:
        try:
            return run(graph)
        except Exception as error:
            FAILED.append(f"pass {name}: {error!r}")
            raise

    return noted


def device(refused: Sequence[str] = (), without: Sequence[str] = ()) -> Device:
    """Return a device of its own, without kernels for some ops and without some passes."""
    backend = StandIn()
    backend.refused, backend.without = frozenset(refused), frozenset(without)
    return Device(backend, 0)


def recorded(function: Callable[[], Any]) -> tuple[Graph, list[np.ndarray]]:
    """Return the graph of what a function returns (tensors), which is not run, and the values of its inputs."""
    LOCAL.recording, LOCAL.requested = Recording(), None
    results = function()
    recording = LOCAL.requested or LOCAL.recording  # the former: an optimizer asked for a run
    graph = recording.graph([t._node for t in results])
    arrays = [n.buffer.array for n in recording.leaves]
    LOCAL.recording, LOCAL.requested = Recording(), None
    return graph, arrays


def values(graph: Graph, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the outputs of a graph, by the references of its ops."""
    known: dict[Any, Any] = dict(zip(graph.inputs, arrays, strict=True))
    for node in graph.nodes:
        given = [known[i] for i in node.inputs]
        if node.sig.op is GET:
            known[node] = given[0][node.sig.attrs[0][1]]
            continue
        made = [np.empty(t.shape, t.dtype.dtype) for t in node.sig.types]
        with np.errstate(all="ignore"):
            node.sig.device.kernel(node.sig)(given, made, None)
        known[node] = made[0] if node.sig.single else made
    return [known[o] for o in graph.outputs]


def check(graph: Graph, arrays: Sequence[np.ndarray], tolerance: float = 2e-5) -> Graph:
    """Compile a graph; fail where its values differ by more than rounding. Return what it became."""
    FAILED.clear()
    made = optimise(graph)
    assert not FAILED
    before, after = values(graph, arrays), values(made, arrays)
    # Gradients that cancel out (of a bias before a batch norm) are rounding alone: all are measured by the largest.
    scale = max((np.abs(x[np.isfinite(x)]).max(initial=0.0) for x in before), default=0.0)
    for wanted, got in zip(before, after, strict=True):
        assert wanted.dtype == got.dtype
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance * max(scale, 1e-3))
    return made


def counted(graph: Graph) -> Counter[str]:
    """Return how many nodes of each op a graph has."""
    return Counter(n.sig.op.name for n in graph.nodes)
