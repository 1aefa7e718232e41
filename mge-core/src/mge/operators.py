"""The operators and methods of a tensor: each is the op of that name.

In: tensors, arrays, numbers. Out: ``Operators``, the base class of ``Tensor``.
After ``ops/*``; before ``tensor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .dtype import as_dtype
from .op import OPS, record, record_pair
from .ops import linalg, power, select, shape

if TYPE_CHECKING:
    from .tensor import Tensor

# An op each; looked up once, since these calls are the most frequent ones.
_ADD = OPS["add"]
_SUB = OPS["sub"]
_MUL = OPS["mul"]
_DIV = OPS["div"]
_FLOOR_DIV = OPS["floor_div"]
_MOD = OPS["mod"]
_AND = OPS["bitwise_and"]
_OR = OPS["bitwise_or"]
_XOR = OPS["bitwise_xor"]
_LEFT_SHIFT = OPS["left_shift"]
_RIGHT_SHIFT = OPS["right_shift"]
_EQUAL = OPS["equal"]
_NOT_EQUAL = OPS["not_equal"]
_LESS = OPS["less"]
_LESS_EQUAL = OPS["less_equal"]
_GREATER = OPS["greater"]
_GREATER_EQUAL = OPS["greater_equal"]
_NEG, _ABS, _NOT, _CAST = OPS["neg"], OPS["abs"], OPS["bitwise_not"], OPS["cast"]
# Functions over several ops.
_MATMUL: Any = linalg.matmul
_POW: Any = power.pow
_TRANSPOSE: Any = shape.transpose
_CLIP: Any = select.clip
_UFUNCS = {
    "true_divide": "div",
    "divide": "div",
    "subtract": "sub",
    "multiply": "mul",
    "power": "pow",
    "floor_divide": "floor_div",
    "remainder": "mod",
    "arctan2": "atan2",
}


class Operators:
    """NumPy's operators and methods, for a class that is a handle on a node.

    An operator between a tensor and an array or a number gives a tensor. In-place operators rebind the handle.
    """

    __slots__ = ()
    __array_priority__ = 1000
    __hash__ = object.__hash__

    if TYPE_CHECKING:

        def _assign(self, value: Any) -> Tensor: ...
        def numpy(self) -> np.ndarray: ...

    def __add__(self, other: Any) -> Tensor:
        return record_pair(_ADD, self, other)

    def __radd__(self, other: Any) -> Tensor:
        return record_pair(_ADD, other, self)

    def __iadd__(self, other: Any) -> Tensor:
        return self._assign(record_pair(_ADD, self, other))

    def __sub__(self, other: Any) -> Tensor:
        return record_pair(_SUB, self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return record_pair(_SUB, other, self)

    def __isub__(self, other: Any) -> Tensor:
        return self._assign(record_pair(_SUB, self, other))

    def __mul__(self, other: Any) -> Tensor:
        return record_pair(_MUL, self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return record_pair(_MUL, other, self)

    def __imul__(self, other: Any) -> Tensor:
        return self._assign(record_pair(_MUL, self, other))

    def __truediv__(self, other: Any) -> Tensor:
        return record_pair(_DIV, self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return record_pair(_DIV, other, self)

    def __itruediv__(self, other: Any) -> Tensor:
        return self._assign(record_pair(_DIV, self, other))

    def __floordiv__(self, other: Any) -> Tensor:
        return record_pair(_FLOOR_DIV, self, other)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return record_pair(_FLOOR_DIV, other, self)

    def __ifloordiv__(self, other: Any) -> Tensor:
        return self._assign(record_pair(_FLOOR_DIV, self, other))

    def __mod__(self, other: Any) -> Tensor:
        return record_pair(_MOD, self, other)

    def __rmod__(self, other: Any) -> Tensor:
        return record_pair(_MOD, other, self)

    def __imod__(self, other: Any) -> Tensor:
        return self._assign(record_pair(_MOD, self, other))

    def __and__(self, other: Any) -> Tensor:
        return record_pair(_AND, self, other)

    def __rand__(self, other: Any) -> Tensor:
        return record_pair(_AND, other, self)

    def __iand__(self, other: Any) -> Tensor:
        return self._assign(record_pair(_AND, self, other))

    def __or__(self, other: Any) -> Tensor:
        return record_pair(_OR, self, other)

    def __ror__(self, other: Any) -> Tensor:
        return record_pair(_OR, other, self)

    def __ior__(self, other: Any) -> Tensor:
        return self._assign(record_pair(_OR, self, other))

    def __xor__(self, other: Any) -> Tensor:
        return record_pair(_XOR, self, other)

    def __rxor__(self, other: Any) -> Tensor:
        return record_pair(_XOR, other, self)

    def __ixor__(self, other: Any) -> Tensor:
        return self._assign(record_pair(_XOR, self, other))

    def __lshift__(self, other: Any) -> Tensor:
        return record_pair(_LEFT_SHIFT, self, other)

    def __rlshift__(self, other: Any) -> Tensor:
        return record_pair(_LEFT_SHIFT, other, self)

    def __ilshift__(self, other: Any) -> Tensor:
        return self._assign(record_pair(_LEFT_SHIFT, self, other))

    def __rshift__(self, other: Any) -> Tensor:
        return record_pair(_RIGHT_SHIFT, self, other)

    def __rrshift__(self, other: Any) -> Tensor:
        return record_pair(_RIGHT_SHIFT, other, self)

    def __irshift__(self, other: Any) -> Tensor:
        return self._assign(record_pair(_RIGHT_SHIFT, self, other))

    def __eq__(self, other: Any) -> Tensor:  # type: ignore[override]
        return False if other is None else record_pair(_EQUAL, self, other)  # type: ignore[return-value]

    def __ne__(self, other: Any) -> Tensor:  # type: ignore[override]
        return True if other is None else record_pair(_NOT_EQUAL, self, other)  # type: ignore[return-value]

    def __lt__(self, other: Any) -> Tensor:
        return record_pair(_LESS, self, other)

    def __le__(self, other: Any) -> Tensor:
        return record_pair(_LESS_EQUAL, self, other)

    def __gt__(self, other: Any) -> Tensor:
        return record_pair(_GREATER, self, other)

    def __ge__(self, other: Any) -> Tensor:
        return record_pair(_GREATER_EQUAL, self, other)

    def __matmul__(self, other: Any) -> Tensor:
        return _MATMUL(self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return _MATMUL(other, self)

    def __imatmul__(self, other: Any) -> Tensor:
        return self._assign(_MATMUL(self, other))

    def __pow__(self, other: Any) -> Tensor:
        return _POW(self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return _POW(other, self)

    def __ipow__(self, other: Any) -> Tensor:
        return self._assign(_POW(self, other))

    def __neg__(self) -> Tensor:
        return record(_NEG, (self,))

    def __pos__(self) -> Tensor:
        return self  # type: ignore[return-value]

    def __abs__(self) -> Tensor:
        return record(_ABS, (self,))

    def __invert__(self) -> Tensor:
        return record(_NOT, (self,))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        # An operator between an array and a tensor is the tensor's; other NumPy functions work on the values.
        name = _UFUNCS.get(ufunc.__name__, ufunc.__name__)
        if method == "__call__" and not options and len(inputs) == 2 and name in OPS:
            return _POW(*inputs) if name == "pow" else OPS[name](*inputs)
        return getattr(ufunc, method)(
            *[i.numpy() if isinstance(i, Operators) else i for i in inputs], **options
        )

    def __array_function__(self, function: Any, types: Any, inputs: Any, options: Any) -> Any:
        # NumPy's functions that are no ufuncs (np.sum, np.concatenate) work on the values, too.
        return function(*_arrays(inputs), **_arrays(options))

    def astype(self, dtype: Any) -> Tensor:
        """Return the tensor with its elements converted to another dtype."""
        dtype = as_dtype(dtype)
        same = dtype is self._node.type.dtype  # type: ignore[attr-defined]
        return self if same else record(_CAST, (self,), (("dtype", dtype),))  # type: ignore[return-value]

    def reshape(self, *shape: Any) -> Tensor:
        """Return the elements in another shape, in row-major order; one size may be -1."""
        return OPS["reshape"](
            self, shape=shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        )

    def transpose(self, *pattern: Any) -> Tensor:
        """Return the tensor with its axes in another order; by default reversed."""
        several = (
            pattern[0] if len(pattern) == 1 and not isinstance(pattern[0], int) else pattern or None
        )
        return _TRANSPOSE(self, several)

    def flatten(self, start_axis: int = 0, end_axis: int = -1) -> Tensor:
        """Return the tensor with a range of axes merged into one."""
        return OPS["flatten"](self, start_axis=start_axis, end_axis=end_axis)

    def sum(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        """Return the sum over axes."""
        return OPS["sum"](self, axis=axis, keepdims=keepdims)

    def prod(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        """Return the product over axes."""
        return OPS["prod"](self, axis=axis, keepdims=keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        """Return the mean over axes."""
        return OPS["mean"](self, axis=axis, keepdims=keepdims)

    def var(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        """Return the variance over axes, divided by the count."""
        return OPS["var"](self, axis=axis, keepdims=keepdims)

    def std(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        """Return the standard deviation over axes, divided by the count."""
        return OPS["std"](self, axis=axis, keepdims=keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        """Return the smallest element over axes."""
        return OPS["min"](self, axis=axis, keepdims=keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        """Return the largest element over axes."""
        return OPS["max"](self, axis=axis, keepdims=keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """Return the index of the smallest element, int32."""
        return OPS["argmin"](self, axis=axis, keepdims=keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """Return the index of the largest element, int32."""
        return OPS["argmax"](self, axis=axis, keepdims=keepdims)

    def all(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        """Return whether all elements are true."""
        return OPS["all"](self, axis=axis, keepdims=keepdims)

    def any(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        """Return whether any element is true."""
        return OPS["any"](self, axis=axis, keepdims=keepdims)

    def squeeze(self, axis: Any = None) -> Tensor:
        """Return the tensor without axes of size 1."""
        return OPS["squeeze"](self, axis=axis)

    def clip(self, lower: Any = None, upper: Any = None) -> Tensor:
        """Return the elements limited to a range."""
        return _CLIP(self, lower, upper)


def _arrays(tree: Any) -> Any:
    """Return nested arguments with the values of tensors in their places."""
    if isinstance(tree, Operators):
        return tree.numpy()
    if isinstance(tree, dict):
        return {name: _arrays(value) for name, value in tree.items()}
    return type(tree)(map(_arrays, tree)) if type(tree) in (list, tuple) else tree
