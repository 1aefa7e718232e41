"""The models of ``bench/memory.py`` that the contest lacks: deep, with skips across, or small enough for a quick look.

In: a module of layers, as for ``zoo``. Out: models, the shapes of their inputs.
After ``zoo``.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import zoo


def _unet(nn: Any, ops: SimpleNamespace, width: int, levels: int) -> Any:
    def two(i: int, o: int) -> Any:
        layers = [*zoo._conv_bn(nn, i, o, 3), nn.ReLU(), *zoo._conv_bn(nn, o, o, 3), nn.ReLU()]
        return nn.Sequential(*layers)

    class Unet(nn.Module):  # type: ignore[misc]
        """Down and up again, two convolutions a level, what goes down is concatenated to what comes up."""

        def __init__(self) -> None:
            super().__init__()
            widths = [width << k for k in range(levels)]
            several = getattr(nn, "ModuleList", list)  # mge takes a list
            self.down = several([two(i, o) for i, o in zip([3, *widths], widths)])
            self.up = several([nn.ConvTranspose2d(2 * o, o, 2, stride=2) for o in widths[:-1]])
            self.join = several([two(2 * o, o) for o in widths[:-1]])
            self.pool, self.head = nn.MaxPool2d(2, 2), nn.Conv2d(width, 10, 1)

        def forward(self, x: Any) -> Any:
            beside = []
            for k in range(levels):
                x = self.down[k](x if k == 0 else self.pool(x))
                beside.append(x)
            for k in reversed(range(levels - 1)):
                x = self.join[k](ops.concat([beside[k], self.up[k](x)], 1))
            return ops.mean(self.head(x), (2, 3))

    return Unet()


def _encoders(nn: Any, ops: SimpleNamespace, depth: int, width: int, heads: int) -> Any:
    class Encoders(nn.Module):  # type: ignore[misc]
        """Blocks of attention and MLP, mean over the tokens."""

        def __init__(self) -> None:
            super().__init__()
            blocks = [zoo._encoder(nn, ops, width, heads) for _ in range(depth)]
            self.blocks = nn.Sequential(*blocks)
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

        def forward(self, x: Any) -> Any:
            return self.head(ops.mean(self.norm(self.blocks(x)), (1,)))

    return Encoders()


def _deep_resnet(nn: Any, ops: SimpleNamespace, count: int) -> Any:
    layers, i = [*zoo._conv_bn(nn, 3, 16, 3), nn.ReLU()], 16
    for width in (16, 32, 64):
        for k in range(count):
            layers.append(zoo._bottleneck(nn, ops, i, width, 2 if k == 0 and width > 16 else 1))
            i = 4 * width
    return zoo._classifier(nn, ops, layers, 256, 10)


MODELS = {
    "resnet1001": lambda nn, ops: _deep_resnet(nn, ops, 111),
    "unet": lambda nn, ops: _unet(nn, ops, 64, 5),
    "unet_small": lambda nn, ops: _unet(nn, ops, 8, 4),
    "transformer48": lambda nn, ops: _encoders(nn, ops, 48, 1024, 16),
    "transformer12": lambda nn, ops: _encoders(nn, ops, 12, 64, 4),
    "resnet18_64": lambda nn, ops: zoo.make("resnet18", nn, ops),
}
SHAPES = {
    "unet": (3, 512, 512), "unet_small": (3, 64, 64), "resnet18_64": (3, 64, 64),
    "resnet1001": (3, 32, 32), "transformer48": (512, 1024), "transformer12": (64, 64),
}  # fmt: skip
CLASSES = {"resnet18_64": 1000}


def add_models() -> None:
    """Add the models to the contest's."""
    zoo._MODELS.update(MODELS)
    zoo.SHAPES.update(SHAPES)
    zoo.CLASSES.update({name: CLASSES.get(name, 10) for name in MODELS})
