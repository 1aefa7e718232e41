"""Products of matrices and vectors.

In: matrices in the last two axes. Out: the ops ``matmul``, ``linear`` and ``cross``; ``dot``.
After ``op``; before ``einsum`` and ``decomposition``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ..dtype import sum_of
from ..errors import ArgumentError, ShapeError, user_place
from ..op import op
from ..types import Shape, abstract, broadcast, normal_axis
from .broadcasting import refuse_bool, unbroadcast
from .reduction import sum
from .shape import broadcast_to, reshape

if TYPE_CHECKING:
    from ..graph import Signature
    from ..tensor import Tensor

FUNCTIONS = ("dot",)


def _check_compute_mode(compute_mode: str, where: str) -> None:
    if compute_mode not in ("default", "float32"):
        raise ArgumentError(
            f'{where}: compute_mode is {compute_mode!r}; it must be "default" or "float32"'
        )


def _matmul_shape(a: Shape, b: Shape, transpose_a: bool, transpose_b: bool) -> Shape:
    """Return the shape of the product; vectors count as a row on the left and a column on the right."""
    if not a or not b:
        raise ShapeError(
            f"matmul: inp1 has shape {a} and inp2 has {b}; each must have at least 1 axis",
            hint="use * for scalars",
        )
    left = (1, *a) if len(a) == 1 else (*a[:-2], a[-1], a[-2]) if transpose_a else a
    right = (*b, 1) if len(b) == 1 else (*b[:-2], b[-1], b[-2]) if transpose_b else b
    if left[-1] != right[-2]:
        flags = (
            f" (transpose_a={transpose_a}, transpose_b={transpose_b})"
            if transpose_a or transpose_b
            else ""
        )
        hint = None
        if len(b) > 1 and left[-1] == right[-1]:
            hint = f"if inp2 holds (out, in) weights, pass transpose_b={not transpose_b}"
        raise ShapeError(
            f"matmul: inp1 has shape {a} and inp2 has shape {b}{flags}; "
            f"the length of inp1's rows ({left[-1]}) must equal that of inp2's columns ({right[-2]})",
            hint=hint,
        )
    batch = broadcast(left[:-2], right[:-2], where="matmul") if len(a) > 2 or len(b) > 2 else ()
    return batch + left[-2:-1] * (len(a) > 1) + right[-1:] * (len(b) > 1)


@op(base=True, promotes="same", autocast="low")
def matmul(
    inp1: Tensor,
    inp2: Tensor,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    compute_mode: str = "default",
) -> Tensor:
    """Multiply matrices, for each element of the batch axes.

    ``y[..., i, j] = sum_k inp1[..., i, k] * inp2[..., k, j]``

    Parameters
    ----------
    inp1 : (..., m, k) or (k,) any dtype
    inp2 : (..., k, n) or (k,) any dtype
        The leading (batch) axes of the two broadcast. A vector counts as a row on the left and as a column on
        the right, and the axis that this adds is dropped from the result.
    transpose_a, transpose_b : bool, default False
        The matrix is given transposed: ``inp1`` is (..., k, m), ``inp2`` is (..., n, k). No effect on vectors.
    compute_mode : {"default", "float32"}
        Both accumulate float16 and bfloat16 in float32.

    Returns
    -------
    (..., m, n) common dtype of the inputs; bool and integers under 32 bits give int32 or uint32

    Raises
    ------
    ShapeError
        An input is a scalar, the two lengths ``k`` differ, or the batch axes do not broadcast.
    ArgumentError
        ``compute_mode`` is another string.

    Notes
    -----
    ``2 * m * n * k`` FLOPs a matrix. Integers wrap. With ``k = 0`` the result is 0.

    Examples
    --------
    >>> matmul(tensor([[1.0, 2.0], [3.0, 4.0]]), tensor([1.0, 10.0]))
    Tensor([21., 43.], dtype=float32, device=ref:0)
    """
    _check_compute_mode(compute_mode, "matmul")
    return abstract(
        _matmul_shape(inp1.shape, inp2.shape, transpose_a, transpose_b), sum_of(inp1.dtype)
    )


def multiply_matrices(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """Write ``a @ b`` into ``out``, through BLAS wherever that gives the exact or the wider result."""
    if (
        a.ndim > 2 and b.ndim == 2 and a.flags.c_contiguous
    ):  # one large product, not one a batch element
        rows = math.prod(a.shape[:-1])
        a, out = a.reshape(rows, a.shape[-1]), out.reshape(rows, out.shape[-1])
    kind, size = a.dtype.kind, a.dtype.itemsize
    if kind == "f" and size > 2:
        np.matmul(a, b, out=out)
    elif kind not in "iub":  # float16, bfloat16
        out[...] = np.matmul(a.astype(np.float32), b.astype(np.float32))
    elif kind != "b" and size > 2:
        np.matmul(a, b, out=out)
    else:  # products under 2**32 add up exactly in float64 for all k below 2**21
        exact = np.float32 if size == 1 and a.shape[-1] < 256 else np.float64
        out[...] = np.matmul(a.astype(exact), b.astype(exact)).astype(np.int64)


@matmul.reference
def _(inp1, inp2, *, transpose_a, transpose_b, compute_mode, out):
    if inp1.ndim > 1 and transpose_a:
        inp1 = inp1.swapaxes(-1, -2)
    if inp2.ndim > 1 and transpose_b:
        inp2 = inp2.swapaxes(-1, -2)
    if inp1.ndim == 1 or inp2.ndim == 1:
        rows = inp1[None] if inp1.ndim == 1 else inp1
        columns = inp2[:, None] if inp2.ndim == 1 else inp2
        batch = out.shape[: out.ndim - (inp1.ndim > 1) - (inp2.ndim > 1)]
        out = out.reshape(*batch, rows.shape[-2], columns.shape[-1])
        inp1, inp2 = rows, columns
    with np.errstate(all="ignore"):
        multiply_matrices(inp1, inp2, out)


def _matmul_count(sig: Signature) -> int:
    shape, transposed = sig.input_types[0].shape, dict(sig.attrs)["transpose_a"]
    return sig.type.size * shape[-2 if transposed and len(shape) > 1 else -1]


matmul.multiply_adds = _matmul_count


@matmul.gradient
def _(dy, y, inp1, inp2, *, transpose_a, transpose_b, compute_mode):
    a, b = inp1, inp2
    if a.ndim == 1:
        a, transpose_a = reshape(a, shape=(1, a.size)), False
    if b.ndim == 1:
        b, transpose_b = reshape(b, shape=(b.size, 1)), False
    m, n = a.shape[-1 if transpose_a else -2], b.shape[-2 if transpose_b else -1]
    if inp1.ndim == 1 or inp2.ndim == 1:
        batch = dy.shape[: dy.ndim - (inp1.ndim > 1) - (inp2.ndim > 1)]
        dy = reshape(dy, shape=(*batch, m, n))
    mode = {"compute_mode": compute_mode}
    if transpose_a:
        da = matmul(b, dy, transpose_a=transpose_b, transpose_b=True, **mode)
    else:
        da = matmul(dy, b, transpose_b=not transpose_b, **mode)
    da = unbroadcast(da, a)
    if b.ndim == 2 and a.ndim > 2 and not transpose_a:  # sums over the batch inside one product
        a = reshape(a, shape=(math.prod(a.shape[:-1]), a.shape[-1]))
        dy = reshape(dy, shape=(math.prod(dy.shape[:-1]), n))
    if transpose_b:
        db = matmul(dy, a, transpose_a=True, transpose_b=transpose_a, **mode)
    else:
        db = matmul(a, dy, transpose_a=not transpose_a, **mode)
    db = unbroadcast(db, b)
    da = reshape(da, shape=inp1.shape) if inp1.ndim == 1 else da
    return da, reshape(db, shape=inp2.shape) if inp2.ndim == 1 else db


@matmul.samples
def _(rng):
    def draw(*shape):
        return rng.normal(size=shape)

    yield (draw(3, 4), draw(4, 2)), {}
    yield (draw(4, 3), draw(2, 4)), {"transpose_a": True, "transpose_b": True}
    yield (draw(2, 3, 4), draw(5, 4)), {"transpose_b": True}
    yield (draw(2, 1, 4, 3), draw(3, 4, 2)), {"transpose_a": True, "compute_mode": "float32"}
    yield (draw(4), draw(4)), {}
    yield (draw(2, 3, 4), draw(4)), {}
    yield (draw(4), draw(2, 3, 4)), {"transpose_b": True}
    yield (draw(2, 0), draw(0, 3)), {}


@op(promotes="same", autocast="low")
def linear(
    inp: Tensor, weight: Tensor, bias: Tensor | None = None, *, compute_mode: str = "default"
) -> Tensor:
    """Apply a linear map, and add a bias.

    ``y[..., j] = sum_i inp[..., i] * weight[j, i] + bias[j]``

    Parameters
    ----------
    inp : (..., i) any dtype
    weight : (j, i) any dtype
    bias : (j,) any dtype, optional
    compute_mode : {"default", "float32"}
        Both accumulate float16 and bfloat16 in float32.

    Returns
    -------
    (..., j) common dtype of the inputs; bool and integers under 32 bits give int32 or uint32

    Raises
    ------
    ShapeError
        ``inp`` is a scalar, ``weight`` is not a matrix with rows as long as those of ``inp``, or ``bias`` has another
        shape than ``(j,)``.
    ArgumentError
        ``compute_mode`` is another string.

    Notes
    -----
    The product is rounded to the dtype of the result before the bias is added.

    Examples
    --------
    >>> linear(tensor([1.0, 2.0]), tensor([[1.0, 0.0], [1.0, 1.0]]), tensor([0.0, 10.0]))
    Tensor([ 1., 13.], dtype=float32, device=ref:0)
    """
    _check_compute_mode(compute_mode, "linear")
    if not inp.ndim or weight.ndim != 2 or inp.shape[-1] != weight.shape[1]:
        hint = None
        if weight.ndim == 2 and inp.ndim and inp.shape[-1] == weight.shape[0]:
            hint = "if weight holds (in, out), pass its transpose"
        raise ShapeError(
            f"linear: inp has shape {inp.shape} and weight has shape {weight.shape}; weight must be (out, in), "
            "and in the length of inp's last axis",
            hint=hint,
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(
            f"linear: bias has shape {bias.shape}; weight {weight.shape} needs {weight.shape[:1]}"
        )
    return abstract((*inp.shape[:-1], weight.shape[0]), sum_of(inp.dtype))


@linear.reference
def _(inp, weight, bias=None, *, compute_mode, out):
    rows = inp.reshape(math.prod(inp.shape[:-1]), inp.shape[-1])
    with np.errstate(all="ignore"):
        multiply_matrices(rows, weight.T, out.reshape(rows.shape[0], weight.shape[0]))
        if bias is not None:
            np.add(out, bias, out=out)


linear.multiply_adds = lambda sig: sig.type.size * sig.input_types[0].shape[-1]


@linear.gradient
def _(dy, y, inp, weight, bias=None, *, compute_mode):
    rows = math.prod(inp.shape[:-1])
    flat = reshape(dy, (rows, weight.shape[0]))
    dinp = matmul(dy, weight, compute_mode=compute_mode)
    dweight = matmul(
        flat, reshape(inp, (rows, inp.shape[-1])), transpose_a=True, compute_mode=compute_mode
    )
    return (dinp, dweight) if bias is None else (dinp, dweight, sum(flat, axis=0))


@linear.lowering
def _(inp, weight, bias=None, *, compute_mode):
    y = matmul(inp, weight, transpose_b=True, compute_mode=compute_mode)
    return y if bias is None else y + bias


@linear.samples
def _(rng):
    def draw(*shape):
        return rng.normal(size=shape)

    yield (draw(3, 4), draw(2, 4), draw(2)), {}
    yield (draw(2, 3, 4), draw(5, 4), None), {"compute_mode": "float32"}
    yield (draw(4), draw(2, 4), draw(2)), {}
    yield (draw(0, 4), draw(2, 4), draw(2)), {}
    yield (draw(2, 0), draw(3, 0), draw(3)), {}


def dot(inp1: Tensor, inp2: Tensor) -> Tensor:
    """Multiply two vectors and add up.

    ``y = sum_i inp1[i] * inp2[i]``

    Parameters
    ----------
    inp1, inp2 : (n,) any dtype

    Returns
    -------
    () common dtype of the inputs; bool and integers under 32 bits give int32 or uint32

    Raises
    ------
    ShapeError
        An input is not a vector, or their lengths differ.

    Examples
    --------
    >>> dot(tensor([1.0, 2.0]), tensor([3.0, 4.0]))
    Tensor(11., dtype=float32, device=ref:0)
    """
    if len(inp1.shape) != 1 or inp1.shape != inp2.shape:
        raise ShapeError(
            f"dot: inp1 has shape {inp1.shape} and inp2 has shape {inp2.shape}; both must be vectors of one length",
            hint="matmul multiplies matrices",
        ).add_place(user_place())
    return matmul(inp1, inp2)


@op(promotes="same")
def cross(inp1: Tensor, inp2: Tensor, *, axis: int = -1) -> Tensor:
    """Return the cross product of vectors with 3 elements.

    ``y[0] = inp1[1] * inp2[2] - inp1[2] * inp2[1]``, and so on in cyclic order

    Parameters
    ----------
    inp1, inp2 : shapes that broadcast, with 3 elements along ``axis``; floats or integers
    axis : int, default -1
        The axis that holds each vector, in the broadcast shape.

    Returns
    -------
    (broadcast shape) common dtype of the inputs

    Raises
    ------
    ShapeError
        The shapes do not broadcast, or an input has not 3 elements along ``axis``.
    DTypeError
        Both inputs are bool.

    Examples
    --------
    >>> cross(tensor([1.0, 0.0, 0.0]), tensor([0.0, 1.0, 0.0]))
    Tensor([0., 0., 1.], dtype=float32, device=ref:0)
    """
    refuse_bool("cross", inp1)
    shape = broadcast(inp1.shape, inp2.shape, where="cross")
    from_end = normal_axis(axis, len(shape), "cross") - len(shape)
    for name, shape_ in (("inp1", inp1.shape), ("inp2", inp2.shape)):
        if -from_end > len(shape_) or shape_[from_end] != 3:
            raise ShapeError(
                f"cross: {name} has shape {shape_} and axis is {axis}; a vector must have 3 elements"
            )
    return abstract(shape, inp1.dtype)


@cross.reference
def _(inp1, inp2, *, axis):
    with np.errstate(all="ignore"):
        return np.cross(*np.broadcast_arrays(inp1, inp2), axis=axis)


@cross.gradient
def _(dy, y, inp1, inp2, *, axis):
    return unbroadcast(cross(inp2, dy, axis=axis), inp1), unbroadcast(
        cross(dy, inp1, axis=axis), inp2
    )


@cross.lowering
def _(inp1, inp2, *, axis):
    from .join import concat
    from .slicing import slice_along

    shape = broadcast(inp1.shape, inp2.shape, where="cross")
    axis = normal_axis(axis, len(shape), "cross")
    a, b = (
        [slice_along(broadcast_to(x, shape), axis, i, i + 1) for i in range(3)]
        for x in (inp1, inp2)
    )
    return concat([a[i - 2] * b[i - 1] - a[i - 1] * b[i - 2] for i in range(3)], axis=axis)


@cross.samples
def _(rng):
    yield (rng.normal(size=3), rng.normal(size=3)), {}
    yield (rng.normal(size=(2, 3)), rng.normal(size=3)), {}
    yield (rng.normal(size=(3, 1)), rng.normal(size=(2, 3, 2))), {"axis": 1}
    yield (rng.normal(size=(0, 3)), rng.normal(size=(1, 3))), {}
