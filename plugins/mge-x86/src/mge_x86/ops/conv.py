"""Convolutions of the compiled graph: NHWC activations, packed weights, and what is done before the store.

In: tensors (n, h, w, c). Out: ``x86::pack_weight``, ``x86::conv``, ``x86::conv_backward_data``,
``x86::conv_backward_weight``.
After ``activation``, ``packing``, ``linear``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mge import Tensor
from mge.errors import ArgumentError, DTypeError, ShapeError
from mge.ops.conv_reference import convolve, convolve_backward_data, convolve_backward_weight
from mge.ops.windows import check_at_least, window_counts
from mge.plugin import Signature, abstract, op

from .activation import activate, check_activation
from .linear import over_residual
from .packing import ALGORITHMS, TRANSFORMS, pack, packed_size, rotate, rotated_shape, unpack

Shape = tuple[int, ...]


def _check_float32(where: str, **given: Any) -> None:
    for name, type_ in given.items():
        if type_.dtype.name != "float32":
            raise DTypeError(f"{where}: {name} is {type_.dtype}; this kernel takes float32")


def _check_algorithm(where: str, algorithm: str, weight: Shape, groups: int) -> None:
    """Raise for an algorithm that does not take a weight of this shape."""
    check_at_least(0, where, 4, weight_shape=weight)
    if algorithm not in ALGORITHMS:
        raise ArgumentError(
            f"{where}: algorithm is {algorithm!r}; it must be one of {', '.join(ALGORITHMS)}"
        )
    if groups < 1 or weight[0] % groups:
        raise ArgumentError(
            f"{where}: groups is {groups}; it must divide the {weight[0]} outputs of weight {weight}"
        )
    if algorithm == "depthwise" and (weight[1] != 1 or weight[0] != groups):
        raise ArgumentError(
            f"{where}: weight {weight} in {groups} groups is not depthwise, which has one input and output a group"
        )
    if algorithm.startswith("winograd") and (weight[2:] != (3, 3) or groups != 1):
        raise ArgumentError(
            f"{where}: weight {weight} in {groups} groups is not for {algorithm}, which takes 3x3 kernels in one group"
        )


def _result_shape(
    where: str,
    inp: Shape,
    weight: Shape,
    stride: Shape,
    padding: Shape,
    dilation: Shape,
    groups: int,
) -> Shape:
    """Return the shape of the convolution of an image (n, h, w, c), after all checks."""
    check_at_least(0, where, 4, input_shape=inp, weight_shape=weight)
    check_at_least(1, where, 2, stride=stride, dilation=dilation)
    check_at_least(0, where, 2, padding=padding)
    if groups < 1 or weight[0] % groups or inp[3] != weight[1] * groups:
        raise ShapeError(
            f"{where}: x has {inp[3]} channels, weight_shape is {weight} and groups is {groups}; "
            "groups * weight_shape[1] must be the channels, and divide the outputs"
        )
    counts = window_counts(inp[1:3], weight[2:], stride, padding, padding, dilation, where)
    return (inp[0], *counts, weight[0])


def _check_extras(where: str, extras: Any, y: Shape, bias: bool, residual: bool) -> None:
    wanted = [y[-1:]] * bias + [y] * residual
    if [e.shape for e in extras] != wanted:
        raise ShapeError(
            f"{where}: after x and packed come {[e.shape for e in extras]}; "
            f"bias={bias} and residual={residual} need {wanted}"
        )


def _nchw(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2))


def _nhwc(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1))


@op(name="x86::pack_weight")
def pack_weight(weight: Tensor, *, algorithm: str, groups: int = 1, rotate: bool = False) -> Tensor:
    """Lay out a convolution's weight as its kernel reads it.

    Parameters
    ----------
    weight : (o, c / groups, kh, kw) float32
    algorithm : {"direct", "depthwise", "winograd2", "winograd4"}
        direct: ``[groups][o / groups / 16][kh][kw][c / groups][16]``, the last block filled up with zeros;
        depthwise: ``[kh][kw][c]``; winograd: ``[o / 16][4 * 4 or 6 * 6][c][16]``, transformed.
    groups : int, default 1
    rotate : bool, default False
        For ``conv_backward_data``: inputs and outputs change places in each group, taps are reversed.

    Returns
    -------
    (size,) float32

    Raises
    ------
    ShapeError
        ``weight`` has not four axes.
    ArgumentError
        The algorithm is unknown, or not for this weight.
    DTypeError
        ``weight`` is not float32.

    Examples
    --------
    >>> pack_weight(tensor([[[[1.0]], [[2.0]]]]), algorithm="direct").shape
    (32,)
    """
    where = "x86::pack_weight"
    _check_float32(where, weight=weight)
    if weight.ndim != 4:
        raise ShapeError(f"{where}: weight has shape {weight.shape}; it must be (o, c, kh, kw)")
    _check_algorithm(where, algorithm, weight.shape, groups)
    shape = rotated_shape(weight.shape, groups) if rotate else weight.shape
    return abstract((packed_size(shape, groups, algorithm),), weight.dtype)


@pack_weight.reference
def _(weight, *, algorithm, groups, rotate):
    return pack(_rotate(weight, groups) if rotate else weight, groups, algorithm)


_rotate = rotate  # the op's attribute has the same name


@pack_weight.samples
def _(rng):
    def draw(*shape):
        return rng.normal(size=shape).astype(np.float32)

    for turn in (False, True):
        yield draw(17, 3, 3, 2), {"algorithm": "direct", "rotate": turn}
        yield draw(6, 5, 1, 1), {"algorithm": "direct", "groups": 2, "rotate": turn}
        yield draw(19, 1, 3, 3), {"algorithm": "depthwise", "groups": 19, "rotate": turn}
        yield draw(18, 5, 3, 3), {"algorithm": "winograd2", "rotate": turn}
        yield draw(18, 5, 3, 3), {"algorithm": "winograd4", "rotate": turn}


@op(name="x86::conv")
def conv(
    x: Tensor,
    packed: Tensor,
    *extras: Tensor,
    weight_shape: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int = 1,
    algorithm: str = "direct",
    bias: bool = False,
    residual: bool = False,
    activation: str = "",
) -> Tensor:
    """Convolve images (n, h, w, c) with a packed weight; add, and activate, before the store.

    ``y = activation(conv(x, weight) + bias + residual)``

    Parameters
    ----------
    x : (n, h, w, c) float32
    packed : (size,) float32
        ``pack_weight(weight, algorithm=algorithm, groups=groups)``. Winograd also takes the weight itself,
        ``weight_shape``, and packs it on the way, a few outputs at a time.
    extras : tensors
        ``bias`` (o,) where ``bias`` is set, then ``residual`` (n, oh, ow, o) where that is set.
    weight_shape : tuple of int
        ``(o, c / groups, kh, kw)``
    stride, padding, dilation : (int, int), elements
    groups : int, default 1
    algorithm : {"direct", "depthwise", "winograd2", "winograd4"}
        Winograd takes 3x3 kernels of stride and dilation 1 in one group.
    bias, residual : bool, default False
    activation : {"", "relu", "relu6", "sigmoid", "tanh", "silu", "hswish", "hsigmoid", "gelu"}

    Returns
    -------
    (n, oh, ow, o) float32
        May be written over ``residual``.

    Raises
    ------
    ShapeError
        Channels, the packed size or the extras do not fit, or a window is longer than the padded image.
    ArgumentError
        An attribute is out of its range, or the algorithm is not for these.
    DTypeError
        An input is not float32.

    Notes
    -----
    Winograd rounds otherwise than the sum of products: root mean square errors are 0.6 (``winograd2``) and
    1.8 times (``winograd4``) as large.

    Examples
    --------
    >>> packed = pack_weight(tensor([[[[2.0]]]]), algorithm="direct")
    >>> plain = dict(weight_shape=(1, 1, 1, 1), stride=(1, 1), padding=(0, 0), dilation=(1, 1))
    >>> conv(tensor([[[[1.0], [-1.0]]]]), packed, activation="relu", **plain).numpy().ravel()
    array([2., 0.], dtype=float32)
    """
    where = "x86::conv"
    _check_float32(where, x=x, packed=packed, **{f"extras[{i}]": e for i, e in enumerate(extras)})
    check_activation(where, activation)
    if x.ndim != 4:
        raise ShapeError(f"{where}: x has shape {x.shape}; it must be (n, h, w, c)")
    _check_algorithm(where, algorithm, weight_shape, groups)
    shape = _result_shape(where, x.shape, weight_shape, stride, padding, dilation, groups)
    _check_winograd(where, algorithm, stride, dilation)
    _check_packed(where, packed, weight_shape, weight_shape, groups, algorithm)
    _check_extras(where, extras, shape, bias, residual)
    return abstract(shape, x.dtype)


conv.pairs = over_residual


def _check_packed(
    where: str, packed: Any, weight: Shape, layout: Shape, groups: int, algorithm: str
) -> None:
    """Check a weight that was packed as one of shape ``layout``, or that comes as it is."""
    size = packed_size(layout, groups, algorithm)
    takes_plain = algorithm in TRANSFORMS
    if packed.shape != (size,) and not (takes_plain and packed.shape == weight):
        also = f", or as they are {weight}" * takes_plain
        raise ShapeError(
            f"{where}: packed has shape {packed.shape}; {algorithm} weights of this shape have ({size},){also}"
        )


def _check_winograd(where: str, algorithm: str, stride: Shape, dilation: Shape) -> None:
    if algorithm.startswith("winograd") and stride + dilation != (1, 1, 1, 1):
        raise ArgumentError(
            f"{where}: stride is {stride} and dilation {dilation}; {algorithm} takes 1 and 1"
        )


@conv.reference
def _(x, packed, *extras, weight_shape, algorithm, bias, residual, activation, groups, **window):
    weight = packed if packed.ndim == 4 else unpack(packed, weight_shape, groups, algorithm)
    shape = _result_shape("x86::conv", x.shape, weight_shape, groups=groups, **window)
    y = np.empty((shape[0], shape[3], *shape[1:3]), np.float32)
    convolve(_nchw(x), weight, groups=groups, out=y, **window)
    y = _nhwc(y)
    for extra in extras:
        y = y + extra
    with np.errstate(all="ignore"):
        return activate(y, activation)


def _weight_terms(sig: Signature) -> int:
    """Return the products of each output, or of each ``dy``: those of the sum, whatever the algorithm."""
    return math.prod(dict(sig.attrs)["weight_shape"][1:])


conv.multiply_adds = lambda sig: sig.type.size * _weight_terms(sig)


_PLAIN = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
_PADDED = {**_PLAIN, "padding": (1, 1)}
_CASES: tuple[tuple[Shape, Shape, dict[str, Any]], ...] = (  # image, weight, attributes
    ((2, 5, 4, 7), (19, 7, 1, 1), {**_PLAIN, "algorithm": "direct"}),
    ((1, 6, 17, 3), (33, 3, 3, 3), {**_PADDED, "algorithm": "direct"}),
    (
        (1, 9, 8, 4),
        (6, 2, 3, 2),
        {
            "stride": (2, 3),
            "padding": (1, 0),
            "dilation": (2, 1),
            "groups": 2,
            "algorithm": "direct",
        },
    ),
    ((1, 9, 9, 3), (8, 3, 7, 7), {**_PLAIN, "stride": (2, 2), "padding": (3, 3), "algorithm": "direct"}),
    ((0, 4, 4, 3), (5, 3, 3, 3), {**_PADDED, "algorithm": "direct"}),
    ((1, 7, 6, 5), (18, 5, 3, 3), {**_PADDED, "algorithm": "winograd2"}),
    ((2, 7, 6, 5), (18, 5, 3, 3), {**_PADDED, "algorithm": "winograd4"}),
    ((1, 7, 8, 21), (21, 1, 3, 3), {**_PADDED, "groups": 21, "algorithm": "depthwise"}),
    (
        (1, 7, 8, 5),
        (5, 1, 5, 5),
        {**_PADDED, "stride": (2, 2), "padding": (2, 2), "groups": 5, "algorithm": "depthwise"},
    ),
)  # fmt: skip
_EPILOGUES = (
    {},
    {"bias": True, "activation": "relu"},
    {"residual": True, "activation": "relu6"},
    {"bias": True, "residual": True, "activation": "silu"},
    {"bias": True, "activation": "gelu"},
)


def _drawn(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


@conv.samples
def _(rng):
    for image, weight, attrs in _CASES:
        groups, algorithm = attrs["groups"], attrs["algorithm"]
        window = {n: attrs[n] for n in ("stride", "padding", "dilation", "groups")}
        shape = _result_shape("x86::conv", image, weight, **window)
        for epilogue in _EPILOGUES:
            extras = [_drawn(rng, shape[3])] * epilogue.get("bias", False)
            extras += [_drawn(rng, *shape)] * epilogue.get("residual", False)
            packed = pack(_drawn(rng, *weight), groups, algorithm)
            given = (_drawn(rng, *image), packed, *extras)
            yield given, {"weight_shape": weight, **attrs, **epilogue}


conv.tolerance = {"float32": 5e-5}  # Winograd's F(4, 3), and sums in another order


@op(name="x86::conv_backward_data")
def conv_backward_data(
    packed: Tensor,
    dy: Tensor,
    *,
    input_shape: tuple[int, ...],
    weight_shape: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int = 1,
    algorithm: str = "direct",
) -> Tensor:
    """Give each input of ``x86::conv`` its share of ``dy``.

    ``dx[n, q, c] = sum_{o, p, k : p * stride + k * dilation - padding = q} dy[n, p, o] * weight[o, c, k]``

    Parameters
    ----------
    packed : (size,) float32
        ``pack_weight(weight, algorithm=algorithm, groups=groups, rotate=True)``. Winograd also takes the weight
        itself, not rotated.
    dy : (n, oh, ow, o) float32
    input_shape : tuple of int
        ``(n, h, w, c)``, the shape of the result.
    weight_shape : tuple of int
        ``(o, c / groups, kh, kw)``, of the weight before it was rotated.
    stride, padding, dilation : (int, int), elements
    groups : int, default 1
    algorithm : {"direct", "depthwise", "winograd2", "winograd4"}

    Returns
    -------
    (n, h, w, c) float32

    Raises
    ------
    ShapeError
        The convolution is impossible, or its result or packed weight has another shape than what is given.
    ArgumentError
        An attribute that ``x86::conv`` refuses.
    DTypeError
        An input is not float32.

    Examples
    --------
    >>> packed = pack_weight(tensor([[[[2.0]]]]), algorithm="direct", rotate=True)
    >>> plain = dict(weight_shape=(1, 1, 1, 1), stride=(1, 1), padding=(0, 0), dilation=(1, 1))
    >>> conv_backward_data(packed, tensor([[[[1.0]]]]), input_shape=(1, 1, 1, 1), **plain).item()
    2.0
    """
    where = "x86::conv_backward_data"
    _check_float32(where, packed=packed, dy=dy)
    _check_algorithm(where, algorithm, weight_shape, groups)
    _check_winograd(where, algorithm, stride, dilation)
    shape = _result_shape(where, input_shape, weight_shape, stride, padding, dilation, groups)
    _check_dy(where, dy, shape)
    turned = rotated_shape(weight_shape, groups)
    _check_packed(where, packed, weight_shape, turned, groups, algorithm)
    return abstract(input_shape, dy.dtype)


def _check_dy(where: str, dy: Any, shape: Shape) -> None:
    if dy.shape != shape:
        raise ShapeError(f"{where}: dy has shape {dy.shape}; these attributes give {shape}")


@conv_backward_data.reference
def _(packed, dy, *, input_shape, weight_shape, groups, algorithm, **window):
    weight = packed
    if packed.ndim == 1:
        turned = unpack(packed, rotated_shape(weight_shape, groups), groups, algorithm)
        weight = np.ascontiguousarray(rotate(turned, groups))  # twice is the weight again
    dx = np.empty((input_shape[0], input_shape[3], *input_shape[1:3]), np.float32)
    convolve_backward_data(weight, _nchw(dy), input_shape=dx.shape, groups=groups, out=dx, **window)
    return _nhwc(dx)


conv_backward_data.multiply_adds = lambda sig: sig.input_types[1].size * _weight_terms(sig)


@conv_backward_data.samples
def _(rng):
    for image, weight, attrs in _CASES:
        groups, algorithm = attrs["groups"], attrs["algorithm"]
        window = {n: attrs[n] for n in ("stride", "padding", "dilation", "groups")}
        dy = _drawn(rng, *_result_shape("x86::conv", image, weight, **window))
        packed = pack(rotate(_drawn(rng, *weight), groups), groups, algorithm)
        yield (packed, dy), {"input_shape": image, "weight_shape": weight, **attrs}


conv_backward_data.tolerance = conv.tolerance


@op(name="x86::conv_backward_weight")
def conv_backward_weight(
    x: Tensor,
    dy: Tensor,
    *,
    weight_shape: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int = 1,
) -> Tensor:
    """Give each weight of ``x86::conv`` the products of ``dy`` and what it met, summed.

    ``dw[o, c, k] = sum_{n, p} dy[n, p, o] * x[n, p * stride + k * dilation - padding, c]``

    Parameters
    ----------
    x : (n, h, w, c) float32
    dy : (n, oh, ow, o) float32
    weight_shape : tuple of int
        ``(o, c / groups, kh, kw)``, the shape of the result.
    stride, padding, dilation : (int, int), elements
    groups : int, default 1

    Returns
    -------
    (o, c / groups, kh, kw) float32
        Not packed.

    Raises
    ------
    ShapeError
        The convolution is impossible, or its result has another shape than ``dy``.
    ArgumentError
        An attribute that ``x86::conv`` refuses.
    DTypeError
        An input is not float32.

    Examples
    --------
    >>> x, dy = tensor([[[[3.0]]]]), tensor([[[[2.0]]]])
    >>> plain = dict(weight_shape=(1, 1, 1, 1), stride=(1, 1), padding=(0, 0), dilation=(1, 1))
    >>> conv_backward_weight(x, dy, **plain).item()
    6.0
    """
    where = "x86::conv_backward_weight"
    _check_float32(where, x=x, dy=dy)
    if x.ndim != 4:
        raise ShapeError(f"{where}: x has shape {x.shape}; it must be (n, h, w, c)")
    _check_dy(
        where, dy, _result_shape(where, x.shape, weight_shape, stride, padding, dilation, groups)
    )
    return abstract(weight_shape, x.dtype)


@conv_backward_weight.reference
def _(x, dy, *, weight_shape, **attrs):
    out = np.empty(weight_shape, np.float32)
    convolve_backward_weight(_nchw(x), _nchw(dy), weight_shape=weight_shape, out=out, **attrs)
    return out


conv_backward_weight.multiply_adds = lambda sig: sig.input_types[1].size * _weight_terms(sig)


@conv_backward_weight.samples
def _(rng):
    for image, weight, attrs in _CASES:
        window = {n: attrs[n] for n in ("stride", "padding", "dilation", "groups")}
        dy = _drawn(rng, *_result_shape("x86::conv", image, weight, **window))
        yield (_drawn(rng, *image), dy), {"weight_shape": weight, **window}


conv_backward_weight.tolerance = {"float32": 2e-5}  # long sums in another order
