"""Winograd's and depthwise convolutions and the gradients of device x86, as shares of what one core can do.

In: nothing; it needs mge-x86. Out: a line a shape: time, GFLOP/s, share.

    python bench/conv.py [--json] [--only winograd4] [--rounds 40] [--threads 1]

FLOPs are those of the sum of products, so Winograd's may exceed the roof. Weights are packed beforehand, except in the
rows "pack". Depthwise is bound by the caches: its GB/s count each image once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import gemm
import numpy as np

# images, channels, size
WINOGRAD = [(1, 64, 56), (1, 128, 28), (1, 256, 14), (1, 512, 7), (1, 64, 224), (1, 256, 56),
            (8, 64, 56), (8, 128, 28), (8, 256, 14), (8, 512, 7)]  # fmt: skip
# images, channels, outputs, size, kernel, stride
GRADIENTS = [(16, 64, 64, 56, 3, 1), (16, 128, 128, 28, 3, 1), (16, 256, 256, 14, 3, 1), (16, 512, 512, 7, 3, 1),
             (16, 64, 128, 56, 3, 2), (16, 64, 256, 56, 1, 1), (16, 256, 64, 56, 1, 1), (16, 256, 1024, 14, 1, 1),
             (16, 1024, 256, 14, 1, 1), (16, 256, 512, 56, 1, 2), (2, 3, 64, 224, 7, 2),
             (128, 16, 16, 32, 3, 1)]  # fmt: skip
# channels, size, kernel, stride
DEPTHWISE = [(32, 112, 3, 1), (96, 112, 3, 2), (144, 56, 3, 1), (192, 28, 3, 1), (384, 14, 3, 1), (576, 14, 3, 1),
             (576, 14, 3, 2), (960, 7, 3, 1), (240, 28, 5, 1), (672, 14, 5, 2)]  # fmt: skip


class Layer:
    """One convolution: its tensors, attributes and FLOPs."""

    def __init__(self, rng, images, channels, outputs, size, kernel, stride, groups=1):
        self.rng, count = rng, (size + 2 * (kernel // 2) - kernel) // stride + 1
        self.weight_shape = (outputs, channels // groups, kernel, kernel)
        self.attrs = {"weight_shape": self.weight_shape, "stride": (stride,) * 2, "padding": (kernel // 2,) * 2,
                      "dilation": (1, 1), "groups": groups}  # fmt: skip
        self.x, self.dy = (
            self.normal(images, size, size, channels),
            self.normal(images, count, count, outputs),
        )
        self.flops = 2 * self.dy.size * int(np.prod(self.weight_shape[1:]))
        self.label = (
            f"{images}, {channels}->{outputs} @{size} {kernel}x{kernel}"
            + f" step {stride}" * (stride > 1)
        )

    def normal(self, *shape):
        return self.rng.normal(size=shape).astype(np.float32)

    def uses(self, algorithm: str, parts: str, nbytes: int = 0) -> Iterator[tuple]:
        """Yield rows of gemm.measure: of "forward", "data", "weight", "pack"."""
        from mge.op import OPS

        pack = {"algorithm": algorithm, "groups": self.attrs["groups"]}
        weight = self.normal(*self.weight_shape)
        packed, rotated = (
            OPS["x86::pack_weight"]._reference(weight, rotate=turn, **pack)
            for turn in (False, True)
        )
        given = {**self.attrs, "algorithm": algorithm}
        made = {
            "forward": ("x86::conv", (self.x, packed, self.normal(self.weight_shape[0])),
                        {**given, "bias": True, "activation": "relu"}),
            "data": ("x86::conv_backward_data", (rotated, self.dy), {**given, "input_shape": self.x.shape}),
            "weight": ("x86::conv_backward_weight", (self.x, self.dy), self.attrs),
            "pack": ("x86::pack_weight", (weight,), pack),
        }  # fmt: skip
        for part in parts.split():
            yield f"{algorithm} {part} {self.label}", *made[part], self.flops, nbytes


def rows(rng: np.random.Generator) -> Iterator[tuple]:
    """Yield (label, op, arrays, attributes, flops, bytes)."""
    for images, channels, size in WINOGRAD:
        layer = Layer(rng, images, channels, channels, size, 3, 1)
        for algorithm in ("winograd2", "winograd4"):
            yield from layer.uses(algorithm, "forward data pack" if images == 8 else "forward")
    for shape in GRADIENTS:
        yield from Layer(rng, *shape).uses("direct", "data weight")
    for channels, size, kernel, stride in DEPTHWISE:
        layer = Layer(rng, 1, channels, channels, size, kernel, stride, channels)
        yield from layer.uses("depthwise", "forward data weight", layer.x.nbytes + layer.dy.nbytes)


if __name__ == "__main__":
    sys.exit(gemm.main(rows, __doc__))
