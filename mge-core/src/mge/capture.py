"""Capturing a Python function as a graph, and putting a graph into a recording.

In: functions of tensors; graphs. Out: ``Capture``, ``capture``, ``inline``: what traces, branches, loop bodies,
gradient rules and lowerings have in common.
After ``op``; before ``ops/*``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from . import op as op_module
from .dtype import float32, float64, int32, int64
from .errors import TraceError, user_place
from .graph import GET, Graph, Node, Recording, Signature, current_recording, make_leaf
from .mode import MODE, changed
from .op import record_nodes


class Capture:
    """The owner of a recording that becomes a graph: what is read or rebound inside it.

    Attributes
    ----------
    name : str
        What is captured, for error messages.
    device : Device
        Device of nodes without inputs.
    inlines : bool
        Array constants go into the graph (rules); otherwise they are inputs of it (traces).
    traces : bool
        The Python function belongs to the user, and its rebinding of outer handles must be replayed.
    effects : dict of id to (handle, node before)
        Outer handles that the function rebound, in order.
    """

    def __init__(
        self, name: str, device: Any, *, inlines: bool = True, traces: bool = False
    ) -> None:
        self.name, self.device, self.inlines, self.traces = name, device, inlines, traces
        self.recording = Recording(self)
        self.effects: dict[int, tuple[Any, Node]] = {}
        self.made: set[Node] = set()  # leaves that the function itself made from data
        self.grads: dict[
            int, tuple[Any, Any]
        ] = {}  # handles whose .grad it replaced, with what it was
        self.grads_read: dict[
            int, tuple[Any, Any]
        ] = {}  # handles whose .grad it read first, with what it was

    def refuse_read(self, tensor: Any) -> None:
        """Raise: a value was asked for while there is none."""
        raise TraceError(
            f"{self.name}: the value of a tensor {tensor._node.type} was read while the function is being recorded; "
            "there is no value yet",
            hint="return the tensor and read it outside; for a choice by value use F.cond, F.while_loop or F.where",
        ).add_place(user_place())

    def note_rebind(self, handle: Any, before: Node) -> None:
        """Remember what an outer handle stood for before the function rebound it."""
        position = self.recording.index.get(before)
        is_local = before in self.made or (
            position is not None and self.recording.tokens[position].__class__ is tuple
        )
        if not is_local and id(handle) not in self.effects:
            self.effects[id(handle)] = (handle, before)

    def note_grad(self, handle: Any, before: Any) -> None:
        """Remember the ``.grad`` that the function replaces."""
        self.grads.setdefault(id(handle), (handle, before))

    def note_grad_read(self, handle: Any, value: Any) -> None:
        """Remember a ``.grad`` from before the function, which it reads."""
        if id(handle) not in self.grads:
            self.grads_read.setdefault(id(handle), (handle, value))

    def close(self) -> None:
        """Let go of everything: the recording names its owner, and that cycle would keep values alive."""
        self.recording.owner = None
        self.recording.index.clear()
        for held in (self.effects, self.made, self.grads, self.grads_read):
            held.clear()

    def restore(self) -> list[tuple[Any, Node]]:
        """Give outer handles back what they stood for; return (handle, node that the function gave it)."""
        made = []
        for handle, before in self.effects.values():
            made.append((handle, handle._node))
            handle._node = before
        return made


class NumberRead(Exception):
    """A traced function read the value of a number that it was given: the value belongs to the key then."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


class TracedNumber:
    """Stands for a number argument while a function is traced: an input of the plan, weakly typed.

    It has the 64 bits of Python's arithmetic until it meets a tensor, so results are those of the untraced function.
    Arithmetic with tensors and numbers is recorded; anything that needs the value restarts the trace with the value
    as part of the key.
    """

    __array_priority__ = 2000

    def __init__(self, node: Node, kind: type, position: int) -> None:
        self.node, self.kind, self.position = node, kind, position

    def tensor(self) -> Any:
        """Return the number as a tensor of the default dtype of its kind."""
        return self._cast(float32 if self.kind is float else int32)

    def _cast(self, dtype: Any) -> Any:
        made = op_module.tensor_class.from_node(self.node)
        return made if self.node.type.dtype is dtype else op_module.OPS["cast"](made, dtype=dtype)

    def weak_node(self, dtype: Any) -> Node:
        """Return the number in the dtype that it takes beside tensors."""
        return self._cast(dtype)._node

    def _read(self, *_: Any, **__: Any) -> Any:
        raise NumberRead(self.position)

    __array__ = __round__ = __abs__ = __divmod__ = __rdivmod__ = _read
    __float__ = __int__ = __index__ = __bool__ = __str__ = __hash__ = __format__ = _read
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __floordiv__ = __rfloordiv__ = __mod__ = (
        __rmod__
    ) = _read
    __pow__ = __rpow__ = _read

    def _with(self, name: str, other: Any, swap: bool = False) -> Any:
        if isinstance(other, op_module.tensor_class):
            return NotImplemented
        if not isinstance(other, (TracedNumber, bool, int, float)):
            return NotImplemented
        kind = other.kind if isinstance(other, TracedNumber) else type(other)
        kind = float if float in (kind, self.kind) or name == "div" else int
        wide = float64 if kind is float else int64
        left = self._cast(wide)
        right = other._cast(wide) if isinstance(other, TracedNumber) else kind(other)
        made = op_module.OPS[name](right, left) if swap else op_module.OPS[name](left, right)
        return TracedNumber(made._node, kind, self.position)

    def __add__(self, other: Any) -> Any:
        return self._with("add", other)

    def __radd__(self, other: Any) -> Any:
        return self._with("add", other, True)

    def __sub__(self, other: Any) -> Any:
        return self._with("sub", other)

    def __rsub__(self, other: Any) -> Any:
        return self._with("sub", other, True)

    def __mul__(self, other: Any) -> Any:
        return self._with("mul", other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return self._with("div", other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._with("div", other, True)

    def __neg__(self) -> Any:
        return self._with("mul", -1)


def capture(
    function: Callable[..., Any], types: Sequence[Any], device: Any, name: str
) -> tuple[Graph, list[Node], list[tuple[Any, Node]], Any]:
    """Record what a function does with tensors of some types.

    Returns
    -------
    (graph, captured, effects, form)
        The graph takes the arguments, then the ``captured`` outer nodes. Its outputs are the results, then the new
        nodes of the handles in ``effects``. ``form`` is ``tuple`` if the function returned several tensors.
    """
    owner = Capture(name, device)
    recording = owner.recording
    with changed(recording=recording, eager=False):
        arguments = [make_leaf(t, device) for t in types]
        for leaf in arguments:
            recording.enlist(leaf)
        owner.made.update(arguments)  # to rebind their handles is nobody's business outside
        try:
            result = function(*[op_module.tensor_class.from_node(n) for n in arguments])
            several = isinstance(result, (tuple, list))
            outputs = [as_tensor(r, name)._node for r in (result if several else (result,))]
        finally:
            effects = owner.restore()
        outputs += [node for _, node in effects]
        for node in outputs:
            recording.enlist(node)
    captured = [leaf for leaf in recording.leaves if leaf not in arguments]
    graph = recording.graph(outputs, arguments + captured)
    around = MODE.get().recording
    if around is not None:  # a trace wants to know by which handle a value from outside is used
        nodes = recording.nodes
        for position, handle in recording.handles or ():
            around.enlist(nodes[position], handle)
    owner.close()
    return graph, captured, effects, tuple if several else None


def as_tensor(value: Any, name: str) -> Any:
    """Return a result of a captured function as a tensor."""
    if hasattr(value, "_node"):
        return value
    if isinstance(value, (bool, int, float)) or hasattr(value, "__array__"):
        return op_module.make_constant(value)
    raise TraceError(
        f"{name}: the function returned {value!r} of type {type(value).__name__}; it must return tensors"
    ).add_place(user_place())


def inline(graph: Graph, inputs: Sequence[Any]) -> list[Any]:
    """Record the nodes of a graph again, with tensors for its inputs; returns its outputs as tensors."""
    tensor = op_module.tensor_class.from_node
    values: dict[Node, Any] = dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes:
        if node.sig.op is GET:
            values[node] = values[node.inputs[0]][node.sig.attrs[0][1]]
        else:
            values[node] = record_nodes(node.sig, [values[i]._node for i in node.inputs])
    return [values[o] if hasattr(values[o], "_node") else tensor(values[o]) for o in graph.outputs]


def rewrite(graph: Graph, visit: Callable[[Node, list[Any]], Any], name: str = "rewrite") -> Graph:
    """Return the graph in which each node is what ``visit`` makes of it, in calls of ops.

    Parameters
    ----------
    graph : Graph
    visit : callable
        ``visit(node, inputs)`` gets a node and tensors that stand for its inputs. It returns the tensor that takes the
        node's place, or one for each of its outputs; None keeps the node. Arrays that it uses become constants.
    name : str
        For error messages.

    Returns
    -------
    Graph
        Its inputs are those of ``graph``, in order.
    """

    def replay(*inputs: Any) -> list[Any]:
        values: dict[Node, Any] = dict(zip(graph.inputs, inputs, strict=True))
        index = current_recording().index
        for node in graph.nodes:
            given = [values[i] for i in node.inputs]
            if node.sig.op is GET:
                values[node] = given[0][node.sig.attrs[0][1]]
                continue
            before = len(index)
            made = visit(node, given)
            if made is None:
                made = record_nodes(node.sig, [x._node for x in given])
            values[node] = made
            for new in islice(reversed(index), len(index) - before):  # the user's line stays
                new.code, new.offset = node.code, node.offset
        return [values[o] for o in graph.outputs]

    device = (graph.inputs or graph.nodes)[0].sig.device
    made, captured, _, _ = capture(replay, [n.type for n in graph.inputs], device, name)
    if captured:
        raise TraceError(f"{name}: it uses a tensor that is no input of the graph", hint="an array")
    return made


def lowered(sig: Signature) -> Graph | None:
    """Return the lowering of one use of an op as a graph, or None; made once."""
    if "lowering" not in sig.notes:
        rule = sig.op._lowering
        if rule is None:
            sig.notes["lowering"] = None
        else:
            attrs = dict(sig.attrs)
            function = lambda *inputs: rule(*inputs, **attrs)  # noqa: E731
            with changed(cast=None):
                graph, captured, _, _ = capture(
                    function, sig.input_types, sig.device, f"lowering of {sig.op.name}"
                )
            if captured:
                raise TraceError(
                    f"lowering of {sig.op.name}: it uses a tensor that is no input of the op"
                )
            sig.notes["lowering"] = graph
    return sig.notes["lowering"]
