"""Optimizer updates: one op for all parameters of a group.

In: parameters, gradients, state, hyper-parameters. Out: the ops ``sgd_update``, ``adam_update``, ``adamw_update``.
After ``multi_tensor``; before ``update_adaptive``.

The inputs of each op are, in this order: ``count`` parameters, ``count`` gradients, ``count`` tensors of each kind of
state, ``steps`` counters, the hyper-parameters that may change from step to step, and with ``has_found_inf`` a bool.
The outputs are the new parameters, state and counters. Each output may be written over its own input:
``op.pairs(signature)`` gives these pairs. Where the bool is True, all outputs are the old values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..dtype import wide_of
from ..errors import ArgumentError, DTypeError, ShapeError
from ..graph import Signature
from ..op import Op, op
from ..types import Type
from .multi_tensor import BLOCK, blocks, prepared, wide_block

if TYPE_CHECKING:
    from ..tensor import Tensor

PRIVATE = ("sgd_update", "adam_update", "adamw_update")


class Layout(NamedTuple):
    """Where what stands among the inputs of an update.

    Attributes
    ----------
    name : str
    states : tuple of str
        The kinds of state, one tensor for each parameter.
    scalars : tuple of str
        The hyper-parameters that are inputs.
    count, steps : int
    has_found_inf : bool
    """

    name: str
    states: tuple[str, ...]
    scalars: tuple[str, ...]
    count: int
    steps: int
    has_found_inf: bool

    @property
    def rows(self) -> int:
        """How many groups of ``count`` inputs there are."""
        return 2 + len(self.states)

    @property
    def total(self) -> int:
        """How many inputs there are."""
        return self.rows * self.count + self.steps + len(self.scalars) + self.has_found_inf

    def split(self, inps: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any], Any]:
        """Return (for each parameter (param, grad, *state)), counters, hyper-parameters, found_inf or None."""
        each = [[inps[k * self.count + i] for k in range(self.rows)] for i in range(self.count)]
        start = self.rows * self.count
        steps = list(inps[start : start + self.steps])
        start += self.steps
        return each, steps, list(inps[start : start + len(self.scalars)]), inps[-1] if self.has_found_inf else None

    def old(self, inps: Sequence[Any]) -> list[Any]:
        """Return the inputs that the outputs replace, in the order of the outputs."""
        states = inps[2 * self.count : self.rows * self.count + self.steps]
        return [*inps[: self.count], *states]

    def pairs(self) -> list[tuple[int, int]]:
        """Return (input, output) positions: the output may be written over the input's buffer."""
        kept = [*range(self.count), *range(2 * self.count, self.rows * self.count + self.steps)]
        return [(i, o) for o, i in enumerate(kept)]

    def check(self, inps: Sequence[Type]) -> tuple[Type, ...]:
        """Return the types of the outputs; raise an error where the inputs do not fit."""
        if self.count < 1 or self.steps not in (0, 1, self.count):
            raise ArgumentError(
                f"{self.name}: count is {self.count} and steps is {self.steps}; "
                "there must be 1 parameter or more, and 1 counter or one for each"
            )
        if len(inps) != self.total:
            raise ArgumentError(
                f"{self.name}: {len(inps)} inputs were given; {self.count} parameters need {self.total}: params, grads, "
                f"{', '.join((*self.states, 'steps'))}, {', '.join(self.scalars)}{', found_inf' * self.has_found_inf}"
            )
        each, steps, scalars, found_inf = self.split(inps)
        names = ("param", "grad", *self.states)
        for i, row in enumerate(each):
            for name, type_ in zip(names, row):
                if type_.shape != row[0].shape:
                    raise ShapeError(f"{self.name}: {name} {i} has shape {type_.shape}; its parameter has {row[0].shape}")
                if not row[0].dtype.is_float or type_.dtype not in (row[0].dtype, wide_of(row[0].dtype)):
                    raise DTypeError(
                        f"{self.name}: {name} {i} is {type_.dtype} and its parameter {row[0].dtype}; "
                        "it must be the same float dtype, or float32"
                    )
        for name, type_ in zip((*("step",) * self.steps, *self.scalars), (*steps, *scalars)):
            if type_.shape != ():
                raise ShapeError(f"{self.name}: {name} has shape {type_.shape}; it must be ()")
            if not (type_.dtype.is_float or (name == "step" and type_.dtype.is_integer)):
                raise DTypeError(f"{self.name}: {name} is {type_.dtype}; it must be a float tensor")
        if found_inf is not None and (found_inf.shape != () or not found_inf.dtype.is_bool):
            raise DTypeError(f"{self.name}: found_inf is {found_inf}; it must be bool[]")
        return tuple(self.old(inps))


Scratch = list[np.ndarray]


def _run(
    layout: Layout, inps: Sequence[np.ndarray], out: Any, rule: Callable[..., None], hyper: Callable[..., Any]
) -> Any:
    """Run an update in NumPy, block by block.

    ``rule(scratch, numbers, param, grad, *state, new_param, *new_state)`` writes one block in float32 or wider;
    ``numbers = hyper(kind, t, *scalars)`` with the dtype's type, and the count of steps with this one.
    """
    old = layout.old(inps)
    out = prepared(out, old)
    each, steps, scalars, found_inf = layout.split(inps)
    if found_inf is not None and found_inf:
        for new, before in zip(out, old):
            np.copyto(new, before)
        return out if len(out) > 1 else out[0]
    values = [float(s) for s in scalars]
    new_steps = out[len(out) - layout.steps :]
    counts = [float(s) + 1 for s in steps] or [0.0]
    work = {kind: [np.empty(BLOCK, kind) for _ in range(3)] for kind in (np.float32, np.float64)}
    with np.errstate(all="ignore"):
        for i, row in enumerate(each):
            kind = np.float64 if row[0].dtype == np.float64 else np.float32
            t = counts[i] if len(counts) > 1 else counts[0]
            numbers = hyper(kind, t, *values)
            targets = [out[k * layout.count + i] for k in range(1 + len(layout.states))]
            if all(a.dtype == kind for a in row):
                for parts in blocks(*row, *targets):
                    size = parts[0].size
                    rule([w[:size] for w in work[kind]], numbers, *parts)
            else:
                _run_narrow(rule, numbers, row, targets, work[kind], kind)
    for new, count in zip(new_steps, counts):
        new[...] = count
    return out if len(out) > 1 else out[0]


def _run_narrow(
    rule: Callable[..., None], numbers: Any, row: list[np.ndarray], targets: list[np.ndarray], work: Scratch, kind: Any
) -> None:
    """Run the blocks of a float16 or bfloat16 parameter: computed in float32, then rounded."""
    for parts in blocks(*row, *targets):
        given, wanted = parts[: len(row)], parts[len(row) :]
        size = given[0].size
        results = [np.empty(size, kind) for _ in wanted]
        rule([w[:size] for w in work], numbers, *map(wide_block, given), *results)
        for target, result in zip(wanted, results):
            np.copyto(target, result, casting="same_kind")


def _lower(layout: Layout, inps: Sequence[Tensor], rule: Callable[..., tuple], hyper: Callable[..., Any]) -> Any:
    """Run an update in base ops: ``rule(numbers, param, grad, *state)`` gives the new parameter and state."""
    from .select import cast, where

    each, steps, scalars, found_inf = layout.split(inps)
    new: list[list[Tensor]] = []
    numbers: dict[Any, Any] = {}
    counts = [step + 1 for step in steps]
    for i, row in enumerate(each):
        wide = wide_of(row[0].dtype)
        count = counts[i] if len(counts) > 1 else counts[0] if counts else None
        key = wide, i if len(counts) > 1 else 0
        if key not in numbers:
            time = None if count is None else cast(count, dtype=wide)
            numbers[key] = hyper(time, *(cast(s, dtype=wide) for s in scalars))
        results = rule(numbers[key], *(cast(x, dtype=wide) for x in row))
        new.append([cast(r, dtype=x.dtype) for r, x in zip(results, (row[0], *row[2:]))])
    flat = [row[k] for k in range(1 + len(layout.states)) for row in new] + counts
    if found_inf is not None:
        flat = [where(found_inf, before, after) for before, after in zip(layout.old(inps), flat)]
    return tuple(flat) if len(flat) > 1 else flat[0]


def _finish(update: Op, layout: Callable[..., Layout]) -> None:
    """Give an update what all of them share: no gradient, and the pairs of inputs and outputs."""

    def gradient(dy: Any, y: Any, *inps: Tensor, **attrs: Any) -> tuple:
        return (None,) * len(inps)

    def pairs(sig: Signature) -> list[tuple[int, int]]:
        return layout(**dict(sig.attrs)).pairs()

    update.gradient(gradient)
    update.pairs = pairs


def _draw(rng: np.random.Generator, layout: Layout, scalars: Sequence[float], found_inf: bool = False) -> tuple:
    """Return the inputs of a sample: parameters of a few shapes, the state positive."""
    shapes = [(3,), (2, 2), (), (0, 2)][: layout.count]
    inputs = [rng.normal(size=s) for _ in range(2) for s in shapes]
    inputs += [rng.uniform(0.5, 1.5, size=s) for _ in layout.states for s in shapes]
    inputs += [np.array(3, np.int32)] * layout.steps
    inputs += [np.array(s) for s in scalars]
    return (*inputs, np.array(found_inf)) if layout.has_found_inf else tuple(inputs)


# SGD.


def _sgd(*, count: int, use_momentum: bool, nesterov: bool, has_found_inf: bool) -> Layout:
    states = ("momentum_buffer",) if use_momentum else ()
    scalars = ("lr", "weight_decay", "momentum") if use_momentum else ("lr", "weight_decay")
    return Layout("sgd_update", states, scalars, count, 0, has_found_inf)


@op
def sgd_update(
    *inps: Tensor, count: int, use_momentum: bool = False, nesterov: bool = False, has_found_inf: bool = False
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
        raise ArgumentError("sgd_update: nesterov is True and use_momentum is False; nesterov needs momentum")
    layout = _sgd(count=count, use_momentum=use_momentum, nesterov=nesterov, has_found_inf=has_found_inf)
    return layout.check(inps)


def _decayed(scratch: np.ndarray, decay: Any, param: np.ndarray, grad: np.ndarray) -> np.ndarray:
    """Return ``grad + decay * param``; ``grad`` itself where ``decay`` is 0."""
    if not decay:
        return grad
    np.multiply(param, decay, out=scratch)
    return np.add(scratch, grad, out=scratch)


@sgd_update.reference
def _(*inps, out=None, **attrs):
    use_momentum, nesterov = attrs["use_momentum"], attrs["nesterov"]

    def hyper(kind, t, lr, decay, momentum=0.0):
        return kind(lr), kind(decay), kind(momentum)

    def rule(scratch, numbers, param, grad, *rest):
        lr, decay, momentum = numbers
        g = _decayed(scratch[0], decay, param, grad)
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

    return _run(_sgd(**attrs), inps, out, rule, hyper)


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

    return _lower(_sgd(**attrs), inps, rule, lambda t, *scalars: scalars)


_finish(sgd_update, _sgd)


@sgd_update.samples
def _(rng):
    for count, momentum, nesterov, flag in [
        (1, False, False, None), (3, True, False, None), (4, True, True, False), (2, True, False, True),
        (2, False, False, True),
    ]:  # fmt: skip
        attrs = {"count": count, "use_momentum": momentum, "nesterov": nesterov, "has_found_inf": flag is not None}
        scalars = (0.1, 0.01, 0.9) if momentum else (0.1, 0.0)
        yield _draw(rng, _sgd(**attrs), scalars, bool(flag)), attrs


# Adam and AdamW.


def _adam(*, count: int, steps: int, has_found_inf: bool, **rest: Any) -> Layout:
    return Layout("adam_update", ("exp_avg", "exp_avg_sq"), ("lr", "weight_decay"), count, steps, has_found_inf)


def _adamw(**attrs: Any) -> Layout:
    return _adam(**attrs)._replace(name="adamw_update")


def _check_betas(name: str, beta1: float, beta2: float) -> None:
    if not (0 <= beta1 < 1 and 0 <= beta2 < 1):
        raise ArgumentError(f"{name}: betas are {beta1} and {beta2}; both must be at least 0 and below 1")


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
    _check_betas("adam_update", beta1, beta2)
    return _adam(count=count, steps=steps, has_found_inf=has_found_inf).check(inps)


def _bias(beta: float, t: float) -> float:
    """Return 1 - beta**t without loss of digits."""
    return -math.expm1(t * math.log(beta)) if beta else 1.0


def _averages(scratch: Scratch, g: np.ndarray, betas: Any, m: Any, v: Any, new_m: Any, new_v: Any) -> None:
    """Write the new averages of ``g`` and ``g**2``; ``scratch[1]`` is overwritten."""
    beta1, rest1, beta2, rest2 = betas
    np.multiply(m, beta1, out=new_m)
    np.add(new_m, np.multiply(g, rest1, out=scratch[1]), out=new_m)
    np.multiply(g, g, out=scratch[1])
    np.multiply(scratch[1], rest2, out=scratch[1])
    np.multiply(v, beta2, out=new_v)
    np.add(new_v, scratch[1], out=new_v)


def _adam_arrays(layout: Layout, inps: Any, out: Any, attrs: dict[str, Any], decoupled: bool) -> Any:
    beta1, beta2, eps = attrs["beta1"], attrs["beta2"], attrs["eps"]

    def hyper(kind, t, lr, decay):
        betas = tuple(kind(b) for b in (beta1, 1 - beta1, beta2, 1 - beta2))
        rate = lr / _bias(beta1, t) if t else math.nan
        return betas, kind(rate), kind(1 / _bias(beta2, t)) if t else kind(math.nan), kind(decay), kind(lr * decay)

    def rule(scratch, numbers, param, grad, m, v, new_param, new_m, new_v):
        betas, rate, scale, decay, shrink = numbers
        g = grad if decoupled else _decayed(scratch[0], decay, param, grad)
        _averages(scratch, g, betas, m, v, new_m, new_v)
        root = np.sqrt(np.multiply(new_v, scale, out=scratch[1]), out=scratch[1])
        np.add(root, param.dtype.type(eps), out=root)
        step = np.multiply(np.divide(new_m, root, out=root), rate, out=root)
        if decoupled and shrink:
            np.add(step, np.multiply(param, shrink, out=scratch[0]), out=step)
        np.subtract(param, step, out=new_param)

    return _run(layout, inps, out, rule, hyper)


def _bias_tensor(beta: float, t: Tensor) -> Tensor:
    from .exponential import expm1

    return -expm1(t * math.log(beta)) if beta else t * 0.0 + 1.0


def _adam_tensors(layout: Layout, inps: Any, attrs: dict[str, Any], decoupled: bool) -> Any:
    from .exponential import sqrt

    beta1, beta2, eps = attrs["beta1"], attrs["beta2"], attrs["eps"]

    def hyper(t, lr, decay):
        return lr / _bias_tensor(beta1, t), 1.0 / _bias_tensor(beta2, t), decay, lr * decay

    def rule(numbers, param, grad, m, v):
        rate, scale, decay, shrink = numbers
        g = grad if decoupled else param * decay + grad
        m = m * beta1 + g * (1 - beta1)
        v = v * beta2 + g * g * (1 - beta2)
        step = m / (sqrt(v * scale) + eps) * rate
        if decoupled:
            step = step + param * shrink
        return param - step, m, v

    return _lower(layout, inps, rule, hyper)


@adam_update.reference
def _(*inps, out=None, **attrs):
    return _adam_arrays(_adam(**attrs), inps, out, attrs, decoupled=False)


@adam_update.lowering
def _(*inps, **attrs):
    return _adam_tensors(_adam(**attrs), inps, attrs, decoupled=False)


_finish(adam_update, _adam)


def _adam_samples(rng: np.random.Generator, layout: Callable[..., Layout], **more: Any) -> Any:
    for count, steps, flag in [(1, 1, None), (3, 1, False), (2, 2, None), (2, 1, True)]:
        attrs = {"count": count, "steps": steps, "has_found_inf": flag is not None, **more}
        yield _draw(rng, layout(**attrs), (0.1, 0.01), bool(flag)), attrs


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
    _check_betas("adamw_update", beta1, beta2)
    return _adamw(count=count, steps=steps, has_found_inf=has_found_inf).check(inps)


@adamw_update.reference
def _(*inps, out=None, **attrs):
    return _adam_arrays(_adamw(**attrs), inps, out, attrs, decoupled=True)


@adamw_update.lowering
def _(*inps, **attrs):
    return _adam_tensors(_adamw(**attrs), inps, attrs, decoupled=True)


_finish(adamw_update, _adamw)


@adamw_update.samples
def _(rng):
    yield from _adam_samples(rng, _adamw)
