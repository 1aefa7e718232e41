"""Ops on many tensors at once: their common norm, whether all are finite, one factor for all.

In: any number of tensors. Out: the ops ``global_norm``, ``all_finite``, ``scale_all``, and the walk over arrays in
blocks that updates use too. After ``reduction``; before ``update_layout``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dtype import bool_, float32, promote, wide_of
from ..errors import ArgumentError, DTypeError, ShapeError
from ..op import op
from ..types import Type, abstract
from .broadcasting import no_gradient

if TYPE_CHECKING:
    from ..tensor import Tensor

PRIVATE = ("global_norm", "all_finite", "scale_all")

BLOCK = 8192  # elements in one turn: a few such arrays stay in the first- or second-level cache


def blocks(*arrays: np.ndarray) -> Iterator[list[np.ndarray]]:
    """Walk over arrays of one shape in blocks: yield the same flat part of each, as views."""
    flat = [a.reshape(-1) for a in arrays]
    for start in range(0, flat[0].size, BLOCK):
        yield [a[start : start + BLOCK] for a in flat]


def wide_block(block: np.ndarray) -> np.ndarray:
    """Return a block in float32 or wider; itself where it is."""
    return block.astype(np.float32) if block.dtype.itemsize == 2 else block


def _check_floats(name: str, inps: Sequence[Tensor | Type]) -> None:
    for i, type_ in enumerate(inps):
        if not type_.dtype.is_float:
            raise DTypeError(f"{name}: tensor {i} is {type_.dtype}; all must be float tensors")


@op(autocast="high")
def global_norm(*inps: Tensor, ord: float = 2.0) -> Tensor:
    """Return the norm of all elements of all tensors.

    ``y = (sum over all elements of abs(x)**ord)**(1 / ord)``; the largest magnitude for ``ord=inf``

    Parameters
    ----------
    inps : any number of tensors, (any shape) float
    ord : float, default 2.0
        The norm's order, above 0.

    Returns
    -------
    () the common dtype of ``inps``, float32 or wider

    Raises
    ------
    DTypeError
        A tensor is no float tensor.
    ArgumentError
        ``ord`` is not above 0.

    Notes
    -----
    0 without elements. The sum of a tensor is taken in blocks of 8,192 elements, added up in float64 on ``ref``.

    Examples
    --------
    >>> global_norm(tensor([3.0]), tensor([[0.0, 4.0]]))
    Tensor(5., dtype=float32, device=ref:0)
    """
    _check_floats("global_norm", inps)
    if not ord > 0:
        raise ArgumentError(f"global_norm: ord is {ord}; it must be above 0")
    return abstract((), promote(float32, *(i.dtype for i in inps)))


@global_norm.reference
def _(*inps, ord):
    wide = np.float64 if any(x.dtype == np.float64 for x in inps) else np.float32
    scratch = np.empty(BLOCK, np.float64)
    total = 0.0
    with np.errstate(all="ignore"):
        for x in inps:
            for (block,) in blocks(x):
                block = wide_block(block)
                part = scratch[: block.size].view(block.dtype)[: block.size]
                if ord == math.inf:
                    total = np.maximum(total, np.max(np.abs(block, out=part)))
                elif ord == 2:
                    total += float(np.add.reduce(np.multiply(block, block, out=part)))
                else:
                    np.power(np.abs(block, out=part), block.dtype.type(ord), out=part)
                    total += float(np.add.reduce(part))
        if ord != math.inf:
            total = np.sqrt(total) if ord == 2 else np.power(total, 1 / ord)
        return np.asarray(total).astype(wide)


@global_norm.lowering
def _(*inps, ord):
    from .elementwise import maximum
    from .exponential import sqrt, square
    from .reduction import max, sum
    from .rounding import abs
    from .select import cast

    wide = promote(float32, *(x.dtype for x in inps))
    total = None
    for x in inps:
        if not x.size:
            continue
        x = cast(x, dtype=wide)
        if ord == math.inf:
            part = max(abs(x))
            total = part if total is None else maximum(total, part)
        else:
            part = sum(square(x) if ord == 2 else abs(x) ** ord)
            total = part if total is None else total + part
    if total is None:
        from .create import scalar

        return scalar(0.0, wide)
    if ord == math.inf:
        return total
    return sqrt(total) if ord == 2 else total ** (1 / ord)


@global_norm.samples
def _(rng):
    yield (rng.normal(size=3), rng.normal(size=(2, 2)), rng.normal(size=())), {}
    yield (rng.normal(size=3), np.zeros((0, 2)), rng.normal(size=4)), {"ord": 3.0}
    yield (rng.normal(size=4) + 3,), {"ord": math.inf}
    yield (np.zeros((0,)),), {}


@op
def all_finite(*inps: Tensor) -> Tensor:
    """Return whether no element of any tensor is infinite or NaN.

    ``y = all(isfinite(x) for each element x of each tensor)``

    Parameters
    ----------
    inps : any number of tensors, (any shape) float

    Returns
    -------
    () bool

    Raises
    ------
    DTypeError
        A tensor is no float tensor.

    Examples
    --------
    >>> all_finite(tensor([1.0, 2.0]), tensor([float("inf")]))
    Tensor(False, dtype=bool, device=ref:0)
    """
    _check_floats("all_finite", inps)
    return abstract((), bool_)


@all_finite.reference
def _(*inps):
    return np.array(all(np.isfinite(block).all() for x in inps for (block,) in blocks(x)))


all_finite.gradient(no_gradient)


@all_finite.lowering
def _(*inps):
    from .create import scalar
    from .discrete_reduction import all as every
    from .finite import isfinite
    from .logic import logical_and

    total = None
    for x in inps:
        part = every(isfinite(x))
        total = part if total is None else logical_and(total, part)
    return scalar(True, bool_) if total is None else total


@all_finite.samples
def _(rng):
    yield (rng.normal(size=3), rng.normal(size=(2, 2))), {}
    yield (np.ones(3, np.float32), np.array([1.0, np.nan], np.float32)), {}
    yield (np.array(-np.inf, np.float32), np.zeros((0, 2), np.float32)), {}


@op
def scale_all(*inps: Tensor) -> tuple[Tensor, ...]:
    """Multiply many tensors by one number.

    ``y[i] = inps[i] * inps[-1]``

    Parameters
    ----------
    inps : any number of tensors, then the factor
        Tensors of any shapes and float dtypes; the factor is () float.

    Returns
    -------
    one tensor for each but the factor, of its shape and dtype

    Raises
    ------
    DTypeError
        A tensor is no float tensor.
    ShapeError
        The factor has an axis, or there is no tensor before it.

    Notes
    -----
    The product is computed in float32 or wider, in the dtype of the tensor.

    Examples
    --------
    >>> scale_all(tensor([1.0, 2.0]), tensor([3.0]), tensor(2.0))[0]
    Tensor([2., 4.], dtype=float32, device=ref:0)
    """
    _check_floats("scale_all", inps)
    if len(inps) < 2 or inps[-1].shape:
        raise ShapeError(
            f"scale_all: {len(inps)} tensors were given, the last of shape {inps[-1].shape if inps else None}; "
            "they must be 1 or more, then a factor of shape ()"
        )
    types: list[Any] = [abstract(i.shape, i.dtype) for i in inps[:-1]]
    return tuple(types)


scale_all.pairs = lambda sig: [(i, i) for i in range(len(sig.types))]


@scale_all.reference
def _(*inps, out=None):
    *inps, factor = inps
    out = prepared(out, inps)
    with np.errstate(all="ignore"):
        for x, y in zip(inps, out):
            if x.dtype.itemsize > 2:
                np.multiply(x, factor.astype(x.dtype), out=y)
            else:
                np.copyto(y, x.astype(np.float32) * factor.astype(np.float32), casting="same_kind")
    return out if len(out) > 1 else out[0]


def prepared(out: Any, like: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Return the arrays to write to: those given, one alone as a tuple of it, or new ones."""
    if out is None:
        return tuple(np.empty_like(x) for x in like)
    return (out,) if isinstance(out, np.ndarray) else tuple(out)


@scale_all.gradient
def _(dy, y, *inps):
    from .reduction import sum
    from .select import cast

    *tensors, factor = inps
    dys = dy if isinstance(dy, tuple) else (dy,)
    total = None
    found = []
    for d, x in zip(dys, tensors):
        if d is None:
            found.append(None)
            continue
        wide = wide_of(x.dtype)
        found.append(cast(cast(d, dtype=wide) * cast(factor, dtype=wide), dtype=x.dtype))
        part = cast(sum(cast(d, dtype=wide) * cast(x, dtype=wide)), dtype=factor.dtype)
        total = part if total is None else total + part
    return (*found, total)


@scale_all.lowering
def _(*inps):
    from .select import cast

    *tensors, factor = inps
    found = []
    for x in tensors:
        wide = wide_of(x.dtype)
        found.append(cast(cast(x, dtype=wide) * cast(factor, dtype=wide), dtype=x.dtype))
    return tuple(found)


@scale_all.samples
def _(rng):
    yield (rng.normal(size=3), rng.normal(size=(2, 2)), rng.normal(size=())), {}
    yield (rng.normal(size=(0, 2)), rng.normal(size=())), {}
