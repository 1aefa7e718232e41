"""The logistic function, and activations that weigh a number by it.

In: float tensors; integers become float32. Out: ``sigmoid``, ``hsigmoid``, ``silu``, ``hswish``, ``glu``.
After ``activation``; before ``tensor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..errors import ShapeError, user_place
from ..op import op
from ..types import abstract, normal_axis
from .activation import relu6
from .broadcasting import singles, widened
from .comparison import less
from .elementwise import add, div, mul, neg, sub
from .exponential import exp
from .logic import logical_and
from .rounding import abs
from .select import where

if TYPE_CHECKING:
    from ..tensor import Tensor

FUNCTIONS = ("glu",)


def sigmoid_of(x: np.ndarray) -> np.ndarray:
    """Return the logistic function of a float32 or float64 array; exp sees no positive number."""
    power = np.exp(-np.abs(x))
    return np.where(x < 0, power, x.dtype.type(1)) / (1 + power)


@op(promotes="float")
def sigmoid(x: Tensor) -> Tensor:
    """Map each number to one between 0 and 1: the logistic function.

    ``y = 1 / (1 + e ** -x)``

    Parameters
    ----------
    x : (any shape) any dtype
        Integers and bools are cast to float32.

    Returns
    -------
    (shape of ``x``) its float dtype, or float32

    Raises
    ------
    DTypeError
        ``x`` is no tensor, array or number.

    Notes
    -----
    No overflow for any ``x``: far below 0 it is ``e ** x``. float16 and bfloat16 are computed in
    float32.

    Examples
    --------
    >>> sigmoid(tensor([-10.0, 0.0, 2.0]))
    Tensor([4.539786e-05, 5.000000e-01, 8.807970e-01], dtype=float32, device=ref:0)
    """
    return abstract(x.shape, x.dtype)


sigmoid.inplace = (0,)


@sigmoid.reference
def _(x):
    wide = widened(x)
    with np.errstate(all="ignore"):
        return sigmoid_of(wide).astype(x.dtype)


@sigmoid.gradient
def _(dy, y, x):
    return (mul(dy, mul(y, sub(1.0, y))),)


@sigmoid.lowering
def _(x):
    power = exp(neg(abs(x)))  # at most 1, so nothing overflows
    return div(where(less(x, 0), power, 1.0), add(power, 1.0))


@sigmoid.samples
def _(rng):
    yield from singles(rng, low=-6.0, high=6.0)
    yield (np.array([-80.0, 80.0]),), {}


@op(promotes="float")
def hsigmoid(x: Tensor) -> Tensor:
    """Approximate the logistic function by straight lines.

    ``y = min(max(x + 3, 0), 6) / 6``

    Parameters
    ----------
    x : (any shape) any dtype
        Integers and bools are cast to float32.

    Returns
    -------
    (shape of ``x``) its float dtype, or float32

    Raises
    ------
    DTypeError
        ``x`` is no tensor, array or number.

    Notes
    -----
    The gradient is 0 at -3 and 3. float16 and bfloat16 are computed in float32.

    Sources
    -------
    Howard et al., Searching for MobileNetV3, 2019, arXiv:1905.02244, section 5.2.

    Examples
    --------
    >>> hsigmoid(tensor([-4.0, 0.0, 1.5]))
    Tensor([0.  , 0.5 , 0.75], dtype=float32, device=ref:0)
    """
    return abstract(x.shape, x.dtype)


hsigmoid.inplace = (0,)


@hsigmoid.reference
def _(x):
    wide = widened(x)
    with np.errstate(all="ignore"):
        return (np.minimum(np.maximum(wide + 3, 0), 6) / 6).astype(x.dtype)


@hsigmoid.gradient
def _(dy, y, x):
    inside = logical_and(less(0, y), less(y, 1))
    return (where(inside, mul(dy, 1 / 6), 0),)


@hsigmoid.lowering
def _(x):
    return div(relu6(add(x, 3.0)), 6.0)


@hsigmoid.samples
def _(rng):
    yield from singles(rng, low=-6.0, high=6.0)
    yield (np.array([-80.0, 80.0]),), {}


@op(promotes="float")
def silu(x: Tensor) -> Tensor:
    """Weigh each number by its logistic function.

    ``y = x / (1 + e ** -x)``

    Parameters
    ----------
    x : (any shape) any dtype
        Integers and bools are cast to float32.

    Returns
    -------
    (shape of ``x``) its float dtype, or float32

    Raises
    ------
    DTypeError
        ``x`` is no tensor, array or number.

    Notes
    -----
    float16 and bfloat16 are computed in float32.

    Sources
    -------
    Ramachandran, Zoph and Le, Searching for Activation Functions, 2017, arXiv:1710.05941.

    Examples
    --------
    >>> silu(tensor([-1.0, 0.0, 1.0]))
    Tensor([-0.2689414,  0.       ,  0.7310586], dtype=float32, device=ref:0)
    """
    return abstract(x.shape, x.dtype)


silu.inplace = (0,)


@silu.reference
def _(x):
    wide = widened(x)
    with np.errstate(all="ignore"):
        return (wide * sigmoid_of(wide)).astype(x.dtype)


@silu.gradient
def _(dy, y, x):
    share = sigmoid(x)
    return (mul(dy, mul(share, add(mul(x, sub(1.0, share)), 1.0))),)


@silu.lowering
def _(x):
    return mul(x, sigmoid(x))


@silu.samples
def _(rng):
    yield from singles(rng, low=-6.0, high=6.0)
    yield (np.array([-80.0, 80.0]),), {}


@op(promotes="float")
def hswish(x: Tensor) -> Tensor:
    """Weigh each number by ``hsigmoid``, in place of ``sigmoid``.

    ``y = x * min(max(x + 3, 0), 6) / 6``

    Parameters
    ----------
    x : (any shape) any dtype
        Integers and bools are cast to float32.

    Returns
    -------
    (shape of ``x``) its float dtype, or float32

    Raises
    ------
    DTypeError
        ``x`` is no tensor, array or number.

    Notes
    -----
    At -3 and 3 the gradient is that of the curve between them, -1/2 and 3/2. float16 and bfloat16
    are computed in float32.

    Sources
    -------
    Howard et al., Searching for MobileNetV3, 2019, arXiv:1905.02244, section 5.2.

    Examples
    --------
    >>> hswish(tensor([-4.0, 1.0, 4.0]))
    Tensor([-0.       ,  0.6666667,  4.       ], dtype=float32, device=ref:0)
    """
    return abstract(x.shape, x.dtype)


hswish.inplace = (0,)


@hswish.reference
def _(x):
    wide = widened(x)
    with np.errstate(all="ignore"):
        return (wide * np.minimum(np.maximum(wide + 3, 0), 6) / 6).astype(x.dtype)


@hswish.gradient
def _(dy, y, x):
    slope = where(less(3.0, x), 1, add(mul(x, 1 / 3), 0.5))
    return (mul(dy, where(less(x, -3.0), 0, slope)),)


@hswish.lowering
def _(x):
    return div(mul(x, relu6(add(x, 3.0))), 6.0)


@hswish.samples
def _(rng):
    yield from singles(rng, low=-6.0, high=6.0)
    yield (np.array([-80.0, 80.0]),), {}


def glu(inp: Tensor, axis: int = -1) -> Tensor:
    """Weigh one half of the channels by the logistic function of the other.

    ``y = a * sigmoid(b)``, where ``a`` and ``b`` are the halves of ``inp`` along ``axis``

    Parameters
    ----------
    inp : (..., 2 * c, ...) any dtype
    axis : int, default -1
        The axis to halve.

    Returns
    -------
    (..., c, ...) the float dtype of ``inp``, or float32

    Raises
    ------
    ShapeError
        ``inp`` lacks the axis, or its size there is odd.

    Sources
    -------
    Dauphin et al., Language Modeling with Gated Convolutional Networks, 2017, arXiv:1612.08083.

    Examples
    --------
    >>> glu(tensor([1.0, 2.0, 0.0, 100.0]))
    Tensor([0.5, 2. ], dtype=float32, device=ref:0)
    """
    at = normal_axis(axis, inp.ndim, "glu")
    size = inp.shape[at]
    if size % 2:
        raise ShapeError(
            f"glu: inp has shape {inp.shape}; its size on axis {axis} must be even"
        ).add_place(user_place())
    before = (slice(None),) * at
    return mul(inp[(*before, slice(0, size // 2))], sigmoid(inp[(*before, slice(size // 2, None))]))
