"""Adam and its relatives.

In: parameters. Out: ``Adam``, ``AdamW``, ``LAMB``, ``LAMBFp16``.
After ``optimizer``; before ``__init__``.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ..dtype import float32
from ..errors import ArgumentError
from ..ops.update import adam_update, adamw_update
from ..ops.update_adaptive import lamb_update
from ..tensor import Tensor
from .optimizer import Optimizer, ParamGroup, Update, zeros_for


class Adam(Optimizer):
    """Steps along the mean gradient, divided by the root of the mean squared one.

    ``m = b1 * m + (1 - b1) * g``, ``v = b2 * v + (1 - b2) * g**2`` and
    ``param -= lr * (m / (1 - b1**t)) / (sqrt(v / (1 - b2**t)) + eps)``, with ``g = grad + weight_decay * param``.

    Parameters
    ----------
    params : Parameter, iterable of Parameter, dict or iterable of dict
        What is optimized; a dict is a group, with ``params`` and hyper-parameters of its own.
    lr : float
        Learning rate.
    betas : (float, float), default (0.9, 0.999)
        b1 and b2, in [0, 1).
    eps : float, default 1e-8
    weight_decay : float, default 0.0

    Raises
    ------
    ArgumentError
        A hyper-parameter is out of its range.

    Sources
    -------
    Kingma and Ba, Adam: A Method for Stochastic Optimization, ICLR 2015, arXiv:1412.6980, algorithm 1.

    Examples
    --------
    >>> weight = Parameter([1.0, 2.0])
    >>> weight.grad = tensor([1.0, -4.0])
    >>> opt = Adam([weight], lr=0.5).step()
    >>> weight
    Parameter([0.5, 2.5], dtype=float32, device=ref:0)
    """

    _counts_steps = True
    _update: ClassVar[Any] = adam_update

    def __init__(
        self,
        params: Any,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "weight_decay": weight_decay, "betas": tuple(betas), "eps": eps}
        )

    def _check(self, values: Any) -> None:
        super()._check(values)
        if len(values["betas"]) != 2 or not all(0 <= beta < 1 for beta in values["betas"]):
            raise ArgumentError(
                f"{type(self).__name__}: betas are {values['betas']}; they must be two, in [0, 1)"
            )

    def _create_state(self, param: Tensor, group: ParamGroup) -> dict[str, Tensor]:
        return {"exp_avg": zeros_for(param), "exp_avg_sq": zeros_for(param)}

    def _attrs(self, group: ParamGroup) -> dict[str, Any]:
        beta1, beta2 = group["betas"]
        return {"beta1": float(beta1), "beta2": float(beta2), "eps": float(group["eps"])}

    def _updates(
        self, group: ParamGroup, params: list[Tensor], grads: list[Tensor], found_inf: Tensor | None
    ) -> list[Update]:
        return self._record(
            self._update, group, params, grads, found_inf, ("exp_avg", "exp_avg_sq"),
            counters=self._counters(group, params), **self._attrs(group),
        )  # fmt: skip


class AdamW(Adam):
    """Adam with weight decay apart from the gradient.

    ``param -= lr * weight_decay * param``, then the step of ``Adam``.

    Parameters
    ----------
    params : Parameter, iterable of Parameter, dict or iterable of dict
        What is optimized; a dict is a group, with ``params`` and hyper-parameters of its own.
    lr : float
        Learning rate.
    betas : (float, float), default (0.9, 0.999)
    eps : float, default 1e-8
    weight_decay : float, default 0.01

    Sources
    -------
    Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019, arXiv:1711.05101, algorithm 2.

    Examples
    --------
    >>> weight = Parameter([1.0, 2.0])
    >>> weight.grad = tensor([1.0, -4.0])
    >>> opt = AdamW([weight], lr=0.5, weight_decay=0.5).step()
    >>> weight
    Parameter([0.25, 2.  ], dtype=float32, device=ref:0)
    """

    _update = adamw_update

    def __init__(
        self,
        params: Any,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)


class LAMB(Adam):
    """Adam's step, scaled to the norm of each parameter: for large batches.

    Parameters
    ----------
    params : Parameter, iterable of Parameter, dict or iterable of dict
        What is optimized; a dict is a group, with ``params`` and hyper-parameters of its own.
    lr : float
        Learning rate.
    betas : (float, float), default (0.9, 0.999)
    eps : float, default 1e-8
    bias_correction : bool, default True
        Whether the means are divided by ``1 - beta**t``.
    weight_decay : float, default 0.0
        Added to the step, not to the gradient.
    always_adapt : bool, default False
        Whether steps without weight decay are scaled too.

    Sources
    -------
    You et al., Large Batch Optimization for Deep Learning, ICLR 2020, arXiv:1904.00962, algorithm 2.
    """

    _update = lamb_update

    def __init__(
        self,
        params: Any,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        bias_correction: bool = True,
        weight_decay: float = 0.0,
        always_adapt: bool = False,
    ) -> None:
        self.bias_correction, self.always_adapt = bias_correction, always_adapt
        super().__init__(params, lr, betas, eps, weight_decay)

    def _attrs(self, group: ParamGroup) -> dict[str, Any]:
        more = {"bias_correction": self.bias_correction, "always_adapt": self.always_adapt}
        return super()._attrs(group) | more


class LAMBFp16(LAMB):
    """LAMB for float16 parameters: it keeps a float32 copy of each and updates that.

    Arguments are those of ``LAMB``.
    """

    def _create_state(self, param: Tensor, group: ParamGroup) -> dict[str, Tensor]:
        copied = Tensor(param.numpy(), dtype=float32, device=param.device)
        return super()._create_state(param, group) | {"param_fp32": copied}

    def _updates(
        self, group: ParamGroup, params: list[Tensor], grads: list[Tensor], found_inf: Tensor | None
    ) -> list[Update]:
        updates = self._record(
            self._update, group, params, [g.astype(float32) for g in grads], found_inf, ("exp_avg", "exp_avg_sq"),
            counters=self._counters(group, params), values=[self._state[p]["param_fp32"] for p in params],
            **self._attrs(group),
        )  # fmt: skip
        return updates + [(p, new.astype(p.dtype)) for p, (_, new) in zip(params, updates)]
