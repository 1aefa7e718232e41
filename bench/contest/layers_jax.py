"""The layers that the contest's models need, in JAX: images are (n, c, h, w), as in the other frameworks.

In: shapes. Out: layers with arrays as attributes, of the names that the other frameworks use.
For ``with_jax.py``.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as np
from jax import lax

MODE = SimpleNamespace(training=False)
OPS = SimpleNamespace(
    relu=jax.nn.relu,
    gelu=lambda x: jax.nn.gelu(x, approximate=False),
    flatten=lambda x: x.reshape(x.shape[0], -1),
    mean=lambda x, axes: x.mean(axes),
    swap=lambda x: x.swapaxes(1, 2),
    tokens=lambda x: x.reshape(*x.shape[:2], -1).swapaxes(1, 2),
    attention=lambda *given: jax.nn.dot_product_attention(*(x.swapaxes(1, 2) for x in given)).swapaxes(1, 2),
    position=lambda rows, width: np.zeros((rows, width)),
)  # fmt: skip


class Module:
    """Something with ``forward``."""

    def __call__(self, x: Any) -> Any:
        return self.forward(x)  # type: ignore[attr-defined]


class Sequential(Module):
    """One after the other."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def forward(self, x: Any) -> Any:
        for part in self.parts:
            x = part(x)
        return x


class Linear(Module):
    """x @ weight.T + bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.weight, self.bias = np.zeros((outputs, inputs)), np.zeros(outputs)

    def forward(self, x: Any) -> Any:
        return x @ self.weight.T + self.bias


class Conv2d(Module):
    """A convolution with equal padding on all sides."""

    def __init__(
        self, i: int, o: int, k: int, stride: int = 1, padding: int = 0, groups: int = 1, bias: bool = True
    ) -> None:  # fmt: skip
        self.weight = np.zeros((o, i // groups, k, k))
        if bias:
            self.bias = np.zeros(o)
        self.options = {"window_strides": (stride,) * 2, "padding": ((padding,) * 2,) * 2,
                        "feature_group_count": groups}  # fmt: skip

    def forward(self, x: Any) -> Any:
        y = lax.conv_general_dilated(x, self.weight, **self.options)
        return y + self.bias[:, None, None] if hasattr(self, "bias") else y


class BatchNorm2d(Module):
    """Normalises each channel: by this batch in training, which moves the running statistics by a tenth."""

    def __init__(self, channels: int) -> None:
        self.weight, self.running_var = np.ones(channels), np.ones(channels)
        self.bias, self.running_mean = np.zeros(channels), np.zeros(channels)

    def forward(self, x: Any) -> Any:
        mean, var = self.running_mean, self.running_var
        if MODE.training:
            mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3))
            count = x.size // x.shape[1]
            self.running_mean = 0.9 * self.running_mean + 0.1 * mean
            self.running_var = 0.9 * self.running_var + 0.1 * var * count / (count - 1)
        scale = self.weight * lax.rsqrt(var + 1e-5)
        return x * scale[:, None, None] + (self.bias - mean * scale)[:, None, None]


class LayerNorm(Module):
    """Normalises the last axis."""

    def __init__(self, width: int) -> None:
        self.weight, self.bias = np.ones(width), np.zeros(width)

    def forward(self, x: Any) -> Any:
        x = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * self.weight + self.bias


class MaxPool2d(Module):
    """The largest of each window."""

    def __init__(self, kernel: int, stride: int, padding: int = 0) -> None:
        self.sizes = (1, 1, kernel, kernel), (1, 1, stride, stride)
        self.padding = ((0, 0), (0, 0), (padding,) * 2, (padding,) * 2)

    def forward(self, x: Any) -> Any:
        return lax.reduce_window(x, -np.inf, lax.max, *self.sizes, self.padding)


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, x: Any) -> Any:
        return jax.nn.relu(x)


class ReLU6(Module):
    """min(max(x, 0), 6)."""

    def forward(self, x: Any) -> Any:
        return jax.nn.relu6(x)
