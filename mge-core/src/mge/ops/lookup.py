"""Lookups: rows of a table and elements along an axis, by integer tensors.

In: tables, positions. Out: ``gather``, ``scatter``, ``indexing_one_hot``, ``embedding``, ``embedding_bag``,
``one_hot``, and the two that trade channels for pixels, ``pixel_shuffle`` and ``pixel_unshuffle``.
After ``gather``; before ``tensor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..dtype import int32
from ..errors import ArgumentError, DTypeError, MgeError, ShapeError, user_place
from ..op import OPS
from ..types import normal_axis
from .constant import iota
from .create import as_type, counter, full_like, on_device, zeros
from .gather import index as index_op
from .gather import index_set, put_along, take_along
from .shape import expand_dims, permute, reshape, squeeze

if TYPE_CHECKING:
    from ..tensor import Tensor

FUNCTIONS = (
    "gather", "scatter", "indexing_one_hot", "embedding", "embedding_bag", "one_hot", "pixel_shuffle",
    "pixel_unshuffle",
)  # fmt: skip


def gather(inp: Tensor, axis: int, index: Tensor) -> Tensor:
    """Take one element on an axis for each element of an index tensor.

    ``y[i, j, k] = inp[i, index[i, j, k], k]`` for three axes and ``axis=1``

    Parameters
    ----------
    inp : any shape with at least 1 axis, any dtype
    axis : int
    index : as many axes as ``inp``, integer
        No axis but ``axis`` longer than that of ``inp``; values from ``-n`` to ``n - 1`` for a size ``n`` of ``axis``.

    Returns
    -------
    shape of ``index``, dtype of ``inp``

    Raises
    ------
    ShapeError
        The shapes do not fit, or ``axis`` is out of range.
    IndexRangeError
        A value is out of the axis' range (when the values are computed).

    Examples
    --------
    >>> gather(tensor([[1, 2], [3, 4], [5, 6]]), 0, tensor([[0, 2], [1, 0]]))
    Tensor([[1, 6],
            [3, 2]], dtype=int32, device=ref:0)
    """
    return take_along(inp, index, axis=axis)


def scatter(inp: Tensor, axis: int, index: Tensor, source: Tensor) -> Tensor:
    """Return a copy with one element on an axis replaced for each of ``source``.

    ``y = inp``, then ``y[i, index[i, j, k], k] = source[i, j, k]`` for three axes and ``axis=1``

    Parameters
    ----------
    inp : any shape with at least 1 axis, any dtype
    axis : int
    index : as many axes as ``inp``, integer
        No axis but ``axis`` longer than that of ``inp``; values from ``-n`` to ``n - 1`` for a size ``n`` of ``axis``.
    source : shape of ``index``
        It is converted to the dtype of ``inp``.

    Returns
    -------
    shape and dtype of ``inp``

    Raises
    ------
    ShapeError
        The shapes do not fit, or ``axis`` is out of range.
    IndexRangeError
        A value is out of the axis' range (when the values are computed).

    Notes
    -----
    Of two values for one position the last one stays. ``inp`` itself does not change.

    Examples
    --------
    >>> scatter(tensor([1.0, 2.0, 3.0]), 0, tensor([2, 0]), tensor([8.0, 9.0]))
    Tensor([9., 2., 8.], dtype=float32, device=ref:0)
    """
    return put_along(inp, index, as_type(source, inp.dtype), axis=axis)


def indexing_one_hot(src: Tensor, index: Tensor, axis: int = 1, keepdims: bool = False) -> Tensor:
    """Take the element of each row that an index tensor names.

    ``y[i, k] = src[i, index[i, k], k]`` for three axes and ``axis=1``

    Parameters
    ----------
    src : any shape with at least 1 axis, any dtype
    index : shape of ``src`` without ``axis``, integer
        Values from ``-n`` to ``n - 1`` for a size ``n`` of ``axis``.
    axis : int, default 1
    keepdims : bool, default False
        Keep ``axis`` with size 1.

    Returns
    -------
    shape of ``index``, with ``axis`` where it is kept; dtype of ``src``

    Raises
    ------
    ShapeError
        ``index`` has another shape, or ``axis`` is out of range.
    IndexRangeError
        A value is out of the axis' range (when the values are computed).

    Examples
    --------
    >>> indexing_one_hot(tensor([[1.0, 2.0], [3.0, 4.0]]), tensor([1, 0]))
    Tensor([2., 3.], dtype=float32, device=ref:0)
    """
    try:
        at = normal_axis(axis, src.ndim, "indexing_one_hot")
        if index.shape != src.shape[:at] + src.shape[at + 1 :]:
            raise ShapeError(
                f"indexing_one_hot: src has shape {src.shape} and index has shape {index.shape}; "
                f"index needs the shape of src without axis {axis}"
            )
    except MgeError as error:
        raise error.add_place(user_place()) from None
    made = take_along(src, expand_dims(index, axis=at), axis=at)
    return made if keepdims else squeeze(made, axis=at)


def embedding(
    inp: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float | None = None,
) -> Tensor:
    """Return the rows of a table that an integer tensor names.

    ``y[..., :] = weight[inp[...], :]``

    Parameters
    ----------
    inp : (...) integer
        Row numbers, 0 to ``n - 1``, or negative ones from the end.
    weight : (n, d)
        The table.
    padding_idx : int, optional
        A row that gets no gradient.
    max_norm : float, optional
        Rows whose norm is larger are scaled down to it as they are read; the table stays. The factor counts as
        a constant in the gradient.
    norm_type : float, default 2
        The ``p`` of that norm.

    Returns
    -------
    (..., d) dtype of ``weight``

    Raises
    ------
    ShapeError
        ``weight`` has not 2 axes.
    DTypeError
        ``inp`` is not an integer tensor.
    ArgumentError
        ``padding_idx`` is not a row of the table.
    IndexRangeError
        A row number out of range (when the values are computed).

    Examples
    --------
    >>> embedding(tensor([2, 0]), tensor([[1.0, 1.5], [2.0, 2.5], [3.0, 3.5]]))
    Tensor([[3. , 3.5],
            [1. , 1.5]], dtype=float32, device=ref:0)
    """
    from .select import detach, where

    try:
        _check_table("embedding", inp, weight, padding_idx)
    except MgeError as error:
        raise error.add_place(user_place()) from None
    rows = index_op(weight, inp, axes=(0,))
    if padding_idx is not None:
        padded = OPS["equal"](_from_front(inp, weight.shape[0]), padding_idx % weight.shape[0])
        rows = where(expand_dims(padded, axis=-1), detach(rows), rows)
    if max_norm is not None:
        from .statistics import norm

        size = norm(
            detach(rows), ord=2.0 if norm_type is None else float(norm_type), axis=-1, keepdims=True
        )
        tiny = 1e-7  # as in PyTorch's embedding: keeps the division finite
        rows = where(OPS["greater"](size, max_norm), rows * (max_norm / (size + tiny)), rows)
    return rows


def _check_table(where: str, inp: Tensor, weight: Tensor, padding_idx: int | None) -> None:
    if weight.ndim != 2:
        raise ShapeError(f"{where}: weight has shape {weight.shape}; it must be (rows, columns)")
    if not inp.dtype.is_integer:
        raise DTypeError(
            f"{where}: inp is {inp.dtype} of shape {inp.shape}; row numbers must be integers"
        )
    n = weight.shape[0]
    if padding_idx is not None and not -n <= padding_idx < n:
        raise ArgumentError(
            f"{where}: padding_idx is {padding_idx}; weight of shape {weight.shape} has rows -{n} to {n - 1}"
        )


def _from_front(positions: Tensor, size: int) -> Tensor:
    """Return positions with negative ones counted from the front."""
    from .select import where

    if not positions.dtype.is_signed:
        return positions
    wide = as_type(positions, int32) if positions.dtype.itemsize < 4 else positions
    return where(OPS["less"](wide, 0), OPS["add"](wide, size), wide)


BAG_MODES = ("sum", "mean", "max")


def embedding_bag(
    inp: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    mode: str = "mean",
    per_sample_weights: Tensor | None = None,
) -> Tensor:
    """Return the sum, mean or maximum of table rows for each bag of row numbers.

    ``y[b] = reduce over j of weight[inp[b, j]]``

    Parameters
    ----------
    inp : (b, l) integer, or (n,) integer with ``offsets``
        Row numbers.
    weight : (rows, d) float
        The table.
    offsets : (b,) integer, optional
        Where each bag starts in ``inp``; they rise, and the first is 0.
    mode : {"mean", "sum", "max"}, default "mean"
        An empty bag gives zeros.
    per_sample_weights : shape of ``inp``, optional
        A factor for each row; only with ``mode="sum"``.

    Returns
    -------
    (b, d) dtype of ``weight``

    Raises
    ------
    ArgumentError
        ``mode`` is unknown, is "max" with ``offsets``, or is not "sum" with ``per_sample_weights``.
    ShapeError
        The shapes do not fit.
    DTypeError
        ``inp`` or ``offsets`` is not an integer tensor.

    Examples
    --------
    >>> embedding_bag(tensor([[0, 1], [2, 2]]), tensor([[1.0], [3.0], [5.0]]))
    Tensor([[2.],
            [5.]], dtype=float32, device=ref:0)
    """
    try:
        _check_bags(inp, weight, offsets, mode, per_sample_weights)
    except MgeError as error:
        raise error.add_place(user_place()) from None
    rows = index_op(weight, inp, axes=(0,))
    if per_sample_weights is not None:
        rows = rows * expand_dims(per_sample_weights, axis=-1)
    if offsets is None:
        if not inp.shape[1]:
            return zeros((inp.shape[0], weight.shape[1]), dtype=weight.dtype, device=weight.device)
        return OPS[mode](rows, axis=1)
    bags = offsets.shape[0]
    with on_device(inp.device):
        starts = OPS["less_equal"](
            reshape(as_type(offsets, int32), shape=(1, bags)), counter((inp.shape[0], 1))
        )
    bag = OPS["sum"](as_type(starts, int32), axis=1) - 1
    empty = zeros((bags, weight.shape[1]), dtype=weight.dtype, device=weight.device)
    made = index_set(empty, rows, bag, axes=(0,), mode="add")
    if mode == "sum":
        return made
    ones = full_like(bag, 1, dtype=weight.dtype)
    count = index_set(
        zeros((bags,), dtype=weight.dtype, device=weight.device), ones, bag, axes=(0,), mode="add"
    )
    return made / expand_dims(OPS["maximum"](count, 1), axis=-1)


def _check_bags(inp: Tensor, weight: Tensor, offsets: Any, mode: str, factors: Any) -> None:
    where = "embedding_bag"
    _check_table(where, inp, weight, None)
    if mode not in BAG_MODES:
        raise ArgumentError(f"{where}: mode is {mode!r}; it must be one of {', '.join(BAG_MODES)}")
    if inp.ndim != (2 if offsets is None else 1):
        raise ShapeError(
            f"{where}: inp has shape {inp.shape} {'without' if offsets is None else 'with'} offsets; "
            "it must be (bags, length), or (n,) with offsets"
        )
    if offsets is not None:
        if not offsets.dtype.is_integer:
            raise DTypeError(
                f"{where}: offsets is {offsets.dtype} of shape {offsets.shape}; it must hold integers"
            )
        if offsets.ndim != 1:
            raise ShapeError(f"{where}: offsets has shape {offsets.shape}; it must have 1 axis")
        if mode == "max":
            raise ArgumentError(
                f"{where}: mode 'max' was given with offsets; it needs inp of shape (bags, length)"
            )
    if factors is not None and mode != "sum":
        raise ArgumentError(
            f"{where}: per_sample_weights were given with mode {mode!r}; they need mode 'sum'"
        )
    if factors is not None and factors.shape != inp.shape:
        raise ShapeError(
            f"{where}: per_sample_weights has shape {factors.shape}; it needs that of inp, {inp.shape}"
        )


def pixel_shuffle(inp: Tensor, upscale_factor: int) -> Tensor:
    """Turn groups of channels into blocks of pixels.

    ``y[..., c, h * r + i, w * r + j] = inp[..., c * r * r + i * r + j, h, w]`` for the factor ``r``

    Parameters
    ----------
    inp : (..., c * r * r, h, w), any dtype
    upscale_factor : int
        ``r``, 1 or more.

    Returns
    -------
    (..., c, h * r, w * r) same dtype as ``inp``

    Raises
    ------
    ShapeError
        There are fewer than 3 axes, or the channels do not divide by ``r * r``.
    ArgumentError
        The factor is less than 1.

    Sources
    -------
    Shi et al., Real-Time Single Image and Video Super-Resolution Using an Efficient Sub-Pixel Convolutional Neural
    Network, CVPR 2016, arXiv:1609.05158, section 3.2.

    Examples
    --------
    >>> pixel_shuffle(reshape(arange(4), (4, 1, 1)), 2)
    Tensor([[[0., 1.],
             [2., 3.]]], dtype=float32, device=ref:0)
    """
    r = upscale_factor
    _check_pixels("pixel_shuffle", "upscale_factor", inp, r)
    *lead, channels, height, width = inp.shape
    if channels % (r * r):
        raise ShapeError(
            f"pixel_shuffle: inp has shape {inp.shape} and upscale_factor is {r}; "
            f"its {channels} channels must divide by {r * r}"
        ).add_place(user_place())
    n = len(lead)
    blocks = reshape(inp, shape=(*lead, channels // (r * r), r, r, height, width))
    moved = permute(blocks, pattern=(*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return reshape(moved, shape=(*lead, channels // (r * r), height * r, width * r))


def pixel_unshuffle(inp: Tensor, downscale_factor: int) -> Tensor:
    """Turn blocks of pixels into groups of channels: the inverse of ``pixel_shuffle``.

    ``y[..., c * r * r + i * r + j, h, w] = inp[..., c, h * r + i, w * r + j]`` for the factor ``r``

    Parameters
    ----------
    inp : (..., c, h * r, w * r), any dtype
    downscale_factor : int
        ``r``, 1 or more.

    Returns
    -------
    (..., c * r * r, h, w) same dtype as ``inp``

    Raises
    ------
    ShapeError
        There are fewer than 3 axes, or height or width does not divide by ``r``.
    ArgumentError
        The factor is less than 1.

    Examples
    --------
    >>> pixel_unshuffle(reshape(arange(4), (1, 2, 2)), 2).shape
    (4, 1, 1)
    """
    r = downscale_factor
    _check_pixels("pixel_unshuffle", "downscale_factor", inp, r)
    *lead, channels, height, width = inp.shape
    if height % r or width % r:
        raise ShapeError(
            f"pixel_unshuffle: inp has shape {inp.shape} and downscale_factor is {r}; "
            f"its height {height} and width {width} must divide by {r}"
        ).add_place(user_place())
    n = len(lead)
    blocks = reshape(inp, shape=(*lead, channels, height // r, r, width // r, r))
    moved = permute(blocks, pattern=(*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return reshape(moved, shape=(*lead, channels * r * r, height // r, width // r))


def _check_pixels(where: str, name: str, inp: Tensor, factor: int) -> None:
    if inp.ndim < 3:
        raise ShapeError(
            f"{where}: inp has shape {inp.shape}; it must have channels, height and width"
        ).add_place(user_place())
    if factor < 1:
        raise ArgumentError(f"{where}: {name} is {factor}; it must be at least 1").add_place(
            user_place()
        )


def one_hot(inp: Tensor, num_classes: int) -> Tensor:
    """Mark each class number by a 1 at its place in a row of zeros.

    ``y[..., c] = 1 if inp[...] == c else 0``

    Parameters
    ----------
    inp : (...) integer
        Class numbers. One outside 0 to ``num_classes - 1`` gives a row of zeros.
    num_classes : int

    Returns
    -------
    (..., num_classes) same dtype as ``inp``

    Raises
    ------
    DTypeError
        ``inp`` is not an integer tensor.
    ArgumentError
        ``num_classes`` is less than 1.

    Examples
    --------
    >>> one_hot(tensor([1, 0]), 3)
    Tensor([[0, 1, 0],
            [1, 0, 0]], dtype=int32, device=ref:0)
    """
    if not inp.dtype.is_integer:
        raise DTypeError(
            f"one_hot: inp is {inp.dtype} of shape {inp.shape}; class numbers must be integers"
        ).add_place(user_place())
    if num_classes < 1:
        raise ArgumentError(
            f"one_hot: num_classes is {num_classes}; it must be at least 1"
        ).add_place(user_place())
    with on_device(inp.device):
        classes = iota(shape=(num_classes,), dtype=inp.dtype)
    return as_type(OPS["equal"](expand_dims(inp, axis=-1), classes), inp.dtype)
