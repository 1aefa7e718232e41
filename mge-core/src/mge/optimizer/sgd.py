"""Stochastic gradient descent.

In: parameters. Out: ``SGD``.
After ``optimizer``; before ``__init__``.
"""

from __future__ import annotations

from typing import Any

from .. import graph
from ..errors import ArgumentError
from ..ops.update import sgd_update
from ..tensor import Tensor
from .optimizer import Optimizer, ParamGroup, Update, zeros_for


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum if wanted.

    ``v = momentum * v + grad + weight_decay * param`` and ``param -= lr * v``.

    Parameters
    ----------
    params : Parameter, iterable of Parameter, dict or iterable of dict
        What is optimized; a dict is a group, with ``params`` and hyper-parameters of its own.
    lr : float
        Learning rate.
    momentum : float, default 0.0
    nesterov : bool, default False
        True: ``param -= lr * (grad + weight_decay * param + momentum * v)``; needs momentum.
    weight_decay : float, default 0.0

    Raises
    ------
    ArgumentError
        A hyper-parameter is negative, or ``nesterov`` has no momentum.

    Sources
    -------
    Sutskever et al., On the importance of initialization and momentum in deep learning, ICML 2013.

    Examples
    --------
    >>> weight = Parameter([1.0, 2.0])
    >>> weight.grad = tensor([1.0, 1.0])
    >>> opt = SGD([weight], lr=0.5).step().clear_grad()
    >>> weight
    Parameter([0.5, 1.5], dtype=float32, device=ref:0)
    """

    _tensor_names = ("lr", "weight_decay", "momentum")

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
        }
        super().__init__(params, defaults)

    def _check(self, values: Any) -> None:
        super()._check(values)
        if values["nesterov"] and not _is_used(values["momentum"]):
            raise ArgumentError("SGD: nesterov is True and momentum 0; it needs a momentum")

    def _create_state(self, param: Tensor, group: ParamGroup) -> dict[str, Tensor]:
        return {"momentum_buffer": zeros_for(param)} if _is_used(group["momentum"]) else {}

    def _updates(
        self, group: ParamGroup, params: list[Tensor], grads: list[Tensor], found_inf: Tensor | None
    ) -> list[Update]:
        if not _is_used(group["momentum"]) and not any(self._state[p] for p in params):
            return self._record(sgd_update, group, params, grads, found_inf)
        for p in params:
            if not self._state[p]:  # momentum was switched on later
                self._state[p] = self._create_state(p, group)
                graph.bump_epoch()
        return self._record(
            sgd_update, group, params, grads, found_inf, ("momentum_buffer",), ("lr", "weight_decay", "momentum"),
            use_momentum=True, nesterov=bool(group["nesterov"]),
        )  # fmt: skip


def _is_used(momentum: Any) -> bool:
    return isinstance(momentum, Tensor) or momentum != 0
