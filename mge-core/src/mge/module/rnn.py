"""Recurrent layers: cells that take one step, and stacks of them that run over a sequence.

In: (batch, features), or (time, batch, features). Out: ``RNNCell``, ``LSTMCell``, ``GRUCell``, ``RNN``, ``LSTM``,
``GRU``. After ``linear``; before ``__init__``.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from .. import functional as F
from ..errors import ArgumentError, ShapeError
from ..ops.gates import gru_gates, lstm_gates
from ..tensor import Tensor
from . import init
from .linear import empty_parameter
from .module import Module

State = tuple[Tensor, ...]


def _tanh_step(gates: Tensor, hidden: Tensor, state: State) -> State:
    return (F.tanh(gates + hidden),)


def _relu_step(gates: Tensor, hidden: Tensor, state: State) -> State:
    return (F.relu(gates + hidden),)


def _lstm_step(gates: Tensor, hidden: Tensor, state: State) -> State:
    return lstm_gates(_like(gates + hidden, state[1]), state[1])


def _gru_step(gates: Tensor, hidden: Tensor, state: State) -> State:
    return (gru_gates(_like(gates, state[0]), _like(hidden, state[0]), state[0]),)


def _like(gates: Tensor, state: Tensor) -> Tensor:
    """Return gates in the dtype of the state: under autocast products are narrower."""
    return gates if gates.dtype == state.dtype else gates.astype(state.dtype)


_STEPS = {"tanh": _tanh_step, "relu": _relu_step, "lstm": _lstm_step, "gru": _gru_step}
_GATES = {"tanh": 1, "relu": 1, "lstm": 4, "gru": 3}


def _check_nonlinearity(kind: str, nonlinearity: str) -> str:
    if nonlinearity not in ("tanh", "relu"):
        raise ArgumentError(
            f"{kind}: nonlinearity is {nonlinearity!r}; it must be 'tanh' or 'relu'"
        )
    return nonlinearity


class _Recurrent(Module):
    """What cells and stacks share: weights, their names, and one step."""

    _kind: str
    _states: ClassVar[int] = 1  # tensors of state: hidden, or hidden and cell
    input_size: int
    hidden_size: int
    bias: bool

    def _add_weights(self, input_size: int, suffix: str = "") -> None:
        size = _GATES[self._kind] * self.hidden_size
        setattr(self, "weight_ih" + suffix, empty_parameter((size, input_size)))
        setattr(self, "weight_hh" + suffix, empty_parameter((size, self.hidden_size)))
        setattr(self, "bias_ih" + suffix, empty_parameter((size,)) if self.bias else None)
        setattr(self, "bias_hh" + suffix, empty_parameter((size,)) if self.bias else None)

    def reset_parameters(self) -> None:
        """Draw all weights from ``U(-1 / sqrt(hidden_size), 1 / sqrt(hidden_size))``."""
        bound = 1.0 / math.sqrt(self.hidden_size)
        for weight in self.parameters(recursive=False):
            init.uniform_(weight, -bound, bound)

    def _weights(self, suffix: str = "") -> list[Tensor | None]:
        return [
            self.__dict__[name + suffix]
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        ]

    def _initial(self, inp: Tensor, *shape: int) -> State:
        return tuple(
            F.zeros(shape, dtype=inp.dtype, device=inp.device) for _ in range(self._states)
        )

    def _as_state(self, hx: Any) -> State:
        given = tuple(hx) if isinstance(hx, (tuple, list)) else (hx,)
        if len(given) != self._states:
            raise ArgumentError(
                f"{type(self).__name__}: the state has {len(given)} tensors; it needs {self._states}"
            )
        return given

    def _check_features(self, inp: Tensor, ndim: int) -> None:
        if inp.ndim != ndim or inp.shape[-1] != self.input_size:
            raise ShapeError(
                f"{type(self).__name__}: the input has shape {inp.shape}; it must have {ndim} axes, the last one of "
                f"{self.input_size}"
            )


class _Cell(_Recurrent):
    """One step of one layer."""

    def _set(self, input_size: int, hidden_size: int, bias: bool) -> None:
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        self._add_weights(input_size)
        self.reset_parameters()

    def _step(self, input: Tensor, hx: Any) -> State:
        self._check_features(input, 2)
        state = (
            self._initial(input, input.shape[0], self.hidden_size)
            if hx is None
            else self._as_state(hx)
        )
        weight_ih, weight_hh, bias_ih, bias_hh = self._weights()
        return _STEPS[self._kind](
            F.linear(input, weight_ih, bias_ih), F.linear(state[0], weight_hh, bias_hh), state
        )

    def _module_info_string(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, bias={self.bias}"


class RNNCell(_Cell):
    """One step of an Elman network: ``h' = tanh(W_ih x + b_ih + W_hh h + b_hh)``.

    Parameters
    ----------
    input_size, hidden_size : int
    bias : bool, default True
    nonlinearity : {"tanh", "relu"}
    name : str, optional

    Attributes
    ----------
    weight_ih : (hidden_size, input_size) Parameter
    weight_hh : (hidden_size, hidden_size) Parameter
    bias_ih, bias_hh : (hidden_size,) Parameter or None

    Examples
    --------
    >>> RNNCell(3, 4)(ones((2, 3))).shape
    (2, 4)
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.nonlinearity = self._kind = _check_nonlinearity("RNNCell", nonlinearity)
        self._set(input_size, hidden_size, bias)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self._step(input, hx)[0]


class LSTMCell(_Cell):
    """One step of a long short-term memory: ``(h, c)`` to ``(h', c')``.

    ``c' = sigmoid(f) * c + sigmoid(i) * tanh(g)`` and ``h' = sigmoid(o) * tanh(c')`` with
    ``(i, f, g, o) = W_ih x + b_ih + W_hh h + b_hh``.

    Parameters
    ----------
    input_size, hidden_size : int
    bias : bool, default True
    name : str, optional

    Attributes
    ----------
    weight_ih : (4 * hidden_size, input_size) Parameter
    weight_hh : (4 * hidden_size, hidden_size) Parameter
    bias_ih, bias_hh : (4 * hidden_size,) Parameter or None

    Sources
    -------
    Hochreiter and Schmidhuber, Neural Computation 9(8), 1997; the forget gate: Gers et al., 2000.

    Examples
    --------
    >>> h, c = LSTMCell(3, 4)(ones((2, 3)))
    >>> h.shape, c.shape
    ((2, 4), (2, 4))
    """

    _kind, _states = "lstm", 2

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, name: str | None = None
    ) -> None:
        super().__init__(name)
        self._set(input_size, hidden_size, bias)

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        return self._step(input, hx)  # type: ignore[return-value]


class GRUCell(_Cell):
    """One step of a gated recurrent unit: ``h' = (1 - z) * n + z * h``.

    ``r`` and ``z`` are sigmoids of ``W_ih x + b_ih + W_hh h + b_hh``, and
    ``n = tanh(W_in x + b_in + r * (W_hn h + b_hn))``; the rows of the weights are in the order r, z, n.

    Parameters
    ----------
    input_size, hidden_size : int
    bias : bool, default True
    name : str, optional

    Attributes
    ----------
    weight_ih : (3 * hidden_size, input_size) Parameter
    weight_hh : (3 * hidden_size, hidden_size) Parameter
    bias_ih, bias_hh : (3 * hidden_size,) Parameter or None

    Sources
    -------
    Cho et al., EMNLP 2014, arXiv:1406.1078, with the reset gate after the product, as accelerators' libraries
    have it.

    Examples
    --------
    >>> GRUCell(3, 4)(ones((2, 3))).shape
    (2, 4)
    """

    _kind = "gru"

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, name: str | None = None
    ) -> None:
        super().__init__(name)
        self._set(input_size, hidden_size, bias)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self._step(input, hx)[0]


class _Stack(_Recurrent):
    """Layers of one kind, in one or both directions, over a sequence."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        kind = type(self).__name__
        if proj_size:
            raise ArgumentError(f"{kind}: proj_size is {proj_size}; projections are not supported")
        if not 0 <= dropout <= 1:
            raise ArgumentError(f"{kind}: dropout is {dropout}; it must be in [0, 1]")
        if num_layers < 1:
            raise ArgumentError(f"{kind}: num_layers is {num_layers}; it must be at least 1")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional, self.num_directions = bidirectional, 2 if bidirectional else 1
        for layer in range(num_layers):
            size = input_size if layer == 0 else hidden_size * self.num_directions
            for direction in range(self.num_directions):
                self._add_weights(size, self._suffix(layer, direction))
        self.reset_parameters()

    @staticmethod
    def _suffix(layer: int, direction: int) -> str:
        return f"_l{layer}" + ("_reverse" if direction else "")

    def forward(self, input: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        self._check_features(input, 3)
        x = input.transpose(1, 0, 2) if self.batch_first else input
        rows = self.num_layers * self.num_directions
        shape = (rows, x.shape[1], self.hidden_size)
        states = self._initial(x, *shape) if hx is None else self._as_state(hx)
        if any(s.shape != shape for s in states):
            raise ShapeError(
                f"{type(self).__name__}: the state has shape {', '.join(str(s.shape) for s in states)}; for this input "
                f"it must be {shape}"
            )
        last: list[State] = []
        for layer in range(self.num_layers):
            directions = []
            for direction in range(self.num_directions):
                row = len(last)
                outputs, state = self._run(x, tuple(s[row] for s in states), layer, direction)
                directions.append(outputs)
                last.append(state)
            x = F.concat(directions, axis=-1) if len(directions) > 1 else directions[0]
            if self.dropout and self.training and layer < self.num_layers - 1:
                x = F.dropout(x, self.dropout, True)
        final = tuple(F.stack([state[i] for state in last], axis=0) for i in range(self._states))
        output = x.transpose(1, 0, 2) if self.batch_first else x
        return output, final if self._states > 1 else final[0]

    def _run(self, x: Tensor, state: State, layer: int, direction: int) -> tuple[Tensor, State]:
        """Run one layer in one direction over (time, batch, features)."""
        weight_ih, weight_hh, bias_ih, bias_hh = self._weights(self._suffix(layer, direction))
        gates = F.linear(x, weight_ih, bias_ih)  # of all steps at once
        step = _STEPS[self._kind]
        outputs = []
        for t in range(x.shape[0])[:: -1 if direction else 1]:
            state = step(gates[t], F.linear(state[0], weight_hh, bias_hh), state)
            outputs.append(state[0])
        if not outputs:
            return F.zeros((0, x.shape[1], self.hidden_size), dtype=x.dtype, device=x.device), state
        return F.stack(outputs[::-1] if direction else outputs, axis=0), state

    def _module_info_string(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}"
        return text + (", bidirectional=True" if self.bidirectional else "")


class RNN(_Stack):
    """Elman layers over a sequence; the step is that of ``RNNCell``.

    Called with ``(input, h_0=None)``; returns ``(output, h_n)``. Shapes are those of ``LSTM``.

    Parameters
    ----------
    *args, **kwargs
        Those of ``LSTM``, and ``nonlinearity``: ``"tanh"`` or ``"relu"``.

    Examples
    --------
    >>> output, h = RNN(3, 4, nonlinearity="relu")(ones((5, 2, 3)))
    >>> output.shape, h.shape
    ((5, 2, 4), (1, 2, 4))
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.nonlinearity = self._kind = _check_nonlinearity(
            "RNN", kwargs.pop("nonlinearity", "tanh")
        )
        super().__init__(*args, **kwargs)


class LSTM(_Stack):
    """Long short-term memory layers over a sequence; the step is that of ``LSTMCell``.

    Called with ``(input, (h_0, c_0)=None)``; returns ``(output, (h_n, c_n))``. ``input`` is (t, n, input_size)
    and ``output`` (t, n, d * hidden_size) with d directions; states are (num_layers * d, n, hidden_size).

    Parameters
    ----------
    input_size, hidden_size : int
    num_layers : int, default 1
        Each layer takes the outputs of the one before.
    bias : bool, default True
    batch_first : bool, default False
        True: input and output are (n, t, ...); states stay as they are.
    dropout : float, default 0.0
        While training, on the outputs of each layer but the last.
    bidirectional : bool, default False
        A second set of weights runs from the last step to the first; outputs are joined.
    proj_size : int
        Must be 0.
    name : str, optional

    Attributes
    ----------
    weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0 : Parameter
        Those of ``LSTMCell``, for each layer ``l0``, ``l1``, ... and direction (``_l0_reverse``).

    Examples
    --------
    >>> output, (h, c) = LSTM(3, 4, num_layers=2, bidirectional=True)(ones((5, 2, 3)))
    >>> output.shape, h.shape
    ((5, 2, 8), (4, 2, 4))
    """

    _kind, _states = "lstm", 2


class GRU(_Stack):
    """Gated recurrent unit layers over a sequence; the step is that of ``GRUCell``.

    Called with ``(input, h_0=None)``; returns ``(output, h_n)``. Arguments and shapes are those of ``LSTM``.

    Examples
    --------
    >>> output, h = GRU(3, 4, batch_first=True)(ones((2, 5, 3)))
    >>> output.shape, h.shape
    ((2, 5, 4), (1, 2, 4))
    """

    _kind = "gru"
