"""Recurrent cells: one step of an Elman network, of an LSTM, of a GRU.

In: inputs, states, weights. Out: ``rnn_cell``, ``lstm_cell``, ``gru_cell``: plain functions that build on the ops.
After ``gates``; before ``tensor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ArgumentError, user_place
from .gates import gru_gates, lstm_gates
from .linalg import matmul

if TYPE_CHECKING:
    from ..tensor import Tensor

FUNCTIONS = ("rnn_cell", "lstm_cell", "gru_cell")


def _sums(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y = matmul(x, weight, transpose_b=True)
    return y if bias is None else y + bias


def rnn_cell(
    inp: Tensor,
    h: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
    nonlinearity: str = "tanh",
) -> Tensor:
    """Take one step of an Elman network.

    ``y = tanh(inp @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh)``

    Parameters
    ----------
    inp : (n, d) float
    h : (n, h) float
        The old state.
    weight_ih : (h, d) float
    weight_hh : (h, h) float
    bias_ih, bias_hh : (h,) float, optional
    nonlinearity : {"tanh", "relu"}, default "tanh"

    Returns
    -------
    (n, h) dtype of the inputs

    Raises
    ------
    ShapeError
        The shapes do not fit.
    ArgumentError
        There is no such ``nonlinearity``.

    Sources
    -------
    Elman, Finding Structure in Time, Cognitive Science 14(2), 1990.

    Examples
    --------
    >>> rnn_cell(tensor([[1.0]]), tensor([[2.0]]), tensor([[3.0]]), tensor([[-1.0]]), nonlinearity="relu")
    Tensor([[1.]], dtype=float32, device=ref:0)
    """
    from .elementwise import maximum
    from .hyperbolic import tanh

    if nonlinearity not in ("tanh", "relu"):
        raise ArgumentError(
            f"rnn_cell: nonlinearity is {nonlinearity!r}; it must be 'tanh' or 'relu'"
        ).add_place(user_place())
    y = _sums(inp, weight_ih, bias_ih) + _sums(h, weight_hh, bias_hh)
    return tanh(y) if nonlinearity == "tanh" else maximum(y, 0.0)


def lstm_cell(
    inp: Tensor,
    h: Tensor,
    c: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Take one step of an LSTM.

    With ``i, f, g, o = inp @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh``:
    ``c2 = sigmoid(f) * c + sigmoid(i) * tanh(g)`` and ``h2 = sigmoid(o) * tanh(c2)``

    Parameters
    ----------
    inp : (n, d) float
    h, c : (n, h) float
        The old states.
    weight_ih : (4 * h, d) float
        Rows of input, forget, cell and output gate, in this order.
    weight_hh : (4 * h, h) float
    bias_ih, bias_hh : (4 * h,) float, optional

    Returns
    -------
    h2, c2 : (n, h) dtype of the inputs

    Raises
    ------
    ShapeError
        The shapes do not fit.

    Sources
    -------
    Hochreiter and Schmidhuber, Long Short-Term Memory, Neural Computation 9(8), 1997; forget gate: Gers et al., 2000.

    Examples
    --------
    >>> h, c = lstm_cell(tensor([[0.0]]), tensor([[0.0]]), tensor([[2.0]]), F.ones((4, 1)), F.ones((4, 1)))
    >>> c
    Tensor([[1.]], dtype=float32, device=ref:0)
    """
    return lstm_gates(_sums(inp, weight_ih, bias_ih) + _sums(h, weight_hh, bias_hh), c)


def gru_cell(
    inp: Tensor,
    h: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
) -> Tensor:
    """Take one step of a GRU.

    With ``ri, zi, ni = inp @ weight_ih.T + bias_ih`` and ``rh, zh, nh = h @ weight_hh.T + bias_hh``:
    ``r = sigmoid(ri + rh)``, ``z = sigmoid(zi + zh)``, ``n = tanh(ni + r * nh)``, ``y = (1 - z) * n + z * h``

    Parameters
    ----------
    inp : (n, d) float
    h : (n, h) float
        The old state.
    weight_ih : (3 * h, d) float
        Rows of reset, update and new gate, in this order.
    weight_hh : (3 * h, h) float
    bias_ih, bias_hh : (3 * h,) float, optional

    Returns
    -------
    (n, h) dtype of the inputs

    Raises
    ------
    ShapeError
        The shapes do not fit.

    Sources
    -------
    Cho et al., Learning Phrase Representations using RNN Encoder-Decoder, EMNLP 2014, arXiv:1406.1078v1.

    Examples
    --------
    >>> gru_cell(tensor([[0.0]]), tensor([[0.0]]), F.ones((3, 1)), F.ones((3, 1)))
    Tensor([[0.]], dtype=float32, device=ref:0)
    """
    return gru_gates(_sums(inp, weight_ih, bias_ih), _sums(h, weight_hh, bias_hh), h)
