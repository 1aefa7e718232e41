"""Optimizer updates: one op for all parameters of a group. Here SGD, and what all of them share.

In: parameters, gradients, state, hyper-parameters. Out: the op ``sgd_update``; ``Layout``, ``run``, ``lower``.
After ``multi_tensor``; before ``update_adam``.

The inputs of each op are, in this order: ``count`` parameters, ``count`` gradients, ``count`` tensors of each kind of
state, ``steps`` counters, the hyper-parameters that may change from step to step, and with ``has_found_inf`` a bool.
The outputs are the new parameters, state and counters. Each output may be written over its own input:
``op.pairs(signature)`` gives these pairs. Where the bool is True, all outputs are the old values.
"""

from __future__ import annotations

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

PRIVATE = ("sgd_update",)


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
        return (
            each,
            steps,
            list(inps[start : start + len(self.scalars)]),
            inps[-1] if self.has_found_inf else None,
        )

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
            order = ("params", "grads", *self.states, "steps", *self.scalars, "found_inf")
            raise ArgumentError(
                f"{self.name}: {len(inps)} inputs were given; {self.count} parameters need {self.total}: "
                f"{', '.join(order if self.has_found_inf else order[:-1])}"
            )
        each, steps, scalars, found_inf = self.split(inps)
        names = ("param", "grad", *self.states)
        for i, row in enumerate(each):
            for name, type_ in zip(names, row):
                if type_.shape != row[0].shape:
                    raise ShapeError(
                        f"{self.name}: {name} {i} has shape {type_.shape}; its parameter has {row[0].shape}"
                    )
                if not row[0].dtype.is_float or type_.dtype not in (
                    row[0].dtype,
                    wide_of(row[0].dtype),
                ):
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


def run(
    layout: Layout,
    inps: Sequence[np.ndarray],
    out: Any,
    rule: Callable[..., None],
    hyper: Callable[..., Any],
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
    rule: Callable[..., None],
    numbers: Any,
    row: list[np.ndarray],
    targets: list[np.ndarray],
    work: Scratch,
    kind: Any,
) -> None:
    """Run the blocks of a float16 or bfloat16 parameter: computed in float32, then rounded."""
    for parts in blocks(*row, *targets):
        given, wanted = parts[: len(row)], parts[len(row) :]
        size = given[0].size
        results = [np.empty(size, kind) for _ in wanted]
        rule([w[:size] for w in work], numbers, *map(wide_block, given), *results)
        for target, result in zip(wanted, results):
            np.copyto(target, result, casting="same_kind")


def lower(
    layout: Layout, inps: Sequence[Tensor], rule: Callable[..., tuple], hyper: Callable[..., Any]
) -> Any:
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


def finish(update: Op, layout: Callable[..., Layout]) -> None:
    """Give an update what all of them share: no gradient, and the pairs of inputs and outputs."""

    def gradient(dy: Any, y: Any, *inps: Tensor, **attrs: Any) -> tuple:
        return (None,) * len(inps)

    def pairs(sig: Signature) -> list[tuple[int, int]]:
        return layout(**dict(sig.attrs)).pairs()

    update.gradient(gradient)
    update.pairs = pairs


def draw_sample(
    rng: np.random.Generator, layout: Layout, scalars: Sequence[float], found_inf: bool = False
) -> tuple:
    """Return the inputs of a sample: parameters of a few shapes, the state positive."""
    shapes = [(3,), (2, 2), (), (0, 2)][: layout.count]
    inputs = [rng.normal(size=s) for _ in range(2) for s in shapes]
    inputs += [rng.uniform(0.5, 1.5, size=s) for _ in layout.states for s in shapes]
    inputs += [np.array(3, np.int32)] * layout.steps
    inputs += [np.array(s) for s in scalars]
    return (*inputs, np.array(found_inf)) if layout.has_found_inf else tuple(inputs)


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


def decayed(scratch: np.ndarray, decay: Any, param: np.ndarray, grad: np.ndarray) -> np.ndarray:
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
