"""Which numbers are finite, infinite, or none at all.

In: one tensor. Out: the masks ``isnan``, ``isinf``, ``isfinite``.
After ``rounding``; before ``tensor``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ..dtype import bool_
from ..op import op
from ..types import abstract
from .broadcasting import Samples, no_gradient, singles
from .comparison import equal, less, not_equal
from .rounding import abs

if TYPE_CHECKING:
    from ..tensor import Tensor


def _odd_values(rng: np.random.Generator) -> Samples:
    yield from singles(rng)
    yield (np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38], np.float32),), {}


@op
def isnan(inp: Tensor) -> Tensor:
    """Tell which elements are NaN.

    ``y = (inp is NaN)``

    Parameters
    ----------
    inp : (any shape) any dtype

    Returns
    -------
    (shape of ``inp``) bool

    Raises
    ------
    DTypeError
        ``inp`` is no tensor, array or number.

    Notes
    -----
    Integers and bools are always finite.

    Examples
    --------
    >>> isnan(tensor([1.0, float("inf"), float("nan")]))
    Tensor([False, False,  True], dtype=bool, device=ref:0)
    """
    return abstract(inp.shape, bool_)


isnan.reference(np.isnan)
isnan.gradient(no_gradient)
isnan.samples(_odd_values)


@isnan.lowering
def _(inp):
    return not_equal(inp, inp)


@op
def isinf(inp: Tensor) -> Tensor:
    """Tell which elements are infinite.

    ``y = (|inp| is infinity)``

    Parameters
    ----------
    inp : (any shape) any dtype

    Returns
    -------
    (shape of ``inp``) bool

    Raises
    ------
    DTypeError
        ``inp`` is no tensor, array or number.

    Notes
    -----
    Integers and bools are always finite.

    Examples
    --------
    >>> isinf(tensor([1.0, float("inf"), float("nan")]))
    Tensor([False,  True, False], dtype=bool, device=ref:0)
    """
    return abstract(inp.shape, bool_)


isinf.reference(np.isinf)
isinf.gradient(no_gradient)
isinf.samples(_odd_values)


@isinf.lowering
def _(inp):
    return equal(abs(inp), math.inf)


@op
def isfinite(inp: Tensor) -> Tensor:
    """Tell which elements are neither infinite nor NaN.

    ``y = (|inp| < infinity)``

    Parameters
    ----------
    inp : (any shape) any dtype

    Returns
    -------
    (shape of ``inp``) bool

    Raises
    ------
    DTypeError
        ``inp`` is no tensor, array or number.

    Notes
    -----
    Integers and bools are always finite.

    Examples
    --------
    >>> isfinite(tensor([1.0, float("inf"), float("nan")]))
    Tensor([ True, False, False], dtype=bool, device=ref:0)
    """
    return abstract(inp.shape, bool_)


isfinite.reference(np.isfinite)
isfinite.gradient(no_gradient)
isfinite.samples(_odd_values)


@isfinite.lowering
def _(inp):
    return less(abs(inp), math.inf)
