"""Attention with many heads, in MegEngine's form: all weights in one tensor.

In: queries, keys, values, packed weights, masks. Out: ``multi_head_attention``.
After ``attention``; before ``tensor``.
"""

from __future__ import annotations

import builtins
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dtype import bool_
from ..errors import ArgumentError, ShapeError, user_place
from .attention import attention, attention_with_weights
from .comparison import greater_equal
from .constant import iota
from .linalg import matmul
from .logic import logical_and, logical_not
from .reduction import mean
from .select import cast, where
from .shape import broadcast_to, reshape, transpose
from .slicing import slice_along

if TYPE_CHECKING:
    from ..tensor import Tensor

FUNCTIONS = ("multi_head_attention",)


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
        ``wk (ek, kproj_size)``, ``wv (ev, vproj_size)``, ``wo (vproj_size, oproj_size)``, ``bq``, ``bk``, ``bv``,
        ``bo``; without those that are switched off.
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
    sizes = [
        embed_dim if size is None else size
        for size in (qproj_size, kproj_size, vproj_size, oproj_size)
    ]
    projections = _projections(
        query, key, value, sizes, (qbias, kbias, vbias, obias), io_weight_bias
    )
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
        y, weights = attention_with_weights(heads[0], heads[1], heads[2], mask, drop, False, None)
        if need_weights and average_attn_weights:
            found = mean(weights, axis=1)
        elif need_weights:
            found = reshape(weights, (-1, *weights.shape[2:]))
    else:
        y = attention(*heads) if mask is None else attention(*heads, mask)
    y = reshape(transpose(y, (0, 2, 1, 3)), (query.shape[0], query.shape[1], -1))
    y = _project(y, projections[3])
    if training and out_drop:
        from .dropout import dropout

        y = dropout(y, out_drop)
    if reslink:
        y = y + source
    if not batched:
        y = reshape(y, y.shape[1:])
        if found is not None and average_attn_weights:
            found = reshape(found, found.shape[1:])
    return y, found


def _projections(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sizes: list[int],
    biases: tuple[bool, ...],
    packed: Tensor | None,
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
    parts: list[tuple[int, ...]] = [s for s in shapes if s[1]] + [
        (s,) for s, b in zip(sizes, biases) if b
    ]
    total = builtins.sum(math.prod(p) for p in parts)
    given = 0 if packed is None else packed.size
    if given != total:
        raise ShapeError(
            f"multi_head_attention: io_weight_bias holds {given} numbers; "
            f"weights and biases of shapes {parts} need {total}"
        ).add_place(user_place())
    cut, start = [], 0
    flat: Any = None if packed is None else reshape(packed, (packed.size,))
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
        raise ArgumentError(
            "multi_head_attention: bias_k and bias_v must be given together"
        ).add_place(user_place())
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
        masks.append(
            reshape(mask, (1, 1, length, keys) if mask.ndim == 2 else (n, heads, length, keys))
        )
    seen = [logical_not(m) for m in masks if m.dtype.is_bool]
    if is_causal:
        seen.append(
            greater_equal(
                iota(shape=(1, 1, length, 1), axis=2), iota(shape=(1, 1, 1, keys), axis=3)
            )
        )
    numbers = [cast(m, dtype=query.dtype) for m in masks if not m.dtype.is_bool]
    if not seen and not numbers:
        return None
    both: Any = seen[0] if seen else None
    for other in seen[1:]:
        both = logical_and(both, other)
    if not numbers:
        return _padded(both, added, True, bool_)
    total = numbers[0] if len(numbers) == 1 else numbers[0] + numbers[1]
    if both is not None:
        total = where(
            both, total, float(np.finfo(np.float32).min) if query.dtype.itemsize > 2 else -6e4
        )
    return _padded(total, added, 0.0, query.dtype)


def _padded(mask: Tensor, added: int, value: Any, dtype: Any) -> Tensor:
    """Return a mask with columns for the appended keys."""
    if not added:
        return mask
    from .create import full
    from .join import concat

    columns = full((*mask.shape[:-1], added), value, dtype=dtype, device=mask.device)
    return concat([mask, columns], axis=-1)
