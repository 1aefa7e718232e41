"""Optimizer updates: one op for all parameters of a group. SGD, Adam, AdamW.

In: parameters, gradients, state, hyper-parameters, in the order of ``update_layout``. Out: the ops ``sgd_update``,
``adam_update``, ``adamw_update``. After ``update_layout``; before ``update_adaptive``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ArgumentError
from ..op import op
from .update_layout import Layout, Scratch, decayed, draw_sample, finish, lower, run

if TYPE_CHECKING:
    from ..tensor import Tensor

PRIVATE = ("sgd_update", "adam_update", "adamw_update")


def _sgd(*, count: int, use_momentum: bool, nesterov: bool, has_found_inf: bool) -> Layout:
    states = ("momentum_buffer",) if use_momentum else ()
    scalars = ("lr", "weight_decay", "momentum") if use_momentum else ("lr", "weight_decay")
    return Layout("sgd_update", states, scalars, count, 0, has_found_inf)


@op
def sgd_update(
    *inps: Tensor,
    count: int,
    use_momentum: bool = False,
    nesterov: bool = False,
    has_found_inf: bool = False,
) -> tuple[Tensor, ...]:
    """Take one step of stochastic gradient descent.

    ``g = grad + weight_decay * param``, ``v = momentum * v + g``, then ``param -= lr * v``;
    with ``nesterov`` ``param -= lr * (g + momentum * v)``, without momentum ``param -= lr * g``

    Parameters
    ----------
    inps : tensors
        ``count`` parameters and ``count`` gradients; with ``use_momentum`` ``count`` buffers ``v``; () floats ``lr``,
        ``weight_decay`` and, with ``use_momentum``, ``momentum``; with ``has_found_inf`` a () bool.
    count : int
        Number of parameters.
    use_momentum, nesterov, has_found_inf : bool, default False

    Returns
    -------
    ``count`` new parameters, then with ``use_momentum`` ``count`` new buffers

    Raises
    ------
    ArgumentError
        The number of inputs does not fit.
    ShapeError
        A gradient or buffer has not its parameter's shape, or a hyper-parameter is not ().
    DTypeError
        A dtype is not float, or not the parameter's or float32.

    Notes
    -----
    Computed in float32 or wider. No gradient. Where ``found_inf`` is True the outputs are the old values.

    Sources
    -------
    Sutskever et al., On the importance of initialization and momentum in deep learning, ICML 2013.

    Examples
    --------
    >>> sgd_update(tensor([1.0]), tensor([2.0]), tensor(0.1), tensor(0.0), count=1)
    Tensor([0.8], dtype=float32, device=ref:0)
    """
    if nesterov and not use_momentum:
        raise ArgumentError(
            "sgd_update: nesterov is True and use_momentum is False; nesterov needs momentum"
        )
    layout = _sgd(
        count=count, use_momentum=use_momentum, nesterov=nesterov, has_found_inf=has_found_inf
    )
    return layout.check(inps)


@sgd_update.reference
def _(*inps, out=None, **attrs):
    use_momentum, nesterov = attrs["use_momentum"], attrs["nesterov"]

    def hyper(kind, t, lr, decay, momentum=0.0):
        return kind(lr), kind(decay), kind(momentum)

    def rule(scratch, numbers, param, grad, *rest):
        lr, decay, momentum = numbers
        g = decayed(scratch[0], decay, param, grad)
        if use_momentum:
            v, new_param, new_v = rest
            np.multiply(v, momentum, out=new_v)
            np.add(new_v, g, out=new_v)
            if nesterov:
                g = np.add(np.multiply(new_v, momentum, out=scratch[1]), g, out=scratch[1])
            else:
                g = new_v
        else:
            (new_param,) = rest
        np.multiply(g, lr, out=scratch[2])
        np.subtract(param, scratch[2], out=new_param)

    return run(_sgd(**attrs), inps, out, rule, hyper)


@sgd_update.lowering
def _(*inps, **attrs):
    use_momentum, nesterov = attrs["use_momentum"], attrs["nesterov"]

    def rule(numbers, param, grad, v=None):
        lr, decay, *momentum = numbers
        g = param * decay + grad
        if not use_momentum:
            return (param - g * lr,)
        v = v * momentum[0] + g
        step = v * momentum[0] + g if nesterov else v
        return param - step * lr, v

    return lower(_sgd(**attrs), inps, rule, lambda t, *scalars: scalars)


finish(sgd_update, _sgd)


@sgd_update.samples
def _(rng):
    for count, momentum, nesterov, flag in [
        (1, False, False, None), (3, True, False, None), (4, True, True, False), (2, True, False, True),
        (2, False, False, True),
    ]:  # fmt: skip
        attrs = {
            "count": count,
            "use_momentum": momentum,
            "nesterov": nesterov,
            "has_found_inf": flag is not None,
        }
        scalars = (0.1, 0.01, 0.9) if momentum else (0.1, 0.0)
        yield draw_sample(rng, _sgd(**attrs), scalars, bool(flag)), attrs


def _adam(*, count: int, steps: int, has_found_inf: bool, **rest: Any) -> Layout:
    return Layout(
        "adam_update",
        ("exp_avg", "exp_avg_sq"),
        ("lr", "weight_decay"),
        count,
        steps,
        has_found_inf,
    )


def _adamw(**attrs: Any) -> Layout:
    return _adam(**attrs)._replace(name="adamw_update")


def check_betas(name: str, beta1: float, beta2: float) -> None:
    if not (0 <= beta1 < 1 and 0 <= beta2 < 1):
        raise ArgumentError(
            f"{name}: betas are {beta1} and {beta2}; both must be at least 0 and below 1"
        )


@op
def adam_update(
    *inps: Tensor,
    count: int,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    steps: int = 1,
    has_found_inf: bool = False,
) -> tuple[Tensor, ...]:
    """Take one step of Adam.

    ``g = grad + weight_decay * param``, ``m = beta1 * m + (1 - beta1) * g``, ``v = beta2 * v + (1 - beta2) * g**2``,
    ``param -= lr * (m / (1 - beta1**t)) / (sqrt(v / (1 - beta2**t)) + eps)`` with ``t`` the steps with this one

    Parameters
    ----------
    inps : tensors
        ``count`` parameters, gradients, averages ``m`` and averages ``v``; ``steps`` counters, () integer or float,
        of the steps before this one; () floats ``lr`` and ``weight_decay``; with ``has_found_inf`` a () bool.
    count : int
        Number of parameters.
    beta1, beta2 : float, default 0.9 and 0.999
        How much of the averages stays, at least 0 and below 1.
    eps : float, default 1e-8
    steps : int, default 1
        Number of counters: 1, or ``count``.
    has_found_inf : bool, default False

    Returns
    -------
    ``count`` new parameters, ``m`` and ``v``, then ``steps`` new counters

    Raises
    ------
    ArgumentError
        The number of inputs does not fit, or a beta is out of range.
    ShapeError
        A gradient or average has not its parameter's shape, or a hyper-parameter is not ().
    DTypeError
        A dtype is not float, or not the parameter's or float32.

    Notes
    -----
    Computed in float32 or wider. No gradient. Where ``found_inf`` is True the outputs are the old values.

    Sources
    -------
    Kingma and Ba, Adam: A Method for Stochastic Optimization, ICLR 2015, arXiv:1412.6980, algorithm 1.

    Examples
    --------
    >>> zero = tensor([0.0])
    >>> adam_update(tensor([1.0]), tensor([2.0]), zero, zero, tensor(0), tensor(0.1), tensor(0.0), count=1)[0]
    Tensor([0.9], dtype=float32, device=ref:0)
    """
    check_betas("adam_update", beta1, beta2)
    return _adam(count=count, steps=steps, has_found_inf=has_found_inf).check(inps)


def bias(beta: float, t: float) -> float:
    """Return 1 - beta**t without loss of digits."""
    return -math.expm1(t * math.log(beta)) if beta else 1.0


def _averages(
    scratch: Scratch, g: np.ndarray, betas: Any, m: Any, v: Any, new_m: Any, new_v: Any
) -> None:
    """Write the new averages of ``g`` and ``g**2``; ``scratch[1]`` is overwritten."""
    beta1, rest1, beta2, rest2 = betas
    np.multiply(m, beta1, out=new_m)
    np.add(new_m, np.multiply(g, rest1, out=scratch[1]), out=new_m)
    np.multiply(g, g, out=scratch[1])
    np.multiply(scratch[1], rest2, out=scratch[1])
    np.multiply(v, beta2, out=new_v)
    np.add(new_v, scratch[1], out=new_v)


def _adam_arrays(
    layout: Layout, inps: Any, out: Any, attrs: dict[str, Any], decoupled: bool
) -> Any:
    beta1, beta2, eps = attrs["beta1"], attrs["beta2"], attrs["eps"]

    def hyper(kind, t, lr, decay):
        betas = tuple(kind(b) for b in (beta1, 1 - beta1, beta2, 1 - beta2))
        rate = lr / bias(beta1, t) if t else math.nan
        return (
            betas,
            kind(rate),
            kind(1 / bias(beta2, t)) if t else kind(math.nan),
            kind(decay),
            kind(lr * decay),
        )

    def rule(scratch, numbers, param, grad, m, v, new_param, new_m, new_v):
        betas, rate, scale, decay, shrink = numbers
        g = grad if decoupled else decayed(scratch[0], decay, param, grad)
        _averages(scratch, g, betas, m, v, new_m, new_v)
        root = np.sqrt(np.multiply(new_v, scale, out=scratch[1]), out=scratch[1])
        np.add(root, param.dtype.type(eps), out=root)
        step = np.multiply(np.divide(new_m, root, out=root), rate, out=root)
        if decoupled and shrink:
            np.add(step, np.multiply(param, shrink, out=scratch[0]), out=step)
        np.subtract(param, step, out=new_param)

    return run(layout, inps, out, rule, hyper)


def bias_tensor(beta: float, t: Tensor) -> Tensor:
    from .exponential import expm1

    return -expm1(t * math.log(beta)) if beta else t * 0.0 + 1.0


def _adam_tensors(layout: Layout, inps: Any, attrs: dict[str, Any], decoupled: bool) -> Any:
    from .exponential import sqrt

    beta1, beta2, eps = attrs["beta1"], attrs["beta2"], attrs["eps"]

    def hyper(t, lr, decay):
        return lr / bias_tensor(beta1, t), 1.0 / bias_tensor(beta2, t), decay, lr * decay

    def rule(numbers, param, grad, m, v):
        rate, scale, decay, shrink = numbers
        g = grad if decoupled else param * decay + grad
        m = m * beta1 + g * (1 - beta1)
        v = v * beta2 + g * g * (1 - beta2)
        step = m / (sqrt(v * scale) + eps) * rate
        if decoupled:
            step = step + param * shrink
        return param - step, m, v

    return lower(layout, inps, rule, hyper)


@adam_update.reference
def _(*inps, out=None, **attrs):
    return _adam_arrays(_adam(**attrs), inps, out, attrs, decoupled=False)


@adam_update.lowering
def _(*inps, **attrs):
    return _adam_tensors(_adam(**attrs), inps, attrs, decoupled=False)


finish(adam_update, _adam)


def _adam_samples(rng: np.random.Generator, layout: Callable[..., Layout], **more: Any) -> Any:
    for count, steps, flag in [(1, 1, None), (3, 1, False), (2, 2, None), (2, 1, True)]:
        attrs = {"count": count, "steps": steps, "has_found_inf": flag is not None, **more}
        yield draw_sample(rng, layout(**attrs), (0.1, 0.01), bool(flag)), attrs


@adam_update.samples
def _(rng):
    yield from _adam_samples(rng, _adam)
    yield from _adam_samples(rng, _adam, beta1=0.0, eps=0.1)


@op
def adamw_update(
    *inps: Tensor,
    count: int,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    steps: int = 1,
    has_found_inf: bool = False,
) -> tuple[Tensor, ...]:
    """Take one step of Adam with weight decay apart from the gradient.

    ``m = beta1 * m + (1 - beta1) * grad``, ``v = beta2 * v + (1 - beta2) * grad**2``,
    ``param -= lr * ((m / (1 - beta1**t)) / (sqrt(v / (1 - beta2**t)) + eps) + weight_decay * param)``

    Parameters
    ----------
    inps : tensors
        As of ``adam_update``.
    count : int
        Number of parameters.
    beta1, beta2 : float, default 0.9 and 0.999
        How much of the averages stays, at least 0 and below 1.
    eps : float, default 1e-8
    steps : int, default 1
        Number of counters: 1, or ``count``.
    has_found_inf : bool, default False

    Returns
    -------
    ``count`` new parameters, ``m`` and ``v``, then ``steps`` new counters

    Raises
    ------
    ArgumentError
        The number of inputs does not fit, or a beta is out of range.
    ShapeError
        A gradient or average has not its parameter's shape, or a hyper-parameter is not ().
    DTypeError
        A dtype is not float, or not the parameter's or float32.

    Notes
    -----
    Computed in float32 or wider. No gradient. Where ``found_inf`` is True the outputs are the old values.

    Sources
    -------
    Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019, arXiv:1711.05101, algorithm 2.

    Examples
    --------
    >>> zero = tensor([0.0])
    >>> adamw_update(tensor([1.0]), tensor([2.0]), zero, zero, tensor(0), tensor(0.1), tensor(1.0), count=1)[0]
    Tensor([0.8], dtype=float32, device=ref:0)
    """
    check_betas("adamw_update", beta1, beta2)
    return _adamw(count=count, steps=steps, has_found_inf=has_found_inf).check(inps)


@adamw_update.reference
def _(*inps, out=None, **attrs):
    return _adam_arrays(_adamw(**attrs), inps, out, attrs, decoupled=True)


@adamw_update.lowering
def _(*inps, **attrs):
    return _adam_tensors(_adamw(**attrs), inps, attrs, decoupled=True)


finish(adamw_update, _adamw)


@adamw_update.samples
def _(rng):
    yield from _adam_samples(rng, _adamw)
