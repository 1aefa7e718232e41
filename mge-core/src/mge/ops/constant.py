"""Values without inputs: constants and counters.

In: attributes. Out: the ops ``constant``, ``iota``.
After ``op``; before ``tensor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..dtype import DType, float32, int32
from ..errors import ArgumentError, ShapeError
from ..op import op
from ..types import abstract

if TYPE_CHECKING:
    from ..tensor import Tensor


@op(base=True)
def constant(*, data: bytes, shape: tuple[int, ...], dtype: DType) -> Tensor:
    """Return a small array that the graph's text holds.

    ``y = array(data)``

    Parameters
    ----------
    data : bytes
        The elements in row-major order, little-endian.
    shape : tuple of int
    dtype : DType

    Returns
    -------
    (shape) dtype

    Raises
    ------
    ShapeError
        The bytes do not fill the shape.

    Examples
    --------
    >>> constant(data=b"\\x01\\x02", shape=(2,), dtype="int8")
    Tensor([1, 2], dtype=int8, device=ref:0)
    """
    made = abstract(shape, dtype)
    if len(data) != made.nbytes:
        raise ShapeError(f"constant: {len(data)} bytes were given; {made} needs {made.nbytes}")
    return made


@constant.reference
def _(*, data, shape, dtype):
    return np.frombuffer(data, dtype.dtype).reshape(shape)


@constant.gradient
def _(dy, y, **attrs):
    return ()


@constant.samples
def _(rng):
    yield (), {"data": np.float32([1, 2]).tobytes(), "shape": (2,), "dtype": float32}
    yield (), {"data": b"", "shape": (0, 3), "dtype": int32}


@op(base=True)
def iota(*, shape: tuple[int, ...], axis: int = 0, dtype: DType = int32) -> Tensor:
    """Return each element's index along one axis.

    ``y[i0, ..., in] = i_axis``

    Parameters
    ----------
    shape : tuple of int
    axis : int, default 0
    dtype : DType, default int32

    Returns
    -------
    (shape) dtype

    Raises
    ------
    ArgumentError
        ``axis`` is not an axis of ``shape``.
    ShapeError
        A size is negative.

    Examples
    --------
    >>> iota(shape=(3,))
    Tensor([0, 1, 2], dtype=int32, device=ref:0)
    """
    if not 0 <= axis < len(shape):
        raise ArgumentError(f"iota: axis is {axis}; shape {shape} has axes 0 to {len(shape) - 1}")
    if min(shape) < 0:
        raise ShapeError(f"iota: shape is {shape}; no size may be negative")
    return abstract(shape, dtype)


@iota.reference
def _(*, shape, axis, dtype):
    line = np.arange(shape[axis]).astype(dtype.dtype)
    return np.broadcast_to(line.reshape([-1 if i == axis else 1 for i in range(len(shape))]), shape)


@iota.gradient
def _(dy, y, **attrs):
    return ()


@iota.samples
def _(rng):
    yield (), {"shape": (4,)}
    yield (), {"shape": (2, 3), "axis": 1, "dtype": float32}
    yield (), {"shape": (0,)}
