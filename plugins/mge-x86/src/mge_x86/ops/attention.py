"""Attention and its gradient with the tokens before the heads, as linear layers leave them.

In: tensors (n, t, h, d). Out: ``x86::attention``, ``x86::attention_backward``.
Before the pass ``attention``, which makes them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mge import Tensor
from mge.errors import ShapeError
from mge.ops.attention import attention as heads_first
from mge.ops.attention import attention_backward as heads_first_backward
from mge.plugin import abstract, op


def _turned(where: str, *given: Any) -> list[Any]:
    """Return the types of tensors with the heads first; they must have as many rows and heads."""
    if any(x.ndim != 4 for x in given) or len({(x.shape[0], x.shape[2]) for x in given}) > 1:
        raise ShapeError(
            f"{where}: the inputs have shapes {', '.join(str(x.shape) for x in given)}; "
            "they must be (n, tokens, heads, size) with the same n and heads"
        )
    return [abstract(_swapped(x.shape), x.dtype) for x in given]


def _swapped(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[0], shape[2], shape[1], *shape[3:]


@op(name="x86::attention")
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Average values with weights that say how well each key fits the query, for each head.

    ``y[:, :, h] = softmax(scale * query[:, :, h] @ key[:, :, h].T + mask[:, h]) @ value[:, :, h]``

    Parameters
    ----------
    query : (n, l, h, d) float
    key : (n, s, h, d) same dtype
    value : (n, s, h, v) same dtype
    mask : broadcasts to (n, h, l, s), bool or same dtype; optional
        False where a key is not to be seen, or numbers to add to the scores.
    scale : float or None, default None
        None means ``1 / sqrt(d)``.
    is_causal : bool, default False
        Query ``i`` sees keys 0 to ``i`` only.

    Returns
    -------
    (n, l, h, v) same dtype

    Raises
    ------
    DTypeError
        The inputs are not of one float dtype, or ``mask`` is neither that nor bool.
    ShapeError
        The shapes do not fit, or there is no key.

    Examples
    --------
    >>> x = ones((1, 3, 2, 4))
    >>> attention(x, x, x).shape
    (1, 3, 2, 4)
    """
    inputs = _turned("x86::attention", query, key, value)
    y = heads_first.rule(*inputs, mask, scale=scale, is_causal=is_causal)
    return abstract(_swapped(y.shape), y.dtype)


@attention.reference
def _(query, key, value, mask=None, *, scale, is_causal):
    inputs = (x.swapaxes(1, 2) for x in (query, key, value))
    y = heads_first._reference(*inputs, mask, scale=scale, is_causal=is_causal)
    return np.ascontiguousarray(y.swapaxes(1, 2))


attention.multiply_adds = lambda sig: (
    (sig.input_types[0].size + sig.type.size) * sig.input_types[1].shape[1]
)


@attention.samples
def _(rng):
    def draw(*shape):  # small, so that scores are, and their rounding, for any scale
        return rng.normal(size=shape, scale=0.5).astype(np.float32)

    yield (draw(2, 5, 3, 4), draw(2, 7, 3, 4), draw(2, 7, 3, 2)), {}
    yield (draw(1, 17, 2, 16), draw(1, 17, 2, 16), draw(1, 17, 2, 16)), {"is_causal": True}
    yield (draw(1, 3, 2, 5), draw(1, 4, 2, 5), draw(1, 4, 2, 5), draw(2, 1, 4)), {"scale": 0.5}
    seen = rng.random((2, 1, 1, 6)) < 0.5
    yield (draw(2, 4, 2, 8), draw(2, 6, 2, 8), draw(2, 6, 2, 8), seen), {}
    yield (draw(0, 4, 2, 8), draw(0, 6, 2, 8), draw(0, 6, 2, 8)), {}


@op(name="x86::attention_backward")
def attention_backward(
    dy: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Differentiate ``x86::attention`` by query, key and value.

    ``attention_backward`` of each head.

    Parameters
    ----------
    dy : (n, l, h, v) float
    query : (n, l, h, d) same dtype
    key : (n, s, h, d) same dtype
    value : (n, s, h, v) same dtype
    mask : broadcasts to (n, h, l, s), bool or same dtype; optional
    scale : float or None, default None
        None means ``1 / sqrt(d)``.
    is_causal : bool, default False

    Returns
    -------
    dquery, dkey, dvalue : shapes of ``query``, ``key`` and ``value``, same dtype

    Raises
    ------
    DTypeError
        The inputs are not of one float dtype, or ``mask`` is neither that nor bool.
    ShapeError
        The shapes do not fit, or there is no key.

    Examples
    --------
    >>> x = ones((1, 3, 2, 4))
    >>> [d.shape for d in attention_backward(x, x, x, x)]
    [(1, 3, 2, 4), (1, 3, 2, 4), (1, 3, 2, 4)]
    """
    inputs = _turned("x86::attention_backward", dy, query, key, value)
    found = heads_first_backward.rule(*inputs, mask, scale=scale, is_causal=is_causal)
    return tuple(abstract(_swapped(d.shape), d.dtype) for d in found)


attention_backward.pairs = lambda sig: [(1, 0), (2, 1), (3, 2)]


@attention_backward.reference
def _(dy, query, key, value, mask=None, *, scale, is_causal):
    inputs = (x.swapaxes(1, 2) for x in (dy, query, key, value))
    found = heads_first_backward._reference(*inputs, mask, scale=scale, is_causal=is_causal)
    return tuple(np.ascontiguousarray(d.swapaxes(1, 2)) for d in found)


attention_backward.multiply_adds = lambda sig: (
    (3 * sig.types[0].size + 2 * sig.input_types[0].size) * sig.input_types[2].shape[1]
)


@attention_backward.samples
def _(rng):
    for (query, key, value, *mask), attrs in attention._samples(rng):
        dy = rng.normal(size=(*query.shape[:3], value.shape[-1])).astype(np.float32)
        yield (dy, query, key, value, *mask), attrs


attention.tolerance = attention_backward.tolerance = {"float32": 1e-5}  # sums in another order
