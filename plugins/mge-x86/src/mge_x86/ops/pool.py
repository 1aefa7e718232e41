"""Pools of images with the channels last: the ops ``max_pool``, ``avg_pool`` and their gradients on (n, *size, c).

In: tensors (n, *size, c). Out: ``x86::max_pool``, ``x86::max_pool_backward``, ``x86::avg_pool``,
``x86::avg_pool_backward``. Rules, references and samples are those of the base ops, with the axes moved.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mge import Tensor
from mge.dtype import as_dtype
from mge.op import OPS
from mge.ops.shape import permute
from mge.plugin import abstract, op

Shape = tuple[int, ...]


def _first(shape: Shape) -> Shape:
    """Return the shape with the channels second."""
    return (shape[0], shape[-1], *shape[1:-1]) if len(shape) > 1 else shape


def _last(shape: Shape) -> Shape:
    return (shape[0], *shape[2:], shape[1])


def _moved(x: Tensor, order: Any) -> Tensor:
    """Return a tensor with its axes in the order that ``_first`` or ``_last`` gives a shape."""
    return permute(x, pattern=order(tuple(range(x.ndim))))


def _rule(name: str, inputs: tuple, **attrs: Any) -> Any:
    """Return the types that the base op gives, with the channels last."""
    if "input_shape" in attrs:
        attrs["input_shape"] = _first(attrs["input_shape"])
    found = OPS[name].rule(*(abstract(_first(i.shape), i.dtype) for i in inputs), **attrs)
    if isinstance(found, tuple):
        return tuple(abstract(_last(t.shape), t.dtype) for t in found)
    return abstract(_last(found.shape), found.dtype)


def _reference(name: str, inputs: tuple, **attrs: Any) -> Any:
    """Compute by the base op's reference on the channels' images."""
    if "input_shape" in attrs:
        attrs["input_shape"] = _first(attrs["input_shape"])
    base = OPS[name]
    given = [np.ascontiguousarray(np.moveaxis(i, -1, 1)) for i in inputs]
    if base.writes_out:
        types = [abstract(i.shape, as_dtype(i.dtype)) for i in given]
        made = base.rule(*types, **attrs)
        found: Any = np.empty(made.shape, made.dtype.dtype)
        base._reference(*given, **attrs, out=found)
    else:
        found = base._reference(*given, **attrs)
    if isinstance(found, tuple):
        return tuple(np.moveaxis(f, 1, -1) for f in found)
    return np.moveaxis(found, 1, -1)


def _samples(name: str) -> Any:
    def samples(rng):
        for inputs, attrs in OPS[name]._samples(rng):
            moved = tuple(np.moveaxis(np.asarray(i), 1, -1) for i in inputs)
            if "input_shape" in attrs:
                attrs = {**attrs, "input_shape": _last(attrs["input_shape"])}
            yield moved, attrs

    return samples


@op(name="x86::max_pool")
def max_pool(
    inp: Tensor, *, kernel: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Find the largest element of each window, and where in the window it is.

    ``y[n, p, c] = max_k inp[n, p * stride + k - before, c]``

    Parameters
    ----------
    inp : (n, *size, c) any dtype but bool
    kernel, stride, padding : tuple of int, elements
        As of ``max_pool``.

    Returns
    -------
    y : (n, *count, c) dtype of ``inp``
    index : (n, *count, c) uint8, or int32 for windows of more than 256 elements

    Raises
    ------
    ShapeError, ArgumentError, DTypeError
        As ``max_pool`` does.

    Examples
    --------
    >>> y, index = max_pool(tensor([[[1.0], [5.0], [2.0], [3.0]]]), kernel=(2,), stride=(2,), padding=(0, 0))
    >>> y.tolist()
    [[[5.0], [3.0]]]
    """
    return _rule("max_pool", (inp,), kernel=kernel, stride=stride, padding=padding)


@op(name="x86::max_pool_backward")
def max_pool_backward(
    index: Tensor,
    dy: Tensor,
    *,
    input_shape: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
) -> Tensor:
    """Add each ``dy`` to the element of the input that was the maximum of its window.

    ``dx[n, q, c] = sum_{p : p * stride + index[n, p, c] - before = q} dy[n, p, c]``

    Parameters
    ----------
    index : (n, *count, c) integer
    dy : (n, *count, c) float
    input_shape : tuple of int
        ``(n, *size, c)``, the shape of the result.
    kernel, stride, padding : tuple of int, elements
        As of ``max_pool``.

    Returns
    -------
    (n, *size, c) dtype of ``dy``

    Raises
    ------
    ShapeError, ArgumentError, DTypeError
        As ``max_pool_backward`` does.

    Examples
    --------
    >>> index, dy = tensor([[[1], [0]]], dtype="uint8"), tensor([[[5.0], [7.0]]])
    >>> attrs = {"kernel": (2,), "stride": (2,), "padding": (0, 0)}
    >>> max_pool_backward(index, dy, input_shape=(1, 4, 1), **attrs).tolist()
    [[[0.0], [5.0], [7.0], [0.0]]]
    """
    attrs = {"kernel": kernel, "stride": stride, "padding": padding}
    return _rule("max_pool_backward", (index, dy), input_shape=input_shape, **attrs)


@op(name="x86::avg_pool", promotes="float")
def avg_pool(
    inp: Tensor,
    *,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    count_padding: bool = False,
) -> Tensor:
    """Average the elements of each window.

    ``y[n, p, c] = sum_k inp[n, p * stride + k - before, c] / elements(p)``

    Parameters
    ----------
    inp : (n, *size, c) float
    kernel, stride, padding : tuple of int, elements
    count_padding : bool, default False
        As of ``avg_pool``.

    Returns
    -------
    (n, *count, c) dtype of ``inp``

    Raises
    ------
    ShapeError, ArgumentError
        As ``avg_pool`` does.

    Examples
    --------
    >>> avg_pool(tensor([[[1.0], [5.0]]]), kernel=(2,), stride=(2,), padding=(0, 0)).tolist()
    [[[3.0]]]
    """
    attrs = {"kernel": kernel, "stride": stride, "padding": padding}
    return _rule("avg_pool", (inp,), count_padding=count_padding, **attrs)


@op(name="x86::avg_pool_backward")
def avg_pool_backward(
    dy: Tensor,
    *,
    input_shape: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    count_padding: bool = False,
) -> Tensor:
    """Give each element of the input its share of the means that it was part of.

    ``dx[n, q, c] = sum_{p, k : p * stride + k - before = q} dy[n, p, c] / elements(p)``

    Parameters
    ----------
    dy : (n, *count, c) float
    input_shape : tuple of int
        ``(n, *size, c)``, the shape of the result.
    kernel, stride, padding : tuple of int, elements
    count_padding : bool, default False
        As of ``avg_pool``.

    Returns
    -------
    (n, *size, c) dtype of ``dy``

    Raises
    ------
    ShapeError, ArgumentError, DTypeError
        As ``avg_pool_backward`` does.

    Examples
    --------
    >>> attrs = {"kernel": (2,), "stride": (2,), "padding": (0, 0)}
    >>> avg_pool_backward(tensor([[[2.0]]]), input_shape=(1, 2, 1), **attrs).tolist()
    [[[1.0], [1.0]]]
    """
    attrs = {"kernel": kernel, "stride": stride, "padding": padding}
    return _rule(
        "avg_pool_backward", (dy,), input_shape=input_shape, count_padding=count_padding, **attrs
    )


def _as_base(record: Any) -> None:
    """Give a record the reference, the lowering and the samples of the base op of its name."""
    name = record.name.partition("::")[2]

    def reference(*inputs: np.ndarray, **attrs: Any) -> Any:
        return _reference(name, inputs, **attrs)

    def lowering(*inputs: Tensor, **attrs: Any) -> Any:
        if "input_shape" in attrs:
            attrs["input_shape"] = _first(attrs["input_shape"])
        found = OPS[name](*(_moved(i, _first) for i in inputs), **attrs)
        return (
            tuple(_moved(f, _last) for f in found)
            if isinstance(found, tuple)
            else _moved(found, _last)
        )

    record.reference(reference)
    record.lowering(lowering)
    record.samples(_samples(name))


for _record in (max_pool, max_pool_backward, avg_pool, avg_pool_backward):
    _as_base(_record)
