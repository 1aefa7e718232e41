"""Matrix products with a packed right side, and what is done before the store.

In: tensors (..., k). Out: ``x86::pack_matrix``, ``x86::linear``.
After ``activation``.
"""

from __future__ import annotations

import math

import numpy as np

from mge import Tensor
from mge.errors import DTypeError, ShapeError
from mge.plugin import Signature, abstract, op

from .activation import activate, check_activation

BLOCK = 16  # columns that lie together, on every level of the instruction set


def _check_float32(where: str, *given: Tensor) -> None:
    for position, type_ in enumerate(given):
        if type_.dtype.name != "float32":
            raise DTypeError(
                f"{where}: input {position} is {type_.dtype}; this kernel takes float32"
            )


def _packed_size(k: int, columns: int) -> int:
    return -(-columns // BLOCK) * BLOCK * k


@op(name="x86::pack_matrix")
def pack_matrix(b: Tensor, *, transpose: bool = False) -> Tensor:
    """Lay out the right side of a matrix product as its kernel reads it: ``[n / 16][k][16]``.

    Parameters
    ----------
    b : (k, n) float32
    transpose : bool, default False
        ``b`` is (n, k), as weights of linear layers are.

    Returns
    -------
    (size,) float32
        The last block is filled up with zeros.

    Raises
    ------
    ShapeError
        ``b`` is no matrix.
    DTypeError
        ``b`` is not float32.

    Examples
    --------
    >>> pack_matrix(tensor([[1.0, 2.0]])).shape
    (16,)
    """
    _check_float32("x86::pack_matrix", b)
    if b.ndim != 2:
        raise ShapeError(f"x86::pack_matrix: b has shape {b.shape}; it must be a matrix")
    k, n = b.shape[::-1] if transpose else b.shape
    return abstract((_packed_size(k, n),), b.dtype)


@pack_matrix.reference
def _(b, *, transpose):
    b = b.T if transpose else b
    k, n = b.shape
    blocks = np.zeros((k, -(-n // BLOCK) * BLOCK), np.float32)
    blocks[:, :n] = b
    return np.ascontiguousarray(
        blocks.reshape(k, blocks.shape[1] // BLOCK, BLOCK).swapaxes(0, 1)
    ).reshape(-1)


@pack_matrix.samples
def _(rng):
    for shape in [(5, 3), (3, 70), (40, 32), (0, 4), (4, 0)]:
        for transpose in (False, True):
            yield rng.normal(size=shape).astype(np.float32), {"transpose": transpose}


@op(name="x86::linear")
def linear(
    x: Tensor,
    packed: Tensor,
    *extras: Tensor,
    columns: int,
    bias: bool = False,
    residual: bool = False,
    activation: str = "",
) -> Tensor:
    """Multiply rows by a packed matrix; add, and activate, before the store.

    ``y[..., j] = activation(sum_i x[..., i] * b[i, j] + bias[j] + residual[..., j])``

    Parameters
    ----------
    x : (..., k) float32
    packed : (size,) float32
        ``pack_matrix(b)``
    extras : tensors
        ``bias`` (n,) where ``bias`` is set, then ``residual`` (..., n) where that is set.
    columns : int
        ``n``
    bias, residual : bool, default False
    activation : {"", "relu", "relu6", "sigmoid", "tanh", "silu", "hswish", "hsigmoid", "gelu"}

    Returns
    -------
    (..., n) float32
        May be written over ``residual``.

    Raises
    ------
    ShapeError
        ``x`` is a scalar, or the packed size or the extras do not fit.
    ArgumentError
        The activation is unknown.
    DTypeError
        An input is not float32.

    Examples
    --------
    >>> packed = pack_matrix(tensor([[1.0, 2.0]]))
    >>> linear(tensor([[3.0]]), packed, columns=2).numpy()
    array([[3., 6.]], dtype=float32)
    """
    where = "x86::linear"
    _check_float32(where, x, packed, *extras)
    check_activation(where, activation)
    if not x.ndim or columns < 0:
        raise ShapeError(
            f"{where}: x has shape {x.shape} and columns is {columns}; x needs an axis"
        )
    shape = (*x.shape[:-1], columns)
    size = _packed_size(x.shape[-1], columns)
    if packed.shape != (size,):
        raise ShapeError(
            f"{where}: packed has shape {packed.shape}; {x.shape[-1]} rows and {columns} columns need ({size},)"
        )
    wanted = [(columns,)] * bias + [shape] * residual
    if [e.shape for e in extras] != wanted:
        raise ShapeError(
            f"{where}: after x and packed come {[e.shape for e in extras]}; "
            f"bias={bias} and residual={residual} need {wanted}"
        )
    return abstract(shape, x.dtype)


def over_residual(sig: Signature) -> list[tuple[int, int]]:
    """Let the result of a product or convolution lie over its residual, which is the last input."""
    return [(len(sig.input_types) - 1, 0)] if dict(sig.attrs)["residual"] else []


linear.pairs = over_residual


@linear.reference
def _(x, packed, *extras, columns, bias, residual, activation):
    k = x.shape[-1]
    blocks = packed.reshape(-(-columns // BLOCK), k, BLOCK).swapaxes(0, 1)
    b = blocks.reshape(k, math.prod(blocks.shape[1:]))[:, :columns]
    with np.errstate(all="ignore"):
        y = x @ b
        for extra in extras:
            y = y + extra
        return activate(y, activation)


linear.multiply_adds = lambda sig: sig.type.size * sig.input_types[0].shape[-1]


@linear.samples
def _(rng):
    def draw(*shape):
        return rng.normal(size=shape).astype(np.float32)

    epilogues = (
        {},
        {"bias": True, "activation": "relu"},
        {"bias": True, "residual": True},
        {"bias": True, "activation": "gelu"},
        {"residual": True, "activation": "silu"},
    )
    for shape, n in [
        ((3, 5), 4),
        ((40,), 70),
        ((2, 17, 33), 50),
        ((1, 64), 10),
        ((2, 0), 3),
        ((0, 3), 2),
    ]:
        packed = pack_matrix._reference(draw(shape[-1], n), transpose=False)
        for epilogue in epilogues:
            extras = [draw(n)] * epilogue.get("bias", False)
            extras += [draw(*shape[:-1], n)] * epilogue.get("residual", False)
            yield (draw(*shape), packed, *extras), {"columns": n, **epilogue}


linear.tolerance = {"float32": 1e-5}  # sums in another order
