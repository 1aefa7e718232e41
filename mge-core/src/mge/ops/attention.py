"""Attention: softmax of query-key products as weights of values.

In: queries, keys, values, masks. Out: the ops ``attention`` and ``attention_backward``, and
``scaled_dot_product_attention``. After ``softmax``; before ``multi_head``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

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
PRIVATE = ("attention", "attention_backward")

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
    The softmax is computed in float32 or wider. A query that a bool mask lets see no key gives 0. What a query does
    not see should be finite: its weight is 0, and a device may leave it out or multiply. The gradient computes the
    weights again, so nothing of (l, s) is kept. ``2 * l * s * (d + v)`` FLOPs a matrix.

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


def _exponentials(
    query: Any, key: Any, mask: Any, scale: float | None, is_causal: bool
) -> tuple[Any, Any]:
    """Return exp(scores - their largest), (..., l, s), and its sums along keys, which are never 0."""
    scores = np.matmul(
        query * query.dtype.type(_scale(scale, query.shape[-1])), np.swapaxes(key, -1, -2)
    )
    seen: Any = None
    if is_causal:
        seen = np.tri(scores.shape[-2], scores.shape[-1], dtype=np.bool_)
    if mask is not None and mask.dtype == np.bool_:
        seen = mask if seen is None else seen & mask
    elif mask is not None:
        scores = scores + mask
    if seen is not None:
        scores = np.where(seen, scores, scores.dtype.type(LOWEST))
    scores -= np.max(scores, axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    if mask is None or mask.dtype != np.bool_:
        return scores, np.sum(scores, axis=-1, keepdims=True)
    np.copyto(scores, 0, where=~seen)
    total = np.sum(scores, axis=-1, keepdims=True)
    np.copyto(total, 1, where=total == 0)
    return scores, total


def _widened(*arrays: Any) -> tuple[Any, ...]:
    """Return arrays of 16-bit floats as float32, others as they are."""
    return tuple(
        a.astype(np.float32) if a is not None and a.dtype.itemsize == 2 else a for a in arrays
    )


@attention.reference
def _(query, key, value, mask=None, *, scale, is_causal):
    dtype = query.dtype
    query, key, value, mask = _widened(query, key, value, mask)
    scores, total = _exponentials(query, key, mask, scale, is_causal)
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
    masks = () if mask is None else (mask,)
    found = attention_backward(dy, query, key, value, *masks, scale=scale, is_causal=is_causal)
    grads = [unbroadcast(d, x) for d, x in zip(found, (query, key, value), strict=True)]
    if mask is not None:  # only where it is asked for; of (l, s), as the mask is
        dscores = (
            None
            if mask.dtype.is_bool
            else _products(dy, query, key, value, mask, scale, is_causal)[1]
        )
        grads.append(
            None if dscores is None else unbroadcast(cast(dscores, dtype=mask.dtype), mask)
        )
    return tuple(grads)


def _products(
    dy: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float | None,
    is_causal: bool,
) -> tuple[Tensor, Tensor]:
    """Return the weights and the gradient of the scores, both (..., l, s)."""
    # With p = weights and dp the gradient of p:  dscores = p * (dp - sum(dp * p)).
    p = weights(query, key, mask, scale, is_causal)
    dp = matmul(cast(dy, dtype=p.dtype), cast(value, dtype=p.dtype), transpose_b=True)
    return p, p * (dp - sum(dp * p, axis=-1, keepdims=True))


@attention.lowering
def _(query, key, value, mask=None, *, scale, is_causal):
    p = weights(query, key, mask, scale, is_causal)
    return cast(matmul(p, cast(value, dtype=p.dtype)), dtype=query.dtype)


# Scores, then their products with the values: (..., q, k) times both depths.
attention.multiply_adds = lambda sig: (
    (sig.input_types[0].size + sig.type.size) * sig.input_types[1].shape[-2]
)


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


@op
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
    """Differentiate ``attention`` by query, key and value.

    With ``p`` the weights and ``ds = p * (dp - sum(dp * p))``, ``dp = dy @ value.T``:
    ``dquery = scale * ds @ key``, ``dkey = scale * ds.T @ query``, ``dvalue = p.T @ dy``

    Parameters
    ----------
    dy : (..., l, v) float
        Gradient of the result.
    query : (..., l, d) same dtype
    key : (..., s, d) same dtype
    value : (..., s, v) same dtype
    mask : broadcasts to (..., l, s), bool or same dtype; optional
    scale : float or None, default None
        None means ``1 / sqrt(d)``.
    is_causal : bool, default False

    Returns
    -------
    dquery : (..., l, d) same dtype
    dkey : (..., s, d) same dtype
    dvalue : (..., s, v) same dtype
        All with the batch axes of ``dy``: where an input was broadcast, the sum over these axes is its gradient.

    Raises
    ------
    DTypeError
        The inputs are not of one float dtype, or ``mask`` is neither that nor bool.
    ShapeError
        The shapes do not fit, or there is no key.

    Notes
    -----
    Computed in float32 or wider. The weights are computed again from query and key, so neither they nor the result
    of ``attention`` need to be kept. ``2 * l * s * (3 * d + 2 * v)`` FLOPs a matrix.

    Examples
    --------
    >>> x = tensor([[1.0], [2.0]])
    >>> attention_backward(tensor([[1.0]]), tensor([[0.0]]), x, x)[2]
    Tensor([[0.5],
            [0.5]], dtype=float32, device=ref:0)
    """
    batch = _check(query, key, value, mask)
    if dy.dtype != query.dtype:
        raise DTypeError(
            f"attention_backward: dy is {dy.dtype} and query is {query.dtype}; they must be the same"
        )
    shape = (*batch, query.shape[-2], value.shape[-1])
    if dy.shape != shape:
        raise ShapeError(
            f"attention_backward: dy has shape {dy.shape}; the result of attention has {shape}"
        )
    return tuple(abstract((*batch, *x.shape[-2:]), x.dtype) for x in (query, key, value))


attention_backward.pairs = lambda sig: [(1, 0), (2, 1), (3, 2)]


@attention_backward.reference
def _(dy, query, key, value, mask=None, *, scale, is_causal):
    dtype = query.dtype
    dy, query, key, value, mask = _widened(dy, query, key, value, mask)
    p, total = _exponentials(query, key, mask, scale, is_causal)
    p /= total
    dscores = np.matmul(dy, np.swapaxes(value, -1, -2))
    dscores -= np.sum(dscores * p, axis=-1, keepdims=True)
    dscores *= p
    dscores *= dscores.dtype.type(_scale(scale, query.shape[-1]))
    dquery, dkey = np.matmul(dscores, key), np.matmul(np.swapaxes(dscores, -1, -2), query)
    dvalue = np.matmul(np.swapaxes(p, -1, -2), dy)
    return tuple(d.astype(dtype, copy=False) for d in (dquery, dkey, dvalue))


@attention_backward.lowering
def _(dy, query, key, value, mask=None, *, scale, is_causal):
    p, dscores = _products(dy, query, key, value, mask, scale, is_causal)
    dscores = dscores * _scale(scale, query.shape[-1])
    dquery = matmul(dscores, cast(key, dtype=p.dtype))
    dkey = matmul(dscores, cast(query, dtype=p.dtype), transpose_a=True)
    dvalue = matmul(p, cast(dy, dtype=p.dtype), transpose_a=True)
    return tuple(cast(d, dtype=query.dtype) for d in (dquery, dkey, dvalue))


# The scores again and three products of depth d, two of depth v.
attention_backward.multiply_adds = lambda sig: (
    (3 * sig.types[0].size + 2 * sig.input_types[0].size) * sig.input_types[2].shape[-2]
)


@attention_backward.samples
def _(rng):
    for (query, key, value, *mask), attrs in attention._samples(rng):
        batch = np.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
        dy = rng.normal(size=(*batch, query.shape[-2], value.shape[-1]))
        yield (dy, query, key, value, *mask), attrs


attention_backward.tolerance = {"float32": 1e-5}  # sums over queries and keys, in any order


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
