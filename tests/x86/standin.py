"""Device ``x86`` by NumPy references: tests of the passes need no native kernels, and no particular processor.

In: nothing. Out: ``device()``; ``recorded`` graphs of functions (``inference``, ``training``), ``values`` of graphs.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import mge
import mge.functional as F
from mge import device as device_module
from mge.autodiff import GradManager
from mge.debug import debug
from mge.device import Device
from mge.graph import GET, LOCAL, Graph, Recording
from mge.optimizer import SGD
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


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    """Make the stand-in the default device; verify graphs after each pass. Loops have tests of their own."""
    monkeypatch.setattr(device_module, "_default", [device(without=["fuse"])])
    with debug(check=1):
        yield


def ready(module, train=False):
    """Return a module whose parameters have values, and batch statistics that are not 0 and 1."""
    rng = np.random.default_rng(0)
    for tensor in [*module.parameters(), *module.buffers()]:
        shape = tensor.shape
        is_factor = tensor.ndim == 1 or shape[0] == 1
        drawn = rng.uniform(0.5, 1.5, shape) if is_factor else rng.normal(size=shape)
        tensor[...] = (drawn if is_factor else drawn * np.prod(shape[1:]) ** -0.5).astype("float32")
    module.train(train)
    mge.sync()
    return module


def image(*shape):
    return mge.tensor(np.random.default_rng(1).normal(size=shape).astype("float32"))


def inference(module, *shape):
    module, x = ready(module), image(*shape)
    mge.sync()
    return recorded(lambda: [module(x)])


def training(module, *shape, labels=None, classes=5):
    """Return the graph of a training step: running statistics, the loss, the new parameters."""
    module, x = ready(module, train=True), image(*shape)
    label = mge.tensor(np.random.default_rng(2).integers(0, classes, labels or shape[0]))
    parameters = list(module.parameters())
    manager = GradManager().attach(parameters)
    optimizer = SGD(parameters, lr=0.1, momentum=0.9)
    mge.sync()

    def step():
        with manager:
            loss = F.cross_entropy(module(x), label)
            manager.backward(loss)
        optimizer.step()
        return [*module.buffers(), loss, *parameters]

    return recorded(step)
