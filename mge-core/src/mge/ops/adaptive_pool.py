"""Pooling by as many windows as the result has places.

In: tensors (n, c, *size). Out: ``adaptive_max_pool1d`` to ``adaptive_max_pool3d``, and the same for ``avg``.
After ``pool``; before ``tensor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ShapeError
from .pool import avg_pool, max_pool
from .windows import Sizes, check_spatial, per_axis

if TYPE_CHECKING:
    from ..tensor import Tensor

FUNCTIONS = (
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
)


def _fitted(where: str, count: int, inp: Tensor, oshp: Any) -> dict[str, Sizes]:
    """Return the attributes of a pool whose result has a given size."""
    check_spatial(inp.shape, count, where)
    wanted = per_axis(oshp, count, "oshp", where)
    size = inp.shape[2:]
    if any(not 1 <= o <= n for o, n in zip(wanted, size)):
        raise ShapeError(
            f"{where}: inp has size {size} and oshp is {wanted}; each must be from 1 to the input's size",
            hint="F.vision.interpolate enlarges an image",
        )
    stride = tuple(n // o for n, o in zip(size, wanted))
    kernel = tuple(n - (o - 1) * s for n, o, s in zip(size, wanted, stride))
    return {"kernel": kernel, "stride": stride, "padding": (0,) * (2 * count)}


def adaptive_max_pool1d(inp: Tensor, oshp: Any) -> Tensor:
    """Keep the largest element of each window, for a result of a given size.

    ``y[n, c, p] = max_k inp[n, c, p * stride + k]``

    Parameters
    ----------
    inp : (n, c, l) any dtype but bool
    oshp : int, elements
        Size of the result, from 1 to the size of ``inp``.

    Returns
    -------
    (n, c, ol) dtype of ``inp``

    Raises
    ------
    ShapeError
        Not 3 axes, or ``oshp`` is not from 1 to the input's size.
    ArgumentError
        ``oshp`` has another length than the spatial axes.
    DTypeError
        ``inp`` is bool.

    Notes
    -----
    All windows have one size, as in MegEngine: ``stride = size // oshp`` and
    ``kernel = size - (oshp - 1) * stride``. Where ``oshp`` does not divide the size, PyTorch's windows differ.

    Examples
    --------
    >>> adaptive_max_pool1d(tensor([[[1.0, 5.0, 2.0, 3.0]]]), 2)
    Tensor([[[5., 3.]]], dtype=float32, device=ref:0)
    """
    return max_pool(inp, **_fitted("adaptive_max_pool1d", 1, inp, oshp))[0]


def adaptive_max_pool2d(inp: Tensor, oshp: Any) -> Tensor:
    """Keep the largest element of each window, for a result of a given size.

    ``y[n, c, p] = max_k inp[n, c, p * stride + k]``

    Parameters
    ----------
    inp : (n, c, h, w) any dtype but bool
    oshp : int or tuple of int, elements
        Size of the result, from 1 to the size of ``inp``.

    Returns
    -------
    (n, c, oh, ow) dtype of ``inp``

    Raises
    ------
    ShapeError
        Not 4 axes, or ``oshp`` is not from 1 to the input's size.
    ArgumentError
        ``oshp`` has another length than the spatial axes.
    DTypeError
        ``inp`` is bool.

    Notes
    -----
    All windows have one size, as in MegEngine: ``stride = size // oshp`` and
    ``kernel = size - (oshp - 1) * stride``. Where ``oshp`` does not divide the size, PyTorch's windows differ.

    Examples
    --------
    >>> adaptive_max_pool2d(tensor([[[[1.0, 5.0, 2.0, 3.0]]]]), (1, 2))
    Tensor([[[[5., 3.]]]], dtype=float32, device=ref:0)
    """
    return max_pool(inp, **_fitted("adaptive_max_pool2d", 2, inp, oshp))[0]


def adaptive_max_pool3d(inp: Tensor, oshp: Any) -> Tensor:
    """Keep the largest element of each window, for a result of a given size.

    ``y[n, c, p] = max_k inp[n, c, p * stride + k]``

    Parameters
    ----------
    inp : (n, c, d, h, w) any dtype but bool
    oshp : int or tuple of int, elements
        Size of the result, from 1 to the size of ``inp``.

    Returns
    -------
    (n, c, od, oh, ow) dtype of ``inp``

    Raises
    ------
    ShapeError
        Not 5 axes, or ``oshp`` is not from 1 to the input's size.
    ArgumentError
        ``oshp`` has another length than the spatial axes.
    DTypeError
        ``inp`` is bool.

    Notes
    -----
    All windows have one size, as in MegEngine: ``stride = size // oshp`` and
    ``kernel = size - (oshp - 1) * stride``. Where ``oshp`` does not divide the size, PyTorch's windows differ.

    Examples
    --------
    >>> adaptive_max_pool3d(tensor([[[[[1.0, 5.0, 2.0, 3.0]]]]]), (1, 1, 2))
    Tensor([[[[[5., 3.]]]]], dtype=float32, device=ref:0)
    """
    return max_pool(inp, **_fitted("adaptive_max_pool3d", 3, inp, oshp))[0]


def adaptive_avg_pool1d(inp: Tensor, oshp: Any) -> Tensor:
    """Average the elements of each window, for a result of a given size.

    ``y[n, c, p] = mean_k inp[n, c, p * stride + k]``

    Parameters
    ----------
    inp : (n, c, l) float
    oshp : int, elements
        Size of the result, from 1 to the size of ``inp``.

    Returns
    -------
    (n, c, ol) dtype of ``inp``; integers give float32

    Raises
    ------
    ShapeError
        Not 3 axes, or ``oshp`` is not from 1 to the input's size.
    ArgumentError
        ``oshp`` has another length than the spatial axes.

    Notes
    -----
    All windows have one size, as in MegEngine: ``stride = size // oshp`` and
    ``kernel = size - (oshp - 1) * stride``. Where ``oshp`` does not divide the size, PyTorch's windows differ.

    Examples
    --------
    >>> adaptive_avg_pool1d(tensor([[[1.0, 5.0, 1.0, 3.0]]]), 2)
    Tensor([[[3., 2.]]], dtype=float32, device=ref:0)
    """
    return avg_pool(inp, **_fitted("adaptive_avg_pool1d", 1, inp, oshp))


def adaptive_avg_pool2d(inp: Tensor, oshp: Any) -> Tensor:
    """Average the elements of each window, for a result of a given size.

    ``y[n, c, p] = mean_k inp[n, c, p * stride + k]``

    Parameters
    ----------
    inp : (n, c, h, w) float
    oshp : int or tuple of int, elements
        Size of the result, from 1 to the size of ``inp``.

    Returns
    -------
    (n, c, oh, ow) dtype of ``inp``; integers give float32

    Raises
    ------
    ShapeError
        Not 4 axes, or ``oshp`` is not from 1 to the input's size.
    ArgumentError
        ``oshp`` has another length than the spatial axes.

    Notes
    -----
    All windows have one size, as in MegEngine: ``stride = size // oshp`` and
    ``kernel = size - (oshp - 1) * stride``. Where ``oshp`` does not divide the size, PyTorch's windows differ.

    Examples
    --------
    >>> adaptive_avg_pool2d(tensor([[[[1.0, 5.0, 1.0, 3.0]]]]), (1, 2))
    Tensor([[[[3., 2.]]]], dtype=float32, device=ref:0)
    """
    return avg_pool(inp, **_fitted("adaptive_avg_pool2d", 2, inp, oshp))


def adaptive_avg_pool3d(inp: Tensor, oshp: Any) -> Tensor:
    """Average the elements of each window, for a result of a given size.

    ``y[n, c, p] = mean_k inp[n, c, p * stride + k]``

    Parameters
    ----------
    inp : (n, c, d, h, w) float
    oshp : int or tuple of int, elements
        Size of the result, from 1 to the size of ``inp``.

    Returns
    -------
    (n, c, od, oh, ow) dtype of ``inp``; integers give float32

    Raises
    ------
    ShapeError
        Not 5 axes, or ``oshp`` is not from 1 to the input's size.
    ArgumentError
        ``oshp`` has another length than the spatial axes.

    Notes
    -----
    All windows have one size, as in MegEngine: ``stride = size // oshp`` and
    ``kernel = size - (oshp - 1) * stride``. Where ``oshp`` does not divide the size, PyTorch's windows differ.

    Examples
    --------
    >>> adaptive_avg_pool3d(tensor([[[[[1.0, 5.0, 1.0, 3.0]]]]]), (1, 1, 2))
    Tensor([[[[[3., 2.]]]]], dtype=float32, device=ref:0)
    """
    return avg_pool(inp, **_fitted("adaptive_avg_pool3d", 3, inp, oshp))
