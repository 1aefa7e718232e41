"""Pass ``fold``: a batch norm by given statistics becomes part of the weights before it.

In: a graph as recorded. Out: convolutions with scaled weights, and the shift as a bias; else a factor and a shift.
After nothing; before ``layout``.

``(w * x + b - mean) * s + shift = (w * s) * x + ((b - mean) * s + shift)`` with ``s = weight / sqrt(var + eps)``.
All of it depends on parameters, so the prologue computes it. Where no product comes before, the norm becomes one
multiplication and one addition, which loops take in. Rounding changes: off under ``MGE_DETERMINISTIC=1``.
"""

from __future__ import annotations

from mge.graph import Graph, Node
from mge.passes.rewrite import rebuild, with_inputs

from .build import RESHAPES, Builder, is_mine, slow_nodes, uses

# Which axis of the weight holds the outputs.
OUTPUTS = {"conv": 0, "conv_backward_data": 1, "linear": 0}
WEIGHTS = {"conv": 1, "conv_backward_data": 0, "linear": 1}  # which input it is


def fold_batch_norm(graph: Graph) -> Graph:
    """Return the graph with batch norms folded into what only they read."""
    if not any(n.sig.op.name == "batch_norm_infer" for n in graph.nodes):
        return graph
    build, slow, count = Builder(), slow_nodes(graph), uses(graph)
    made: dict[Node, Node] = {n: n for n in graph.inputs}

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        made[node] = with_inputs(node, inputs)
        if node.sig.op.name in RESHAPES:
            made[node] = build.reshape(inputs[0], node.type.shape, node)
        elif node.sig.op.name == "batch_norm_infer" and is_mine(node):
            chain, bias = _chain(node.inputs[0])
            if all(count[n] == 1 for n in chain) and _is_foldable(chain[-1], node, bias, slow):
                shift = None if bias is None else made[bias]
                folded = _folded(build, node, made[chain[-1]], shift, inputs)
                made[node] = build.reshape(folded, node.type.shape, node)
            elif node.type.dtype.name == "float32" and all(p in slow for p in node.inputs[1:]):
                made[node] = _applied(build, node, inputs)
        return made[node]

    return rebuild(graph, visit)


def _chain(node: Node) -> tuple[list[Node], Node | None]:
    """Return what leads from a batch norm's input back to a product, and the bias for each channel that it passes."""
    chain, bias = [node], None
    while True:
        x = node.inputs[0] if node.inputs else node
        name = node.sig.op.name
        if name in RESHAPES and x.type.shape[:2] == node.type.shape[:2]:
            node = x
        elif name == "add" and bias is None and x.type is node.type and _is_per_channel(node):
            node, bias = x, node.inputs[1]
        else:
            return chain, bias
        chain.append(node)


def _is_per_channel(added: Node) -> bool:
    """Whether an addition adds one number for each channel."""
    y, shape = added.type, added.inputs[1].type.shape
    return y.ndim > 1 and shape == (1, y.shape[1], *(1,) * (y.ndim - 2))


def _is_foldable(source: Node, norm: Node, bias: Node | None, slow: set[Node]) -> bool:
    name = source.sig.op.name
    if name not in OUTPUTS or not is_mine(source) or norm.type.dtype.name != "float32":
        return False
    fits = source.type.shape[:2] == norm.type.shape[:2]
    if name == "linear":
        fits = fits and source.type.ndim == 2
    if name == "conv_backward_data" and dict(source.sig.attrs)["groups"] != 1:
        fits = False
    parameters = [source.inputs[WEIGHTS[name]], *norm.inputs[1:], *source.inputs[2:]]
    return fits and all(p in slow for p in (*parameters, *([bias] if bias is not None else [])))


def _scale_and_shift(
    build: Builder, norm: Node, inputs: tuple[Node, ...], added: list[Node]
) -> tuple[Node, Node]:
    """Return what multiplies each channel, and what is then added; ``added`` was added before the norm."""
    c = norm.type.shape[1]
    mean, var, *affine = (build.reshape(i, (c,), norm) for i in inputs[1:])
    eps = build.constant(dict(norm.sig.attrs)["eps"], norm)
    scale = build.make("rsqrt", [build.make("add", [var, eps], norm)], norm)
    if affine:
        scale = build.make("mul", [scale, affine[0]], norm)
    for given in added:
        mean = build.make("sub", [mean, build.reshape(given, (c,), norm)], norm)
    less = build.make("mul", [mean, scale], norm)
    if affine[1:]:
        return scale, build.make("sub", [affine[1], less], norm)
    return scale, build.make("neg", [less], norm)


def _folded(
    build: Builder, norm: Node, y: Node, bias: Node | None, inputs: tuple[Node, ...]
) -> Node:
    """Return the product ``y`` with scaled weights, plus the shift."""
    name, c = y.sig.op.name, norm.type.shape[1]
    added = [*([bias] if bias is not None else []), *y.inputs[2:]]
    scale, shift = _scale_and_shift(build, norm, inputs, added)
    weight, axis = y.inputs[WEIGHTS[name]], OUTPUTS[name]
    shape = [1] * weight.type.ndim
    shape[axis] = c
    scaled = build.make("mul", [weight, build.reshape(scale, shape, norm)], norm)
    if name == "linear":
        return build.make(name, [y.inputs[0], scaled, shift], y, **dict(y.sig.attrs))
    parts = [y.inputs[0], scaled] if name == "conv" else [scaled, y.inputs[1]]
    spread = build.reshape(shift, (1, c, *(1,) * (y.type.ndim - 2)), norm)
    return build.make("add", [build.same(y, parts), spread], norm)


def _applied(build: Builder, norm: Node, inputs: tuple[Node, ...]) -> Node:
    """Return the norm as a factor and a shift for each channel."""
    shape = (1, norm.type.shape[1], *(1,) * (norm.type.ndim - 2))
    pair = _scale_and_shift(build, norm, inputs, [])
    scale, shift = (build.reshape(p, shape, norm) for p in pair)
    return build.make("add", [build.make("mul", [inputs[0], scale], norm), shift], norm)
