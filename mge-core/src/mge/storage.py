"""Steps, values and storages of a plan: what runs in which order, and which bytes each value is.

In: a graph. Out: ``Builder``, and ``Step``, ``Value`` and ``Storage``, of which plans consist.
After ``schedule``; before ``plan``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .buffer import ALIGNMENT, aligned_bytes
from .device import Kernel
from .graph import GET, Graph, Node
from .native import NativeKernel
from .passes.simplify import constant_value
from .schedule import Slot, inplace_pairs, is_view, origin_of, overwriting, schedule
from .types import Type


class Step(NamedTuple):
    """One kernel call. ``inputs`` and ``outputs`` name values of the plan."""

    kernel: Kernel
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    slot: Slot


class Value(NamedTuple):
    """One value of a plan: its type, and the storage whose bytes it is (or is a view of)."""

    type: Type
    storage: int
    place: str | None


class Storage:
    """Bytes that one or several values share, one after the other or as views.

    Attributes
    ----------
    kind : {"input", "constant", "arena", "result"}
    source : int or ndarray or None
        The input's position; the constant's array.
    nbytes : int, bytes
    start, end : int
        First and last step that touches it.
    device : Device
        Whose memory it is in; for host memory, the first host device of the plan.
    """

    __slots__ = ("device", "end", "kind", "label", "nbytes", "source", "start")

    def __init__(
        self, kind: str, nbytes: int, source: Any, start: int, label: str, device: Any
    ) -> None:
        self.kind, self.nbytes, self.source, self.label = kind, nbytes, source, label
        self.start = self.end = start
        self.device = device


class Builder:
    """Turns a graph into steps and storages.

    First every output of every node becomes a value, and a view the same storage as what it views. Then, slot by
    slot, outputs get a storage: that of an input which dies there, where the op allows it, or a new one.
    """

    def __init__(self, graph: Graph, donated: set[int], keeps_order: bool) -> None:
        self.graph, self.donated, self.keeps_order = graph, donated, keeps_order
        self.memory_of = memory_of(graph)
        self.values: list[Value] = []
        self.storages: list[Storage] = []
        self.ids: dict[Node, tuple[int, ...]] = {}  # the values of each node
        self.root: list[int] = []  # value -> the value whose bytes it views, or itself
        self.last: dict[int, int] = {}  # root -> the slot that reads it last
        self.overwrites_from = 0

    def build(self) -> tuple[list[Step], list[Value], list[Storage], list[int]]:
        """Return steps, values, storages and the value of each output."""
        late = overwriting(self.graph, self.donated)
        slots = schedule(self.graph, late, self.keeps_order)
        slots, types = self._number_values(slots)
        self._find_last_reads(slots)
        storage_of: dict[int, int] = {}
        for i, node in enumerate(self.graph.inputs):
            storage_of[self.ids[node][0]] = self._storage(
                "input", node.type.nbytes, i, 0, f"input {i}", node
            )
        for node in self.graph.nodes:
            if node.sig.op.name == "constant":
                storage_of[self.ids[node][0]] = self._storage(
                    "constant", node.type.nbytes, _aligned(node), 0, "constant", node
                )
        for position, slot in enumerate(slots):
            self._place_outputs(slot.node, position, slot.node in late, storage_of)
        outputs = [self._value_of(o) for o in self.graph.outputs]
        for v, (type_, place) in enumerate(types):
            self.values.append(Value(type_, storage_of[self.root[v]], place))
        for v in outputs:
            storage = self.storages[self.values[v].storage]
            if storage.kind == "arena":
                storage.kind = "result"
        positions = (i for i, s in enumerate(slots) if s.node in late)
        self.overwrites_from = next(positions, len(slots))
        steps = [
            Step(
                _kernel(s.node),
                tuple(self._value_of(i) for i in s.node.inputs),
                self.ids[s.node],
                s,
            )
            for s in slots
        ]
        return steps, self.values, self.storages, outputs

    def scratch(self, steps: list[Step]) -> dict[int, int]:
        """Give the scratch of each kernel a storage for its step; return these by step."""
        found = {}
        for i, step in enumerate(steps):
            if isinstance(step.kernel, NativeKernel) and step.kernel.workspace_bytes:
                node = step.slot.node
                label, size = f"scratch of {_described(node)}", step.kernel.workspace_bytes
                found[i] = self._storage("arena", size, None, i, label, node)
                self.storages[found[i]].end = i
        return found

    def _number_values(self, slots: list[Slot]) -> tuple[list[Slot], list[tuple[Type, str | None]]]:
        """Give each output of each node a number; return the slots that are no views, and the values' types."""
        types: list[tuple[Type, str | None]] = []
        constants = [n for n in self.graph.nodes if n.sig.op.name == "constant"]
        kept = []
        items: list[Node | Slot] = [*self.graph.inputs, *constants, *slots]
        for item in items:
            slot = item if isinstance(item, Slot) else None
            node = item.node if isinstance(item, Slot) else item
            first = len(types)
            types += [(t, node.place) for t in node.sig.types]
            self.ids[node] = tuple(range(first, len(types)))
            if slot is not None and is_view(node):
                self.root.append(self.root[self._value_of(node.inputs[0])])
            else:
                self.root += self.ids[node]
                if slot is not None:
                    kept.append(slot)
        if len(kept) < len(slots):  # positions of events moved
            number = {s.node: i for i, s in enumerate(kept)}
            old = [s.node for s in slots]
            for i, s in enumerate(kept):
                awaited = {number[n] for w in s.waits if (n := origin_of(old[w])[0]) in number}
                kept[i] = s._replace(waits=tuple(sorted(awaited)))
        return kept, types

    def _find_last_reads(self, slots: list[Slot]) -> None:
        for position, slot in enumerate(slots):
            for i in slot.node.inputs:
                self.last[self.root[self._value_of(i)]] = position
        for output in self.graph.outputs:
            self.last[self.root[self._value_of(output)]] = len(
                slots
            )  # beyond the last slot: it leaves

    def _value_of(self, node: Node) -> int:
        if node.sig.op is GET:
            return self.ids[node.inputs[0]][node.sig.attrs[0][1]]
        return self.ids[node][0]

    def _storage(
        self, kind: str, nbytes: int, source: Any, start: int, label: str, node: Node
    ) -> int:
        device = self.memory_of(node.sig.device)
        self.storages.append(Storage(kind, nbytes, source, start, label, device))
        return len(self.storages) - 1

    def _place_outputs(
        self, node: Node, position: int, is_late: bool, storage_of: dict[int, int]
    ) -> None:
        """Give each output of a node a storage, and extend those of its inputs to this slot."""
        read = [storage_of[self.root[self._value_of(i)]] for i in node.inputs]
        for s in read:
            self.storages[s].end = max(self.storages[s].end, position)
        pairs = inplace_pairs(node)
        taken: set[int | None] = {None}
        for k, v in enumerate(self.ids[node]):
            type_ = node.sig.types[k]
            found = (
                self._dying_input(node, i, type_, position, is_late, read)
                for i, o in pairs
                if o == k
            )
            storage = next((s for s in found if s not in taken), None)
            if storage is None:
                label = f"{type_} of {_described(node)}"
                storage = self._storage("arena", type_.nbytes, None, position, label, node)
            taken.add(storage)
            storage_of[v] = storage
            self.storages[storage].end = position

    def _dying_input(
        self, node: Node, i: int, type_: Type, position: int, is_late: bool, read: list[int]
    ) -> int | None:
        """Return the storage of input ``i`` if the output may be written over it, else None."""
        source = node.inputs[i]
        root = self.root[self._value_of(source)]
        storage = self.storages[read[i]]
        may_write = storage.kind == "arena" or (
            storage.kind == "input" and is_late and storage.source in self.donated
        )
        fits = source.type is type_ and storage.nbytes == type_.nbytes
        fits = fits and storage.device is self.memory_of(node.sig.device)
        dies = self.last.get(root, -1) <= position and read.count(read[i]) == 1
        return read[i] if may_write and fits and dies else None


def _kernel(node: Node) -> Kernel:
    """Return the kernel for a node; a library's is made for the values of its inputs that are constants."""
    sig = node.sig
    kernel = sig.device.kernel(sig)
    values = [constant_value(i) if i.sig.op.name == "constant" else None for i in node.inputs]
    is_own = isinstance(kernel, NativeKernel) and kernel.backend is sig.device.backend
    if not is_own or "compiled" in sig.notes or all(v is None for v in values):
        return kernel
    return sig.device.backend.kernel(sig.device.index, sig, values)


def memory_of(graph: Graph) -> Callable[[Any], Any]:
    """Return a function from a device to the one whose arena and pool its values are in.

    That is the device itself, or for all that work in host memory the first of them in the graph.
    """
    nodes = (*graph.nodes, *graph.inputs)
    host = next((n.sig.device for n in nodes if n.sig.device.is_host), None)
    return lambda device: host if device.is_host else device


def _described(node: Node) -> str:
    place = node.place
    return f"{node.sig.op.name} ({place})" if place else node.sig.op.name


def _aligned(node: Node) -> np.ndarray:
    """Return the array of a constant node, aligned as kernels expect."""
    array = constant_value(node)
    copy = (
        aligned_bytes(max(array.nbytes, ALIGNMENT))[: array.nbytes]
        .view(array.dtype)
        .reshape(array.shape)
    )
    copy[...] = array
    return copy
