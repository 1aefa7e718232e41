"""Comparisons: masks of bool.

In: tensors that broadcast. Out: ``equal``, ``less`` and their kin.
After ``broadcasting``; before ``tensor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..dtype import bool_
from ..op import op
from ..types import abstract, broadcast
from .broadcasting import Samples, no_gradient, pairs

if TYPE_CHECKING:
    from ..tensor import Tensor


def _pairs_with_ties(rng: np.random.Generator) -> Samples:
    yield from pairs(rng)
    yield (np.array([-1.0, 0.0, 1.0, 2.0]), np.array([1.0, 0.0, 1.0, -2.0])), {}


@op(base=True, promotes="same")
def equal(x: Tensor, y: Tensor) -> Tensor:
    """Tell where two tensors are equal.

    ``z = (x == y)``

    Parameters
    ----------
    x, y : tensors, arrays or numbers that broadcast
        Cast to their common dtype.

    Returns
    -------
    (the broadcast shape) bool

    Raises
    ------
    ShapeError
        The shapes do not broadcast.

    Notes
    -----
    A comparison with NaN is False.

    Examples
    --------
    >>> equal(tensor([1, 2, 3]), 2)
    Tensor([False,  True, False], dtype=bool, device=ref:0)
    """
    return abstract(broadcast(x.shape, y.shape, where="equal"), bool_)


equal.reference(np.equal)
equal.gradient(no_gradient)
equal.samples(_pairs_with_ties)


@op(promotes="same")
def not_equal(x: Tensor, y: Tensor) -> Tensor:
    """Tell where two tensors differ.

    ``z = (x != y)``

    Parameters
    ----------
    x, y : tensors, arrays or numbers that broadcast
        Cast to their common dtype.

    Returns
    -------
    (the broadcast shape) bool

    Raises
    ------
    ShapeError
        The shapes do not broadcast.

    Notes
    -----
    NaN differs from everything, itself included.

    Examples
    --------
    >>> not_equal(tensor([1, 2, 3]), 2)
    Tensor([ True, False,  True], dtype=bool, device=ref:0)
    """
    return abstract(broadcast(x.shape, y.shape, where="not_equal"), bool_)


not_equal.reference(np.not_equal)
not_equal.gradient(no_gradient)
not_equal.samples(_pairs_with_ties)


@not_equal.lowering
def _(x, y):
    from .logic import logical_not

    return logical_not(equal(x, y))


@op(base=True, promotes="same")
def less(x: Tensor, y: Tensor) -> Tensor:
    """Tell where the first tensor is less than the second.

    ``z = (x < y)``

    Parameters
    ----------
    x, y : tensors, arrays or numbers that broadcast
        Cast to their common dtype.

    Returns
    -------
    (the broadcast shape) bool

    Raises
    ------
    ShapeError
        The shapes do not broadcast.

    Notes
    -----
    A comparison with NaN is False.

    Examples
    --------
    >>> less(tensor([1, 2, 3]), 2)
    Tensor([ True, False, False], dtype=bool, device=ref:0)
    """
    return abstract(broadcast(x.shape, y.shape, where="less"), bool_)


less.reference(np.less)
less.gradient(no_gradient)
less.samples(_pairs_with_ties)


@op(base=True, promotes="same")
def less_equal(x: Tensor, y: Tensor) -> Tensor:
    """Tell where the first tensor is at most the second.

    ``z = (x <= y)``

    Parameters
    ----------
    x, y : tensors, arrays or numbers that broadcast
        Cast to their common dtype.

    Returns
    -------
    (the broadcast shape) bool

    Raises
    ------
    ShapeError
        The shapes do not broadcast.

    Notes
    -----
    A comparison with NaN is False.

    Examples
    --------
    >>> less_equal(tensor([1, 2, 3]), 2)
    Tensor([ True,  True, False], dtype=bool, device=ref:0)
    """
    return abstract(broadcast(x.shape, y.shape, where="less_equal"), bool_)


less_equal.reference(np.less_equal)
less_equal.gradient(no_gradient)
less_equal.samples(_pairs_with_ties)


@op(promotes="same")
def greater(x: Tensor, y: Tensor) -> Tensor:
    """Tell where the first tensor is greater than the second.

    ``z = (x > y)``

    Parameters
    ----------
    x, y : tensors, arrays or numbers that broadcast
        Cast to their common dtype.

    Returns
    -------
    (the broadcast shape) bool

    Raises
    ------
    ShapeError
        The shapes do not broadcast.

    Notes
    -----
    A comparison with NaN is False.

    Examples
    --------
    >>> greater(tensor([1, 2, 3]), 2)
    Tensor([False, False,  True], dtype=bool, device=ref:0)
    """
    return abstract(broadcast(x.shape, y.shape, where="greater"), bool_)


greater.reference(np.greater)
greater.gradient(no_gradient)
greater.samples(_pairs_with_ties)


@greater.lowering
def _(x, y):
    return less(y, x)


@op(promotes="same")
def greater_equal(x: Tensor, y: Tensor) -> Tensor:
    """Tell where the first tensor is at least the second.

    ``z = (x >= y)``

    Parameters
    ----------
    x, y : tensors, arrays or numbers that broadcast
        Cast to their common dtype.

    Returns
    -------
    (the broadcast shape) bool

    Raises
    ------
    ShapeError
        The shapes do not broadcast.

    Notes
    -----
    A comparison with NaN is False.

    Examples
    --------
    >>> greater_equal(tensor([1, 2, 3]), 2)
    Tensor([False,  True,  True], dtype=bool, device=ref:0)
    """
    return abstract(broadcast(x.shape, y.shape, where="greater_equal"), bool_)


greater_equal.reference(np.greater_equal)
greater_equal.gradient(no_gradient)
greater_equal.samples(_pairs_with_ties)


@greater_equal.lowering
def _(x, y):
    return less_equal(y, x)
