"""MegEngine's functions for normalisation of each sample.

In: tensors, and weights by channel or by element. Out: ``layer_norm``, ``group_norm``, ``instance_norm``,
``general_norm``, ``local_response_norm``.
After ``norm``; before ``tensor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError, ShapeError
from ..types import Shape, normal_axes
from .norm import layer_norm_
from .pool import avg_pool
from .shape import reshape
from .windows import product

if TYPE_CHECKING:
    from ..tensor import Tensor

FUNCTIONS = ("layer_norm", "group_norm", "instance_norm", "general_norm", "local_response_norm")


def _affine(
    where: str,
    affine: bool | None,
    weight: Tensor | None,
    bias: Tensor | None,
    given: Shape,
    used: Shape,
) -> tuple[Tensor, ...]:
    """Return weight and bias, each of shape ``given`` or with ones around it, in the shape that the op uses."""
    if affine is None:
        affine = weight is not None
    if not affine:
        return ()
    result = []
    for name, x in (("weight", weight), ("bias", bias)):
        if x is None:
            raise ArgumentError(
                f"{where}: affine is True and {name} is None; an affine normalisation needs weight and bias"
            )
        if x.shape != given and _without_ones(x.shape) != _without_ones(given):
            raise ShapeError(f"{where}: {name} has shape {x.shape}; it must be {given}")
        result.append(x if x.shape == used else reshape(x, shape=used))
    return tuple(result)


def _without_ones(shape: Shape) -> Shape:
    return tuple(n for n in shape if n != 1)


def layer_norm(
    inp: Tensor,
    normalized_shape: Any,
    affine: bool | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise over the last axes, then scale and shift each element.

    ``y = weight * (inp - mean) / sqrt(var + eps) + bias``

    Parameters
    ----------
    inp : (..., *normalized_shape) float
    normalized_shape : int or tuple of int, elements
        The sizes of the last axes, over which mean and variance run.
    affine : bool, default whether ``weight`` is given
        Use ``weight`` and ``bias``.
    weight, bias : (*normalized_shape) float, optional
        A learned factor and shift.
    eps : float, default 1e-5
        Added to the variance, in the units of ``inp**2``.

    Returns
    -------
    (..., *normalized_shape) dtype of ``inp``

    Raises
    ------
    ShapeError
        ``inp`` does not end with ``normalized_shape``, or ``weight`` or ``bias`` has another shape.
    ArgumentError
        ``affine`` is True and ``weight`` or ``bias`` is missing, or ``eps`` is negative.
    DTypeError
        An input is not a float tensor.

    Notes
    -----
    float16 and bfloat16 are computed in float32.

    Sources
    -------
    Ba, Kiros and Hinton, Layer Normalization, 2016, arXiv:1607.06450.

    Examples
    --------
    >>> layer_norm(tensor([[1.0, 3.0]]), 2, eps=0.0)
    Tensor([[-1.,  1.]], dtype=float32, device=ref:0)
    """
    wanted = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not wanted or inp.shape[-len(wanted) :] != wanted:
        raise ShapeError(
            f"layer_norm: inp has shape {inp.shape}; it must end with normalized_shape, {wanted}"
        )
    axis = tuple(range(-len(wanted), 0))
    return layer_norm_(
        inp, *_affine("layer_norm", affine, weight, bias, wanted, wanted), axis=axis, eps=eps
    )[0]


def group_norm(
    inp: Tensor,
    num_groups: int,
    affine: bool | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each group of channels of a sample, then scale and shift each channel.

    ``y[n, c, p] = weight[c] * (inp[n, c, p] - mean[n, g]) / sqrt(var[n, g] + eps) + bias[c]``

    Parameters
    ----------
    inp : (n, c, ...) float
    num_groups : int
        Divides ``c``; channel ``c`` is in group ``c // (channels // num_groups)``.
    affine : bool, default whether ``weight`` is given
        Use ``weight`` and ``bias``.
    weight, bias : (c,) float, optional
        A learned factor and shift for each channel.
    eps : float, default 1e-5
        Added to the variance, in the units of ``inp**2``.

    Returns
    -------
    (n, c, ...) dtype of ``inp``

    Raises
    ------
    ShapeError
        ``inp`` has less than two axes or an empty group, or ``weight`` or ``bias`` is not ``(c,)``.
    ArgumentError
        ``num_groups`` does not divide ``c``, or ``affine`` is True and ``weight`` or ``bias`` is missing.
    DTypeError
        An input is not a float tensor.

    Notes
    -----
    float16 and bfloat16 are computed in float32.

    Sources
    -------
    Wu and He, Group Normalization, ECCV 2018, arXiv:1803.08494.

    Examples
    --------
    >>> group_norm(tensor([[1.0, 3.0, 5.0, 9.0]]), 2, eps=0.0)
    Tensor([[-1.,  1., -1.,  1.]], dtype=float32, device=ref:0)
    """
    if inp.ndim < 2:
        raise ShapeError(f"group_norm: inp has shape {inp.shape}; it must be (n, channels, ...)")
    n, c = inp.shape[:2]
    if not isinstance(num_groups, int) or num_groups < 1 or c % num_groups:
        raise ArgumentError(
            f"group_norm: num_groups is {num_groups!r}; it must divide the {c} channels of inp {inp.shape}"
        )
    used = (num_groups, c // num_groups, 1)
    grouped = reshape(inp, shape=(n, *used[:2], product(inp.shape[2:])))
    given = _affine("group_norm", affine, weight, bias, (c,), used)
    return reshape(layer_norm_(grouped, *given, axis=(2, 3), eps=eps)[0], shape=inp.shape)


def instance_norm(
    inp: Tensor,
    affine: bool | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each channel of each sample, then scale and shift each channel.

    ``y[n, c, p] = weight[c] * (inp[n, c, p] - mean[n, c]) / sqrt(var[n, c] + eps) + bias[c]``

    Parameters
    ----------
    inp : (n, c, ...) float
        At least three axes.
    affine : bool, default whether ``weight`` is given
        Use ``weight`` and ``bias``.
    weight, bias : (c,) float, optional
        A learned factor and shift for each channel.
    eps : float, default 1e-5
        Added to the variance, in the units of ``inp**2``.

    Returns
    -------
    (n, c, ...) dtype of ``inp``

    Raises
    ------
    ShapeError
        ``inp`` has less than three axes or an empty one, or ``weight`` or ``bias`` is not ``(c,)``.
    ArgumentError
        ``affine`` is True and ``weight`` or ``bias`` is missing.
    DTypeError
        An input is not a float tensor.

    Notes
    -----
    float16 and bfloat16 are computed in float32.

    Sources
    -------
    Ulyanov, Vedaldi and Lempitsky, Instance Normalization, 2016, arXiv:1607.08022.

    Examples
    --------
    >>> instance_norm(tensor([[[1.0, 3.0], [5.0, 9.0]]]), eps=0.0)
    Tensor([[[-1.,  1.],
            [-1.,  1.]]], dtype=float32, device=ref:0)
    """
    if inp.ndim < 3:
        raise ShapeError(
            f"instance_norm: inp has shape {inp.shape}; it must be (n, channels, ...) with 3 axes or more"
        )
    c = inp.shape[1]
    rows = reshape(inp, shape=(inp.shape[0], c, product(inp.shape[2:])))
    given = _affine("instance_norm", affine, weight, bias, (c,), (c, 1))
    return reshape(layer_norm_(rows, *given, axis=(2,), eps=eps)[0], shape=inp.shape)


def general_norm(
    inp: Tensor,
    normalized_axis: Any,
    affine: bool | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise over any axes, then scale and shift each element along them.

    ``y = weight * (inp - mean) / sqrt(var + eps) + bias``

    Parameters
    ----------
    inp : (any shape) float
    normalized_axis : int or tuple of int
        The axes over which mean and variance run.
    affine : bool, default whether ``weight`` is given
        Use ``weight`` and ``bias``.
    weight, bias : (sizes of ``normalized_axis``, in the order of ``inp``'s axes) float, optional
        A learned factor and shift.
    eps : float, default 1e-5
        Added to the variance, in the units of ``inp**2``.

    Returns
    -------
    (shape of ``inp``) dtype of ``inp``

    Raises
    ------
    ShapeError
        An axis is missing, named twice or empty, or ``weight`` or ``bias`` has another shape.
    ArgumentError
        No axis is named, or ``affine`` is True and ``weight`` or ``bias`` is missing.
    DTypeError
        An input is not a float tensor.

    Notes
    -----
    float16 and bfloat16 are computed in float32.

    Examples
    --------
    >>> general_norm(tensor([[1.0, 5.0], [3.0, 9.0]]), 0, eps=0.0)
    Tensor([[-1., -1.],
           [ 1.,  1.]], dtype=float32, device=ref:0)
    """
    axis = (normalized_axis,) if isinstance(normalized_axis, int) else tuple(normalized_axis)
    axes = normal_axes(axis, inp.ndim, "general_norm")
    sizes = tuple(inp.shape[a] for a in axes)
    used = tuple(n if a in axes else 1 for a, n in enumerate(inp.shape))
    given = _affine("general_norm", affine, weight, bias, sizes, used)
    return layer_norm_(inp, *given, axis=axes, eps=eps)[0]


def local_response_norm(
    inp: Tensor, kernel_size: int = 5, k: float = 2.0, alpha: float = 1e-4, beta: float = 0.75
) -> Tensor:
    """Divide by a power of the squares of the same place in neighbouring channels.

    ``y[n, c, p] = inp[n, c, p] / (k + alpha * sum_j inp[n, j, p]**2) ** beta``, ``|j - c| <= kernel_size // 2``

    Parameters
    ----------
    inp : (n, c, ...) float
    kernel_size : int, channels, default 5
        How many neighbours are summed; odd.
    k, alpha, beta : float, default 2, 1e-4, 0.75

    Returns
    -------
    (n, c, ...) dtype of ``inp``

    Raises
    ------
    ShapeError
        ``inp`` has less than two axes, or no channels.
    ArgumentError
        ``kernel_size`` is not odd.

    Notes
    -----
    PyTorch divides ``alpha`` by ``kernel_size``; MegEngine and this function do not.

    Sources
    -------
    Krizhevsky, Sutskever and Hinton, ImageNet classification with deep CNNs, NeurIPS 2012, section 3.3.

    Examples
    --------
    >>> local_response_norm(tensor([[1.0, 2.0, 3.0]]), kernel_size=3, k=1.0, alpha=1.0, beta=1.0)
    Tensor([[0.166..., 0.133..., 0.214...]], dtype=float32, device=ref:0)
    """
    if inp.ndim < 2:
        raise ShapeError(
            f"local_response_norm: inp has shape {inp.shape}; it must be (n, channels, ...)"
        )
    if not isinstance(kernel_size, int) or kernel_size < 1 or kernel_size % 2 == 0:
        raise ArgumentError(
            f"local_response_norm: kernel_size is {kernel_size!r}; it must be an odd number of channels"
        )
    half = kernel_size // 2
    rows = reshape(inp * inp, shape=(inp.shape[0], 1, inp.shape[1], product(inp.shape[2:])))
    means = avg_pool(
        rows, kernel=(kernel_size, 1), stride=(1, 1), padding=(half, 0, half, 0), count_padding=True
    )
    sums = reshape(means, shape=inp.shape) * float(kernel_size)
    return inp * (sums * float(alpha) + float(k)) ** -float(beta)
