"""Activations that are straight lines in pieces.

In: a tensor, at times a slope or a bound. Out: ``relu`` and its kin, ``hardtanh``, ``hardshrink``, ``softshrink``.
After ``select``; before ``tensor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..errors import ArgumentError, ShapeError
from ..op import op
from ..types import Shape, abstract, broadcast
from .broadcasting import refuse_bool, singles, unbroadcast
from .comparison import less, less_equal
from .elementwise import add, maximum, minimum, mul
from .logic import logical_and
from .rounding import abs
from .select import clip, where
from .shape import reshape

if TYPE_CHECKING:
    from ..tensor import Tensor

FUNCTIONS = ("hardtanh",)


@op
def relu(x: Tensor) -> Tensor:
    """Replace negative values by 0.

    ``y = max(x, 0)``

    Parameters
    ----------
    x : (any shape) float or integer

    Returns
    -------
    (shape of ``x``) dtype of ``x``

    Raises
    ------
    DTypeError
        ``x`` is bool.

    Notes
    -----
    The gradient at 0 is 0. NaN stays NaN.

    Examples
    --------
    >>> relu(tensor([-1.0, 2.0]))
    Tensor([0., 2.], dtype=float32, device=ref:0)
    """
    refuse_bool("relu", x)
    return abstract(x.shape, x.dtype)


relu.inplace = (0,)
relu.samples(singles)


@relu.reference
def _(x, out=None):
    return np.maximum(x, x.dtype.type(0), out=out)


@relu.gradient
def _(dy, y, x):
    return (where(less(0, y), dy, 0),)


@relu.lowering
def _(x):
    return maximum(x, 0)


@op
def relu6(x: Tensor) -> Tensor:
    """Limit values to 0 and 6.

    ``y = min(max(x, 0), 6)``

    Parameters
    ----------
    x : (any shape) float or integer

    Returns
    -------
    (shape of ``x``) dtype of ``x``

    Raises
    ------
    DTypeError
        ``x`` is bool.

    Notes
    -----
    The gradient at 0 and 6 is 0. NaN stays NaN.

    Sources
    -------
    Krizhevsky, Convolutional Deep Belief Networks on CIFAR-10, 2010.

    Examples
    --------
    >>> relu6(tensor([-1.0, 2.0, 7.0]))
    Tensor([0., 2., 6.], dtype=float32, device=ref:0)
    """
    refuse_bool("relu6", x)
    return abstract(x.shape, x.dtype)


relu6.inplace = (0,)


@relu6.reference
def _(x, out=None):
    return np.minimum(np.maximum(x, x.dtype.type(0), out=out), x.dtype.type(6), out=out)


@relu6.gradient
def _(dy, y, x):
    return (where(logical_and(less(0, y), less(y, 6)), dy, 0),)


@relu6.lowering
def _(x):
    return minimum(maximum(x, 0), 6)


@relu6.samples
def _(rng):
    yield from singles(rng, low=-6.0, high=12.0)


@op(promotes="float")
def leaky_relu(inp: Tensor, *, negative_slope: float = 0.01) -> Tensor:
    """Multiply negative values by a slope.

    ``y = inp if inp > 0 else negative_slope * inp``

    Parameters
    ----------
    inp : (any shape) any dtype
        Integers and bools are cast to float32.
    negative_slope : float, default 0.01

    Returns
    -------
    (shape of ``inp``) its float dtype, or float32

    Raises
    ------
    DTypeError
        ``inp`` is no tensor, array or number.

    Notes
    -----
    The gradient at 0 is ``negative_slope``.

    Examples
    --------
    >>> leaky_relu(tensor([-1.0, 2.0]), 0.1)
    Tensor([-0.1,  2. ], dtype=float32, device=ref:0)
    """
    return abstract(inp.shape, inp.dtype)


leaky_relu.inplace = (0,)


@leaky_relu.reference
def _(inp, *, negative_slope):
    with np.errstate(all="ignore"):
        return np.where(inp > 0, inp, inp * inp.dtype.type(negative_slope))


@leaky_relu.gradient
def _(dy, y, inp, *, negative_slope):
    # The result tells the sign, too, and is more often kept for what reads it.
    sign = y if negative_slope > 0 else inp
    return (where(less(0, sign), dy, mul(dy, negative_slope)),)


@leaky_relu.lowering
def _(inp, *, negative_slope):
    return where(less(0, inp), inp, mul(inp, negative_slope))


@leaky_relu.samples
def _(rng):
    for i, (inputs, _) in enumerate(singles(rng)):
        yield inputs, {"negative_slope": (0.01, 0.2, -1.0)[i % 3]}


def _aligned(weight: Shape, inp: Shape) -> Shape:
    """Return the shape in which the weight of ``prelu`` broadcasts with its input."""
    if all(n == 1 for n in weight):
        return ()
    if len(weight) == 1 and len(inp) > 1 and weight[0] == inp[1]:
        return (*weight, *(1 for _ in inp[2:]))
    if len(weight) == len(inp) and broadcast(weight, inp, where="prelu") == inp:
        return weight
    raise ShapeError(
        f"prelu: inp has shape {inp} and weight has {weight}; weight must hold 1 value, or one for each "
        "channel (axis 1 of inp), or broadcast to inp with as many axes"
    )


@op(promotes="float")
def prelu(inp: Tensor, weight: Tensor) -> Tensor:
    """Multiply negative values by a learned slope.

    ``y = inp if inp > 0 else weight * inp``

    Parameters
    ----------
    inp : (n, c, ...) or any shape, any dtype
        Cast with ``weight`` to their common dtype; integers and bools to float32.
    weight : one value, (c,), or a shape with as many axes that broadcasts to ``inp``'s

    Returns
    -------
    (shape of ``inp``) the common float dtype, or float32

    Raises
    ------
    ShapeError
        ``weight`` has none of these shapes.

    Notes
    -----
    The gradient at 0 is ``weight``.

    Sources
    -------
    He et al., Delving Deep into Rectifiers, 2015, arXiv:1502.01852.

    Examples
    --------
    >>> prelu(tensor([-1.0, 2.0]), tensor([0.25]))
    Tensor([-0.25,  2.  ], dtype=float32, device=ref:0)
    """
    _aligned(weight.shape, inp.shape)
    return abstract(inp.shape, inp.dtype)


prelu.inplace = (0,)


@prelu.reference
def _(inp, weight):
    with np.errstate(all="ignore"):
        return np.where(inp > 0, inp, inp * weight.reshape(_aligned(weight.shape, inp.shape)))


@prelu.gradient
def _(dy, y, inp, weight):
    slope = reshape(weight, shape=_aligned(weight.shape, inp.shape))
    positive = less(0, inp)
    dslope = unbroadcast(where(positive, 0, mul(dy, inp)), slope)
    return where(positive, dy, mul(dy, slope)), reshape(dslope, shape=weight.shape)


@prelu.lowering
def _(inp, weight):
    slope = reshape(weight, shape=_aligned(weight.shape, inp.shape))
    return where(less(0, inp), inp, mul(inp, slope))


@prelu.samples
def _(rng):
    shapes = [
        ((2, 3, 2), (3,)),
        ((4,), (1,)),
        ((), ()),
        ((2, 3), (2, 1)),
        ((3,), (1, 1)),
        ((0, 3), (3,)),
    ]
    for inp, weight in shapes:
        yield (rng.uniform(-3.0, 3.0, inp), rng.uniform(0.1, 0.9, weight)), {}


def _check_distance(name: str, lambd: float) -> None:
    if not lambd >= 0:
        raise ArgumentError(f"{name}: lambd is {lambd}; it must be at least 0")


@op(promotes="float")
def hardshrink(inp: Tensor, *, lambd: float = 0.5) -> Tensor:
    """Replace values near 0 by 0.

    ``y = 0 if |inp| <= lambd else inp``

    Parameters
    ----------
    inp : (any shape) any dtype
        Integers and bools are cast to float32.
    lambd : float, default 0.5
        The distance, at least 0.

    Returns
    -------
    (shape of ``inp``) its float dtype, or float32

    Raises
    ------
    ArgumentError
        ``lambd`` is negative.

    Notes
    -----
    The gradient is 0 where ``|inp| <= lambd``. NaN stays NaN.

    Examples
    --------
    >>> hardshrink(tensor([-2.0, 0.25, 1.0]))
    Tensor([-2.,  0.,  1.], dtype=float32, device=ref:0)
    """
    _check_distance("hardshrink", lambd)
    return abstract(inp.shape, inp.dtype)


hardshrink.inplace = (0,)


@hardshrink.reference
def _(inp, *, lambd):
    bound = inp.dtype.type(lambd)
    with np.errstate(all="ignore"):
        return np.where(np.abs(inp) <= bound, inp.dtype.type(0), inp)


@hardshrink.gradient
def _(dy, y, inp, *, lambd):
    return (where(less_equal(abs(inp), lambd), 0, dy),)


@hardshrink.lowering
def _(inp, *, lambd):
    return where(less_equal(abs(inp), lambd), 0, inp)


@hardshrink.samples
def _(rng):
    for inputs, _ in singles(rng):
        yield inputs, {"lambd": 0.8}


@op(promotes="float")
def softshrink(inp: Tensor, *, lambd: float = 0.5) -> Tensor:
    """Move values towards 0 by a step, and those nearer to 0 onto it.

    ``y = inp - min(max(inp, -lambd), lambd)``

    Parameters
    ----------
    inp : (any shape) any dtype
        Integers and bools are cast to float32.
    lambd : float, default 0.5
        The distance, at least 0.

    Returns
    -------
    (shape of ``inp``) its float dtype, or float32

    Raises
    ------
    ArgumentError
        ``lambd`` is negative.

    Notes
    -----
    The gradient is 0 where ``|inp| <= lambd``. NaN stays NaN.

    Examples
    --------
    >>> softshrink(tensor([-2.0, 0.25, 1.0]))
    Tensor([-1.5,  0. ,  0.5], dtype=float32, device=ref:0)
    """
    _check_distance("softshrink", lambd)
    return abstract(inp.shape, inp.dtype)


softshrink.inplace = (0,)


@softshrink.reference
def _(inp, *, lambd):
    bound = inp.dtype.type(lambd)
    with np.errstate(all="ignore"):
        return inp - np.minimum(np.maximum(inp, -bound), bound)


@softshrink.gradient
def _(dy, y, inp, *, lambd):
    return (where(less_equal(abs(inp), lambd), 0, dy),)


@softshrink.lowering
def _(inp, *, lambd):
    return add(inp, mul(clip(inp, -lambd, lambd), -1.0))


@softshrink.samples
def _(rng):
    for inputs, _ in singles(rng):
        yield inputs, {"lambd": 0.8}


def hardtanh(inp: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """Limit values to -1 and 1, or to other bounds.

    ``y = min(max(inp, min_val), max_val)``

    Parameters
    ----------
    inp : (any shape) float or integer
    min_val, max_val : float, default -1 and 1

    Returns
    -------
    (shape of ``inp``) dtype of ``inp``

    Raises
    ------
    ArgumentError
        ``min_val`` is above ``max_val``.
    DTypeError
        ``inp`` is bool, or an integer tensor and a bound is no whole number.

    Notes
    -----
    As ``clip``: the gradient is 1 on the bounds.

    Examples
    --------
    >>> hardtanh(tensor([-2.0, 0.5]))
    Tensor([-1. ,  0.5], dtype=float32, device=ref:0)
    """
    return clip(inp, min_val, max_val)
