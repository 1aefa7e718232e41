"""Batch normalisation in training with the channels last, and what follows it: a residual and an activation.

In: tensors (..., c). Out: ``x86::batch_norm_moments``, ``x86::batch_norm_apply`` and ``x86::batch_norm_backward``.
Before the pass that makes them of ``batch_norm_train`` and its surroundings. The statistics are an op of their own, so
that a plan which computes the result again reads them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mge import Tensor
from mge.errors import ArgumentError, DTypeError, ShapeError
from mge.ops.batch_norm import check_eps
from mge.ops.norm_reference import standardized, standardized_backward
from mge.plugin import abstract, op

LIMITS = {"": None, "relu": np.inf, "relu6": 6.0}


def _check(where: str, inp: Any, *numbers: Any) -> None:
    """Check the image, and that each of the others holds one number for each channel."""
    if any(t.dtype.name != "float32" for t in (inp, *numbers)):
        raise DTypeError(
            f"{where}: the inputs are {[inp, *numbers]}; this kernel takes float32 alone"
        )
    if not inp.ndim or not inp.size:
        raise ShapeError(
            f"{where}: inp has shape {inp.shape}; statistics need at least 1 element for each channel"
        )
    if any(t.shape != inp.shape[-1:] for t in numbers):
        raise ShapeError(
            f"{where}: the channels' numbers have shapes {[t.shape for t in numbers]}; "
            f"inp of shape {inp.shape} needs {inp.shape[-1:]}"
        )


def _check_attrs(where: str, eps: float, activation: str) -> None:
    if activation not in LIMITS:
        raise ArgumentError(
            f"{where}: activation is {activation!r}; it must be one of {', '.join(map(repr, LIMITS))}"
        )
    check_eps(where, eps)


def _check_like(where: str, inp: Any, name: str, other: Any) -> None:
    if other is not None and (other.shape != inp.shape or other.dtype != inp.dtype):
        raise ShapeError(f"{where}: inp is {inp} and {name} is {other}; both must be the same")


@op(name="x86::batch_norm_moments")
def batch_norm_moments(inp: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the variance of each channel.

    Parameters
    ----------
    inp : (..., c) float32

    Returns
    -------
    mean, var : (c,) float32
        The variance is biased.

    Raises
    ------
    ShapeError
        ``inp`` has no element.
    DTypeError
        ``inp`` is not float32.

    Notes
    -----
    As exact as two passes over the memory; pieces of it take two passes each in the cache.

    Examples
    --------
    >>> mean, var = batch_norm_moments(tensor([[1.0], [3.0]]))
    >>> mean.item(), var.item()
    (2.0, 1.0)
    """
    _check("x86::batch_norm_moments", inp)
    one = abstract(inp.shape[-1:], inp.dtype)
    return one, one


def _rows(inp: np.ndarray) -> tuple[int, ...]:
    return tuple(range(inp.ndim - 1))


@batch_norm_moments.reference
def _(inp):
    _, mean, var = standardized(inp, None, None, _rows(inp), 1.0)
    return mean.reshape(-1), var.reshape(-1)


@batch_norm_moments.samples
def _(rng):
    for shape in [(6, 5), (2, 3, 3, 17), (1, 2, 4, 16)]:
        yield (rng.normal(size=shape).astype(np.float32),), {}


@op(name="x86::batch_norm_apply")
def batch_norm_apply(
    inp: Tensor,
    mean: Tensor,
    var: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None = None,
    *,
    eps: float = 1e-5,
    activation: str = "",
) -> Tensor:
    """Normalise each channel by given statistics; add, and clamp.

    ``y = activation(weight * (inp - mean) / sqrt(var + eps) + bias + residual)``

    Parameters
    ----------
    inp : (..., c) float32
    mean, var : (c,) float32
        Of ``x86::batch_norm_moments``.
    weight, bias : (c,) float32
    residual : shape of ``inp``, float32, optional
    eps : float, default 1e-5
    activation : {"", "relu", "relu6"}

    Returns
    -------
    shape of ``inp``, float32
        May be written over ``residual``, or over ``inp``.

    Raises
    ------
    ShapeError
        ``inp`` has no element, or the shapes do not fit.
    ArgumentError
        The activation is unknown, or ``eps`` is negative.
    DTypeError
        An input is not float32.

    Examples
    --------
    >>> one = tensor([1.0])
    >>> batch_norm_apply(tensor([[1.0], [3.0]]), tensor([2.0]), one, one, tensor([0.0]), eps=0.0).tolist()
    [[-1.0], [1.0]]
    """
    where = "x86::batch_norm_apply"
    _check(where, inp, mean, var, weight, bias)
    _check_attrs(where, eps, activation)
    _check_like(where, inp, "residual", residual)
    return abstract(inp.shape, inp.dtype)


batch_norm_apply.pairs = lambda sig: [(5, 0), (0, 0)] if len(sig.input_types) > 5 else [(0, 0)]


@batch_norm_apply.reference
def _(inp, mean, var, weight, bias, residual=None, *, eps, activation):
    y = (inp - mean) * (weight / np.sqrt(var + np.float32(eps))) + bias
    if residual is not None:
        y = y + residual
    return np.clip(y, 0, LIMITS[activation]) if activation else y


@batch_norm_apply.samples
def _(rng):
    for shape, activation in [((6, 5), ""), ((2, 3, 3, 17), "relu"), ((1, 2, 4, 16), "relu6")]:
        x, residual = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
        mean, weight, bias = (rng.normal(size=shape[-1]).astype(np.float32) for _ in range(3))
        var = rng.uniform(0.5, 2.0, size=shape[-1]).astype(np.float32)
        yield (x, mean, var, weight, bias), {"activation": activation}
        yield (x, mean, var, weight, bias, residual), {"activation": activation, "eps": 0.1}


@op(name="x86::batch_norm_backward")
def batch_norm_backward(
    inp: Tensor,
    dy: Tensor,
    mean: Tensor,
    var: Tensor,
    weight: Tensor,
    bias: Tensor,
    y: Tensor | None = None,
    *,
    eps: float = 1e-5,
    activation: str = "",
    residual: bool = False,
) -> tuple[Tensor, ...]:
    """Differentiate ``x86::batch_norm_apply`` of the statistics of its own input.

    With ``g = dy`` where the activation passed its input on, else 0, ``r = 1 / sqrt(var + eps)`` and
    ``z = (inp - mean) * r``: ``dx = weight * r * (g - mean(g) - z * mean(g * z))``

    Parameters
    ----------
    inp, dy : (..., c) float32
    mean, var : (c,) float32
        What ``x86::batch_norm_moments`` gave for ``inp``.
    weight, bias : (c,) float32
    y : shape of ``inp``, float32, optional
        The result of ``x86::batch_norm_apply``. With a residual and an activation it is needed; without a residual
        the kernel computes again what it needs of it.
    eps : float, default 1e-5
    activation : {"", "relu", "relu6"}
    residual : bool, default False
        There was a residual: return its gradient, too.

    Returns
    -------
    dx : shape of ``inp``, float32
        May be written over ``dy``, with ``residual`` over ``inp``.
    dweight, dbias : (c,) float32
    dresidual : shape of ``inp``, float32
        ``g``; only with ``residual``. May be written over ``dy``.

    Raises
    ------
    ShapeError
        ``inp`` has no element, or the shapes do not fit.
    ArgumentError
        The activation is unknown, ``eps`` is negative, or ``y`` is missing.
    DTypeError
        An input is not float32.

    Examples
    --------
    >>> x, dy, one = tensor([[1.0], [3.0], [5.0]]), tensor([[1.0], [0.0], [0.0]]), tensor([1.0])
    >>> batch_norm_backward(x, dy, tensor([3.0]), one, one, tensor([0.0]), eps=0.0)[2]
    Tensor([1.], ...)
    """
    where = "x86::batch_norm_backward"
    _check(where, inp, mean, var, weight, bias)
    _check_attrs(where, eps, activation)
    _check_like(where, inp, "dy", dy)
    _check_like(where, inp, "y", y)
    if residual and activation and y is None:
        raise ArgumentError(
            f"{where}: residual is True and activation is {activation!r}, and y is not given; "
            "what the activation passed on depends on the residual"
        )
    image, one = abstract(inp.shape, inp.dtype), abstract(inp.shape[-1:], inp.dtype)
    return (image, one, one, image) if residual else (image, one, one)


batch_norm_backward.pairs = lambda sig: [(0, 0), (1, 3)] if len(sig.types) > 3 else [(1, 0)]


@batch_norm_backward.reference
def _(inp, dy, mean, var, weight, bias, y=None, *, eps, activation, residual):
    g = dy
    if activation:
        if y is None:
            y = (inp - mean) * (weight / np.sqrt(var + np.float32(eps))) + bias
        g = np.where((y > 0) & (y < LIMITS[activation]), dy, np.float32(0))
    shape = (1,) * (inp.ndim - 1) + mean.shape
    mean, var, weight = mean.reshape(shape), var.reshape(shape), weight.reshape(shape)
    dx, dweight, dbias = standardized_backward(inp, g, mean, var, weight, _rows(inp), eps)
    found = dx, dweight.reshape(-1), dbias.reshape(-1)
    return (*found, g) if residual else found


@batch_norm_backward.samples
def _(rng):
    for shape, activation in [((6, 5), ""), ((2, 3, 3, 17), "relu"), ((1, 2, 4, 16), "relu6")]:
        x, dy, y = (rng.normal(size=shape).astype(np.float32) for _ in range(3))
        mean, weight, bias = (rng.normal(size=shape[-1]).astype(np.float32) for _ in range(3))
        var = rng.uniform(0.5, 2.0, size=shape[-1]).astype(np.float32)
        attrs = {"activation": activation, "eps": 0.1}
        yield (x, dy, mean, var, weight, bias), attrs
        yield (x, dy, mean, var, weight, bias, y * 4), {**attrs, "residual": True}
