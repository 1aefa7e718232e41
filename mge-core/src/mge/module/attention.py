"""Attention with several heads.

In: (n, t, features) queries, keys and values. Out: ``MultiHeadAttention``.
After ``linear``; before ``transformer``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import functional as F
from ..errors import ArgumentError, ShapeError
from ..ops.attention import weights
from ..tensor import Tensor
from . import init
from .linear import Dropout, Linear
from .module import Module

LOWEST = -3e4  # a score of float16 too; beside other scores its weight is 0


def causal_mask(queries: int, keys: int, device: Any = None) -> Tensor:
    """Return a (queries, keys) bool mask that is True where a key lies after the query."""
    return Tensor(np.triu(np.ones((queries, keys), bool), 1), device=device)


class MultiHeadAttention(Module):
    """Let each query take a mean of values, weighted by the likeness of its keys.

    ``head = softmax(q k.T / sqrt(d)) v`` for the ``embed_dim / num_heads = d`` features of each head, after linear
    projections of query, key and value and before one of the joined heads.

    Parameters
    ----------
    embed_dim : int
        e, the features of query and output.
    num_heads : int
        Divides ``embed_dim``.
    attn_dropout, out_dropout : float, default 0.0
        While training, on the weights and on the output.
    bias : bool, default True
        Whether the four projections have biases.
    add_bias_kv, add_zero_attn : bool
        Must be False.
    reslink : bool, default False
        True: add the query to the output.
    kdim, vdim : int, optional
        Features of key and value; by default e.
    name : str, optional

    Attributes
    ----------
    q_proj, k_proj, v_proj, out_proj : Linear
        Weights by ``xavier_uniform_``, biases 0.

    Notes
    -----
    Called with ``(query, key, value, key_padding_mask=None, attn_mask=None, need_weights=False,
    average_attn_weights=False, is_causal=False)``; returns ``(output, weights)``, where ``weights`` is None unless
    asked for. Query is (n, l, e), key (n, s, kdim), value (n, s, vdim). A bool mask is True for what is ignored; a
    float mask is added to the scores. ``key_padding_mask`` is (n, s); ``attn_mask`` is (l, s), (n, l, s),
    (n * num_heads, l, s) or (n, num_heads, l, s). Where all keys are ignored, all weigh the same.

    Sources
    -------
    Vaswani et al., Attention Is All You Need, NeurIPS 2017, arXiv:1706.03762, section 3.2.

    Examples
    --------
    >>> x = ones((2, 5, 8))
    >>> output, weights = MultiHeadAttention(8, 2)(x, x, x, need_weights=True)
    >>> output.shape, weights.shape
    ((2, 5, 8), (2, 2, 5, 5))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        attn_dropout: float = 0.0,
        out_dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        reslink: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if num_heads < 1 or embed_dim % num_heads:
            raise ArgumentError(
                f"MultiHeadAttention: embed_dim is {embed_dim} and num_heads {num_heads}; the latter must divide the "
                "former"
            )
        if not 0 <= attn_dropout < 1:
            raise ArgumentError(
                f"MultiHeadAttention: attn_dropout is {attn_dropout}; it must be in [0, 1)"
            )
        if add_bias_kv or add_zero_attn:
            raise ArgumentError(
                "MultiHeadAttention: add_bias_kv and add_zero_attn are not supported"
            )
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.attn_dropout, self.reslink = attn_dropout, reslink
        self.out_dropout = Dropout(out_dropout)
        self.q_proj = Linear(embed_dim, embed_dim, bias)
        self.k_proj = Linear(kdim or embed_dim, embed_dim, bias)
        self.v_proj = Linear(vdim or embed_dim, embed_dim, bias)
        self.out_proj = Linear(embed_dim, embed_dim, bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights again and set the biases to 0."""
        for layer in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                init.zeros_(layer.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        need_weights: bool = False,
        average_attn_weights: bool = False,
        is_causal: bool = False,
        maybe_cudnn_style_mask: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if maybe_cudnn_style_mask:
            raise ArgumentError(
                "MultiHeadAttention: masks in cuDNN's form are not supported", hint="use bool masks"
            )
        if not query.ndim == key.ndim == value.ndim == 3:
            raise ShapeError(
                f"MultiHeadAttention: query, key and value have shapes {query.shape}, {key.shape} and {value.shape}; "
                "each must be (n, t, features)"
            )
        n, queries, _ = query.shape
        q, k, v = (
            self._split(self.q_proj(query)),
            self._split(self.k_proj(key)),
            self._split(self.v_proj(value)),
        )
        mask = self._mask(q, key.shape[1], attn_mask, key_padding_mask)
        drop = self.attn_dropout if self.training else 0.0
        found = None
        if need_weights:
            found = F.dropout(weights(q, k, mask, None, is_causal).astype(v.dtype), drop)
            heads = F.matmul(found, v)
        else:
            heads = F.scaled_dot_product_attention(q, k, v, mask, drop, is_causal)
        joined = heads.transpose(0, 2, 1, 3).reshape(n, queries, self.embed_dim)
        output = self.out_dropout(self.out_proj(joined))
        if self.reslink:
            output = output + query
        if found is not None and average_attn_weights:
            found = found.mean(axis=1)
        return output, found

    def _split(self, x: Tensor) -> Tensor:
        """Return (n, heads, t, d) of (n, t, heads * d)."""
        n, t, _ = x.shape
        return x.reshape(n, t, self.num_heads, self.head_dim).transpose(0, 2, 1, 3)

    def _mask(self, q: Tensor, keys: int, attn_mask: Any, padding: Any) -> Tensor | None:
        """Return what the attention op takes: bool, True where a key is seen, or numbers to add; None without masks."""
        n, _, queries, _ = q.shape
        given = []
        if attn_mask is not None:
            given.append(self._full_mask(attn_mask, n, queries, keys))
        if padding is not None:
            if padding.shape != (n, keys):
                raise ShapeError(
                    f"MultiHeadAttention: key_padding_mask has shape {padding.shape}; it must be {(n, keys)}"
                )
            given.append(padding.reshape(n, 1, 1, keys))
        if not given:
            return None
        if all(m.dtype.is_bool for m in given):
            return F.logical_not(given[0] if len(given) == 1 else F.logical_or(*given))
        added = [F.where(m, LOWEST, 0.0) if m.dtype.is_bool else m for m in given]
        return (added[0] if len(added) == 1 else added[0] + added[1]).astype(q.dtype)

    def _full_mask(self, mask: Tensor, n: int, queries: int, keys: int) -> Tensor:
        end = (queries, keys)
        if mask.shape in (end, (n, self.num_heads, *end), (n, 1, *end), (1, 1, *end)):
            return mask
        if mask.shape == (n * self.num_heads, *end) and self.num_heads > 1:
            return mask.reshape(n, self.num_heads, *end)
        if mask.shape in ((n, *end), (1, *end)):
            return mask.reshape(-1, 1, *end)
        raise ShapeError(
            f"MultiHeadAttention: attn_mask has shape {mask.shape}; it must be {end}, {(n, *end)}, "
            f"{(n * self.num_heads, *end)} or {(n, self.num_heads, *end)}"
        )

    def _module_info_string(self) -> str:
        return f"{self.embed_dim}, num_heads={self.num_heads}"
