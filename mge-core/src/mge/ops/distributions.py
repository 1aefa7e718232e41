"""Gamma and Poisson numbers, by rejection with a fixed number of tries.

In: a generator's state and parameters. Out: the ops ``gamma`` and ``poisson``.
After ``random``; before ``tensor``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ..dtype import DType, as_dtype, float64, wide_of
from ..errors import DTypeError
from ..op import op
from ..types import Type, abstract
from .philox import philox_words
from .random import TWO_PI, check_state, uniform_words, unit_array, unit_tensor

if TYPE_CHECKING:
    from ..tensor import Tensor

PRIVATE = ("gamma", "poisson")

GAMMA_TRIES = 8  # each fails with probability 0.05 at most, all of them with 4e-11
GAMMA_UNITS = 3 * GAMMA_TRIES + 1
POISSON_TRIES = 12  # each fails with probability 0.2 at most, all of them with 4e-9
POISSON_UNITS = 2 * POISSON_TRIES + 1
POISSON_TERMS = (
    64  # the tail beyond them weighs under 1e-27 where inversion is used, for rates below 10
)
TINY = 1e-30


def _check(name: str, state: Tensor | Type, parameter: Tensor | Type) -> Type:
    check_state(state, name)
    if not parameter.dtype.is_float:
        raise DTypeError(f"{name}: the parameter is {parameter.dtype}; it must be a float tensor")
    return abstract(parameter.shape, parameter.dtype)


def gamma_words(size: int, dtype: DType) -> int:
    """Return how many words a gamma draw of ``size`` elements takes."""
    return uniform_words(GAMMA_UNITS * size, wide_of(dtype))


@op
def gamma(state: Tensor, alpha: Tensor) -> Tensor:
    """Return gamma distributed numbers of scale 1.

    ``p(y) = y**(alpha - 1) * exp(-y) / gamma(alpha)``

    Parameters
    ----------
    state : (2,) uint64
        Element ``i`` takes uniform numbers ``25 * i`` to ``25 * i + 24``, of one word each, or two in float64.
    alpha : (any shape) float
        The shape parameter, above 0.

    Returns
    -------
    (shape of ``alpha``) dtype of ``alpha``

    Raises
    ------
    DTypeError
        ``alpha`` is no float tensor, or ``state`` is not uint64.
    ShapeError
        ``state`` is not ``(2,)``.

    Notes
    -----
    8 tries of a rejection method, which all fail once in 10**10 draws; the first then counts. Without gradient.

    Sources
    -------
    Marsaglia and Tsang, A Simple Method for Generating Gamma Variables, ACM TOMS 26(3), 2000.

    Examples
    --------
    >>> gamma(tensor([7, 0], dtype="uint64"), tensor([[1.0, 2.0]])).shape
    (1, 2)
    """
    return _check("gamma", state, alpha)


@gamma.reference
def _(state, alpha):
    wide = wide_of(as_dtype(alpha.dtype))
    kind = wide.dtype.type
    a = alpha.astype(kind).reshape(-1, 1)
    u = unit_array(philox_words(state, gamma_words(a.size, wide)), wide).reshape(
        a.size, GAMMA_UNITS
    )
    tries = u[:, :-1].reshape(a.size, GAMMA_TRIES, 3)
    with np.errstate(all="ignore"):
        d = np.where(a < 1, a + kind(1), a) - kind(1 / 3)
        c = kind(1) / np.sqrt(d * kind(9))
        x = np.sqrt(np.log(kind(1) - tries[..., 0]) * kind(-2)) * np.cos(
            tries[..., 1] * kind(TWO_PI)
        )
        v = c * x + kind(1)
        v = v * v * v
        log_v = np.log(np.maximum(v, kind(TINY)))
        accepted = (v > 0) & (
            np.log(kind(1) - tries[..., 2]) < x * x * kind(0.5) + d - d * v + d * log_v
        )
        first = np.argmax(accepted, axis=1)[:, None]
        y = d * np.maximum(np.take_along_axis(v, first, 1), kind(TINY))
        boost = np.exp(np.log(kind(1) - u[:, -1:]) / a)
        y = np.where(a < 1, y * boost, y)
    return y.reshape(alpha.shape).astype(alpha.dtype)


@gamma.gradient
def _(dy, y, state, alpha):
    return None, None


@gamma.lowering
def _(state, alpha):
    from .comparison import greater, less
    from .discrete_reduction import argmax
    from .elementwise import maximum
    from .exponential import exp, log, sqrt
    from .gather import take_along
    from .logic import logical_and
    from .select import cast, where
    from .shape import reshape
    from .slicing import slice_along
    from .trigonometry import cos

    wide, size = wide_of(alpha.dtype), alpha.size
    a = reshape(cast(alpha, dtype=wide), shape=(size, 1))
    u = reshape(unit_tensor(state, size * GAMMA_UNITS, wide), shape=(size, GAMMA_UNITS))
    tries = reshape(slice_along(u, 1, 0, GAMMA_UNITS - 1), shape=(size, GAMMA_TRIES, 3))
    u1, u2, u3 = (
        reshape(slice_along(tries, 2, i, i + 1), shape=(size, GAMMA_TRIES)) for i in range(3)
    )
    small = less(a, 1.0)
    d = where(small, a + 1.0, a) - 1 / 3
    c = 1.0 / sqrt(d * 9.0)
    x = sqrt(log(1.0 - u1) * -2.0) * cos(u2 * TWO_PI)
    v = c * x + 1.0
    v = v * v * v
    log_v = log(maximum(v, TINY))
    accepted = logical_and(
        greater(v, 0.0), less(log(1.0 - u3), x * x * 0.5 + d - d * v + d * log_v)
    )
    first = reshape(argmax(cast(accepted, dtype="int32"), axis=1), shape=(size, 1))
    y = d * maximum(take_along(v, first, axis=1), TINY)
    boost = exp(log(1.0 - slice_along(u, 1, GAMMA_UNITS - 1, GAMMA_UNITS)) / a)
    return cast(reshape(where(small, y * boost, y), shape=alpha.shape), dtype=alpha.dtype)


@gamma.samples
def _(rng):
    state = np.array([3, 1], np.uint64)
    yield (state, np.array([[0.3, 1.0, 2.5], [0.9, 7.0, 40.0]])), {}
    yield (state, np.array(2.0)), {}
    yield (state, np.zeros((0, 2))), {}


def poisson_words(size: int) -> int:
    """Return how many words a Poisson draw of ``size`` elements takes."""
    return uniform_words(POISSON_UNITS * size, float64)


@op
def poisson(state: Tensor, lam: Tensor) -> Tensor:
    """Return Poisson distributed whole numbers.

    ``p(y) = lam**y * exp(-lam) / y!``

    Parameters
    ----------
    state : (2,) uint64
        Element ``i`` takes words ``50 * i`` to ``50 * i + 49``.
    lam : (any shape) float
        The rate, 0 or more.

    Returns
    -------
    (shape of ``lam``) dtype of ``lam``

    Raises
    ------
    DTypeError
        ``lam`` is no float tensor, or ``state`` is not uint64.
    ShapeError
        ``state`` is not ``(2,)``.

    Notes
    -----
    Computed in float64. Rates below 10: inversion. Others: 12 tries of transformed rejection, which all fail once
    in 10**8 draws at most; the first then counts. Without gradient.

    Sources
    -------
    Hoermann, The Transformed Rejection Method for Generating Poisson Random Variables, Insurance: Mathematics and
    Economics 12(1), 1993, algorithm PTRS and its constants.

    Examples
    --------
    >>> poisson(tensor([7, 0], dtype="uint64"), tensor([0.0, 0.0]))
    Tensor([0., 0.], dtype=float32, device=ref:0)
    """
    return _check("poisson", state, lam)


_TERM = np.arange(POISSON_TERMS, dtype=np.float64)
_LOG_FACTORIAL = np.array([math.lgamma(k + 1) for k in range(POISSON_TERMS)])
_SHIFT = 8


def _stirling(z, log):
    """Return log(gamma(z)) for z above ``_SHIFT``, by Stirling's series (Abramowitz and Stegun 6.1.41)."""
    r = 1.0 / z
    r2 = r * r
    series = r * (1 / 12 - r2 * (1 / 360 - r2 * (1 / 1260 - r2 * (1 / 1680))))
    return (z - 0.5) * log(z) - z + 0.5 * math.log(TWO_PI) + series


def _log_factorial(k, log):
    """Return log(k!) for whole k from 0: gamma(k + 1) = gamma(k + 1 + s) / ((k + 1) ... (k + s))."""
    product = k + 1.0
    for i in range(2, _SHIFT + 1):
        product = product * (k + float(i))
    return _stirling(k + float(_SHIFT + 1), log) - log(product)


@poisson.reference
def _(state, lam):
    size = lam.size
    rate = lam.astype(np.float64).reshape(size, 1)
    u = unit_array(philox_words(state, poisson_words(size)), float64).reshape(size, POISSON_UNITS)
    with np.errstate(all="ignore"):
        cdf = np.cumsum(
            np.exp(_TERM * np.log(np.maximum(rate, TINY)) - rate - _LOG_FACTORIAL), axis=1
        )
        low = np.sum(cdf <= u[:, :1], axis=1, keepdims=True).astype(np.float64)
        big = np.maximum(rate, 10.0)
        b = np.sqrt(big) * 2.53 + 0.931
        a = b * 0.02483 - 0.059
        inv_alpha = 1.1328 / (b - 3.4) + 1.1239
        v_r = 0.9277 - 3.6224 / (b - 2.0)
        tries = u[:, 1:].reshape(size, POISSON_TRIES, 2)
        w, v = tries[..., 0] - 0.5, 1.0 - tries[..., 1]
        us = 0.5 - np.abs(w)
        k = np.floor((a * 2.0 / us + b) * w + big + 0.43)
        quick = (us >= 0.07) & (v <= v_r)
        kept = np.maximum(k, 0.0)
        bound = kept * np.log(big) - big - _log_factorial(kept, np.log)
        slow = np.log(v * inv_alpha / (a / (us * us) + b)) <= bound
        possible = (k >= 0) & ((us >= 0.013) | (v <= us))
        first = np.argmax(quick | (possible & slow), axis=1)[:, None]
        y = np.where(rate < 10.0, low, np.take_along_axis(kept, first, 1))
    return y.reshape(lam.shape).astype(lam.dtype)


@poisson.gradient
def _(dy, y, state, lam):
    return None, None


@poisson.lowering
def _(state, lam):
    from .comparison import greater_equal, less, less_equal
    from .constant import constant
    from .discrete_reduction import argmax
    from .elementwise import maximum
    from .exponential import exp, log, sqrt
    from .gather import take_along
    from .logic import logical_and, logical_or
    from .reduction import sum
    from .rounding import abs, floor
    from .scan import cumsum
    from .select import cast, where
    from .shape import reshape
    from .slicing import slice_along

    size = lam.size
    rate = reshape(cast(lam, dtype=float64), shape=(size, 1))
    u = reshape(unit_tensor(state, size * POISSON_UNITS, float64), shape=(size, POISSON_UNITS))
    term, log_factorial = (
        constant(data=x.tobytes(), shape=(1, POISSON_TERMS), dtype=float64)
        for x in (_TERM, _LOG_FACTORIAL)
    )
    terms = log(maximum(rate, TINY)) * term - rate - log_factorial
    cdf = cumsum(exp(terms), axis=1)
    low = sum(cast(less_equal(cdf, slice_along(u, 1, 0, 1)), dtype=float64), axis=1, keepdims=True)
    big = maximum(rate, 10.0)
    b = sqrt(big) * 2.53 + 0.931
    a = b * 0.02483 - 0.059
    inv_alpha = 1.1328 / (b - 3.4) + 1.1239
    v_r = 0.9277 - 3.6224 / (b - 2.0)
    tries = reshape(slice_along(u, 1, 1, POISSON_UNITS), shape=(size, POISSON_TRIES, 2))
    w, v = (reshape(slice_along(tries, 2, i, i + 1), shape=(size, POISSON_TRIES)) for i in range(2))
    w, v = w - 0.5, 1.0 - v
    us = 0.5 - abs(w)
    k = floor((a * 2.0 / us + b) * w + big + 0.43)
    quick = logical_and(greater_equal(us, 0.07), less_equal(v, v_r))
    kept = maximum(k, 0.0)
    bound = kept * log(big) - big - _log_factorial(kept, log)
    slow = less_equal(log(v * inv_alpha / (a / (us * us) + b)), bound)
    possible = logical_and(
        greater_equal(k, 0.0), logical_or(greater_equal(us, 0.013), less_equal(v, us))
    )
    accepted = logical_or(quick, logical_and(possible, slow))
    first = reshape(argmax(cast(accepted, dtype="int32"), axis=1), shape=(size, 1))
    y = where(less(rate, 10.0), low, take_along(kept, first, axis=1))
    return cast(reshape(y, shape=lam.shape), dtype=lam.dtype)


@poisson.samples
def _(rng):
    state = np.array([3, 1], np.uint64)
    yield (state, np.array([[0.0, 0.5, 3.0], [9.5, 10.5, 80.0]])), {}
    yield (state, np.array(20.0)), {}
    yield (state, np.zeros((0, 2))), {}
