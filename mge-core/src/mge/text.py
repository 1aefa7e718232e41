"""The text form of graphs, as ``parse`` reads it.

In: attributes, graphs. Out: ``print_attrs``, ``print_graph``.
After ``dtype``; before ``graph``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .dtype import DType

if TYPE_CHECKING:
    from .graph import Graph


def print_attrs(attrs: tuple[tuple[str, Any], ...]) -> str:
    """Return `` {name=value, ...}``, or nothing where there are no attributes."""
    return (
        " {" + ", ".join(f"{name}={_print_value(value)}" for name, value in attrs) + "}"
        if attrs
        else ""
    )


def _print_value(value: Any) -> str:
    if isinstance(value, DType):
        return value.short
    if isinstance(value, (bytes, bytearray)):
        return f"0x{value.hex()}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_print_value, value)) + ("," if len(value) == 1 else "") + ")"
    if hasattr(value, "nodes"):  # a graph
        return print_graph(value).replace("\n", "\n  ")
    if callable(value):
        return f"<{getattr(value, '__qualname__', value)}>"
    return repr(value)


def print_graph(graph: Graph) -> str:
    """Return the text of a graph; ``mge.parse_graph`` reads it back."""
    names = {node: f"%{i}" for i, node in enumerate((*graph.inputs, *graph.nodes))}
    inputs = ", ".join(
        f"{names[n]}: {n.type}{' slow' if n.sig.attrs else ''}" for n in graph.inputs
    )
    lines = [f"graph({inputs}) {{"]
    for node in graph.nodes:
        types = node.sig.types
        type_text = repr(types[0]) if len(types) == 1 else f"({', '.join(map(repr, types))})"
        arguments = ", ".join(names[i] for i in node.inputs)
        lines.append(
            f"  {names[node]}: {type_text} = {node.op.name}({arguments}){print_attrs(node.sig.attrs)}"
        )
    lines.append(f"  return {', '.join(names[o] for o in graph.outputs)}".rstrip())
    return "\n".join(lines) + "\n}"
