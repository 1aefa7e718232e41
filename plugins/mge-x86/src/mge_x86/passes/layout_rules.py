"""How each op is computed on values whose axes lie in another order.

In: a node and the forms of its inputs. Out: the node in that order, or False: computed as recorded.
After ``layout`` and ``pointwise``; before nothing.

A rule follows its largest input: where that was computed as recorded, so is the node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mge.debug import debug
from mge.graph import Node

from . import convolution
from .build import RESHAPES, Axes
from .forms import channels_last, moved, plain
from .layout import Layout, Rule
from .pointwise import POINTWISE

Shape = tuple[int, ...]


def _order(lay: Layout, node: Node) -> Axes | None:
    """Return the order of a node's first input, or None where it is as recorded."""
    x = node.inputs[0]
    return None if lay.forms.is_plain(x) else lay.forms.native(x)


def _pointwise(lay: Layout, node: Node) -> bool:
    forms, ndim = lay.forms, node.type.ndim
    orders = {forms.native(i) for i in node.inputs if i.type.ndim == ndim and not forms.is_plain(i)}
    if not orders:
        return False
    costs = {a: sum(forms.cost(i, a) for i in node.inputs) for a in sorted(orders)}
    axes = min(costs, key=lambda a: costs[a])
    if costs[axes] > sum(forms.cost(i, plain(ndim)) for i in node.inputs):
        return False
    inputs = [forms.aligned(i, axes) if i.type.ndim else forms.plain(i) for i in node.inputs]
    return lay.put(node, lay.build.same(node, inputs), axes)


def _reduced(lay: Layout, node: Node) -> bool:
    """Reduce over the same axes, wherever they lie; sums in another order round differently."""
    axes, attrs = _order(lay, node), dict(node.sig.attrs)
    if axes is None or (debug.deterministic and node.sig.op.name in SUMS):
        return False
    ndim, given = len(axes), attrs["axis"]
    if given is None and node.sig.op.name in ("argmax", "argmin"):
        return False
    chosen = range(ndim) if given is None else given if isinstance(given, tuple) else (given,)
    reduced = {a % ndim for a in chosen}
    places: Any = tuple(sorted(axes.index(a) for a in reduced))
    attrs["axis"] = None if given is None else places if isinstance(given, tuple) else places[0]
    x = lay.forms.get(node.inputs[0], axes)
    made = lay.build.make(node.sig.op.name, [x], node, **attrs)
    return lay.put(node, made, axes if attrs.get("keepdims") else _without(axes, reduced))


def _without(axes: Axes, gone: set[int]) -> Axes:
    """Return an order after some axes are gone."""
    left = [a for a in axes if a not in gone]
    return tuple(sorted(left).index(a) for a in left)


def _along(lay: Layout, node: Node) -> bool:
    """Work along one axis (softmax, cumsum)."""
    axes, attrs = _order(lay, node), dict(node.sig.attrs)
    if axes is None or not isinstance(attrs["axis"], int):
        return False
    attrs["axis"] = axes.index(attrs["axis"] % len(axes))
    made = lay.build.make(node.sig.op.name, [lay.forms.get(node.inputs[0], axes)], node, **attrs)
    return lay.put(node, made, axes)


def _concat(lay: Layout, node: Node) -> bool:
    forms, axis = lay.forms, dict(node.sig.attrs)["axis"]
    ndim = node.type.ndim
    costs = {
        a: sum(forms.cost(i, a) for i in node.inputs)
        for a in (plain(ndim), *(forms.native(i) for i in node.inputs))
    }
    axes = min(costs, key=lambda a: (costs[a], a))
    if axes == plain(ndim):
        return False
    made = lay.build.make(
        "concat", [forms.get(i, axes) for i in node.inputs], node, axis=axes.index(axis % ndim)
    )
    return lay.put(node, made, axes)


def _leading_order(lay: Layout, inputs: Sequence[Node]) -> Axes | None:
    """Return the order of the one input that is not as recorded: of a part that goes into a frame, or of the frame."""
    leader = max(inputs, key=lambda i: (not lay.forms.is_plain(i), i.type.nbytes))
    axes = lay.forms.native(leader)
    moved_bytes = sum(lay.forms.cost(i, axes) for i in inputs)
    return None if lay.forms.is_plain(leader) or moved_bytes > leader.type.nbytes else axes


def _sliced(lay: Layout, node: Node) -> bool:
    """Take or replace a regular part."""
    axes = _leading_order(lay, node.inputs)
    if axes is None:
        return False
    attrs = {
        name: moved(value, axes) if isinstance(value, tuple) else value
        for name, value in node.sig.attrs
    }
    inputs = [lay.forms.get(i, axes) for i in node.inputs]
    return lay.put(node, lay.build.make(node.sig.op.name, inputs, node, **attrs), axes)


def _indexed(lay: Layout, node: Node) -> bool:
    """Pick places along one axis."""
    attrs, indices = dict(node.sig.attrs), node.inputs[-1]
    axes = _leading_order(lay, node.inputs[:-1])
    if axes is None or len(attrs["axes"]) != 1 or indices.type.ndim != 1:
        return False
    attrs["axes"] = (axes.index(attrs["axes"][0] % len(axes)),)
    inputs = [lay.forms.get(i, axes) for i in node.inputs[:-1]] + [lay.forms.plain(indices)]
    return lay.put(node, lay.build.make(node.sig.op.name, inputs, node, **attrs), axes)


def _transposed(lay: Layout, node: Node) -> bool:
    """Only the names of the axes change: (n, c, l) with channels last is (n, l, c) as recorded."""
    axes = _order(lay, node)
    if axes is None:
        return False
    ndim, pattern = len(axes), dict(node.sig.attrs)["pattern"]
    pattern = plain(ndim)[::-1] if pattern is None else tuple(p % ndim for p in pattern)
    order = tuple(pattern.index(a) for a in axes)
    return lay.put(node, lay.forms.get(node.inputs[0], axes), order)


def _reshaped(lay: Layout, node: Node) -> bool:
    axes, old, new = _order(lay, node), node.inputs[0].type.shape, node.type.shape
    if axes is None or not node.type.size:
        return False
    groups = _groups(old, new)
    order = _order_after(groups, axes, new)
    if order is None and len(new) == 4:  # it must move: then to where images are
        order = channels_last(4)
        axes_before = _order_after([(b, a) for a, b in groups], order, old)
        if axes_before is None:
            return False
        axes = axes_before
    if order is None:
        return False
    x = lay.forms.get(node.inputs[0], axes)
    return lay.put(node, lay.build.reshape(x, moved(new, order), node), order)


def _groups(old: Shape, new: Shape) -> list[tuple[list[int], list[int]]]:
    """Return which axes a reshape merges or splits into which, without those of one element."""
    ins, outs = ([a for a, n in enumerate(shape) if n != 1] for shape in (old, new))
    groups = []
    i = j = 0
    while i < len(ins):
        end, to = i + 1, j + 1
        while (a := math.prod(old[x] for x in ins[i:end])) != (
            b := math.prod(new[x] for x in outs[j:to])
        ):
            end, to = (end + 1, to) if a < b else (end, to + 1)
        groups.append((ins[i:end], outs[j:to]))
        i, j = end, to
    return groups


def _order_after(groups: list[tuple[list[int], list[int]]], axes: Axes, new: Shape) -> Axes | None:
    """Return the order in which a reshaped value lies where nothing moves; None where something must.

    Each group of axes that are merged or split must lie together and in order.
    """
    order = [a for a, n in enumerate(new) if n == 1]
    real = [a for a in axes if any(a in ins for ins, _ in groups)]
    while real:
        ins, outs = next(g for g in groups if real[0] in g[0])
        if real[: len(ins)] != ins:
            return None
        real = real[len(ins) :]
        order += outs
    usual = channels_last(len(new))
    same = [a for a in usual if new[a] != 1] == [a for a in order if new[a] != 1]
    return usual if same and len(new) > 2 else tuple(order)


def _spread(lay: Layout, node: Node) -> bool:
    """Repeat a value: where a reader wants another order, it repeats another form."""
    x = node.inputs[0]
    axes = _order(lay, node)
    if axes is None:
        if node.type.ndim > 2 and x.type.nbytes < node.type.nbytes:
            lay.forms.put_spread(node, x)
        return False
    more = node.type.ndim - len(axes)
    order = (*range(more), *(a + more for a in axes))
    made = lay.build.make(
        "broadcast_to", [lay.forms.get(x, axes)], node, shape=moved(node.type.shape, order)
    )
    return lay.put(node, made, order)


def _chosen(lay: Layout, node: Node) -> bool:
    """Judge each position by its classes (cross-entropy of images, ``pick_class``)."""
    names = node.sig.op.input_names
    pred = node.inputs[names.index("pred")]
    attrs = dict(node.sig.attrs)
    if lay.forms.is_plain(pred) or not isinstance(attrs["axis"], int):
        return False
    axes = lay.forms.native(pred)
    axis = attrs["axis"] % len(axes)
    rest = _without(axes, {axis})
    attrs["axis"] = axes.index(axis)
    inputs = [lay.forms.get(i, axes if i is pred else rest) for i in node.inputs]
    made = lay.build.make(node.sig.op.name, inputs, node, **attrs)
    return lay.put(node, made, axes if node.type is pred.type else rest)


SUMS = frozenset(["sum", "mean", "prod", "var", "std", "norm", "logsumexp"])
_ORDERLESS = ["max", "min", "any", "all", "count_nonzero", "argmax", "argmin"]

RULES: dict[str, Rule] = {
    **dict.fromkeys(POINTWISE, _pointwise),
    **dict.fromkeys([*SUMS, *_ORDERLESS], _reduced),
    **dict.fromkeys(["softmax", "logsoftmax", "cumsum", "cumprod"], _along),
    **dict.fromkeys(RESHAPES, _reshaped),
    **dict.fromkeys(["slice", "slice_set"], _sliced),
    **dict.fromkeys(["index", "index_set"], _indexed),
    **dict.fromkeys(["pick_class", "softmax_cross_entropy", "softmax_cross_entropy_grad"], _chosen),
    "concat": _concat,
    "transpose": _transposed,
    "broadcast_to": _spread,
    **convolution.RULES,
}
