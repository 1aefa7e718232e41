"""The error function, and the activation that is made of it.

In: float tensors; integers become float32. Out: ``erf``, ``gelu``.
After ``hyperbolic``; before ``tensor``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ..dtype import wide_of
from ..errors import ArgumentError
from ..op import op
from ..types import abstract
from .broadcasting import singles, widened
from .elementwise import add, mul, neg, sub
from .exponential import exp, square
from .hyperbolic import tanh
from .select import cast

if TYPE_CHECKING:
    from ..tensor import Tensor


# Cody 1969, rational minimax approximations; highest power first.
# |x| < 0.46875: erf(x) = x * P(x**2) / Q(x**2)
_SMALL_P = (
    1.85777706184603153e-1, 3.16112374387056560e0, 1.13864154151050156e2, 3.77485237685302021e2,
    3.20937758913846947e3,
)  # fmt: skip
_SMALL_Q = (
    1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3,
    2.84423683343917062e3,
)  # fmt: skip
# x >= 0.46875: erfc(x) = exp(-x**2) * P(x) / Q(x), which erf = 1 - erfc needs up to x = 6, where erf is 1
_LARGE_P = (
    2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e0, 6.61191906371416295e1,
    2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
    1.23033935479799725e3,
)  # fmt: skip
_LARGE_Q = (
    1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2,
    1.62138957456669019e3, 3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3,
    1.23033935480374942e3,
)  # fmt: skip


def _polynomial(coefficients: tuple[float, ...], x: np.ndarray) -> np.ndarray:
    y = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        y *= x
        y += coefficient
    return y


def erf_of(x: np.ndarray) -> np.ndarray:
    """Return the error function of a float array, computed in float64 to 4 units in the last place."""
    wide = x.astype(np.float64)
    y = np.empty_like(wide)
    small = np.abs(wide) < 0.46875
    inner, outer = wide[small], wide[~small]
    squared = inner * inner
    y[small] = inner * (_polynomial(_SMALL_P, squared) / _polynomial(_SMALL_Q, squared))
    size = np.minimum(np.abs(outer), 6.0)
    erfc = np.exp(-size * size) * (_polynomial(_LARGE_P, size) / _polynomial(_LARGE_Q, size))
    y[~small] = np.copysign(1.0 - erfc, outer)
    return y.astype(x.dtype)


@op(base=True, promotes="float")
def erf(x: Tensor) -> Tensor:
    """Return the error function.

    ``y = 2 / sqrt(pi) * integral from 0 to x of e ** (-t**2) dt``

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
    The reference is within 4 units in the last place of float64.

    Sources
    -------
    W. J. Cody, Rational Chebyshev Approximations for the Error Function, Mathematics of Computation
    23 (1969), 631-637: form and coefficients.

    Examples
    --------
    >>> erf(tensor([0.0, 0.5, -3.0]))
    Tensor([ 0.       ,  0.5204999, -0.9999779], dtype=float32, device=ref:0)
    """
    return abstract(x.shape, x.dtype)


erf.inplace = (0,)
erf.samples(singles)


@erf.reference
def _(x):
    with np.errstate(all="ignore"):
        return erf_of(x)


@erf.gradient
def _(dy, y, x):
    slope = mul(exp(neg(square(x))), 2.0 / math.sqrt(math.pi))
    return (mul(dy, slope),)


@op(promotes="float")
def gelu(inp: Tensor, *, approximate: str = "none") -> Tensor:
    """Weigh each element by the normal distribution's mass below it.

    ``y = inp * (1 + erf(inp / sqrt(2))) / 2``, or for ``"tanh"``
    ``y = inp * (1 + tanh(sqrt(2 / pi) * (inp + 0.044715 * inp**3))) / 2``

    Parameters
    ----------
    inp : (any shape) any dtype
        Integers and bools are cast to float32.
    approximate : {"none", "tanh"}, default "none"

    Returns
    -------
    (shape of ``inp``) its float dtype, or float32

    Raises
    ------
    ArgumentError
        ``approximate`` is neither ``"none"`` nor ``"tanh"``.

    Notes
    -----
    float16 and bfloat16 are computed in float32.

    Sources
    -------
    Hendrycks and Gimpel, Gaussian Error Linear Units, 2016, arXiv:1606.08415.

    Examples
    --------
    >>> gelu(tensor([-1.0, 0.0, 1.0]))
    Tensor([-0.15865526,  0.        ,  0.8413447 ], dtype=float32, device=ref:0)
    >>> gelu(tensor([-1.0, 1.0]), approximate="tanh")
    Tensor([-0.158808,  0.841192], dtype=float32, device=ref:0)
    """
    if approximate not in ("none", "tanh"):
        raise ArgumentError(f"gelu: approximate is {approximate!r}; it must be 'none' or 'tanh'")
    return abstract(inp.shape, inp.dtype)


gelu.inplace = (0,)
_ROOT = math.sqrt(2 / math.pi)
_CUBIC = 0.044715  # Hendrycks and Gimpel, section 2


@gelu.reference
def _(inp, *, approximate):
    with np.errstate(all="ignore"):
        x = widened(inp)
        if approximate == "tanh":
            below = np.tanh(_ROOT * (x + _CUBIC * x**3))
        else:
            below = erf_of(x * math.sqrt(0.5))
        return (0.5 * x * (1 + below)).astype(inp.dtype)


def _mass(x: Tensor, approximate: str) -> Tensor:
    """Return the share of the normal distribution below x, times 2, less 1."""
    if approximate == "tanh":
        return tanh(mul(mul(x, add(mul(square(x), _CUBIC), 1.0)), _ROOT))
    return erf(mul(x, math.sqrt(0.5)))


@gelu.gradient
def _(dy, y, inp, *, approximate):
    x = cast(inp, dtype=wide_of(inp.dtype))
    mass = _mass(x, approximate)
    if approximate == "tanh":
        # d mass / dx = (1 - mass**2) * sqrt(2/pi) * (1 + 3 * 0.044715 * x**2)
        slope = mul(sub(1.0, square(mass)), add(mul(square(x), 3 * _CUBIC * _ROOT), _ROOT))
    else:
        slope = mul(exp(mul(square(x), -0.5)), _ROOT)
    local = mul(add(add(mass, 1.0), mul(x, slope)), 0.5)
    return (mul(dy, cast(local, dtype=inp.dtype)),)


@gelu.lowering
def _(inp, *, approximate):
    x = cast(inp, dtype=wide_of(inp.dtype))
    y = mul(mul(x, 0.5), add(_mass(x, approximate), 1.0))
    return cast(y, dtype=inp.dtype)


@gelu.samples
def _(rng):
    for approximate in ("none", "tanh"):
        for inputs, _ in singles(rng):
            yield inputs, {"approximate": approximate}
