"""Pass ``epilogue``: what follows a convolution or a matrix product is done before its result is stored.

In: ``x86::conv`` and ``x86::linear``. Out: the same ops with bias, residual and activation.
After ``layout`` and ``linear``; before nothing.

``y = activation(product + bias + residual)``. Each step is taken where nothing else reads the value before it.
"""

from __future__ import annotations

from typing import Any

from mge.debug import debug
from mge.graph import Graph, Node
from mge.passes.rewrite import rebuild, with_inputs

from .build import RESHAPES, Builder, is_mine, uses

HOSTS = ("x86::conv", "x86::linear")
EXACT = ("relu", "relu6")  # the others may round otherwise than the op of their name
ACTIVATIONS = (*EXACT, "sigmoid", "tanh", "silu", "hswish", "hsigmoid", "gelu")


def fuse_epilogues(graph: Graph) -> Graph:
    """Return the graph with additions and activations in the stores of the products before them."""
    if not any(n.sig.op.name in HOSTS for n in graph.nodes):
        return graph
    build, count = Builder(), uses(graph)
    activations = EXACT if debug.deterministic else ACTIVATIONS
    position = {n: i for i, n in enumerate(graph.nodes)}

    def hosts(node: Node, inputs: tuple[Node, ...]) -> list[tuple[Node, Node]]:
        """Return the products that only this node reads, with the other input; that computed last comes first."""
        found = []
        for i, (old, new) in enumerate(zip(node.inputs, inputs)):
            if new.type is node.type:
                while new.sig.op.name in RESHAPES and count[old] == 1:
                    old, new = old.inputs[0], new.inputs[0]
                if new.sig.op.name in HOSTS and count[old] == 1:
                    found.append((position[old], new, inputs[1 - i] if len(inputs) == 2 else new))
        return [(new, other) for _, new, other in sorted(found, key=lambda f: -f[0])]

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        name = node.sig.op.name
        if is_mine(node) and (name == "add" or name in activations):
            for host, other in hosts(node, inputs):
                made = (_added if name == "add" else _activated)(build, node, host, other)
                if made is not None:
                    return build.reshape(made, node.type.shape, node)
        return with_inputs(node, inputs)

    return rebuild(graph, visit)


def _added(build: Builder, node: Node, host: Node, other: Node) -> Node | None:
    """Return a product with a bias, or with another value of its shape."""
    attrs: dict[str, Any] = dict(host.sig.attrs)
    x, packed, *extras = host.inputs
    c = host.type.shape[-1]
    if attrs["activation"] or attrs["residual"]:
        return None
    if other.type.shape == (*(1,) * (other.type.ndim - 1), c) and node.type.shape[-1] == c:
        if attrs["bias"] or not other.type.ndim:
            return None
        attrs["bias"], extras = True, [build.reshape(other, (c,), node)]
    elif other.type is node.type:
        attrs["residual"], extras = True, [*extras, build.reshape(other, host.type.shape, node)]
    else:
        return None
    return build.try_make(host.sig.op.name, [x, packed, *extras], node, **attrs)


def _activated(build: Builder, node: Node, host: Node, _: Node) -> Node | None:
    """Return a product with an activation."""
    attrs: dict[str, Any] = dict(host.sig.attrs)
    if attrs["activation"] or dict(node.sig.attrs).get("approximate", "none") != "none":
        return None
    return build.try_make(
        host.sig.op.name, host.inputs, node, **{**attrs, "activation": node.sig.op.name}
    )
