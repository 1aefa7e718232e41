"""Convolution in NumPy: the three kernels behind ``conv`` and its gradients.

In: arrays (n, c, *space) and weights (o, c / groups, *kernel). Out: the result, written where the caller wants it.
After ``windows``; before ``conv``.

Each kernel copies the windows of a block of images into the columns of a matrix, and multiplies by BLAS. A block
holds as many images as fit the level-2 and level-3 caches, or some rows of one large image: scratch memory is
bounded, and the order of additions depends on shapes alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..dtype import as_dtype, wide_of
from .windows import Sizes, product, tap_slices, windows

BLOCK_BYTES = 4 << 20  # columns and products of one block; 2 to 8 MB are about equally fast
LIMIT_BYTES = 32 << 20  # the same of one image; above it, its rows are split
POINTWISE_MIN = 16  # a 1x1 kernel on fewer pixels than this multiplies many images at once

Block = tuple[slice, slice]  # of images, and of rows of the output


def convolve(
    inp: np.ndarray,
    weight: np.ndarray,
    *,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
    out: np.ndarray,
) -> None:
    """Write the cross-correlation of ``inp`` with ``weight`` to ``out`` (n, o, *count)."""
    if not out.size:
        return
    wide = wide_of(as_dtype(inp.dtype)).dtype
    kernel, count, outputs = weight.shape[2:], out.shape[2:], weight.shape[0]
    matrix = _as_matrices(weight, groups, wide)
    if _is_pointwise(kernel, stride, padding, count):
        _multiply_pixels(matrix, inp, out, groups, wide)
        return
    columns = _Columns(inp, kernel, stride, padding, dilation, count, wide)
    scratch = _Scratch(wide)
    for images, rows in columns.blocks(outputs):
        target = out[images, :, rows]
        y = scratch(groups, outputs // groups, target.size // outputs)
        np.matmul(matrix, columns(images, rows, groups), out=y)
        np.copyto(target, y.reshape(_channel_first(target)).swapaxes(0, 1), casting="same_kind")


def convolve_backward_data(
    weight: np.ndarray,
    dy: np.ndarray,
    *,
    input_shape: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
    out: np.ndarray,
) -> None:
    """Write to ``out`` (n, c, *size) what ``dy`` (n, o, *count) gives each element that ``convolve`` read."""
    if not out.size:
        return
    wide = wide_of(as_dtype(dy.dtype)).dtype
    kernel, count, channels = weight.shape[2:], dy.shape[2:], input_shape[1]
    matrix = _as_matrices(weight, groups, wide).swapaxes(1, 2)
    if _is_pointwise(kernel, stride, padding, count):
        _multiply_pixels(matrix, dy, out, groups, wide)
        return
    full = tuple(d * (k - 1) - p for k, p, d in zip(kernel, padding, dilation))
    if weight.shape[0] == channels == groups and product(stride) == 1 and min(full) >= 0:
        # Depthwise: the correlation with the mirrored kernel copies, where the sums below add.
        mirrored = weight[(slice(None), slice(None), *(slice(None, None, -1) for _ in kernel))]
        convolve(
            dy, mirrored, stride=stride, padding=full, dilation=dilation, groups=groups, out=out
        )
        return
    size = input_shape[2:]
    inside = tuple(slice(p, p + s) for p, s in zip(padding, size))
    per_image = (channels * product(kernel) + dy.shape[1]) * product(count) * wide.itemsize
    gathered, scratch, padded = _Scratch(wide), _Scratch(wide), _Scratch(wide)
    sums = padded(0)
    for images, rows in _blocks(dy.shape[0], count, per_image):
        n = images.stop - images.start
        if rows.start == 0:
            sums = padded(channels, n, *(s + 2 * p for s, p in zip(size, padding)))
            sums.fill(0)
        part = (rows.stop - rows.start, *count[1:])
        given = _channels_first(dy, images, rows, gathered).reshape(groups, -1, n * product(part))
        # One output to a group makes it an outer product, at which BLAS is slow.
        multiply = np.multiply if matrix.shape[2] == 1 else np.matmul
        taps = multiply(matrix, given, out=scratch(groups, matrix.shape[1], given.shape[2]))
        taps = taps.reshape(channels, *kernel, n, *part)
        for tap in np.ndindex(*kernel):
            offset = [t * d for t, d in zip(tap, dilation)]
            offset[0] += rows.start * stride[0]
            place = sums[(slice(None), slice(None), *tap_slices(tuple(offset), stride, part))]
            np.add(place, taps[(slice(None), *tap)], out=place)
        if rows.stop == count[0]:
            dx = sums[(slice(None), slice(None), *inside)].swapaxes(0, 1)
            np.copyto(out[images], dx, casting="same_kind")


def convolve_backward_weight(
    inp: np.ndarray,
    dy: np.ndarray,
    *,
    weight_shape: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
    out: np.ndarray,
) -> None:
    """Write to ``out`` (o, c / groups, *kernel) the products of ``dy`` and what each weight met, summed."""
    if not out.size:
        return
    wide = wide_of(as_dtype(inp.dtype)).dtype
    outputs = weight_shape[0]
    sums = np.zeros((groups, outputs // groups, product(weight_shape[1:])), wide)
    columns = _Columns(inp, weight_shape[2:], stride, padding, dilation, dy.shape[2:], wide)
    gathered = _Scratch(wide)
    for images, rows in columns.blocks(outputs):
        given = _channels_first(dy, images, rows, gathered).reshape(groups, outputs // groups, -1)
        sums += np.matmul(given, columns(images, rows, groups).swapaxes(1, 2))
    np.copyto(out, sums.reshape(weight_shape), casting="same_kind")


class _Scratch:
    """Memory that one kernel uses again for each of its blocks."""

    def __init__(self, dtype: np.dtype) -> None:
        self.array = np.empty(0, dtype)

    def __call__(self, *shape: int) -> np.ndarray:
        if self.array.size < product(shape):
            self.array = np.empty(product(shape), self.array.dtype)
        return self.array[: product(shape)].reshape(shape)


class _Columns:
    """The windows of a block as matrices: (groups, taps of one group, windows)."""

    def __init__(
        self,
        inp: np.ndarray,
        kernel: Sizes,
        stride: Sizes,
        padding: Sizes,
        dilation: Sizes,
        count: Sizes,
        wide: np.dtype,
    ) -> None:
        self.inp, self.kernel, self.stride, self.padding = inp, kernel, stride, padding
        self.dilation, self.count, self.wide = dilation, count, wide
        self.scratch = _Scratch(wide)
        self.padded: np.ndarray | None = None

    def blocks(self, outputs: int) -> Iterator[Block]:
        """Yield the blocks of images and rows of the output, for so many output channels."""
        values = (self.inp.shape[1] * product(self.kernel) + outputs) * product(self.count)
        return _blocks(self.inp.shape[0], self.count, values * self.wide.itemsize)

    def __call__(self, images: slice, rows: slice, groups: int) -> np.ndarray:
        source = self.load(images)
        before = (slice(None),) * (len(self.kernel) + 2)  # channels, taps, images
        view = windows(source, self.kernel, self.stride, self.dilation, self.count)[(*before, rows)]
        columns = self.scratch(*view.shape)
        np.copyto(columns, view)
        taps = source.shape[1] // groups * product(self.kernel)
        return columns.reshape(groups, taps, product(view.shape[len(self.kernel) + 1 :]))

    def load(self, images: slice) -> np.ndarray:
        """Return the images with their padding, in the dtype of the computation."""
        part = self.inp[images]
        if not any(self.padding):
            return part.astype(self.wide, copy=False)
        if self.padded is None:
            size = (s + 2 * p for s, p in zip(part.shape[2:], self.padding))
            self.padded = np.zeros((*part.shape[:2], *size), self.wide)
        made = self.padded[: len(part)]
        inside = (slice(p, p + s) for p, s in zip(self.padding, part.shape[2:]))
        made[(slice(None), slice(None), *inside)] = part
        return made


def _blocks(images: int, count: Sizes, bytes_per_image: int) -> Iterator[Block]:
    """Yield (images, rows of the output) so that the columns of each block fit the limits."""
    if bytes_per_image <= LIMIT_BYTES:
        step = max(1, BLOCK_BYTES // max(1, bytes_per_image))
        for start in range(0, images, step):
            yield slice(start, min(start + step, images)), slice(0, count[0])
        return
    step = max(1, count[0] * LIMIT_BYTES // bytes_per_image)
    for image in range(images):
        for start in range(0, count[0], step):
            yield slice(image, image + 1), slice(start, min(start + step, count[0]))


def _as_matrices(weight: np.ndarray, groups: int, wide: np.dtype) -> np.ndarray:
    taps = product(weight.shape[1:])
    return weight.astype(wide, copy=False).reshape(groups, weight.shape[0] // groups, taps)


def _is_pointwise(kernel: Sizes, stride: Sizes, padding: Sizes, count: Sizes) -> bool:
    """Whether each image is multiplied as it lies, without columns."""
    return (
        product(kernel) == product(stride) == 1
        and not any(padding)
        and product(count) >= POINTWISE_MIN
    )


def _multiply_pixels(
    matrix: np.ndarray, inp: np.ndarray, out: np.ndarray, groups: int, wide: np.dtype
) -> None:
    """Multiply the channels of each pixel: a kernel of size 1."""
    pixels = product(inp.shape[2:])
    source = inp.reshape(len(inp), groups, -1, pixels)
    target = out.reshape(len(out), groups, -1, pixels)
    if inp.dtype == out.dtype == wide:
        np.matmul(matrix, source, out=target)
        return
    for image in range(len(inp)):
        np.copyto(target[image], np.matmul(matrix, source[image].astype(wide)), casting="same_kind")


def _channel_first(block: np.ndarray) -> Sizes:
    """Return the shape of a block (n, o, *rows) with its channels first."""
    return (block.shape[1], block.shape[0], *block.shape[2:])


def _channels_first(dy: np.ndarray, images: slice, rows: slice, scratch: _Scratch) -> np.ndarray:
    """Return a block of ``dy`` as a dense array (o, n, *rows)."""
    part = dy[images, :, rows]
    if part.dtype == scratch.array.dtype and len(part) == 1 and part.flags.c_contiguous:
        return part.reshape(_channel_first(part))
    dense = scratch(*_channel_first(part))
    np.copyto(dense, part.swapaxes(0, 1))
    return dense
