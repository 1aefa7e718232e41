"""What the elementwise ops share: gradients of inputs that broadcast, samples.

In: ufuncs, gradients, types. Out: helpers for the files of elementwise ops; no op.
After ``op``; before ``elementwise``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DTypeError
from ..types import Type, broadcast

if TYPE_CHECKING:
    from ..tensor import Tensor


def unbroadcast(dx: Tensor, like: Tensor) -> Tensor:
    """Return a gradient in the shape of the input that it belongs to.

    Parameters
    ----------
    dx : tensor
        The gradient in the shape of the output, or one that broadcasts to it.
    like : tensor
        The input. Only its shape is used.

    Returns
    -------
    (shape of ``like``) dtype of ``dx``
        Summed over the axes along which ``like`` was repeated.
    """
    shape = like.shape
    if dx.shape == shape:
        return dx
    from .reduction import sum
    from .shape import broadcast_to, reshape

    full = broadcast(dx.shape, shape, where="unbroadcast")
    if dx.shape != full:
        dx = broadcast_to(dx, full)
    extra = len(full) - len(shape)
    ones = [extra + i for i, n in enumerate(shape) if n == 1 and full[extra + i] != 1]
    axes = (*range(extra), *ones)
    if axes:
        dx = sum(dx, axis=axes)
    return dx if dx.shape == shape else reshape(dx, shape)


def widened(x: np.ndarray) -> np.ndarray:
    """Return a float array in the dtype to compute in: float32, or float64 for float64."""
    return x.astype(np.promote_types(x.dtype, np.float32), copy=False)


def refuse_bool(name: str, x: Tensor | Type) -> None:
    """Raise a DTypeError where bools have no such arithmetic."""
    if x.dtype.is_bool:
        raise DTypeError(
            f"{name}: the inputs are bool; {name} takes floats and integers",
            hint="x.astype('int32'), or the ops logical_xor and logical_not",
        )


def refuse_float(name: str, x: Tensor | Type) -> None:
    """Raise a DTypeError where floats have no such operation."""
    if x.dtype.is_float:
        raise DTypeError(
            f"{name}: the inputs are {x.dtype}; {name} takes integers", hint="x.astype('int32')"
        )


def no_gradient(dy: Tensor, y: Tensor, *inputs: Tensor, **attrs: Any) -> tuple[None, ...]:
    """Return no gradient for any input: the function is constant almost everywhere, or random."""
    return (None,) * len(inputs)


Samples = Iterator[tuple[tuple[np.ndarray, ...], dict]]


def singles(rng: np.random.Generator, low: float = -3.0, high: float = 3.0) -> Samples:
    """Yield samples of an op with one input, uniform in [low, high)."""
    for shape in [(), (7,), (2, 3), (0, 3)]:
        yield (rng.uniform(low, high, shape),), {}


PAIRS = [((), ()), ((7,), (7,)), ((2, 1, 3), (4, 1)), ((2, 3), ()), ((0, 3), (3,))]


def pairs(rng: np.random.Generator, low: float = -3.0, high: float = 3.0) -> Samples:
    """Yield samples of an op with two inputs that broadcast, uniform in [low, high)."""
    for one, other in PAIRS:
        yield (rng.uniform(low, high, one), rng.uniform(low, high, other)), {}


def divisions(rng: np.random.Generator) -> Samples:
    """Yield pairs whose second input stays away from 0."""
    for (x, y), attrs in pairs(rng):
        yield (x, np.copysign(np.abs(y) + 0.7, y)), attrs


def integer_pairs(rng: np.random.Generator, low: int = 0, high: int = 8) -> Samples:
    """Yield pairs of integers in [low, high) that broadcast."""
    for one, other in PAIRS:
        yield (rng.integers(low, high, one), rng.integers(low, high, other)), {}
