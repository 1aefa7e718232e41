"""MegEngine's functions for batch normalisation: one for training and inference, with running statistics.

In: tensors (n, c, ...). Out: ``batch_norm``, ``sync_batch_norm``.
After ``batch_norm_infer``; before ``tensor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError, ShapeError
from .batch_norm import batch_norm_train
from .batch_norm_infer import batch_norm_infer, moving_average

if TYPE_CHECKING:
    from ..tensor import Tensor

FUNCTIONS = ("batch_norm", "sync_batch_norm")


def batch_norm(
    inp: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    training: bool = False,
    momentum: float = 0.9,
    eps: float = 1e-5,
    inplace: bool = True,
    compute_mode: str = "default",
) -> Any:
    """Normalise each channel: in training by the batch, else by running statistics.

    ``y[n, c, p] = weight[c] * (inp[n, c, p] - mean[c]) / sqrt(var[c] + eps) + bias[c]``

    Parameters
    ----------
    inp : (n, c, ...) float
    running_mean, running_var : (c,) or (1, c, 1, ...) float, optional
        Needed unless ``training``. In training they become
        ``momentum * running + (1 - momentum) * batch``, with the unbiased variance of the batch.
    weight, bias : (c,) or (1, c, 1, ...) float, optional
        A learned factor and shift for each channel; by default 1 and 0.
    training : bool, default False
        Use the mean and variance of ``inp``, and update the running ones.
    momentum : float, 0 to 1, default 0.9
        The share of the old running value. PyTorch's ``momentum`` is ``1 - momentum``.
    eps : float, default 1e-5
        Added to the variance, in the units of ``inp**2``.
    inplace : bool, default True
        Rebind ``running_mean`` and ``running_var``; else return new ones.
    compute_mode : {"default", "float32"}
        float16 and bfloat16 are computed in float32 either way.

    Returns
    -------
    (n, c, ...) dtype of ``inp``
        With ``training``, running statistics and not ``inplace``: a tuple of it and the two new statistics.

    Raises
    ------
    ShapeError
        ``inp`` has less than two axes, another input has not one number for each channel, or there is no element
        to train with.
    ArgumentError
        Running statistics are missing though ``training`` is False, or ``momentum`` or ``eps`` is out of its range.
    DTypeError
        An input is not a float tensor.

    Notes
    -----
    Of a single element for each channel the variance is 0, also in ``running_var``.

    Sources
    -------
    Ioffe and Szegedy, Batch Normalization, ICML 2015, arXiv:1502.03167, algorithms 1 and 2.

    Examples
    --------
    >>> mean, var = tensor([0.0]), tensor([1.0])
    >>> batch_norm(tensor([[1.0], [3.0]]), mean, var, training=True, eps=0.0)
    Tensor([[-1.],
           [ 1.]], dtype=float32, device=ref:0)
    >>> mean, var
    (Tensor([0.2], dtype=float32, device=ref:0), Tensor([1.1], dtype=float32, device=ref:0))
    """
    if compute_mode != "default" and str(compute_mode).lower() not in ("default", "float32"):
        raise ArgumentError(
            f'batch_norm: compute_mode is {compute_mode!r}; it must be "default" or "float32"'
        )
    if weight is None and bias is not None:
        from .create import ones_like

        weight = ones_like(bias)
    affine = () if weight is None else (weight,) if bias is None else (weight, bias)
    if not training:
        if running_mean is None or running_var is None:
            missing = "running_mean" if running_mean is None else "running_var"
            raise ArgumentError(
                f"batch_norm: {missing} is None and training is False; inference needs both running statistics",
                hint="training=True normalises by the batch itself",
            )
        return batch_norm_infer(inp, running_mean, running_var, *affine, eps=eps)
    y, batch_mean, batch_var = batch_norm_train(inp, *affine, eps=eps)
    if running_mean is None and running_var is None:
        return y
    momentum = float(momentum)
    count = inp.size // max(inp.shape[1], 1)
    new_mean: Any = None
    new_var: Any = None
    if running_mean is not None:
        _check_running(inp, running_mean, "running_mean")
        new_mean = moving_average(running_mean, batch_mean, momentum=momentum)
    if running_var is not None:
        _check_running(inp, running_var, "running_var")
        new_var = moving_average(
            running_var, batch_var, momentum=momentum, factor=count / max(count - 1, 1)
        )
    if not inplace:
        return y, new_mean, new_var
    if running_mean is not None:
        running_mean._assign(new_mean)
    if running_var is not None:
        running_var._assign(new_var)
    return y


def _check_running(inp: Tensor, running: Tensor, name: str) -> None:
    c = inp.shape[1]
    if running.size != c:
        raise ShapeError(
            f"batch_norm: {name} has shape {running.shape}; inp of shape {inp.shape} needs ({c},)"
        )


def sync_batch_norm(
    inp: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.9,
    eps: float = 1e-5,
    eps_mode: str = "additive",
    group: Any = None,
) -> Tensor:
    """Normalise each channel by the statistics of all processes of a group.

    ``y[n, c, p] = weight[c] * (inp[n, c, p] - mean[c]) / sqrt(var[c] + eps) + bias[c]``

    Parameters
    ----------
    inp : (n, c, ...) float
    running_mean, running_var : (c,) or (1, c, 1, ...) float, optional
    weight, bias : (c,) or (1, c, 1, ...) float, optional
    training : bool, default False
    momentum : float, 0 to 1, default 0.9
    eps : float, default 1e-5
        As of ``batch_norm``.
    eps_mode : {"additive"}
    group : object, optional
        Of processes. One process is a group of its own.

    Returns
    -------
    (n, c, ...) dtype of ``inp``

    Raises
    ------
    ArgumentError
        ``eps_mode`` is not ``"additive"``, or what ``batch_norm`` refuses.

    Notes
    -----
    In one process it is ``batch_norm``.

    Examples
    --------
    >>> sync_batch_norm(tensor([[1.0], [3.0]]), training=True, eps=0.0)
    Tensor([[-1.],
           [ 1.]], dtype=float32, device=ref:0)
    """
    if str(eps_mode).lower() != "additive":
        raise ArgumentError(
            f'sync_batch_norm: eps_mode is {eps_mode!r}; only "additive" is offered'
        )
    return batch_norm(
        inp, running_mean, running_var, weight, bias, training=training, momentum=momentum, eps=eps
    )
