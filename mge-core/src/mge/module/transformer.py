"""Transformer layers and stacks, with PyTorch's arguments.

In: (t, n, features) sequences, or (n, t, features) with ``batch_first=True``. Out: encoder, decoder, and both.
After ``attention``; before ``__init__``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from .. import functional as F
from ..errors import ArgumentError
from ..tensor import Tensor
from . import init
from .attention import MultiHeadAttention, causal_mask
from .linear import Dropout, Linear
from .module import Module
from .normalization import LayerNorm


class _Layer(Module):
    """What encoder and decoder layers share: a feed-forward block, dropout, and the order of norms."""

    def _set(
        self,
        d_model: int,
        dim_feedforward: int,
        dropout: float,
        activation: str | Callable,
        layer_norm_eps: float,
        batch_first: bool,
        norm_first: bool,
        bias: bool,
    ) -> None:
        if isinstance(activation, str) and activation not in ("relu", "gelu"):
            raise ArgumentError(
                f"{type(self).__name__}: activation is {activation!r}; it must be 'relu', 'gelu' or callable"
            )
        self.activation, self.batch_first, self.norm_first = activation, batch_first, norm_first
        self.linear1 = Linear(d_model, dim_feedforward, bias)
        self.linear2 = Linear(dim_feedforward, d_model, bias)
        self.dropout = Dropout(dropout)

    def _feed_forward(self, x: Tensor) -> Tensor:
        act = self.activation
        function = getattr(F, act) if isinstance(act, str) else act
        return self.dropout(self.linear2(self.dropout(function(self.linear1(x)))))

    def _block(self, x: Tensor, norm: Module, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Return ``x`` plus a block's output, normalised before the block or after the sum."""
        return x + function(norm(x)) if self.norm_first else norm(x + function(x))

    def _attend(
        self, attention: Module, x: Tensor, other: Tensor, mask: Any, padding: Any, causal: bool
    ) -> Tensor:
        found, _ = attention(x, other, other, padding, mask, is_causal=causal)
        return self.dropout(found)

    def _turned(self, *sequences: Tensor) -> list[Tensor]:
        """Return (n, t, e) of the layer's form, and the other way round."""
        return [s if self.batch_first else s.transpose(1, 0, 2) for s in sequences]


class TransformerEncoderLayer(_Layer):
    """Self-attention, then two linear layers; each with a residual and a layer norm.

    Called with ``(src, src_mask=None, src_key_padding_mask=None, is_causal=False)``; masks are those of
    ``MultiHeadAttention``.

    Parameters
    ----------
    d_model : int
        Features.
    nhead : int
        Heads of attention.
    dim_feedforward : int, default 2048
        Features between the two linear layers.
    dropout : float, default 0.1
    activation : {"relu", "gelu"} or callable
    layer_norm_eps : float, default 1e-5
    batch_first : bool, default False
        False: sequences are (t, n, d_model).
    norm_first : bool, default False
        True: norms come before attention and linear layers.
    bias : bool, default True
    name : str, optional

    Sources
    -------
    Vaswani et al., Attention Is All You Need, NeurIPS 2017, arXiv:1706.03762, section 3.1.

    Examples
    --------
    >>> TransformerEncoderLayer(8, 2, 16)(ones((5, 1, 8))).shape
    (5, 1, 8)
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.self_attn = MultiHeadAttention(d_model, nhead, dropout, bias=bias)
        self._set(
            d_model,
            dim_feedforward,
            dropout,
            activation,
            layer_norm_eps,
            batch_first,
            norm_first,
            bias,
        )
        self.norm1 = LayerNorm(d_model, layer_norm_eps)
        self.norm2 = LayerNorm(d_model, layer_norm_eps)

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        (x,) = self._turned(src)
        x = self._block(
            x,
            self.norm1,
            lambda y: self._attend(self.self_attn, y, y, src_mask, src_key_padding_mask, is_causal),
        )
        (x,) = self._turned(self._block(x, self.norm2, self._feed_forward))
        return x


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to the encoder's output, then two linear layers.

    Called with ``(tgt, memory, tgt_mask=None, memory_mask=None, tgt_key_padding_mask=None,
    memory_key_padding_mask=None, tgt_is_causal=False, memory_is_causal=False)``.

    Parameters
    ----------
    d_model : int
        Features.
    nhead : int
        Heads of attention.
    dim_feedforward : int, default 2048
        Features between the two linear layers.
    dropout : float, default 0.1
    activation : {"relu", "gelu"} or callable
    layer_norm_eps : float, default 1e-5
    batch_first : bool, default False
        False: sequences are (t, n, d_model).
    norm_first : bool, default False
        True: norms come before attention and linear layers.
    bias : bool, default True
    name : str, optional

    Sources
    -------
    Vaswani et al., Attention Is All You Need, NeurIPS 2017, arXiv:1706.03762, section 3.1.

    Examples
    --------
    >>> TransformerDecoderLayer(8, 2, 16)(ones((5, 1, 8)), ones((3, 1, 8))).shape
    (5, 1, 8)
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.self_attn = MultiHeadAttention(d_model, nhead, dropout, bias=bias)
        self.multihead_attn = MultiHeadAttention(d_model, nhead, dropout, bias=bias)
        self._set(
            d_model,
            dim_feedforward,
            dropout,
            activation,
            layer_norm_eps,
            batch_first,
            norm_first,
            bias,
        )
        self.norm1 = LayerNorm(d_model, layer_norm_eps)
        self.norm2 = LayerNorm(d_model, layer_norm_eps)
        self.norm3 = LayerNorm(d_model, layer_norm_eps)

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        x, memory = self._turned(tgt, memory)
        x = self._block(
            x,
            self.norm1,
            lambda y: self._attend(
                self.self_attn, y, y, tgt_mask, tgt_key_padding_mask, tgt_is_causal
            ),
        )
        x = self._block(
            x,
            self.norm2,
            lambda y: self._attend(
                self.multihead_attn,
                y,
                memory,
                memory_mask,
                memory_key_padding_mask,
                memory_is_causal,
            ),
        )
        (x,) = self._turned(self._block(x, self.norm3, self._feed_forward))
        return x


class TransformerEncoder(Module):
    """A stack of copies of one encoder layer.

    Parameters
    ----------
    encoder_layer : TransformerEncoderLayer
        Copied for each layer.
    num_layers : int
    norm : Module, optional
        Applied to the output.
    name : str, optional

    Examples
    --------
    >>> TransformerEncoder(TransformerEncoderLayer(8, 2, 16), 2)(ones((5, 1, 8))).shape
    (5, 1, 8)
    """

    def __init__(
        self,
        encoder_layer: Module,
        num_layers: int,
        norm: Module | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.layers = [copy.deepcopy(encoder_layer) for _ in range(num_layers)]
        self.norm = norm

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, is_causal)
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Module):
    """A stack of copies of one decoder layer.

    Parameters
    ----------
    decoder_layer : TransformerDecoderLayer
        Copied for each layer.
    num_layers : int
    norm : Module, optional
        Applied to the output.
    name : str, optional

    Examples
    --------
    >>> TransformerDecoder(TransformerDecoderLayer(8, 2, 16), 2)(ones((5, 1, 8)), ones((3, 1, 8))).shape
    (5, 1, 8)
    """

    def __init__(
        self,
        decoder_layer: Module,
        num_layers: int,
        norm: Module | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.layers = [copy.deepcopy(decoder_layer) for _ in range(num_layers)]
        self.norm = norm

    def forward(self, tgt: Tensor, memory: Tensor, *masks: Any, **options: Any) -> Tensor:
        for layer in self.layers:
            tgt = layer(tgt, memory, *masks, **options)
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """An encoder and a decoder.

    Called with ``(src, tgt, src_mask=None, tgt_mask=None, memory_mask=None, src_key_padding_mask=None,
    tgt_key_padding_mask=None, memory_key_padding_mask=None)``; returns the decoder's output.

    Parameters
    ----------
    d_model : int, default 512
    nhead : int, default 8
    num_encoder_layers, num_decoder_layers : int, default 6
    dim_feedforward : int, default 2048
    dropout : float, default 0.1
    activation : {"relu", "gelu"} or callable
    custom_encoder, custom_decoder : Module, optional
        In place of the stacks.
    layer_norm_eps : float, default 1e-5
    batch_first : bool, default False
        False: sequences are (t, n, d_model).
    norm_first : bool, default False
    bias : bool, default True
    name : str, optional

    Sources
    -------
    Vaswani et al., Attention Is All You Need, NeurIPS 2017, arXiv:1706.03762.

    Examples
    --------
    >>> net = Transformer(8, 2, 1, 1, 16)
    >>> net(ones((5, 1, 8)), ones((3, 1, 8))).shape
    (3, 1, 8)
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable = "relu",
        custom_encoder: Module | None = None,
        custom_decoder: Module | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        options: tuple = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps)
        options += (batch_first, norm_first, bias)
        self.encoder = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(*options),
            num_encoder_layers,
            LayerNorm(d_model, layer_norm_eps),
        )
        self.decoder = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(*options),
            num_decoder_layers,
            LayerNorm(d_model, layer_norm_eps),
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all matrices again by ``xavier_uniform_``."""
        for parameter in self.parameters():
            if parameter.ndim > 1:
                init.xavier_uniform_(parameter)

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        memory = self.encoder(src, src_mask, src_key_padding_mask)
        return self.decoder(
            tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask
        )

    @staticmethod
    def generate_square_subsequent_mask(size: int, device: Any = None) -> Tensor:
        """Return a (size, size) bool mask that is True where a key lies after the query."""
        return causal_mask(size, size, device)
