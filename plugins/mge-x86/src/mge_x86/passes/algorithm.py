"""Which algorithm a convolution gets: a tuning result, or a plain function of its shapes where there is none.

In: shapes and attributes. Out: ``"direct"``, ``"depthwise"``, ``"winograd2"`` or ``"winograd4"``.
After nothing; before ``convolution``.

Without a tuning result the cheapest one is taken by an estimate, for each pair of an input and an output channel:
its multiplications, and as many more as its weights cost that must come from memory, or be transformed in every run.
F(4, 3) multiplies 4 times less than the sum of products and F(2, 3) 2.25 times less, but their weights are 4 and 1.8
times larger. The constants were fitted to times of 3x3 convolutions of 32 to 512 channels, 4x4 to 32x32 pixels and 1
to 16 images, on 1 and 2 threads: the choice is 2 % slower than the best one on average.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mge.debug import debug
from mge.tuning import choose

if TYPE_CHECKING:
    from mge.graph import Node

Shape = tuple[int, ...]

VERSION = 2  # of the kernels' speed: tuning results of another one are not looked at
FEW_CHANNELS = 16  # below, transforming tiles costs more than it saves
SMALL = 4  # pixels: the smaller side of an image
# By algorithm: pixels of a side of its tiles, the cost of a tile, and of a weight that is read, or packed in each run.
COSTS = {
    "direct": (1, 9, 30, 0),
    "winograd2": (2, 12.5, 150, 500),
    "winograd4": (4, 22.5, 380, 1350),
}


def choose_algorithm(
    device: Any,
    images: Shape,
    weight: Shape,
    window: dict[str, Any],
    is_packed_each_run: bool = False,
    is_backward: bool = False,
) -> str:
    """Return the algorithm for a convolution that gives images (n, h, w, c).

    Parameters
    ----------
    device : Device
    images : (n, h, w, c)
        The result: ``y`` forward, ``dx`` for the gradient of the data.
    weight : (o, c / groups, kh, kw)
    window : dict
        ``stride``, ``padding``, ``dilation``, each (int, int), and ``groups``.
    is_packed_each_run : bool
        The weight changes with every run, so that its transform is paid each time.
    is_backward : bool
        It is the gradient of the data.
    """
    default = heuristic(images, weight, window, is_packed_each_run)
    if debug.deterministic or not _fits_winograd(images, weight, window):
        return default
    use = _use(images, weight, window, is_packed_each_run, is_backward)
    return choose(device, use, tuple(COSTS), default)


def choice_of(node: Node) -> tuple[str, str, tuple[Node, ...]] | None:
    """Return what tuning asks for a node of a plan: the use, the algorithm, and the node that packs its weight."""
    name = node.sig.op.name
    if name not in ("x86::conv", "x86::conv_backward_data"):
        return None
    is_backward = name != "x86::conv"
    attrs = dict(node.sig.attrs)
    images, weight = node.sig.types[0].shape, attrs["weight_shape"]
    packed = node.inputs[0 if is_backward else 1]
    is_part = packed.sig.op.name == "x86::pack_weight"
    use = _use(images, weight, attrs, is_part or packed.type.ndim == 4, is_backward)
    return use, attrs["algorithm"], (packed,) if is_part else ()


def _use(
    images: Shape,
    weight: Shape,
    window: dict[str, Any],
    is_packed_each_run: bool,
    is_backward: bool,
) -> str:
    sizes = (images, weight, window["padding"])
    words = ["conv_backward_data" if is_backward else "conv", str(VERSION), "float32"]
    words += ["x".join(map(str, size)) for size in sizes]
    return " ".join(words + ["packed-each-run"] * is_packed_each_run)


def _fits_winograd(images: Shape, weight: Shape, window: dict[str, Any]) -> bool:
    is_plain = (*window["stride"], *window["dilation"], window["groups"]) == (1, 1, 1, 1, 1)
    is_large = min(weight[:2]) >= FEW_CHANNELS and min(images[1:3]) >= SMALL and images[0] > 0
    return weight[2:] == (3, 3) and is_plain and is_large


def packs_on_the_way(algorithm: str, images: Shape) -> bool:
    """Return whether a convolution that gives these images does best to pack its weight itself, in each run.

    Its weight then never lies in memory as a whole; for that, all tiles are transformed before the first product. On
    4 to 28 pixels a side, 128 to 512 channels and 1 to 64 images, that is up to twice as fast where tiles are fewer
    than half of the outputs, and slower from there on.
    """
    n, h, w, outputs = images
    return algorithm.startswith("winograd") and 2 * n * _tiles(algorithm, h, w) < outputs


def _tiles(algorithm: str, h: int, w: int) -> int:
    side = COSTS[algorithm][0]
    return math.ceil(h / side) * math.ceil(w / side)


def heuristic(
    images: Shape, weight: Shape, window: dict[str, Any], is_packed_each_run: bool = False
) -> str:
    """Return the algorithm without a tuning result; parameters as of ``choose_algorithm``."""
    groups = window["groups"]
    if groups > 1 and weight[1] == 1 and weight[0] == groups:
        return "depthwise"
    if debug.deterministic or not _fits_winograd(images, weight, window):
        return "direct"
    n, h, w, _ = images

    def cost(algorithm: str) -> float:
        _, tile, read, packed = COSTS[algorithm]
        return n * _tiles(algorithm, h, w) * tile + (packed if is_packed_each_run else read)

    return min(COSTS, key=cost)
