"""Pooling over one to three spatial axes: the largest element of each window, or the mean.

In: tensors (n, c, *size). Out: the base ops ``max_pool``, ``max_pool_backward``, ``avg_pool``, ``avg_pool_backward``.
After ``pool_reference``; before ``pool_functions``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..dtype import DTYPES, int32
from ..errors import ArgumentError, DTypeError, ShapeError
from ..op import op
from ..types import Shape, abstract
from .pool_reference import (
    average,
    average_backward,
    halves,
    index_dtype,
    largest,
    largest_backward,
)
from .reduction import converted
from .shape import reshape
from .windows import Sizes, check_at_least, product, window_counts

if TYPE_CHECKING:
    from ..tensor import Tensor

PRIVATE = ("max_pool", "max_pool_backward", "avg_pool", "avg_pool_backward")


def _pooled_shape(where: str, inp: Shape, kernel: Sizes, stride: Sizes, padding: Sizes) -> Shape:
    """Return the shape of a pool's result after all checks of shapes and attributes."""
    if not isinstance(inp, tuple) or not 3 <= len(inp) <= 5:
        raise ShapeError(
            f"{where}: the input has shape {inp}; it must have batch, channels and 1 to 3 spatial axes"
        )
    count = len(inp) - 2
    check_at_least(0, where, len(inp), input_shape=inp)
    check_at_least(1, where, count, kernel=kernel, stride=stride)
    check_at_least(0, where, 2 * count, padding=padding)
    before, after = halves(padding)
    if any(max(b, a) >= k for b, a, k in zip(before, after, kernel)):
        raise ArgumentError(
            f"{where}: padding is {before} before and {after} after, and kernel is {kernel}; "
            "each padding must be below its kernel size, so that no window lies outside the input"
        )
    if 0 in inp[2:]:
        raise ShapeError(
            f"{where}: the input has shape {inp}; each spatial axis must hold at least 1 element"
        )
    return (*inp[:2], *window_counts(inp[2:], kernel, stride, before, after, (1,) * count, where))


@op(base=True)
def max_pool(
    inp: Tensor, *, kernel: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Find the largest element of each window, and where in the window it is.

    ``y[n, c, p] = max_k inp[n, c, p * stride + k - before]``

    Parameters
    ----------
    inp : (n, c, *size) any dtype but bool
        One to three spatial axes.
    kernel, stride : tuple of int, elements
        Size of a window, and steps between windows; one for each spatial axis, at least 1.
    padding : tuple of int, elements
        Before each spatial axis, then after each; below ``kernel``. Padding is never the maximum.

    Returns
    -------
    y : (n, c, *count) dtype of ``inp``
        ``count = floor((size + before + after - kernel) / stride) + 1``
    index : (n, c, *count) uint8, or int32 for windows of more than 256 elements
        The position of the maximum in its window, in row-major order; of equal ones the first.

    Raises
    ------
    ShapeError
        Not 3 to 5 axes, an empty spatial axis, or a window that is longer than the padded input.
    ArgumentError
        An attribute has another length than the spatial axes, or is out of its range.
    DTypeError
        ``inp`` is bool.

    Notes
    -----
    A window with a NaN gives NaN, and the position of its first NaN.

    Examples
    --------
    >>> y, index = max_pool(tensor([[[1.0, 5.0, 2.0, 3.0]]]), kernel=(2,), stride=(2,), padding=(0, 0))
    >>> y, index.tolist()
    (Tensor([[[5., 3.]]], dtype=float32, device=ref:0), [[[1, 1]]])
    """
    if inp.dtype.is_bool:
        raise DTypeError(
            "max_pool: inp is bool; it must be a number", hint="convert it with .astype('uint8')"
        )
    shape = _pooled_shape("max_pool", inp.shape, kernel, stride, padding)
    return abstract(shape, inp.dtype), abstract(shape, DTYPES[index_dtype(kernel)])


max_pool.reference(largest)


@max_pool.gradient
def _(dys, ys, inp, **attrs):
    if dys[0] is None:
        return (None,)
    return (max_pool_backward(ys[1], dys[0], input_shape=inp.shape, **attrs),)


_CASES: tuple[tuple[Shape, dict[str, Any]], ...] = (
    ((1, 2, 5), {"kernel": (2,), "stride": (2,), "padding": (0, 0)}),
    ((2, 1, 4, 4), {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0, 0, 0)}),
    ((1, 2, 4, 5), {"kernel": (3, 3), "stride": (2, 1), "padding": (1, 1, 1, 1)}),
    ((1, 1, 3, 4), {"kernel": (2, 3), "stride": (2, 2), "padding": (0, 1, 1, 0)}),
    ((2, 2, 3, 2), {"kernel": (3, 2), "stride": (3, 2), "padding": (0, 0, 0, 0)}),
    ((1, 1, 3, 2, 3), {"kernel": (2, 2, 1), "stride": (1, 1, 2), "padding": (1, 0, 0, 0, 0, 0)}),
    ((0, 2, 4), {"kernel": (2,), "stride": (1,), "padding": (0, 0)}),
)


def _distinct(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Return values that are far apart, so that no small step changes which one is the largest."""
    return rng.permutation(product(shape)).reshape(shape) * 0.25 - 2.0


@max_pool.samples
def _(rng):
    for shape, attrs in _CASES:
        yield (_distinct(rng, shape),), attrs


@op(base=True)
def max_pool_backward(
    index: Tensor,
    dy: Tensor,
    *,
    input_shape: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
) -> Tensor:
    """Add each ``dy`` to the element of the input that was the maximum of its window.

    ``dx[n, c, q] = sum_{p : p * stride + index[n, c, p] - before = q} dy[n, c, p]``

    Parameters
    ----------
    index : (n, c, *count) integer
        Positions in the windows, as ``max_pool`` gives them.
    dy : (n, c, *count) float
    input_shape : tuple of int
        ``(n, c, *size)``, the shape of the result.
    kernel, stride, padding : tuple of int, elements
        As of ``max_pool``.

    Returns
    -------
    (n, c, *size) dtype of ``dy``

    Raises
    ------
    ShapeError
        ``index`` or ``dy`` has not the shape that pooling ``input_shape`` gives.
    ArgumentError
        An attribute that ``max_pool`` refuses.
    DTypeError
        ``dy`` is not float, or ``index`` has not the dtype that ``max_pool`` gives it.

    Notes
    -----
    Linear in ``dy``. float16 and bfloat16 are accumulated in float32. A position outside its window adds nothing.

    Examples
    --------
    >>> index, dy = tensor([[[1, 0]]], dtype="uint8"), tensor([[[5.0, 7.0]]])
    >>> max_pool_backward(index, dy, input_shape=(1, 1, 4), kernel=(2,), stride=(2,), padding=(0, 0))
    Tensor([[[0., 5., 7., 0.]]], dtype=float32, device=ref:0)
    """
    where = "max_pool_backward"
    shape = _pooled_shape(where, input_shape, kernel, stride, padding)
    if dy.shape != shape or index.shape != shape:
        raise ShapeError(
            f"{where}: index has shape {index.shape} and dy has {dy.shape}; pooling {input_shape} gives {shape}"
        )
    if not dy.dtype.is_float or index.dtype != index_dtype(kernel):
        raise DTypeError(
            f"{where}: dy is {dy.dtype} and index is {index.dtype}; dy must be float and index {index_dtype(kernel)}"
        )
    return abstract(input_shape, dy.dtype)


max_pool_backward.reference(largest_backward)


@max_pool_backward.gradient
def _(dx, x, index, dy, *, input_shape, kernel, stride, padding):
    # Linear in dy: each dy gets back what lies at its window's maximum.
    from .gather import take_along

    rows = reshape(dx, shape=(*input_shape[:2], product(input_shape[2:])))
    place = _places(index, input_shape, kernel, stride, padding)
    place = reshape(place, shape=(*input_shape[:2], product(dy.shape[2:])))
    return None, reshape(take_along(rows, place, axis=2), shape=dy.shape)


def _places(index: Any, input_shape: Shape, kernel: Sizes, stride: Sizes, padding: Sizes) -> Any:
    """Return for each window where its maximum lies in the flattened image."""
    from .constant import iota

    rest, place, step = converted(index, int32), None, 1
    for axis in range(len(kernel) - 1, -1, -1):
        shape = tuple(n if i == axis else 1 for i, n in enumerate(index.shape[2:]))
        start = iota(shape=shape, axis=axis) * stride[axis] - padding[axis]
        part = (rest % kernel[axis] + start) * step
        place = part if place is None else place + part
        rest = rest // kernel[axis]
        step *= input_shape[2 + axis]
    return place


@max_pool_backward.samples
def _(rng):
    for shape, attrs in _CASES:
        y, index = largest(_distinct(rng, shape), **attrs)
        yield (index, rng.normal(size=y.shape)), {"input_shape": shape, **attrs}


@op(base=True, promotes="float")
def avg_pool(
    inp: Tensor,
    *,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    count_padding: bool = False,
) -> Tensor:
    """Average the elements of each window.

    ``y[n, c, p] = sum_k inp[n, c, p * stride + k - before] / elements(p)``

    Parameters
    ----------
    inp : (n, c, *size) float
        One to three spatial axes. Integers become float32.
    kernel, stride : tuple of int, elements
        Size of a window, and steps between windows; one for each spatial axis, at least 1.
    padding : tuple of int, elements
        Zeros before each spatial axis, then after each; below ``kernel``.
    count_padding : bool, default False
        Divide by all elements of the window; else by those that lie in the input.

    Returns
    -------
    (n, c, *count) dtype of ``inp``
        ``count = floor((size + before + after - kernel) / stride) + 1``

    Raises
    ------
    ShapeError
        Not 3 to 5 axes, an empty spatial axis, or a window that is longer than the padded input.
    ArgumentError
        An attribute has another length than the spatial axes, or is out of its range.

    Notes
    -----
    float16 and bfloat16 are accumulated in float32.

    Examples
    --------
    >>> avg_pool(tensor([[[1.0, 5.0, 2.0, 4.0]]]), kernel=(2,), stride=(2,), padding=(0, 0))
    Tensor([[[3., 3.]]], dtype=float32, device=ref:0)
    """
    return abstract(_pooled_shape("avg_pool", inp.shape, kernel, stride, padding), inp.dtype)


avg_pool.reference(average)


@avg_pool.gradient
def _(dy, y, inp, **attrs):
    return (avg_pool_backward(dy, input_shape=inp.shape, **attrs),)


@avg_pool.samples
def _(rng):
    for i, (shape, attrs) in enumerate(_CASES):
        yield (rng.normal(size=shape),), {**attrs, "count_padding": i % 2 == 1}


@op(base=True)
def avg_pool_backward(
    dy: Tensor,
    *,
    input_shape: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    count_padding: bool = False,
) -> Tensor:
    """Give each element of the input its share of the means that it was part of.

    ``dx[n, c, q] = sum_{p, k : p * stride + k - before = q} dy[n, c, p] / elements(p)``

    Parameters
    ----------
    dy : (n, c, *count) float
    input_shape : tuple of int
        ``(n, c, *size)``, the shape of the result.
    kernel, stride, padding : tuple of int, elements
    count_padding : bool, default False
        As of ``avg_pool``.

    Returns
    -------
    (n, c, *size) dtype of ``dy``

    Raises
    ------
    ShapeError
        ``dy`` has not the shape that pooling ``input_shape`` gives.
    ArgumentError
        An attribute that ``avg_pool`` refuses.
    DTypeError
        ``dy`` is not float.

    Notes
    -----
    Linear in ``dy``. float16 and bfloat16 are accumulated in float32.

    Examples
    --------
    >>> dy = tensor([[[2.0, 6.0]]])
    >>> avg_pool_backward(dy, input_shape=(1, 1, 4), kernel=(2,), stride=(2,), padding=(0, 0))
    Tensor([[[1., 1., 3., 3.]]], dtype=float32, device=ref:0)
    """
    shape = _pooled_shape("avg_pool_backward", input_shape, kernel, stride, padding)
    if dy.shape != shape:
        raise ShapeError(
            f"avg_pool_backward: dy has shape {dy.shape}; pooling {input_shape} gives {shape}"
        )
    if not dy.dtype.is_float:
        raise DTypeError(f"avg_pool_backward: dy is {dy.dtype}; it must be a float tensor")
    return abstract(input_shape, dy.dtype)


avg_pool_backward.reference(average_backward)


@avg_pool_backward.gradient
def _(dx, x, dy, *, input_shape, **attrs):
    return (avg_pool(dx, **attrs),)


@avg_pool_backward.samples
def _(rng):
    for i, (shape, attrs) in enumerate(_CASES):
        y = _pooled_shape("avg_pool", shape, **attrs)
        yield (rng.normal(size=y),), {"input_shape": shape, **attrs, "count_padding": i % 2 == 1}
