"""Networks that tests and benches of devices run: the field's usual ones, in mge modules.

Their layers and widths are those of the papers, with ``width`` and ``classes`` to make small ones.
"""

from __future__ import annotations

import itertools
from typing import Any

import mge.functional as F
import mge.module as M
from mge import Tensor


class ConvNorm(M.Sequential):
    """A convolution without bias, a batch norm, and an activation."""

    def __init__(
        self, c: int, o: int, k: int = 3, stride: int = 1, groups: int = 1, act: Any = M.ReLU
    ) -> None:
        conv = M.Conv2d(c, o, k, stride=stride, padding=k // 2, groups=groups, bias=False)
        super().__init__(conv, M.BatchNorm2d(o), *([act()] if act is not None else []))


class Residual(M.Module):
    """``relu(body(x) + shortcut(x))``: two 3x3 convolutions, or 1x1, 3x3, 1x1 with four times the channels."""

    def __init__(self, c: int, width: int, stride: int, is_deep: bool) -> None:
        super().__init__()
        o = 4 * width if is_deep else width
        if is_deep:
            parts = [ConvNorm(c, width, 1), ConvNorm(width, width, 3, stride)]
            parts.append(ConvNorm(width, o, 1, act=None))
        else:
            parts = [ConvNorm(c, width, 3, stride), ConvNorm(width, o, act=None)]
        self.body = M.Sequential(*parts)
        same = stride == 1 and c == o
        self.shortcut = M.Identity() if same else ConvNorm(c, o, 1, stride, act=None)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


class ResNet(M.Module):
    """He et al., Deep Residual Learning for Image Recognition, CVPR 2016, arXiv:1512.03385."""

    def __init__(
        self, blocks: tuple[int, ...], is_deep: bool = False, width: int = 64, classes: int = 1000
    ) -> None:
        super().__init__()
        self.stem = ConvNorm(3, width, 7, 2)
        self.pool = M.MaxPool2d(3, 2, 1)
        layers, c = [], width
        for i, count in enumerate(blocks):
            for j in range(count):
                layers.append(Residual(c, width << i, 2 if i and not j else 1, is_deep))
                c = (width << i) * (4 if is_deep else 1)
        self.body = M.Sequential(*layers)
        self.head = M.Linear(c, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(self.pool(self.stem(x)))
        return self.head(F.flatten(F.adaptive_avg_pool2d(y, 1), 1))


class SmallResNet(M.Module):
    """The same paper's network for images of 32x32, with ``6 * depth + 2`` layers."""

    def __init__(self, depth: int = 3, width: int = 16, classes: int = 10) -> None:
        super().__init__()
        layers, c = [ConvNorm(3, width)], width
        for i in range(3):
            for j in range(depth):
                layers.append(Residual(c, width << i, 2 if i and not j else 1, False))
                c = width << i
        self.body = M.Sequential(*layers)
        self.head = M.Linear(c, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.flatten(F.adaptive_avg_pool2d(self.body(x), 1), 1))


class Inverted(M.Module):
    """Expand by 1x1, filter each channel, project by 1x1; with a shortcut where the shapes are equal."""

    def __init__(self, c: int, o: int, stride: int, factor: int) -> None:
        super().__init__()
        wide = c * factor
        parts = [ConvNorm(c, wide, 1, act=M.ReLU6)] if factor != 1 else []
        parts += [ConvNorm(wide, wide, 3, stride, wide, M.ReLU6), ConvNorm(wide, o, 1, act=None)]
        self.body = M.Sequential(*parts)
        self.is_residual = stride == 1 and c == o

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + x if self.is_residual else self.body(x)


class MobileNetV2(M.Module):
    """Sandler et al., MobileNetV2, CVPR 2018, arXiv:1801.04381, table 2."""

    STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
              (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip  # factor, channels, blocks, stride

    def __init__(self, classes: int = 1000, stages: tuple = STAGES, last: int = 1280) -> None:
        super().__init__()
        layers: list[M.Module] = [ConvNorm(3, 32, 3, 2, act=M.ReLU6)]
        c = 32
        for factor, o, count, stride in stages:
            for j in range(count):
                layers.append(Inverted(c, o, stride if not j else 1, factor))
                c = o
        self.body = M.Sequential(*layers, ConvNorm(c, last, 1, act=M.ReLU6))
        self.drop = M.Dropout(0.2)
        self.head = M.Linear(last, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = F.adaptive_avg_pool2d(self.body(x), 1)
        return self.head(self.drop(F.flatten(y, 1)))


class VGG(M.Module):
    """Simonyan and Zisserman, arXiv:1409.1556, configuration D: VGG-16."""

    BLOCKS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))

    def __init__(
        self, blocks: tuple = BLOCKS, size: int = 224, hidden: int = 4096, classes: int = 1000
    ) -> None:
        super().__init__()
        layers, c = [], 3
        for o, count in blocks:
            for _ in range(count):
                layers += [M.Conv2d(c, o, 3, padding=1), M.ReLU()]
                c = o
            layers.append(M.MaxPool2d(2, 2))
            size //= 2
        self.body = M.Sequential(*layers)
        self.head = M.Sequential(
            M.Linear(c * size * size, hidden), M.ReLU(), M.Dropout(0.5),
            M.Linear(hidden, hidden), M.ReLU(), M.Dropout(0.5), M.Linear(hidden, classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.flatten(self.body(x), 1))


class UNet(M.Module):
    """Ronneberger et al., U-Net, MICCAI 2015, arXiv:1505.04597, with padded convolutions and batch norm."""

    def __init__(self, width: int = 64, depth: int = 4, classes: int = 2, c: int = 3) -> None:
        super().__init__()
        self.down, self.up, self.join = [], [], []
        for i in range(depth + 1):
            o = width << i
            self.down.append(M.Sequential(ConvNorm(c, o), ConvNorm(o, o)))
            c = o
        for i in reversed(range(depth)):
            o = width << i
            self.up.append(M.ConvTranspose2d(c, o, 2, stride=2))
            self.join.append(M.Sequential(ConvNorm(2 * o, o), ConvNorm(o, o)))
            c = o
        self.head = M.Conv2d(c, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for i, part in enumerate(self.down):
            x = part(F.max_pool2d(x, 2) if i else x)
            kept.append(x)
        kept.pop()
        for up, join in zip(self.up, self.join):
            x = join(F.concat([kept.pop(), up(x)], axis=1))
        return self.head(x)


class Encoder(M.Module):
    """One block of a transformer, normalised before each part: attention, then two linear layers."""

    def __init__(self, width: int, heads: int, factor: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = M.LayerNorm(width), M.LayerNorm(width)
        self.qkv, self.out = M.Linear(width, 3 * width), M.Linear(width, width)
        self.fc1, self.fc2 = M.Linear(width, factor * width), M.Linear(factor * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        qkv = F.reshape(self.qkv(self.norm1(x)), (n, length, 3, self.heads, width // self.heads))
        qkv = F.transpose(qkv, (2, 0, 3, 1, 4))
        y = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
        y = F.transpose(y, (0, 2, 1, 3))
        x = x + self.out(F.reshape(y, (n, length, width)))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class ViT(M.Module):
    """Dosovitskiy et al., arXiv:2010.11929, tiny by default, with the mean of the tokens as its result."""

    def __init__(
        self, size: int = 224, patch: int = 16, width: int = 192, heads: int = 3, depth: int = 12,
        classes: int = 1000,
    ) -> None:  # fmt: skip
        super().__init__()
        self.patches = M.Conv2d(3, width, patch, stride=patch)
        tokens = (size // patch) ** 2
        self.position = M.Embedding(tokens, width).weight
        self.body = M.Sequential(*(Encoder(width, heads) for _ in range(depth)))
        self.norm, self.head = M.LayerNorm(width), M.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = F.transpose(F.flatten(self.patches(x), 2), (0, 2, 1)) + self.position
        return self.head(F.mean(self.norm(self.body(y)), axis=1))


class LeNet(M.Module):
    """LeCun et al., Gradient-Based Learning Applied to Document Recognition, 1998, with ReLU and max pools."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1, self.conv2 = M.Conv2d(1, 6, 5, padding=2), M.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = M.Linear(400, 120), M.Linear(120, 84), M.Linear(84, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = F.max_pool2d(F.relu(self.conv1(x)), 2)
        y = F.flatten(F.max_pool2d(F.relu(self.conv2(y)), 2), 1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(y)))))


def resnet18(**settings: Any) -> ResNet:
    """ResNet-18."""
    return ResNet((2, 2, 2, 2), **settings)


def resnet50(**settings: Any) -> ResNet:
    """ResNet-50."""
    return ResNet((3, 4, 6, 3), is_deep=True, **settings)


def mlp(*widths: int) -> M.Sequential:
    """Linear layers with ReLU between them; 784-512-512-10 by default."""
    widths = widths or (784, 512, 512, 10)
    layers: list[M.Module] = []
    for i, (a, b) in enumerate(itertools.pairwise(widths)):
        layers += [M.ReLU()] * bool(i) + [M.Linear(a, b)]
    return M.Sequential(*layers)
