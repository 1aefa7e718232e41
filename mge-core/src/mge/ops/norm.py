"""Normalisation of each sample: by mean and variance over some axes, or by the root mean square.

In: tensors. Out: the ops ``layer_norm`` (over any axes), ``layer_norm_backward`` and ``rms_norm``.
After ``norm_reference``; before ``norm_functions``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..dtype import wide_of
from ..errors import ArgumentError, DTypeError, ShapeError
from ..op import op
from ..types import Shape, abstract, broadcast, normal_axes
from .broadcasting import unbroadcast
from .exponential import rsqrt, square
from .norm_reference import standardized, standardized_backward, wide_array
from .reduction import add_along, converted, mean
from .shape import broadcast_to

if TYPE_CHECKING:
    from ..tensor import Tensor

PRIVATE = ("layer_norm", "layer_norm_backward")


def _checked_axes(where: str, inp: Any, axis: tuple[int, ...], eps: float) -> tuple[int, ...]:
    if not inp.dtype.is_float:
        raise DTypeError(f"{where}: inp is {inp.dtype}; it must be a float tensor")
    if not isinstance(eps, float) or not 0 <= eps < float("inf"):
        raise ArgumentError(
            f"{where}: eps is {eps!r}; it must be a finite number that is at least 0"
        )
    if not isinstance(axis, tuple) or not axis:
        raise ArgumentError(f"{where}: axis is {axis!r}; it must be a tuple of at least one axis")
    axes = normal_axes(axis, inp.ndim, where)
    if any(inp.shape[a] == 0 for a in axes):
        raise ShapeError(
            f"{where}: inp has shape {inp.shape} and axis is {axis}; each mean needs at least 1 element"
        )
    return axes


def _kept(shape: Shape, axes: tuple[int, ...]) -> Shape:
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def _check_affine(where: str, inp: Any, weight: Any, bias: Any = None) -> None:
    for name, type_ in (("weight", weight), ("bias", bias)):
        if type_ is None:
            continue
        if not type_.dtype.is_float:
            raise DTypeError(f"{where}: {name} is {type_.dtype}; it must be a float tensor")
        if broadcast(inp.shape, type_.shape, where=where) != inp.shape:
            raise ShapeError(
                f"{where}: {name} has shape {type_.shape}; it must broadcast to inp, {inp.shape}"
            )
    if bias is not None and bias.shape != weight.shape:
        raise ShapeError(
            f"{where}: weight has shape {weight.shape} and bias has {bias.shape}; they must be equal"
        )


@op(name="layer_norm", autocast="high")
def layer_norm_(
    inp: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    axis: tuple[int, ...],
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    """Bring to zero mean and unit variance over axes, then scale and shift.

    ``y = weight * (inp - mean) / sqrt(var + eps) + bias``

    Parameters
    ----------
    inp : (any shape) float
    weight, bias : (a shape that broadcasts to ``inp``'s) float, optional
        A learned factor and shift, of one shape.
    axis : tuple of int
        The axes over which mean and variance run.
    eps : float, default 1e-5
        Added to the variance, in the units of ``inp**2``.

    Returns
    -------
    y : (shape of ``inp``) dtype of ``inp``
    mean, var : (shape of ``inp`` with 1 for each axis of ``axis``) float32, or float64 for float64
        The variance is biased: the mean of the squared differences to the mean.

    Raises
    ------
    ShapeError
        An axis is missing, named twice or empty, or ``weight`` or ``bias`` does not broadcast to ``inp``.
    ArgumentError
        ``axis`` names none, or ``eps`` is negative.
    DTypeError
        An input is not a float tensor.

    Notes
    -----
    float16 and bfloat16 are computed in float32. The variance takes two passes, so a large mean costs no digits.

    Sources
    -------
    Ba, Kiros and Hinton, Layer Normalization, 2016, arXiv:1607.06450, equations 3 and 4.

    Examples
    --------
    >>> mge.op.OPS["layer_norm"](tensor([[1.0, 3.0]]), axis=(-1,), eps=0.0)
    (Tensor([[-1.,  1.]], ...), Tensor([[2.]], ...), Tensor([[1.]], ...))
    """
    axes = _checked_axes("layer_norm", inp, axis, eps)
    _check_affine("layer_norm", inp, weight, bias)
    statistics = abstract(_kept(inp.shape, axes), wide_of(inp.dtype))
    return abstract(inp.shape, inp.dtype), statistics, statistics


layer_norm_.inplace = (0,)


@layer_norm_.reference
def _(inp, weight=None, bias=None, *, axis, eps):
    return standardized(inp, weight, bias, normal_axes(axis, inp.ndim, "layer_norm"), eps)


@layer_norm_.gradient
def _(dys, ys, inp, *affine, axis, eps):
    # dys[1] and dys[2] come where the statistics are differentiated, as in second order.
    dy, dmean, dvar = dys
    dx, grads = None, [None] * len(affine)
    if dy is not None:
        found = layer_norm_backward(inp, dy, ys[1], ys[2], *affine[:1], axis=axis, eps=eps)
        dx, *found = found if affine else (found,)
        grads = [converted(g, a.dtype) for g, a in zip(found, affine)]
    if dmean is not None or dvar is not None:
        count = inp.size // max(ys[1].size, 1)
        more = 0.0 if dmean is None else dmean
        if dvar is not None:
            more = more + (converted(inp, ys[1].dtype) - ys[1]) * (dvar * 2.0)
        more = converted(more * (1.0 / max(count, 1)), inp.dtype)
        dx = broadcast_to(more, shape=inp.shape) if dx is None else dx + more
    return dx, *grads


@layer_norm_.lowering
def _(inp, weight=None, bias=None, *, axis, eps):
    x = converted(inp, wide_of(inp.dtype))
    average = mean(x, axis=axis, keepdims=True)
    y = x - average
    var = mean(square(y), axis=axis, keepdims=True)
    y = y * rsqrt(var + eps)
    if weight is not None:
        y = y * converted(weight, x.dtype)
    if bias is not None:
        y = y + converted(bias, x.dtype)
    return converted(y, inp.dtype), average, var


@layer_norm_.samples
def _(rng):
    yield (rng.normal(size=(2, 5)),), {"axis": (-1,)}
    yield (
        (rng.normal(size=(2, 4)) + 2.0, rng.normal(size=4), rng.normal(size=4)),
        {"axis": (1,), "eps": 1e-3},
    )
    yield (
        (rng.normal(size=(2, 2, 3)), rng.normal(size=(2, 3)), rng.normal(size=(2, 3))),
        {"axis": (1, 2)},
    )
    yield (
        (rng.normal(size=(2, 3, 4)), rng.normal(size=(3, 1)), rng.normal(size=(3, 1))),
        {"axis": (0, 2)},
    )
    yield (rng.normal(size=(1, 2, 2, 3)), rng.normal(size=(2, 2, 1))), {"axis": (-1, 2), "eps": 0.1}
    yield (rng.normal(size=(0, 3)), rng.normal(size=3)), {"axis": (1,)}


@op(autocast="high")
def layer_norm_backward(
    inp: Tensor,
    dy: Tensor,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None = None,
    *,
    axis: tuple[int, ...],
    eps: float = 1e-5,
) -> tuple[Tensor, ...]:
    """Differentiate ``layer_norm``.

    ``dx = r * (g - mean(g) - z * mean(g * z))``, ``g = weight * dy``, ``z = (inp - mean) * r``,
    ``r = 1 / sqrt(var + eps)``

    Parameters
    ----------
    inp, dy : (any shape) float
    mean, var : (shape of ``inp`` with 1 for each axis of ``axis``) float
        What ``layer_norm`` gave for ``inp``.
    weight : (a shape that broadcasts to ``inp``'s) float, optional
    axis : tuple of int
    eps : float, default 1e-5

    Returns
    -------
    dx : (shape of ``inp``) dtype of ``inp``
    dweight, dbias : (shape of ``weight``) float32, or float64 for float64; only with ``weight``
        ``dy * z`` and ``dy``, summed over the axes along which ``weight`` was repeated.

    Raises
    ------
    ShapeError
        ``dy`` has another shape than ``inp``, or another input does not fit.
    ArgumentError
        ``axis`` names none, or ``eps`` is negative.
    DTypeError
        An input is not a float tensor.

    Notes
    -----
    float16 and bfloat16 are computed in float32.

    Examples
    --------
    >>> x, dy = tensor([[1.0, 3.0, 5.0]]), tensor([[1.0, 0.0, 0.0]])
    >>> layer_norm_backward(x, dy, tensor([[3.0]]), tensor([[1.0]]), axis=(-1,), eps=0.0)
    Tensor([[-0.666..., -0.333...,  1.  ...]], dtype=float32, device=ref:0)
    """
    where = "layer_norm_backward"
    axes = _checked_axes(where, inp, axis, eps)
    if dy.shape != inp.shape or dy.dtype != inp.dtype:
        raise ShapeError(
            f"{where}: inp is {inp} and dy is {dy}; both must have one shape and dtype"
        )
    kept = _kept(inp.shape, axes)
    for name, type_ in (("mean", mean), ("var", var)):
        if not type_.dtype.is_float:
            raise DTypeError(f"{where}: {name} is {type_.dtype}; it must be a float tensor")
        if type_.shape != kept:
            raise ShapeError(
                f"{where}: {name} has shape {type_.shape}; inp {inp.shape} and axis {axis} give {kept}"
            )
    _check_affine(where, inp, weight)
    dx = abstract(inp.shape, inp.dtype)
    if weight is None:
        return dx
    summed = abstract(weight.shape, wide_of(inp.dtype))
    return dx, summed, summed


layer_norm_backward.inplace = (1, 0)


@layer_norm_backward.reference
def _(inp, dy, mean, var, weight=None, *, axis, eps):
    axes = normal_axes(axis, inp.ndim, "layer_norm")
    found = standardized_backward(inp, dy, wide_array(mean), wide_array(var), weight, axes, eps)
    return found[0] if weight is None else found


@layer_norm_backward.lowering
def _(inp, dy, average, var, weight=None, *, axis, eps):
    wide = wide_of(inp.dtype)
    given = converted(dy, wide)
    r = rsqrt(converted(var, wide) + eps)
    z = (converted(inp, wide) - converted(average, wide)) * r
    g = given if weight is None else given * converted(weight, wide)
    dx = r * (g - mean(g, axis=axis, keepdims=True) - z * mean(g * z, axis=axis, keepdims=True))
    dx = converted(dx, inp.dtype)
    if weight is None:
        return dx
    return dx, unbroadcast(given * z, weight), unbroadcast(given, weight)


@layer_norm_backward.samples
def _(rng):
    cases = (
        ((2, 4), None, (-1,)),
        ((3, 4), (4,), (1,)),
        ((2, 3, 2), (3, 1), (0, 2)),
        ((2, 2, 3), (2, 1), (-1,)),
        ((2, 3), (2, 3), (0, 1)),
        ((0, 3), (3,), (1,)),
    )
    for shape, weight, axis in cases:
        kept = _kept(shape, normal_axes(axis, len(shape), "sample"))
        arrays = [
            rng.normal(size=shape),
            rng.normal(size=shape),
            rng.normal(size=kept),
            rng.uniform(0.5, 2.0, size=kept),
        ]
        if weight is not None:
            arrays.append(rng.normal(size=weight))
        yield tuple(arrays), {"axis": axis, "eps": 0.1}


@op(autocast="high")
def rms_norm(inp: Tensor, weight: Tensor | None = None, *, eps: float = 1e-6) -> Tensor:
    """Scale each row of ``inp`` to unit root mean square, then by ``weight``.

    ``y[..., i] = weight[i] * inp[..., i] / sqrt(mean_j(inp[..., j]**2) + eps)``

    Parameters
    ----------
    inp : (..., d) float
        Values to scale. ``d >= 1``.
    weight : (d,) float, optional
        One learned factor for each channel.
    eps : float, default 1e-6
        Added to the mean square, in the units of ``inp**2``. Keeps rows of zeros finite.

    Returns
    -------
    (..., d) dtype of ``inp``

    Raises
    ------
    ShapeError
        ``inp`` has no axis, ``d`` is 0, or ``weight`` is not ``(d,)``.
    ArgumentError
        ``eps`` is negative.
    DTypeError
        An input is not a float tensor.

    Notes
    -----
    float16 and bfloat16 are computed in float32.

    Sources
    -------
    Zhang and Sennrich, Root Mean Square Layer Normalization, NeurIPS 2019, arXiv:1910.07467.

    Examples
    --------
    >>> rms_norm(tensor([3.0, 4.0]), tensor([1.0, 1.0]), eps=0.0)
    Tensor([0.848..., 1.131...], dtype=float32, device=ref:0)
    """
    _checked_axes("rms_norm", inp, (-1,), eps)
    if weight is not None and not weight.dtype.is_float:
        raise DTypeError(f"rms_norm: weight is {weight.dtype}; it must be a float tensor")
    if weight is not None and weight.shape != inp.shape[-1:]:
        raise ShapeError(
            f"rms_norm: weight has shape {weight.shape}; inp of shape {inp.shape} needs {inp.shape[-1:]}"
        )
    return abstract(inp.shape, inp.dtype)


rms_norm.inplace = (0,)


@rms_norm.reference
def _(inp, weight=None, *, eps):
    x = wide_array(inp)
    kind = x.dtype.type
    with np.errstate(all="ignore"):
        mean_square = add_along(np.square(x), (x.ndim - 1,), keepdims=True) / kind(x.shape[-1])
        y = x * (1 / np.sqrt(mean_square + kind(eps)))
        if weight is not None:
            y *= weight
    return y.astype(inp.dtype, copy=False)


@rms_norm.gradient
def _(dy, y, inp, weight=None, *, eps):
    # With r = (mean(x**2) + eps)**-0.5 and g = weight * dy:  dx = r * g - x * r**3 * mean(x * g).
    wide = wide_of(inp.dtype)
    x, given = converted(inp, wide), converted(dy, wide)
    r = rsqrt(mean(square(x), axis=-1, keepdims=True) + eps)
    g = given if weight is None else given * converted(weight, wide)
    z = x * r
    dx = converted(r * (g - z * mean(g * z, axis=-1, keepdims=True)), inp.dtype)
    if weight is None:
        return (dx,)
    return dx, converted(unbroadcast(given * z, weight), weight.dtype)


@rms_norm.lowering
def _(inp, weight=None, *, eps):
    x = converted(inp, wide_of(inp.dtype))
    y = x * rsqrt(mean(square(x), axis=-1, keepdims=True) + eps)
    return converted(y if weight is None else y * converted(weight, x.dtype), inp.dtype)


@rms_norm.samples
def _(rng):
    for shape in [(4,), (2, 3), (2, 1, 5), (0, 3)]:
        yield (rng.normal(size=shape), rng.normal(size=shape[-1:])), {"eps": 1e-6}
    yield (rng.normal(size=(3, 2)),), {}
    yield (np.zeros((2, 3)), np.ones(3)), {"eps": 1e-3}
