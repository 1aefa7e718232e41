"""Slicing: regular parts of a tensor, read and replaced.

In: tensors and bounds. Out: the base ops ``slice`` and ``slice_set``, and ``split``, ``flip``, ``diag``,
``swapaxes``.
After ``create``; before ``join``.
"""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ArgumentError, DTypeError, MgeError, ShapeError, user_place
from ..op import op
from ..types import abstract, normal_axes, normal_axis
from .create import zeros, zeros_like
from .shape import permute, reshape

if TYPE_CHECKING:
    from ..graph import Node
    from ..tensor import Tensor

FUNCTIONS = ("split", "flip", "diag", "swapaxes")
PRIVATE = ("slice", "slice_set")


def _cuts(
    starts: tuple[int, ...], stops: tuple[int, ...], steps: tuple[int, ...]
) -> tuple[builtins.slice, ...]:
    """Return NumPy's slices for stored bounds, in which a negative stop lies before element 0."""
    return tuple(
        builtins.slice(a, None if b < 0 else b, s) if range(a, b, s) else builtins.slice(0, 0)
        for a, b, s in zip(starts, stops, steps)
    )


def _cut_shape(inp, starts, stops, steps, where: str) -> tuple[int, ...]:
    """Return the shape of a part, and check that its bounds lie inside ``inp``."""
    if not len(starts) == len(stops) == len(steps) == inp.ndim:
        raise ShapeError(
            f"{where}: inp has shape {inp.shape}; starts {starts}, stops {stops} and steps {steps} "
            "must have one entry for each axis"
        )
    shape = []
    for axis, (n, start, stop, step) in enumerate(zip(inp.shape, starts, stops, steps)):
        taken = range(start, stop, step) if step else range(0)
        if (
            not step
            or taken
            and not (0 <= taken[0] < n and 0 <= taken[-1] < n)
            or not taken
            and start < 0
        ):
            raise ArgumentError(
                f"{where}: axis {axis} of inp with shape {inp.shape} is cut by {start}:{stop}:{step}; "
                f"the elements must lie in 0 to {n - 1} and the step must not be 0"
            )
        shape.append(len(taken))
    return tuple(shape)


@op(base=True)
def slice_(
    inp: Tensor, *, starts: tuple[int, ...], stops: tuple[int, ...], steps: tuple[int, ...]
) -> Tensor:
    """Take a regular part of a tensor.

    ``y[i, j, ...] = inp[starts[0] + i * steps[0], starts[1] + j * steps[1], ...]``

    Parameters
    ----------
    inp : any shape, any dtype
    starts, stops, steps : tuple of int
        One entry for each axis, as Python's ``slice.indices`` gives them: a negative step runs backwards, and its
        stop of -1 lies before element 0.

    Returns
    -------
    ``len(range(start, stop, step))`` on each axis, same dtype as ``inp``

    Raises
    ------
    ShapeError
        The number of entries is not the number of axes.
    ArgumentError
        An element out of range, or a step of 0.

    Examples
    --------
    >>> slice(tensor([1.0, 2.0, 3.0, 4.0]), starts=(3,), stops=(-1,), steps=(-2,))
    Tensor([4., 2.], dtype=float32, device=ref:0)
    """
    return abstract(_cut_shape(inp, starts, stops, steps, "slice"), inp.dtype)


@slice_.reference
def _(inp, *, starts, stops, steps):
    return inp[_cuts(starts, stops, steps)]


slice_.picks = True


@slice_.gradient
def _(dy, y, inp, *, starts, stops, steps):
    return (slice_set(zeros_like(inp), dy, starts=starts, stops=stops, steps=steps),)


@slice_.samples
def _(rng):
    yield (rng.normal(size=(5, 4)),), {"starts": (1, 0), "stops": (4, 4), "steps": (1, 2)}
    yield (rng.normal(size=(5, 2)),), {"starts": (4, 1), "stops": (-1, -1), "steps": (-2, -1)}
    yield (rng.normal(size=(5,)),), {"starts": (2,), "stops": (2,), "steps": (1,)}
    yield (rng.normal(size=()),), {"starts": (), "stops": (), "steps": ()}
    yield (np.zeros((0, 3)),), {"starts": (0, 2), "stops": (0, -1), "steps": (1, -1)}


def slice_along(inp: Tensor, axis: int, start: int, stop: int) -> Tensor:
    """Return ``inp[..., start:stop, ...]`` on one axis; ``inp`` itself where that is all. Bounds are not negative."""
    if start == 0 and stop == inp.shape[axis]:
        return inp
    return _part_of(inp, axis, start, stop)


def _part_of(inp: Tensor, axis: int, start: int, stop: int) -> Tensor:
    shape = inp.shape
    return slice_(
        inp,
        starts=tuple(start if i == axis else 0 for i in range(len(shape))),
        stops=tuple(stop if i == axis else n for i, n in enumerate(shape)),
        steps=(1,) * len(shape),
    )


@op(base=True)
def slice_set(
    inp: Tensor,
    value: Tensor,
    *,
    starts: tuple[int, ...],
    stops: tuple[int, ...],
    steps: tuple[int, ...],
) -> Tensor:
    """Return a copy of a tensor in which a regular part is replaced.

    ``y = inp``, then ``y[starts[0] + i * steps[0], ...] = value[i, ...]``

    Parameters
    ----------
    inp : any shape, any dtype
    value : shape of the part, same dtype as ``inp``
    starts, stops, steps : tuple of int
        The part, as in ``slice``.

    Returns
    -------
    shape and dtype of ``inp``

    Raises
    ------
    ShapeError
        ``value`` has not the shape of the part, or the number of entries is not the number of axes.
    DTypeError
        The dtypes differ.
    ArgumentError
        An element out of range, or a step of 0.

    Examples
    --------
    >>> slice_set(tensor([1.0, 2.0, 3.0]), tensor([9.0]), starts=(1,), stops=(2,), steps=(1,))
    Tensor([1., 9., 3.], dtype=float32, device=ref:0)
    """
    shape = _cut_shape(inp, starts, stops, steps, "slice_set")
    if value.shape != shape:
        raise ShapeError(
            f"slice_set: value has shape {value.shape}; the part of inp {inp.shape} has shape {shape}"
        )
    if value.dtype != inp.dtype:
        raise DTypeError(
            f"slice_set: inp is {inp.dtype} and value is {value.dtype}; both must be the same"
        )
    return abstract(inp.shape, inp.dtype)


slice_set.inplace = (0,)


@slice_set.reference
def _(inp, value, *, starts, stops, steps, out):
    np.copyto(out, inp)
    out[_cuts(starts, stops, steps)] = value
    return out


def add_part(x: Tensor, part: Tensor) -> Tensor:
    """Return ``x + part``; where ``part`` is zeros around what goes where ``x`` is zeros, put it there instead.

    So the gradients by many slices of a tensor are made in one array, not as one of its size each.
    """
    node = part._node
    if node.sig.op.name == "slice_set" and _is_zeros(node.inputs[0]):
        cut, below = dict(node.sig.attrs), x._node
        while below.sig.op.name == "slice_set" and _lie_apart(cut, dict(below.sig.attrs)):
            below = below.inputs[0]
        if _is_zeros(below):
            return slice_set(x, type(x).from_node(node.inputs[1]), **cut)
    return x + part


def _is_zeros(node: Node) -> bool:
    while node.sig.op.name == "broadcast_to":
        node = node.inputs[0]
    return node.sig.op.name == "constant" and not any(dict(node.sig.attrs)["data"])


def _lie_apart(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two parts of a tensor have no element in common, as their first and last ones tell."""
    taken = (map(range, cut["starts"], cut["stops"], cut["steps"]) for cut in (one, other))
    return any(
        not a or not b or max(a[0], a[-1]) < min(b[0], b[-1])
        or max(b[0], b[-1]) < min(a[0], a[-1])
        for a, b in zip(*taken)
    )  # fmt: skip


@slice_set.gradient
def _(dy, y, inp, value, *, starts, stops, steps):
    part = {"starts": starts, "stops": stops, "steps": steps}
    return slice_set(dy, zeros_like(value), **part), slice_(dy, **part)


@slice_set.samples
def _(rng):
    yield (
        (rng.normal(size=(5, 4)), rng.normal(size=(3, 2))),
        {"starts": (1, 0), "stops": (4, 4), "steps": (1, 2)},
    )
    yield (
        (rng.normal(size=(5, 2)), rng.normal(size=(3, 2))),
        {"starts": (4, 1), "stops": (-1, -1), "steps": (-2, -1)},
    )
    yield (rng.normal(size=(5,)), np.zeros((0,))), {"starts": (2,), "stops": (2,), "steps": (1,)}
    yield (rng.normal(size=()), rng.normal(size=())), {"starts": (), "stops": (), "steps": ()}


def split(inp: Tensor, nsplits_or_sections: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """Cut a tensor into parts along an axis.

    ``y[k] = inp[..., cuts[k]:cuts[k + 1], ...]``

    Parameters
    ----------
    inp : any shape with at least 1 axis, any dtype
    nsplits_or_sections : int or sequence of int
        A number of parts, of which the first ones have one element more where the size does not divide; or the
        positions of the cuts, which rise.
    axis : int, default 0

    Returns
    -------
    list of tensors, same dtype as ``inp``

    Raises
    ------
    ShapeError
        ``axis`` is out of range.
    ArgumentError
        The number of parts is not positive.

    Examples
    --------
    >>> [part.shape for part in split(arange(10), 3)]
    [(4,), (3,), (3,)]
    >>> split(arange(4), [1])[1]
    Tensor([1., 2., 3.], dtype=float32, device=ref:0)
    """
    try:
        at = normal_axis(axis, inp.ndim, "split")
        given: Any = nsplits_or_sections
        given = given.tolist() if hasattr(given, "tolist") else given
        n = inp.shape[at]
        if isinstance(given, (tuple, list)):
            cuts = [builtins.slice(None, int(cut)).indices(n)[1] for cut in given]
        else:
            count = int(given)
            if count < 1:
                raise ArgumentError(
                    f"split: nsplits_or_sections is {count}; there must be at least 1 part"
                )
            small, longer = divmod(n, count)
            cuts = [k * small + min(k, longer) for k in range(1, count)]
    except MgeError as error:
        raise error.add_place(user_place()) from None
    bounds = [0, *cuts, n]
    return [_part_of(inp, at, a, max(a, b)) for a, b in itertools.pairwise(bounds)]


def flip(inp: Tensor, axis: int | tuple[int, ...] | None = None) -> Tensor:
    """Reverse the order of the elements along axes.

    ``y[..., i, ...] = inp[..., n - 1 - i, ...]``

    Parameters
    ----------
    inp : any shape, any dtype
    axis : int or tuple of int, optional
        By default all axes.

    Returns
    -------
    shape and dtype of ``inp``

    Raises
    ------
    ShapeError
        An axis is out of range or named twice.

    Examples
    --------
    >>> flip(tensor([1.0, 2.0, 3.0]))
    Tensor([3., 2., 1.], dtype=float32, device=ref:0)
    """
    try:
        axes = normal_axes(tuple(axis) if isinstance(axis, list) else axis, inp.ndim, "flip")
    except ShapeError as error:
        raise error.add_place(user_place()) from None
    turned = [i in axes and n > 0 for i, n in enumerate(inp.shape)]
    return slice_(
        inp,
        starts=tuple(n - 1 if t else 0 for n, t in zip(inp.shape, turned)),
        stops=tuple(-1 if t else n for n, t in zip(inp.shape, turned)),
        steps=tuple(-1 if t else 1 for t in turned),
    )


def diag(inp: Tensor, k: int = 0) -> Tensor:
    """Return a diagonal of a matrix, or the matrix with a given diagonal.

    ``y[i] = inp[i, i + k]``, or ``y[i, i + k] = inp[i]`` and 0 elsewhere (rows count from ``-k`` where it is negative)

    Parameters
    ----------
    inp : (n,) or (r, c), any dtype
    k : int, default 0
        Which diagonal: 0 is the main one, those above are positive.

    Returns
    -------
    (n + abs(k), n + abs(k)) for one axis, the diagonal's length for two; same dtype as ``inp``

    Raises
    ------
    ShapeError
        ``inp`` has neither 1 nor 2 axes.

    Examples
    --------
    >>> diag(tensor([1.0, 2.0]))
    Tensor([[1., 0.],
            [0., 2.]], dtype=float32, device=ref:0)
    >>> diag(tensor([[1.0, 2.0], [3.0, 4.0]]), k=1)
    Tensor([2.], dtype=float32, device=ref:0)
    """
    if inp.ndim == 1:
        n = inp.shape[0] + abs(k)
        start = k if k >= 0 else -k * n
        flat = zeros(n * n, dtype=inp.dtype, device=inp.device)
        cut = {"starts": (start,), "stops": (start + inp.shape[0] * (n + 1),), "steps": (n + 1,)}
        return reshape(slice_set(flat, inp, **cut) if inp.shape[0] else flat, shape=(n, n))
    if inp.ndim == 2:
        rows, columns = inp.shape
        count = max(0, min(rows, columns - k) if k >= 0 else min(rows + k, columns))
        start = (k if k >= 0 else -k * columns) if count else 0
        flat = reshape(inp, shape=(rows * columns,))
        return slice_(
            flat, starts=(start,), stops=(start + count * (columns + 1),), steps=(columns + 1,)
        )
    raise ShapeError(f"diag: inp has shape {inp.shape}; it must have 1 or 2 axes").add_place(
        user_place()
    )


def swapaxes(inp: Tensor, axis1: int, axis2: int) -> Tensor:
    """Exchange two axes.

    ``y.shape[axis1] = inp.shape[axis2]``, and the other way round

    Parameters
    ----------
    inp : any shape, any dtype
    axis1, axis2 : int
        Negative ones count from the end.

    Returns
    -------
    shape of ``inp`` with two sizes exchanged, same dtype

    Raises
    ------
    ShapeError
        An axis is out of range.

    Examples
    --------
    >>> swapaxes(tensor([[1.0, 2.0, 3.0]]), 0, 1).shape
    (3, 1)
    """
    axes = list(range(inp.ndim))
    try:
        first, second = (
            normal_axis(axis1, inp.ndim, "swapaxes"),
            normal_axis(axis2, inp.ndim, "swapaxes"),
        )
    except ShapeError as error:
        raise error.add_place(user_place()) from None
    axes[first], axes[second] = second, first
    return permute(inp, pattern=tuple(axes))
