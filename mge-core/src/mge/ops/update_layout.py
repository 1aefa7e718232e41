"""What all optimizer updates share: the order of inputs and outputs, and how an update runs.

In: the inputs of an update, and what it does to one block. Out: ``Layout``, ``run``, ``lower``, ``finish``.
After ``multi_tensor``; before ``update``.

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
from ..op import Op
from ..types import Type
from .multi_tensor import BLOCK, blocks, prepared, wide_block

if TYPE_CHECKING:
    from ..tensor import Tensor


class Layout(NamedTuple):
    """Where what stands among the inputs of an update.

    Attributes
    ----------
    name : str
    states : tuple of str
        The kinds of state, one tensor for each parameter.
    scalars : tuple of str
        The hyper-parameters that are inputs.
    parameters, steps : int
        How many of each there are.
    has_found_inf : bool
    """

    name: str
    states: tuple[str, ...]
    scalars: tuple[str, ...]
    parameters: int
    steps: int
    has_found_inf: bool

    @property
    def rows(self) -> int:
        """How many groups of ``parameters`` inputs there are."""
        return 2 + len(self.states)

    @property
    def total(self) -> int:
        """How many inputs there are."""
        return self.rows * self.parameters + self.steps + len(self.scalars) + self.has_found_inf

    def split(self, inps: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any], Any]:
        """Return (for each parameter (param, grad, *state)), counters, hyper-parameters, found_inf or None."""
        each = [
            [inps[k * self.parameters + i] for k in range(self.rows)]
            for i in range(self.parameters)
        ]
        start = self.rows * self.parameters
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
        states = inps[2 * self.parameters : self.rows * self.parameters + self.steps]
        return [*inps[: self.parameters], *states]

    def pairs(self) -> list[tuple[int, int]]:
        """Return (input, output) positions: the output may be written over the input's buffer."""
        kept = [
            *range(self.parameters),
            *range(2 * self.parameters, self.rows * self.parameters + self.steps),
        ]
        return [(i, o) for o, i in enumerate(kept)]

    def check(self, inps: Sequence[Tensor | Type]) -> tuple[Tensor | Type, ...]:
        """Return the types of the outputs; raise an error where the inputs do not fit."""
        if self.parameters < 1 or self.steps not in (0, 1, self.parameters):
            raise ArgumentError(
                f"{self.name}: count is {self.parameters} and steps is {self.steps}; "
                "there must be 1 parameter or more, and 1 counter or one for each"
            )
        if len(inps) != self.total:
            order = ("params", "grads", *self.states, "steps", *self.scalars, "found_inf")
            raise ArgumentError(
                f"{self.name}: {len(inps)} inputs were given; {self.parameters} parameters need {self.total}: "
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
            targets = [out[k * layout.parameters + i] for k in range(1 + len(layout.states))]
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


# By the name of an op.
LAYOUTS: dict[str, Callable[..., Layout]] = {}


def finish(update: Op, layout: Callable[..., Layout]) -> None:
    """Give an update what all of them share: no gradient, and the pairs of inputs and outputs."""

    def gradient(dy: Any, y: Any, *inps: Tensor, **attrs: Any) -> tuple:
        return (None,) * len(inps)

    def pairs(sig: Signature) -> list[tuple[int, int]]:
        return layout(**dict(sig.attrs)).pairs()

    update.gradient(gradient)
    update.pairs = pairs
    LAYOUTS[update.name] = layout


def draw_sample(
    rng: np.random.Generator, layout: Layout, scalars: Sequence[float], found_inf: bool = False
) -> tuple:
    """Return the inputs of a sample: parameters of a few shapes, the state positive."""
    shapes = [(3,), (2, 2), (), (0, 2)][: layout.parameters]
    inputs = [rng.normal(size=s) for _ in range(2) for s in shapes]
    inputs += [rng.uniform(0.5, 1.5, size=s) for _ in layout.states for s in shapes]
    inputs += [np.array(3, np.int32)] * layout.steps
    inputs += [np.array(s) for s in scalars]
    return (*inputs, np.array(found_inf)) if layout.has_found_inf else tuple(inputs)


def decayed(scratch: np.ndarray, decay: Any, param: np.ndarray, grad: np.ndarray) -> np.ndarray:
    """Return ``grad + decay * param``; ``grad`` itself where ``decay`` is 0."""
    if not decay:
        return grad
    np.multiply(param, decay, out=scratch)
    return np.add(scratch, grad, out=scratch)
