"""The models of the contest, defined once for mge and PyTorch, which share the names of layers.

In: a module of layers (``mge.module`` or ``torch.nn``) and a few functions. Out: models, their inputs, their weights.
Weights depend on their names and shapes alone, so that every framework fills its model with the same numbers.
"""

from __future__ import annotations

import math
import zlib
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np


class Case(NamedTuple):
    """One row of the contest.

    Attributes
    ----------
    model : str
        Or ``chain_add``, ``chain_relu``, ``chain_matmul``: 300 calls on a square; or ``gelu_layer_norm``.
    batch : int
    training : bool
        A step (forward, cross-entropy, backward, SGD with momentum, loss read), or inference.
    """

    model: str
    batch: int
    training: bool = False

    def __str__(self) -> str:
        return f"{'train' if self.training else 'infer'}/{self.model}/b{self.batch}"


SHAPES = {"mlp": (784,), "lenet": (1, 28, 28), "resnet20": (3, 32, 32), "transformer": (128, 256)}
CLASSES = {"mlp": 10, "lenet": 10, "resnet20": 10, "transformer": 10}


def inputs(case: Case, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return a batch: float32 inputs and int32 labels."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(case.batch, *SHAPES.get(case.model, (3, 224, 224)))).astype("float32")
    return x, rng.integers(0, CLASSES.get(case.model, 1000), case.batch).astype("int32")


CALLS = 300  # of a chain
WIDTH = 768  # of the fused chain


def chain(case: Case) -> str | None:
    """Return the op of a chain of calls; None for other cases."""
    return case.model.removeprefix("chain_") if case.model.startswith("chain_") else None


def fused_inputs(case: Case) -> list[np.ndarray]:
    """Return x, a, b, the residual, and the layer norm's weight and bias."""
    rng, shape = np.random.default_rng(0), (case.batch, WIDTH)
    shapes = (shape, WIDTH, WIDTH, shape, WIDTH, WIDTH)
    return [rng.normal(size=s).astype("float32") for s in shapes]


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return the values of one parameter or buffer, by its name and shape.

    Gains lie near 1, running variances too; matrices and kernels keep the variance of what passes through them.
    """
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    values = rng.normal(size=shape)
    if name.endswith("running_var") or (name.endswith("weight") and max(shape) == math.prod(shape)):
        return (1 + 0.1 * np.tanh(values)).astype("float32")
    if name.endswith("weight"):
        return (values * math.sqrt(2 / math.prod(shape[1:]))).astype("float32")
    return (0.1 * values).astype("float32")


def make(model: str, nn: Any, ops: SimpleNamespace) -> Any:
    """Return a model.

    Parameters
    ----------
    model : str
    nn : module
        With ``Module``, ``Conv2d``, ``BatchNorm2d`` and so on.
    ops : namespace
        ``relu, relu6, gelu, flatten(x), mean(x, axes), tokens(x), attention(q, k, v)``, and ``position(rows, width)``,
        a parameter. ``tokens`` takes (n, c, h, w) to (n, h·w, c).
    """
    return _MODELS[model](nn, ops)


def _conv_bn(nn: Any, i: int, o: int, k: int, stride: int = 1, groups: int = 1) -> list[Any]:
    conv = nn.Conv2d(i, o, k, stride=stride, padding=k // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(o)]


def _residual(nn: Any, ops: SimpleNamespace) -> Any:
    class Residual(nn.Module):  # type: ignore[misc]
        """relu(body(x) + shortcut(x))."""

        def __init__(self, body: list[Any], shortcut: list[Any]) -> None:
            super().__init__()
            self.body = nn.Sequential(*body)
            self.shortcut = nn.Sequential(*shortcut) if shortcut else None

        def forward(self, x: Any) -> Any:
            beside = x if self.shortcut is None else self.shortcut(x)
            return ops.relu(self.body(x) + beside)

    return Residual


def _basic(nn: Any, ops: SimpleNamespace, i: int, o: int, stride: int) -> Any:
    body = [*_conv_bn(nn, i, o, 3, stride), nn.ReLU(), *_conv_bn(nn, o, o, 3)]
    return _residual(nn, ops)(body, _conv_bn(nn, i, o, 1, stride) if stride > 1 or i != o else [])


def _bottleneck(nn: Any, ops: SimpleNamespace, i: int, width: int, stride: int) -> Any:
    o = 4 * width
    body = [
        *_conv_bn(nn, i, width, 1),
        nn.ReLU(),
        *_conv_bn(nn, width, width, 3, stride),
        nn.ReLU(),
    ]
    body += _conv_bn(nn, width, o, 1)
    return _residual(nn, ops)(body, _conv_bn(nn, i, o, 1, stride) if stride > 1 or i != o else [])


def _classifier(
    nn: Any, ops: SimpleNamespace, layers: list[Any], features: int, classes: int
) -> Any:
    class Classifier(nn.Module):  # type: ignore[misc]
        """Convolutions, mean over the image, one matrix."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*layers)
            self.head = nn.Linear(features, classes)

        def forward(self, x: Any) -> Any:
            return self.head(ops.mean(self.layers(x), (2, 3)))

    return Classifier()


def _resnet18(nn: Any, ops: SimpleNamespace) -> Any:
    layers = [*_conv_bn(nn, 3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    i = 64
    for o in (64, 128, 256, 512):
        layers += [_basic(nn, ops, i, o, 1 if o == 64 else 2), _basic(nn, ops, o, o, 1)]
        i = o
    return _classifier(nn, ops, layers, 512, 1000)


def _resnet50(nn: Any, ops: SimpleNamespace) -> Any:
    layers = [*_conv_bn(nn, 3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    i = 64
    for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for k in range(count):
            layers.append(_bottleneck(nn, ops, i, width, 2 if k == 0 and width > 64 else 1))
            i = 4 * width
    return _classifier(nn, ops, layers, 2048, 1000)


def _resnet20(nn: Any, ops: SimpleNamespace) -> Any:
    layers = [*_conv_bn(nn, 3, 16, 3), nn.ReLU()]
    i = 16
    for o in (16, 32, 64):
        for k in range(3):
            layers.append(_basic(nn, ops, i, o, 2 if k == 0 and o > 16 else 1))
            i = o
    return _classifier(nn, ops, layers, 64, 10)


def _mobilenetv2(nn: Any, ops: SimpleNamespace) -> Any:
    class Inverted(nn.Module):  # type: ignore[misc]
        """Expand, depthwise, project; the input is added where shapes allow."""

        def __init__(self, i: int, o: int, stride: int, factor: int) -> None:
            super().__init__()
            wide = i * factor
            body = [*_conv_bn(nn, i, wide, 1), nn.ReLU6()] if factor > 1 else []
            body += [
                *_conv_bn(nn, wide, wide, 3, stride, wide),
                nn.ReLU6(),
                *_conv_bn(nn, wide, o, 1),
            ]
            self.body = nn.Sequential(*body)
            self.adds = stride == 1 and i == o

        def forward(self, x: Any) -> Any:
            return x + self.body(x) if self.adds else self.body(x)

    layers = [*_conv_bn(nn, 3, 32, 3, 2), nn.ReLU6()]
    i = 32
    table = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
    )
    for factor, o, count, stride in (*table, (6, 320, 1, 1)):
        for k in range(count):
            layers.append(Inverted(i, o, stride if k == 0 else 1, factor))
            i = o
    return _classifier(nn, ops, [*layers, *_conv_bn(nn, 320, 1280, 1), nn.ReLU6()], 1280, 1000)


def _vgg16(nn: Any, ops: SimpleNamespace) -> Any:
    layers: list[Any] = []
    i = 3
    for o, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(i, o, 3, padding=1), nn.ReLU()]
            i = o
        layers.append(nn.MaxPool2d(2, 2))

    class Vgg(nn.Module):  # type: ignore[misc]
        """13 convolutions and three matrices."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*layers)
            self.fc1, self.fc2 = nn.Linear(25088, 4096), nn.Linear(4096, 4096)
            self.fc3 = nn.Linear(4096, 1000)

        def forward(self, x: Any) -> Any:
            x = ops.relu(self.fc1(ops.flatten(self.layers(x))))
            return self.fc3(ops.relu(self.fc2(x)))

    return Vgg()


def _encoder(nn: Any, ops: SimpleNamespace, width: int, heads: int) -> Any:
    class Encoder(nn.Module):  # type: ignore[misc]
        """x + attention(norm(x)), then x + mlp(norm(x))."""

        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
            self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
            self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def split(self, x: Any) -> Any:
            n, rows, _ = x.shape
            return ops.swap(x.reshape(n, rows, heads, width // heads))

        def forward(self, x: Any) -> Any:
            y = self.norm1(x)
            mixed = ops.attention(*(self.split(f(y)) for f in (self.query, self.key, self.value)))
            x = x + self.out(ops.swap(mixed).reshape(*x.shape))
            return x + self.narrow(ops.gelu(self.wide(self.norm2(x))))

    return Encoder()


def _vit_tiny(nn: Any, ops: SimpleNamespace) -> Any:
    class Vit(nn.Module):  # type: ignore[misc]
        """Patches of 16, 12 blocks of width 192 with 3 heads, mean over 196 tokens."""

        def __init__(self) -> None:
            super().__init__()
            self.patch = nn.Conv2d(3, 192, 16, stride=16)
            self.position = ops.position(196, 192)
            self.blocks = nn.Sequential(*[_encoder(nn, ops, 192, 3) for _ in range(12)])
            self.norm, self.head = nn.LayerNorm(192), nn.Linear(192, 1000)

        def forward(self, x: Any) -> Any:
            x = self.blocks(ops.tokens(self.patch(x)) + self.position)
            return self.head(ops.mean(self.norm(x), (1,)))

    return Vit()


def _transformer(nn: Any, ops: SimpleNamespace) -> Any:
    class Transformer(nn.Module):  # type: ignore[misc]
        """Two blocks of width 256 with 4 heads, mean over the tokens."""

        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(*[_encoder(nn, ops, 256, 4) for _ in range(2)])
            self.norm, self.head = nn.LayerNorm(256), nn.Linear(256, 10)

        def forward(self, x: Any) -> Any:
            return self.head(ops.mean(self.norm(self.blocks(x)), (1,)))

    return Transformer()


def _mlp(nn: Any, ops: SimpleNamespace) -> Any:
    return nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )


def _lenet(nn: Any, ops: SimpleNamespace) -> Any:
    class LeNet(nn.Module):  # type: ignore[misc]
        """Two convolutions, two pools, three matrices."""

        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
            self.pool = nn.MaxPool2d(2, 2)
            self.fc1, self.fc2, self.fc3 = (
                nn.Linear(400, 120),
                nn.Linear(120, 84),
                nn.Linear(84, 10),
            )

        def forward(self, x: Any) -> Any:
            x = self.pool(ops.relu(self.conv1(x)))
            x = ops.flatten(self.pool(ops.relu(self.conv2(x))))
            return self.fc3(ops.relu(self.fc2(ops.relu(self.fc1(x)))))

    return LeNet()


_MODELS = {
    "resnet18": _resnet18, "resnet50": _resnet50, "resnet20": _resnet20, "mobilenetv2": _mobilenetv2,
    "vgg16": _vgg16, "vit_tiny": _vit_tiny, "transformer": _transformer, "mlp": _mlp, "lenet": _lenet,
}  # fmt: skip
