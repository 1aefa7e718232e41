"""Dropout: a mask that is drawn again from its key wherever it is needed, and never stored.

In: a tensor and a generator's state. Out: the op ``keyed_dropout`` and the function ``dropout``.
After ``random``; before ``tensor``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ..dtype import uint32, wide_of
from ..errors import ArgumentError, DTypeError, user_place
from ..op import op
from ..types import abstract
from .generators import default_state, draw
from .philox import philox_words
from .random import check_state, random_bits

if TYPE_CHECKING:
    from ..tensor import Tensor

FUNCTIONS = ("dropout",)
PRIVATE = ("keyed_dropout",)


def threshold(drop_prob: float) -> int:
    """Return the smallest word that keeps its element: a word is below it with probability ``drop_prob``."""
    return min(math.ceil(drop_prob * 2**32), 2**32 - 1)


@op
def keyed_dropout(inp: Tensor, state: Tensor, *, drop_prob: float) -> Tensor:
    """Set elements to 0 where their random word is small, and scale the others.

    ``y[i] = inp[i] / (1 - drop_prob)`` where ``word[i] >= drop_prob * 2**32``, else 0

    Parameters
    ----------
    inp : (any shape) float
    state : (2,) uint64
        Element ``i``, in row-major order, takes word ``i`` of the stream.
    drop_prob : float
        Probability of a 0, at least 0 and below 1.

    Returns
    -------
    (shape of ``inp``) dtype of ``inp``

    Raises
    ------
    DTypeError
        ``inp`` is no float tensor, or ``state`` is not uint64.
    ShapeError
        ``state`` is not ``(2,)``.
    ArgumentError
        ``drop_prob`` is out of range.

    Notes
    -----
    The gradient is the same op on ``dy`` with the same state, so nothing is kept for it but 16 bytes.
    A dropped NaN or infinity gives 0.

    Sources
    -------
    Srivastava et al., Dropout: A Simple Way to Prevent Neural Networks from Overfitting, JMLR 15, 2014.

    Examples
    --------
    >>> keyed_dropout(tensor([1.0, 2.0]), tensor([0, 0], dtype="uint64"), drop_prob=0.5)
    Tensor([0., 4.], dtype=float32, device=ref:0)
    """
    if not inp.dtype.is_float:
        raise DTypeError(f"dropout: inp is {inp.dtype}; it must be a float tensor")
    check_state(state, "dropout")
    check_probability(drop_prob)
    return abstract(inp.shape, inp.dtype)


def check_probability(drop_prob: float, where: str = "dropout: drop_prob") -> None:
    """Raise an ArgumentError where a probability of dropping is out of range."""
    if not 0 <= drop_prob < 1:
        raise ArgumentError(f"{where} is {drop_prob}; it must be at least 0 and below 1")


keyed_dropout.inplace = (0,)


@keyed_dropout.reference
def _(inp, state, *, drop_prob, out):
    kept = philox_words(state, inp.size) >= np.uint32(threshold(drop_prob))
    scale = 1 / (1 - drop_prob)
    if inp.dtype.itemsize == 2:
        out[...] = inp.astype(np.float32) * np.float32(scale)
    else:
        np.multiply(inp, inp.dtype.type(scale), out=out)
    # All bits or none of each element, so that a dropped NaN is 0 too.
    bits = np.dtype(f"u{inp.dtype.itemsize}")
    mask = kept.view(np.uint8).astype(bits)
    np.negative(mask, out=mask)
    view = out.view(bits)
    np.bitwise_and(view, mask.reshape(view.shape), out=view)


@keyed_dropout.gradient
def _(dy, y, inp, state, *, drop_prob):
    return keyed_dropout(dy, state, drop_prob=drop_prob), None


@keyed_dropout.lowering
def _(inp, state, *, drop_prob):
    from .comparison import less
    from .create import scalar
    from .select import cast, where

    dropped = less(random_bits(state, shape=inp.shape), scalar(threshold(drop_prob), uint32))
    scaled = cast(cast(inp, dtype=wide_of(inp.dtype)) * (1 / (1 - drop_prob)), dtype=inp.dtype)
    return where(dropped, 0.0, scaled)


@keyed_dropout.samples
def _(rng):
    state = np.array([21, 2], np.uint64)
    for shape, drop_prob in [((4, 5), 0.5), ((3,), 0.0), ((), 0.3), ((0, 2), 0.5), ((30,), 0.9)]:
        yield (rng.normal(size=shape), state), {"drop_prob": drop_prob}


def dropout(inp: Tensor, drop_prob: float, training: bool = True) -> Tensor:
    """Set random elements to 0 and scale the others, so that the mean stays.

    ``y = inp * mask / (1 - drop_prob)``, ``mask`` 0 with probability ``drop_prob``, else 1

    Parameters
    ----------
    inp : (any shape) float
    drop_prob : float
        Probability of a 0, at least 0 and below 1.
    training : bool, default True
        False returns ``inp`` itself.

    Returns
    -------
    (shape of ``inp``) dtype of ``inp``

    Raises
    ------
    ArgumentError
        ``drop_prob`` is out of range.
    DTypeError
        ``inp`` is no float tensor.

    Notes
    -----
    Draws one word an element from the default generator of ``inp``'s device; see ``mge.random.seed``.

    Sources
    -------
    Srivastava et al., Dropout: A Simple Way to Prevent Neural Networks from Overfitting, JMLR 15, 2014.

    Examples
    --------
    >>> dropout(tensor([1.0, 2.0]), 0.5, training=False)
    Tensor([1., 2.], dtype=float32, device=ref:0)
    """
    if not training or drop_prob == 0:
        return inp
    try:
        check_probability(drop_prob)
    except ArgumentError as error:
        raise error.add_place(user_place()) from None
    return keyed_dropout(inp, draw(default_state(inp.device), inp.size), drop_prob=drop_prob)
