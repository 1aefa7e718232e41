"""Dtypes, and the one table that says which dtype two of them give.

In: names, NumPy dtypes, Python types. Out: ``DType`` objects (one for each name) and ``promote``.
After ``debug``; before ``types``.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from .errors import DTypeError


class DType:
    """One element type. ``==`` also accepts a NumPy dtype, a scalar type or a name.

    Attributes
    ----------
    name : str
        ``"float32"``.
    short : str
        ``"f32"``: the form in a graph's text.
    dtype : numpy.dtype
        NumPy's object, so that NumPy accepts a DType where it wants a dtype.
    itemsize : int, bytes
    is_float, is_integer, is_signed, is_bool : bool
    """

    __slots__ = (
        "dtype",
        "is_bool",
        "is_float",
        "is_integer",
        "is_signed",
        "itemsize",
        "name",
        "short",
    )

    def __init__(self, name: str, short: str, dtype: np.dtype) -> None:
        self.name, self.short, self.dtype = name, short, dtype
        self.itemsize = dtype.itemsize
        self.is_float = "float" in name
        self.is_integer = "int" in name
        self.is_bool = name == "bool"
        self.is_signed = self.is_float or name.startswith("int")

    def __repr__(self) -> str:
        return f"mge.{self.name}" if self.name != "bool" else "mge.bool"

    def __str__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, DType) or other is None:
            return False
        try:
            return bool(self.dtype == other)
        except TypeError:
            return False

    def __hash__(self) -> int:
        return hash(self.dtype)

    def __reduce__(self) -> tuple:
        return as_dtype, (self.name,)


_ALL = [
    ("bool", "bool", np.bool_),
    ("int8", "i8", np.int8),
    ("int16", "i16", np.int16),
    ("int32", "i32", np.int32),
    ("int64", "i64", np.int64),
    ("uint8", "u8", np.uint8),
    ("uint16", "u16", np.uint16),
    ("uint32", "u32", np.uint32),
    ("uint64", "u64", np.uint64),
    ("float16", "f16", np.float16),
    ("bfloat16", "bf16", ml_dtypes.bfloat16),
    ("float32", "f32", np.float32),
    ("float64", "f64", np.float64),
]
DTYPES: dict[str, DType] = {name: DType(name, short, np.dtype(kind)) for name, short, kind in _ALL}
BY_SHORT: dict[str, DType] = {d.short: d for d in DTYPES.values()}
_BY_NUMPY: dict[np.dtype, DType] = {d.dtype: d for d in DTYPES.values()}

bool_ = DTYPES["bool"]
int8, int16, int32, int64 = (DTYPES[f"int{n}"] for n in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (DTYPES[f"uint{n}"] for n in (8, 16, 32, 64))
float16, bfloat16, float32, float64 = (
    DTYPES[n] for n in ("float16", "bfloat16", "float32", "float64")
)

DEFAULT_FLOAT = float32
DEFAULT_INT = int32
_PYTHON = {bool: bool_, int: DEFAULT_INT, float: DEFAULT_FLOAT}


def as_dtype(value: object) -> DType:
    """Return the DType for a name, a NumPy dtype, a scalar type or a DType.

    Python's ``float`` and ``int`` mean the default dtypes, float32 and int32.

    Raises
    ------
    DTypeError
        ``value`` names no dtype of mge.
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value in DTYPES:
        return DTYPES[value]
    if isinstance(value, type) and value in _PYTHON:
        return _PYTHON[value]
    try:
        return _BY_NUMPY[np.dtype(value)]  # type: ignore[call-overload]
    except (KeyError, TypeError):
        raise DTypeError(
            f"dtype: {value!r} is no dtype of mge; known: {', '.join(DTYPES)}"
        ) from None


# The promotion table. Row and column in this order; an entry is the short name of the result.
# NumPy's rules for every pair that NumPy knows; bfloat16 behaves as float16 does, and the two meet at float32.
_ORDER = "bool i8 i16 i32 i64 u8 u16 u32 u64 f16 bf16 f32 f64".split()
_TABLE = """
bool i8  i16 i32 i64 u8  u16 u32 u64 f16 bf16 f32 f64
i8   i8  i16 i32 i64 i16 i32 i64 f64 f16 bf16 f32 f64
i16  i16 i16 i32 i64 i16 i32 i64 f64 f32 f32  f32 f64
i32  i32 i32 i32 i64 i32 i32 i64 f64 f64 f64  f64 f64
i64  i64 i64 i64 i64 i64 i64 i64 f64 f64 f64  f64 f64
u8   i16 i16 i32 i64 u8  u16 u32 u64 f16 bf16 f32 f64
u16  i32 i32 i32 i64 u16 u16 u32 u64 f32 f32  f32 f64
u32  i64 i64 i64 i64 u32 u32 u32 u64 f64 f64  f64 f64
u64  f64 f64 f64 f64 u64 u64 u64 u64 f64 f64  f64 f64
f16  f16 f32 f64 f64 f16 f32 f64 f64 f16 f32  f32 f64
bf16 bf16 f32 f64 f64 bf16 f32 f64 f64 f32 bf16 f32 f64
f32  f32 f32 f64 f64 f32 f32 f64 f64 f32 f32  f32 f64
f64  f64 f64 f64 f64 f64 f64 f64 f64 f64 f64  f64 f64
"""
_PROMOTED: dict[tuple[DType, DType], DType] = {
    (BY_SHORT[row], BY_SHORT[column]): BY_SHORT[result]
    for row, line in zip(_ORDER, _TABLE.strip().splitlines(), strict=True)
    for column, result in zip(_ORDER, line.split(), strict=True)
}


def promote(*dtypes: DType | type) -> DType:
    """Return the dtype that holds what all ``dtypes`` hold.

    A Python type (``bool``, ``int``, ``float``) is weak: it changes the kind of the result, not its width.
    With an integer or bool tensor a ``float`` gives float32, and with a bool tensor an ``int`` gives int32.
    """
    strong = [d for d in dtypes if isinstance(d, DType)]
    weak = [d for d in dtypes if not isinstance(d, DType)]
    if not strong:
        return max((_PYTHON[w] for w in weak), key=lambda d: (d.is_float, d.is_integer))
    result = strong[0]
    for other in strong[1:]:
        result = _PROMOTED[result, other]
    for kind in weak:
        if kind is float and not result.is_float:
            result = DEFAULT_FLOAT
        elif kind is int and result.is_bool:
            result = DEFAULT_INT
    return result


def float_of(dtype: DType) -> DType:
    """Return the dtype of a float function (``exp``, ``mean``, ``/``): floats keep theirs, others give float32."""
    return dtype if dtype.is_float else DEFAULT_FLOAT


def sum_of(dtype: DType) -> DType:
    """Return the dtype of a sum or product: bool and narrow integers widen to 32 bits, the default width."""
    if dtype.is_float or dtype.itemsize >= 4:
        return dtype
    return uint32 if dtype.is_integer and not dtype.is_signed else DEFAULT_INT


def wide_of(dtype: DType) -> DType:
    """Return the dtype in which floats are accumulated: float32, or float64 for float64."""
    return float32 if dtype in (float16, bfloat16) else dtype
