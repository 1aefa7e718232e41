"""Adagrad and Adadelta.

In: parameters. Out: ``Adagrad``, ``Adadelta``.
After ``optimizer``; before ``__init__``.
"""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError
from ..ops.update_adaptive import adadelta_update, adagrad_update
from ..tensor import Tensor
from .optimizer import Optimizer, ParamGroup, Update, zeros_for


class Adagrad(Optimizer):
    """Steps along the gradient, divided by the root of the sum of all squared ones.

    ``s = s + g**2`` and ``param -= lr / (1 + (t - 1) * lr_decay) * g / sqrt(s + eps)``, with
    ``g = grad + weight_decay * param``.

    Parameters
    ----------
    params : Parameter, iterable of Parameter, dict or iterable of dict
        What is optimized; a dict is a group, with ``params`` and hyper-parameters of its own.
    lr : float, default 0.01
        Learning rate.
    lr_decay : float, default 0.0
    eps : float, default 1e-10
    weight_decay : float, default 0.0

    Sources
    -------
    Duchi, Hazan and Singer, Adaptive Subgradient Methods, JMLR 12, 2011.
    """

    _counts_steps = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
    ) -> None:
        if lr_decay < 0 or eps < 0:
            raise ArgumentError(
                f"Adagrad: lr_decay is {lr_decay} and eps {eps}; neither may be negative"
            )
        super().__init__(
            params, {"lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay}
        )

    def _create_state(self, param: Tensor, group: ParamGroup) -> dict[str, Tensor]:
        return {"square_avg": zeros_for(param)}

    def _updates(
        self, group: ParamGroup, params: list[Tensor], grads: list[Tensor], found_inf: Tensor | None
    ) -> list[Update]:
        return self._record(
            adagrad_update, group, params, grads, found_inf, ("square_avg",),
            counters=self._counters(group, params), lr_decay=float(group["lr_decay"]), eps=float(group["eps"]),
        )  # fmt: skip


class Adadelta(Optimizer):
    """Steps whose length follows the ratio of past steps to past gradients.

    ``s = rho * s + (1 - rho) * g**2``, ``d = sqrt(a + eps) / sqrt(s + eps) * g``,
    ``a = rho * a + (1 - rho) * d**2`` and ``param -= lr * d``, with ``g = grad + weight_decay * param``.

    Parameters
    ----------
    params : Parameter, iterable of Parameter, dict or iterable of dict
        What is optimized; a dict is a group, with ``params`` and hyper-parameters of its own.
    lr : float, default 1.0
        Learning rate.
    rho : float, default 0.9
        In [0, 1].
    eps : float, default 1e-6
    weight_decay : float, default 0.0

    Sources
    -------
    Zeiler, ADADELTA: An Adaptive Learning Rate Method, 2012, arXiv:1212.5701, algorithm 1.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        if not 0 <= rho <= 1 or eps < 0:
            raise ArgumentError(
                f"Adadelta: rho is {rho} and eps {eps}; rho must be in [0, 1], eps not negative"
            )
        super().__init__(params, {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay})

    def _create_state(self, param: Tensor, group: ParamGroup) -> dict[str, Tensor]:
        return {"square_avg": zeros_for(param), "acc_delta": zeros_for(param)}

    def _updates(
        self, group: ParamGroup, params: list[Tensor], grads: list[Tensor], found_inf: Tensor | None
    ) -> list[Update]:
        return self._record(
            adadelta_update, group, params, grads, found_inf, ("square_avg", "acc_delta"),
            rho=float(group["rho"]), eps=float(group["eps"]),
        )  # fmt: skip
