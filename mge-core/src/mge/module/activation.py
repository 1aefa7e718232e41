"""Activations as layers.

In: any tensor. Out: a tensor of the same shape (``GLU`` halves one axis).
After ``module``; before ``__init__``.
"""

from __future__ import annotations

import numpy as np

from .. import functional as F
from ..errors import ArgumentError
from ..tensor import Parameter, Tensor
from .module import Module


class ReLU(Module):
    """``max(x, 0)``.

    Examples
    --------
    >>> ReLU()(tensor([-1.0, 2.0]))
    Tensor([0., 2.], dtype=float32, device=ref:0)
    """

    def forward(self, inp: Tensor) -> Tensor:
        return F.relu(inp)


class ReLU6(Module):
    """``min(max(x, 0), 6)``."""

    def forward(self, inp: Tensor) -> Tensor:
        return F.relu6(inp)


class Sigmoid(Module):
    """``1 / (1 + exp(-x))``."""

    def forward(self, inp: Tensor) -> Tensor:
        return F.sigmoid(inp)


class LogSigmoid(Module):
    """``log(sigmoid(x))``, without overflow."""

    def forward(self, inp: Tensor) -> Tensor:
        return F.logsigmoid(inp)


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, inp: Tensor) -> Tensor:
        return F.tanh(inp)


class SiLU(Module):
    """``x * sigmoid(x)``, also called swish."""

    def forward(self, inp: Tensor) -> Tensor:
        return F.silu(inp)


class GELU(Module):
    """``x * P(X <= x)`` for a standard normal ``X``.

    Sources
    -------
    Hendrycks and Gimpel, Gaussian Error Linear Units, 2016, arXiv:1606.08415.
    """

    def forward(self, inp: Tensor) -> Tensor:
        return F.gelu(inp)


class HSigmoid(Module):
    """``relu6(x + 3) / 6``."""

    def forward(self, inp: Tensor) -> Tensor:
        return F.hsigmoid(inp)


class HSwish(Module):
    """``x * relu6(x + 3) / 6``."""

    def forward(self, inp: Tensor) -> Tensor:
        return F.hswish(inp)


class Softplus(Module):
    """``log(1 + exp(x))``, without overflow."""

    def forward(self, inp: Tensor) -> Tensor:
        return F.softplus(inp)


class Softsign(Module):
    """``x / (1 + abs(x))``."""

    def forward(self, inp: Tensor) -> Tensor:
        return F.softsign(inp)


class SELU(Module):
    """A scaled ELU that keeps mean 0 and variance 1.

    Sources
    -------
    Klambauer et al., Self-Normalizing Neural Networks, NeurIPS 2017, arXiv:1706.02515.
    """

    def forward(self, inp: Tensor) -> Tensor:
        return F.selu(inp)


class ELU(Module):
    """``x`` where it is positive, else ``alpha * (exp(x) - 1)``.

    Parameters
    ----------
    alpha : float, default 1.0
    name : str, optional

    Sources
    -------
    Clevert, Unterthiner and Hochreiter, Exponential Linear Units, ICLR 2016, arXiv:1511.07289.
    """

    def __init__(self, alpha: float = 1.0, name: str | None = None) -> None:
        super().__init__(name)
        self.alpha = alpha

    def forward(self, inp: Tensor) -> Tensor:
        return F.elu(inp, self.alpha)

    def _module_info_string(self) -> str:
        return f"alpha={self.alpha}"


class CELU(ELU):
    """``x`` where it is positive, else ``alpha * (exp(x / alpha) - 1)``.

    Parameters
    ----------
    alpha : float, default 1.0
    name : str, optional

    Sources
    -------
    Barron, Continuously Differentiable Exponential Linear Units, 2017, arXiv:1704.07483.
    """

    def forward(self, inp: Tensor) -> Tensor:
        return F.celu(inp, self.alpha)


class LeakyReLU(Module):
    """``x`` where it is positive, else ``negative_slope * x``.

    Parameters
    ----------
    negative_slope : float, default 0.01
    name : str, optional

    Examples
    --------
    >>> LeakyReLU(0.5)(tensor([-1.0, 2.0]))
    Tensor([-0.5,  2. ], dtype=float32, device=ref:0)
    """

    def __init__(self, negative_slope: float = 0.01, name: str | None = None) -> None:
        super().__init__(name)
        self.negative_slope = negative_slope

    def forward(self, inp: Tensor) -> Tensor:
        return F.leaky_relu(inp, self.negative_slope)

    def _module_info_string(self) -> str:
        return f"negative_slope={self.negative_slope}"


class PReLU(Module):
    """``x`` where it is positive, else ``weight * x`` with a learned weight.

    Parameters
    ----------
    num_parameters : int, default 1
        1, or the number of channels on axis 1.
    init : float, default 0.25
        The first value of the weight.
    name : str, optional

    Attributes
    ----------
    weight : (1,) or (1, num_parameters, 1, 1) Parameter

    Sources
    -------
    He et al., Delving Deep into Rectifiers, ICCV 2015, arXiv:1502.01852.
    """

    def __init__(
        self, num_parameters: int = 1, init: float = 0.25, name: str | None = None
    ) -> None:
        super().__init__(name)
        self.num_parameters = num_parameters
        shape = (1,) if num_parameters == 1 else (1, num_parameters, 1, 1)
        self.weight = Parameter(np.full(shape, init, np.float32))

    def forward(self, inp: Tensor) -> Tensor:
        weight: Tensor = self.weight
        if self.num_parameters > 1 and inp.ndim != 4:
            weight = weight.reshape(1, -1, *[1] * (inp.ndim - 2))
        return F.prelu(inp, weight)

    def _module_info_string(self) -> str:
        return f"{self.num_parameters}"


class Hardtanh(Module):
    """``x`` clipped to a range.

    Parameters
    ----------
    min_val, max_val : float
        By default -1 and 1.
    name : str, optional
    """

    def __init__(
        self, min_val: float = -1.0, max_val: float = 1.0, name: str | None = None
    ) -> None:
        super().__init__(name)
        if not min_val < max_val:
            raise ArgumentError(
                f"Hardtanh: min_val is {min_val} and max_val {max_val}; the range is empty"
            )
        self.min_val, self.max_val = min_val, max_val

    def forward(self, inp: Tensor) -> Tensor:
        return F.hardtanh(inp, self.min_val, self.max_val)

    def _module_info_string(self) -> str:
        return f"{self.min_val}, {self.max_val}"


class GLU(Module):
    """The first half along an axis, times the sigmoid of the second half.

    Parameters
    ----------
    axis : int, default -1
    name : str, optional

    Sources
    -------
    Dauphin et al., Language Modeling with Gated Convolutional Networks, ICML 2017, arXiv:1612.08083.
    """

    def __init__(self, axis: int = -1, name: str | None = None) -> None:
        super().__init__(name)
        self.axis = axis

    def forward(self, inp: Tensor) -> Tensor:
        return F.glu(inp, self.axis)

    def _module_info_string(self) -> str:
        return f"axis={self.axis}"


class Softmax(Module):
    """``exp(x) / sum(exp(x))`` along an axis.

    Parameters
    ----------
    axis : int, optional
        By default, as in MegEngine, 0 for inputs with 0, 1 or 3 axes, else 1.
    name : str, optional

    Examples
    --------
    >>> Softmax(axis=-1)(tensor([0.0, 0.0]))
    Tensor([0.5, 0.5], dtype=float32, device=ref:0)
    """

    def __init__(self, axis: int | None = None, name: str | None = None) -> None:
        super().__init__(name)
        self.axis = axis

    def _axis_for(self, inp: Tensor) -> int:
        return self.axis if self.axis is not None else 0 if inp.ndim in (0, 1, 3) else 1

    def forward(self, inp: Tensor) -> Tensor:
        return F.softmax(inp, self._axis_for(inp))

    def _module_info_string(self) -> str:
        return f"axis={self.axis}"


class LogSoftmax(Softmax):
    """``x - log(sum(exp(x)))`` along an axis.

    Parameters
    ----------
    axis : int, optional
        By default, as for ``Softmax``, 0 for inputs with 0, 1 or 3 axes, else 1.
    name : str, optional
    """

    def forward(self, inp: Tensor) -> Tensor:
        return F.logsoftmax(inp, self._axis_for(inp))
