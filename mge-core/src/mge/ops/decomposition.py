"""Inverse and singular value decomposition of matrices.

In: matrices in the last two axes. Out: the ops ``matinv`` and ``svd``.
After ``linalg``; before ``tensor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..dtype import wide_of
from ..errors import ArgumentError, DTypeError, ShapeError, UnsupportedError
from ..op import op
from ..types import Type, abstract
from .comparison import equal
from .constant import iota
from .elementwise import neg
from .linalg import matmul
from .reduction import converted, is_half
from .select import where
from .shape import reshape

if TYPE_CHECKING:
    from ..tensor import Tensor


def _refuse_others(inp: Tensor | Type, where_: str) -> None:
    if not inp.dtype.is_float:
        raise DTypeError(
            f"{where_}: inp is {inp.dtype}; it must be a float tensor", hint="inp.astype('float32')"
        )
    if inp.ndim < 2:
        raise ShapeError(f"{where_}: inp has shape {inp.shape}; it must have at least 2 axes")


@op(base=True)
def matinv(inp: Tensor) -> Tensor:
    """Invert square matrices.

    ``matmul(y, inp) = identity``

    Parameters
    ----------
    inp : (..., n, n) float

    Returns
    -------
    (..., n, n) dtype of ``inp``

    Raises
    ------
    DTypeError
        ``inp`` is not a float tensor.
    ShapeError
        The matrices are not square.
    ArgumentError
        A matrix is exactly singular; found when the value is computed.

    Notes
    -----
    LU decomposition with pivots; float16 and bfloat16 are computed in float32. The op has no lowering: a device
    without a kernel for it leaves it to ``ref``. To solve a system once, an inverse loses digits on matrices that
    are nearly singular.

    Examples
    --------
    >>> matinv(tensor([[2.0, 0.0], [0.0, 4.0]]))
    Tensor([[0.5 , 0.  ],
            [0.  , 0.25]], dtype=float32, device=ref:0)
    """
    _refuse_others(inp, "matinv")
    if inp.shape[-1] != inp.shape[-2]:
        raise ShapeError(f"matinv: inp has shape {inp.shape}; its last two axes must have one size")
    return abstract(inp.shape, inp.dtype)


@matinv.reference
def _(inp):
    try:
        with np.errstate(all="ignore"):
            return np.linalg.inv(inp.astype(np.float32) if is_half(inp) else inp).astype(inp.dtype)
    except np.linalg.LinAlgError:
        raise ArgumentError(f"matinv: inp with shape {inp.shape} holds a singular matrix") from None


@matinv.gradient
def _(dy, y, inp):
    return (neg(matmul(matmul(y, dy, transpose_a=True), y, transpose_b=True)),)


@matinv.samples
def _(rng):
    yield (rng.uniform(-0.5, 0.5, (3, 3)) + 2 * np.eye(3),), {}
    yield (rng.uniform(-0.5, 0.5, (2, 2, 2)) + 2 * np.eye(2),), {}
    yield (np.array([[-0.5]]),), {}
    yield (np.zeros((0, 2, 2)),), {}


@op(base=True)
def svd(
    inp: Tensor, *, full_matrices: bool = False, compute_uv: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Decompose matrices into singular vectors and singular values.

    ``inp = U * diag(S) * V``, with ``k = min(m, n)``

    Parameters
    ----------
    inp : (..., m, n) float
    full_matrices : bool, default False
        Complete ``U`` and ``V`` to square matrices.
    compute_uv : bool, default True
        False returns ``S`` alone, as one tensor.

    Returns
    -------
    U : (..., m, k), with ``full_matrices`` (..., m, m), dtype of ``inp``; orthonormal columns
    S : (..., k) dtype of ``inp``; not negative, largest first
    V : (..., k, n), with ``full_matrices`` (..., n, n), dtype of ``inp``; orthonormal rows

    Raises
    ------
    DTypeError
        ``inp`` is not a float tensor.
    ShapeError
        ``inp`` has fewer than 2 axes.
    ArgumentError
        The iteration does not converge, as with NaN; found when the value is computed.
    UnsupportedError
        A gradient of ``U`` or ``V`` is wanted with ``full_matrices``: the added vectors are not determined.

    Notes
    -----
    The sign of each pair of singular vectors is arbitrary. The gradient through ``U`` and ``V`` is infinite or NaN
    where singular values are equal, and through the part of ``U`` and ``V`` outside of the column and row space where
    one is 0. float16 and bfloat16 are computed in float32. The op has no lowering: a device without a kernel for it
    leaves it to ``ref``.

    Sources
    -------
    Townsend, Differentiating the singular value decomposition, 2016: the gradient.

    Examples
    --------
    >>> svd(tensor([[0.0, 2.0], [1.0, 0.0]]), compute_uv=False)
    Tensor([2., 1.], dtype=float32, device=ref:0)
    """
    _refuse_others(inp, "svd")
    *batch, m, n = inp.shape
    k = min(m, n)
    values = abstract((*batch, k), inp.dtype)
    if not compute_uv:
        return values
    left = abstract((*batch, m, m if full_matrices else k), inp.dtype)
    return left, values, abstract((*batch, n if full_matrices else k, n), inp.dtype)


@svd.reference
def _(inp, *, full_matrices, compute_uv):
    wide = inp.astype(np.float32) if is_half(inp) else inp
    try:
        with np.errstate(all="ignore"):
            found = np.linalg.svd(wide, full_matrices=full_matrices, compute_uv=compute_uv)
    except np.linalg.LinAlgError:
        raise ArgumentError(
            f"svd: the iteration does not converge for inp with shape {inp.shape}"
        ) from None
    return tuple(f.astype(inp.dtype) for f in found) if compute_uv else found.astype(inp.dtype)


@svd.gradient
def _(dy, y, inp, *, full_matrices, compute_uv):
    wide = wide_of(inp.dtype)
    if not compute_uv:
        u, _, v = svd(inp)
        du, ds, dv = None, dy, None
    else:
        (u, s, v), (du, ds, dv) = y, dy
        if full_matrices and not (du is None and dv is None):
            raise UnsupportedError(
                "svd: a gradient of U or V was asked for with full_matrices=True, which does not determine them",
                hint="full_matrices=False",
            )
        if full_matrices:
            u, s, v = svd(inp)
        s = converted(s, wide)
    u, v, du, ds, dv = (x if x is None else converted(x, wide) for x in (u, v, du, ds, dv))
    *batch, k = v.shape[:-1]
    column, row = (*batch, k, 1), (*batch, 1, k)
    core = outer = None  # dinp = u (core + diag(ds)) v + outer
    diagonal = equal(iota(shape=(k, k), axis=0), iota(shape=(k, k), axis=1))
    if du is not None or dv is not None:
        squares = s * s
        # gap[i, j] = 1 / (s[j]**2 - s[i]**2), and 0 on the diagonal
        gap = reshape(squares, row) - reshape(squares, column)
        gap = where(diagonal, 0, 1 / where(diagonal, 1, gap))
    if du is not None:
        turn = matmul(u, du, transpose_a=True)
        turn = turn - matmul(du, u, transpose_a=True)
        core = _plus(core, gap * turn * reshape(s, row))
        if u.shape[-2] > k:
            outside = du - matmul(u, matmul(u, du, transpose_a=True))
            outer = _plus(outer, matmul(outside / reshape(s, row), v))
    if dv is not None:
        turn = matmul(v, dv, transpose_b=True)
        turn = turn - matmul(dv, v, transpose_b=True)
        core = _plus(core, reshape(s, column) * (gap * turn))
        if v.shape[-1] > k:
            outside = dv - matmul(matmul(dv, v, transpose_b=True), v)
            outer = _plus(outer, matmul(u, outside / reshape(s, column)))
    if ds is not None:
        core = _plus(core, where(diagonal, reshape(ds, row), 0))
    if core is None:
        return (None,)
    return (converted(_plus(outer, matmul(matmul(u, core), v)), inp.dtype),)


def _plus(total: Tensor | None, part: Tensor) -> Tensor:
    return part if total is None else total + part


@svd.samples
def _(rng):
    def draw(m, n):  # singular values 3, 2, 1: far from each other and from 0
        k = min(m, n)
        u, v = (np.linalg.qr(rng.normal(size=(size, size)))[0] for size in (m, n))
        return u[:, :k] @ np.diag(np.arange(k, 0, -1.0)) @ v[:k]

    yield (draw(3, 3),), {}
    yield (draw(4, 2),), {}
    yield (draw(2, 4),), {"compute_uv": False}
    yield (np.stack([draw(2, 3), draw(2, 3)]),), {}
