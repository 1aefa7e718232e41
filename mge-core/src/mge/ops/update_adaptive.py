"""Optimizer updates, continued: Adagrad, Adadelta and LAMB.

In: parameters, gradients, state, hyper-parameters. Out: ``adagrad_update``, ``adadelta_update``, ``lamb_update``.
After ``update``, and in the order of inputs of ``update_layout``; before ``tensor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..op import op
from .multi_tensor import prepared
from .update import bias, bias_tensor, check_betas
from .update_layout import Layout, decayed, draw_sample, finish, lower, run

if TYPE_CHECKING:
    from ..tensor import Tensor

PRIVATE = ("adagrad_update", "adadelta_update", "lamb_update")


def _adagrad(*, count: int, steps: int, has_found_inf: bool, **rest: Any) -> Layout:
    return Layout(
        "adagrad_update", ("square_avg",), ("lr", "weight_decay"), count, steps, has_found_inf
    )


@op
def adagrad_update(
    *inps: Tensor,
    count: int,
    lr_decay: float = 0.0,
    eps: float = 1e-10,
    steps: int = 1,
    has_found_inf: bool = False,
) -> tuple[Tensor, ...]:
    """Take one step of Adagrad.

    ``g = grad + weight_decay * param``, ``s = s + g**2``,
    ``param -= lr / (1 + (t - 1) * lr_decay) * g / sqrt(s + eps)`` with ``t`` the steps with this one

    Parameters
    ----------
    inps : tensors
        ``count`` parameters, gradients and sums ``s``; ``steps`` counters, () integer or float, of the steps before
        this one; () floats ``lr`` and ``weight_decay``; with ``has_found_inf`` a () bool.
    count : int
        Number of parameters.
    lr_decay : float, default 0.0
    eps : float, default 1e-10
    steps : int, default 1
        Number of counters: 1, or ``count``.
    has_found_inf : bool, default False

    Returns
    -------
    ``count`` new parameters and sums, then ``steps`` new counters

    Raises
    ------
    ArgumentError
        The number of inputs does not fit.
    ShapeError
        A gradient or sum has not its parameter's shape, or a hyper-parameter is not ().
    DTypeError
        A dtype is not float, or not the parameter's or float32.

    Notes
    -----
    Computed in float32 or wider. No gradient. Where ``found_inf`` is True the outputs are the old values.

    Sources
    -------
    Duchi, Hazan and Singer, Adaptive Subgradient Methods, JMLR 12, 2011.

    Examples
    --------
    >>> adagrad_update(tensor([1.0]), tensor([2.0]), tensor([0.0]), tensor(0), tensor(0.1), tensor(0.0), count=1)[0]
    Tensor([0.9], dtype=float32, device=ref:0)
    """
    return _adagrad(count=count, steps=steps, has_found_inf=has_found_inf).check(inps)


@adagrad_update.reference
def _(*inps, out=None, **attrs):
    lr_decay, eps = attrs["lr_decay"], attrs["eps"]

    def hyper(kind, t, lr, decay):
        return kind(lr / (1 + (t - 1) * lr_decay)), kind(decay)

    def rule(scratch, numbers, param, grad, s, new_param, new_s):
        rate, decay = numbers
        g = decayed(scratch[0], decay, param, grad)
        np.add(s, np.multiply(g, g, out=scratch[1]), out=new_s)
        root = np.sqrt(np.add(new_s, param.dtype.type(eps), out=scratch[1]), out=scratch[1])
        step = np.multiply(np.divide(g, root, out=root), rate, out=root)
        np.subtract(param, step, out=new_param)

    return run(_adagrad(**attrs), inps, out, rule, hyper)


@adagrad_update.lowering
def _(*inps, **attrs):
    from .exponential import sqrt

    lr_decay, eps = attrs["lr_decay"], attrs["eps"]

    def hyper(t, lr, decay):
        return lr / ((t - 1.0) * lr_decay + 1.0), decay

    def rule(numbers, param, grad, s):
        rate, decay = numbers
        g = param * decay + grad
        s = s + g * g
        return param - g / sqrt(s + eps) * rate, s

    return lower(_adagrad(**attrs), inps, rule, hyper)


finish(adagrad_update, _adagrad)


@adagrad_update.samples
def _(rng):
    for count, steps, flag, lr_decay in [(1, 1, None, 0.0), (3, 1, False, 0.1), (2, 2, True, 0.0)]:
        attrs = {
            "count": count,
            "steps": steps,
            "has_found_inf": flag is not None,
            "lr_decay": lr_decay,
        }
        yield draw_sample(rng, _adagrad(**attrs), (0.1, 0.01), bool(flag)), attrs


def _adadelta(*, count: int, has_found_inf: bool, **rest: Any) -> Layout:
    return Layout(
        "adadelta_update",
        ("square_avg", "acc_delta"),
        ("lr", "weight_decay"),
        count,
        0,
        has_found_inf,
    )


@op
def adadelta_update(
    *inps: Tensor, count: int, rho: float = 0.9, eps: float = 1e-6, has_found_inf: bool = False
) -> tuple[Tensor, ...]:
    """Take one step of Adadelta.

    ``g = grad + weight_decay * param``, ``s = rho * s + (1 - rho) * g**2``,
    ``d = sqrt(a + eps) / sqrt(s + eps) * g``, ``a = rho * a + (1 - rho) * d**2``, ``param -= lr * d``

    Parameters
    ----------
    inps : tensors
        ``count`` parameters, gradients, averages ``s`` and averages ``a``; () floats ``lr`` and ``weight_decay``; with
        ``has_found_inf`` a () bool.
    count : int
        Number of parameters.
    rho : float, default 0.9
        How much of the averages stays, 0 to 1.
    eps : float, default 1e-6
    has_found_inf : bool, default False

    Returns
    -------
    ``count`` new parameters, ``s`` and ``a``

    Raises
    ------
    ArgumentError
        The number of inputs does not fit.
    ShapeError
        A gradient or average has not its parameter's shape, or a hyper-parameter is not ().
    DTypeError
        A dtype is not float, or not the parameter's or float32.

    Notes
    -----
    Computed in float32 or wider. No gradient. Where ``found_inf`` is True the outputs are the old values.

    Sources
    -------
    Zeiler, ADADELTA: An Adaptive Learning Rate Method, arXiv:1212.5701, algorithm 1.

    Examples
    --------
    >>> one = tensor([1.0])
    >>> adadelta_update(one, one, one, one, tensor(0.5), tensor(0.0), count=1)[0]
    Tensor([0.5], dtype=float32, device=ref:0)
    """
    return _adadelta(count=count, has_found_inf=has_found_inf).check(inps)


@adadelta_update.reference
def _(*inps, out=None, **attrs):
    rho, eps = attrs["rho"], attrs["eps"]

    def hyper(kind, t, lr, decay):
        return kind(lr), kind(decay), kind(rho), kind(1 - rho), kind(eps)

    def average(old, g, scratch, new, rho, rest):
        np.multiply(old, rho, out=new)
        np.multiply(np.multiply(g, g, out=scratch), rest, out=scratch)
        np.add(new, scratch, out=new)

    def rule(scratch, numbers, param, grad, s, a, new_param, new_s, new_a):
        lr, decay, rho, rest, eps = numbers
        g = decayed(scratch[0], decay, param, grad)
        average(s, g, scratch[1], new_s, rho, rest)
        d = np.sqrt(np.add(a, eps, out=scratch[1]), out=scratch[1])
        np.divide(d, np.sqrt(np.add(new_s, eps, out=scratch[2]), out=scratch[2]), out=d)
        np.multiply(d, g, out=d)
        average(a, d, scratch[2], new_a, rho, rest)
        np.subtract(param, np.multiply(d, lr, out=d), out=new_param)

    return run(_adadelta(**attrs), inps, out, rule, hyper)


@adadelta_update.lowering
def _(*inps, **attrs):
    from .exponential import sqrt

    rho, eps = attrs["rho"], attrs["eps"]

    def rule(numbers, param, grad, s, a):
        lr, decay = numbers
        g = param * decay + grad
        s = s * rho + g * g * (1 - rho)
        d = sqrt(a + eps) / sqrt(s + eps) * g
        return param - d * lr, s, a * rho + d * d * (1 - rho)

    return lower(_adadelta(**attrs), inps, rule, lambda t, *scalars: scalars)


finish(adadelta_update, _adadelta)


@adadelta_update.samples
def _(rng):
    for count, flag in [(1, None), (3, False), (2, True)]:
        attrs = {"count": count, "has_found_inf": flag is not None}
        yield draw_sample(rng, _adadelta(**attrs), (0.1, 0.01), bool(flag)), attrs


def _lamb(*, count: int, steps: int, has_found_inf: bool, **rest: Any) -> Layout:
    return Layout(
        "lamb_update",
        ("exp_avg", "exp_avg_sq"),
        ("lr", "weight_decay"),
        count,
        steps,
        has_found_inf,
    )


@op
def lamb_update(
    *inps: Tensor,
    count: int,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    bias_correction: bool = True,
    always_adapt: bool = False,
    steps: int = 1,
    has_found_inf: bool = False,
) -> tuple[Tensor, ...]:
    """Take one step of LAMB: Adam's direction, scaled by the parameter's norm.

    ``m = beta1 * m + (1 - beta1) * grad``, ``v = beta2 * v + (1 - beta2) * grad**2``,
    ``d = (m / (1 - beta1**t)) / (sqrt(v / (1 - beta2**t)) + eps) + weight_decay * param``,
    ``param -= lr * norm(param) / norm(d) * d``

    Parameters
    ----------
    inps : tensors
        As of ``adam_update``.
    count : int
        Number of parameters.
    beta1, beta2 : float, default 0.9 and 0.999
        How much of the averages stays, at least 0 and below 1.
    eps : float, default 1e-8
    bias_correction : bool, default True
        Divide the averages by ``1 - beta**t``.
    always_adapt : bool, default False
        Use the norms also where ``weight_decay`` is 0.
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
    Where one of the norms is 0 their ratio counts as 1. Computed in float32 or wider. No gradient. Where
    ``found_inf`` is True the outputs are the old values.

    Sources
    -------
    You et al., Large Batch Optimization for Deep Learning, ICLR 2020, arXiv:1904.00962, algorithm 2.

    Examples
    --------
    >>> zero = tensor([0.0])
    >>> lamb_update(tensor([4.0]), tensor([2.0]), zero, zero, tensor(0), tensor(0.1), tensor(1.0), count=1)[0]
    Tensor([3.6], dtype=float32, device=ref:0)
    """
    check_betas("lamb_update", beta1, beta2)
    return _lamb(count=count, steps=steps, has_found_inf=has_found_inf).check(inps)


@lamb_update.reference
def _(*inps, out=None, **attrs):
    layout = _lamb(**attrs)
    beta1, beta2, eps, corrects = (
        attrs[name] for name in ("beta1", "beta2", "eps", "bias_correction")
    )
    old = layout.old(inps)
    out = prepared(out, old)
    each, steps, (lr, decay), found_inf = layout.split(inps)
    if found_inf is not None and found_inf:
        for new, before in zip(out, old):
            np.copyto(new, before)
        return out
    counts = [float(s) + 1 for s in steps]
    with np.errstate(all="ignore"):
        for i, (param, grad, m, v) in enumerate(each):
            kind = np.float64 if param.dtype == np.float64 else np.float32
            t = counts[i] if len(counts) > 1 else counts[0]
            p, g = param.astype(kind, copy=False), grad.astype(kind, copy=False)
            m = m * kind(beta1) + g * kind(1 - beta1)
            v = v * kind(beta2) + g * g * kind(1 - beta2)
            scales = [kind(1 / bias(b, t)) if corrects else kind(1) for b in (beta1, beta2)]
            d = m * scales[0] / (np.sqrt(v * scales[1]) + kind(eps)) + p * kind(decay)
            norms = [np.sqrt(np.sum(x * x)) for x in (p, d)]
            adapts = (attrs["always_adapt"] or decay > 0) and norms[0] > 0 and norms[1] > 0
            ratio = norms[0] / norms[1] if adapts else kind(1)
            for k, new in enumerate((p - d * (ratio * kind(lr)), m, v)):
                np.copyto(out[k * layout.parameters + i], new, casting="same_kind")
    for new, count in zip(out[len(out) - layout.steps :], counts):
        new[...] = count
    return out


@lamb_update.lowering
def _(*inps, **attrs):
    from .comparison import greater
    from .exponential import sqrt
    from .logic import logical_and
    from .reduction import sum
    from .select import where

    beta1, beta2, eps = attrs["beta1"], attrs["beta2"], attrs["eps"]

    def hyper(t, lr, decay):
        scales = (None, None)
        if attrs["bias_correction"]:
            scales = tuple(1.0 / bias_tensor(b, t) for b in (beta1, beta2))
        return lr, decay, *scales

    def rule(numbers, param, grad, m, v):
        lr, decay, scale1, scale2 = numbers
        m = m * beta1 + grad * (1 - beta1)
        v = v * beta2 + grad * grad * (1 - beta2)
        top, bottom = (m, v) if scale1 is None else (m * scale1, v * scale2)
        d = top / (sqrt(bottom) + eps) + param * decay
        p_norm, d_norm = sqrt(sum(param * param)), sqrt(sum(d * d))
        adapts = logical_and(greater(p_norm, 0.0), greater(d_norm, 0.0))
        if not attrs["always_adapt"]:
            adapts = logical_and(adapts, greater(decay, 0.0))
        ratio = where(adapts, p_norm / where(adapts, d_norm, 1.0), 1.0)
        return param - d * (ratio * lr), m, v

    return lower(_lamb(**attrs), inps, rule, hyper)


finish(lamb_update, _lamb)


@lamb_update.samples
def _(rng):
    for count, steps, flag, decay, more in [
        (1, 1, None, 0.01, {}),
        (3, 1, False, 0.0, {}),
        (2, 2, True, 0.0, {}),
        (2, 1, None, 0.0, {"always_adapt": True, "bias_correction": False}),
    ]:
        attrs = {"count": count, "steps": steps, "has_found_inf": flag is not None, **more}
        yield draw_sample(rng, _lamb(**attrs), (0.1, decay), bool(flag)), attrs
