"""Attention: softmax of query-key products as weights of values, and its form with many heads.

In: queries, keys, values, masks. Out: the op ``attention``; ``scaled_dot_product_attention``,
``multi_head_attention``. After ``softmax``; before ``tensor``.
"""

from __future__ import annotations

import builtins
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dtype import bool_, wide_of
from ..errors import ArgumentError, DTypeError, ShapeError, user_place
from ..op import op
from ..types import Type, abstract, broadcast
from .comparison import greater_equal
from .constant import iota
from .elementwise import add, unbroadcast
from .linalg import matmul
from .logic import logical_and, logical_not
from .reduction import mean, sum
from .select import cast, where
from .shape import broadcast_to, reshape, transpose
from .slicing import slice_along
from .softmax import softmax

if TYPE_CHECKING:
    from ..tensor import Tensor

FUNCTIONS = ("scaled_dot_product_attention", "multi_head_attention")
PRIVATE = ("attention",)

LOWEST = -3e38  # below every score, and finite in float32: its exponential is 0 beside any real score


def _check(query: Type, key: Type, value: Type, mask: Type | None) -> tuple[int, ...]:
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
        raise ShapeError(f"attention: {shapes}; they must be (..., l, d), (..., s, d) and (..., s, v)")
    if not key.shape[-2]:
        raise ShapeError(f"attention: {shapes}; there must be at least 1 key")
    batch = broadcast(query.shape[:-2], key.shape[:-2], value.shape[:-2], where="attention")
    if mask is not None:
        if not mask.dtype.is_bool and mask.dtype != query.dtype:
            raise DTypeError(f"attention: mask is {mask.dtype}; it must be bool, or {query.dtype} as query")
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
    scores = np.matmul(query * query.dtype.type(_scale(scale, query.shape[-1])), np.swapaxes(key, -1, -2))
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


def weights(query: Tensor, key: Tensor, mask: Tensor | None, scale: float | None, is_causal: bool) -> Tensor:
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
        unbroadcast(cast(d, dtype=dtype), x) for d, x in ((dquery, query), (dkey, key), (dvalue, value))
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
    return _with_dropout(query, key, value, attn_mask, dropout_p, is_causal, scale)[0]


def _with_dropout(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, drop: float, is_causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Return (y, weights): attention in separate steps, for dropout and for callers who want the weights."""
    from .dropout import dropout

    p = dropout(cast(weights(query, key, mask, scale, is_causal), dtype=query.dtype), drop)
    return matmul(p, value), p


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_heads: int,
    attn_drop: float = 0.0,
    out_drop: float = 0.0,
    io_weight_bias: Tensor | None = None,
    qproj_size: int | None = None,
    kproj_size: int | None = None,
    vproj_size: int | None = None,
    oproj_size: int | None = None,
    qbias: bool = False,
    kbias: bool = False,
    vbias: bool = False,
    obias: bool = False,
    bias_k: Tensor | None = None,
    bias_v: Tensor | None = None,
    add_zero_attn: bool = False,
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
    need_weights: bool = False,
    average_attn_weights: bool = False,
    is_causal: bool = False,
    maybe_cudnn_style_mask: bool = False,
    reslink: bool = False,
    training: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Attend with several heads, each on its part of the projected channels.

    ``y = concat(head_1, ..., head_h) @ wo + bo`` with
    ``head_i = softmax(q_i @ k_i.T / sqrt(d) + mask) @ v_i``, ``q = query @ wq + bq`` and so on, ``d = embed_dim / h``

    Parameters
    ----------
    query : (n, l, e) float, or (l, e)
    key : (n, s, ek) float, or (s, ek)
    value : (n, s, ev) float, or (s, ev)
    embed_dim : int
        The projected channels, a multiple of ``num_heads``.
    num_heads : int
    attn_drop, out_drop : float, default 0.0
        Probabilities of dropout on the weights and on the result.
    io_weight_bias : float, optional
        All weights and biases in one tensor of any shape, flattened in this order: ``wq (e, qproj_size)``,
        ``wk (ek, kproj_size)``, ``wv (ev, vproj_size)``, ``wo (vproj_size, oproj_size)``, ``bq``, ``bk``, ``bv``, ``bo``;
        without those that are switched off.
    qproj_size, kproj_size, vproj_size, oproj_size : int or None, default None
        Columns of each projection. None means ``embed_dim``; 0 leaves the projection out.
    qbias, kbias, vbias, obias : bool, default False
        Whether ``io_weight_bias`` holds this bias.
    bias_k, bias_v : (1, 1, kproj_size) and (1, 1, vproj_size) float, optional
        One more key and value, appended after the projection.
    add_zero_attn : bool, default False
        Append a key and a value of zeros.
    key_padding_mask : (n, s) bool or float, or (s,); optional
        True where a key is to be ignored, or numbers to add to the scores.
    attn_mask : (l, s) or (n * num_heads, l, s), bool or float; optional
        True where a key is not to be seen, or numbers to add to the scores.
    need_weights : bool, default False
        Return the weights too.
    average_attn_weights : bool, default False
        Return the weights' mean over the heads.
    is_causal : bool, default False
        Query ``i`` sees keys 0 to ``i`` only.
    maybe_cudnn_style_mask : bool, default False
        Only False is offered.
    reslink : bool, default False
        Add ``query`` to the result.
    training : bool, default True
        False switches dropout off.

    Returns
    -------
    y : (n, l, oproj_size) dtype of ``query``, or (l, oproj_size)
    weights : (n * num_heads, l, s), or (n, l, s) averaged; None without ``need_weights``
        For inputs without a batch (num_heads, l, s), or (l, s) averaged.

    Raises
    ------
    ShapeError
        The shapes do not fit, or ``io_weight_bias`` has another size than its parts.
    ArgumentError
        ``num_heads`` does not divide the projected channels, a bias is asked for without its projection, or
        ``maybe_cudnn_style_mask`` is True.

    Notes
    -----
    The weights act from the right, ``x @ w``: they are the transpose of ``linear``'s. The bool masks here are True
    where a key is *not* seen; those of ``scaled_dot_product_attention`` are True where it is.

    Sources
    -------
    Vaswani et al., Attention Is All You Need, NeurIPS 2017, arXiv:1706.03762, section 3.2.2.

    Examples
    --------
    >>> x = tensor([[[1.0, 2.0], [3.0, 4.0]]])
    >>> off = {"qproj_size": 0, "kproj_size": 0, "vproj_size": 0, "oproj_size": 0}
    >>> multi_head_attention(x, x, x, 2, 1, is_causal=True, **off)[0][0, 0]
    Tensor([1., 2.], dtype=float32, device=ref:0)
    """
    if maybe_cudnn_style_mask:
        raise ArgumentError(
            "multi_head_attention: maybe_cudnn_style_mask is True; mge takes masks of shapes (n, s) and (l, s) only"
        ).add_place(user_place())
    batched = query.ndim == 3
    if query.ndim not in (2, 3) or key.ndim != query.ndim or value.ndim != query.ndim:
        raise ShapeError(
            f"multi_head_attention: query, key and value have shapes {query.shape}, {key.shape} and {value.shape}; "
            "all must have 3 axes, or all 2"
        ).add_place(user_place())
    if not batched:
        query, key, value = (reshape(x, (1, *x.shape)) for x in (query, key, value))
        if key_padding_mask is not None:
            key_padding_mask = reshape(key_padding_mask, (1, *key_padding_mask.shape))
    source = query
    sizes = [embed_dim if size is None else size for size in (qproj_size, kproj_size, vproj_size, oproj_size)]
    projections = _projections(query, key, value, sizes, (qbias, kbias, vbias, obias), io_weight_bias)
    query, key, value = (_project(x, p) for x, p in zip((query, key, value), projections))
    if query.shape[-1] % num_heads or value.shape[-1] % num_heads:
        raise ArgumentError(
            f"multi_head_attention: num_heads is {num_heads}; it must divide the projected channels, "
            f"{query.shape[-1]} of query and {value.shape[-1]} of value"
        ).add_place(user_place())
    key, value, added = _appended(key, value, bias_k, bias_v, add_zero_attn)
    mask = _merged_mask(query, key, num_heads, key_padding_mask, attn_mask, is_causal, added)
    heads = [_split(x, num_heads) for x in (query, key, value)]
    drop = attn_drop if training else 0.0
    found = None
    if drop or need_weights:
        y, found = _with_dropout(*heads, mask, drop, False, None)
    else:
        y = attention(*heads) if mask is None else attention(*heads, mask)
    y = reshape(transpose(y, (0, 2, 1, 3)), (query.shape[0], query.shape[1], -1))
    y = _project(y, projections[3])
    if training and out_drop:
        from .dropout import dropout

        y = dropout(y, out_drop)
    if reslink:
        y = y + source
    if need_weights:
        found = mean(found, axis=1) if average_attn_weights else reshape(found, (-1, *found.shape[2:]))
    else:
        found = None
    if not batched:
        y = reshape(y, y.shape[1:])
        found = reshape(found, found.shape[1:]) if found is not None and average_attn_weights else found
    return y, found


def _projections(
    query: Tensor, key: Tensor, value: Tensor, sizes: list[int], biases: tuple[bool, ...], packed: Tensor | None
) -> list[tuple[Tensor | None, Tensor | None]]:
    """Cut the packed tensor into (weight, bias) of query, key, value and output."""
    names = ("query", "key", "value", "output")
    widths = [x.shape[-1] for x in (query, key, value)]
    widths.append(sizes[2] or widths[2])
    shapes = [(rows, columns) for rows, columns in zip(widths, sizes)]
    for name, size, bias in zip(names, sizes, biases):
        if bias and not size:
            raise ArgumentError(
                f"multi_head_attention: a bias of the {name} projection is asked for, and its size is 0"
            ).add_place(user_place())
    parts: list[tuple[int, ...]] = [s for s in shapes if s[1]] + [(s,) for s, b in zip(sizes, biases) if b]
    total = builtins.sum(math.prod(p) for p in parts)
    given = 0 if packed is None else packed.size
    if given != total:
        raise ShapeError(
            f"multi_head_attention: io_weight_bias holds {given} numbers; weights and biases of shapes {parts} need {total}"
        ).add_place(user_place())
    cut, start = [], 0
    flat = None if packed is None else reshape(packed, (packed.size,))
    for part in parts:
        size = math.prod(part)
        cut.append(reshape(slice_along(flat, 0, start, start + size), part))
        start += size
    cut.reverse()
    found = [cut.pop() if size else None for size in sizes]
    return [(weight, cut.pop() if bias else None) for weight, bias in zip(found, biases)]


def _project(x: Tensor, projection: tuple[Tensor | None, Tensor | None]) -> Tensor:
    weight, bias = projection
    y = x if weight is None else matmul(x, weight)
    return y if bias is None else y + bias


def _split(x: Tensor, heads: int) -> Tensor:
    """Return (n, l, heads * d) as (n, heads, l, d)."""
    n, length, size = x.shape
    return transpose(reshape(x, (n, length, heads, size // heads)), (0, 2, 1, 3))


def _appended(
    key: Tensor, value: Tensor, bias_k: Tensor | None, bias_v: Tensor | None, add_zero: bool
) -> tuple[Tensor, Tensor, int]:
    """Return keys and values with the extra ones, and how many these are."""
    from .create import zeros_like
    from .join import concat

    keys, values = [key], [value]
    if (bias_k is None) != (bias_v is None):
        raise ArgumentError("multi_head_attention: bias_k and bias_v must be given together").add_place(user_place())
    if bias_k is not None:
        keys.append(broadcast_to(bias_k, (key.shape[0], 1, key.shape[2])))
        values.append(broadcast_to(bias_v, (value.shape[0], 1, value.shape[2])))
    if add_zero:
        keys.append(zeros_like(slice_along(key, 1, 0, 1)))
        values.append(zeros_like(slice_along(value, 1, 0, 1)))
    if len(keys) == 1:
        return key, value, 0
    return concat(keys, axis=1), concat(values, axis=1), len(keys) - 1


def _merged_mask(
    query: Tensor,
    key: Tensor,
    heads: int,
    padding: Tensor | None,
    mask: Tensor | None,
    is_causal: bool,
    added: int,
) -> Tensor | None:
    """Return one mask for ``attention``, (n or 1, heads or 1, l, s): bool and True where seen, or float."""
    n, length, keys = query.shape[0], query.shape[1], key.shape[1] - added
    masks = []
    if padding is not None:
        if padding.shape != (n, keys):
            raise ShapeError(
                f"multi_head_attention: key_padding_mask has shape {padding.shape}; it must be {(n, keys)}"
            ).add_place(user_place())
        masks.append(reshape(padding, (n, 1, 1, keys)))
    if mask is not None:
        if mask.shape not in ((length, keys), (n * heads, length, keys)):
            raise ShapeError(
                f"multi_head_attention: attn_mask has shape {mask.shape}; "
                f"it must be {(length, keys)} or {(n * heads, length, keys)}"
            ).add_place(user_place())
        masks.append(reshape(mask, (1, 1, length, keys) if mask.ndim == 2 else (n, heads, length, keys)))
    seen = [logical_not(m) for m in masks if m.dtype.is_bool]
    if is_causal:
        seen.append(greater_equal(iota(shape=(1, 1, length, 1), axis=2), iota(shape=(1, 1, 1, keys), axis=3)))
    numbers = [cast(m, dtype=query.dtype) for m in masks if not m.dtype.is_bool]
    if not seen and not numbers:
        return None
    both = seen[0] if seen else None
    for other in seen[1:]:
        both = logical_and(both, other)
    if not numbers:
        return _padded(both, added, True, bool_)
    total = numbers[0] if len(numbers) == 1 else numbers[0] + numbers[1]
    if both is not None:
        total = where(both, total, float(np.finfo(np.float32).min) if query.dtype.itemsize > 2 else -6e4)
    return _padded(total, added, 0.0, query.dtype)


def _padded(mask: Tensor, added: int, value: Any, dtype: Any) -> Tensor:
    """Return a mask with columns for the appended keys."""
    if not added:
        return mask
    from .create import full
    from .join import concat

    columns = full((*mask.shape[:-1], added), value, dtype=dtype, device=mask.device)
    return concat([mask, columns], axis=-1)
