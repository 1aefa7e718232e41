"""Initialisers: give a parameter a new value.

In: a tensor. Out: nothing; the handle is rebound to a fill or a random draw on its device.
After ``module``; before the layers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import random
from ..errors import ArgumentError, ShapeError
from ..tensor import Tensor, upload

__all__ = [
    "calculate_correct_fan",
    "calculate_fan_in_and_fan_out",
    "calculate_gain",
    "fill_",
    "msra_normal_",
    "msra_uniform_",
    "normal_",
    "ones_",
    "orthogonal_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]


def _set(tensor: Tensor, value: Tensor) -> None:
    """Rebind a handle to a drawn value of its shape."""
    if value.dtype != tensor.dtype:
        value = value.astype(tensor.dtype)
    if value.device is not tensor.device:
        value = value.to(tensor.device)
    tensor._assign(value)


def fill_(tensor: Tensor, val: float) -> None:
    """Set each element to ``val``.

    Parameters
    ----------
    tensor : Tensor
    val : float
    """
    tensor._rebind(upload(np.full(tensor.shape, val, tensor.dtype.dtype), tensor.device))


def zeros_(tensor: Tensor) -> None:
    """Set each element to 0.

    Parameters
    ----------
    tensor : Tensor
    """
    fill_(tensor, 0)


def ones_(tensor: Tensor) -> None:
    """Set each element to 1.

    Parameters
    ----------
    tensor : Tensor
    """
    fill_(tensor, 1)


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> None:
    """Draw each element from the uniform distribution over ``[a, b)``.

    Parameters
    ----------
    tensor : Tensor
    a, b : float
        The range.

    Examples
    --------
    >>> weight = Parameter(np.zeros((2, 3)))
    >>> init.uniform_(weight, -1, 1)
    >>> bool((abs(weight) <= 1).all())
    True
    """
    _set(tensor, random.uniform(a, b, size=tensor.shape))


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> None:
    """Draw each element from the normal distribution.

    Parameters
    ----------
    tensor : Tensor
    mean, std : float
        Mean and standard deviation.
    """
    _set(tensor, random.normal(mean, std, size=tensor.shape))


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return the factor of weights that keeps the variance through a nonlinearity.

    Parameters
    ----------
    nonlinearity : str
        ``linear``, ``identity``, ``sigmoid``, ``conv1d`` .. ``conv3d``, ``conv_transpose1d`` ..
        ``conv_transpose3d`` (1), ``tanh`` (5/3), ``relu`` (sqrt(2)), ``leaky_relu``, ``selu`` (3/4).
    param : float, optional
        The negative slope of ``leaky_relu``, by default 0.01.

    Returns
    -------
    float

    Raises
    ------
    ArgumentError
        The name is unknown.

    Sources
    -------
    ReLU and leaky ReLU: He et al., Delving Deep into Rectifiers, ICCV 2015, equations 10 and 15. The values of
    tanh and SELU are the ones customary in the field.

    Examples
    --------
    >>> init.calculate_gain("tanh")
    1.6666666666666667
    """
    if nonlinearity in ("linear", "identity", "sigmoid") or nonlinearity.startswith("conv"):
        return 1.0
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else float(param)
        return math.sqrt(2.0 / (1 + slope**2))
    known = {"tanh": 5.0 / 3, "relu": math.sqrt(2.0), "selu": 0.75}
    if nonlinearity not in known:
        raise ArgumentError(
            f"calculate_gain: nonlinearity is {nonlinearity!r}; known are linear, identity, sigmoid, conv*, "
            f"leaky_relu, {', '.join(known)}"
        )
    return known[nonlinearity]


def calculate_fan_in_and_fan_out(tensor: Tensor, grouped: bool | None = None) -> tuple[int, int]:
    """Return how many inputs an output has, and how many outputs an input feeds.

    Parameters
    ----------
    tensor : (out, in, ...) or, when grouped, (groups, out, in, ...)
        The weight of a linear layer or convolution; axes after ``in`` are the kernel's.
    grouped : bool, optional
        Whether the first axis counts groups; by default what the convolution noted that made the weight,
        else False.

    Returns
    -------
    fan_in, fan_out : int

    Raises
    ------
    ShapeError
        The weight has fewer than 2 axes.

    Notes
    -----
    MegEngine takes any weight with 5 axes for a grouped one, and so is wrong for 3-d convolutions.

    Examples
    --------
    >>> init.calculate_fan_in_and_fan_out(ones((8, 4, 3, 3)))
    (36, 72)
    """
    if grouped is None:
        grouped = bool(getattr(tensor, "_notes", {}).get("grouped"))
    shape = tensor.shape[1:] if grouped else tensor.shape
    if len(shape) < 2:
        raise ShapeError(
            f"calculate_fan_in_and_fan_out: the weight has shape {tensor.shape}; it must have 2 axes"
        )
    kernel = math.prod(shape[2:])
    return shape[1] * kernel, shape[0] * kernel


def calculate_correct_fan(tensor: Tensor, mode: str) -> int:
    """Return the fan that ``mode`` names.

    Parameters
    ----------
    tensor : (out, in, ...)
        A weight, as for ``calculate_fan_in_and_fan_out``.
    mode : {"fan_in", "fan_out"}

    Returns
    -------
    int

    Raises
    ------
    ArgumentError
        ``mode`` is another text.
    """
    if mode.lower() not in ("fan_in", "fan_out"):
        raise ArgumentError(
            f"calculate_correct_fan: mode is {mode!r}; it must be 'fan_in' or 'fan_out'"
        )
    return calculate_fan_in_and_fan_out(tensor)[mode.lower() == "fan_out"]


def xavier_uniform_(tensor: Tensor, gain: float = 1.0) -> None:
    """Draw a weight from a uniform distribution that fits both fans.

    ``U(-a, a)`` with ``a = gain * sqrt(6 / (fan_in + fan_out))``

    Parameters
    ----------
    tensor : (out, in, ...)
    gain : float, default 1.0
        See ``calculate_gain``.

    Sources
    -------
    Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks,
    AISTATS 2010, equation 16.
    """
    bound = gain * math.sqrt(6.0 / sum(calculate_fan_in_and_fan_out(tensor)))
    uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: Tensor, gain: float = 1.0) -> None:
    """Draw a weight from a normal distribution that fits both fans.

    ``N(0, s**2)`` with ``s = gain * sqrt(2 / (fan_in + fan_out))``

    Parameters
    ----------
    tensor : (out, in, ...)
    gain : float, default 1.0
        See ``calculate_gain``.

    Sources
    -------
    Glorot and Bengio, AISTATS 2010, equation 12.
    """
    normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(calculate_fan_in_and_fan_out(tensor))))


def _msra_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    return calculate_gain(nonlinearity, a) / math.sqrt(calculate_correct_fan(tensor, mode))


def msra_uniform_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> None:
    """Draw a weight from ``U(-b, b)`` with ``b = gain * sqrt(3 / fan)``.

    Parameters
    ----------
    tensor : (out, in, ...)
    a : float, default 0
        Negative slope of the leaky ReLU that follows.
    mode : {"fan_in", "fan_out"}
        Keep the variance of the forward pass, or of the backward pass.
    nonlinearity : str
        See ``calculate_gain``.

    Sources
    -------
    He et al., Delving Deep into Rectifiers, ICCV 2015, section 2.2.
    """
    bound = math.sqrt(3.0) * _msra_std(tensor, a, mode, nonlinearity)
    uniform_(tensor, -bound, bound)


def msra_normal_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> None:
    """Draw a weight from ``N(0, s**2)`` with ``s = gain / sqrt(fan)``.

    Parameters
    ----------
    tensor : (out, in, ...)
    a : float, default 0
        Negative slope of the leaky ReLU that follows.
    mode : {"fan_in", "fan_out"}
        Keep the variance of the forward pass, or of the backward pass.
    nonlinearity : str
        See ``calculate_gain``.

    Sources
    -------
    He et al., Delving Deep into Rectifiers, ICCV 2015, section 2.2.
    """
    normal_(tensor, 0.0, _msra_std(tensor, a, mode, nonlinearity))


def orthogonal_(tensor: Tensor, gain: float = 1.0) -> None:
    """Set a weight to ``gain`` times a matrix with orthonormal rows or columns.

    Parameters
    ----------
    tensor : (out, ...)
        The axes after the first are taken as one.
    gain : float, default 1.0

    Raises
    ------
    ShapeError
        The tensor has fewer than 2 axes.

    Notes
    -----
    The decomposition runs on the host at the call.

    Sources
    -------
    Saxe, McClelland and Ganguli, Exact solutions to the nonlinear dynamics of learning in deep linear neural
    networks, ICLR 2014, arXiv:1312.6120. Fixing the signs by R's diagonal makes the distribution uniform:
    Mezzadri, Notices of the AMS 54(5), 2007.

    Examples
    --------
    >>> weight = Parameter(np.zeros((2, 4)))
    >>> init.orthogonal_(weight)
    >>> bool(np.allclose(weight.numpy() @ weight.numpy().T, np.eye(2), atol=1e-6))
    True
    """
    if tensor.ndim < 2:
        raise ShapeError(f"orthogonal_: the tensor has shape {tensor.shape}; it must have 2 axes")
    rows, columns = tensor.shape[0], math.prod(tensor.shape[1:])
    drawn: Any = random.normal(0.0, 1.0, size=(max(rows, columns), min(rows, columns))).numpy()
    q, r = np.linalg.qr(drawn.astype(np.float64))
    q = q * np.where(np.diag(r) < 0, -1.0, 1.0)
    tensor.set_value(gain * (q if rows >= columns else q.T).reshape(tensor.shape))
