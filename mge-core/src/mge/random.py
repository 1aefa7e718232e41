"""``mge.random``: random tensors from generators that can be seeded.

In: parameters and sizes. Out: tensors; each draw advances a generator, one for each device by default.
After ``trace``; an interface file.

Numbers come from Philox4x32-10 and are the same on every device: bits, uniform numbers and permutations bit for
bit, the others within rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import ops
from .device import as_device, default_device
from .dtype import DEFAULT_FLOAT, float32, wide_of
from .errors import ArgumentError, DTypeError, ShapeError, user_place
from .ops import distributions
from .ops import random as draws
from .ops.generators import default_state, draw, make_state, set_seed
from .tensor import Tensor
from .types import broadcast

__all__ = [
    "RNG", "beta", "exponential", "gamma", "multinomial", "normal", "permutation", "poisson", "seed", "shuffle",
    "uniform",
]  # fmt: skip

Size = int | Sequence[int] | None


def seed(seed: int) -> None:
    """Restart the default generator of every device.

    Parameters
    ----------
    seed : int
        Taken modulo ``2**64``. Equal seeds give equal numbers, on every device.

    Raises
    ------
    ArgumentError
        ``seed`` is no integer.

    Examples
    --------
    >>> mge.random.seed(3)
    >>> a = mge.random.uniform(size=2)
    >>> mge.random.seed(3)
    >>> bool((a == mge.random.uniform(size=2)).all())
    True
    """
    try:
        set_seed(seed)
    except ArgumentError as error:
        raise error.add_place(user_place()) from None


def _shape(size: Size, where: str) -> tuple[int, ...]:
    """Return a size as a shape."""
    if size is None:
        return ()
    if isinstance(size, (int, np.integer)):
        size = (size,)
    elif isinstance(size, (Tensor, np.ndarray)):
        size = np.atleast_1d(np.asarray(size)).tolist()
    shape = tuple(int(n) for n in size)
    if any(n < 0 for n in shape):
        raise ShapeError(f"{where}: size is {size}; sizes must be 0 or more").add_place(
            user_place()
        )
    return shape


class RNG:
    """A generator with a state of its own.

    Parameters
    ----------
    seed : int, optional
        Taken modulo ``2**64``. Without it the generator is the device's default one, which ``mge.random.seed`` sets.
    device : str or Device, optional
        Where its tensors are made; by default the default device.

    Raises
    ------
    ArgumentError
        ``seed`` is no integer.

    Notes
    -----
    The state is a tensor (seed, counter) that each draw advances by the number of random words it takes, so it is
    saved, traced and restored like any other value: ``rng.state``.

    Examples
    --------
    >>> a, b = mge.random.RNG(seed=1), mge.random.RNG(seed=1)
    >>> bool((a.normal(size=3) == b.normal(size=3)).all())
    True
    """

    def __init__(self, seed: int | None = None, device: Any = None) -> None:
        if seed is not None and not isinstance(seed, (int, np.integer)):
            raise ArgumentError(f"RNG: seed is {seed!r}; it must be an integer").add_place(
                user_place()
            )
        self._device = None if device is None else as_device(device)
        self._own = (
            None if seed is None else make_state(int(seed), self._device or default_device())
        )

    @property
    def state(self) -> Tensor:
        """The handle of the state, (seed, counter) in uint64."""
        return self._own if self._own is not None else default_state(self._device)

    def _draw(self, count: int, like: Tensor | None = None) -> Tensor:
        if self._own is None and self._device is None and like is not None:
            return draw(default_state(like.device), count)
        return draw(self.state, count)

    def uniform(
        self, low: float = 0, high: float = 1, size: Size = None, dtype: Any = None
    ) -> Tensor:
        """Return numbers spread evenly in [low, high).

        Parameters
        ----------
        low, high : float, default 0 and 1
        size : int or tuple of int, optional
            The shape; by default ().
        dtype : dtype, default float32

        Returns
        -------
        (size) float

        Raises
        ------
        ArgumentError
            ``low`` is above ``high``.

        Examples
        --------
        >>> mge.random.uniform(size=(2, 3)).shape
        (2, 3)
        """
        shape, kind = _shape(size, "uniform"), _float(dtype, "uniform")
        if not low <= high:
            raise ArgumentError(
                f"uniform: low is {low} and high is {high}; low must not be above high"
            ).add_place(user_place())
        state = self._draw(draws.uniform_words(math.prod(shape), kind))
        return draws.uniform(state, low=low, high=high, shape=shape, dtype=kind)

    def normal(
        self, mean: float = 0, std: float = 1, size: Size = None, dtype: Any = None
    ) -> Tensor:
        """Return normally distributed numbers.

        Parameters
        ----------
        mean, std : float, default 0 and 1
            ``std`` is 0 or more.
        size : int or tuple of int, optional
            The shape; by default ().
        dtype : dtype, default float32

        Returns
        -------
        (size) float

        Raises
        ------
        ArgumentError
            ``std`` is negative.

        Examples
        --------
        >>> mge.random.normal(size=4).shape
        (4,)
        """
        shape, kind = _shape(size, "normal"), _float(dtype, "normal")
        if not std >= 0:
            raise ArgumentError(f"normal: std is {std}; it must be 0 or more").add_place(
                user_place()
            )
        state = self._draw(draws.normal_words(math.prod(shape), kind))
        return draws.normal(state, mean=mean, std=std, shape=shape, dtype=kind)

    def permutation(self, n: int | Tensor, *, dtype: Any = "int32") -> Tensor:
        """Return the numbers 0 to n - 1, or the rows of a tensor, in random order.

        Parameters
        ----------
        n : int, or tensor with at least 1 axis
        dtype : dtype, default int32
            Of the numbers.

        Returns
        -------
        (n,) dtype; or the shape and dtype of the tensor

        Raises
        ------
        ArgumentError
            ``n`` is negative.
        ShapeError
            The tensor has no axis.

        Examples
        --------
        >>> sorted(mge.random.permutation(4).tolist())
        [0, 1, 2, 3]
        """
        if isinstance(n, (int, np.integer)):
            order = draws.permutation(self._draw(draws.permutation_words(max(int(n), 0))), n=int(n))
            return order.astype(dtype)
        values = n if isinstance(n, Tensor) else Tensor(n)
        if not values.ndim:
            raise ShapeError(
                "permutation: the tensor has no axis; it must have at least 1"
            ).add_place(user_place())
        rows = values.shape[0]
        order = draws.permutation(self._draw(draws.permutation_words(rows), values), n=rows)
        return ops.gather.index(values, order, axes=(0,))

    def shuffle(self, inp: Tensor) -> None:
        """Put the rows of a tensor into random order.

        Parameters
        ----------
        inp : tensor with at least 1 axis
            The handle then stands for the new value.

        Raises
        ------
        ShapeError
            The tensor has no axis.

        Examples
        --------
        >>> x = tensor([1, 2, 3])
        >>> mge.random.shuffle(x)
        >>> sorted(x.tolist())
        [1, 2, 3]
        """
        inp._assign(self.permutation(inp))

    def gamma(self, shape: Tensor | float, scale: Tensor | float = 1, size: Size = None) -> Tensor:
        """Return gamma distributed numbers.

        ``p(y) = y**(shape - 1) * exp(-y / scale) / (gamma(shape) * scale**shape)``

        Parameters
        ----------
        shape, scale : float or tensor
            Above 0; they broadcast.
        size : int or tuple of int, optional
            Axes before those of the parameters.

        Returns
        -------
        (size, broadcast shape of the parameters) float32, or the parameters' float dtype

        Raises
        ------
        ArgumentError
            A parameter that is a number is not above 0.

        Examples
        --------
        >>> mge.random.gamma(2.0, size=3).shape
        (3,)
        """
        (shape, scale), full = _parameters("gamma", size, shape=shape, scale=scale)
        return self._gamma(ops.shape.broadcast_to(shape, full)) * scale

    def _gamma(self, alpha: Tensor) -> Tensor:
        state = self._draw(distributions.gamma_words(alpha.size, wide_of(alpha.dtype)), alpha)
        return distributions.gamma(state, alpha)

    def beta(self, alpha: Tensor | float, beta: Tensor | float, size: Size = None) -> Tensor:
        """Return beta distributed numbers.

        ``p(y) = y**(alpha - 1) * (1 - y)**(beta - 1) / B(alpha, beta)``

        Parameters
        ----------
        alpha, beta : float or tensor
            Above 0; they broadcast.
        size : int or tuple of int, optional
            Axes before those of the parameters.

        Returns
        -------
        (size, broadcast shape of the parameters) float32, or the parameters' float dtype

        Raises
        ------
        ArgumentError
            A parameter that is a number is not above 0.

        Notes
        -----
        ``y = a / (a + b)`` for two gamma numbers. Where both round to 0, as with parameters below 0.01, y is 0.5.

        Examples
        --------
        >>> mge.random.beta(2.0, tensor([1.0, 3.0])).shape
        (2,)
        """
        (alpha, beta), full = _parameters("beta", size, alpha=alpha, beta=beta)
        a = self._gamma(ops.shape.broadcast_to(alpha, full))
        b = self._gamma(ops.shape.broadcast_to(beta, full))
        total = a + b
        return ops.select.where(total > 0, a / total, 0.5)

    def poisson(self, lam: Tensor | float, size: Size = None) -> Tensor:
        """Return Poisson distributed whole numbers.

        ``p(y) = lam**y * exp(-lam) / y!``

        Parameters
        ----------
        lam : float or tensor
            The rate, above 0.
        size : int or tuple of int, optional
            Axes before those of ``lam``.

        Returns
        -------
        (size, shape of ``lam``) float32, or the float dtype of ``lam``

        Raises
        ------
        ArgumentError
            A rate that is a number is not above 0.

        Examples
        --------
        >>> mge.random.poisson(3.0, size=(2, 2)).shape
        (2, 2)
        """
        (lam,), full = _parameters("poisson", size, lam=lam)
        state = self._draw(distributions.poisson_words(math.prod(full)), lam)
        return distributions.poisson(state, ops.shape.broadcast_to(lam, full))

    def exponential(self, scale: Tensor | float = 1, size: Size = None) -> Tensor:
        """Return exponentially distributed numbers.

        ``p(y) = exp(-y / scale) / scale``

        Parameters
        ----------
        scale : float or tensor, default 1
            The mean, above 0.
        size : int or tuple of int, optional
            Axes before those of ``scale``.

        Returns
        -------
        (size, shape of ``scale``) float32, or the float dtype of ``scale``

        Raises
        ------
        ArgumentError
            A scale that is a number is not above 0.

        Examples
        --------
        >>> mge.random.exponential(2.0, size=3).shape
        (3,)
        """
        (scale,), full = _parameters("exponential", size, scale=scale)
        dtype = wide_of(scale.dtype)
        state = self._draw(draws.uniform_words(math.prod(full), dtype), scale)
        u = draws.uniform(state, shape=full, dtype=dtype)
        return -ops.exponential.log(1.0 - u).astype(scale.dtype) * scale

    def multinomial(self, inp: Tensor, num_samples: int, replacement: bool = False) -> Tensor:
        """Return indices drawn with given weights.

        Parameters
        ----------
        inp : (n, c) or (c,) float
            The weight of each index, 0 or more, with a sum above 0 in each row.
        num_samples : int
            Draws in each row, 1 or more.
        replacement : bool, default False
            Whether an index may come again.

        Returns
        -------
        (n, num_samples) or (num_samples,) int32

        Raises
        ------
        DTypeError
            ``inp`` is no float tensor.
        ShapeError
            ``inp`` has neither 1 nor 2 axes.
        ArgumentError
            ``num_samples`` is below 1, or above ``c`` without replacement.

        Notes
        -----
        With replacement: the cumulative sums are searched for uniform numbers. Without: the largest of
        ``log(weight) - log(exponential number)``. An index of weight 0 comes only when all others are used up.

        Sources
        -------
        Without replacement: Efraimidis and Spirakis, Weighted Random Sampling with a Reservoir, IPL 97(5), 2006.

        Examples
        --------
        >>> mge.random.multinomial(tensor([0.0, 1.0, 0.0]), 2, replacement=True)
        Tensor([1, 1], dtype=int32, device=ref:0)
        """
        inp = inp if isinstance(inp, Tensor) else Tensor(inp)
        if not inp.dtype.is_float:
            raise DTypeError(
                f"multinomial: inp is {inp.dtype}; it must be a float tensor"
            ).add_place(user_place())
        if inp.ndim not in (1, 2):
            raise ShapeError(
                f"multinomial: inp has shape {inp.shape}; it must be (n, c) or (c,)"
            ).add_place(user_place())
        classes = inp.shape[-1]
        most = None if replacement else classes
        if num_samples < 1 or not classes or (most is not None and num_samples > most):
            raise ArgumentError(
                f"multinomial: num_samples is {num_samples}; with {classes} weights"
                f"{' and no replacement' if most is not None else ''} "
                f"it must be 1{f' to {most}' if most else ' or more'}"
            ).add_place(user_place())
        weights = inp.astype(wide_of(inp.dtype))
        shape = (*inp.shape[:-1], num_samples if replacement else classes)
        state = self._draw(draws.uniform_words(math.prod(shape), weights.dtype), inp)
        u = draws.uniform(state, shape=shape, dtype=weights.dtype)
        if not replacement:
            keys = ops.exponential.log(weights) - ops.exponential.log(-ops.exponential.log(1.0 - u))
            return ops.sorting.topk(keys, num_samples)[1]
        sums = ops.scan.cumsum(weights, axis=-1)
        total = ops.slicing.slice_along(sums, inp.ndim - 1, classes - 1, classes)
        below = ops.comparison.less_equal(
            ops.shape.expand_dims(sums, axis=-2), ops.shape.expand_dims(u * total, axis=-1)
        )
        return ops.elementwise.minimum(
            ops.reduction.sum(below.astype("int32"), axis=-1), classes - 1
        )


def _float(dtype: Any, where: str) -> Any:
    from .dtype import as_dtype

    kind = DEFAULT_FLOAT if dtype is None else as_dtype(dtype)
    if not kind.is_float:
        raise DTypeError(f"{where}: dtype is {kind}; it must be a float dtype").add_place(
            user_place()
        )
    return kind


def _parameters(
    where: str, size: Size, **given: Tensor | float
) -> tuple[list[Tensor], tuple[int, ...]]:
    """Return the parameters of a distribution as float tensors, and the shape of the draw."""
    found = []
    for name, value in given.items():
        if isinstance(value, (int, float)) and not value > 0:
            raise ArgumentError(f"{where}: {name} is {value}; it must be above 0").add_place(
                user_place()
            )
        like = next((v for v in given.values() if isinstance(v, Tensor)), None)
        made = (
            value
            if isinstance(value, Tensor)
            else Tensor(value, device=None if like is None else like.device)
        )
        found.append(made if made.dtype.is_float else made.astype(float32))
    shape = _shape(size, where) + broadcast(*(p.shape for p in found), where=where)
    return found, shape


_default = RNG()
uniform = _default.uniform
normal = _default.normal
permutation = _default.permutation
shuffle = _default.shuffle
gamma = _default.gamma
beta = _default.beta
poisson = _default.poisson
exponential = _default.exponential
multinomial = _default.multinomial
