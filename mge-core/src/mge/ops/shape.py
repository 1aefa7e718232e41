"""Shape ops: the same elements under another shape, order of axes or size by broadcasting.

In: tensors and target shapes. Out: the base ops ``reshape``, ``transpose``, ``broadcast_to``, and ``expand_dims``,
``squeeze``, ``flatten`` in terms of them.
After ``op``; before ``slicing``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import ShapeError, user_place
from ..op import op
from ..types import abstract, normal_axes, normal_axis

if TYPE_CHECKING:
    from ..tensor import Tensor

FUNCTIONS = ("transpose",)


def known_shape(
    inp_shape: tuple[int, ...], shape: tuple[int, ...], where: str = "reshape"
) -> tuple[int, ...]:
    """Return ``shape`` with its one -1 replaced by the size that keeps the number of elements."""
    size = math.prod(inp_shape)
    if -1 in shape:
        rest = -math.prod(shape)
        if shape.count(-1) > 1 or min(shape) < -1:
            raise ShapeError(
                f"{where}: shape is {shape}; one size may be -1, the others must be 0 or more"
            )
        if rest == 0 or size % rest:
            raise ShapeError(
                f"{where}: inp of shape {inp_shape} has {size} elements; they do not divide into shape {shape}"
            )
        return tuple(size // rest if n == -1 else n for n in shape)
    if any(n < 0 for n in shape) or math.prod(shape) != size:
        raise ShapeError(
            f"{where}: inp of shape {inp_shape} has {size} elements; shape {shape} holds {math.prod(shape)}",
            hint="one size may be -1: it is then computed",
        )
    return shape


@op(base=True)
def reshape(inp: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    """Return the same elements, in row-major order, under another shape.

    ``y.ravel()[i] = inp.ravel()[i]``

    Parameters
    ----------
    inp : any shape, any dtype
    shape : tuple of int
        One size may be -1: it is computed from the number of elements.

    Returns
    -------
    (shape) same dtype as ``inp``

    Raises
    ------
    ShapeError
        The numbers of elements differ, or more than one size is -1.

    Examples
    --------
    >>> reshape(tensor([1.0, 2.0, 3.0, 4.0]), (2, -1))
    Tensor([[1., 2.],
            [3., 4.]], dtype=float32, device=ref:0)
    """
    return abstract(known_shape(inp.shape, shape), inp.dtype)


reshape.aliases = True


@reshape.reference
def _(inp, *, shape):
    return inp.reshape(known_shape(inp.shape, shape))


@reshape.gradient
def _(dy, y, inp, *, shape):
    return (reshape(dy, shape=inp.shape),)


@reshape.samples
def _(rng):
    yield (rng.normal(size=(2, 6)),), {"shape": (3, 4)}
    yield (rng.normal(size=(2, 6)),), {"shape": (4, -1)}
    yield (rng.normal(size=()),), {"shape": (1, 1)}
    yield (rng.normal(size=(1,)),), {"shape": ()}
    yield (np.zeros((0, 3)),), {"shape": (3, 0)}


def known_pattern(pattern: tuple[int, ...] | None, ndim: int) -> tuple[int, ...]:
    """Return the permutation with its axes counted from the front; None reverses the axes."""
    if pattern is None:
        return tuple(range(ndim))[::-1]
    axes = tuple(normal_axis(a, ndim, "transpose") for a in pattern)
    if len(axes) != ndim or len(set(axes)) != ndim:
        raise ShapeError(
            f"transpose: pattern is {pattern}; it must name each of the {ndim} axes of inp once"
        )
    return axes


@op(base=True, name="transpose")
def permute(inp: Tensor, *, pattern: tuple[int, ...] | None = None) -> Tensor:
    """Permute the axes.

    ``y.shape[i] = inp.shape[pattern[i]]``

    Parameters
    ----------
    inp : any shape, any dtype
    pattern : tuple of int, optional
        The axis of ``inp`` that becomes each axis of the result; negative ones count from the end. By default
        the axes are reversed.

    Returns
    -------
    permuted shape, same dtype as ``inp``

    Raises
    ------
    ShapeError
        ``pattern`` is not a permutation of the axes.

    Examples
    --------
    >>> transpose(tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), (1, 0))
    Tensor([[1., 4.],
            [2., 5.],
            [3., 6.]], dtype=float32, device=ref:0)
    """
    return abstract(tuple(inp.shape[a] for a in known_pattern(pattern, inp.ndim)), inp.dtype)


@permute.reference
def _(inp, *, pattern):
    return inp.transpose(pattern)


@permute.gradient
def _(dy, y, inp, *, pattern):
    axes = known_pattern(pattern, inp.ndim)
    return (permute(dy, pattern=tuple(axes.index(i) for i in range(len(axes)))),)


@permute.samples
def _(rng):
    yield (rng.normal(size=(2, 3, 4)),), {"pattern": (2, 0, 1)}
    yield (rng.normal(size=(2, 3)),), {"pattern": (-1, -2)}
    yield (rng.normal(size=(2, 3, 1)),), {}
    yield (rng.normal(size=()),), {"pattern": ()}
    yield (np.zeros((0, 3)),), {"pattern": (1, 0)}


def transpose(inp: Tensor, pattern: Sequence[int | str] | None = None) -> Tensor:
    """Permute the axes; the pattern may also insert and drop axes of size 1.

    ``y.shape[i] = inp.shape[pattern[i]]``, and 1 where ``pattern[i]`` is ``"x"``

    Parameters
    ----------
    inp : any shape, any dtype
    pattern : sequence of int or "x", optional
        The axis of ``inp`` that becomes each axis of the result; negative ones count from the end, and ``"x"`` is a
        new axis of size 1. An axis of ``inp`` that is not named must have size 1: it is dropped. By default the
        axes are reversed.

    Returns
    -------
    permuted shape, same dtype as ``inp``

    Raises
    ------
    ShapeError
        An axis is named twice or out of range, or one that is not named has another size than 1.

    Examples
    --------
    >>> transpose(tensor([[1.0, 2.0], [3.0, 4.0]]), (1, 0))
    Tensor([[1., 3.],
            [2., 4.]], dtype=float32, device=ref:0)
    >>> transpose(tensor([1.0, 2.0]), ("x", 0)).shape
    (1, 2)
    """
    if pattern is None:
        return permute(inp)
    if not isinstance(pattern, tuple):
        pattern = tuple(pattern)
    if len(pattern) == inp.ndim and "x" not in pattern:
        return permute(inp, pattern=pattern)
    named = [normal_axis(int(a), inp.ndim, "transpose") for a in pattern if a != "x"]
    dropped = tuple(a for a in range(inp.ndim) if a not in named)
    if any(inp.shape[a] != 1 for a in dropped) or len(set(named)) != len(named):
        raise ShapeError(
            f"transpose: inp has shape {inp.shape} and pattern is {pattern}; it must name each axis once, "
            "and may leave out axes of size 1 only"
        ).add_place(user_place())
    moved = permute(inp, pattern=(*named, *dropped))
    sizes = iter(moved.shape)
    return reshape(moved, shape=tuple(1 if a == "x" else next(sizes) for a in pattern))


@op(base=True)
def broadcast_to(inp: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    """Repeat axes of size 1 so that the result has ``shape``.

    ``y[..., i, ...] = inp[..., 0, ...]`` on each axis where ``inp`` has size 1

    Parameters
    ----------
    inp : any shape that broadcasts to ``shape``, any dtype
    shape : tuple of int

    Returns
    -------
    (shape) same dtype as ``inp``

    Raises
    ------
    ShapeError
        ``inp`` has more axes than ``shape``, or an axis, counted from the end, has neither size 1 nor the target's.

    Examples
    --------
    >>> broadcast_to(tensor([1.0, 2.0]), (2, 2))
    Tensor([[1., 2.],
            [1., 2.]], dtype=float32, device=ref:0)
    """
    lead = len(shape) - inp.ndim
    if (
        lead < 0
        or min(shape, default=0) < 0
        or any(n not in (1, m) for n, m in zip(inp.shape, shape[lead:]))
    ):
        raise ShapeError(
            f"broadcast_to: inp has shape {inp.shape}; each of its axes, counted from the end, must have size 1 "
            f"or the size in {shape}"
        )
    return abstract(shape, inp.dtype)


@broadcast_to.reference
def _(inp, *, shape):
    return np.broadcast_to(inp, shape)


@broadcast_to.gradient
def _(dy, y, inp, *, shape):
    from .broadcasting import unbroadcast

    return (unbroadcast(dy, inp),)


@broadcast_to.samples
def _(rng):
    yield (rng.normal(size=(3, 1)),), {"shape": (2, 3, 4)}
    yield (rng.normal(size=()),), {"shape": (2, 2)}
    yield (rng.normal(size=(2, 3)),), {"shape": (2, 3)}
    yield (rng.normal(size=()),), {"shape": ()}
    yield (rng.normal(size=(1, 3)),), {"shape": (0, 3)}


@op
def expand_dims(inp: Tensor, *, axis: int | tuple[int, ...]) -> Tensor:
    """Insert axes of size 1.

    ``y.shape[a] = 1`` for each ``a`` in ``axis``; the other axes are those of ``inp``

    Parameters
    ----------
    inp : any shape, any dtype
    axis : int or tuple of int
        Positions in the result, negative ones counted from its end.

    Returns
    -------
    shape of ``inp`` with the new axes, same dtype

    Raises
    ------
    ShapeError
        An axis is out of the result's range or named twice.

    Examples
    --------
    >>> expand_dims(tensor([1.0, 2.0]), 1)
    Tensor([[1.],
            [2.]], dtype=float32, device=ref:0)
    """
    count = len(axis) if isinstance(axis, tuple) else 1
    axes = normal_axes(axis, inp.ndim + count, "expand_dims")
    sizes = iter(inp.shape)
    return abstract(
        tuple(1 if i in axes else next(sizes) for i in range(inp.ndim + count)), inp.dtype
    )


expand_dims.aliases = True


@expand_dims.reference
def _(inp, *, axis):
    return np.expand_dims(inp, axis)


@expand_dims.gradient
def _(dy, y, inp, *, axis):
    return (reshape(dy, shape=inp.shape),)


@expand_dims.lowering
def _(inp, *, axis):
    return reshape(inp, shape=expand_dims.rule(abstract(inp.shape, inp.dtype), axis=axis).shape)


@expand_dims.samples
def _(rng):
    yield (rng.normal(size=(2, 3)),), {"axis": 0}
    yield (rng.normal(size=(2, 3)),), {"axis": -1}
    yield (rng.normal(size=(2,)),), {"axis": (0, 2)}
    yield (rng.normal(size=()),), {"axis": 0}
    yield (np.zeros((0, 2)),), {"axis": 1}


@op
def squeeze(inp: Tensor, *, axis: int | tuple[int, ...] | None = None) -> Tensor:
    """Remove axes of size 1.

    ``y.shape`` is ``inp.shape`` without the axes in ``axis``

    Parameters
    ----------
    inp : any shape, any dtype
    axis : int or tuple of int, optional
        Each must have size 1. By default all axes of size 1.

    Returns
    -------
    shape of ``inp`` without those axes, same dtype

    Raises
    ------
    ShapeError
        An axis is out of range, named twice, or has another size than 1.

    Examples
    --------
    >>> squeeze(tensor([[1.0], [2.0]]), 1)
    Tensor([1., 2.], dtype=float32, device=ref:0)
    """
    if axis is None:
        return abstract(tuple(n for n in inp.shape if n != 1), inp.dtype)
    axes = normal_axes(axis, inp.ndim, "squeeze")
    if any(inp.shape[a] != 1 for a in axes):
        raise ShapeError(
            f"squeeze: inp has shape {inp.shape} and axis is {axis}; each of these axes must have size 1"
        )
    return abstract(tuple(n for i, n in enumerate(inp.shape) if i not in axes), inp.dtype)


squeeze.aliases = True


@squeeze.reference
def _(inp, *, axis):
    return np.squeeze(inp, axis)


@squeeze.gradient
def _(dy, y, inp, *, axis):
    return (reshape(dy, shape=inp.shape),)


@squeeze.lowering
def _(inp, *, axis):
    return reshape(inp, shape=squeeze.rule(abstract(inp.shape, inp.dtype), axis=axis).shape)


@squeeze.samples
def _(rng):
    yield (rng.normal(size=(1, 3, 1)),), {}
    yield (rng.normal(size=(1, 3, 1)),), {"axis": -1}
    yield (rng.normal(size=(1, 3, 1)),), {"axis": (0, 2)}
    yield (rng.normal(size=()),), {}
    yield (np.zeros((0, 1)),), {"axis": 1}


@op
def flatten(inp: Tensor, *, start_axis: int = 0, end_axis: int = -1) -> Tensor:
    """Join neighbouring axes into one.

    ``y.shape = inp.shape[:start_axis] + (n,) + inp.shape[end_axis + 1:]``, ``n`` the product of the joined sizes

    Parameters
    ----------
    inp : any shape, any dtype
        A tensor without axes gives one with one axis.
    start_axis, end_axis : int, default 0 and -1
        First and last axis to join, negative ones counted from the end.

    Returns
    -------
    joined shape, same dtype as ``inp``

    Raises
    ------
    ShapeError
        An axis is out of range, or the first comes after the last.

    Examples
    --------
    >>> flatten(tensor([[1.0, 2.0], [3.0, 4.0]]))
    Tensor([1., 2., 3., 4.], dtype=float32, device=ref:0)
    """
    ndim = max(inp.ndim, 1)
    start, end = normal_axis(start_axis, ndim, "flatten"), normal_axis(end_axis, ndim, "flatten")
    if start > end:
        raise ShapeError(
            f"flatten: start_axis is {start_axis} and end_axis is {end_axis} for inp of shape {inp.shape}; "
            "the first must not come after the last"
        )
    shape = inp.shape or (1,)
    return abstract(
        (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :]), inp.dtype
    )


flatten.aliases = True


@flatten.reference
def _(inp, *, start_axis, end_axis):
    shape = flatten.rule(
        abstract(inp.shape, inp.dtype), start_axis=start_axis, end_axis=end_axis
    ).shape
    return inp.reshape(shape)


@flatten.gradient
def _(dy, y, inp, *, start_axis, end_axis):
    return (reshape(dy, shape=inp.shape),)


@flatten.lowering
def _(inp, *, start_axis, end_axis):
    shape = flatten.rule(
        abstract(inp.shape, inp.dtype), start_axis=start_axis, end_axis=end_axis
    ).shape
    return reshape(inp, shape=shape)


@flatten.samples
def _(rng):
    yield (rng.normal(size=(2, 3, 2)),), {}
    yield (rng.normal(size=(2, 3, 2)),), {"start_axis": 1}
    yield (rng.normal(size=(2, 3, 2)),), {"start_axis": -3, "end_axis": 1}
    yield (rng.normal(size=()),), {}
    yield (np.zeros((2, 0, 2)),), {"start_axis": 1}
