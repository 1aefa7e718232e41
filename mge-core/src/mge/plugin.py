"""What plugins build on: the only module of the core, beside ``mge`` itself, that is promised to them.

In: nothing. Out: base classes for the five groups of entry points, the hooks, ``API``, helpers.
After ``discovery``; before ``registry``.

A plugin is a distribution with an entry point in one of the groups ``mge.backends``, ``mge.memory``,
``mge.quantizers``, ``mge.ops`` and ``mge.hooks``. The entry point's name is what users type. Its value is a class or
function that is called without arguments, or a ready object. It may state ``MGE_PLUGIN_API = (major, minor)``: the
version of this module that it was made for, by default ``(1, 0)``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pluggy

from .buffer import CopyKind, DeviceArray
from .capture import rewrite
from .errors import OutOfMemory, PluginUnavailable, UnsupportedError
from .graph import Graph, Node, Signature
from .native import NativeBackend
from .op import OPS, op
from .strategy import (
    Free,
    MemoryReport,
    MemoryRequest,
    MemorySchedule,
    MemoryStrategy,
    NodeInfo,
    Offload,
    Prefetch,
    Run,
    ValueInfo,
)
from .types import Type, abstract

__all__ = [
    "API", "Backend", "CopyKind", "DeviceArray", "Free", "Graph", "HostBackend", "MemoryReport", "MemoryRequest",
    "MemorySchedule", "MemoryStrategy", "NativeBackend", "Node", "NodeInfo", "Offload", "OperatorLibrary",
    "OutOfMemory", "Prefetch", "Quantizer", "Run", "Signature", "Type", "UnsupportedError", "ValueInfo", "abstract",
    "find_library", "hookimpl", "op", "rewrite",
]  # fmt: skip

API = (1, 0)  # within a major version, this module only grows

hookimpl = pluggy.HookimplMarker("mge")
_hookspec = pluggy.HookspecMarker("mge")

Kernel = Callable[[Sequence[Any], Sequence[Any], Any], None]  # (inputs, outputs, stream)


class Backend:
    """A type of device: the base of what an entry point in ``mge.backends`` gives.

    Attributes
    ----------
    name : str
        The entry point's name, as in ``"acme:0"``.
    priority : int
        ``"auto"`` takes the usable backend with the highest. The built-in ``ref`` has 0.
    min_nodes : int or None
        Fewer nodes than this, between nodes that the device refuses, go to ``ref`` with them; and ``compile`` gets no
        smaller graph. None is 1 for a host backend (copies cost little there), else 4.
    has_graphs : bool
        It has ``compile``.
    is_host : bool
        Its buffers are NumPy arrays. If not, it also has the two methods below, and its kernels get ``DeviceArray``.

    Notes
    -----
    A device with memory of its own has

    - ``allocator(dev)``, an object with ``alloc(nbytes, align, stream)``, which returns a handle of any kind or raises
      ``OutOfMemory``; ``free(memory, nbytes, stream)``; and, where it keeps freed memory itself, ``trim()``. The core
      caches, counts and limits; it carves values out of one block by byte offsets.
    - ``copy(dev, target, source, nbytes, kind, stream)``, which copies bytes. The device's side is a ``DeviceArray`` of
      bytes (``memory``, ``offset``), the host's a NumPy array of bytes; ``kind`` is a ``CopyKind``.

    It may have ``roof(dev)``, which measures what the device can do a second at most: float32 operations, and bytes
    read from memory. ``MGE_DEBUG=2`` then shows each step's share of that.

    It may have ``stream(dev)`` and ``event(dev)``, both or none, as ``mge.testing.streams`` describes them. Work that
    gets the stream None is complete on return; with a stream it may come later, in the order of that stream.
    """

    name = ""
    priority = 100
    is_host = False
    min_nodes: int | None = None
    has_graphs = False

    def probe(self) -> str | None:
        """Return None where the device can be used here, else the reason. Cheap; must not raise."""
        return None

    def devices(self) -> Sequence[str]:
        """Return what each device is called by people, in the order of their numbers."""
        raise NotImplementedError

    def supports(self, dev: int, use: Signature) -> str | None:
        """Return None where there is a kernel for this use of an op, else the reason.

        Parameters
        ----------
        dev : int
            The number of the device.
        use : Signature
            ``use.op.name``, ``use.input_types``, ``use.types`` (of the outputs) and ``use.attrs``, pairs of name and
            value.
        """
        raise NotImplementedError

    def kernel(self, dev: int, use: Signature) -> Kernel:
        """Return the function that computes one use of an op: ``kernel(inputs, outputs, stream)``.

        It is asked for once for each use that ``supports`` accepted. Inputs and outputs are dense, row-major arrays, of
        NumPy for a host backend, else of ``DeviceArray``; inputs must not be written.
        """
        raise NotImplementedError

    def compile(self, dev: int, graph: Graph) -> Kernel:
        """Return one kernel for a whole graph: ``kernel(inputs, outputs, stream)``. Optional; see ``has_graphs``.

        It is asked for once for each part of a graph whose nodes ``supports`` accepted, one by one, also those that the
        core would run itself (views). A part is as large as it can be without depending on itself through nodes
        outside. Its inputs that are parameters have ``node.sig.attrs``; constants are nodes.

        Parameters
        ----------
        dev : int
        graph : Graph
            ``graph.inputs``, ``graph.nodes`` in an order in which they can run, ``graph.outputs``. A node has ``sig``
            (as ``supports`` gets it) and ``inputs``, which are nodes; node ``get`` is one output, ``sig.attrs[0][1]``,
            of its input.

        Raises
        ------
        UnsupportedError
            The device does not take this graph; the text says why. Its nodes then run one by one.
        """
        raise UnsupportedError(f"{self.name} takes no graphs")

    def capabilities(self, dev: int) -> Mapping[str, Any]:
        """Return what quantisers and tools may ask of a device, by name. Optional."""
        return {}

    def passes(self) -> Iterable[tuple[str, Callable[[Graph], Graph]]]:
        """Return named passes for graphs that use this device. Optional."""
        return ()


class HostBackend(Backend):
    """A backend in host memory, made of a name and a dictionary of kernels.

    Attributes
    ----------
    kernels : dict of str to callable
        By the name of the op: a NumPy ufunc, or ``function(inputs, outputs, *, attribute=...)``. It takes the
        attributes that it has parameters for. Uses in which another attribute differs from its default are refused.
    dtypes : tuple of str
        The dtypes that the kernels take, by name; empty for all.
    priority : int
        Below ``ref``: chosen only where the user names it.
    """

    is_host = True
    priority = -1
    kernels: Mapping[str, Callable[..., Any]] = {}
    dtypes: tuple[str, ...] = ()

    def devices(self) -> Sequence[str]:
        """There is one."""
        return (self.name,)

    def supports(self, dev: int, use: Signature) -> str | None:
        """Return why there is no kernel, or None."""
        kernel = self.kernels.get(use.op.name)
        if kernel is None:
            return "no kernel"
        if self.dtypes and not {str(t.dtype) for t in (*use.input_types, *use.types)} <= {
            *self.dtypes
        }:
            return f"only {', '.join(self.dtypes)}"
        defaults = use.op.__signature__.parameters
        taken = _parameters(kernel)
        left = [f"{n}={v!r}" for n, v in use.attrs if n not in taken and v != defaults[n].default]
        return f"not with {', '.join(left)}" if left else None

    def kernel(self, dev: int, use: Signature) -> Kernel:
        """Return a function that calls the op's entry in ``kernels``."""
        function = self.kernels[use.op.name]
        if isinstance(function, np.ufunc):
            return lambda inputs, outputs, stream: function(*inputs, out=tuple(outputs))
        taken = _parameters(function)
        attrs = {n: v for n, v in use.attrs if n in taken}
        return lambda inputs, outputs, stream: function(inputs, outputs, **attrs)


def _parameters(function: Callable[..., Any]) -> set[str]:
    """Return the names of attributes that a kernel takes."""
    return set() if isinstance(function, np.ufunc) else {*inspect.signature(function).parameters}


class Quantizer:
    """A scheme of quantisation: the base of what an entry point in ``mge.quantizers`` gives.

    ``mge.quantize(model, "int8", data)`` calls the methods in this order. The graph is that of the model without
    calls of other graphs; its weights are inputs whose signature has the attribute ``slow``. What depends on them and
    on constants alone is computed once for each value of the weights, so they may be converted inside the graph.

    Attributes
    ----------
    name : str
        The entry point's name, as ``"int8"``.
    """

    name = ""

    def annotate(
        self, graph: Graph, config: Mapping[str, Any], capabilities: Mapping[str, Any]
    ) -> Mapping[Node, Any]:
        """Return which values are quantised, and how.

        Parameters
        ----------
        graph : Graph
        config : mapping
            What the user passed to ``mge.quantize``. An ``ArgumentError`` about it reaches the user.
        capabilities : mapping
            What the device says of itself (``Backend.capabilities``).

        Returns
        -------
        mapping of Node to spec
            The values to look at while the model runs over the data: inputs and nodes of one output, or ``get`` nodes.
        """
        raise NotImplementedError

    def observer(self, spec: Any) -> Any:
        """Return an object that finds parameters, as scale and zero point.

        ``update(array)`` is called with the value in each batch, then ``finalize()`` once; what that returns is the
        value's entry in ``parameters``.
        """
        raise NotImplementedError

    def convert(
        self, graph: Graph, plan: Mapping[Node, Any], parameters: Mapping[Node, Any]
    ) -> Graph:
        """Return the graph with quantised ops, of equal inputs and types of outputs. ``rewrite`` helps to make it."""
        raise NotImplementedError

    def validate(self, graph: Graph, backend: Any, dev: int) -> Sequence[str]:
        """Return what a device refuses of the converted graph, with reasons; empty where it takes it."""
        return ()


class OperatorLibrary:
    """Ops of a namespace: the base of what an entry point in ``mge.ops`` gives; a plain module does, too.

    Loading it registers its ops by ``@op(name="vision::nms")``, each with a reference. They are attributes of it.

    Attributes
    ----------
    namespace : str
        The entry point's name.
    """

    namespace = ""

    def kernels(self, backend: str) -> Mapping[str, Callable[[Signature], Kernel | None]]:
        """Return makers of kernels for a type of device, by the op's full name.

        A maker that returns None leaves the use to the device, or to the reference. So does a library whose native
        part cannot be loaded: this method may raise.
        """
        return {}

    def __getattr__(self, name: str) -> Any:
        try:
            return OPS[f"{self.namespace}::{name}"]
        except KeyError:
            raise AttributeError(f"the op library {self.namespace!r} has no op {name!r}") from None


class Hooks:
    """The hooks that a plugin may implement, each a function of that name marked with ``hookimpl``."""

    @_hookspec(historic=True)
    def mge_register_ops(self, op: Any) -> None:
        """Register ops with the decorator ``op``; their names hold a namespace."""

    @_hookspec
    def mge_graph_passes(self, device: Any, level: int) -> Iterable[tuple[str, Callable[..., Any]]]:  # type: ignore[empty-body]
        """Return named passes for graphs that use a device.

        ``level`` is 0 where only passes are wanted that keep every bit (``MGE_DETERMINISTIC=1``, device ``ref``),
        else 1.
        """

    @_hookspec
    def mge_doctor(self) -> Iterable[str]:  # type: ignore[empty-body]
        """Return a line for each fault of this installation that the plugin knows of."""

    @_hookspec
    def mge_suggest(self, platform: Mapping[str, str]) -> Iterable[str]:  # type: ignore[empty-body]
        """Return names of packages that would make use of this machine (``system``, ``machine``)."""

    @_hookspec
    def mge_cli(self, subparsers: Any) -> None:
        """Add commands to ``mge``: parsers with ``set_defaults(run=function)``, which returns the exit status."""


def find_library(package: str, name: str) -> str:
    """Return the path of a shared library that a package holds, also in an editable installation.

    Parameters
    ----------
    package : str
        Usually ``__package__``.
    name : str
        ``"mge_acme"`` for ``libmge_acme.so``.

    Returns
    -------
    str

    Raises
    ------
    PluginUnavailable
        The package holds no such library.
    """
    from importlib.resources import files

    names = [f"lib{name}.so", f"{name}.so", f"lib{name}.dylib", f"{name}.dll"]
    for candidate in names:
        path = files(package) / candidate
        if path.is_file():
            return str(path)
    raise PluginUnavailable(
        f"{package}: it holds none of {', '.join(names)}", hint="install the package again"
    )
