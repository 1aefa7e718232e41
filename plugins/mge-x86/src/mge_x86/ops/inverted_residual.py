"""The block of mobile networks as one op: expand by 1x1, filter each channel, project by 1x1.

In: images (n, h, w, c) and packed weights. Out: ``x86::inverted_residual``.
After ``conv``; before nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mge import Tensor
from mge.errors import ArgumentError, DTypeError, ShapeError
from mge.ops.windows import window_counts
from mge.plugin import Signature, abstract, op

from .activation import check_activation
from .conv import conv
from .packing import pack, packed_size

Shape = tuple[int, ...]

KERNELS, STRIDES = (3, 5), (1, 2)


@op(name="x86::inverted_residual")
def inverted_residual(
    x: Tensor,
    filter: Tensor,
    project: Tensor,
    *extras: Tensor,
    filter_shape: tuple[int, ...],
    outputs: int,
    stride: int = 1,
    expands: bool = True,
    expand_bias: bool = False,
    expand_activation: str = "",
    filter_bias: bool = False,
    filter_activation: str = "",
    bias: bool = False,
    residual: bool = False,
    activation: str = "",
) -> Tensor:
    """Expand images (n, h, w, c) to e channels, filter each of these, and project them to o channels.

    ``y = act(project(act(filter(act(expand(x) + expand_bias)) + filter_bias)) + bias + residual)``

    Parameters
    ----------
    x : (n, h, w, c) float32
    filter, project : (size,) float32
        ``pack_weight`` of weights (e, 1, k, k), ``algorithm="depthwise"``, and (o, e, 1, 1), ``"direct"``.
    extras : tensors
        Those that are set of: ``expand`` (packed "direct" from (e, c, 1, 1)), ``expand_bias`` (e,), ``filter_bias``
        (e,), ``bias`` (o,), ``residual`` (n, oh, ow, o).
    filter_shape : tuple of int
        ``(e, 1, k, k)``, k 3 or 5; the images are padded by ``k // 2``.
    outputs : int
        o.
    stride : int, elements, default 1
        Of the filter: 1 or 2.
    expands : bool, default True
        Else the filter takes x itself, and e is c.
    expand_bias, filter_bias, bias, residual : bool, default False
    expand_activation, filter_activation, activation : str, default ""
        As those of ``x86::conv``.

    Returns
    -------
    (n, oh, ow, o) float32

    Raises
    ------
    ShapeError
        A packed size, the extras or the channels do not fit.
    ArgumentError
        An attribute is out of its range.
    DTypeError
        An input is not float32.

    Notes
    -----
    The images of e channels are never whole in memory. Sandler et al., MobileNetV2, CVPR 2018, arXiv:1801.04381.

    Examples
    --------
    >>> one = tensor([1.0] + 15 * [0.0])
    >>> middle = tensor(4 * [0.0] + [2.0] + 4 * [0.0])
    >>> kinds = dict(filter_shape=(1, 1, 3, 3), outputs=1)
    >>> inverted_residual(tensor([[[[1.0], [3.0]]]]), middle, one, one, **kinds).numpy().ravel()
    array([2., 6.], dtype=float32)
    """
    where = "x86::inverted_residual"
    for name, type_ in (
        ("x", x),
        ("filter", filter),
        ("project", project),
        *(("extras", e) for e in extras),
    ):
        if type_.dtype.name != "float32":
            raise DTypeError(f"{where}: {name} is {type_.dtype}; this kernel takes float32")
    for each in (expand_activation, filter_activation, activation):
        check_activation(where, each)
    if x.ndim != 4:
        raise ShapeError(f"{where}: x has shape {x.shape}; it must be (n, h, w, c)")
    e, k = (filter_shape[0], filter_shape[-1]) if filter_shape else (0, 0)
    if k not in KERNELS or filter_shape != (e, 1, k, k) or e < 1 or stride not in STRIDES:
        raise ArgumentError(
            f"{where}: filter_shape is {filter_shape} and stride {stride}; they must be (e, 1, k, k), k one of "
            f"{KERNELS}, and one of {STRIDES}"
        )
    shape = _result_shape(x.shape, filter_shape, stride, outputs)
    given = [t.shape for t in (filter, project, *extras)]
    wanted = _operand_shapes(x.shape, filter_shape, outputs, expands)
    present = (expands, expand_bias, filter_bias, bias, residual)
    expected = [*wanted[:2], *(s for s, is_there in zip([*wanted[2:], shape], present) if is_there)]
    if given != expected or not (expands or x.shape[3] == e):
        raise ShapeError(
            f"{where}: after x of shape {x.shape} come {given}; these attributes ask for {expected}"
        )
    return abstract(shape, x.dtype)


def _result_shape(x: Shape, filter_shape: Shape, stride: int, outputs: int) -> Shape:
    k = filter_shape[-1]
    pad = (k // 2, k // 2)
    counts = window_counts(
        x[1:3], (k, k), (stride,) * 2, pad, pad, (1, 1), "x86::inverted_residual"
    )
    return (x[0], *counts, outputs)


def _operand_shapes(x: Shape, filter_shape: Shape, outputs: int, expands: bool) -> list[Shape]:
    """Return the shapes of filter, project, expand and the three biases."""
    e, c = filter_shape[0], x[3]
    sizes = [
        packed_size(filter_shape, e, "depthwise"),
        packed_size((outputs, e, 1, 1), 1, "direct"),
        packed_size((e, c, 1, 1), 1, "direct") if expands else 0,
    ]
    return [*((n,) for n in sizes), (e,), (e,), (outputs,)]


@inverted_residual.reference
def _(x, filter, project, *extras, filter_shape, outputs, stride, expands, **attrs):
    e, k = filter_shape[0], filter_shape[-1]
    left = list(extras)
    expand = [left.pop(0) for _ in range(expands)]
    expand_bias, filter_bias, bias = (
        [left.pop(0) for _ in range(attrs[name])] for name in ("expand_bias", "filter_bias", "bias")
    )
    plain: dict[str, Any] = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}
    plain |= {"groups": 1, "algorithm": "direct", "residual": False}
    if expands:
        x = conv._reference(
            x, *expand, *expand_bias, weight_shape=(e, x.shape[3], 1, 1), bias=attrs["expand_bias"],
            activation=attrs["expand_activation"], **plain,
        )  # fmt: skip
    window = {
        "stride": (stride,) * 2,
        "padding": (k // 2,) * 2,
        "groups": e,
        "algorithm": "depthwise",
    }
    x = conv._reference(
        x, filter, *filter_bias, weight_shape=filter_shape, bias=attrs["filter_bias"],
        activation=attrs["filter_activation"], **{**plain, **window},
    )  # fmt: skip
    end = {name: attrs[name] for name in ("bias", "residual", "activation")}
    return conv._reference(
        x, project, *bias, *left, weight_shape=(outputs, e, 1, 1), **{**plain, **end}
    )


def _multiply_adds(sig: Signature) -> int:
    attrs, x, y = dict(sig.attrs), sig.input_types[0], sig.type
    e, k = attrs["filter_shape"][0], attrs["filter_shape"][-1]
    pixels = y.size // max(1, attrs["outputs"])
    return attrs["expands"] * x.size * e + pixels * e * (k * k + attrs["outputs"])


inverted_residual.multiply_adds = _multiply_adds

_CASES: tuple[tuple[Shape, int, int, dict[str, Any]], ...] = (  # x, e, k, attributes
    ((2, 5, 7, 4), 24, 3, {"outputs": 6, "residual": True}),
    ((1, 15, 16, 8), 48, 3, {"outputs": 24, "stride": 2, "expand_bias": True, "filter_bias": True}),
    ((1, 9, 8, 19), 19, 3, {"outputs": 17, "expands": False, "filter_bias": True, "bias": True}),
    ((1, 8, 9, 5), 37, 5, {"outputs": 5, "bias": True, "residual": True, "activation": "relu"}),
    ((1, 7, 7, 6), 160, 5, {"outputs": 40, "stride": 2, "expand_activation": "silu", "bias": True}),
    ((0, 4, 4, 3), 8, 3, {"outputs": 3}),
)


@inverted_residual.samples
def _(rng):
    def draw(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32) / 2

    for x, e, k, given in _CASES:
        attrs = {"expand_activation": "relu6", "filter_activation": "relu6", **given}
        o, expands = attrs["outputs"], attrs.get("expands", True)
        extras = [pack(draw(e, x[3], 1, 1), 1, "direct")] * expands
        extras += [
            draw(n)
            for name, n in (("expand_bias", e), ("filter_bias", e), ("bias", o))
            if attrs.get(name)
        ]
        if attrs.get("residual"):
            extras.append(draw(*_result_shape(x, (e, 1, k, k), attrs.get("stride", 1), o)))
        weights = (pack(draw(e, 1, k, k), e, "depthwise"), pack(draw(o, e, 1, 1), 1, "direct"))
        yield (draw(*x), *weights, *extras), {"filter_shape": (e, 1, k, k), **attrs}


inverted_residual.tolerance = {"float32": 5e-5}  # three sums, in another order
