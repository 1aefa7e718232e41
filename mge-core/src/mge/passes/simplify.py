"""Pass ``simplify``: constant folding, common subexpressions, dead code, and algebra that changes no bit.

In: a flat graph. Out: a smaller one with the same results, bit for bit.
After ``inline``; before ``lower``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..graph import GET, Graph, Node
from ..op import OPS
from .rewrite import rebuild, with_inputs

# A folded constant lives in the graph; larger ones are cheaper to make than to keep.
FOLD_LIMIT_BYTES = 256


def simplify(graph: Graph) -> Graph:
    """Return the graph with equal nodes merged, constants folded and neutral operations removed."""
    seen: dict[tuple, Node] = {}

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        made = _algebra(node, inputs)
        if made is not None:
            return made
        node = with_inputs(node, inputs)
        if not node.sig.op.is_pure:
            return node
        key = (node.sig, inputs)
        found = seen.get(key)
        if found is None:
            found = seen[key] = _fold(node)
        return found

    return rebuild(graph, visit)


def _fold(node: Node) -> Node:
    """Return the constant that a node computes from constants, where it is small."""
    sig = node.sig
    small = sig.single and sig.nbytes <= FOLD_LIMIT_BYTES and sig.op.name != "constant"
    if not small or not node.inputs or not all(i.sig.op.name == "constant" for i in node.inputs):
        return node
    output = np.empty(sig.type.shape, sig.type.dtype.dtype)
    with np.errstate(all="ignore"):
        sig.device.host_kernel(sig)([constant_value(i) for i in node.inputs], [output], None)
    return constant_of(output, node)


def constant_value(node: Node) -> np.ndarray:
    """Return the array of a ``constant`` node."""
    attrs = dict(node.sig.attrs)
    return np.frombuffer(attrs["data"], attrs["dtype"].dtype).reshape(attrs["shape"])


def constant_of(array: np.ndarray, site: Node) -> Node:
    """Return a ``constant`` node with an array, at the call site of another node."""
    op = OPS["constant"]
    attrs = op.normal_attrs({"data": array.tobytes(), "shape": array.shape, "dtype": array.dtype})
    sig = op.signature((), attrs, site.sig.device)
    return Node(sig, (), sig.type, None, site.code, site.offset)


# Algebra: each rule returns what stands for the node, or None. All are exact, also for NaN and signed zeros.

Rule = Callable[[Node, tuple[Node, ...], dict[str, Any]], Node | None]


def _algebra(node: Node, inputs: tuple[Node, ...]) -> Node | None:
    sig = node.sig
    if sig.op is GET:
        return None
    rule = _RULES.get(sig.op.name)
    found = rule(node, inputs, dict(sig.attrs)) if rule is not None else None
    return found if found is not None and found.type is node.type else None


def _is_filled_with(node: Node, value: float) -> bool:
    """Whether all elements of a node are known to equal a number."""
    while node.sig.op.name in ("broadcast_to", "reshape"):
        node = node.inputs[0]
    if node.sig.op.name != "constant":
        return False
    array = constant_value(node)
    return array.size > 0 and bool((array == value).all())


def _mul(node: Node, inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Node | None:
    x, y = inputs
    return x if _is_filled_with(y, 1) else y if _is_filled_with(x, 1) else None


def _div(node: Node, inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Node | None:
    return inputs[0] if _is_filled_with(inputs[1], 1) else None


def _neg(node: Node, inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Node | None:
    return inputs[0].inputs[0] if inputs[0].sig.op.name == "neg" else None


def _same_type(node: Node, inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Node | None:
    return inputs[0]


def _reshape(node: Node, inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Node | None:
    x = inputs[0]
    if x.type is node.type:
        return x
    return _reshaped(node, x.inputs[0]) if x.sig.op.name == "reshape" else None


def _reshaped(node: Node, x: Node) -> Node:
    if x.type is node.type:
        return x
    op = OPS["reshape"]
    sig = op.signature((x.type,), op.normal_attrs({"shape": node.type.shape}), node.sig.device)
    return Node(sig, (x,), sig.type, None, node.code, node.offset)


def _pattern(x: Node, pattern: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the axes of a transpose of ``x``, counted from the front."""
    ndim = x.type.ndim
    return tuple(range(ndim))[::-1] if pattern is None else tuple(p % ndim for p in pattern)


def _transpose(node: Node, inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Node | None:
    x, pattern = inputs[0], _pattern(inputs[0], attrs["pattern"])
    if pattern == tuple(range(x.type.ndim)):
        return x
    if x.sig.op.name == "transpose":
        before = _pattern(x, dict(x.sig.attrs)["pattern"])
        if [before[p] for p in pattern] == list(range(len(pattern))):
            return x.inputs[0]
    return None


_RULES: dict[str, Rule] = {
    "mul": _mul,
    "div": _div,
    "neg": _neg,
    "cast": _same_type,
    "detach": _same_type,
    "broadcast_to": _same_type,
    "reshape": _reshape,
    "transpose": _transpose,
}
