"""Random numbers as functions of a generator's state.

In: a state, the tensor (seed, counter). Out: the ops ``random_bits``, ``advance``, ``uniform``, ``normal``,
``permutation``. After ``philox``; before ``generators``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ..dtype import DType, bfloat16, float16, float32, float64, int32, uint32, uint64, wide_of
from ..errors import ArgumentError, DTypeError, ShapeError
from ..op import op
from ..types import Type, abstract
from .broadcasting import no_gradient
from .philox import philox_words

if TYPE_CHECKING:
    from ..tensor import Tensor

PRIVATE = ("random_bits", "advance", "uniform", "normal", "permutation")

# Random bits in one element of a uniform draw: as many as the dtype's fraction holds exactly.
UNIFORM_BITS = {float16: 11, bfloat16: 8, float32: 24, float64: 53}
TWO_PI = 2 * math.pi


def check_state(state: Tensor | Type, where: str) -> None:
    """Raise an error where the first input of a random op is no generator state."""
    if state.dtype != uint64:
        raise DTypeError(f"{where}: state is {state.dtype}; it must be uint64 (seed, counter)")
    if state.shape != (2,):
        raise ShapeError(
            f"{where}: state has shape {state.shape}; it must be (2,), seed and counter"
        )


def check_draw(state: Tensor | Type, shape: tuple[int, ...], dtype: DType, where: str) -> Type:
    """Return the type of a draw; raise an error where state, shape or dtype are wrong."""
    check_state(state, where)
    if any(n < 0 for n in shape):
        raise ShapeError(f"{where}: shape is {shape}; sizes must be 0 or more")
    if dtype not in UNIFORM_BITS:
        raise DTypeError(f"{where}: dtype is {dtype}; it must be a float dtype")
    return abstract(shape, dtype)


@op(base=True)
def random_bits(state: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    """Return random words: part of the Philox4x32-10 stream of a seed.

    ``y.flatten()[i] = philox(seed, block=(counter + i) // 4)[(counter + i) % 4]``

    Parameters
    ----------
    state : (2,) uint64
        Seed and counter.
    shape : tuple of int

    Returns
    -------
    (shape) uint32

    Raises
    ------
    DTypeError
        ``state`` is not uint64.
    ShapeError
        ``state`` is not ``(2,)``, or a size is negative.

    Notes
    -----
    Block ``b`` has the counter words ``(b % 2**32, b // 2**32, 0, 0)`` and the key
    ``(seed % 2**32, seed // 2**32)``. ``counter + i`` wraps at ``2**64``. Equal on every device, bit for bit.

    Sources
    -------
    Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011, section 3.3.

    Examples
    --------
    >>> random_bits(tensor([0, 0], dtype="uint64"), shape=(2,))
    Tensor([1713891541, 3781805453], dtype=uint32, device=ref:0)
    """
    check_state(state, "random_bits")
    if any(n < 0 for n in shape):
        raise ShapeError(f"random_bits: shape is {shape}; sizes must be 0 or more")
    return abstract(shape, uint32)


@random_bits.reference
def _(state, *, shape):
    return philox_words(state, math.prod(shape)).reshape(shape)


random_bits.gradient(no_gradient)


@random_bits.samples
def _(rng):
    yield (np.array([1, 0], np.uint64),), {"shape": (5,)}
    yield (np.array([2**63 + 7, 3], np.uint64),), {"shape": (2, 3)}
    yield (np.array([5, 2**64 - 2], np.uint64),), {"shape": (6,)}
    yield (np.array([5, 1], np.uint64),), {"shape": ()}
    yield (np.array([5, 1], np.uint64),), {"shape": (0, 2)}


@op(base=True)
def advance(state: Tensor, *, count: int) -> Tensor:
    """Return the state after ``count`` words were drawn.

    ``y = (seed, (counter + count) % 2**64)``

    Parameters
    ----------
    state : (2,) uint64
    count : int
        0 or more.

    Returns
    -------
    (2,) uint64

    Raises
    ------
    DTypeError
        ``state`` is not uint64.
    ShapeError
        ``state`` is not ``(2,)``.
    ArgumentError
        ``count`` is negative.

    Examples
    --------
    >>> advance(tensor([7, 3], dtype="uint64"), count=10)
    Tensor([ 7, 13], dtype=uint64, device=ref:0)
    """
    check_state(state, "advance")
    if count < 0:
        raise ArgumentError(f"advance: count is {count}; it must be 0 or more")
    return abstract((2,), uint64)


advance.inplace = (0,)


@advance.reference
def _(state, *, count):
    return state + np.array([0, count % 2**64], np.uint64)


advance.gradient(no_gradient)


@advance.samples
def _(rng):
    yield (np.array([1, 0], np.uint64),), {"count": 5}
    yield (np.array([2**64 - 1, 2**64 - 1], np.uint64),), {"count": 1}
    yield (np.array([3, 9], np.uint64),), {"count": 0}


def uniform_words(size: int, dtype: DType) -> int:
    """Return how many words a uniform draw of ``size`` elements takes."""
    return 2 * size if dtype is float64 else size


def unit_array(words: np.ndarray, dtype: DType) -> np.ndarray:
    """Return words as numbers in [0, 1): ``unit_tensor`` in NumPy."""
    bits = UNIFORM_BITS[dtype]
    if dtype is float64:
        pairs = words.reshape(-1, 2)
        # 53 bits: 27 of the first word, then 26 of the second.
        return ((pairs[:, 0] >> 5) * 2.0**26 + (pairs[:, 1] >> 6)) * 2.0**-53
    return ((words >> (32 - bits)).astype(np.float32) * np.float32(2.0**-bits)).astype(dtype.dtype)


def unit_tensor(state: Tensor, size: int, dtype: DType) -> Tensor:
    """Return ``size`` numbers in [0, 1), in base ops: k / 2**b for the top b bits k of each word."""
    from .logic import right_shift
    from .select import cast

    bits = UNIFORM_BITS[dtype]
    if dtype is float64:
        words = random_bits(state, shape=(size, 2))
        high = cast(right_shift(_column(words, 0), 5), dtype=float64)
        low = cast(right_shift(_column(words, 1), 6), dtype=float64)
        return (high * 2.0**26 + low) * 2.0**-53
    words = random_bits(state, shape=(size,))
    return cast(cast(right_shift(words, 32 - bits), dtype=float32) * 2.0**-bits, dtype=dtype)


def _column(x: Tensor, i: int) -> Tensor:
    """Return ``x[:, i]``."""
    from .shape import reshape
    from .slicing import slice_along

    return reshape(slice_along(x, 1, i, i + 1), shape=(x.shape[0],))


@op
def uniform(
    state: Tensor,
    *,
    low: float = 0.0,
    high: float = 1.0,
    shape: tuple[int, ...] = (),
    dtype: DType = float32,
) -> Tensor:
    """Return numbers spread evenly between two bounds.

    ``y = low + (high - low) * u`` with ``u = k / 2**b`` for the top ``b`` bits ``k`` of a random word

    Parameters
    ----------
    state : (2,) uint64
        Element ``i`` takes word ``i``; in float64 words ``2i`` and ``2i + 1``.
    low, high : float
    shape : tuple of int, default ()
    dtype : DType, default float32

    Returns
    -------
    (shape) dtype, in [low, high); rounding may give ``high`` where it is not 1

    Raises
    ------
    DTypeError
        ``dtype`` is no float dtype, or ``state`` is not uint64.
    ShapeError
        ``state`` is not ``(2,)``, or a size is negative.

    Notes
    -----
    ``b`` is 24 for float32, 53 for float64, 11 for float16 and 8 for bfloat16. Equal on every device, bit for
    bit: the product and the sum are rounded separately, in float32 or wider.

    Examples
    --------
    >>> uniform(tensor([7, 0], dtype="uint64"), shape=(0, 2)).shape
    (0, 2)
    """
    return check_draw(state, shape, dtype, "uniform")


@uniform.reference
def _(state, *, low, high, shape, dtype):
    y = unit_array(philox_words(state, uniform_words(math.prod(shape), dtype)), dtype)
    if (low, high) != (0.0, 1.0):
        wide = wide_of(dtype).dtype.type
        y = (y.astype(wide) * wide(high - low) + wide(low)).astype(dtype.dtype)
    return y.reshape(shape)


uniform.gradient(no_gradient)


@uniform.lowering
def _(state, *, low, high, shape, dtype):
    from .select import cast
    from .shape import reshape

    y = unit_tensor(state, math.prod(shape), dtype)
    if (low, high) != (0.0, 1.0):
        y = cast(cast(y, dtype=wide_of(dtype)) * (high - low) + low, dtype=dtype)
    return reshape(y, shape=shape)


@uniform.samples
def _(rng):
    state = np.array([11, 5], np.uint64)
    yield (state,), {"shape": (3, 4)}
    yield (state,), {"shape": (), "low": -2.0, "high": 3.0}
    for dtype in (float16, bfloat16, float64):
        yield (state,), {"shape": (7,), "low": 1.0, "high": 4.0, "dtype": dtype}
    yield (state,), {"shape": (0, 3), "dtype": float64}


def normal_words(size: int, dtype: DType) -> int:
    """Return how many words a normal draw of ``size`` elements takes."""
    return uniform_words(size + size % 2, wide_of(dtype))


@op
def normal(
    state: Tensor,
    *,
    mean: float = 0.0,
    std: float = 1.0,
    shape: tuple[int, ...] = (),
    dtype: DType = float32,
) -> Tensor:
    """Return normally distributed numbers.

    ``y[2j] = mean + std * r * cos(t)`` and ``y[2j + 1] = mean + std * r * sin(t)``, with
    ``r = sqrt(-2 * log(1 - u[2j]))`` and ``t = 2 * pi * u[2j + 1]`` for a uniform draw ``u``

    Parameters
    ----------
    state : (2,) uint64
    mean, std : float
    shape : tuple of int, default ()
    dtype : DType, default float32

    Returns
    -------
    (shape) dtype

    Raises
    ------
    DTypeError
        ``dtype`` is no float dtype, or ``state`` is not uint64.
    ShapeError
        ``state`` is not ``(2,)``, or a size is negative.

    Notes
    -----
    float16 and bfloat16 are drawn in float32 and rounded. The largest magnitude is 5.8 ``std``, and 8.6 in
    float64. An odd size takes the words of one element more.

    Sources
    -------
    Box and Muller, A Note on the Generation of Random Normal Deviates, Ann. Math. Statist. 29(2), 1958.

    Examples
    --------
    >>> normal(tensor([7, 0], dtype="uint64"), std=0.0, mean=2.0, shape=(3,))
    Tensor([2., 2., 2.], dtype=float32, device=ref:0)
    """
    return check_draw(state, shape, dtype, "normal")


@normal.reference
def _(state, *, mean, std, shape, dtype):
    size, wide = math.prod(shape), wide_of(dtype)
    kind = wide.dtype.type
    u = unit_array(philox_words(state, normal_words(size, dtype)), wide).reshape(-1, 2)
    radius = np.sqrt(kind(-2) * np.log(kind(1) - u[:, 0]))
    angle = u[:, 1] * kind(TWO_PI)
    z = np.empty_like(u)
    np.multiply(radius, np.cos(angle), out=z[:, 0])
    np.multiply(radius, np.sin(angle), out=z[:, 1])
    z = z.reshape(-1)[:size]
    if (mean, std) != (0.0, 1.0):
        z = z * kind(std) + kind(mean)
    return z.astype(dtype.dtype).reshape(shape)


normal.gradient(no_gradient)


@normal.lowering
def _(state, *, mean, std, shape, dtype):
    from .exponential import log, sqrt
    from .join import concat
    from .select import cast
    from .shape import reshape
    from .slicing import slice_along
    from .trigonometry import cos, sin

    size = math.prod(shape)
    pairs = (size + 1) // 2
    u = reshape(unit_tensor(state, 2 * pairs, wide_of(dtype)), shape=(pairs, 2))
    radius = sqrt(log(1.0 - slice_along(u, 1, 0, 1)) * -2.0)
    angle = slice_along(u, 1, 1, 2) * TWO_PI
    z = reshape(concat([radius * cos(angle), radius * sin(angle)], axis=1), shape=(2 * pairs,))
    z = slice_along(z, 0, 0, size)
    if (mean, std) != (0.0, 1.0):
        z = z * std + mean
    return reshape(cast(z, dtype=dtype), shape=shape)


@normal.samples
def _(rng):
    state = np.array([11, 5], np.uint64)
    yield (state,), {"shape": (3, 4)}
    yield (state,), {"shape": (), "mean": -2.0, "std": 3.0}
    for dtype in (float16, bfloat16, float64):
        yield (state,), {"shape": (7,), "mean": 1.0, "std": 0.5, "dtype": dtype}
    yield (state,), {"shape": (0, 3)}


def permutation_words(n: int) -> int:
    """Return how many words a permutation of ``n`` numbers takes."""
    return 2 * n


@op
def permutation(state: Tensor, *, n: int) -> Tensor:
    """Return the numbers 0 to n - 1 in random order.

    ``y = argsort(key)`` with ``key[i] = word[2i] * 2**32 + word[2i + 1]``

    Parameters
    ----------
    state : (2,) uint64
    n : int
        0 or more, below 2**31.

    Returns
    -------
    (n,) int32

    Raises
    ------
    ArgumentError
        ``n`` is out of range.
    DTypeError
        ``state`` is not uint64.
    ShapeError
        ``state`` is not ``(2,)``.

    Notes
    -----
    The sort is stable, so the result is equal on every device.

    Examples
    --------
    >>> permutation(tensor([7, 0], dtype="uint64"), n=1)
    Tensor([0], dtype=int32, device=ref:0)
    """
    check_state(state, "permutation")
    if not 0 <= n < 2**31:
        raise ArgumentError(f"permutation: n is {n}; it must be 0 to 2**31 - 1")
    return abstract((n,), int32)


@permutation.reference
def _(state, *, n):
    words = philox_words(state, 2 * n).reshape(n, 2).astype(np.uint64)
    return np.argsort(words[:, 0] << np.uint64(32) | words[:, 1], kind="stable").astype(np.int32)


permutation.gradient(no_gradient)


@permutation.lowering
def _(state, *, n):
    from .logic import bitwise_or, left_shift
    from .select import cast
    from .sorting import argsort

    words = cast(random_bits(state, shape=(n, 2)), dtype=uint64)
    return argsort(bitwise_or(left_shift(_column(words, 0), 32), _column(words, 1)))


@permutation.samples
def _(rng):
    yield (np.array([3, 1], np.uint64),), {"n": 20}
    yield (np.array([3, 0], np.uint64),), {"n": 1}
    yield (np.array([3, 0], np.uint64),), {"n": 0}
