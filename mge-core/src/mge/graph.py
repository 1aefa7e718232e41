"""The graph: nodes, recordings (graphs that still grow) and graphs.

In: ops with types and inputs. Out: ``Node``, ``Recording``, ``Graph``.
After ``types``, ``mode`` and ``text``; before ``op``.

A node with several outputs is read through ``get`` nodes, one for each output, so an edge is always a node.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

from .errors import InternalError, TraceError, line_of, user_place
from .mode import MODE
from .text import print_attrs, print_graph
from .types import NOTHING, Type

if TYPE_CHECKING:
    from .op import Op


class Signature:
    """One use of an op but for its inputs: op, types, attributes, device. Made once, then shared.

    Attributes
    ----------
    op : Op
    input_types : tuple of Type
    attrs : tuple of (name, value), in the order of the op's signature
    types : tuple of Type
        One for each output.
    type : Type
        The first of ``types``; ``NOTHING`` where there is none.
    device : Device
    """

    __slots__ = (
        "attrs", "device", "input_types", "nbytes", "notes", "op", "single", "type", "types",
    )  # fmt: skip

    def __init__(
        self,
        op: Op,
        input_types: tuple[Type, ...],
        attrs: tuple[tuple[str, Any], ...],
        types: tuple[Type, ...],
        device: Any,
    ) -> None:
        self.op, self.input_types, self.attrs = op, input_types, attrs
        self.types, self.device = types, device
        self.single = len(types) == 1
        self.type = types[0] if types else NOTHING
        self.nbytes = sum(t.nbytes for t in types)
        self.notes: dict[str, Any] = {}  # what later files derive once: kernel, lowering, gradient

    @property
    def is_view(self) -> bool:
        """Whether it only gives its input's bytes another shape, so that it needs no step."""
        return self.op.aliases and self.nbytes == self.input_types[0].nbytes

    def __repr__(self) -> str:
        return f"{self.op.name}({', '.join(map(repr, self.input_types))}){print_attrs(self.attrs)}"


class Node:
    """One use of an op. Immutable in meaning; its inputs are dropped once its value is known.

    Attributes
    ----------
    sig : Signature
    inputs : tuple of Node
    type : Type
        Of the first output.
    buffer : Buffer or None
        The value, where it is known. A node with a buffer is a leaf of what is recorded later.
    code, offset
        The user's call site: a code object and a bytecode offset.
    """

    __slots__ = ("__weakref__", "buffer", "code", "inputs", "offset", "sig", "type")

    def __init__(
        self,
        sig: Signature,
        inputs: tuple[Node, ...],
        type: Type,
        buffer: Any = None,
        code: CodeType | None = None,
        offset: int = 0,
    ) -> None:
        self.sig = sig
        self.inputs = inputs
        self.type = type
        self.buffer = buffer
        self.code = code
        self.offset = offset

    @property
    def op(self) -> Op:
        """The op of this node."""
        return self.sig.op

    @property
    def attrs(self) -> dict[str, Any]:
        """The attributes by name."""
        return dict(self.sig.attrs)

    @property
    def device(self) -> Any:
        """The device on which the value lives."""
        return self.sig.device

    @property
    def place(self) -> str | None:
        """The user's line, as ``file:line``; None for nodes that no user's line made."""
        if self.code is None:
            return None
        return f"{self.code.co_filename}:{line_of(self.code, self.offset)}"

    def __repr__(self) -> str:
        return f"<node {self.sig!r} -> {self.type}>"


class Recording:
    """A graph that grows: leaves and nodes in the order of their first use, with the key so far.

    Attributes
    ----------
    index : dict of Node to int
        Position of each leaf and node.
    tokens : list
        One entry a position: the signature of a leaf, or (signature, position of each input).
    owner : object or None
        The trace, rule or branch that records here; None for a thread's pending graph.
    """

    __slots__ = ("boundary", "handles", "index", "owner", "rebinds", "tokens", "weight")

    def __init__(self, owner: Any = None) -> None:
        self.index: dict[Node, int] = {}
        self.tokens: list[Any] = []
        self.owner = owner
        # (position, handle) of leaves
        self.handles: list[tuple[int, Any]] | None = None if owner is None else []
        # id(handle) -> weak handle, last node with a value
        self.rebinds: dict[int, tuple[Any, Node]] = {}
        self.boundary = 0  # position of the last boundary
        self.weight = 0  # bytes of leaves; results are added at boundaries

    def enlist(self, node: Node, handle: Any = None) -> int:
        """Return the position of ``node``, taking it in (as a leaf, or with its ancestors) if it is new."""
        position = self.index.get(node)
        if position is not None:
            return position
        if LOCAL.requested is not None and self.owner is None:
            run_requested()
        if node.buffer is None and not node.sig.op.is_leaf:
            if self.owner is None:
                return self._enlist_pending(node)
            if (
                node.sig.op is GET and node.inputs[0] in self.index
            ):  # another look at a node recorded here
                self.append(node)
                return self.index[node]
        elif node.buffer is None and self.owner is None:
            raise TraceError(
                f"a value {node.type} that was recorded inside a traced function, branch or loop "
                "is used after its end; it has none there",
                hint="return it from the function",
            ).add_place(user_place())
        position = self.index[node] = len(self.tokens)
        slow = handle is not None and handle._slow
        self.tokens.append(leaf_signature(node.type, node.sig.device, slow))
        self.weight += node.type.nbytes
        if self.handles is not None and handle is not None:
            self.handles.append((position, handle))
        return position

    def _enlist_pending(self, root: Node) -> int:
        """Take in a node recorded elsewhere (another thread, history) with the ancestors that have no value."""
        stack = [root]
        while stack:
            node = stack[-1]
            if node in self.index:
                stack.pop()
                continue
            waiting = (
                [] if node.buffer is not None else [i for i in node.inputs if i not in self.index]
            )
            if waiting:
                stack.extend(reversed(waiting))
                continue
            stack.pop()
            if node.buffer is not None or node.sig.op.is_leaf:
                self.enlist(node)
            else:
                self.append(node)
        return self.index[root]

    def append(self, node: Node) -> None:
        """Add a node whose inputs are all here."""
        index = self.index
        token = (node.sig, *[index[i] for i in node.inputs])
        index[node] = len(self.tokens)
        self.tokens.append(token)

    def note_rebind(self, handle: Any) -> None:
        """Remember the last value of a handle that is about to stand for a node without one."""
        before = handle._node
        if before.buffer is not None:
            known = self.rebinds.get(id(handle))
            if known is None or known[0]() is not handle:
                self.rebinds[id(handle)] = (weakref.ref(handle), before)

    @property
    def nodes(self) -> list[Node]:
        """All leaves and nodes, in order."""
        return list(self.index)

    def graph(self, outputs: Sequence[Node], inputs: Sequence[Node] | None = None) -> Graph:
        """Return an immutable copy that computes ``outputs``; its nodes hold no values.

        ``inputs`` fixes the order of the leaves; by default they come in the order of first use.
        """
        copies: dict[Node, Node] = {}
        wanted = self._needed(outputs)
        leaves = self.leaves if inputs is None else inputs
        made = []
        for leaf in leaves:
            copies[leaf] = make_leaf(leaf.type, leaf.sig.device, self._is_slow(leaf))
        new_inputs = [copies[leaf] for leaf in leaves]
        for node in self.index:
            if node in wanted and node not in copies:
                if self.tokens[self.index[node]].__class__ is Signature:
                    raise InternalError(f"graph: leaf {node!r} is missing from the list of inputs")
                copy = Node(
                    node.sig,
                    tuple(copies[i] for i in node.inputs),
                    node.type,
                    None,
                    node.code,
                    node.offset,
                )
                copies[node] = copy
                made.append(copy)
        return Graph(tuple(new_inputs), tuple(made), tuple(copies[o] for o in outputs))

    @property
    def leaves(self) -> list[Node]:
        """The leaves, in the order of their first use."""
        return [n for n, token in zip(self.index, self.tokens) if token.__class__ is Signature]

    def _needed(self, outputs: Sequence[Node]) -> set[Node]:
        """Return what ``outputs`` depend on, inside this recording."""
        found: set[Node] = set()
        stack = list(outputs)
        while stack:
            node = stack.pop()
            if node not in found:
                found.add(node)
                if self.tokens[self.index[node]].__class__ is tuple:
                    stack.extend(node.inputs)
        return found

    def _is_slow(self, leaf: Node) -> bool:
        token = self.tokens[self.index[leaf]] if leaf in self.index else None
        return isinstance(token, Signature) and bool(token.attrs)


def run_requested() -> None:
    """Run the recording that ``step()`` asked to run at the next call. Set by run.py."""


def evaluate(nodes: Sequence[Node]) -> None:
    """Give each node its value. Set by run.py."""


class Graph:
    """Inputs, nodes in order, outputs. Immutable; equal graphs hash alike, so a graph can be an attribute."""

    __slots__ = ("_hash", "_key", "inputs", "nodes", "notes", "outputs")

    def __init__(
        self, inputs: tuple[Node, ...], nodes: tuple[Node, ...], outputs: tuple[Node, ...]
    ) -> None:
        self.inputs, self.nodes, self.outputs = inputs, nodes, outputs
        self._key: tuple | None = None
        self._hash: int | None = None
        self.notes: dict[Any, Any] = {}

    @property
    def key(self) -> tuple:
        """The structure as a tuple: two graphs with equal keys compute the same function."""
        if self._key is None:
            index = {node: i for i, node in enumerate((*self.inputs, *self.nodes))}
            self._key = (
                *(node.sig for node in self.inputs),
                *((node.sig, *[index[i] for i in node.inputs]) for node in self.nodes),
                tuple(index[o] for o in self.outputs),
            )
        return self._key

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self.key)
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Graph) and hash(self) == hash(other) and self.key == other.key
        )

    def __str__(self) -> str:
        return print_graph(self)

    def placement(self) -> dict[str, Any]:
        """Return on which devices the ops of a compiled graph run, and why some are not where they were recorded.

        Returns
        -------
        dict
            ``nodes``: their number by device, without views, copies and constants.
            ``copied_bytes``: between devices, each time that the graph runs.
            ``devices``: by name, a dict of ``nodes``, ``islands`` (groups of nodes that read each other's values),
            ``bytes_in`` and ``bytes_out`` (of copies from and to other devices).
            ``refused``: what is on ``ref`` in place of its device, a list of dicts: ``op``, ``device``, ``reason``
            (the device's words, or ``"island of 2 nodes"``), ``count`` and ``bytes`` of results.
            ``compiled``: the parts that a device compiled as a whole, a list of dicts: ``device``, ``nodes``,
            ``kernel`` and ``reason`` (None, or why the device did not take the part; its nodes run one by one).
        """
        return placement_of(self)

    def memory(self, strategy: str = "") -> dict[str, Any]:
        """Return the memory that a plan of this graph takes, predicted: nothing runs.

        Parameters
        ----------
        strategy : str
            As ``mge.memory`` takes it, with options as in ``"sublinear:budget=2GB"``; that of the context if empty.

        Returns
        -------
        dict
            ``strategy``; ``peak_bytes``: the sum of ``arena_bytes``, ``workspace_bytes`` (scratch of kernels) and
            ``result_bytes``. Inputs and constants are not in it.
            ``live_bytes``: by step, arena and results; ``peak_step``: where they are most.
            ``live_at_peak``: what is live there, largest first, a list of dicts: ``bytes``, ``value`` (type, op and
            the user's line), ``from`` and ``to`` (its first and last step).
            ``predicted_ns``: the time of all steps; ``slowdown``: the share that values cost which are computed again;
            ``is_measured``: whether both are of times in the first runs of the plan, or modelled.

        Raises
        ------
        OutOfMemory
            The strategy finds no plan in its budget.
        """
        return memory_of(self, strategy)

    def __repr__(self) -> str:
        return f"<graph of {len(self.nodes)} nodes, {len(self.inputs)} inputs, {len(self.outputs)} outputs>"


def placement_of(graph: Graph) -> Any:
    """Return where the ops of a graph run. Set by passes/placement.py."""


def memory_of(graph: Graph, strategy: str) -> Any:
    """Return the memory of a graph's plan. Set by cache.py."""


# Leaves.


class _Leaf:
    """Stands where a node's op would be: an input of a graph, or a value that came from outside."""

    name = "input"
    is_leaf = True
    aliases = False


LEAF: Any = _Leaf()


class _Get:
    """The op of ``get`` nodes: output ``index`` of a node with several outputs."""

    name = "get"
    is_leaf = False
    is_pure = True
    aliases = False
    inplace = ()


GET: Any = _Get()


def get_signature(parent: Signature, index: int) -> Signature:
    """Return the signature of a ``get`` node for one output of a node."""
    gets = parent.notes.get("gets")
    if gets is None:
        gets = parent.notes["gets"] = tuple(
            Signature(GET, parent.types, (("index", i),), (t,), parent.device)
            for i, t in enumerate(parent.types)
        )
    return gets[index]


_leaf_signatures: dict[tuple[Type, int, bool], Signature] = {}


def leaf_signature(type: Type, device: Any, slow: bool = False) -> Signature:
    """Return the signature that all leaves of this type share; ``slow`` marks parameters and module buffers."""
    key = (type, id(device), slow)  # a signature keeps its device; hashing one takes longer
    found = _leaf_signatures.get(key)
    if found is None:
        attrs = (("slow", True),) if slow else ()
        found = _leaf_signatures.setdefault(key, Signature(LEAF, (), attrs, (type,), device))
    return found


def make_leaf(type: Type, device: Any, slow: bool = False, buffer: Any = None) -> Node:
    """Return a new leaf: a graph's input, or (with a buffer) a value."""
    return Node(leaf_signature(type, device, slow), (), type, buffer)


class Number:
    """The buffer of a number from Python: its array is made when a kernel wants it."""

    __slots__ = ("dtype", "value")

    def __init__(self, value: Any, dtype: Any) -> None:
        self.value = value
        self.dtype = dtype

    @property
    def array(self) -> Any:
        """A 0-d NumPy array."""
        import numpy as np

        return np.array(self.value, self.dtype)


# The pending graph of each thread.


class _Local(threading.local):
    def __init__(self) -> None:
        self.recording = Recording()
        self.requested: Recording | None = None  # to be run before the next call: what step() left


LOCAL = _Local()


def current_recording() -> Recording:
    """Return where a call would be recorded now."""
    return MODE.get().recording or LOCAL.recording


# What traces watch: Modules and Optimizers change the epoch whenever their plain attributes change.

EPOCH = [0]


def bump_epoch() -> None:
    """Tell traces that an attribute of a Module or Optimizer changed, so that they check their guards."""
    EPOCH[0] += 1


def boundary() -> None:
    """Mark a place where a pending graph may be cut. Set by run.py."""


def request_flush() -> None:
    """Ask for the pending graph to run at the next call, read or boundary. Set by run.py."""
