"""Logic on truth values, and the bits of integers.

In: tensors that broadcast. Out: ``logical_and`` and its kin, ``bitwise_and`` and its kin, shifts.
After ``elementwise``; before ``tensor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..dtype import bool_
from ..op import op
from ..types import abstract, broadcast
from .broadcasting import Samples, integer_pairs, no_gradient, refuse_bool, refuse_float

if TYPE_CHECKING:
    from ..tensor import Tensor


def _truths(rng: np.random.Generator) -> Samples:
    for one, other in [((5,), (5,)), ((2, 1), (3,)), ((), ()), ((0, 2), (2,))]:
        yield (rng.integers(0, 2, one) == 1, rng.integers(0, 2, other) == 1), {}
    yield (np.array([0.0, -1.0, 2.0, 0.0]), np.array([0.0, 3.0, 0.0, 0.5])), {}


def _bits(rng: np.random.Generator) -> Samples:
    yield from integer_pairs(rng, 0, 100)
    yield (np.array([-1, -128, 5]), np.array([127, -3, -2])), {}
    yield (rng.integers(0, 2, 5) == 1, rng.integers(0, 2, 5) == 1), {}


def _shifts(rng: np.random.Generator) -> Samples:
    yield from integer_pairs(rng)
    yield (np.array([-1, -128, 127]), np.array([1, 3, 9])), {}


@op(base=True, promotes="same")
def logical_and(x: Tensor, y: Tensor) -> Tensor:
    """Tell where both are true.

    ``z = x and y``

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
    Every number but 0 counts as true, NaN too.

    Examples
    --------
    >>> logical_and(tensor([False, True, True]), tensor([False, False, True]))
    Tensor([False, False,  True], dtype=bool, device=ref:0)
    """
    return abstract(broadcast(x.shape, y.shape, where="logical_and"), bool_)


logical_and.reference(np.logical_and)
logical_and.inplace = (0, 1)
logical_and.gradient(no_gradient)
logical_and.samples(_truths)


@op(base=True, promotes="same")
def logical_or(x: Tensor, y: Tensor) -> Tensor:
    """Tell where one or both are true.

    ``z = x or y``

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
    Every number but 0 counts as true, NaN too.

    Examples
    --------
    >>> logical_or(tensor([False, True, True]), tensor([False, False, True]))
    Tensor([False,  True,  True], dtype=bool, device=ref:0)
    """
    return abstract(broadcast(x.shape, y.shape, where="logical_or"), bool_)


logical_or.reference(np.logical_or)
logical_or.inplace = (0, 1)
logical_or.gradient(no_gradient)
logical_or.samples(_truths)


@op(promotes="same")
def logical_xor(x: Tensor, y: Tensor) -> Tensor:
    """Tell where exactly one is true.

    ``z = x xor y``

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
    Every number but 0 counts as true, NaN too.

    Examples
    --------
    >>> logical_xor(tensor([False, True, True]), tensor([False, False, True]))
    Tensor([False,  True, False], dtype=bool, device=ref:0)
    """
    return abstract(broadcast(x.shape, y.shape, where="logical_xor"), bool_)


logical_xor.reference(np.logical_xor)
logical_xor.inplace = (0, 1)
logical_xor.gradient(no_gradient)
logical_xor.samples(_truths)


@logical_xor.lowering
def _(x, y):
    from .comparison import not_equal

    return not_equal(logical_not(x), logical_not(y))


@op(base=True)
def logical_not(x: Tensor) -> Tensor:
    """Tell where the input is false.

    ``y = not x``

    Parameters
    ----------
    x : (any shape) any dtype

    Returns
    -------
    (shape of ``x``) bool

    Raises
    ------
    DTypeError
        ``x`` is no tensor, array or number.

    Notes
    -----
    Every number but 0 counts as true, NaN too.

    Examples
    --------
    >>> logical_not(tensor([False, True]))
    Tensor([ True, False], dtype=bool, device=ref:0)
    """
    return abstract(x.shape, bool_)


logical_not.reference(np.logical_not)
logical_not.inplace = (0,)
logical_not.gradient(no_gradient)


@logical_not.samples
def _(rng):
    for (x, _), attrs in _truths(rng):
        yield (x,), attrs


@op(base=True, promotes="same")
def bitwise_and(x: Tensor, y: Tensor) -> Tensor:
    """Combine the bits of two integers: 1 where both are 1.

    ``z = x & y``

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
        The inputs are floats.
    ShapeError
        The shapes do not broadcast.

    Notes
    -----
    Bools are bits. Negative integers are in two's complement.

    Examples
    --------
    >>> bitwise_and(tensor([12, 10]), 6)
    Tensor([4, 2], dtype=int32, device=ref:0)
    """
    refuse_float("bitwise_and", x)
    return abstract(broadcast(x.shape, y.shape, where="bitwise_and"), x.dtype)


bitwise_and.reference(np.bitwise_and)
bitwise_and.inplace = (0, 1)
bitwise_and.gradient(no_gradient)
bitwise_and.samples(_bits)


@op(base=True, promotes="same")
def bitwise_or(x: Tensor, y: Tensor) -> Tensor:
    """Combine the bits of two integers: 1 where one or both are 1.

    ``z = x | y``

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
        The inputs are floats.
    ShapeError
        The shapes do not broadcast.

    Notes
    -----
    Bools are bits. Negative integers are in two's complement.

    Examples
    --------
    >>> bitwise_or(tensor([12, 10]), 6)
    Tensor([14, 14], dtype=int32, device=ref:0)
    """
    refuse_float("bitwise_or", x)
    return abstract(broadcast(x.shape, y.shape, where="bitwise_or"), x.dtype)


bitwise_or.reference(np.bitwise_or)
bitwise_or.inplace = (0, 1)
bitwise_or.gradient(no_gradient)
bitwise_or.samples(_bits)


@op(base=True, promotes="same")
def bitwise_xor(x: Tensor, y: Tensor) -> Tensor:
    """Combine the bits of two integers: 1 where exactly one is 1.

    ``z = x ^ y``

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
        The inputs are floats.
    ShapeError
        The shapes do not broadcast.

    Notes
    -----
    Bools are bits. Negative integers are in two's complement.

    Examples
    --------
    >>> bitwise_xor(tensor([12, 10]), 6)
    Tensor([10, 12], dtype=int32, device=ref:0)
    """
    refuse_float("bitwise_xor", x)
    return abstract(broadcast(x.shape, y.shape, where="bitwise_xor"), x.dtype)


bitwise_xor.reference(np.bitwise_xor)
bitwise_xor.inplace = (0, 1)
bitwise_xor.gradient(no_gradient)
bitwise_xor.samples(_bits)


@op(base=True)
def bitwise_not(x: Tensor) -> Tensor:
    """Invert each bit of an integer.

    ``y = ~x``

    Parameters
    ----------
    x : (any shape) integer or bool

    Returns
    -------
    (shape of ``x``) dtype of ``x``

    Raises
    ------
    DTypeError
        ``x`` is a float tensor.

    Notes
    -----
    A bool is one bit. Signed integers give ``-x - 1``, in two's complement.

    Examples
    --------
    >>> bitwise_not(tensor([0, 5]))
    Tensor([-1, -6], dtype=int32, device=ref:0)
    """
    refuse_float("bitwise_not", x)
    return abstract(x.shape, x.dtype)


bitwise_not.reference(np.invert)
bitwise_not.inplace = (0,)
bitwise_not.gradient(no_gradient)


@bitwise_not.samples
def _(rng):
    for (x, _), attrs in _bits(rng):
        yield (x,), attrs


@op(base=True, promotes="same")
def left_shift(x: Tensor, y: Tensor) -> Tensor:
    """Shift the bits of an integer to the left.

    ``z = x * 2**y``

    Parameters
    ----------
    x : integer tensor
    y : integer tensor that broadcasts with ``x``
        How many bits, at least 0. Both are cast to their common dtype.

    Returns
    -------
    (the broadcast shape) the common dtype

    Raises
    ------
    DTypeError
        The inputs are floats or bools.
    ShapeError
        The shapes do not broadcast.

    Notes
    -----
    Bits that leave at the left are lost. A ``y`` of the dtype's width or more, or a negative one,
    shifts every bit out.

    Examples
    --------
    >>> left_shift(tensor([1, 5]), 2)
    Tensor([ 4, 20], dtype=int32, device=ref:0)
    """
    refuse_float("left_shift", x)
    refuse_bool("left_shift", x)
    return abstract(broadcast(x.shape, y.shape, where="left_shift"), x.dtype)


left_shift.reference(np.left_shift)
left_shift.inplace = (0, 1)
left_shift.gradient(no_gradient)
left_shift.samples(_shifts)


@op(base=True, promotes="same")
def right_shift(x: Tensor, y: Tensor) -> Tensor:
    """Shift the bits of an integer to the right.

    ``z = floor(x / 2**y)``

    Parameters
    ----------
    x : integer tensor
    y : integer tensor that broadcasts with ``x``
        How many bits, at least 0. Both are cast to their common dtype.

    Returns
    -------
    (the broadcast shape) the common dtype

    Raises
    ------
    DTypeError
        The inputs are floats or bools.
    ShapeError
        The shapes do not broadcast.

    Notes
    -----
    Signed integers keep their sign. A ``y`` of the dtype's width or more, or a negative one, shifts
    every bit out.

    Examples
    --------
    >>> right_shift(tensor([1, 12]), 2)
    Tensor([0, 3], dtype=int32, device=ref:0)
    """
    refuse_float("right_shift", x)
    refuse_bool("right_shift", x)
    return abstract(broadcast(x.shape, y.shape, where="right_shift"), x.dtype)


right_shift.reference(np.right_shift)
right_shift.inplace = (0, 1)
right_shift.gradient(no_gradient)
right_shift.samples(_shifts)
