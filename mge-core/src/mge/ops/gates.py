"""The gates of LSTM and GRU cells: one op each, and one for its gradient.

In: sums at the gates, states. Out: ``lstm_gates``, ``lstm_gates_grad``, ``gru_gates``, ``gru_gates_grad``.
After ``hyperbolic``; before ``recurrent``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..dtype import wide_of
from ..errors import DTypeError, ShapeError
from ..op import op
from ..types import Type, abstract
from .select import cast
from .slicing import slice_along

if TYPE_CHECKING:
    from ..tensor import Tensor

PRIVATE = ("lstm_gates", "lstm_gates_grad", "gru_gates", "gru_gates_grad")


def _check(
    where: str, gates: dict[str, Tensor | Type], states: dict[str, Tensor | Type], count: int
) -> None:
    """Raise an error where gates are not (..., count * h) beside states (..., h), all of one float dtype."""
    state = next(iter(states.values()))
    if not state.dtype.is_float:
        raise DTypeError(
            f"{where}: {next(iter(states))} is {state.dtype}; it must be a float tensor"
        )
    if state.ndim == 0:
        raise ShapeError(
            f"{where}: {next(iter(states))} has shape (); it must have at least 1 axis"
        )
    wide = (*state.shape[:-1], count * state.shape[-1])
    for named, wanted in ((states, state.shape), (gates, wide)):
        for name, type_ in named.items():
            if type_.dtype != state.dtype:
                raise DTypeError(
                    f"{where}: {name} is {type_.dtype}; all inputs must be {state.dtype}"
                )
            if type_.shape != wanted:
                raise ShapeError(
                    f"{where}: {name} has shape {type_.shape}; states of shape {state.shape} need {wanted}"
                )


def _sigmoid(x: np.ndarray) -> np.ndarray:
    # 1 / (1 + exp(-x)) = (1 + tanh(x / 2)) / 2, which does not overflow.
    y = np.tanh(x * x.dtype.type(0.5))
    y *= x.dtype.type(0.5)
    y += x.dtype.type(0.5)
    return y


def _wide(*arrays: np.ndarray) -> list[np.ndarray]:
    """Return float16 and bfloat16 arrays as float32, others as they are."""
    return [a.astype(np.float32) if a.dtype.itemsize == 2 else a for a in arrays]


def _parts(x: Tensor, count: int) -> list[Tensor]:
    """Cut a tensor into ``count`` equal parts along its last axis."""
    size = x.shape[-1] // count
    return [slice_along(x, x.ndim - 1, i * size, (i + 1) * size) for i in range(count)]


def _widened(*tensors: Tensor) -> list[Tensor]:
    return [cast(t, dtype=wide_of(t.dtype)) for t in tensors]


def _sigmoid_of(x: Tensor) -> Tensor:
    from .hyperbolic import tanh

    return tanh(x * 0.5) * 0.5 + 0.5


@op
def lstm_gates(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Turn the sums at the gates of an LSTM into the new state.

    With ``i, f, g, o = gates``: ``c2 = sigmoid(f) * c + sigmoid(i) * tanh(g)`` and ``h2 = sigmoid(o) * tanh(c2)``

    Parameters
    ----------
    gates : (..., 4 * h) float
        Input, forget, cell and output gate, in this order.
    c : (..., h) same dtype as ``gates``
        The old cell state.

    Returns
    -------
    h2, c2 : (..., h) same dtype as ``gates``

    Raises
    ------
    DTypeError
        The inputs are not of one float dtype.
    ShapeError
        ``gates`` is not four times as wide as ``c``.

    Notes
    -----
    float16 and bfloat16 are computed in float32.

    Sources
    -------
    Hochreiter and Schmidhuber, Long Short-Term Memory, Neural Computation 9(8), 1997; forget gate: Gers et al., 2000.

    Examples
    --------
    >>> lstm_gates(tensor([[0.0, 0.0, 0.0, 0.0]]), tensor([[2.0]]))[1]
    Tensor([[1.]], dtype=float32, device=ref:0)
    """
    _check("lstm_gates", {"gates": gates}, {"c": c}, 4)
    return abstract(c.shape, c.dtype), abstract(c.shape, c.dtype)


lstm_gates.pairs = lambda sig: [(1, 1)]


def _lstm_arrays(gates: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, ...]:
    size = c.shape[-1]
    i, f = _sigmoid(gates[..., :size]), _sigmoid(gates[..., size : 2 * size])
    g, o = np.tanh(gates[..., 2 * size : 3 * size]), _sigmoid(gates[..., 3 * size :])
    c2 = f * c
    c2 += i * g
    return i, f, g, o, c2


@lstm_gates.reference
def _(gates, c):
    dtype = c.dtype
    gates, c = _wide(gates, c)
    _, _, _, o, c2 = _lstm_arrays(gates, c)
    o *= np.tanh(c2)
    return o.astype(dtype, copy=False), c2.astype(dtype, copy=False)


@lstm_gates.gradient
def _(dy, y, gates, c):
    from .create import zeros_like

    dh, dc = (zeros_like(c) if d is None else d for d in dy)
    return lstm_gates_grad(dh, dc, gates, c)


@lstm_gates.lowering
def _(gates, c):
    from .hyperbolic import tanh

    dtype = c.dtype
    gates, c = _widened(gates, c)
    i, f, g, o = _parts(gates, 4)
    c2 = _sigmoid_of(f) * c + _sigmoid_of(i) * tanh(g)
    return cast(_sigmoid_of(o) * tanh(c2), dtype=dtype), cast(c2, dtype=dtype)


@lstm_gates.samples
def _(rng):
    for shape in [(2, 3), (1,), (0, 2), (2, 1, 2)]:
        yield (rng.normal(size=(*shape[:-1], 4 * shape[-1])), rng.normal(size=shape)), {}


@op
def lstm_gates_grad(dh: Tensor, dc: Tensor, gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of ``lstm_gates`` in its two inputs.

    With ``t = tanh(c2)`` and ``d = dc + dh * o * (1 - t**2)``: the gates get ``d * g * i * (1 - i)``,
    ``d * c * f * (1 - f)``, ``d * i * (1 - g**2)`` and ``dh * t * o * (1 - o)``, and ``c`` gets ``d * f``

    Parameters
    ----------
    dh, dc : (..., h) float
        The gradients of the new states.
    gates : (..., 4 * h) float
    c : (..., h) float

    Returns
    -------
    dgates : (..., 4 * h) same dtype as ``c``
    dc : (..., h) same dtype as ``c``

    Raises
    ------
    DTypeError
        The inputs are not of one float dtype.
    ShapeError
        ``gates`` is not four times as wide as the others.

    Examples
    --------
    >>> lstm_gates_grad(tensor([0.0]), tensor([1.0]), tensor([0.0, 0.0, 0.0, 0.0]), tensor([2.0]))[0]
    Tensor([0. , 0.5, 0.5, 0. ], dtype=float32, device=ref:0)
    """
    _check("lstm_gates_grad", {"gates": gates}, {"c": c, "dh": dh, "dc": dc}, 4)
    return abstract(gates.shape, c.dtype), abstract(c.shape, c.dtype)


lstm_gates_grad.pairs = lambda sig: [(2, 0), (1, 1), (0, 1), (3, 1)]


@lstm_gates_grad.reference
def _(dh, dc, gates, c):
    dtype = c.dtype
    dh, dc, gates, c = _wide(dh, dc, gates, c)
    i, f, g, o, c2 = _lstm_arrays(gates, c)
    one = c2.dtype.type(1)
    t = np.tanh(c2, out=c2)
    d = dc + dh * o * (one - t * t)
    dgates = np.empty(gates.shape, c.dtype)
    size = c.shape[-1]
    np.multiply(d * g, i * (one - i), out=dgates[..., :size])
    np.multiply(d * c, f * (one - f), out=dgates[..., size : 2 * size])
    np.multiply(d * i, one - g * g, out=dgates[..., 2 * size : 3 * size])
    np.multiply(dh * t, o * (one - o), out=dgates[..., 3 * size :])
    return dgates.astype(dtype, copy=False), (d * f).astype(dtype, copy=False)


@lstm_gates_grad.lowering
def _(dh, dc, gates, c):
    from .hyperbolic import tanh
    from .join import concat

    dtype = c.dtype
    dh, dc, gates, c = _widened(dh, dc, gates, c)
    i, f, g, o = _parts(gates, 4)
    i, f, g, o = _sigmoid_of(i), _sigmoid_of(f), tanh(g), _sigmoid_of(o)
    t = tanh(f * c + i * g)
    d = dc + dh * o * (1.0 - t * t)
    parts = [
        d * g * (i * (1.0 - i)),
        d * c * (f * (1.0 - f)),
        d * i * (1.0 - g * g),
        dh * t * (o * (1.0 - o)),
    ]
    return cast(concat(parts, axis=-1), dtype=dtype), cast(d * f, dtype=dtype)


@lstm_gates_grad.samples
def _(rng):
    for shape in [(2, 3), (1,), (0, 2)]:
        states = [rng.normal(size=shape) for _ in range(3)]
        yield (*states[:2], rng.normal(size=(*shape[:-1], 4 * shape[-1])), states[2]), {}


@op
def gru_gates(input_gates: Tensor, hidden_gates: Tensor, h: Tensor) -> Tensor:
    """Turn the sums at the gates of a GRU into the new state.

    With ``ri, zi, ni = input_gates`` and ``rh, zh, nh = hidden_gates``: ``r = sigmoid(ri + rh)``,
    ``z = sigmoid(zi + zh)``, ``n = tanh(ni + r * nh)`` and ``y = (1 - z) * n + z * h``

    Parameters
    ----------
    input_gates, hidden_gates : (..., 3 * h) float
        Reset, update and new gate, in this order: what comes from the input and from the old state.
    h : (..., h) same dtype
        The old state.

    Returns
    -------
    (..., h) same dtype

    Raises
    ------
    DTypeError
        The inputs are not of one float dtype.
    ShapeError
        The gates are not three times as wide as ``h``.

    Notes
    -----
    The reset gate acts after the product with the weights (version 1 of the paper, as cuDNN does).
    float16 and bfloat16 are computed in float32.

    Sources
    -------
    Cho et al., Learning Phrase Representations using RNN Encoder-Decoder, EMNLP 2014, arXiv:1406.1078v1.

    Examples
    --------
    >>> gru_gates(tensor([0.0, 0.0, 0.0]), tensor([0.0, 0.0, 0.0]), tensor([2.0]))
    Tensor([1.], dtype=float32, device=ref:0)
    """
    _check("gru_gates", {"input_gates": input_gates, "hidden_gates": hidden_gates}, {"h": h}, 3)
    return abstract(h.shape, h.dtype)


gru_gates.inplace = (2,)


def _gru_arrays(x: np.ndarray, y: np.ndarray, size: int) -> tuple[np.ndarray, ...]:
    r = _sigmoid(x[..., :size] + y[..., :size])
    z = _sigmoid(x[..., size : 2 * size] + y[..., size : 2 * size])
    n = np.tanh(x[..., 2 * size :] + r * y[..., 2 * size :])
    return r, z, n


@gru_gates.reference
def _(input_gates, hidden_gates, h):
    dtype = h.dtype
    x, y, h = _wide(input_gates, hidden_gates, h)
    _, z, n = _gru_arrays(x, y, h.shape[-1])
    return (n + z * (h - n)).astype(dtype, copy=False)


@gru_gates.gradient
def _(dy, y, input_gates, hidden_gates, h):
    return gru_gates_grad(dy, input_gates, hidden_gates, h)


@gru_gates.lowering
def _(input_gates, hidden_gates, h):
    dtype = h.dtype
    x, y, h = _widened(input_gates, hidden_gates, h)
    _, z, n, _ = _gru_tensors(x, y)
    return cast(n + z * (h - n), dtype=dtype)


def _gru_tensors(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    from .hyperbolic import tanh

    ri, zi, ni = _parts(x, 3)
    rh, zh, nh = _parts(y, 3)
    r, z = _sigmoid_of(ri + rh), _sigmoid_of(zi + zh)
    return r, z, tanh(ni + r * nh), nh


@gru_gates.samples
def _(rng):
    for shape in [(2, 3), (1,), (0, 2), (2, 1, 2)]:
        wide = (*shape[:-1], 3 * shape[-1])
        yield (rng.normal(size=wide), rng.normal(size=wide), rng.normal(size=shape)), {}


@op
def gru_gates_grad(
    dy: Tensor, input_gates: Tensor, hidden_gates: Tensor, h: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient of ``gru_gates`` in its three inputs.

    With ``dn = dy * (1 - z) * (1 - n**2)``: the input gates get ``dn * nh * r * (1 - r)``,
    ``dy * (h - n) * z * (1 - z)`` and ``dn``, the hidden gates the same but ``dn * r``, and ``h`` gets ``dy * z``

    Parameters
    ----------
    dy : (..., h) float
    input_gates, hidden_gates : (..., 3 * h) float
    h : (..., h) float

    Returns
    -------
    dinput_gates, dhidden_gates : (..., 3 * h) same dtype as ``h``
    dh : (..., h) same dtype as ``h``

    Raises
    ------
    DTypeError
        The inputs are not of one float dtype.
    ShapeError
        The gates are not three times as wide as ``h``.

    Examples
    --------
    >>> gru_gates_grad(tensor([1.0]), tensor([0.0, 0.0, 0.0]), tensor([0.0, 0.0, 0.0]), tensor([2.0]))[0]
    Tensor([0. , 0.5, 0.5], dtype=float32, device=ref:0)
    """
    _check(
        "gru_gates_grad",
        {"input_gates": input_gates, "hidden_gates": hidden_gates},
        {"h": h, "dy": dy},
        3,
    )
    wide = abstract(input_gates.shape, h.dtype)
    return wide, wide, abstract(h.shape, h.dtype)


gru_gates_grad.pairs = lambda sig: [(1, 0), (2, 1), (0, 2), (3, 2)]


@gru_gates_grad.reference
def _(dy, input_gates, hidden_gates, h):
    dtype, size = h.dtype, h.shape[-1]
    dy, x, y, h = _wide(dy, input_gates, hidden_gates, h)
    r, z, n = _gru_arrays(x, y, size)
    one = h.dtype.type(1)
    dx, dhidden = np.empty(x.shape, h.dtype), np.empty(x.shape, h.dtype)
    dn = np.multiply(dy * (one - z), one - n * n, out=dx[..., 2 * size :])
    np.multiply(dn * y[..., 2 * size :], r * (one - r), out=dx[..., :size])
    np.multiply(dy * (h - n), z * (one - z), out=dx[..., size : 2 * size])
    dhidden[..., : 2 * size] = dx[..., : 2 * size]
    np.multiply(dn, r, out=dhidden[..., 2 * size :])
    return tuple(a.astype(dtype, copy=False) for a in (dx, dhidden, dy * z))


@gru_gates_grad.lowering
def _(dy, input_gates, hidden_gates, h):
    from .join import concat

    dtype = h.dtype
    dy, x, y, h = _widened(dy, input_gates, hidden_gates, h)
    r, z, n, nh = _gru_tensors(x, y)
    dn = dy * (1.0 - z) * (1.0 - n * n)
    dr = dn * nh * (r * (1.0 - r))
    dz = dy * (h - n) * (z * (1.0 - z))
    dx, dhidden = concat([dr, dz, dn], axis=-1), concat([dr, dz, dn * r], axis=-1)
    return cast(dx, dtype=dtype), cast(dhidden, dtype=dtype), cast(dy * z, dtype=dtype)


@gru_gates_grad.samples
def _(rng):
    for shape in [(2, 3), (1,), (0, 2)]:
        wide = (*shape[:-1], 3 * shape[-1])
        yield (
            (
                rng.normal(size=shape),
                rng.normal(size=wide),
                rng.normal(size=wide),
                rng.normal(size=shape),
            ),
            {},
        )
