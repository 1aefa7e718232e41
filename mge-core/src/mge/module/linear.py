"""Layers that multiply by a matrix or look rows up, and the ones that only reshape.

In: features. Out: ``Linear``, ``Embedding``, ``Identity``, ``Flatten``, ``Dropout``.
After ``init``; before ``__init__``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import functional as F
from ..errors import ArgumentError
from ..tensor import Parameter, Tensor
from . import init
from .module import Module


def empty_parameter(shape: tuple[int, ...], grouped: bool = False) -> Parameter:
    """Return a float32 parameter that an initialiser is about to set; zeros until then."""
    made = Parameter.from_node(F.zeros(shape)._node)
    if grouped:
        made._notes = {"grouped": "yes"}
    return made  # type: ignore[return-value]


class Identity(Module):
    """Return the input as it is.

    Examples
    --------
    >>> Identity()(tensor([1.0]))
    Tensor([1.], dtype=float32, device=ref:0)
    """

    def forward(self, inp: Any) -> Any:
        return inp


class Flatten(Module):
    """Make one axis of the axes ``start_axis`` to ``end_axis``.

    Parameters
    ----------
    start_axis : int, default 1
    end_axis : int, default -1
        The last axis, included.
    name : str, optional

    Examples
    --------
    >>> Flatten()(ones((2, 3, 4))).shape
    (2, 12)
    """

    def __init__(self, start_axis: int = 1, end_axis: int = -1, name: str | None = None) -> None:
        super().__init__(name)
        self.start_axis, self.end_axis = start_axis, end_axis

    def forward(self, inp: Tensor) -> Tensor:
        return F.flatten(inp, self.start_axis, self.end_axis)


class Linear(Module):
    """Multiply by a learned matrix and add a bias: ``y = x @ weight.T + bias``.

    Parameters
    ----------
    in_features, out_features : int
    bias : bool, default True
        Whether there is a bias.
    compute_mode : {"default", "float32"}
        ``"float32"`` accumulates float16 inputs in float32; mge always does.
    name : str, optional

    Attributes
    ----------
    weight : (out_features, in_features) Parameter
        Drawn from ``N(0, 1 / in_features)``.
    bias : (out_features,) Parameter or None
        Zeros.

    Examples
    --------
    >>> Linear(3, 2)(ones((5, 3))).shape
    (5, 2)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        compute_mode: str = "default",
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.in_features, self.out_features, self.compute_mode = (
            in_features,
            out_features,
            compute_mode,
        )
        self.weight = empty_parameter((out_features, in_features))
        self.bias = empty_parameter((out_features,)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight again and set the bias to 0."""
        init.normal_(self.weight, 0.0, math.sqrt(1.0 / max(1, self.in_features)))
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, inp: Tensor) -> Tensor:
        return F.linear(inp, self.weight, self.bias)

    def _module_info_string(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


class Embedding(Module):
    """Look rows of a learned table up by index.

    Parameters
    ----------
    num_embeddings : int
        Rows of the table.
    embedding_dim : int
        Values in a row.
    padding_idx : int, optional
        A row that starts as zeros and gets no gradient.
    max_norm : float, optional
        Not supported; must be None.
    norm_type : float, optional
        Not supported; must be None.
    initial_weight : (num_embeddings, embedding_dim) array-like or Tensor, optional
        By default drawn from ``N(0, 1)``.
    freeze : bool, default False
        True: the table gets no gradient.
    name : str, optional

    Attributes
    ----------
    weight : (num_embeddings, embedding_dim) Parameter

    Examples
    --------
    >>> Embedding(10, 4)(tensor([[1, 2, 3]])).shape
    (1, 3, 4)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float | None = None,
        initial_weight: Any = None,
        freeze: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if max_norm is not None or norm_type is not None:
            raise ArgumentError(
                "Embedding: max_norm and norm_type are not supported",
                hint="clip the weight's rows after the optimizer's step",
            )
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ArgumentError(
                f"Embedding: padding_idx is {padding_idx}; the table has {num_embeddings} rows"
            )
        self.num_embeddings, self.embedding_dim, self.freeze = num_embeddings, embedding_dim, freeze
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        shape = (num_embeddings, embedding_dim)
        self.weight = empty_parameter(shape)
        if initial_weight is None:
            self.reset_parameters()
        else:
            given = (
                initial_weight if isinstance(initial_weight, Tensor) else np.asarray(initial_weight)
            )
            if tuple(given.shape) != shape:
                raise ArgumentError(
                    f"Embedding: initial_weight has shape {tuple(given.shape)}; it must be {shape}"
                )
            self.weight.set_value(given)

    def reset_parameters(self) -> None:
        """Draw the table again; the padding row becomes zeros."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            self.weight[self.padding_idx] = 0.0

    def forward(self, inp: Tensor) -> Tensor:
        weight = self.weight.detach() if self.freeze else self.weight
        found = F.embedding(inp, weight)
        if self.padding_idx is None:
            return found
        # The padding row's gradient stops here; its value is looked up like the others.
        is_padding = F.expand_dims(F.equal(inp, self.padding_idx), -1)
        return F.where(is_padding, found.detach(), found)

    @classmethod
    def from_pretrained(
        cls, embeddings: Any, freeze: bool = True, padding_idx: int | None = None
    ) -> Embedding:
        """Return an Embedding that holds a copy of a table, by default without gradient."""
        rows, columns = embeddings.shape
        return cls(rows, columns, padding_idx=padding_idx, initial_weight=embeddings, freeze=freeze)

    def _module_info_string(self) -> str:
        padding = f", padding_idx={self.padding_idx}" if self.padding_idx is not None else ""
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


class Dropout(Module):
    """While training, set random elements to 0 and scale the rest up.

    ``y = x * keep / (1 - drop_prob)``; in inference mode ``y = x``.

    Parameters
    ----------
    drop_prob : float, default 0.0
        The probability of 0, in ``[0, 1)``.
    name : str, optional

    Sources
    -------
    Srivastava et al., Dropout: A Simple Way to Prevent Neural Networks from Overfitting, JMLR 15, 2014.

    Examples
    --------
    >>> Dropout(0.5).eval()(tensor([1.0, 2.0]))
    Tensor([1., 2.], dtype=float32, device=ref:0)
    """

    def __init__(self, drop_prob: float = 0.0, name: str | None = None) -> None:
        super().__init__(name)
        if not 0 <= drop_prob < 1:
            raise ArgumentError(f"Dropout: drop_prob is {drop_prob}; it must be in [0, 1)")
        self.drop_prob = drop_prob

    def forward(self, inp: Tensor) -> Tensor:
        if not self.training or not self.drop_prob:
            return inp
        return F.dropout(inp, self.drop_prob, True)

    def _module_info_string(self) -> str:
        return f"drop_prob={self.drop_prob}"
