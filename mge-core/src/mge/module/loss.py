"""Losses as layers: each keeps its options and calls the function of the same meaning.

In: predictions and labels. Out: a loss, reduced to one number by default.
After ``module``; before ``__init__``.
"""

from __future__ import annotations

from typing import Any

from .. import functional as F
from ..tensor import Tensor
from .module import Module


class _Loss(Module):
    """A loss: ``_options`` are handed to the function."""

    def _keep(self, **options: Any) -> None:
        self.__dict__.update(options)
        self._option_names = tuple(options)

    @property
    def _options(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self._option_names}

    def _module_info_string(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self._options.items())


class _SimpleLoss(_Loss):
    """A loss whose only option is the reduction."""

    def __init__(self, reduction: str = "mean", name: str | None = None) -> None:
        super().__init__(name)
        self._keep(reduction=reduction)


class L1Loss(_SimpleLoss):
    """The mean of ``abs(pred - label)``.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}
    name : str, optional

    Examples
    --------
    >>> L1Loss()(tensor([1.0, 2.0]), tensor([1.0, 4.0]))
    Tensor(1., dtype=float32, device=ref:0)
    """

    def forward(self, pred: Tensor, label: Tensor) -> Tensor:
        return F.l1_loss(pred, label, **self._options)


class MSELoss(_SimpleLoss):
    """The mean of ``(pred - label)**2``: MegEngine's ``square_loss``.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}
    name : str, optional

    Examples
    --------
    >>> MSELoss()(tensor([1.0, 2.0]), tensor([1.0, 4.0]))
    Tensor(2., dtype=float32, device=ref:0)
    """

    def forward(self, pred: Tensor, label: Tensor) -> Tensor:
        return F.square_loss(pred, label, **self._options)


class SmoothL1Loss(_Loss):
    """Squared below ``beta``, linear above it; see ``F.smooth_l1_loss``.

    Parameters
    ----------
    beta : float, default 1.0
    reduction : {"mean", "sum", "none"}
    name : str, optional
    """

    def __init__(self, beta: float = 1.0, reduction: str = "mean", name: str | None = None) -> None:
        super().__init__(name)
        self._keep(beta=beta, reduction=reduction)

    def forward(self, pred: Tensor, label: Tensor) -> Tensor:
        return F.smooth_l1_loss(pred, label, **self._options)


class HuberLoss(_Loss):
    """Squared below ``delta``, linear above it; see ``F.huber_loss``.

    Parameters
    ----------
    delta : float, default 1.0
    reduction : {"mean", "sum", "none"}
    name : str, optional
    """

    def __init__(
        self, delta: float = 1.0, reduction: str = "mean", name: str | None = None
    ) -> None:
        super().__init__(name)
        self._keep(delta=delta, reduction=reduction)

    def forward(self, pred: Tensor, label: Tensor) -> Tensor:
        return F.huber_loss(pred, label, **self._options)


class CrossEntropyLoss(_Loss):
    """Cross entropy of class scores and labels; see ``F.cross_entropy``.

    Parameters
    ----------
    axis : int, default 1
        The axis of the classes.
    with_logits : bool, default True
        Whether predictions are scores before the softmax, or probabilities.
    label_smooth : float, default 0.0
        The share of the target that is spread over all classes.
    reduction : {"mean", "sum", "none"}
    name : str, optional

    Examples
    --------
    >>> CrossEntropyLoss()(tensor([[0.0, 0.0]]), tensor([1])).numpy().round(4)
    np.float32(0.6931)
    """

    def __init__(
        self,
        axis: int = 1,
        with_logits: bool = True,
        label_smooth: float = 0.0,
        reduction: str = "mean",
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self._keep(
            axis=axis, with_logits=with_logits, label_smooth=label_smooth, reduction=reduction
        )

    def forward(self, pred: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(pred, label, **self._options)


class BCELoss(_SimpleLoss):
    """Binary cross entropy of probabilities; see ``F.binary_cross_entropy``.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}
    name : str, optional
    """

    _with_logits = False

    def forward(self, pred: Tensor, label: Tensor) -> Tensor:
        return F.binary_cross_entropy(pred, label, with_logits=self._with_logits, **self._options)


class BCEWithLogitsLoss(BCELoss):
    """Binary cross entropy of scores; see ``F.binary_cross_entropy``.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}
    name : str, optional
    """

    _with_logits = True


class NLLLoss(_Loss):
    """Minus the logarithm of the labelled class's probability; see ``F.nll_loss``.

    Parameters
    ----------
    axis : int, default 1
        The axis of the classes.
    reduction : {"mean", "sum", "none"}
    name : str, optional
    """

    def __init__(self, axis: int = 1, reduction: str = "mean", name: str | None = None) -> None:
        super().__init__(name)
        self._keep(axis=axis, reduction=reduction)

    def forward(self, pred: Tensor, label: Tensor) -> Tensor:
        return F.nll_loss(pred, label, **self._options)


class KLDivLoss(_Loss):
    """The Kullback-Leibler divergence from a target; see ``F.kl_div``.

    Parameters
    ----------
    reduction : {"mean", "batchmean", "sum", "none"}
    log_target : bool, default False
        Whether the target holds log-probabilities.
    name : str, optional
    """

    def __init__(
        self, reduction: str = "mean", log_target: bool = False, name: str | None = None
    ) -> None:
        super().__init__(name)
        self._keep(reduction=reduction, log_target=log_target)

    def forward(self, pred: Tensor, label: Tensor) -> Tensor:
        return F.kl_div(pred, label, **self._options)


class HingeLoss(_Loss):
    """The hinge loss of scores and labels of -1 and 1; see ``F.hinge_loss``.

    Parameters
    ----------
    norm : {"L1", "L2"}
    reduction : {"mean", "sum", "none"}
    name : str, optional
    """

    def __init__(self, norm: str = "L1", reduction: str = "mean", name: str | None = None) -> None:
        super().__init__(name)
        self._keep(norm=norm, reduction=reduction)

    def forward(self, pred: Tensor, label: Tensor) -> Tensor:
        return F.hinge_loss(pred, label, **self._options)


class TripletMarginLoss(_Loss):
    """How much farther than the positive the negative must be.

    See ``F.triplet_margin_loss``.

    Parameters
    ----------
    margin : float, default 1.0
    p : float, default 2.0
        The norm of the distance.
    eps : float, default 1e-6
        Added to each difference.
    swap : bool, default False
        Whether the positive's distance to the negative counts too.
    reduction : {"mean", "sum", "none"}
    name : str, optional
    """

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        reduction: str = "mean",
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self._keep(margin=margin, p=p, eps=eps, swap=swap, reduction=reduction)

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return F.triplet_margin_loss(anchor, positive, negative, **self._options)


class CosineEmbeddingLoss(_Loss):
    """Pulls pairs labelled 1 together and pushes pairs labelled -1 apart.

    See ``F.cosine_embedding_loss``.

    Parameters
    ----------
    margin : float, default 0.0
    reduction : {"mean", "sum", "none"}
    name : str, optional
    """

    def __init__(
        self, margin: float = 0.0, reduction: str = "mean", name: str | None = None
    ) -> None:
        super().__init__(name)
        self._keep(margin=margin, reduction=reduction)

    def forward(self, inp1: Tensor, inp2: Tensor, label: Tensor) -> Tensor:
        return F.cosine_embedding_loss(inp1, inp2, label, **self._options)


class CTCLoss(_Loss):
    """Connectionist temporal classification; see ``F.ctc_loss``.

    Parameters
    ----------
    blank : int, default 0
        The class that stands for "no label".
    reduction : {"mean", "sum", "none"}
    with_logits : bool, default False
        Whether predictions are scores before the softmax, or probabilities.
    name : str, optional
    """

    def __init__(
        self,
        blank: int = 0,
        reduction: str = "mean",
        with_logits: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self._keep(blank=blank, reduction=reduction, with_logits=with_logits)

    def forward(
        self, pred: Tensor, pred_lengths: Tensor, label: Tensor, label_lengths: Tensor
    ) -> Tensor:
        return F.ctc_loss(pred, pred_lengths, label, label_lengths, **self._options)
