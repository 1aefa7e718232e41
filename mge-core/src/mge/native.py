"""The native core's face: vendors' libraries as backends, with their kernels and memory.

In: shared libraries that keep the contract of ``mge/plugin.h``. Out: ``NativeBackend``; where headers are.
After ``discovery``; before ``plugin`` and ``nativeplan``.

``mge._native`` loads with the first library. From then on it records calls of ops, too: the fast path of ``op.record``
in C++. Without it (a checkout that was not built) everything else works, and plans run step by step in Python.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import buffer, errors, graph, mode, op, operators, tensor
from .buffer import BYTE, CopyKind, DeviceArray
from .debug import debug
from .dtype import DType
from .errors import (
    ArgumentError,
    DeviceError,
    IndexRangeError,
    MgeError,
    OutOfMemory,
    PluginContractError,
    PluginIncompatible,
    PluginUnavailable,
    UnsupportedError,
)
from .graph import GET, Graph, Node, Signature
from .types import Type

UNSUPPORTED, OUT_OF_MEMORY, BAD_ARGUMENT, INDEX_RANGE = range(2, 6)  # of MgeStatus
_TUNE, _DETERMINISTIC = 1, 2  # MgeOpFlags
_OPTIONAL_OUT = 2  # of MgeKernelFlags
_NONE, _INT, _FLOAT, _BOOL, _STRING, _DTYPE, _BYTES, _GRAPH = range(8)  # MgeAttrKind
_SINGLE = {bool: _BOOL, int: _INT, float: _FLOAT, str: _STRING, bytes: _BYTES}
_TUPLES = {int: 8, float: 9, bool: 10, str: 11, DType: 12}
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}  # MgeTypeCode, DLPack's

_module: Any = None


def load_module() -> Any:
    """Return ``mge._native``, set up with the settings of this process.

    Raises
    ------
    PluginUnavailable
        This installation has no native part.
    """
    global _module
    if _module is None:
        try:
            _native = importlib.import_module("._native", __package__)
        except ImportError as error:
            raise PluginUnavailable(
                f"mge._native: this installation of mge-core has no native part ({error})",
                hint="pip install mge-core, or build the checkout: pip install -e ./mge-core",
            ) from None
        _native.set_threads(thread_count())
        _native.set_log_level(3 if debug.debug >= 2 else 2 if debug.debug else 1)
        _native.tuning_open(str(tuning_path()))
        tensor.read_only = _native.read_only
        operators.record_pair = _native.install(op, graph, mode, tensor, errors, buffer)  # type: ignore[attr-defined]
        _module = _native
    return _module


def get_include() -> str:
    """Return the folder of the C headers: ``mge/plugin.h`` and ``mge/kernel.hpp``.

    Returns
    -------
    str
        For a compiler's ``-I``.

    Raises
    ------
    PluginUnavailable
        This installation has no headers.
    """
    here = Path(__file__).resolve()
    for base in (here.parent, here.parents[2]):  # of a wheel, of a checkout
        folder = base / "include"
        if (folder / "mge" / "plugin.h").is_file():
            return str(folder)
    raise PluginUnavailable("mge.get_include: this installation of mge-core has no headers")


def get_cmake_dir() -> str:
    """Return the folder of ``mge_coreConfig.cmake``, for ``cmake -Dmge_core_DIR=...``.

    Returns
    -------
    str
        Builds through scikit-build-core find it by themselves.
    """
    return str(Path(__file__).resolve().parent / "cmake")


def thread_count() -> int:
    """Return ``MGE_THREADS``, or the number of cores that this process may use."""
    if debug.threads:
        return debug.threads
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def tuning_path() -> Path:
    """Return the file of this machine's tuning results, in ``MGE_CACHE`` or the user's cache folder."""
    import hashlib
    import platform

    folder = Path(debug.cache) if debug.cache else Path("~/.cache/mge").expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        debug.log(1, f"tuning results are not kept: {folder} cannot be made")
    machine = f"{platform.machine()} {_processor()} {os.cpu_count()}"
    return folder / f"tuning-1-{hashlib.sha256(machine.encode()).hexdigest()[:12]}.txt"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            names = ("model name", "CPU part", "flags", "Features")
            found = {
                line.partition(":")[0].strip(): line for line in lines if line.startswith(names)
            }
            return " ".join(found.values())
    except OSError:
        return ""


class NativeBackend:
    """A device type from a vendor's library: what an entry point in ``mge.backends`` gives.

    Parameters
    ----------
    library : str
        The path of a shared library that exports ``mge_backend_entry_v1``, as ``mge.plugin.find_library`` finds it.

    Attributes
    ----------
    name, vendor, version : str
    priority : int
    abi : tuple of int
        The version of the contract that the library was made for.
    handle : mge._native.Backend
    is_host : bool
        The host reads and writes the memory of its devices.

    Raises
    ------
    PluginUnavailable
        The library cannot be loaded, or this installation has no native part.
    PluginIncompatible
        It was built for another version of the contract.
    PluginContractError
        It is no backend, or its table lacks something.
    """

    def __init__(self, library: str) -> None:
        module = load_module()
        handle, problem = module.load(str(library))
        if handle is None:
            kind, text = problem
            errors = {"incompatible": PluginIncompatible, "contract": PluginContractError}
            raise errors.get(kind, PluginUnavailable)(text)
        self.handle = handle
        self.name, self.vendor, self.version = handle.name, handle.vendor, handle.version
        self.priority, self.abi = handle.priority, handle.abi
        self._devices: list[dict[str, Any]] = []
        self._reason: str | None = None
        for index in range(handle.device_count):
            info = module.device_info(handle, index)
            if not isinstance(info, dict):
                self._reason = f"device {index}: {info[1]}"
                break
            self._devices.append(info)
        self.is_host = all(d["is_host"] for d in self._devices)
        self.has_graphs, self.has_streams = handle.has_graphs, handle.has_streams
        self.stream_count = (
            max((d["stream_count"] for d in self._devices), default=1) if handle.has_streams else 1
        )

    def __repr__(self) -> str:
        return f"<native backend {self.name} {self.version}>"

    def probe(self) -> str | None:
        """Return why no device works here, or None."""
        if self._reason is None and not self._devices:
            return "it has no device here"
        return self._reason

    def devices(self) -> Sequence[str]:
        """Return the devices' names."""
        return [d["name"] for d in self._devices]

    def capabilities(self, dev: int) -> dict[str, Any]:
        """Return what the vendor says of a device."""
        import json

        return json.loads(self._devices[dev]["capabilities"] or "{}")

    def dlpack_device(self, dev: int) -> tuple[int, int]:
        """Return the (type, index) of a device, by DLPack's numbers."""
        return self._devices[dev]["dlpack_type"], dev

    def pool(self, dev: int) -> NativePool:
        """Return a pool over the device's memory."""
        return NativePool(self.handle, dev, f"{self.name}:{dev}", self.is_host)

    def copy(
        self, dev: int, target: Any, source: Any, nbytes: int, kind: CopyKind, stream: Any
    ) -> None:
        """Copy bytes between the host and a device's own memory, or within it; complete on return."""
        ends = [
            a.address if isinstance(a, DeviceArray) else a.ctypes.data for a in (target, source)
        ]
        failed = load_module().copy(self.handle, dev, *ends, nbytes, int(kind))
        if failed is not None:
            raise error_of(f"copy on {self.name}:{dev}", self, *failed)

    def supports(self, dev: int, use: Signature) -> str | None:
        """Return why the library refuses a use of an op, or None."""
        try:
            op = _described(use)
        except _Inexpressible as error:
            return str(error)
        return load_module().supports(self.handle, dev, op)

    def kernel(self, dev: int, use: Signature, constants: Sequence[Any] = ()) -> NativeKernel:
        """Return the library's kernel for one use of an op; ``constants`` are arrays, or None, one for each input."""
        kernel, failed = load_module().prepare(self.handle, dev, _described(use, constants))
        where = f"{use.op.name} on {self.name}:{dev}"
        if kernel is None:
            raise error_of(where, self, *failed)
        return NativeKernel(kernel, where, self)

    def compile(self, dev: int, graph: Graph) -> NativeKernel:
        """Return one kernel for a whole graph.

        Raises
        ------
        PluginContractError
            The library takes no graphs.
        UnsupportedError
            It does not take this one; the text says why.
        """
        where = f"graph of {len(graph.nodes)} nodes on {self.name}:{dev}"
        if not self.has_graphs:
            raise PluginContractError(f"{where}: {self.name} takes no graphs")
        try:
            described = _described_graph(graph)
        except _Inexpressible as error:
            raise UnsupportedError(str(error)) from None
        kernel, failed = load_module().compile(self.handle, dev, described)
        if kernel is None:
            if failed[0] == UNSUPPORTED:
                raise UnsupportedError(failed[1] or f"{self.name} gave no reason")
            raise error_of(where, self, *failed)
        return NativeKernel(kernel, where, self)

    @property
    def min_nodes(self) -> int | None:
        """The smallest island that is worth its copies: ``min_nodes`` of its capabilities."""
        return self.capabilities(0).get("min_nodes")

    def passes(self) -> Iterable[tuple[str, Callable[[Graph], Graph]]]:
        """Return the passes of this device; a subclass may have some."""
        return ()


class NativeKernel:
    """A kernel of a library; a plan runs it without coming here.

    Attributes
    ----------
    handle : mge._native.Kernel
    backend : NativeBackend
    name : str
        What the vendor calls it.
    workspace_bytes : int, bytes
    has_optional_outputs : bool
        An output that nobody reads is not given to it.
    inplace : list of (input, output)
        The outputs that may be written over an input.
    """

    __slots__ = (
        "_where", "backend", "handle", "has_optional_outputs", "inplace", "name", "workspace_bytes",
    )  # fmt: skip

    def __init__(self, handle: Any, where: str, backend: NativeBackend) -> None:
        self.handle, self._where, self.backend = handle, where, backend
        self.name: str = handle.name
        self.workspace_bytes: int = handle.workspace_bytes
        self.has_optional_outputs = bool(handle.flags & _OPTIONAL_OUT)
        self.inplace: list[tuple[int, int]] = handle.inplace

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], stream: Any = None) -> None:
        failed = self.handle(inputs, outputs)
        if failed is not None:
            raise self.error(*failed)

    def error(self, status: int, text: str) -> MgeError:
        """Return the error for a run that failed."""
        return error_of(self._where, self.backend, status, text)


def error_of(where: str, backend: NativeBackend, status: int, text: str) -> MgeError:
    """Return the error for a call into a library that failed."""
    text = text or "it gave no reason"
    if status == UNSUPPORTED:
        maker = backend.vendor or f"the makers of {backend.name}"
        return PluginContractError(
            f"{where}: it refused after supports accepted the op: {text}",
            hint=f"report it to {maker}",
        )
    kinds: dict[int, type[MgeError]] = {
        OUT_OF_MEMORY: OutOfMemory,
        BAD_ARGUMENT: ArgumentError,
        INDEX_RANGE: IndexRangeError,
    }
    return kinds.get(status, DeviceError)(f"{where}: {text}")


class NativePool:
    """The caching pool of a device's memory; the same face as ``buffer.Pool``."""

    device: Any = None  # set by the device that it belongs to

    def __init__(self, backend: Any, dev: int, name: str, is_host: bool) -> None:
        self.handle = load_module().Pool(backend, dev, is_host)
        self._name, self.is_host = name, is_host

    def take(self, nbytes: int) -> Any:
        """Return an aligned block of at least ``nbytes`` bytes; it comes back when nothing refers to it."""
        return self._block(*self.handle.take(nbytes))

    def allocate(self, nbytes: int) -> Any:
        """Return a block that is neither cached nor counted: an arena."""
        return self._block(*self.handle.allocate(nbytes))

    def _block(self, block: Any, failed: Any) -> Any:
        if failed is not None:
            self._fail(*failed)
        if self.is_host:
            return block
        return DeviceArray(self.device, block.address, 0, (block.nbytes,), BYTE, block)

    def _fail(self, status: int, text: str) -> Any:
        if status == OUT_OF_MEMORY:
            raise OutOfMemory(
                f"memory of {self._name}: {text}",
                hint="a smaller batch, or a memory strategy: mge.memory(...)",
            )
        raise DeviceError(f"memory of {self._name}: {text}")

    def give(self, block: Any) -> None:
        """Nothing to do: the block knows its pool."""

    def trim(self) -> None:
        """Give all cached blocks back to the device."""
        self.handle.trim()

    def limit(self, nbytes: int) -> None:
        """Let live blocks take at most ``nbytes`` bytes together; 0 is no limit."""
        self.handle.set_limit(nbytes)

    def reset_peak(self) -> None:
        """Start the maxima again from what is in use now."""
        self.handle.reset_peak()

    def __getattr__(self, name: str) -> int:
        try:
            return self.handle.statistics()[name]
        except KeyError:
            raise AttributeError(f"a pool has no {name!r}") from None


# Descriptions of ops and graphs, as the native module takes them.


class _Inexpressible(Exception):
    """The contract has no words for an attribute."""


def _described(use: Signature, constants: Sequence[Any] = ()) -> Any:
    found = None if constants else use.notes.get("described")
    if found is None:
        flags = (_TUNE if debug.tune else 0) | (_DETERMINISTIC if debug.deterministic else 0)
        try:
            attrs = [(name, *_attribute(name, value)) for name, value in use.attrs]
            inputs, outputs = [*map(type_codes, use.input_types)], [*map(type_codes, use.types)]
            found = load_module().Op(use.op.name, attrs, inputs, outputs, flags, constants)
        except (OverflowError, TypeError, ValueError, RuntimeError) as error:  # of pybind11's casts
            raise _Inexpressible(f"an attribute does not fit: {error}") from None
        if not constants:
            use.notes["described"] = found
    return found


def type_codes(type_: Type) -> tuple[int, int, tuple[int, ...]]:
    """Return a type as the native module takes it: DLPack's code and bits, and the shape."""
    return (*_dtype(type_.dtype), type_.shape)


def _dtype(dtype: DType) -> tuple[int, int]:
    return _CODES[dtype.name.rstrip("0123456789")], dtype.itemsize * 8


def _attribute(name: str, value: Any) -> tuple[int, Any]:
    """Return an attribute's kind and value."""
    if value is None:
        return _NONE, None
    for kind, number in _SINGLE.items():
        if isinstance(value, kind):
            return number, value
    if isinstance(value, DType):
        return _DTYPE, _dtype(value)
    if isinstance(value, Graph):
        return _GRAPH, _described_graph(value)
    if isinstance(value, tuple):
        kinds = {type(v) for v in value}
        if kinds == {int, float}:
            kinds = {float}
        if len(kinds) <= 1 and kinds <= _TUPLES.keys():
            kind = next(iter(kinds), int)
            return _TUPLES[kind], [_dtype(v) if kind is DType else v for v in value]
    raise _Inexpressible(f"the contract has no attributes as {name}={value!r}")


def _described_graph(graph: Graph) -> Any:
    numbers: dict[Node, int] = {}
    types: list[Type] = []
    constants: dict[int, np.ndarray] = {}
    nodes = []
    for node in (*graph.inputs, *graph.nodes):
        if node.sig.op is GET:
            numbers[node] = numbers[node.inputs[0]] + node.sig.attrs[0][1]
            continue
        first = numbers[node] = len(types)
        types.extend(node.sig.types)
        if node.sig.op.name == "constant":
            value: Any = node.sig.op._reference
            constants[first] = np.ascontiguousarray(value(**dict(node.sig.attrs)))
        elif not node.sig.op.is_leaf:
            outputs = list(range(first, len(types)))
            nodes.append((_described(node.sig), [numbers[i] for i in node.inputs], outputs))
    ends = [[numbers[n] for n in side] for side in (graph.inputs, graph.outputs)]
    return load_module().Graph([*map(type_codes, types)], nodes, *ends, constants)
