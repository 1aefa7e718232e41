"""Convolutions, pools and batch norms with channels last: rules of the pass ``layout``.

In: nodes of the base ops. Out: ``x86::conv`` and the like over packed weights; one spatial axis counts as two.
After ``layout`` and ``algorithm``; before ``layout_rules``.
"""

from __future__ import annotations

import math
from typing import Any

from mge.debug import debug
from mge.graph import Node

from .algorithm import choose_algorithm, packs_on_the_way
from .forms import channels_last, plain
from .layout import Layout, Rule

Shape = tuple[int, ...]


def _images(lay: Layout, node: Node, x: Node) -> Node:
    """Return images as (n, h, w, c); sequences get a height of 1."""
    last = lay.forms.get(x, channels_last(x.type.ndim))
    return lay.build.reshape(last, image_shape(x.type.shape), node)


def image_shape(shape: Shape) -> Shape:
    """Return (n, c, h, w) or (n, c, l) as (n, h, w, c)."""
    n, c, *space = shape
    return (n, *[1] * (2 - len(space)), *space, c)


def _window(node: Node) -> dict[str, Any]:
    """Return stride, padding, dilation and groups over two spatial axes."""
    attrs = dict(node.sig.attrs)
    lead = 4 - node.type.ndim
    window = {
        name: (fill,) * lead + attrs[name]
        for name, fill in (("stride", 1), ("padding", 0), ("dilation", 1))
    }
    return {**window, "groups": attrs["groups"]}


def _weight(lay: Layout, node: Node, weight: Node) -> Node:
    shape = weight.type.shape
    return lay.build.reshape(
        lay.forms.plain(weight), (*shape[:2], *(1,) * (4 - len(shape)), *shape[2:]), node
    )


def _is_fit(node: Node) -> bool:
    return node.type.ndim in (3, 4) and node.type.dtype.name == "float32"


def _packed(
    lay: Layout, node: Node, images: Shape, source: Node, is_backward: bool
) -> list[tuple[Node, dict[str, Any]]]:
    """Return the weight and the attributes for each algorithm that may be taken, the best first."""
    window, weight = _window(node), _weight(lay, node, source)
    shape, is_trained = weight.type.shape, source not in lay.fixed
    best = choose_algorithm(node.sig.device, images, shape, window, is_trained, is_backward)
    found = []
    for algorithm in dict.fromkeys((best, "direct")):
        packed: Node | None = weight
        if not (is_trained and packs_on_the_way(algorithm, images)):
            packed = lay.build.try_make(
                "x86::pack_weight",
                [weight],
                node,
                algorithm=algorithm,
                groups=window["groups"],
                rotate=is_backward,
            )
        if packed is not None:
            found.append((packed, {"weight_shape": shape, "algorithm": algorithm, **window}))
    return found


def _conv(lay: Layout, node: Node) -> bool:
    if not _is_fit(node):
        return False
    x = _images(lay, node, node.inputs[0])
    for packed, attrs in _packed(lay, node, image_shape(node.type.shape), node.inputs[1], False):
        made = lay.build.try_make("x86::conv", [x, packed], node, **attrs)
        if made is not None:
            return lay.put(node, made, channels_last(node.type.ndim))
    return False


def _conv_backward_data(lay: Layout, node: Node) -> bool:
    if not _is_fit(node):
        return False
    dy, shape = _images(lay, node, node.inputs[1]), image_shape(node.type.shape)
    for packed, attrs in _packed(lay, node, shape, node.inputs[0], True):
        made = lay.build.try_make(
            "x86::conv_backward_data", [packed, dy], node, input_shape=shape, **attrs
        )
        if made is not None:
            return lay.put(node, made, channels_last(node.type.ndim))
    return False


def _conv_backward_weight(lay: Layout, node: Node) -> bool:
    if not _is_fit(node):
        return False
    x, dy = (_images(lay, node, i) for i in node.inputs)
    shape = node.type.shape
    wide = (*shape[:2], *(1,) * (4 - len(shape)), *shape[2:])
    made = lay.build.try_make(
        "x86::conv_backward_weight", [x, dy], node, weight_shape=wide, **_window(node)
    )
    if made is None:
        return False
    return lay.put(node, made, plain(len(shape)))


def _pool_window(node: Node) -> dict[str, Any]:
    """Return the attributes of a pool over two spatial axes; paddings are all before, then all after."""
    attrs = dict(node.sig.attrs)
    lead = 2 - len(attrs["kernel"])
    before, after = attrs["padding"][: 2 - lead], attrs["padding"][2 - lead :]
    attrs["kernel"], attrs["stride"] = ((1,) * lead + attrs[n] for n in ("kernel", "stride"))
    attrs["padding"] = ((0,) * lead + before) + ((0,) * lead + after)
    if "input_shape" in attrs:
        attrs["input_shape"] = image_shape(attrs["input_shape"])
    return attrs


def _pool(lay: Layout, node: Node) -> bool:
    """A pool, or its gradient: ``x86::`` ops of the same names and attributes."""
    if node.type.ndim not in (3, 4) or not node.type.dtype.is_float:
        return False
    if debug.deterministic and node.sig.op.name != "max_pool":
        return False  # kernels add what overlaps in the order of the memory
    inputs = [_images(lay, node, i) for i in node.inputs]
    name = f"x86::{node.sig.op.name}"
    made = lay.build.try_make(name, inputs, node, **_pool_window(node))
    order = channels_last(node.type.ndim)
    return made is not None and lay.put(node, made, *(order,) * len(node.sig.types))


def _batch_norm(lay: Layout, node: Node) -> bool:
    """All three batch norms take rows (n * h * w, c) as they take images, and compute the same."""
    x, name = node.inputs[0], node.sig.op.name
    order = channels_last(x.type.ndim)
    n, c, *space = x.type.shape
    is_plain = lay.forms.is_plain(x) and set(space) != {1}
    if not space or is_plain or (debug.deterministic and name != "batch_norm_infer"):
        return False
    rows = (n * math.prod(space), c)
    inputs = [
        lay.build.reshape(lay.forms.get(i, order), rows, node)
        if i.type is x.type
        else lay.build.reshape(lay.forms.plain(i), (c,), node)
        for i in node.inputs
    ]
    orders = [order if t is x.type else plain(t.ndim) for t in node.sig.types]
    return lay.put(node, lay.build.same(node, inputs), *orders)


RULES: dict[str, Rule] = {
    "conv": _conv,
    "conv_backward_data": _conv_backward_data,
    "conv_backward_weight": _conv_backward_weight,
    **dict.fromkeys(["max_pool", "max_pool_backward", "avg_pool", "avg_pool_backward"], _pool),
    **dict.fromkeys(["batch_norm_train", "batch_norm_infer", "batch_norm_backward"], _batch_norm),
}
