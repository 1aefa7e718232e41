"""Joining: tensors put side by side, and one put beside itself.

In: tensors. Out: the base op ``concat``, and ``stack``, ``repeat``, ``tile``, ``roll``,
``pad``, ``meshgrid`` in base ops.
After ``gather``; before ``tensor``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ArgumentError, MgeError, ShapeError, user_place
from ..op import op
from ..types import abstract, normal_axis
from .create import as_shape, full, on_device
from .gather import index
from .shape import broadcast_to, expand_dims, reshape
from .slicing import slice_along, slice_set

if TYPE_CHECKING:
    from ..tensor import Tensor

FUNCTIONS = ("stack", "repeat", "tile", "roll", "pad", "meshgrid")


@op(base=True, promotes="same")
def concat(*inps: Tensor, axis: int = 0) -> Tensor:
    """Join tensors along an axis that they have.

    ``y[..., i, ...]`` runs through ``inps[0]``, then ``inps[1]``, and so on along ``axis``

    Parameters
    ----------
    inps : list of tensors, or one argument each
        Their sizes may differ on ``axis`` only. Dtypes are promoted to a common one.
    axis : int, default 0

    Returns
    -------
    shape of the inputs with the sum of their sizes on ``axis``, the common dtype

    Raises
    ------
    ArgumentError
        There is no input.
    ShapeError
        The inputs have no axis, or differ in another axis or in their number of axes.

    Examples
    --------
    >>> concat([tensor([1.0, 2.0]), tensor([3.0])])
    Tensor([1., 2., 3.], dtype=float32, device=ref:0)
    """
    if not inps:
        raise ArgumentError("concat: inps is empty; it must hold at least 1 tensor")
    first = inps[0]
    at = normal_axis(axis, first.ndim, "concat")
    for i, inp in enumerate(inps):
        if (
            inp.ndim != first.ndim
            or inp.shape[:at] + inp.shape[at + 1 :] != first.shape[:at] + first.shape[at + 1 :]
        ):
            raise ShapeError(
                f"concat: inps[0] has shape {first.shape} and inps[{i}] has shape {inp.shape}; "
                f"sizes may differ on axis {axis} only"
            )
    total = sum(inp.shape[at] for inp in inps)
    return abstract((*first.shape[:at], total, *first.shape[at + 1 :]), first.dtype)


@concat.reference
def _(*inps, axis, out):
    return np.concatenate(inps, axis, out=out)


@concat.gradient
def _(dy, y, *inps, axis):
    at, start, parts = axis % y.ndim, 0, []
    for inp in inps:
        stop = start + inp.shape[at]
        parts.append(slice_along(dy, at, start, stop))
        start = stop
    return tuple(parts)


@concat.samples
def _(rng):
    yield (rng.normal(size=(2, 3)), rng.normal(size=(1, 3))), {}
    yield (rng.normal(size=(2, 1)), rng.normal(size=(2, 3)), rng.normal(size=(2, 2))), {"axis": -1}
    yield (rng.normal(size=(3,)),), {}
    yield (np.zeros((0, 2)), rng.normal(size=(2, 2))), {"axis": 0}


def _list_of(where: str, inps: Any) -> list[Tensor]:
    made = list(inps)
    if not made:
        raise ArgumentError(f"{where}: inps is empty; it must hold at least 1 tensor").add_place(
            user_place()
        )
    return made


def stack(inps: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Join tensors of one shape along a new axis.

    ``y[..., k, ...] = inps[k]``

    Parameters
    ----------
    inps : sequence of tensors of one shape
        Dtypes are promoted to a common one.
    axis : int, default 0
        Position of the new axis in the result.

    Returns
    -------
    shape of the inputs with an axis of their number, the common dtype

    Raises
    ------
    ArgumentError
        There is no input.
    ShapeError
        The shapes differ, or ``axis`` is out of the result's range.

    Examples
    --------
    >>> stack([tensor([1.0, 2.0]), tensor([3.0, 4.0])], axis=1)
    Tensor([[1., 3.],
            [2., 4.]], dtype=float32, device=ref:0)
    """
    inps = _list_of("stack", inps)
    shapes = [getattr(inp, "shape", ()) for inp in inps]
    if len(set(shapes)) > 1:
        raise ShapeError(
            f"stack: the inputs have shapes {', '.join(map(str, shapes))}; all must be the same"
        ).add_place(user_place())
    return concat(*[expand_dims(inp, axis=axis) for inp in inps], axis=axis)


def repeat(inp: Tensor, repeats: int | Sequence[int], axis: int | None = None) -> Tensor:
    """Repeat each element, next to itself.

    ``y[..., i, ...] = inp[..., i // repeats, ...]``

    Parameters
    ----------
    inp : any shape, any dtype
    repeats : int or sequence of int
        How often: one number for all, or one for each element of the axis.
    axis : int, optional
        By default ``inp`` is flattened first.

    Returns
    -------
    shape of ``inp`` with the axis longer, or (inp.size * repeats,); same dtype

    Raises
    ------
    ShapeError
        ``axis`` is out of range, or ``repeats`` has another length than the axis.
    ArgumentError
        ``repeats`` is negative.

    Examples
    --------
    >>> repeat(tensor([[1.0, 2.0]]), 2, axis=1)
    Tensor([[1., 1., 2., 2.]], dtype=float32, device=ref:0)
    """
    if axis is None:
        inp, axis = reshape(inp, shape=(inp.size,)), 0
    try:
        at = normal_axis(axis, inp.ndim, "repeat")
        counts = np.asarray(repeats.tolist() if hasattr(repeats, "tolist") else repeats)
        if counts.size and counts.min() < 0 or counts.dtype.kind not in "iu" and counts.size:
            raise ArgumentError(
                f"repeat: repeats is {repeats}; it must be 0 or more, or a sequence of such"
            )
        if counts.size != 1 and counts.shape != (inp.shape[at],):
            raise ShapeError(
                f"repeat: repeats has {counts.size} entries and axis {axis} of inp {inp.shape} has {inp.shape[at]}; "
                "there must be one for each element, or a single one"
            )
    except MgeError as error:
        raise error.add_place(user_place()) from None
    shape = inp.shape
    if counts.size != 1:
        rows = np.repeat(np.arange(shape[at], dtype=np.int32), counts.astype(np.int64))
        with on_device(inp.device):
            return index(inp, rows, axes=(at,))
    count = int(counts.reshape(()))
    split = reshape(inp, shape=(*shape[: at + 1], 1, *shape[at + 1 :]))
    wide = broadcast_to(split, shape=(*shape[: at + 1], count, *shape[at + 1 :]))
    return reshape(wide, shape=(*shape[:at], shape[at] * count, *shape[at + 1 :]))


def tile(inp: Tensor, reps: int | Sequence[int]) -> Tensor:
    """Repeat a tensor as a whole along its axes.

    ``y[i, j] = inp[i % n, j % m]``

    Parameters
    ----------
    inp : any shape, any dtype
    reps : int or sequence of int
        How often for each axis, counted from the end; the shorter one of it and the shape is filled with ones.

    Returns
    -------
    each size times its number of repetitions, same dtype as ``inp``

    Raises
    ------
    ShapeError
        A number is negative.

    Examples
    --------
    >>> tile(tensor([1.0, 2.0]), (2, 2))
    Tensor([[1., 2., 1., 2.],
            [1., 2., 1., 2.]], dtype=float32, device=ref:0)
    """
    counts = as_shape(reps, "tile")
    ndim = max(len(counts), inp.ndim)
    counts = (1,) * (ndim - len(counts)) + counts
    shape = (1,) * (ndim - inp.ndim) + inp.shape
    pairs = [(n, m) for n, m in zip(counts, shape)]
    split = reshape(
        inp, shape=tuple(size for n, m in pairs for size in ((m,) if n == 1 else (1, m)))
    )
    wide = broadcast_to(
        split, shape=tuple(size for n, m in pairs for size in ((m,) if n == 1 else (n, m)))
    )
    return reshape(wide, shape=tuple(n * m for n, m in pairs))


def roll(
    inp: Tensor, shift: int | Sequence[int], axis: int | Sequence[int] | None = None
) -> Tensor:
    """Shift elements along axes; what leaves at the end enters at the start.

    ``y[..., i, ...] = inp[..., (i - shift) % n, ...]``

    Parameters
    ----------
    inp : any shape, any dtype
    shift : int or sequence of int, elements
        Positive numbers move towards the end.
    axis : int or sequence of int, optional
        One for each shift; an axis may come twice. By default the elements move in row-major order.

    Returns
    -------
    shape and dtype of ``inp``

    Raises
    ------
    ShapeError
        An axis is out of range.
    ArgumentError
        The numbers of shifts and axes differ.

    Examples
    --------
    >>> roll(tensor([1.0, 2.0, 3.0]), 1)
    Tensor([3., 1., 2.], dtype=float32, device=ref:0)
    """
    if axis is None:
        return reshape(roll(reshape(inp, shape=(inp.size,)), shift, 0), shape=inp.shape)
    shifts = (shift,) if isinstance(shift, int) else tuple(shift)
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    shifts = shifts * len(axes) if len(shifts) == 1 else shifts
    axes = axes * len(shifts) if len(axes) == 1 else axes
    try:
        if len(shifts) != len(axes):
            raise ArgumentError(
                f"roll: shift is {shift} and axis is {axis}; they must have the same length"
            )
        totals: dict[int, int] = {}
        for by, one in zip(shifts, axes):
            at = normal_axis(one, inp.ndim, "roll")
            totals[at] = totals.get(at, 0) + int(by)
    except MgeError as error:
        raise error.add_place(user_place()) from None
    moves = {
        at: by % inp.shape[at] for at, by in totals.items() if inp.shape[at] and by % inp.shape[at]
    }
    if not moves:
        return reshape(inp, shape=inp.shape)
    for at, by in moves.items():
        cut = inp.shape[at] - by
        inp = concat(
            slice_along(inp, at, cut, inp.shape[at]), slice_along(inp, at, 0, cut), axis=at
        )
    return inp


PAD_MODES = ("constant", "edge", "replicate", "reflect")


def pad(
    src: Tensor,
    pad_width: Sequence[Sequence[int]],
    mode: str = "constant",
    constant_value: float = 0.0,
) -> Tensor:
    """Put elements before and after those of each axis.

    ``y[before + i] = src[i]`` on each axis

    Parameters
    ----------
    src : any shape, any dtype
    pad_width : sequence of (before, after), elements
        For the first axes; the rest stays as it is.
    mode : {"constant", "edge", "replicate", "reflect"}, default "constant"
        What is put there: ``constant_value``, the nearest element (``edge`` and ``replicate`` are the same), or the
        mirror image without the border itself.
    constant_value : float, default 0

    Returns
    -------
    each size plus its two widths, same dtype as ``src``

    Raises
    ------
    ArgumentError
        ``mode`` is unknown, a width is negative, or ``pad_width`` is not made of pairs.
    ShapeError
        There are more pairs than axes, or an axis is too short: the mirror image needs more elements than the
        width, and ``edge`` needs one.

    Examples
    --------
    >>> pad(tensor([1.0, 2.0, 3.0]), ((1, 2),), "reflect")
    Tensor([2., 1., 2., 3., 2., 1.], dtype=float32, device=ref:0)
    """
    try:
        widths = _pad_widths(src, pad_width, mode)
    except MgeError as error:
        raise error.add_place(user_place()) from None
    if mode == "constant":
        if not any(before or after for before, after in widths):
            return reshape(src, shape=src.shape)
        shape = tuple(n + before + after for n, (before, after) in zip(src.shape, widths))
        frame = full(shape, constant_value, dtype=src.dtype, device=src.device)
        starts = tuple(before for before, _ in widths)
        stops = tuple(n + before for n, (before, _) in zip(src.shape, widths))
        return slice_set(frame, src, starts=starts, stops=stops, steps=(1,) * src.ndim)
    made = src
    for axis, (n, (before, after)) in enumerate(zip(src.shape, widths)):
        if before or after:
            place = np.arange(-before, n + after, dtype=np.int32)
            place = (
                (n - 1) - abs((n - 1) - abs(place)) if mode == "reflect" else place.clip(0, n - 1)
            )
            with on_device(src.device):
                made = index(made, place, axes=(axis,))
    return made if made is not src else reshape(src, shape=src.shape)


def _pad_widths(src: Tensor, pad_width: Any, mode: str) -> list[tuple[int, int]]:
    """Return one (before, after) for each axis, and check it for ``pad``."""
    if mode not in PAD_MODES:
        raise ArgumentError(f"pad: mode is {mode!r}; it must be one of {', '.join(PAD_MODES)}")
    try:
        widths = [(int(before), int(after)) for before, after in pad_width]
    except (TypeError, ValueError):
        raise ArgumentError(
            f"pad: pad_width is {pad_width!r}; it must be a sequence of pairs (before, after)",
            hint="pad(x, ((0, 0), (1, 2)))",
        ) from None
    if any(n < 0 for pair in widths for n in pair):
        raise ArgumentError(f"pad: pad_width is {pad_width}; each width must be 0 or more")
    if len(widths) > src.ndim:
        raise ShapeError(
            f"pad: pad_width has {len(widths)} pairs; src of shape {src.shape} has {src.ndim} axes"
        )
    widths += [(0, 0)] * (src.ndim - len(widths))
    for axis, (n, pair) in enumerate(zip(src.shape, widths)):
        if mode == "reflect" and max(pair) > max(n - 1, 0):
            raise ShapeError(
                f"pad: axis {axis} of src {src.shape} is padded by {pair} with mode 'reflect'; "
                f"at most {max(n - 1, 0)} fit"
            )
        if mode in ("edge", "replicate") and max(pair) and not n:
            raise ShapeError(
                f"pad: axis {axis} of src {src.shape} is empty; mode {mode!r} needs an element"
            )
    return widths


def meshgrid(*inputs: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Return the coordinates of a grid, from those of its axes.

    ``y[k][i0, i1, ...] = inputs[k][ik]`` with ``indexing="ij"``; ``"xy"`` exchanges the first two axes

    Parameters
    ----------
    inputs : (n_k,) each, any dtype
    indexing : {"xy", "ij"}, default "xy"

    Returns
    -------
    list of (n0, n1, n2, ...) for "ij", (n1, n0, n2, ...) for "xy"; each with the dtype of its input

    Raises
    ------
    ArgumentError
        ``indexing`` is unknown.
    ShapeError
        An input has more than 1 axis.

    Examples
    --------
    >>> xs, ys = meshgrid(tensor([1.0, 2.0]), tensor([5.0, 6.0]))
    >>> ys
    Tensor([[5., 5.],
            [6., 6.]], dtype=float32, device=ref:0)
    """
    if indexing not in ("xy", "ij"):
        raise ArgumentError(
            f"meshgrid: indexing is {indexing!r}; it must be 'xy' or 'ij'"
        ).add_place(user_place())
    if any(inp.ndim > 1 for inp in inputs):
        shapes = ", ".join(str(inp.shape) for inp in inputs)
        raise ShapeError(
            f"meshgrid: the inputs have shapes {shapes}; each may have 1 axis"
        ).add_place(user_place())
    axes = list(range(len(inputs)))
    if indexing == "xy" and len(inputs) > 1:
        axes[:2] = 1, 0
    shape = [0] * len(inputs)
    for axis, inp in zip(axes, inputs):
        shape[axis] = inp.size
    made = []
    for axis, inp in zip(axes, inputs):
        line = reshape(inp, shape=tuple(n if i == axis else 1 for i, n in enumerate(shape)))
        made.append(broadcast_to(line, shape=tuple(shape)))
    return made
