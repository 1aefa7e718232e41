"""Smooth forms of relu and of the sign, and the logarithm of the logistic function.

In: float tensors; integers become float32. Out: ``softplus``, ``logsigmoid``, ``mish``, ``softsign``.
After ``sigmoid``; before ``tensor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..op import op
from ..types import abstract
from .broadcasting import singles, widened
from .elementwise import add, div, maximum, minimum, mul, neg, sub
from .exponential import exp, log1p
from .hyperbolic import tanh
from .rounding import abs
from .sigmoid import sigmoid

if TYPE_CHECKING:
    from ..tensor import Tensor


def softplus_of(x: np.ndarray) -> np.ndarray:
    """Return log(1 + e**x) of a float32 or float64 array; exp sees no positive number."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


@op(promotes="float", autocast="high")
def softplus(inp: Tensor) -> Tensor:
    """Return a smooth form of ``relu``.

    ``y = log(1 + e ** inp)``

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

    Notes
    -----
    No overflow for any ``inp``. float16 and bfloat16 are computed in float32.

    Examples
    --------
    >>> softplus(tensor([-1.0, 0.0, 100.0]))
    Tensor([  0.31326163,   0.6931472 , 100.        ], dtype=float32, device=ref:0)
    """
    return abstract(inp.shape, inp.dtype)


softplus.inplace = (0,)


@softplus.reference
def _(inp):
    wide = widened(inp)
    with np.errstate(all="ignore"):
        return softplus_of(wide).astype(inp.dtype)


@softplus.gradient
def _(dy, y, inp):
    return (mul(dy, sigmoid(inp)),)


@softplus.lowering
def _(inp):
    return add(maximum(inp, 0), log1p(exp(neg(abs(inp)))))


@softplus.samples
def _(rng):
    yield from singles(rng, low=-6.0, high=6.0)
    yield (np.array([-80.0, 80.0]),), {}


@op(promotes="float", autocast="high")
def logsigmoid(inp: Tensor) -> Tensor:
    """Return the logarithm of the logistic function.

    ``y = -log(1 + e ** -inp)``

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

    Notes
    -----
    Exact also where ``sigmoid`` is 0 or 1 after rounding. float16 and bfloat16 are computed in
    float32.

    Examples
    --------
    >>> logsigmoid(tensor([-100.0, 0.0, 1.0]))
    Tensor([-100.        ,   -0.6931472 ,   -0.31326163], dtype=float32, device=ref:0)
    """
    return abstract(inp.shape, inp.dtype)


logsigmoid.inplace = (0,)


@logsigmoid.reference
def _(inp):
    wide = widened(inp)
    with np.errstate(all="ignore"):
        return (-softplus_of(-wide)).astype(inp.dtype)


@logsigmoid.gradient
def _(dy, y, inp):
    return (mul(dy, sigmoid(neg(inp))),)


@logsigmoid.lowering
def _(inp):
    return sub(minimum(inp, 0), log1p(exp(neg(abs(inp)))))


@logsigmoid.samples
def _(rng):
    yield from singles(rng, low=-6.0, high=6.0)
    yield (np.array([-80.0, 80.0]),), {}


@op(promotes="float")
def mish(inp: Tensor) -> Tensor:
    """Weigh each number by the hyperbolic tangent of its ``softplus``.

    ``y = inp * tanh(log(1 + e ** inp))``

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

    Notes
    -----
    float16 and bfloat16 are computed in float32.

    Sources
    -------
    Misra, Mish: A Self Regularized Non-Monotonic Activation Function, 2019, arXiv:1908.08681.

    Examples
    --------
    >>> mish(tensor([-1.0, 0.0, 1.0]))
    Tensor([-0.3034014,  0.       ,  0.8650984], dtype=float32, device=ref:0)
    """
    return abstract(inp.shape, inp.dtype)


mish.inplace = (0,)


@mish.reference
def _(inp):
    wide = widened(inp)
    with np.errstate(all="ignore"):
        return (wide * np.tanh(softplus_of(wide))).astype(inp.dtype)


@mish.lowering
def _(inp):
    return mul(inp, tanh(softplus(inp)))


@mish.samples
def _(rng):
    yield from singles(rng, low=-6.0, high=6.0)
    yield (np.array([-80.0, 80.0]),), {}


@op(promotes="float")
def softsign(inp: Tensor) -> Tensor:
    """Divide each number by 1 plus its size.

    ``y = inp / (1 + |inp|)``

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

    Notes
    -----
    float16 and bfloat16 are computed in float32.

    Examples
    --------
    >>> softsign(tensor([-1.0, 0.0, 3.0]))
    Tensor([-0.5 ,  0.  ,  0.75], dtype=float32, device=ref:0)
    """
    return abstract(inp.shape, inp.dtype)


softsign.inplace = (0,)


@softsign.reference
def _(inp):
    wide = widened(inp)
    with np.errstate(all="ignore"):
        return (wide / (1 + np.abs(wide))).astype(inp.dtype)


@softsign.lowering
def _(inp):
    return div(inp, add(abs(inp), 1.0))


@softsign.samples
def _(rng):
    yield from singles(rng, low=-6.0, high=6.0)
    yield (np.array([-80.0, 80.0]),), {}
