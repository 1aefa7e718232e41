"""Activations that fall off exponentially below 0.

In: float tensors; integers become float32. Out: ``elu``, ``celu``, ``selu``.
After ``activation``; before ``tensor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..errors import ArgumentError, user_place
from ..op import op
from ..types import abstract
from .broadcasting import singles, widened
from .comparison import less
from .elementwise import add, div, mul
from .exponential import expm1
from .select import where

if TYPE_CHECKING:
    from ..tensor import Tensor

FUNCTIONS = ("celu", "selu")

# Klambauer et al., section 2: the fixed point of mean 0 and variance 1.
SELU_ALPHA = 1.6732632423543772
SELU_SCALE = 1.0507009873554805


@op(promotes="float")
def elu(inp: Tensor, *, alpha: float = 1.0) -> Tensor:
    """Let negative values approach a floor exponentially.

    ``y = inp if inp > 0 else alpha * (e ** inp - 1)``

    Parameters
    ----------
    inp : (any shape) any dtype
        Integers and bools are cast to float32.
    alpha : float, default 1
        The floor is ``-alpha``.

    Returns
    -------
    (shape of ``inp``) its float dtype, or float32

    Raises
    ------
    DTypeError
        ``inp`` is no tensor, array or number.

    Notes
    -----
    The gradient at 0 is ``alpha``. float16 and bfloat16 are computed in float32.

    Sources
    -------
    Clevert, Unterthiner and Hochreiter, Fast and Accurate Deep Network Learning by Exponential
    Linear Units, 2015, arXiv:1511.07289.

    Examples
    --------
    >>> elu(tensor([-1.0, 2.0]))
    Tensor([-0.63212055,  2.        ], dtype=float32, device=ref:0)
    """
    return abstract(inp.shape, inp.dtype)


elu.inplace = (0,)


@elu.reference
def _(inp, *, alpha):
    with np.errstate(all="ignore"):
        x = widened(inp)
        return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))).astype(inp.dtype)


@elu.gradient
def _(dy, y, inp, *, alpha):
    # Below 0 it is alpha * exp(x) = y + alpha. The result is more often kept, for what reads it, than the input.
    sign = y if alpha > 0 else inp
    return (where(less(0, sign), dy, mul(dy, add(y, alpha))),)


@elu.lowering
def _(inp, *, alpha):
    positive = less(0, inp)
    below = where(
        positive, 0, inp
    )  # the side that is not taken must not overflow, for the gradient
    return where(positive, inp, mul(expm1(below), alpha))


@elu.samples
def _(rng):
    for inputs, _ in singles(rng):
        yield inputs, {"alpha": 1.3}
    yield (np.array([-200.0, 200.0]),), {}


def celu(inp: Tensor, alpha: float = 1.0) -> Tensor:
    """Let negative values approach a floor exponentially, with slope 1 at 0.

    ``y = inp if inp > 0 else alpha * (e ** (inp / alpha) - 1)``

    Parameters
    ----------
    inp : (any shape) any dtype
        Integers and bools are cast to float32.
    alpha : float, default 1
        Above 0. The floor is ``-alpha``.

    Returns
    -------
    (shape of ``inp``) its float dtype, or float32

    Raises
    ------
    ArgumentError
        ``alpha`` is not above 0.

    Sources
    -------
    Barron, Continuously Differentiable Exponential Linear Units, 2017, arXiv:1704.07483.

    Examples
    --------
    >>> celu(tensor([-1.0, 2.0]), alpha=2.0)
    Tensor([-0.78693867,  2.        ], dtype=float32, device=ref:0)
    """
    if not alpha > 0:
        raise ArgumentError(f"celu: alpha is {alpha}; it must be above 0").add_place(user_place())
    return mul(elu(div(inp, float(alpha))), float(alpha))


def selu(inp: Tensor) -> Tensor:
    """Scale ``elu`` so that activations keep mean 0 and variance 1.

    ``y = 1.0507 * elu(inp, alpha=1.6733)``

    Parameters
    ----------
    inp : (any shape) any dtype
        Integers and bools are cast to float32.

    Returns
    -------
    (shape of ``inp``) its float dtype, or float32

    Raises
    ------
    DTypeError
        ``inp`` is no tensor, array or number.

    Sources
    -------
    Klambauer et al., Self-Normalizing Neural Networks, 2017, arXiv:1706.02515: both constants.

    Examples
    --------
    >>> selu(tensor([-1.0, 2.0]))
    Tensor([-1.1113307,  2.101402 ], dtype=float32, device=ref:0)
    """
    return mul(elu(inp, alpha=SELU_ALPHA), SELU_SCALE)
