"""Random uses of convolutions, for the tests of each algorithm."""

import numpy as np


def draw(rng, *shape, terms=1):
    """Normal values, so small that the rounding of a sum of so many products stays within the tolerance."""
    return (rng.normal(size=shape) / max(1, terms) ** 0.5).astype(np.float32)


def pair(rng, low, high):
    """Two integers in low .. high - 1."""
    return tuple(int(v) for v in rng.integers(low, high, 2))


def result_size(size, kernel, attrs):
    """The spatial sizes of a convolution's result."""
    windows = (attrs[n] for n in ("padding", "stride", "dilation"))
    return tuple(
        (s + 2 * p - d * (k - 1) - 1) // t + 1
        for s, k, p, t, d in zip(size, kernel, *windows, strict=True)
    )


def drawn_window(rng, kernel, groups):
    """Attributes of a convolution, and an image size that is large enough for them."""
    attrs = {
        "stride": pair(rng, 1, 4) if rng.random() < 0.6 else (1, 1),
        "padding": pair(rng, 0, 4),
        "dilation": pair(rng, 1, 4) if rng.random() < 0.3 else (1, 1),
        "groups": groups,
    }
    least = (
        d * (k - 1) + 1 - 2 * p
        for k, d, p in zip(kernel, attrs["dilation"], attrs["padding"], strict=True)
    )
    return attrs, tuple(max(1, n) + int(rng.integers(0, 16)) for n in least)


def epilogue(rng, i, y):
    """Attributes and tensors of what is done before the store: number i of some combinations."""
    activation = ("", "relu", "relu6", "silu")[i % 4]
    bias, residual = bool(i // 4 % 2), bool(i // 8 % 2)
    extras = [draw(rng, y[-1])] * bias + [draw(rng, *y)] * residual
    return extras, {"bias": bias, "residual": residual, "activation": activation}
