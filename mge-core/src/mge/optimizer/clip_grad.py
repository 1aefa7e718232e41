"""Limits on gradients, recorded without reading a value.

In: parameters that have a ``.grad``. Out: new gradients; ``clip_grad_norm`` also returns the norm.
After ``optimizer``; before ``__init__``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import functional as F
from ..errors import ArgumentError
from ..ops.multi_tensor import global_norm, scale_all
from ..tensor import Tensor


def _with_grad(tensors: Tensor | Iterable[Tensor]) -> list[Tensor]:
    given = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    return [t for t in given if t.grad is not None]


def clip_grad_norm(tensors: Tensor | Iterable[Tensor], max_norm: float, ord: float = 2.0) -> Tensor:
    """Scale all gradients down so that their common norm is at most ``max_norm``.

    ``grad *= min(1, max_norm / (norm + 1e-6))``

    Parameters
    ----------
    tensors : Tensor or iterable of Tensor
        Those without a ``.grad`` are skipped.
    max_norm : float
    ord : float, default 2.0
        The order of the norm, over all elements of all gradients; ``inf`` is their largest magnitude.

    Returns
    -------
    () float32, or float64 for float64 gradients
        The norm before, as a tensor: reading it is the caller's choice.

    Raises
    ------
    ArgumentError
        ``ord`` is not positive.

    Notes
    -----
    A norm that is infinite or NaN makes gradients 0 or NaN, as elsewhere.

    Sources
    -------
    Pascanu, Mikolov and Bengio, On the difficulty of training recurrent neural networks, ICML 2013, algorithm 1.

    Examples
    --------
    >>> weight = Parameter([1.0, 1.0])
    >>> weight.grad = tensor([3.0, 4.0])
    >>> clip_grad_norm([weight], max_norm=1.0)
    Tensor(5., dtype=float32, device=ref:0)
    >>> weight.grad.numpy().round(4)
    array([0.6, 0.8], dtype=float32)
    """
    if not ord > 0:
        raise ArgumentError(f"clip_grad_norm: ord is {ord}; it must be positive")
    chosen = _with_grad(tensors)
    if not chosen:
        return Tensor(0.0)
    device = chosen[0].device
    by_device: dict[Any, list[Tensor]] = {}
    for tensor in chosen:
        by_device.setdefault(tensor.device, []).append(tensor)
    norms = [
        global_norm(*[t.grad for t in some], ord=ord).to(device) for some in by_device.values()
    ]
    norm = norms[0] if len(norms) == 1 else global_norm(*norms, ord=ord)
    scale = F.minimum(max_norm / (norm + 1e-6), 1.0)
    for where, some in by_device.items():
        scaled = scale_all(*[t.grad for t in some], scale.to(where))
        for tensor, grad in zip(some, scaled if isinstance(scaled, tuple) else (scaled,)):
            tensor.grad = grad
    return norm


def clip_grad_value(tensors: Tensor | Iterable[Tensor], lower: float, upper: float) -> None:
    """Clip each element of all gradients to ``[lower, upper]``.

    Parameters
    ----------
    tensors : Tensor or iterable of Tensor
        Those without a ``.grad`` are skipped.
    lower, upper : float

    Raises
    ------
    ArgumentError
        ``lower`` is above ``upper``.

    Examples
    --------
    >>> weight = Parameter([1.0, 1.0])
    >>> weight.grad = tensor([-3.0, 0.5])
    >>> clip_grad_value([weight], -1.0, 1.0)
    >>> weight.grad
    Tensor([-1. ,  0.5], dtype=float32, device=ref:0)
    """
    if lower > upper:
        raise ArgumentError(
            f"clip_grad_value: lower is {lower} and upper {upper}; lower must not be above upper"
        )
    for tensor in _with_grad(tensors):
        tensor.grad = F.clip(tensor.grad, lower, upper)
