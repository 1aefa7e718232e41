"""Ops: one record each, and the call that records a node.

In: a decorated shape rule with its reference, gradient, lowering and samples. Out: ``Op`` objects that are called
like functions, and ``OPS``, the registry that everything generic reads.
After ``graph``; before ``ops/*``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .arguments import Arguments, promoted_types
from .dtype import as_dtype
from .errors import INTERNAL_CODE, ArgumentError, DeviceError, DTypeError, MgeError, user_place
from .graph import LOCAL, Node, Number, Recording, Signature, get_signature, leaf_signature
from .mode import MODE
from .types import Type

OPS: dict[str, Op] = {}
_getframe = sys._getframe
_new = object.__new__

tensor_class: Any = None  # set by tensor.py


class Op:
    """The record of one operation. Call it with tensors, then attributes.

    Attributes
    ----------
    name : str
        ``"conv"``; a plugin's ops carry its namespace, ``"vision::nms"``.
    rule : callable
        The shape rule: types and attributes to the type of each output.
    input_names, attr_names : tuple of str
    variadic : bool
        The op takes any number of tensors (``*inputs``).
    is_base : bool
        A device is expected to have a kernel for it.
    """

    is_leaf = False

    def __init__(
        self,
        rule: Callable[..., Any],
        *,
        name: str,
        base: bool,
        autocast: str | None,
        pure: bool,
        promotes: str | None,
        promoted: tuple[str, ...] | None,
    ) -> None:
        self.rule, self.name, self.is_base = rule, name, base
        self.autocast, self.is_pure, self.promotes = autocast, pure, promotes
        self.__name__ = self.__qualname__ = rule.__name__
        self.__doc__, self.__module__, self.__wrapped__ = rule.__doc__, rule.__module__, rule
        self.arguments = arguments = Arguments(rule, name)
        self.__signature__ = arguments.signature
        self.variadic, self.optional_inputs = arguments.variadic, arguments.optional_inputs
        self.input_names, self.attr_names = arguments.input_names, arguments.attr_names
        self.input_count = len(self.input_names)
        self.bind, self.normal_attrs = arguments.bind, arguments.normal_attrs
        self.promoted = (
            tuple(self.input_names.index(n) for n in promoted) if promoted is not None else None
        )
        self._reference: Callable[..., Any] | None = None
        self._gradient: Callable[..., Any] | None = None
        self._lowering: Callable[..., Any] | None = None
        self._samples: Callable[..., Iterator] | None = None
        self.multiply_adds: Callable[[Signature], int] | None = None  # of one use; None: none
        self.picks = False  # of the first input it reads no more elements than it writes
        self.writes_out = False  # the reference takes ``out=``
        self.aliases = False  # the reference may return a view of its first input
        self.inplace: tuple[int, ...] = ()  # inputs over which output 0 may be written
        # The same, for several outputs.
        self.pairs: Callable[[Signature], list[tuple[int, int]]] | None = None
        # Dtype name -> relative tolerance, where the table's is too tight.
        self.tolerance: dict[str, float] = {}
        self.signatures: dict[tuple, Signature] = {}  # by what a call gives
        self._interned: dict[tuple, Signature] = {}  # by full attributes

    # The record.

    def reference(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Set the NumPy implementation: arrays and attributes to an array, or a tuple of arrays."""
        self._reference = function
        code = getattr(function, "__code__", None)
        names = (
            code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if code is not None
            else ()
        )
        self.writes_out = isinstance(function, np.ufunc) or "out" in names
        return function

    def gradient(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Set the gradient: ``(dy, y, *inputs, **attrs)`` in mge ops to one tensor or None for each input."""
        self._gradient = function
        return function

    def lowering(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Set the same function in base ops."""
        self._lowering = function
        return function

    def samples(self, function: Callable[..., Iterator]) -> Callable[..., Iterator]:
        """Set the generator of ``(inputs, attributes)`` from which tests and benchmarks start."""
        self._samples = function
        return function

    def inplace_pairs(self, sig: Signature) -> list[tuple[int, int]]:
        """Return the (input, output) pairs of which the output may be written over the input."""
        return self.pairs(sig) if self.pairs is not None else [(i, 0) for i in self.inplace]

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def __reduce__(self) -> str:
        return self.name

    # Calls.

    def __call__(self, *args: Any, **attrs: Any) -> Any:
        if self.variadic:
            if (
                args
                and args[0].__class__ in (list, tuple)
                and len(args) <= 1 + len(self.attr_names)
            ):
                attrs.update(zip(self.attr_names, args[1:]))  # a list stands for the inputs
                args = tuple(args[0])
        elif len(args) > self.input_count:  # attributes by position
            extra = dict(zip(self.attr_names, args[self.input_count :]))
            if len(extra) == len(args) - self.input_count and not extra.keys() & attrs.keys():
                args, attrs = args[: self.input_count], {**attrs, **extra}
        return record(self, args, tuple(attrs.items()) if attrs else ())

    def signature(
        self, types: Sequence[Any], attrs: tuple[tuple[str, Any], ...], device: Any
    ) -> Signature:
        """Run the shape rule once for these types and attributes.

        A Python type among ``types`` stands for a number from Python: weakly typed. Its place in
        ``input_types`` of the result says what it becomes.
        """
        types = promoted_types(self, types)
        key = (*types, attrs, device)
        found = self._interned.get(key)
        if found is None:
            result = self.rule(*types, **dict(attrs))
            outputs = tuple(result) if isinstance(result, (tuple, list)) else (result,)
            # As from a loop over x[i]: nodes keep those that they use.
            if len(self._interned) > SIGNATURES:
                self._interned.clear()
                self.signatures.clear()
            found = self._interned.setdefault(
                key, Signature(self, tuple(types), attrs, outputs, device)
            )
        return found


def op(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    base: bool = False,
    autocast: str | None = None,
    pure: bool = True,
    promotes: str | None = None,
    promoted: tuple[str, ...] | None = None,
) -> Any:
    """Register the decorated shape rule as an op.

    Parameters
    ----------
    name : str, optional
        Where it must differ from the function's name (``bool_``, a namespace).
    base : bool
        One of the base ops, which every device should have.
    autocast : {"low", "high", None}
        Under ``amp.autocast``: run in the low precision, in the high one, or in what the inputs have.
    pure : bool
        False for an op whose call has an effect or is not repeatable: never merged, never recomputed.
    promotes : {"same", "float", None}
        Inputs are cast before the call: to their common dtype by the promotion table, or to the float
        dtype of that (integers and bools become float32). Rule and kernels then see one dtype.
    promoted : tuple of str, optional
        The inputs that ``promotes`` speaks of, by default all.
    """

    def register(rule: Callable[..., Any]) -> Op:
        made = Op(
            rule,
            name=name or rule.__name__.rstrip("_"),
            base=base,
            autocast=autocast,
            pure=pure,
            promotes=promotes,
            promoted=promoted,
        )
        if made.name in OPS:
            raise ArgumentError(
                f"op: {made.name!r} is registered twice, by {OPS[made.name].__module__} and {made.__module__}"
            )
        OPS[made.name] = made
        return made

    return register(function) if function is not None else register


def record(op: Op, args: tuple, attrs: tuple[tuple[str, Any], ...] = ()) -> Any:
    """Record one node for a call and return its outputs as tensors.

    The first use with given types runs the shape rule; later ones find the signature in a dictionary.
    """
    mode = MODE.get()
    if mode.plain:
        try:
            nodes = tuple([a._node for a in args])
            sig = op.signatures.get((attrs, id(nodes[0].sig.device), *[n.type for n in nodes]))
        except (AttributeError, IndexError, TypeError):
            sig = None
        if sig is not None:
            recording = mode.recording or LOCAL.recording
            index = recording.index
            token: list[Any] = [sig]
            device = sig.device
            for node, argument in zip(nodes, args):
                if node.sig.device is not device:
                    return _record_slowly(op, args, attrs, mode)
                position = index.get(node)
                token.append(recording.enlist(node, argument) if position is None else position)
            return _append(recording, sig, nodes, tuple(token))
    return _record_slowly(op, args, attrs, mode)


def record_pair(op: Op, x: Any, y: Any) -> Any:
    """Record a binary operator: ``record`` for two inputs, of which one may be a number."""
    mode = MODE.get()
    if mode.plain:
        nx: Any = getattr(x, "_node", None)
        ny: Any = getattr(y, "_node", None)
        if nx is not None and ny is not None:
            sig = op.signatures.get(((), id(nx.sig.device), nx.type, ny.type))
            if sig is not None and ny.sig.device is not sig.device:
                sig = None
        elif mode.recording is not None:
            sig = None  # numbers are constants there
        elif nx is not None:
            sig = op.signatures.get(((), id(nx.sig.device), nx.type, y.__class__))
            if sig is not None:
                ny, y = make_number(y, sig.input_types[1], sig.device), None
        else:
            sig = ny and op.signatures.get(((), id(ny.sig.device), x.__class__, ny.type))
            if sig is not None:
                nx, x = make_number(x, sig.input_types[0], sig.device), None
        if sig is not None:
            recording = mode.recording or LOCAL.recording
            index = recording.index
            px = index.get(nx)
            if px is None:
                px = recording.enlist(nx, x)
            py = index.get(ny)
            if py is None:
                py = recording.enlist(ny, y)
            return _append(recording, sig, (nx, ny), (sig, px, py))
    return _record_slowly(op, (x, y), (), mode)


def _append(recording: Recording, sig: Signature, nodes: tuple[Node, ...], token: tuple) -> Any:
    """Add the node of a call to a recording; return its outputs as tensors."""
    frame = _getframe(2)
    while INTERNAL_CODE[frame.f_code] and frame.f_back is not None:
        frame = frame.f_back
    node = Node(sig, nodes, sig.type, None, frame.f_code, frame.f_lasti)
    tokens = recording.tokens
    position = recording.index[node] = len(tokens)
    tokens.append(token)
    if position > HARD_CAP and recording.owner is None:
        over_cap(recording)
    if sig.single:
        tensor = _new(tensor_class)
        tensor._node = node
        return tensor
    return tuple([_output(recording, node, position, i) for i in range(len(sig.types))])


def _output(recording: Recording, node: Node, position: int, i: int) -> Any:
    """Record the ``get`` node of output ``i`` and return it as a tensor."""
    sig = get_signature(node.sig, i)
    getter = Node(sig, (node,), sig.type, None, node.code, node.offset)
    recording.index[getter] = len(recording.tokens)
    recording.tokens.append((sig, position))
    tensor = _new(tensor_class)
    tensor._node = getter
    return tensor


def _record_slowly(op: Op, args: tuple, raw_attrs: tuple[tuple[str, Any], ...], mode: Any) -> Any:
    """Record a call with whatever it holds: sort, convert and check its arguments, run the shape rule."""
    try:
        inputs, attrs = op.bind(args, dict(raw_attrs))
        beside = next((i._node.sig.device for i in inputs if hasattr(i, "_node")), None)
        inputs = tuple(
            i if hasattr(i, "_node") or type(i) in NUMBERS else _as_input(op, i, beside)
            for i in inputs
        )
        nodes: list[Any] = [i._node if hasattr(i, "_node") else i for i in inputs]
        recording = mode.recording or LOCAL.recording
        device = _device_of(op, nodes, recording)
        for i, node in enumerate(nodes):
            if _is_elsewhere(node, device):
                made = record_nodes(node.sig.op.signature((), node.sig.attrs, device), ())
                inputs, nodes[i] = (*inputs[:i], made, *inputs[i + 1 :]), made._node
        if mode.cast is not None:
            nodes, inputs = mode.cast(op, nodes, inputs)
        types = [n.type if isinstance(n, Node) else getattr(n, "kind", type(n)) for n in nodes]
        there = attrs.get("device") if op.name == "copy" else None
        if there is not None:
            device = as_device(there)
        sig = op.signature(types, op.normal_attrs(attrs), device)
        if len(inputs) == len(args) and inputs and mode.cast is None and there is None:
            _remember(op, sig, types, raw_attrs)
        for i, node in enumerate(nodes):  # casts first: an eager one leaves a new recording behind
            if isinstance(node, Node) and node.type is not sig.input_types[i]:
                made = record(OPS["cast"], (inputs[i],), (("dtype", sig.input_types[i].dtype),))
                inputs, nodes[i] = (*inputs[:i], made, *inputs[i + 1 :]), made._node
        recording = mode.recording or LOCAL.recording
        token: list[Any] = [sig]
        for i, node in enumerate(nodes):
            if hasattr(node, "weak_node"):
                nodes[i] = node.weak_node(sig.input_types[i].dtype)
                token.append(recording.enlist(nodes[i]))
            elif not isinstance(node, Node):
                nodes[i] = _number_node(node, sig.input_types[i], device, recording)
                token.append(recording.enlist(nodes[i]))
            else:
                token.append(recording.enlist(node, inputs[i]))
    except MgeError as error:
        raise error.add_place(user_place()) from None
    result = _append(recording, sig, tuple(nodes), tuple(token))
    if mode.eager and mode.recording is None:
        compute_now(result if isinstance(result, tuple) else (result,))
    return result


def record_nodes(sig: Signature, nodes: Sequence[Node], later: bool = False) -> Any:
    """Record a node with a signature that is known already; returns its outputs as tensors.

    Eager mode computes it at once, but for ``later``.
    """
    mode = MODE.get()
    recording = mode.recording or LOCAL.recording
    token = (sig, *[recording.enlist(n) for n in nodes])
    result = _append(recording, sig, tuple(nodes), token)
    if mode.eager and mode.recording is None and not later:
        compute_now(result if isinstance(result, tuple) else (result,))
    return result


NUMBERS = (bool, int, float)


def _remember(op: Op, sig: Signature, types: list, raw_attrs: tuple) -> None:
    """Let the fast paths find ``sig`` for a call that looks the same."""
    try:
        if any(isinstance(t, Type) and t is not s for t, s in zip(types, sig.input_types)):
            return  # an input needs a cast
        if all(isinstance(t, Type) for t in types) or (len(types) == 2 and not raw_attrs):
            op.signatures[raw_attrs, id(sig.device), *types] = sig
    except TypeError:  # an attribute does not hash, as a list: found by the slow path each time
        pass


def _as_input(op: Op, value: Any, device: Any) -> Any:
    """Turn an argument that is no tensor into a number, or a tensor on the device of the others."""
    if hasattr(value, "weak_node"):
        return value
    if isinstance(value, NUMBERS):  # subclasses, as numpy.float64
        return float(value) if isinstance(value, float) else int(value)
    if isinstance(value, (np.ndarray, np.generic, list, tuple)) or hasattr(value, "__array__"):
        return make_constant(value, device)
    raise DTypeError(
        f"{op.name}: an input is {value!r} of type {type(value).__name__}; it must be a tensor, an array or a number",
        hint=f"{op.name}{op.__signature__}",
    )


def _device_of(op: Op, nodes: list, recording: Recording) -> Any:
    """Return the one device of the inputs; numbers have none, and a call without tensors gets the default.

    Constants are made again where the other inputs are.
    """
    device = None
    for node in nodes:
        if isinstance(node, Node) and (node.sig.op.name != "constant" or len(nodes) == 1):
            if device is not None and node.sig.device is not device:
                raise _two_devices(op, nodes)
            device = node.sig.device
    if device is None:
        device = next((n.sig.device for n in nodes if isinstance(n, Node)), None)
    if device is None:
        device = recording.owner.device if recording.owner is not None else default_device()
    return device


def _is_elsewhere(node: Any, device: Any) -> bool:
    """Whether a node is a constant of another device."""
    return (
        isinstance(node, Node) and node.sig.device is not device and node.sig.op.name == "constant"
    )


def _two_devices(op: Op, nodes: Sequence[Any]) -> DeviceError:
    names = [str(n.sig.device) for n in nodes if isinstance(n, Node)]
    return DeviceError(
        f"{op.name}: the inputs are on {', '.join(names)}; all must be on one device",
        hint="move one with .to(device)",
    )


def make_number(value: Any, type_: Type, device: Any) -> Node:
    """Return the leaf of a number from Python, checked against its dtype."""
    dtype = type_.dtype
    if dtype.is_integer:
        info = np.iinfo(dtype.dtype)
        if not info.min <= value <= info.max:
            raise ArgumentError(
                f"{value} does not fit {dtype} ({info.min} to {info.max})",
                hint="convert the tensor with .astype first",
            ).add_place(user_place())
    return Node(leaf_signature(type_, device), (), type_, Number(value, dtype.dtype))


def _number_node(value: Any, type_: Type, device: Any, recording: Recording) -> Node:
    """Return a node for a number: a leaf in a pending graph, a constant inside a rule or a trace."""
    leaf = make_number(value, type_, device)
    return leaf if recording.owner is None else constant_node(leaf.buffer.array, device, recording)


def constant_node(array: np.ndarray, device: Any, recording: Recording) -> Node:
    """Record a ``constant`` node that holds a small array in its attributes."""
    dtype = as_dtype(array.dtype)
    constant = OPS["constant"]
    attrs = constant.normal_attrs({"data": array.tobytes(), "shape": array.shape, "dtype": dtype})
    sig = constant.signature((), attrs, device)
    node = Node(sig, (), sig.type)
    recording.index[node] = len(recording.tokens)
    recording.tokens.append((sig,))
    return node


SIGNATURES = 4_096  # kept for each op
HARD_CAP = 20_000  # nodes in one pending graph; run.py cuts there


def over_cap(recording: Recording) -> None:
    """Cut a pending graph that has grown over the hard cap. Set by run.py."""


def as_device(name: Any) -> Any:
    """Return the device of a name. Set by device.py."""


def default_device() -> Any:
    """Return the device of tensors made without naming one. Set by device.py."""


def make_constant(value: Any, device: Any = None) -> Any:
    """Return the tensor of an array-like. Set by tensor.py."""


def compute_now(tensors: tuple) -> None:
    """Compute tensors at once, in eager mode. Set by run.py."""
