"""Normalisation layers.

In: (n, c, ...) tensors, or (..., d) for ``LayerNorm`` and ``RMSNorm``. Out: batch, layer, group, instance and
root-mean-square norms. After ``init``; before ``__init__``.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from .. import functional as F
from ..errors import ArgumentError, ShapeError
from ..tensor import ModuleBuffer, Parameter, Tensor
from . import init
from .module import Module


def _vector(value: float, shape: tuple[int, ...]) -> Parameter:
    return Parameter(np.full(shape, value, np.float32))


def _as_shape(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


class _BatchNorm(Module):
    """What batch norms of all numbers of axes share."""

    _ndims: ClassVar[tuple[int, ...]]

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.9,
        affine: bool = True,
        track_running_stats: bool = True,
        freeze: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.num_features, self.eps, self.momentum, self.affine = (
            num_features,
            eps,
            momentum,
            affine,
        )
        self.track_running_stats, self.freeze = track_running_stats, freeze
        if freeze and not track_running_stats:
            raise ArgumentError(
                f"{type(self).__name__}: freeze needs running statistics; track_running_stats is False"
            )
        shape = (1, num_features, 1, 1)
        self.weight = _vector(1.0, shape) if affine else None
        self.bias = _vector(0.0, shape) if affine else None
        self.running_mean = (
            ModuleBuffer(np.zeros(shape, np.float32)) if track_running_stats else None
        )
        self.running_var = ModuleBuffer(np.ones(shape, np.float32)) if track_running_stats else None

    def reset_running_stats(self) -> None:
        """Set the running mean to 0 and the running variance to 1."""
        if self.running_mean is not None and self.running_var is not None:
            init.zeros_(self.running_mean)
            init.ones_(self.running_var)

    def reset_parameters(self) -> None:
        """Set the weight to 1, the bias to 0, and reset the running statistics."""
        self.reset_running_stats()
        if self.weight is not None and self.bias is not None:
            init.ones_(self.weight)
            init.zeros_(self.bias)

    def forward(self, inp: Tensor) -> Tensor:
        shape = inp.shape
        if len(shape) not in self._ndims or shape[1] != self.num_features:
            raise ShapeError(
                f"{type(self).__name__}: the input has shape {shape}; it must have "
                f"{' or '.join(map(str, self._ndims))} axes and {self.num_features} channels on axis 1"
            )
        if len(shape) != 4:
            n, c, *rest = shape
            inp = inp.reshape(
                n, c, *([*rest, 1, 1][:2] if len(rest) < 3 else [rest[0], rest[1] * rest[2]])
            )
        weight, bias = self.weight, self.bias
        frozen = self.freeze and self.training
        if frozen and weight is not None and bias is not None:
            weight, bias = weight.detach(), bias.detach()  # type: ignore[assignment]
        training = self.running_mean is None or (self.training and not self.freeze)
        found = self._normalize(inp, weight, bias, training)
        return found if len(shape) == 4 else found.reshape(*shape)

    def _normalize(
        self, inp: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool
    ) -> Tensor:
        return F.batch_norm(
            inp, self.running_mean, self.running_var, weight, bias,
            training=training, momentum=self.momentum, eps=self.eps,
        )  # fmt: skip

    def _module_info_string(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}"
        )


class BatchNorm1d(_BatchNorm):
    """Normalise each channel of an (n, c) or (n, c, w) tensor over the batch.

    Arguments and attributes are those of ``BatchNorm2d``.

    Examples
    --------
    >>> BatchNorm1d(3)(ones((4, 3))).shape
    (4, 3)
    """

    _ndims = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Normalise each channel of an (n, c, h, w) tensor over the batch.

    ``y = (x - mean) / sqrt(var + eps) * weight + bias``, with the batch's mean and variance while training and
    the running ones in inference mode.

    Parameters
    ----------
    num_features : int
        c, the number of channels.
    eps : float, default 1e-5
        Added to the variance.
    momentum : float, default 0.9
        ``running = momentum * running + (1 - momentum) * batch``; PyTorch counts the other way round.
    affine : bool, default True
        Whether there are weight and bias.
    track_running_stats : bool, default True
        False: the batch's statistics are used in inference mode too.
    freeze : bool, default False
        True: the running statistics are used and not updated, and weight and bias get no gradient.
    name : str, optional

    Attributes
    ----------
    weight, bias : (1, c, 1, 1) Parameter or None
    running_mean, running_var : (1, c, 1, 1) buffer or None
        The variance of a batch is divided by its size minus 1 before it enters the running one.

    Sources
    -------
    Ioffe and Szegedy, Batch Normalization, ICML 2015, arXiv:1502.03167, algorithms 1 and 2.

    Examples
    --------
    >>> BatchNorm2d(3)(ones((4, 3, 2, 2))).shape
    (4, 3, 2, 2)
    """

    _ndims = (4,)


class BatchNorm3d(_BatchNorm):
    """Normalise each channel of an (n, c, d, h, w) tensor over the batch.

    Arguments and attributes are those of ``BatchNorm2d``.

    Examples
    --------
    >>> BatchNorm3d(3)(ones((2, 3, 2, 2, 2))).shape
    (2, 3, 2, 2, 2)
    """

    _ndims = (5,)


class SyncBatchNorm(_BatchNorm):
    """Batch norm over the batches of all processes of a group.

    In one process it is batch norm. Takes tensors with 2 to 5 axes. Arguments and attributes are those of
    ``BatchNorm2d``, and ``group``.

    Parameters
    ----------
    num_features : int
    eps : float, default 1e-5
    momentum : float, default 0.9
    affine, track_running_stats : bool, default True
    freeze : bool, default False
    group : Group, optional
        The processes; by default all of them.
    name : str, optional

    Examples
    --------
    >>> SyncBatchNorm(3)(ones((4, 3, 2, 2))).shape
    (4, 3, 2, 2)
    """

    _ndims = (2, 3, 4, 5)

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.9,
        affine: bool = True,
        track_running_stats: bool = True,
        freeze: bool = False,
        group: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, freeze, name)
        self.group = group

    def _normalize(
        self, inp: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool
    ) -> Tensor:
        return F.sync_batch_norm(
            inp, self.running_mean, self.running_var, weight, bias,
            training=training, momentum=self.momentum, eps=self.eps, group=self.group,
        )  # fmt: skip


class LayerNorm(Module):
    """Normalise the last axes to mean 0 and variance 1, then scale and shift.

    ``y = (x - mean) / sqrt(var + eps) * weight + bias``

    Parameters
    ----------
    normalized_shape : int or tuple of int
        The sizes of the last axes.
    eps : float, default 1e-5
        Added to the variance.
    affine : bool, default True
        Whether there are weight and bias.
    name : str, optional

    Attributes
    ----------
    weight, bias : (normalized_shape) Parameter or None

    Sources
    -------
    Ba, Kiros and Hinton, Layer Normalization, 2016, arXiv:1607.06450.

    Examples
    --------
    >>> LayerNorm(2)(tensor([[1.0, 3.0]])).numpy().round(2)
    array([[-1.,  1.]], dtype=float32)
    """

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float = 1e-5,
        affine: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.normalized_shape = _as_shape(normalized_shape)
        self.eps, self.affine = eps, affine
        self.weight = _vector(1.0, self.normalized_shape) if affine else None
        self.bias = _vector(0.0, self.normalized_shape) if affine else None

    def reset_parameters(self) -> None:
        """Set the weight to 1 and the bias to 0."""
        if self.weight is not None and self.bias is not None:
            init.ones_(self.weight)
            init.zeros_(self.bias)

    def forward(self, inp: Tensor) -> Tensor:
        return F.layer_norm(
            inp, self.normalized_shape, self.affine, self.weight, self.bias, self.eps
        )

    def _module_info_string(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, affine={self.affine}"


class RMSNorm(Module):
    """Scale the last axes to unit root mean square, then by a learned weight.

    ``y = x / sqrt(mean(x**2) + eps) * weight``

    Parameters
    ----------
    normalized_shape : int or tuple of int
        The sizes of the last axes.
    eps : float, default 1e-6
        Added to the mean square.
    name : str, optional

    Attributes
    ----------
    weight : (normalized_shape) Parameter

    Sources
    -------
    Zhang and Sennrich, Root Mean Square Layer Normalization, NeurIPS 2019, arXiv:1910.07467.

    Examples
    --------
    >>> RMSNorm(2, eps=0.0)(tensor([3.0, 4.0])).numpy().round(4)
    array([0.8485, 1.1314], dtype=float32)
    """

    def __init__(
        self, normalized_shape: int | tuple[int, ...], eps: float = 1e-6, name: str | None = None
    ) -> None:
        super().__init__(name)
        self.normalized_shape = _as_shape(normalized_shape)
        self.eps = eps
        self.weight = _vector(1.0, self.normalized_shape)

    def reset_parameters(self) -> None:
        """Set the weight to 1."""
        init.ones_(self.weight)

    def forward(self, inp: Tensor) -> Tensor:
        count = len(self.normalized_shape)
        if inp.shape[-count:] != self.normalized_shape:
            raise ShapeError(
                f"RMSNorm: the input has shape {inp.shape}; its last axes must be {self.normalized_shape}"
            )
        if count == 1:
            return F.rms_norm(inp, self.weight, eps=self.eps)
        rows = inp.reshape(*inp.shape[:-count], -1)
        return F.rms_norm(rows, self.weight.reshape(-1), eps=self.eps).reshape(*inp.shape)

    def _module_info_string(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}"


class GroupNorm(Module):
    """Normalise groups of channels of each sample, then scale and shift.

    Parameters
    ----------
    num_groups : int
        Divides ``num_channels``.
    num_channels : int
        c of an (n, c, ...) tensor.
    eps : float, default 1e-5
        Added to the variance.
    affine : bool, default True
        Whether there are weight and bias.
    name : str, optional

    Attributes
    ----------
    weight, bias : (c,) Parameter or None

    Sources
    -------
    Wu and He, Group Normalization, ECCV 2018, arXiv:1803.08494.

    Examples
    --------
    >>> GroupNorm(2, 4)(ones((1, 4, 3, 3))).shape
    (1, 4, 3, 3)
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if num_groups < 1 or num_channels % num_groups:
            raise ArgumentError(
                f"{type(self).__name__}: num_channels is {num_channels} and num_groups {num_groups}; the latter must "
                "divide the former"
            )
        self.num_groups, self.num_channels, self.eps, self.affine = (
            num_groups,
            num_channels,
            eps,
            affine,
        )
        self.weight = _vector(1.0, (num_channels,)) if affine else None
        self.bias = _vector(0.0, (num_channels,)) if affine else None

    def reset_parameters(self) -> None:
        """Set the weight to 1 and the bias to 0."""
        if self.weight is not None and self.bias is not None:
            init.ones_(self.weight)
            init.zeros_(self.bias)

    def forward(self, inp: Tensor) -> Tensor:
        if inp.ndim < 2 or inp.shape[1] != self.num_channels:
            raise ShapeError(
                f"{type(self).__name__}: the input has shape {inp.shape}; it must have {self.num_channels} channels "
                "on axis 1"
            )
        return F.group_norm(inp, self.num_groups, self.affine, self.weight, self.bias, self.eps)

    def _module_info_string(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


class InstanceNorm(GroupNorm):
    """Normalise each channel of each sample: ``GroupNorm`` with one channel a group.

    Parameters
    ----------
    num_channels : int
    eps : float, default 1e-5
    affine : bool, default True
    name : str, optional

    Sources
    -------
    Ulyanov, Vedaldi and Lempitsky, Instance Normalization, 2016, arXiv:1607.08022.

    Examples
    --------
    >>> InstanceNorm(4)(ones((1, 4, 3, 3))).shape
    (1, 4, 3, 3)
    """

    def __init__(
        self, num_channels: int, eps: float = 1e-5, affine: bool = True, name: str | None = None
    ) -> None:
        super().__init__(num_channels, num_channels, eps, affine, name)

    def forward(self, inp: Tensor) -> Tensor:
        return F.instance_norm(inp, self.affine, self.weight, self.bias, self.eps)

    def _module_info_string(self) -> str:
        return f"{self.num_channels}, eps={self.eps}, affine={self.affine}"
