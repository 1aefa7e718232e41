"""Batch normalisation: the ops of training and of inference, and running statistics.

In: tensors (n, c, ...). Out: the ops ``batch_norm_train``, ``batch_norm_backward``, ``batch_norm_infer``,
``moving_average``; the functions ``batch_norm`` and ``sync_batch_norm``.
After ``norm_reference``; before ``tensor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..dtype import wide_of
from ..errors import ArgumentError, DTypeError, ShapeError
from ..op import op
from ..types import Shape, Type, abstract
from .exponential import rsqrt, square
from .norm_reference import standardized, standardized_backward, wide_array
from .reduction import converted, mean, sum
from .shape import broadcast_to, reshape

if TYPE_CHECKING:
    from ..tensor import Tensor

PRIVATE = ("batch_norm_train", "batch_norm_backward", "batch_norm_infer", "moving_average")
FUNCTIONS = ("batch_norm", "sync_batch_norm")


def _axes(ndim: int) -> tuple[int, ...]:
    """Return the axes over which statistics run: all but the channels."""
    return (0, *range(2, ndim))


def _per_channel(ndim: int, c: int) -> Shape:
    return (1, c, *(1,) * (ndim - 2))


def _check_input(where: str, inp: Type) -> None:
    if not inp.dtype.is_float:
        raise DTypeError(f"{where}: inp is {inp.dtype}; it must be a float tensor")
    if inp.ndim < 2:
        raise ShapeError(f"{where}: inp has shape {inp.shape}; it must be (n, channels, ...)")


def _check_channels(where: str, inp: Type, **given: Type | None) -> None:
    """Check that each tensor is float and holds one number for each channel: (c,) or (1, c, 1, ...)."""
    c = inp.shape[1]
    for name, type_ in given.items():
        if type_ is None:
            continue
        if not type_.dtype.is_float:
            raise DTypeError(f"{where}: {name} is {type_.dtype}; it must be a float tensor")
        if type_.shape != (c,) and not (type_.size == c and type_.shape[:2] == (1, c)):
            raise ShapeError(
                f"{where}: {name} has shape {type_.shape}; inp of shape {inp.shape} needs ({c},) "
                f"or {_per_channel(inp.ndim, c)}",
                hint="axis 1 of inp holds the channels",
            )


def _check_not_empty(where: str, inp: Type) -> None:
    if inp.size == 0:
        raise ShapeError(
            f"{where}: inp has shape {inp.shape}; statistics of a batch need at least 1 element for each channel"
        )


@op(autocast="high")
def batch_norm_train(
    inp: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise each channel by its mean and variance in this batch.

    ``y[n, c, p] = weight[c] * (inp[n, c, p] - mean[c]) / sqrt(var[c] + eps) + bias[c]``

    Parameters
    ----------
    inp : (n, c, ...) float
    weight, bias : (c,) or (1, c, 1, ...) float, optional
        A learned factor and shift for each channel.
    eps : float, default 1e-5
        Added to the variance, in the units of ``inp**2``.

    Returns
    -------
    y : (n, c, ...) dtype of ``inp``
    mean, var : (c,) float32, or float64 for float64
        Of each channel. The variance is biased: the mean of the squared differences to the mean.

    Raises
    ------
    ShapeError
        ``inp`` has less than two axes or no element, or ``weight`` or ``bias`` has not one number for each channel.
    DTypeError
        An input is not a float tensor.

    Notes
    -----
    float16 and bfloat16 are computed in float32. The variance takes two passes, so a large mean costs no digits.

    Sources
    -------
    Ioffe and Szegedy, Batch Normalization, ICML 2015, arXiv:1502.03167, algorithm 1.

    Examples
    --------
    >>> y, mean, var = batch_norm_train(tensor([[1.0], [3.0]]), eps=0.0)
    >>> y, mean, var
    (Tensor([[-1.],
           [ 1.]], dtype=float32, device=ref:0), Tensor([2.], ...), Tensor([1.], ...))
    """
    _check_input("batch_norm_train", inp)
    _check_channels("batch_norm_train", inp, weight=weight, bias=bias)
    _check_not_empty("batch_norm_train", inp)
    _check_eps("batch_norm_train", eps)
    statistics = abstract((inp.shape[1],), wide_of(inp.dtype))
    return abstract(inp.shape, inp.dtype), statistics, statistics


def _check_eps(where: str, eps: float) -> None:
    if not isinstance(eps, float) or not 0 <= eps < float("inf"):
        raise ArgumentError(f"{where}: eps is {eps!r}; it must be a finite number that is at least 0")


def _shaped(x: np.ndarray | None, like: np.ndarray) -> np.ndarray | None:
    return None if x is None else x.reshape(_per_channel(like.ndim, like.shape[1]))


@batch_norm_train.reference
def _(inp, weight=None, bias=None, *, eps):
    y, mean, var = standardized(inp, _shaped(weight, inp), _shaped(bias, inp), _axes(inp.ndim), eps)
    return y, mean.reshape(-1), var.reshape(-1)


@batch_norm_train.gradient
def _(dys, ys, inp, *affine, eps):
    # dys[1] and dys[2] come where the statistics are differentiated, as in second order.
    dy, dmean, dvar = dys
    dx, grads = None, [None] * len(affine)
    if dy is not None:
        found = batch_norm_backward(inp, dy, ys[1], ys[2], *affine[:1], eps=eps)
        dx, *found = found if affine else (found,)
        grads = [converted(reshape(g, shape=a.shape), a.dtype) for g, a in zip(found, affine)]
    if dmean is not None or dvar is not None:
        shape, count = _per_channel(inp.ndim, inp.shape[1]), inp.size // inp.shape[1]
        more = 0.0 if dmean is None else reshape(dmean, shape=shape)
        if dvar is not None:
            more = more + (converted(inp, ys[1].dtype) - reshape(ys[1], shape=shape)) * reshape(dvar * 2.0, shape=shape)
        more = converted(more * (1.0 / count), inp.dtype)
        dx = broadcast_to(more, shape=inp.shape) if dx is None else dx + more
    return dx, *grads


@batch_norm_train.lowering
def _(inp, weight=None, bias=None, *, eps):
    x, axes = converted(inp, wide_of(inp.dtype)), _axes(inp.ndim)
    average = mean(x, axis=axes, keepdims=True)
    y = x - average
    var = mean(square(y), axis=axes, keepdims=True)
    y = y * _scale(var, weight, eps, average)
    if bias is not None:
        y = y + _flat(bias, average)
    shape = (inp.shape[1],)
    return converted(y, inp.dtype), reshape(average, shape=shape), reshape(var, shape=shape)


def _flat(x: Tensor, like: Tensor) -> Tensor:
    """Return one number for each channel in the shape and dtype of ``like``."""
    x = converted(x, like.dtype)
    return x if x.shape == like.shape else reshape(x, shape=like.shape)


def _scale(var: Tensor, weight: Tensor | None, eps: float, like: Tensor) -> Tensor:
    scale = rsqrt(var + eps)
    return scale if weight is None else scale * _flat(weight, like)


@batch_norm_train.samples
def _(rng):
    yield (rng.normal(size=(5, 2)),), {"eps": 1e-5}
    yield (rng.normal(size=(2, 3, 4)) + 2.0, rng.normal(size=3), rng.normal(size=3)), {"eps": 1e-3}
    yield (rng.normal(size=(2, 2, 2, 3)), rng.normal(size=(1, 2, 1, 1)), rng.normal(size=(1, 2, 1, 1))), {}
    yield (rng.normal(size=(1, 2, 2, 1, 2)), rng.normal(size=2)), {"eps": 0.1}
    yield (rng.normal(size=(1, 3)),), {"eps": 1.0}


@op(autocast="high")
def batch_norm_backward(
    inp: Tensor, dy: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None = None, *, eps: float = 1e-5
) -> tuple[Tensor, ...]:
    """Differentiate ``batch_norm_train``.

    ``dx = weight * r * (dy - mean(dy) - z * mean(dy * z))``, ``z = (inp - mean) * r``, ``r = 1 / sqrt(var + eps)``

    Parameters
    ----------
    inp, dy : (n, c, ...) float
    mean, var : (c,) float
        What ``batch_norm_train`` gave for ``inp``.
    weight : (c,) or (1, c, 1, ...) float, optional
    eps : float, default 1e-5

    Returns
    -------
    dx : (n, c, ...) dtype of ``inp``
    dweight, dbias : (c,) float32, or float64 for float64; only with ``weight``
        ``sum(dy * z)`` and ``sum(dy)`` over all axes but the channels.

    Raises
    ------
    ShapeError
        ``dy`` has another shape than ``inp``, or another input has not one number for each channel.
    DTypeError
        An input is not a float tensor.

    Notes
    -----
    float16 and bfloat16 are computed in float32.

    Examples
    --------
    >>> x, dy = tensor([[1.0], [3.0], [5.0]]), tensor([[1.0], [0.0], [0.0]])
    >>> y, mean, var = batch_norm_train(x, eps=0.0)
    >>> batch_norm_backward(x, dy, mean, var, eps=0.0).numpy().round(4).ravel().tolist()
    [0.10209999978542328, -0.20409999787807465, 0.10209999978542328]
    """
    where = "batch_norm_backward"
    _check_input(where, inp)
    if dy.shape != inp.shape or dy.dtype != inp.dtype:
        raise ShapeError(f"{where}: inp is {inp} and dy is {dy}; both must have one shape and dtype")
    _check_channels(where, inp, mean=mean, var=var, weight=weight)
    _check_not_empty(where, inp)
    _check_eps(where, eps)
    dx = abstract(inp.shape, inp.dtype)
    statistics = abstract((inp.shape[1],), wide_of(inp.dtype))
    return dx if weight is None else (dx, statistics, statistics)


@batch_norm_backward.reference
def _(inp, dy, mean, var, weight=None, *, eps):
    mean, var, weight = (None if a is None else wide_array(_shaped(a, inp)) for a in (mean, var, weight))
    dx, *more = standardized_backward(inp, dy, mean, var, weight, _axes(inp.ndim), eps)
    return (dx, *(m.reshape(-1) for m in more)) if more else dx


@batch_norm_backward.lowering
def _(inp, dy, mean, var, weight=None, *, eps):
    wide, axes = wide_of(inp.dtype), _axes(inp.ndim)
    shape, count = _per_channel(inp.ndim, inp.shape[1]), inp.size // inp.shape[1]
    x, g = converted(inp, wide), converted(dy, wide)
    mean, var = (reshape(converted(a, wide), shape=shape) for a in (mean, var))
    r = rsqrt(var + eps)
    z = (x - mean) * r
    dbias, dweight = sum(g, axis=axes, keepdims=True), sum(g * z, axis=axes, keepdims=True)
    scale = r if weight is None else r * _flat(weight, mean)
    dx = converted(scale * (g - (dbias + z * dweight) * (1.0 / count)), inp.dtype)
    if weight is None:
        return dx
    return dx, reshape(dweight, shape=(inp.shape[1],)), reshape(dbias, shape=(inp.shape[1],))


@batch_norm_backward.samples
def _(rng):
    def statistics(c):
        return rng.normal(size=c), rng.uniform(0.5, 2.0, size=c)

    yield (rng.normal(size=(5, 2)), rng.normal(size=(5, 2)), *statistics(2)), {"eps": 1e-5}
    shape = (2, 3, 2, 2)
    yield (rng.normal(size=shape), rng.normal(size=shape), *statistics(3), rng.normal(size=3)), {"eps": 0.1}
    shape = (2, 2, 3)
    yield (rng.normal(size=shape), rng.normal(size=shape), *statistics(2), rng.normal(size=(1, 2, 1))), {}


@op(autocast="high")
def batch_norm_infer(
    inp: Tensor,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each channel by a given mean and variance.

    ``y[n, c, p] = weight[c] * (inp[n, c, p] - mean[c]) / sqrt(var[c] + eps) + bias[c]``

    Parameters
    ----------
    inp : (n, c, ...) float
    mean, var : (c,) or (1, c, 1, ...) float
    weight, bias : (c,) or (1, c, 1, ...) float, optional
        A learned factor and shift for each channel.
    eps : float, default 1e-5
        Added to the variance, in the units of ``inp**2``.

    Returns
    -------
    (n, c, ...) dtype of ``inp``

    Raises
    ------
    ShapeError
        ``inp`` has less than two axes, or another input has not one number for each channel.
    DTypeError
        An input is not a float tensor.

    Notes
    -----
    Computed as ``inp * scale + shift``; the two depend on parameters only, so a compiled plan computes them once.
    float16 and bfloat16 are computed in float32.

    Examples
    --------
    >>> batch_norm_infer(tensor([[1.0], [3.0]]), tensor([2.0]), tensor([4.0]), eps=0.0)
    Tensor([[-0.5],
           [ 0.5]], dtype=float32, device=ref:0)
    """
    _check_input("batch_norm_infer", inp)
    _check_channels("batch_norm_infer", inp, mean=mean, var=var, weight=weight, bias=bias)
    _check_eps("batch_norm_infer", eps)
    return abstract(inp.shape, inp.dtype)


@batch_norm_infer.reference
def _(inp, mean, var, weight=None, bias=None, *, eps, out):
    x = wide_array(inp)
    mean, var, weight, bias = (
        None if a is None else _shaped(a, inp).astype(x.dtype, copy=False) for a in (mean, var, weight, bias)
    )
    with np.errstate(all="ignore"):
        scale = 1 / np.sqrt(var + x.dtype.type(eps))
        if weight is not None:
            scale = scale * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        y = np.multiply(x, scale, out=out if out.dtype == x.dtype else None)
        np.add(y, shift, out=out, casting="same_kind")


@batch_norm_infer.lowering
def _(inp, mean, var, weight=None, bias=None, *, eps):
    x = converted(inp, wide_of(inp.dtype))
    like = abstract(_per_channel(inp.ndim, inp.shape[1]), x.dtype)
    scale = _scale(_flat(var, like), weight, eps, like)
    shift = _flat(mean, like) * scale
    shift = -shift if bias is None else _flat(bias, like) - shift
    return converted(x * scale + shift, inp.dtype)


@batch_norm_infer.samples
def _(rng):
    yield (rng.normal(size=(3, 2)), rng.normal(size=2), rng.uniform(0.5, 2.0, size=2)), {"eps": 1e-5}
    for shape, one in (((2, 3, 2), (3,)), ((1, 2, 2, 3), (1, 2, 1, 1)), ((0, 2, 3), (2,))):
        given = (rng.normal(size=one), rng.uniform(0.5, 2.0, size=one), rng.normal(size=one), rng.normal(size=one))
        yield (rng.normal(size=shape), *given), {"eps": 0.1}


@op
def moving_average(average: Tensor, value: Tensor, *, momentum: float, factor: float = 1.0) -> Tensor:
    """Move a running average towards a new value.

    ``y = momentum * average + (1 - momentum) * factor * value``

    Parameters
    ----------
    average : (any shape) float
    value : as many elements, float
    momentum : float, 0 to 1
        The share of the old average.
    factor : float, default 1
        Applied to ``value`` first, as ``n / (n - 1)`` that makes a variance unbiased.

    Returns
    -------
    (shape of ``average``) dtype of ``average``

    Raises
    ------
    ShapeError
        The numbers of elements differ.
    ArgumentError
        ``momentum`` is not from 0 to 1.
    DTypeError
        An input is not a float tensor.

    Notes
    -----
    No gradient flows through it: a running average is a record, not a part of the model.

    Examples
    --------
    >>> moving_average(tensor([1.0]), tensor([5.0]), momentum=0.75)
    Tensor([2.], dtype=float32, device=ref:0)
    """
    if not average.dtype.is_float or not value.dtype.is_float:
        raise DTypeError(f"moving_average: average is {average.dtype} and value is {value.dtype}; both must be float")
    if average.size != value.size:
        raise ShapeError(
            f"moving_average: average has shape {average.shape} and value has {value.shape}; "
            "both must have as many elements"
        )
    if not isinstance(momentum, float) or not isinstance(factor, float) or not 0 <= momentum <= 1:
        raise ArgumentError(f"moving_average: momentum is {momentum!r}; it must be a number from 0 to 1")
    return abstract(average.shape, average.dtype)


moving_average.inplace = (0,)


@moving_average.reference
def _(average, value, *, momentum, factor, out):
    old, new = wide_array(average), wide_array(value).reshape(average.shape)
    kind = np.result_type(old, new).type
    np.add(old * kind(momentum), new * kind((1 - momentum) * factor), out=out, casting="same_kind")


@moving_average.gradient
def _(dy, y, average, value, **attrs):
    return None, None


@moving_average.lowering
def _(average, value, *, momentum, factor):
    wide = wide_of(average.dtype)
    new = reshape(converted(value, wide), shape=average.shape)
    return converted(converted(average, wide) * momentum + new * ((1 - momentum) * factor), average.dtype)


@moving_average.samples
def _(rng):
    yield (rng.normal(size=3), rng.normal(size=3)), {"momentum": 0.9}
    yield (rng.normal(size=(1, 2, 1, 1)), rng.normal(size=2)), {"momentum": 0.75, "factor": 1.5}
    yield (rng.normal(size=(0,)), rng.normal(size=(0, 2))), {"momentum": 0.5}


def batch_norm(
    inp: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    training: bool = False,
    momentum: float = 0.9,
    eps: float = 1e-5,
    inplace: bool = True,
    compute_mode: str = "default",
) -> Any:
    """Normalise each channel, by this batch in training and by running statistics otherwise.

    ``y[n, c, p] = weight[c] * (inp[n, c, p] - mean[c]) / sqrt(var[c] + eps) + bias[c]``

    Parameters
    ----------
    inp : (n, c, ...) float
    running_mean, running_var : (c,) or (1, c, 1, ...) float, optional
        Needed unless ``training``. In training they become
        ``momentum * running + (1 - momentum) * batch``, with the unbiased variance of the batch.
    weight, bias : (c,) or (1, c, 1, ...) float, optional
        A learned factor and shift for each channel; by default 1 and 0.
    training : bool, default False
        Use the mean and variance of ``inp``, and update the running ones.
    momentum : float, 0 to 1, default 0.9
        The share of the old running value. PyTorch's ``momentum`` is ``1 - momentum``.
    eps : float, default 1e-5
        Added to the variance, in the units of ``inp**2``.
    inplace : bool, default True
        Rebind ``running_mean`` and ``running_var``; else return new ones.
    compute_mode : {"default", "float32"}
        float16 and bfloat16 are computed in float32 either way.

    Returns
    -------
    (n, c, ...) dtype of ``inp``
        With ``training``, running statistics and not ``inplace``: a tuple of it and the two new statistics.

    Raises
    ------
    ShapeError
        ``inp`` has less than two axes, another input has not one number for each channel, or there is no element
        to train with.
    ArgumentError
        Running statistics are missing though ``training`` is False, or ``momentum`` or ``eps`` is out of its range.
    DTypeError
        An input is not a float tensor.

    Notes
    -----
    Of a single element for each channel the variance is 0, also in ``running_var``.

    Sources
    -------
    Ioffe and Szegedy, Batch Normalization, ICML 2015, arXiv:1502.03167, algorithms 1 and 2.

    Examples
    --------
    >>> mean, var = tensor([0.0]), tensor([1.0])
    >>> batch_norm(tensor([[1.0], [3.0]]), mean, var, training=True, eps=0.0)
    Tensor([[-1.],
           [ 1.]], dtype=float32, device=ref:0)
    >>> mean, var
    (Tensor([0.2], dtype=float32, device=ref:0), Tensor([1.1], dtype=float32, device=ref:0))
    """
    if str(compute_mode).lower() not in ("default", "float32"):
        raise ArgumentError(f'batch_norm: compute_mode is {compute_mode!r}; it must be "default" or "float32"')
    if weight is None and bias is not None:
        from .create import ones_like

        weight = ones_like(bias)
    affine = tuple(a for a in (weight, bias) if a is not None)
    if not training:
        if running_mean is None or running_var is None:
            missing = "running_mean" if running_mean is None else "running_var"
            raise ArgumentError(
                f"batch_norm: {missing} is None and training is False; inference needs both running statistics",
                hint="training=True normalises by the batch itself",
            )
        return batch_norm_infer(inp, running_mean, running_var, *affine, eps=eps)
    y, batch_mean, batch_var = batch_norm_train(inp, *affine, eps=eps)
    if running_mean is None and running_var is None:
        return y
    momentum = float(momentum)
    count = inp.size // max(inp.shape[1], 1)
    new_mean = new_var = None
    if running_mean is not None:
        _check_running(inp, running_mean, "running_mean")
        new_mean = moving_average(running_mean, batch_mean, momentum=momentum)
    if running_var is not None:
        _check_running(inp, running_var, "running_var")
        new_var = moving_average(running_var, batch_var, momentum=momentum, factor=count / max(count - 1, 1))
    if not inplace:
        return y, new_mean, new_var
    if new_mean is not None:
        running_mean._assign(new_mean)
    if new_var is not None:
        running_var._assign(new_var)
    return y


def _check_running(inp: Tensor, running: Tensor, name: str) -> None:
    c = inp.shape[1]
    if running.size != c:
        raise ShapeError(f"batch_norm: {name} has shape {running.shape}; inp of shape {inp.shape} needs ({c},)")


def sync_batch_norm(
    inp: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.9,
    eps: float = 1e-5,
    eps_mode: str = "additive",
    group: Any = None,
) -> Tensor:
    """Normalise each channel by the statistics of all processes of a group.

    ``y[n, c, p] = weight[c] * (inp[n, c, p] - mean[c]) / sqrt(var[c] + eps) + bias[c]``

    Parameters
    ----------
    inp : (n, c, ...) float
    running_mean, running_var : (c,) or (1, c, 1, ...) float, optional
    weight, bias : (c,) or (1, c, 1, ...) float, optional
    training : bool, default False
    momentum : float, 0 to 1, default 0.9
    eps : float, default 1e-5
        As of ``batch_norm``.
    eps_mode : {"additive"}
    group : object, optional
        Of processes. One process is a group of its own.

    Returns
    -------
    (n, c, ...) dtype of ``inp``

    Raises
    ------
    ArgumentError
        ``eps_mode`` is not ``"additive"``, or what ``batch_norm`` refuses.

    Notes
    -----
    In one process it is ``batch_norm``.

    Examples
    --------
    >>> sync_batch_norm(tensor([[1.0], [3.0]]), training=True, eps=0.0)
    Tensor([[-1.],
           [ 1.]], dtype=float32, device=ref:0)
    """
    if str(eps_mode).lower() != "additive":
        raise ArgumentError(f'sync_batch_norm: eps_mode is {eps_mode!r}; only "additive" is offered')
    return batch_norm(
        inp, running_mean, running_var, weight, bias, training=training, momentum=momentum, eps=eps
    )
