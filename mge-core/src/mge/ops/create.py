"""Creation: tensors made from shapes and numbers.

In: shapes, numbers, a dtype, a device. Out: nodes over ``constant`` and ``iota``, so they are part of the graph.
After ``shape``; before ``slicing``.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import op as op_module
from ..dtype import DType, as_dtype, float64, int32, int64, promote
from ..errors import ArgumentError, ShapeError, user_place
from ..graph import Signature, current_recording
from ..mode import MODE, changed
from .constant import constant, iota
from .shape import broadcast_to, reshape

if TYPE_CHECKING:
    from ..tensor import Tensor

FUNCTIONS = (
    "full", "zeros", "ones", "full_like", "zeros_like", "ones_like", "arange", "linspace", "eye",
)  # fmt: skip


def on_device(device: Any) -> Any:
    """Return a context in which nodes without inputs are made on ``device``; None changes nothing."""
    if device is None:
        return contextlib.nullcontext()
    return changed(device=op_module.as_device(device))


def as_shape(shape: Any, where: str) -> tuple[int, ...]:
    """Return a shape that is given as an int, a sequence of ints, an array or a tensor."""
    if hasattr(shape, "tolist"):
        shape = shape.tolist()
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    try:
        made = tuple(n.__index__() for n in sizes)
    except AttributeError:
        raise ArgumentError(
            f"{where}: shape is {shape!r}; it must be an int or a sequence of ints"
        ).add_place(user_place()) from None
    if any(n < 0 for n in made):
        raise ShapeError(f"{where}: shape is {made}; each size must be 0 or more").add_place(
            user_place()
        )
    return made


_SCALARS: dict[tuple, Signature] = {}


def scalar(value: Any, dtype: DType) -> Tensor:
    """Return a 0-d ``constant`` node."""
    data = np.array(value).astype(dtype.dtype).tobytes()
    mode = MODE.get()
    if mode.eager:
        return constant(data=data, shape=(), dtype=dtype)
    recording = current_recording()
    device = op_module.default_device() if recording.owner is None else recording.owner.device
    sig = _SCALARS.get((data, dtype, device))
    if sig is None:
        if len(_SCALARS) >= 10_000:
            _SCALARS.clear()
        attrs = constant.normal_attrs({"data": data, "shape": (), "dtype": dtype})
        sig = _SCALARS[data, dtype, device] = constant.signature((), attrs, device)
    return op_module.record_nodes(sig, ())


def counter(shape: tuple[int, ...], dtype: DType = int32) -> Tensor:
    """Return 0, 1, 2, ... in row-major order under ``shape``."""
    line = iota(shape=(math.prod(shape),), dtype=dtype)
    return line if len(shape) == 1 else reshape(line, shape=shape)


def as_type(inp: Tensor, dtype: DType) -> Tensor:
    """Return ``inp`` in another dtype; itself where it has that already."""
    from .select import cast

    return inp if inp.dtype is dtype else cast(inp, dtype=dtype)


def full(shape: Any, value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor in which each element is ``value``.

    ``y[...] = value``

    Parameters
    ----------
    shape : int, sequence of int, or integer tensor
        A tensor is read.
    value : number or 0-d tensor
    dtype : dtype, optional
        By default that of ``value``: int32, float32 or bool for a Python number.
    device : str or Device, optional
        By default the default device, or that of ``value``.

    Returns
    -------
    (shape) dtype

    Raises
    ------
    ShapeError
        A size is negative, or ``value`` has axes that do not broadcast to ``shape``.

    Examples
    --------
    >>> full((2,), 6)
    Tensor([6, 6], dtype=int32, device=ref:0)
    """
    sizes = as_shape(shape, "full")
    if hasattr(value, "_node"):
        made = value if dtype is None else as_type(value, as_dtype(dtype))
        if device is not None:
            made = made.to(device)
        return broadcast_to(made, shape=sizes)
    kind = (
        as_dtype(dtype)
        if dtype is not None
        else promote(type(value))
        if type(value) in _PYTHON
        else None
    )
    with on_device(device):
        made = scalar(value, kind or as_dtype(np.asarray(value).dtype))
    return broadcast_to(made, shape=sizes) if sizes else made


_PYTHON = (bool, int, float)


def zeros(shape: Any, *, dtype: Any = "float32", device: Any = None) -> Tensor:
    """Return a tensor of zeros.

    ``y[...] = 0``

    Parameters
    ----------
    shape : int, sequence of int, or integer tensor
        A tensor is read.
    dtype : dtype, default float32
    device : str or Device, optional

    Returns
    -------
    (shape) dtype

    Raises
    ------
    ShapeError
        A size is negative.

    Examples
    --------
    >>> zeros((2,))
    Tensor([0., 0.], dtype=float32, device=ref:0)
    """
    return full(shape, 0, dtype=dtype or "float32", device=device)


def ones(shape: Any, *, dtype: Any = "float32", device: Any = None) -> Tensor:
    """Return a tensor of ones.

    ``y[...] = 1``

    Parameters
    ----------
    shape : int, sequence of int, or integer tensor
        A tensor is read.
    dtype : dtype, default float32
    device : str or Device, optional

    Returns
    -------
    (shape) dtype

    Raises
    ------
    ShapeError
        A size is negative.

    Examples
    --------
    >>> ones(3, dtype="int32")
    Tensor([1, 1, 1], dtype=int32, device=ref:0)
    """
    return full(shape, 1, dtype=dtype or "float32", device=device)


def full_like(inp: Tensor, value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor like another one in which each element is ``value``.

    ``y[...] = value``

    Parameters
    ----------
    inp : any shape, any dtype
        Its shape, dtype and device are used, never its values.
    value : number or 0-d tensor
    dtype : dtype, optional
    device : str or Device, optional

    Returns
    -------
    shape and dtype of ``inp``

    Raises
    ------
    ShapeError
        ``value`` has axes that do not broadcast to the shape.

    Examples
    --------
    >>> full_like(tensor([1.0, 2.0]), 6)
    Tensor([6., 6.], dtype=float32, device=ref:0)
    """
    if not hasattr(inp, "_node"):
        array = np.asarray(inp)
        return full(array.shape, value, dtype=dtype or as_dtype(array.dtype), device=device)
    return full(inp.shape, value, dtype=dtype or inp.dtype, device=device or inp.device)


def zeros_like(inp: Tensor, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return zeros with the shape, dtype and device of another tensor.

    ``y[...] = 0``

    Parameters
    ----------
    inp : any shape, any dtype
        Its values are not used.
    dtype : dtype, optional
    device : str or Device, optional

    Returns
    -------
    shape and dtype of ``inp``

    Raises
    ------
    DTypeError
        ``dtype`` names no dtype.

    Examples
    --------
    >>> zeros_like(tensor([1, 2]))
    Tensor([0, 0], dtype=int32, device=ref:0)
    """
    return full_like(inp, 0, dtype=dtype, device=device)


def ones_like(inp: Tensor, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return ones with the shape, dtype and device of another tensor.

    ``y[...] = 1``

    Parameters
    ----------
    inp : any shape, any dtype
        Its values are not used.
    dtype : dtype, optional
    device : str or Device, optional

    Returns
    -------
    shape and dtype of ``inp``

    Raises
    ------
    DTypeError
        ``dtype`` names no dtype.

    Examples
    --------
    >>> ones_like(tensor([1, 2]))
    Tensor([1, 1], dtype=int32, device=ref:0)
    """
    return full_like(inp, 1, dtype=dtype, device=device)


def as_number(value: Any) -> int | float:
    """Return a number given as a number, an array or a tensor with one element (which is read)."""
    return value.item() if hasattr(value, "item") else value


def arange(
    start: float = 0,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: Any = "float32",
    device: Any = None,
) -> Tensor:
    """Return evenly spaced numbers in a half-open interval.

    ``y[i] = start + i * step`` for ``i`` from 0 to ``ceil((stop - start) / step) - 1``

    Parameters
    ----------
    start : number or 0-d tensor, default 0
        First number; the end of the interval where ``stop`` is not given.
    stop : number or 0-d tensor, optional
        End of the interval, which is not part of the result.
    step : number or 0-d tensor, default 1
        Distance of two neighbours; may be negative, not 0.
    dtype : dtype, default float32
    device : str or Device, optional

    Returns
    -------
    (n,) dtype

    Raises
    ------
    ArgumentError
        ``step`` is 0, or a number is not finite.

    Notes
    -----
    Fractions are computed in float64 and then converted, so each element has the rounding of its dtype only.

    Examples
    --------
    >>> arange(4)
    Tensor([0., 1., 2., 3.], dtype=float32, device=ref:0)
    >>> arange(5, 0, -2, dtype="int32")
    Tensor([5, 3, 1], dtype=int32, device=ref:0)
    """
    dtype = as_dtype(dtype if dtype is not None else "float32")
    start, step = as_number(start), as_number(step)
    start, stop = (0, start) if stop is None else (start, as_number(stop))
    if step == 0 or not all(math.isfinite(n) for n in (start, stop, step)):
        raise ArgumentError(
            f"arange: start is {start}, stop is {stop} and step is {step}; all must be finite, and step not 0"
        ).add_place(user_place())
    exact = all(float(n).is_integer() for n in (start, stop, step))
    if exact:
        start, stop, step = int(start), int(stop), int(step)
        count = len(range(start, stop, step))
    else:
        count = max(0, math.ceil((stop - start) / step))
    with on_device(device):
        if exact and (start, step) == (0, 1) and not dtype.is_bool:
            return iota(shape=(count,), dtype=dtype)
        last = start + (count - 1) * step
        if exact and not dtype.is_float:
            narrow = (
                min(start, last, step) >= -(2**31)
                and max(start, last, step) < 2**31
                and dtype is not int64
            )
            wide = int32 if narrow else int64
        else:
            wide = float64
        made = iota(shape=(count,), dtype=wide)
        if step != 1:
            made = made * scalar(step, wide)
        if start != 0:
            made = made + scalar(start, wide)
    return as_type(made, dtype)


def linspace(
    start: float, stop: float, num: int, *, dtype: Any = "float32", device: Any = None
) -> Tensor:
    """Return evenly spaced numbers in a closed interval.

    ``y[i] = start + i * (stop - start) / (num - 1)``

    Parameters
    ----------
    start, stop : number or 0-d tensor
        First and last number.
    num : int
        How many; 0 or more.
    dtype : dtype, default float32
    device : str or Device, optional

    Returns
    -------
    (num,) dtype

    Raises
    ------
    ArgumentError
        ``num`` is negative.

    Notes
    -----
    Computed in float64 and then converted; the last element is ``stop`` itself.

    Examples
    --------
    >>> linspace(0, 1, 5)
    Tensor([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32, device=ref:0)
    """
    from .comparison import equal
    from .select import where

    dtype = as_dtype(dtype if dtype is not None else "float32")
    start, stop, num = float(as_number(start)), float(as_number(stop)), int(as_number(num))
    if num < 0:
        raise ArgumentError(f"linspace: num is {num}; it must be 0 or more").add_place(user_place())
    with on_device(device):
        place = iota(shape=(num,), dtype=float64)
        if num == 1:
            made = place + scalar(start, float64)
        else:
            made = place * scalar((stop - start) / max(num - 1, 1), float64) + scalar(
                start, float64
            )
            made = where(equal(place, scalar(num - 1, float64)), scalar(stop, float64), made)
    return as_type(made, dtype)


def eye(N: int, M: int | None = None, *, dtype: Any = "float32", device: Any = None) -> Tensor:
    """Return a matrix with ones on its diagonal and zeros elsewhere.

    ``y[i, j] = 1 if i == j else 0``

    Parameters
    ----------
    N : int
        Rows.
    M : int, optional
        Columns, by default as many as rows.
    dtype : dtype, default float32
    device : str or Device, optional

    Returns
    -------
    (N, M) dtype

    Raises
    ------
    ShapeError
        A size is negative.

    Examples
    --------
    >>> eye(2, 3)
    Tensor([[1., 0., 0.],
            [0., 1., 0.]], dtype=float32, device=ref:0)
    """
    from .comparison import equal

    if M is None and isinstance(N, (tuple, list)):
        shape = as_shape(N, "eye")
    else:
        shape = as_shape((as_number(N), as_number(N if M is None else M)), "eye")
    with on_device(device):
        made = equal(iota(shape=shape, axis=0), iota(shape=shape, axis=1))
    return as_type(made, as_dtype(dtype if dtype is not None else "float32"))
