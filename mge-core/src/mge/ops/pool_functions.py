"""MegEngine's functions for pooling by windows of a given size.

In: tensors (n, c, *size). Out: ``max_pool1d`` to ``max_pool3d``, ``avg_pool1d`` to ``avg_pool3d``.
After ``pool``; before ``adaptive_pool``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError
from .pool import avg_pool, max_pool
from .windows import Sizes, are_sizes, check_at_least, check_spatial, per_axis

if TYPE_CHECKING:
    from ..tensor import Tensor

FUNCTIONS = ("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d")
_COUNTS_PADDING = {"average": True, "average_count_exclude_padding": False}


def _window(
    where: str,
    count: int,
    inp: Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
) -> dict[str, Sizes]:
    """Return the attributes of a pool, with padding before and after each axis."""
    check_spatial(inp.shape, count, where)
    kernel, steps, before = kernel_size, kernel_size if stride is None else stride, padding
    if not are_sizes(count, kernel, steps, before):
        kernel = per_axis(kernel, count, "kernel_size", where)
        steps = kernel if stride is None else per_axis(steps, count, "stride", where)
        before = per_axis(before, count, "padding", where)
    after = before
    if min(kernel) < 1 or min(steps) < 1:
        check_at_least(1, where, count, kernel_size=kernel, stride=steps)
    if ceil_mode:
        after = tuple(
            _after_last(n, k, s, p) for n, k, s, p in zip(inp.shape[2:], kernel, steps, before)
        )
    return {"kernel": kernel, "stride": steps, "padding": (*before, *after)}


def _after_last(size: int, kernel: int, stride: int, padding: int) -> int:
    """Return the padding at the end that lets one more window begin inside the input."""
    steps = -(-(size + 2 * padding - kernel) // stride)
    if steps * stride >= size + padding:
        steps -= 1
    return max(padding, steps * stride + kernel - size - padding)


def _counts_padding(where: str, mode: str) -> bool:
    found = _COUNTS_PADDING.get(str(mode).lower())
    if found is None:
        raise ArgumentError(
            f"{where}: mode is {mode!r}; it must be one of {', '.join(_COUNTS_PADDING)}"
        )
    return found


def max_pool1d(
    inp: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False
) -> Tensor:
    """Keep the largest element of each window.

    ``y[n, c, p] = max_k inp[n, c, p * stride + k - padding]``

    Parameters
    ----------
    inp : (n, c, l) any dtype but bool
    kernel_size : int, elements
    stride : int, elements, default ``kernel_size``
    padding : int, elements, default 0
        On both sides, below ``kernel_size``; padding is never the maximum.
    ceil_mode : bool, default False
        Also keep a last window that begins in the input and ends outside.

    Returns
    -------
    (n, c, ol) dtype of ``inp``
        ``ol = floor((l + 2 * padding - kernel_size) / stride) + 1``; rounded up with ``ceil_mode``.

    Raises
    ------
    ShapeError
        Not 3 axes, an empty spatial axis, or a window that is longer than the padded input.
    ArgumentError
        An argument has another length than the spatial axes, or is out of its range.
    DTypeError
        ``inp`` is bool.

    Notes
    -----
    A window with a NaN gives NaN. Of equal elements the first gets the gradient.

    Examples
    --------
    >>> max_pool1d(tensor([[[1.0, 5.0, 2.0, 3.0]]]), 2)
    Tensor([[[5., 3.]]], dtype=float32, device=ref:0)
    """
    return max_pool(inp, **_window("max_pool1d", 1, inp, kernel_size, stride, padding, ceil_mode))[
        0
    ]


def max_pool2d(
    inp: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False
) -> Tensor:
    """Keep the largest element of each window.

    ``y[n, c, p] = max_k inp[n, c, p * stride + k - padding]``

    Parameters
    ----------
    inp : (n, c, h, w) any dtype but bool
    kernel_size : int or tuple of int, elements
    stride : int or tuple of int, elements, default ``kernel_size``
    padding : int or tuple of int, elements, default 0
        On both sides of each axis, below ``kernel_size``; padding is never the maximum.
    ceil_mode : bool, default False
        Also keep a last window that begins in the input and ends outside.

    Returns
    -------
    (n, c, oh, ow) dtype of ``inp``
        ``ow = floor((w + 2 * padding - kernel_size) / stride) + 1``; rounded up with ``ceil_mode``.

    Raises
    ------
    ShapeError
        Not 4 axes, an empty spatial axis, or a window that is longer than the padded input.
    ArgumentError
        An argument has another length than the spatial axes, or is out of its range.
    DTypeError
        ``inp`` is bool.

    Notes
    -----
    A window with a NaN gives NaN. Of equal elements the first gets the gradient.

    Examples
    --------
    >>> max_pool2d(tensor([[[[1.0, 5.0, 2.0, 3.0]]]]), (1, 2))
    Tensor([[[[5., 3.]]]], dtype=float32, device=ref:0)
    """
    return max_pool(inp, **_window("max_pool2d", 2, inp, kernel_size, stride, padding, ceil_mode))[
        0
    ]


def max_pool3d(
    inp: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False
) -> Tensor:
    """Keep the largest element of each window.

    ``y[n, c, p] = max_k inp[n, c, p * stride + k - padding]``

    Parameters
    ----------
    inp : (n, c, d, h, w) any dtype but bool
    kernel_size : int or tuple of int, elements
    stride : int or tuple of int, elements, default ``kernel_size``
    padding : int or tuple of int, elements, default 0
        On both sides of each axis, below ``kernel_size``; padding is never the maximum.
    ceil_mode : bool, default False
        Also keep a last window that begins in the input and ends outside.

    Returns
    -------
    (n, c, od, oh, ow) dtype of ``inp``
        ``ow = floor((w + 2 * padding - kernel_size) / stride) + 1``; rounded up with ``ceil_mode``.

    Raises
    ------
    ShapeError
        Not 5 axes, an empty spatial axis, or a window that is longer than the padded input.
    ArgumentError
        An argument has another length than the spatial axes, or is out of its range.
    DTypeError
        ``inp`` is bool.

    Notes
    -----
    A window with a NaN gives NaN. Of equal elements the first gets the gradient.

    Examples
    --------
    >>> max_pool3d(tensor([[[[[1.0, 5.0, 2.0, 3.0]]]]]), (1, 1, 2))
    Tensor([[[[[5., 3.]]]]], dtype=float32, device=ref:0)
    """
    return max_pool(inp, **_window("max_pool3d", 3, inp, kernel_size, stride, padding, ceil_mode))[
        0
    ]


def avg_pool1d(
    inp: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    mode: str = "average_count_exclude_padding",
    ceil_mode: bool = False,
) -> Tensor:
    """Average the elements of each window.

    ``y[n, c, p] = sum_k inp[n, c, p * stride + k - padding] / elements(p)``

    Parameters
    ----------
    inp : (n, c, l) float
        Integers become float32.
    kernel_size : int, elements
    stride : int, elements, default ``kernel_size``
    padding : int, elements, default 0
        Zeros on both sides, below ``kernel_size``.
    mode : {"average_count_exclude_padding", "average"}
        Divide by the elements that lie in the input, or by all elements of the window.
    ceil_mode : bool, default False
        Also keep a last window that begins in the input and ends outside.

    Returns
    -------
    (n, c, ol) dtype of ``inp``
        ``ol = floor((l + 2 * padding - kernel_size) / stride) + 1``; rounded up with ``ceil_mode``.

    Raises
    ------
    ShapeError
        Not 3 axes, an empty spatial axis, or a window that is longer than the padded input.
    ArgumentError
        An argument has another length than the spatial axes, or is out of its range.

    Notes
    -----
    float16 and bfloat16 are accumulated in float32. PyTorch's default is ``mode="average"``.

    Examples
    --------
    >>> avg_pool1d(tensor([[[1.0, 5.0, 2.0, 4.0]]]), 2)
    Tensor([[[3., 3.]]], dtype=float32, device=ref:0)
    """
    where = "avg_pool1d"
    window = _window(where, 1, inp, kernel_size, stride, padding, ceil_mode)
    return avg_pool(inp, count_padding=_counts_padding(where, mode), **window)


def avg_pool2d(
    inp: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    mode: str = "average_count_exclude_padding",
    ceil_mode: bool = False,
) -> Tensor:
    """Average the elements of each window.

    ``y[n, c, p] = sum_k inp[n, c, p * stride + k - padding] / elements(p)``

    Parameters
    ----------
    inp : (n, c, h, w) float
        Integers become float32.
    kernel_size : int or tuple of int, elements
    stride : int or tuple of int, elements, default ``kernel_size``
    padding : int or tuple of int, elements, default 0
        Zeros on both sides of each axis, below ``kernel_size``.
    mode : {"average_count_exclude_padding", "average"}
        Divide by the elements that lie in the input, or by all elements of the window.
    ceil_mode : bool, default False
        Also keep a last window that begins in the input and ends outside.

    Returns
    -------
    (n, c, oh, ow) dtype of ``inp``
        ``ow = floor((w + 2 * padding - kernel_size) / stride) + 1``; rounded up with ``ceil_mode``.

    Raises
    ------
    ShapeError
        Not 4 axes, an empty spatial axis, or a window that is longer than the padded input.
    ArgumentError
        An argument has another length than the spatial axes, or is out of its range.

    Notes
    -----
    float16 and bfloat16 are accumulated in float32. PyTorch's default is ``mode="average"``.

    Examples
    --------
    >>> avg_pool2d(tensor([[[[1.0, 5.0, 2.0, 4.0]]]]), (1, 2))
    Tensor([[[[3., 3.]]]], dtype=float32, device=ref:0)
    """
    where = "avg_pool2d"
    window = _window(where, 2, inp, kernel_size, stride, padding, ceil_mode)
    return avg_pool(inp, count_padding=_counts_padding(where, mode), **window)


def avg_pool3d(
    inp: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    mode: str = "average_count_exclude_padding",
    ceil_mode: bool = False,
) -> Tensor:
    """Average the elements of each window.

    ``y[n, c, p] = sum_k inp[n, c, p * stride + k - padding] / elements(p)``

    Parameters
    ----------
    inp : (n, c, d, h, w) float
        Integers become float32.
    kernel_size : int or tuple of int, elements
    stride : int or tuple of int, elements, default ``kernel_size``
    padding : int or tuple of int, elements, default 0
        Zeros on both sides of each axis, below ``kernel_size``.
    mode : {"average_count_exclude_padding", "average"}
        Divide by the elements that lie in the input, or by all elements of the window.
    ceil_mode : bool, default False
        Also keep a last window that begins in the input and ends outside.

    Returns
    -------
    (n, c, od, oh, ow) dtype of ``inp``
        ``ow = floor((w + 2 * padding - kernel_size) / stride) + 1``; rounded up with ``ceil_mode``.

    Raises
    ------
    ShapeError
        Not 5 axes, an empty spatial axis, or a window that is longer than the padded input.
    ArgumentError
        An argument has another length than the spatial axes, or is out of its range.

    Notes
    -----
    float16 and bfloat16 are accumulated in float32. PyTorch's default is ``mode="average"``.

    Examples
    --------
    >>> avg_pool3d(tensor([[[[[1.0, 5.0, 2.0, 4.0]]]]]), (1, 1, 2))
    Tensor([[[[[3., 3.]]]]], dtype=float32, device=ref:0)
    """
    where = "avg_pool3d"
    window = _window(where, 3, inp, kernel_size, stride, padding, ceil_mode)
    return avg_pool(inp, count_padding=_counts_padding(where, mode), **window)
