"""Normalisation in NumPy: zero mean and unit variance over some axes, then a factor and a shift.

In: arrays, and the axes over which each mean runs. Out: results with their means and variances, and gradients.
After ``reduction``; before ``batch_norm`` and ``norm``.
"""

from __future__ import annotations

import math

import numpy as np

from ..dtype import as_dtype, wide_of
from .reduction import add_along
from .windows import Sizes


def wide_array(x: np.ndarray) -> np.ndarray:
    """Return an array of floats in the dtype in which they are accumulated."""
    return x.astype(wide_of(as_dtype(x.dtype)).dtype, copy=False)


def standardized(
    inp: np.ndarray, weight: np.ndarray | None, bias: np.ndarray | None, axes: Sizes, eps: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the result, and the means and variances with their axes kept.

    The variance is taken from the differences to the mean (two passes), so a large mean costs no digits.
    ``weight`` and ``bias`` broadcast to ``inp``.
    """
    x = wide_array(inp)
    count = math.prod(inp.shape[a] for a in axes)
    with np.errstate(all="ignore"):
        mean = add_along(x, axes, keepdims=True) / x.dtype.type(count)
        y = x - mean
        var = add_along(np.square(y), axes, keepdims=True) / x.dtype.type(count)
        scale = 1 / np.sqrt(var + x.dtype.type(eps))
        if weight is not None and np.broadcast_shapes(weight.shape, scale.shape) == scale.shape:
            scale = scale * weight.astype(x.dtype, copy=False)
            weight = None
        y *= scale
        if weight is not None:
            y *= weight
        if bias is not None:
            y += bias
    return y.astype(inp.dtype, copy=False), mean, var


def summed_to(x: np.ndarray, shape: Sizes) -> np.ndarray:
    """Return ``x`` summed over the axes along which ``shape`` broadcasts to it, in memory of its own."""
    extra = x.ndim - len(shape)
    axes = (
        *range(extra),
        *(extra + i for i, n in enumerate(shape) if n == 1 != x.shape[extra + i]),
    )
    return (add_along(x, axes) if axes else x.copy()).reshape(shape)


def standardized_backward(
    inp: np.ndarray,
    dy: np.ndarray,
    mean: np.ndarray,
    var: np.ndarray,
    weight: np.ndarray | None,
    axes: Sizes,
    eps: float,
) -> tuple[np.ndarray, ...]:
    """Return dx, and with a weight also dweight and dbias; ``mean`` and ``var`` have their axes kept.

    With r = 1/sqrt(var + eps), z = (x - mean) * r and g = weight * dy:
    dx = r * (g - mean(g) - z * mean(g * z)).
    """
    x, g = wide_array(inp), wide_array(dy)
    kind = x.dtype.type
    count = kind(math.prod(inp.shape[a] for a in axes))
    with np.errstate(all="ignore"):
        rstd = 1 / np.sqrt(var + kind(eps))
        centred = x - mean
        extra: tuple[np.ndarray, ...] = ()
        if weight is None:
            scale, sums = rstd, (_sum(g, axes), _sum(g * centred, axes))
        elif np.broadcast_shapes(weight.shape, mean.shape) == mean.shape:
            # Each mean has one weight, as in batch normalisation: dweight and dbias are the sums that dx needs.
            w = weight.astype(x.dtype, copy=False)
            dbias, product = _sum(g, axes), _sum(g * centred, axes)
            scale, sums = rstd * w, (dbias, product)
            extra = (summed_to(product * rstd, weight.shape), summed_to(dbias, weight.shape))
        else:
            given = g * centred
            given *= rstd
            extra = (summed_to(given, weight.shape), summed_to(g, weight.shape))
            g = g * weight.astype(x.dtype, copy=False)
            scale, sums = rstd, (_sum(g, axes), _sum(g * centred, axes))
        # The formula above, with z = centred * r and the means as sums / count:
        centred *= rstd * rstd * (sums[1] / count)
        centred += sums[0] / count
        dx = np.subtract(g, centred, out=centred)
        dx *= scale
    return dx.astype(inp.dtype, copy=False), *extra


def _sum(x: np.ndarray, axes: Sizes) -> np.ndarray:
    return add_along(x, axes, keepdims=True)
