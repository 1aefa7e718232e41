"""Arithmetic: the ops behind ``+ - * /`` and the unary minus, and the larger or smaller of two.

In: tensors that broadcast. Out: ``add``, ``sub``, ``mul``, ``div``, ``neg``, ``maximum``, ``minimum``.
After ``power``; before ``tensor``, whose operators these are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..op import op
from ..types import abstract, broadcast
from .broadcasting import divisions, pairs, refuse_bool, singles, unbroadcast

if TYPE_CHECKING:
    from ..tensor import Tensor


@op(base=True, promotes="same")
def add(x: Tensor, y: Tensor) -> Tensor:
    """Add two tensors, element by element.

    ``z = x + y``

    Parameters
    ----------
    x, y : tensors, arrays or numbers that broadcast
        Cast to their common dtype.

    Returns
    -------
    (the broadcast shape) the common dtype

    Raises
    ------
    ShapeError
        The shapes do not broadcast.

    Notes
    -----
    Integers wrap. Bools give bool, the logical or.

    Examples
    --------
    >>> add(tensor([1.0, 2.0]), 3)
    Tensor([4., 5.], dtype=float32, device=ref:0)
    """
    return abstract(broadcast(x.shape, y.shape, where="add"), x.dtype)


add.reference(np.add)
add.inplace = (0, 1)
add.samples(pairs)


@add.gradient
def _(dz, z, x, y):
    return unbroadcast(dz, x), unbroadcast(dz, y)


@op(base=True, promotes="same")
def sub(x: Tensor, y: Tensor) -> Tensor:
    """Subtract the second tensor from the first.

    ``z = x - y``

    Parameters
    ----------
    x, y : tensors, arrays or numbers that broadcast
        Cast to their common dtype.

    Returns
    -------
    (the broadcast shape) the common dtype

    Raises
    ------
    DTypeError
        The inputs are bool.
    ShapeError
        The shapes do not broadcast.

    Notes
    -----
    Integers wrap.

    Examples
    --------
    >>> sub(tensor([1.0, 2.0]), 3)
    Tensor([-2., -1.], dtype=float32, device=ref:0)
    """
    refuse_bool("sub", x)
    return abstract(broadcast(x.shape, y.shape, where="sub"), x.dtype)


sub.reference(np.subtract)
sub.inplace = (0, 1)
sub.samples(pairs)


@sub.gradient
def _(dz, z, x, y):
    return unbroadcast(dz, x), unbroadcast(neg(dz), y)


@op(base=True, promotes="same")
def mul(x: Tensor, y: Tensor) -> Tensor:
    """Multiply two tensors, element by element.

    ``z = x * y``

    Parameters
    ----------
    x, y : tensors, arrays or numbers that broadcast
        Cast to their common dtype.

    Returns
    -------
    (the broadcast shape) the common dtype

    Raises
    ------
    ShapeError
        The shapes do not broadcast.

    Notes
    -----
    Integers wrap. Bools give bool, the logical and.

    Examples
    --------
    >>> mul(tensor([1.0, 2.0]), 3)
    Tensor([3., 6.], dtype=float32, device=ref:0)
    """
    return abstract(broadcast(x.shape, y.shape, where="mul"), x.dtype)


mul.reference(np.multiply)
mul.inplace = (0, 1)
mul.samples(pairs)


@mul.gradient
def _(dz, z, x, y):
    return unbroadcast(mul(dz, y), x), unbroadcast(mul(dz, x), y)


@op(base=True, promotes="float")
def div(x: Tensor, y: Tensor) -> Tensor:
    """Divide the first tensor by the second.

    ``z = x / y``

    Parameters
    ----------
    x, y : tensors, arrays or numbers that broadcast
        Cast to their common dtype; integers and bools to float32.

    Returns
    -------
    (the broadcast shape) the common float dtype; float32 for integers and bools

    Raises
    ------
    ShapeError
        The shapes do not broadcast.

    Notes
    -----
    ``x / 0`` is infinite with the sign of ``x``, and ``0 / 0`` is NaN, for integers too.

    Examples
    --------
    >>> div(tensor([1, 2]), 4)
    Tensor([0.25, 0.5 ], dtype=float32, device=ref:0)
    """
    return abstract(broadcast(x.shape, y.shape, where="div"), x.dtype)


div.reference(np.true_divide)
div.inplace = (0, 1)
div.samples(divisions)


@div.gradient
def _(dz, z, x, y):
    dx = div(dz, y)
    return unbroadcast(dx, x), unbroadcast(neg(mul(dx, z)), y)


@op(base=True)
def neg(x: Tensor) -> Tensor:
    """Change the sign.

    ``y = -x``

    Parameters
    ----------
    x : (any shape) any dtype

    Returns
    -------
    (shape of ``x``) dtype of ``x``

    Raises
    ------
    DTypeError
        ``x`` is bool.

    Notes
    -----
    Integers wrap: the least integer of a signed dtype stays, and unsigned ones give ``2**bits -
    x``.

    Examples
    --------
    >>> neg(tensor([1.0, -2.0]))
    Tensor([-1.,  2.], dtype=float32, device=ref:0)
    """
    refuse_bool("neg", x)
    return abstract(x.shape, x.dtype)


neg.reference(np.negative)
neg.inplace = (0,)
neg.samples(singles)


@neg.gradient
def _(dy, y, x):
    return (neg(dy),)


@op(base=True, promotes="same")
def maximum(x: Tensor, y: Tensor) -> Tensor:
    """Return the larger one of each two elements.

    ``z = max(x, y)``

    Parameters
    ----------
    x, y : tensors, arrays or numbers that broadcast
        Cast to their common dtype.

    Returns
    -------
    (the broadcast shape) the common dtype

    Raises
    ------
    ShapeError
        The shapes do not broadcast.

    Notes
    -----
    NaN in one of them gives NaN. Where both are equal, each gets half of the gradient. Bools give
    the logical or.

    Examples
    --------
    >>> maximum(tensor([1.0, 4.0]), tensor([3.0, 2.0]))
    Tensor([3., 4.], dtype=float32, device=ref:0)
    """
    return abstract(broadcast(x.shape, y.shape, where="maximum"), x.dtype)


maximum.reference(np.maximum)
maximum.inplace = (0, 1)
maximum.samples(pairs)


@maximum.gradient
def _(dz, z, x, y):
    from .comparison import equal, less
    from .select import where

    tie = where(equal(x, y), mul(dz, 0.5), 0)
    return unbroadcast(where(less(y, x), dz, tie), x), unbroadcast(where(less(x, y), dz, tie), y)


@op(base=True, promotes="same")
def minimum(x: Tensor, y: Tensor) -> Tensor:
    """Return the smaller one of each two elements.

    ``z = min(x, y)``

    Parameters
    ----------
    x, y : tensors, arrays or numbers that broadcast
        Cast to their common dtype.

    Returns
    -------
    (the broadcast shape) the common dtype

    Raises
    ------
    ShapeError
        The shapes do not broadcast.

    Notes
    -----
    NaN in one of them gives NaN. Where both are equal, each gets half of the gradient. Bools give
    the logical and.

    Examples
    --------
    >>> minimum(tensor([1.0, 4.0]), tensor([3.0, 2.0]))
    Tensor([1., 2.], dtype=float32, device=ref:0)
    """
    return abstract(broadcast(x.shape, y.shape, where="minimum"), x.dtype)


minimum.reference(np.minimum)
minimum.inplace = (0, 1)
minimum.samples(pairs)


@minimum.gradient
def _(dz, z, x, y):
    from .comparison import equal, less
    from .select import where

    tie = where(equal(x, y), mul(dz, 0.5), 0)
    return unbroadcast(where(less(x, y), dz, tie), x), unbroadcast(where(less(y, x), dz, tie), y)
