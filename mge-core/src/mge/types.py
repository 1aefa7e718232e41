"""Types: the shape and dtype of a value, interned so that equal types are one object.

In: shapes and dtypes. Out: ``Type`` with its text form ``f32[4, 8]``.
After ``dtype``; before ``graph``.
"""

from __future__ import annotations

import math
import re

from .dtype import BY_SHORT, DType, bool_
from .errors import ArgumentError, ShapeError

Shape = tuple[int, ...]


class Type:
    """Shape and dtype. Equal types are the same object, so ``is`` compares them.

    Attributes
    ----------
    shape : tuple of int
    dtype : DType
    ndim, size : int
    nbytes : int, bytes
    """

    __slots__ = ("dtype", "nbytes", "ndim", "shape", "size")
    _interned: dict[tuple[Shape, DType], Type] = {}

    shape: Shape
    dtype: DType
    ndim: int
    size: int
    nbytes: int

    def __new__(cls, shape: Shape, dtype: DType) -> Type:
        key = (shape, dtype)
        found = cls._interned.get(key)
        if found is None:
            found = object.__new__(cls)
            found.shape, found.dtype = shape, dtype
            found.ndim = len(shape)
            found.size = math.prod(shape)
            found.nbytes = found.size * dtype.itemsize
            found = cls._interned.setdefault(key, found)
        return found

    def __repr__(self) -> str:
        return f"{self.dtype.short}[{', '.join(map(str, self.shape))}]"

    def __reduce__(self) -> tuple:
        return Type, (self.shape, self.dtype)


NOTHING = Type((0,), bool_)  # of a node without outputs


def abstract(shape: Shape, dtype: DType) -> Type:
    """Return the type with this shape and dtype: what a shape rule returns for each output."""
    return Type(tuple(shape), dtype)


_TEXT = re.compile(r"(\w+)\[([\d, ]*)\]")


def parse_type(text: str) -> Type:
    """Read the text form of a type, ``f32[4, 8]``.

    Raises
    ------
    ArgumentError
        The text is not a type.
    """
    match = _TEXT.fullmatch(text.strip())
    if match is None or match[1] not in BY_SHORT:
        raise ArgumentError(f"type: {text!r} is no type; one looks like f32[4, 8]")
    shape = tuple(int(n) for n in match[2].split(",") if n.strip())
    return Type(shape, BY_SHORT[match[1]])


def broadcast(*shapes: Shape, where: str = "broadcast") -> Shape:
    """Return the shape that all ``shapes`` broadcast to, by NumPy's rule.

    Raises
    ------
    ShapeError
        Two sizes of one axis differ and neither is 1.
    """
    if all(s == shapes[0] for s in shapes):
        return shapes[0]
    result: list[int] = []
    for axis in range(-max(map(len, shapes)), 0):
        sizes = {s[axis] for s in shapes if -axis <= len(s)} - {1}
        if len(sizes) > 1:
            raise ShapeError(
                f"{where}: shapes {' and '.join(map(str, shapes))} do not broadcast; "
                f"sizes {sorted(sizes)} on axis {axis} differ and none of them is 1"
            )
        result.append(sizes.pop() if sizes else 1)
    return tuple(result)


def normal_axis(axis: int, ndim: int, where: str) -> int:
    """Return ``axis`` counted from the front; an axis out of range is a ShapeError."""
    if not -ndim <= axis < ndim:
        raise ShapeError(
            f"{where}: axis is {axis}; a value with {ndim} axes has -{ndim} to {ndim - 1}"
        )
    return axis % ndim


def normal_axes(axis: int | tuple[int, ...] | None, ndim: int, where: str) -> tuple[int, ...]:
    """Return the axes of a reduction, counted from the front and sorted; None means all of them."""
    if axis is None:
        return tuple(range(ndim))
    axes = tuple(
        normal_axis(a, ndim, where) for a in (axis if isinstance(axis, tuple) else (axis,))
    )
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{where}: axis is {axis}; each axis may be named once")
    return tuple(sorted(axes))
