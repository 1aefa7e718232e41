"""Attention: softmax of query-key products as weights of values.

In: queries, keys, values, masks. Out: the op ``attention``, and ``scaled_dot_product_attention``.
After ``softmax``; before ``multi_head``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ..dtype import wide_of
from ..errors import DTypeError, ShapeError
from ..op import op
from ..types import Type, abstract, broadcast
from .broadcasting import unbroadcast
from .comparison import greater_equal
from .constant import iota
from .elementwise import add
from .linalg import matmul
from .logic import logical_and
from .reduction import sum
from .select import cast, where
from .softmax import softmax

if TYPE_CHECKING:
    from ..tensor import Tensor

FUNCTIONS = ("scaled_dot_product_attention",)
PRIVATE = ("attention",)

LOWEST = (
    -3e38
)  # below every score, and finite in float32: its exponential is 0 beside any real score


def _check(
    query: Tensor | Type, key: Tensor | Type, value: Tensor | Type, mask: Tensor | Type | None
) -> tuple[int, ...]:
    """Return the batch shape; raise an error where the inputs do not fit."""
    if not query.dtype.is_float or key.dtype != query.dtype or value.dtype != query.dtype:
        raise DTypeError(
            f"attention: query, key and value are {query.dtype}, {key.dtype} and {value.dtype}; "
            "they must be of one float dtype"
        )
    shapes = f"query, key and value have shapes {query.shape}, {key.shape} and {value.shape}"
    if min(query.ndim, key.ndim, value.ndim) < 2:
        raise ShapeError(f"attention: {shapes}; each must have at least 2 axes")
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ShapeError(
            f"attention: {shapes}; they must be (..., l, d), (..., s, d) and (..., s, v)"
        )
    if not key.shape[-2]:
        raise ShapeError(f"attention: {shapes}; there must be at least 1 key")
    batch = broadcast(query.shape[:-2], key.shape[:-2], value.shape[:-2], where="attention")
    if mask is not None:
        if not mask.dtype.is_bool and mask.dtype != query.dtype:
            raise DTypeError(
                f"attention: mask is {mask.dtype}; it must be bool, or {query.dtype} as query"
            )
        full = (*batch, query.shape[-2], key.shape[-2])
        if broadcast(full, mask.shape, where="attention") != full:
            raise ShapeError(f"attention: mask has shape {mask.shape}; it must broadcast to {full}")
    return batch


def _scale(scale: float | None, size: int) -> float:
    return scale if scale is not None else 1 / math.sqrt(max(size, 1))


@op(autocast="low")
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Average values with weights that say how well each key fits the query.

    ``y = softmax(scale * query @ key.T + mask) @ value``

    Parameters
    ----------
    query : (..., l, d) float
    key : (..., s, d) same dtype
    value : (..., s, v) same dtype
    mask : broadcasts to (..., l, s), bool or same dtype; optional
        False where a key is not to be seen, or numbers to add to the scores.
    scale : float or None, default None
        None means ``1 / sqrt(d)``.
    is_causal : bool, default False
        Query ``i`` sees keys 0 to ``i`` only.

    Returns
    -------
    (..., l, v) same dtype

    Raises
    ------
    DTypeError
        The inputs are not of one float dtype, or ``mask`` is neither that nor bool.
    ShapeError
        The shapes do not fit, or there is no key.

    Notes
    -----
    The softmax is computed in float32 or wider. A query that a bool mask lets see no key gives 0. The gradient
    computes the weights again, so the (l, s) scores are not kept. ``2 * l * s * (d + v)`` FLOPs a matrix.

    Sources
    -------
    Vaswani et al., Attention Is All You Need, NeurIPS 2017, arXiv:1706.03762, equation 1.

    Examples
    --------
    >>> attention(tensor([[0.0]]), tensor([[1.0], [2.0]]), tensor([[10.0], [20.0]]))
    Tensor([[15.]], dtype=float32, device=ref:0)
    """
    batch = _check(query, key, value, mask)
    return abstract((*batch, query.shape[-2], value.shape[-1]), query.dtype)


@attention.reference
def _(query, key, value, mask=None, *, scale, is_causal):
    dtype = query.dtype
    if dtype.itemsize == 2:
        query, key, value = (x.astype(np.float32) for x in (query, key, value))
    scores = np.matmul(
        query * query.dtype.type(_scale(scale, query.shape[-1])), np.swapaxes(key, -1, -2)
    )
    seen = None
    if is_causal:
        seen = np.tri(scores.shape[-2], scores.shape[-1], dtype=np.bool_)
    if mask is not None and mask.dtype == np.bool_:
        seen = mask if seen is None else seen & mask
    elif mask is not None:
        scores += mask
    if seen is not None:
        np.copyto(scores, LOWEST, where=~seen)
    scores -= np.max(scores, axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    if mask is not None and mask.dtype == np.bool_:
        np.copyto(scores, 0, where=~seen)
        total = np.sum(scores, axis=-1, keepdims=True)
        np.copyto(total, 1, where=total == 0)
    else:
        total = np.sum(scores, axis=-1, keepdims=True)
    y = np.matmul(scores, value)
    y /= total
    return y.astype(dtype, copy=False)


def weights(
    query: Tensor, key: Tensor, mask: Tensor | None, scale: float | None, is_causal: bool
) -> Tensor:
    """Return the weights of the values, (..., l, s), in float32 or wider."""
    wide = wide_of(query.dtype)
    query, key = cast(query, dtype=wide), cast(key, dtype=wide)
    scores = matmul(query * _scale(scale, query.shape[-1]), key, transpose_b=True)
    seen = None
    if is_causal:
        length, keys = scores.shape[-2:]
        seen = greater_equal(iota(shape=(length, 1), axis=0), iota(shape=(1, keys), axis=1))
    if mask is not None and mask.dtype.is_bool:
        seen = mask if seen is None else logical_and(seen, mask)
    elif mask is not None:
        scores = add(scores, cast(mask, dtype=wide))
    if seen is not None:
        scores = where(seen, scores, LOWEST)
    found = softmax(scores, axis=-1)
    return where(seen, found, 0.0) if mask is not None and mask.dtype.is_bool else found


@attention.gradient
def _(dy, y, query, key, value, mask=None, *, scale, is_causal):
    # With p = weights, y = p @ value:  dscores = p * (dp - sum(dp * p)),  and  sum(dp * p) = sum(dy * y).
    dtype, wide = query.dtype, wide_of(query.dtype)
    p = weights(query, key, mask, scale, is_causal)
    dy_wide, number = cast(dy, dtype=wide), _scale(scale, query.shape[-1])
    dvalue = matmul(p, dy_wide, transpose_a=True)
    dp = matmul(dy_wide, cast(value, dtype=wide), transpose_b=True)
    dscores = p * (dp - sum(dy_wide * cast(y, dtype=wide), axis=-1, keepdims=True))
    dquery = matmul(dscores, cast(key, dtype=wide)) * number
    dkey = matmul(dscores, cast(query, dtype=wide), transpose_a=True) * number
    grads = [
        unbroadcast(cast(d, dtype=dtype), x)
        for d, x in ((dquery, query), (dkey, key), (dvalue, value))
    ]
    if mask is not None:
        grads.append(None if mask.dtype.is_bool else unbroadcast(cast(dscores, dtype=dtype), mask))
    return tuple(grads)


@attention.lowering
def _(query, key, value, mask=None, *, scale, is_causal):
    p = weights(query, key, mask, scale, is_causal)
    return cast(matmul(p, cast(value, dtype=p.dtype)), dtype=query.dtype)


@attention.samples
def _(rng):
    def draw(*shapes):
        return tuple(rng.normal(size=shape) for shape in shapes)

    yield draw((2, 3), (4, 3), (4, 2)), {}
    yield draw((2, 2, 3), (2, 4, 3), (2, 4, 1), (2, 4)), {"scale": 0.5}
    yield draw((2, 1, 3, 2), (1, 2, 3, 2), (2, 3, 1)), {"is_causal": True}
    some = np.array([[True, False, True], [False, False, False]])
    yield (*draw((2, 2), (3, 2), (3, 2)), some), {}
    yield (*draw((2, 2), (3, 2), (3, 2)), np.array([True, False, True])), {"is_causal": True}
    yield draw((0, 2), (3, 2), (3, 2)), {}


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Average values with weights that say how well each key fits the query.

    ``y = dropout(softmax(scale * query @ key.T + attn_mask)) @ value``

    Parameters
    ----------
    query : (..., l, d) float
    key : (..., s, d) same dtype
    value : (..., s, v) same dtype
    attn_mask : broadcasts to (..., l, s), bool or same dtype; optional
        False where a key is not to be seen, or numbers to add to the scores.
    dropout_p : float, default 0.0
        Probability with which each weight is set to 0, at least 0 and below 1. Give 0 outside of training.
    is_causal : bool, default False
        Query ``i`` sees keys 0 to ``i`` only.
    scale : float or None, default None
        None means ``1 / sqrt(d)``.

    Returns
    -------
    (..., l, v) same dtype

    Raises
    ------
    DTypeError
        The inputs are not of one float dtype, or ``attn_mask`` is neither that nor bool.
    ShapeError
        The shapes do not fit, or there is no key.
    ArgumentError
        ``dropout_p`` is out of range.

    Sources
    -------
    Vaswani et al., Attention Is All You Need, NeurIPS 2017, arXiv:1706.03762, equation 1.

    Examples
    --------
    >>> x = tensor([[1.0], [2.0]])
    >>> scaled_dot_product_attention(x, x, x, is_causal=True)[0]
    Tensor([1.], dtype=float32, device=ref:0)
    """
    inputs = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    y = attention(*inputs, scale=scale, is_causal=is_causal)
    if not dropout_p:
        return y
    return attention_with_weights(query, key, value, attn_mask, dropout_p, is_causal, scale)[0]


def attention_with_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    drop: float,
    is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    """Return (y, weights): attention in separate steps, for dropout and for callers who want the weights."""
    from .dropout import dropout

    p = dropout(cast(weights(query, key, mask, scale, is_causal), dtype=query.dtype), drop)
    return matmul(p, value), p
