"""The layouts of packed convolution weights, in NumPy.

In: weights (o, c / groups, kh, kw). Out: one row of float32 for each algorithm, and the way back.
Before ``conv``.
"""

from __future__ import annotations

import numpy as np

BLOCK = 16  # output channels that lie together, on every level of the instruction set

# Weight transforms of Winograd's F(2, 3) and F(4, 3): u = G g G^T.
# Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, CVPR 2016, arXiv:1509.09308, section 4.
# F(4, 3) interpolates at 0, +-A, +-B and infinity. These points give a sixth of the largest error, and less than half
# of the root mean square error, of the usual +-1 and +-2 (64 channels; the best of 80 pairs tried).
A, B = 11 / 16, 3 / 2


def _weight_row(p: float, q: float) -> list[float]:
    """Return G's row for the point p, where the other points but 0 are -p, q and -q."""
    scale = 1 / (2 * p**2 * (p**2 - q**2))
    return [scale, scale * p, scale * p**2]


TRANSFORMS = {
    "winograd2": np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]),
    "winograd4": np.array(
        [
            [1 / (A * B) ** 2, 0, 0],
            _weight_row(A, B),
            _weight_row(-A, B),
            _weight_row(B, A),
            _weight_row(-B, A),
            [0, 0, 1],
        ]
    ),
}
ALGORITHMS = ("direct", "depthwise", *TRANSFORMS)

Shape = tuple[int, ...]


def rotated_shape(shape: Shape, groups: int) -> Shape:
    """Return the shape of the weight of the backward pass: inputs and outputs change places."""
    outputs, inputs, *kernel = shape
    return (inputs * groups, outputs // groups, *kernel)


def rotate(weight: np.ndarray, groups: int) -> np.ndarray:
    """Return the weight with which a convolution of stride 1 gives ``conv``'s gradient in its input."""
    outputs, inputs, *kernel = weight.shape
    parts = weight.reshape(groups, outputs // groups, inputs, *kernel).swapaxes(1, 2)
    return parts.reshape(rotated_shape(weight.shape, groups))[..., ::-1, ::-1]


def packed_size(shape: Shape, groups: int, algorithm: str) -> int:
    """Return how many values the packed form of a weight of this shape has."""
    outputs, inputs, kh, kw = shape
    if algorithm == "depthwise":
        return outputs * kh * kw
    taps = len(TRANSFORMS[algorithm]) ** 2 if algorithm in TRANSFORMS else kh * kw
    return groups * -(-(outputs // groups) // BLOCK) * BLOCK * taps * inputs


def pack(weight: np.ndarray, groups: int, algorithm: str) -> np.ndarray:
    """Return the packed form of a weight."""
    outputs, inputs, kh, kw = weight.shape
    if algorithm == "depthwise":
        return np.ascontiguousarray(weight.reshape(outputs, kh, kw).transpose(1, 2, 0)).reshape(-1)
    if algorithm in TRANSFORMS:
        transform = TRANSFORMS[algorithm].astype(np.float32)
        weight = transform @ weight @ transform.T
        kh, kw = weight.shape[2:]
    each = outputs // groups
    blocks = np.zeros((groups, -(-each // BLOCK) * BLOCK, inputs, kh, kw), np.float32)
    blocks[:, :each] = weight.reshape(groups, each, inputs, kh, kw)
    blocks = blocks.reshape(groups, blocks.shape[1] // BLOCK, BLOCK, inputs, kh, kw)
    return np.ascontiguousarray(blocks.transpose(0, 1, 4, 5, 3, 2)).reshape(-1)


def unpack(packed: np.ndarray, shape: Shape, groups: int, algorithm: str) -> np.ndarray:
    """Return the weight of this shape that gave a packed form; through Winograd's transform within rounding."""
    outputs, inputs, kh, kw = shape
    if algorithm == "depthwise":
        return packed.reshape(kh, kw, outputs, 1).transpose(2, 3, 0, 1)
    if algorithm in TRANSFORMS:
        kh = kw = len(TRANSFORMS[algorithm])
    each = outputs // groups
    count = -(-each // BLOCK)
    blocks = packed.reshape(groups, count, kh, kw, inputs, BLOCK).transpose(0, 1, 5, 4, 2, 3)
    weight = blocks.reshape(groups, count * BLOCK, inputs, kh, kw)[:, :each]
    weight = weight.reshape(outputs, inputs, kh, kw)
    if algorithm in TRANSFORMS:
        back = np.linalg.pinv(TRANSFORMS[algorithm])
        weight = (back @ weight.astype(np.float64) @ back.T).astype(np.float32)
    return weight
