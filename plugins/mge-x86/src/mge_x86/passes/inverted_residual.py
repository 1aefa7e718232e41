"""Pass ``inverted_residual``: expand, filter and project of mobile networks become one op.

In: chains of ``x86::conv``, 1x1, depthwise, 1x1, of which nothing else reads what is between. Out:
``x86::inverted_residual``. After ``epilogue``; before ``fuse``.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from mge.graph import Graph, Node
from mge.passes.rewrite import rebuild, with_inputs

from .build import Builder, uses

# Bytes of the images that a filter alone reads, below which it is not joined to what follows: where they fit the
# second cache there is little to save, and what follows has a better cut of its own.
LEAST_BYTES = 1 << 20


def fuse_inverted_residuals(graph: Graph) -> Graph:
    """Return the graph with ``x86::inverted_residual`` in place of its three convolutions, or of the last two."""
    if not any(_is_filter(n) for n in graph.nodes):
        return graph
    build, count = Builder(), uses(graph)

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        made = _block(build, node, inputs, count) if _is_product(node) else None
        return with_inputs(node, inputs) if made is None else made

    return rebuild(graph, visit)


def _block(
    build: Builder, node: Node, inputs: tuple[Node, ...], count: Counter[Node]
) -> Node | None:
    """Return the block that ends with a convolution, or None; inputs are those of the new graph."""
    old, (middle, project, *last) = node.inputs[0], inputs
    if not _is_filter(middle) or not _is_filter(old) or count[old] > 1:
        return None
    end, inner = dict(node.sig.attrs), dict(middle.sig.attrs)
    x, filter_, *filter_bias = middle.inputs
    expand: list[Node] = []
    if _is_product(x) and count[old.inputs[0]] == 1 and not dict(x.sig.attrs)["residual"]:
        outer = dict(x.sig.attrs)
        x, *expand = x.inputs
    elif x.type.nbytes < LEAST_BYTES:
        return None
    attrs: dict[str, Any] = {name: end[name] for name in ("bias", "residual", "activation")}
    if expand:
        attrs |= {"expand_bias": outer["bias"], "expand_activation": outer["activation"]}
    return build.try_make(
        "x86::inverted_residual",
        [x, filter_, project, *expand, *filter_bias, *last],
        node,
        filter_shape=inner["weight_shape"],
        outputs=end["weight_shape"][0],
        stride=inner["stride"][0],
        expands=bool(expand),
        filter_bias=inner["bias"],
        filter_activation=inner["activation"],
        **attrs,
    )


def _is_product(node: Node) -> bool:
    """Whether a node is a 1x1 convolution of all pixels."""
    if node.sig.op.name != "x86::conv":
        return False
    a = dict(node.sig.attrs)
    return (
        a["weight_shape"][2:] == (1, 1)
        and _window(a) == ((1, 1), (0, 0), (1, 1), 1)
        and a["algorithm"] == "direct"
    )


def _is_filter(node: Node) -> bool:
    """Whether a node is a depthwise convolution that ``x86::inverted_residual`` takes."""
    if node.sig.op.name != "x86::conv" or dict(node.sig.attrs)["algorithm"] != "depthwise":
        return False
    a = dict(node.sig.attrs)
    e, _, k, other = a["weight_shape"]
    stride = a["stride"]
    same = ((stride[0],) * 2, (k // 2,) * 2, (1, 1), e)
    return k == other and _window(a) == same and not a["residual"]


def _window(attrs: dict[str, Any]) -> tuple:
    return (attrs["stride"], attrs["padding"], attrs["dilation"], attrs["groups"])
