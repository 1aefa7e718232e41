"""Compiled plans as files, which ``mge/runtime.hpp`` runs without Python.

In: a loaded model, batch sizes. Out: a file; ``native/plan_file.hpp`` reads it and says how it is laid out.
After ``modelfile``; before ``cli``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import native, nativeplan
from .archive import replacing
from .debug import debug
from .errors import ArgumentError, UnsupportedError
from .execute import execute
from .graph import Graph
from .memory import current_strategy
from .modelfile import LoadedModel
from .native import NativeBackend, NativeKernel
from .passes import optimise
from .passes.prologue import split_prologue
from .plan import Plan
from .storage import Step
from .types import Type

__all__: list[str] = []  # no name here is promised to users

MAGIC, VERSION = b"MGEPLAN\0", 1
_ARENA, _CONSTANT, _INPUT, _RESULT, _STATE = range(5)  # PlanFile::Kind
_KINDS = {"arena": _ARENA, "constant": _CONSTANT, "result": _RESULT}


class PlanInfo(NamedTuple):
    """What was written for one batch size.

    Attributes
    ----------
    batch : int
        0 for a model of fixed shapes.
    steps : int
    peak_bytes : int, bytes
        Arena, scratch and results.
    """

    batch: int
    steps: int
    peak_bytes: int


class PlanFileInfo(NamedTuple):
    """What ``write_plan`` wrote.

    Attributes
    ----------
    plans : list of PlanInfo
    states : list of str
        What runs update.
    nbytes : int, bytes
        Of the file.
    library : str
        The vendor's library that the program must load.
    """

    plans: list[PlanInfo]
    states: list[str]
    nbytes: int
    library: str


def write_plan(
    target: Any, model: LoadedModel, batches: Sequence[int], version: str
) -> PlanFileInfo:
    """Compile a model for its device at some batch sizes, and write the plans to one file.

    Parameters
    ----------
    target : path
        An old file stays until the new one is complete.
    model : LoadedModel
        On a device of a vendor's library.
    batches : sequence of int
        Empty: the batch size that was dumped.
    version : str
        Of mge.

    Raises
    ------
    ArgumentError
        The device is no vendor's library, the model has no such batch size, or it rebinds an argument.
    UnsupportedError
        Some ops have no native kernel there; the text names each with the reason.
    """
    backend = model.device.backend
    if not isinstance(backend, NativeBackend):
        raise ArgumentError(
            f"compile: {model.device} runs in Python; a compiled plan needs a device of a vendor's library",
            hint="mge plugins list",
        )
    if model._size is None and any(b != _fixed_size(model) for b in batches):
        raise ArgumentError(
            f"compile: --batch is {', '.join(map(str, batches))}; the file is for one batch size",
            hint=model.fixed_because
            or "dump(..., dynamic_batch=True) makes a file for all batch sizes",
        )
    if any(kind == "argument" for _, kind, _ in model._effects):
        raise ArgumentError(
            "compile: the model rebinds an argument, and inputs of a compiled plan are only read",
            hint="return the new value",
        )
    sizes: list[Any] = list(dict.fromkeys(batches)) or [model._size]
    if model._size is None:
        sizes = [None]
    writer = _Writer(model)
    with debug(fallback="allow"):  # what is refused is told with the reasons of all ops
        plans = [writer.program(size) for size in sizes]
    data = writer.file(version, backend)
    with replacing(target) as made, open(made, "wb") as file:
        file.write(data)
    states = [name for name, _, _ in writer.states]
    return PlanFileInfo(plans, states, len(data), backend.handle.path)


def _fixed_size(model: LoadedModel) -> int | None:
    shapes = [p.type.shape for p in model.inputs if p.type.ndim]
    return shapes[0][0] if shapes else None


class _Writer:
    """Collects blocks of data, states and programs."""

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        self.blocks: list[np.ndarray] = []  # as bytes
        self._known: dict[bytes, list[int]] = {}
        self.programs: list[bytes] = []
        names, updated = list(model.weights), [h for h, _, _ in model._effects]
        self.states: list[tuple[str, Type, int]] = []  # name, type, block
        self.number: dict[str, int] = {}  # name -> state
        for name in names:
            handle = model.weights[name]
            if any(h is handle for h in updated):
                self.number[name] = len(self.states)
                self.states.append((name, handle._node.type, self.block(handle.numpy())))

    def block(self, array: np.ndarray) -> int:
        """Return the number of a block with these bytes; equal ones are kept once."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        key = struct.pack("<IQ", zlib.crc32(data.data if data.size else b""), data.size)
        for found in self._known.setdefault(key, []):
            if np.array_equal(self.blocks[found], data):
                return found
        self._known[key].append(len(self.blocks))
        self.blocks.append(data)
        return len(self.blocks) - 1

    def program(self, size: int | None) -> PlanInfo:
        """Compile the model at one batch size, and keep the plan."""
        model = self.model
        graph = model.graph if size == model._size else model._graph_at(size)
        count = len(model.inputs)
        names = list(model.weights)[: len(graph.inputs) - count]
        changing = {count + i for i, name in enumerate(names) if name in self.number}
        first, sources, rest = split_prologue(optimise(graph), changing)
        plan = Plan(rest, (), current_strategy(), apart=True)
        self._refuse(plan)
        weights = [model.weights[name].numpy() for name in names]
        extra = [] if first is None else self._prologue(first, sources)
        fixed = [*weights, *extra]  # the value of each input of the plan after the model's own
        storages, results = [], 0
        for i, storage in enumerate(plan.storages):
            kind, at = storage.kind, 0
            if kind == "input" and storage.source >= count:
                position = storage.source - count
                name = names[position] if position < len(names) else ""
                is_state = name in self.number
                code = _STATE if is_state else _CONSTANT
                at = self.number[name] if is_state else self.block(fixed[position])
            elif kind == "input":
                code, at = _INPUT, storage.source
            else:
                code = _KINDS[kind]
                if kind == "arena":
                    at = plan.memory.offsets[plan.arena[i]]
                elif kind == "constant":
                    at = self.block(storage.source)
                else:
                    at, results = results, results + 1
            storages.append(struct.pack("<BQQ", code, at, storage.nbytes))
        has_streams = any(s.slot.stream for s in plan.steps)
        waits = nativeplan._waits(plan) if has_streams else {}
        awaited = {w for row in waits.values() for w in row}
        outputs = [p.name for p in model.outputs]
        weight = {id(handle): name for name, handle in model.weights.items()}
        self.programs.append(
            struct.pack("<q", size or 0)
            + _list(_text(p.name) + _type(n.type) for p, n in zip(model.inputs, graph.inputs))
            + struct.pack("<QI", plan.memory.arena_bytes, results)
            + _list(storages)
            + _list(_type(v.type) + _u32(v.storage) for v in plan.values)
            + _list(_step(s, waits.get(i, ()), i in awaited) for i, s in enumerate(plan.steps))
            + _list(_text(name) + _u32(v) for name, v in zip(outputs, plan.outputs))
            + _list(
                _u32(self.number[weight[id(handle)]]) + _u32(plan.outputs[output])
                for handle, _, output in model._effects
            )
        )
        return PlanInfo(size or 0, len(plan.steps), plan.peak_bytes)

    def _prologue(self, graph: Graph, sources: Sequence[int]) -> list[np.ndarray]:
        """Return what depends on weights alone: it is computed now, where any device may help."""
        handles, count = list(self.model.weights.values()), len(self.model.inputs)
        buffers = [handles[i - count]._node.buffer for i in sources]
        return [b.array for b in execute(Plan(graph), buffers)]

    def _refuse(self, plan: Plan) -> None:
        """Raise UnsupportedError unless each step has a kernel of the device's library, in host memory."""
        if not self.model.device.is_host:
            text = f"the memory of {self.model.device} is its own; plan files run in host memory"
            raise UnsupportedError(f"compile: {text}", hint="mge.load_model(path, device=...)")
        found: dict[str, int] = {}
        for step in plan.steps:
            if (
                isinstance(step.kernel, NativeKernel)
                and step.kernel.backend is self.model.device.backend
            ):
                if not any(isinstance(value, Graph) for _, value in step.slot.node.sig.attrs):
                    continue
                reason = "a plan file holds no graphs as attributes"
            else:
                sig = step.slot.node.sig
                reason = sig.notes.get("refused", ("", "the core runs it in Python"))[1]
            line = self._line(step, reason)
            found[line] = found.get(line, 0) + 1
        if len(found) > 1:  # copies between devices come and go with the others
            found = {k: n for k, n in found.items() if not k.startswith("copy(")} or found
        if found:
            lines = "\n".join(
                f"  {line}" + (f" x{n}" if n > 1 else "") for line, n in found.items()
            )
            raise UnsupportedError(
                f"compile: {sum(found.values())} of {len(plan.steps)} steps have no native kernel on "
                f"{self.model.device}, and a compiled plan runs without Python:\n{lines}",
                hint="a device with kernels for them; mge plugins ops NAME lists what a device has",
            )

    @staticmethod
    def _line(step: Step, reason: str) -> str:
        sig = step.slot.node.sig
        return f"{sig.op.name}({', '.join(map(str, sig.input_types))}): {reason}"

    def file(self, version: str, backend: NativeBackend) -> bytes:
        """Return the whole file."""
        data, places = bytearray(), []
        for block in self.blocks:
            data += bytes(-len(data) % 64)
            places.append(struct.pack("<QQ", len(data), block.size))
            data += block.tobytes()
        states = [_text(n) + _type(t) + _u32(b) for n, t, b in self.states]
        record = (
            b"".join(map(_text, (version, backend.name, backend.vendor, backend.version)))
            + struct.pack("<IIi", *backend.abi, self.model.device.index)
            + _list(places)
            + _list(states)
            + _list(self.programs)
        )
        data_at = 64 + len(record) + -len(record) % 64
        head = MAGIC + struct.pack(
            "<II5Q", VERSION, 0, data_at + len(data), 64, len(record), data_at, len(data)
        )
        rest = bytes(4) + record + bytes(data_at - 64 - len(record)) + bytes(data)
        return head + _u32(zlib.crc32(rest, zlib.crc32(head))) + rest


# The record's parts.


def _u32(value: int) -> bytes:
    return struct.pack("<I", value)


def _text(text: str | bytes) -> bytes:
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    return _u32(len(data)) + data


def _list(items: Iterable[bytes]) -> bytes:
    kept = list(items)
    return _u32(len(kept)) + b"".join(kept)


def _numbers(values: Sequence[int]) -> bytes:
    return struct.pack(f"<I{len(values)}I", len(values), *values)


def _type(type_: Type) -> bytes:
    code, bits, shape = native.type_codes(type_)
    return struct.pack(f"<BBI{len(shape)}q", code, bits, len(shape), *shape)


def _step(step: Step, waits: Sequence[int], records: bool) -> bytes:
    sig, kernel = step.slot.node.sig, step.kernel
    assert isinstance(kernel, NativeKernel)
    flags = (native._TUNE if debug.tune else 0) | (
        native._DETERMINISTIC if debug.deterministic else 0
    )
    return (
        _text(sig.op.name)
        + _text(kernel.name)
        + _u32(flags)
        + _list(_attribute(name, value) for name, value in sig.attrs)
        + _numbers(step.inputs)
        + _numbers(step.outputs)
        + _u32(step.slot.stream)
        + _numbers(waits)
        + bytes([records])
    )


def _attribute(name: str, value: Any) -> bytes:
    kind, plain = native._attribute(name, value)
    return _text(name) + _u32(kind) + _VALUES[kind](plain)


def _int(value: Any) -> bytes:
    return struct.pack("<q", value)


def _float(value: Any) -> bytes:
    return struct.pack("<d", value)


def _items(item: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    return lambda values: _list(map(item, values))


# By MgeAttrKind; a graph has no form here.
_VALUES: dict[int, Callable[[Any], bytes]] = {
    0: lambda value: b"",
    1: _int, 2: _float, 3: lambda value: bytes([value]), 4: _text, 5: bytes, 6: _text,
    8: _items(_int), 9: _items(_float), 10: _items(_int), 11: _items(_text), 12: _items(bytes),
}  # fmt: skip
