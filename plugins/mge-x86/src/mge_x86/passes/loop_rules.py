"""Which ops a loop can hold, and as what steps.

In: nodes. Out: ``RULES``: for each op its shape, the cuts that suit it, and its steps.
After ``mge_x86.loops``; before ``fuse``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mge.graph import Node
from mge.ops.softmax import default_axis

from ..loops import Loop

Emit = Callable[[Loop, list[str], dict[str, Any]], Any]
FLOATS = ("float32", "bool")
WIDEST = 1 << 16  # elements of a row that is reduced: its values stay in the second cache


class Rule:
    """How one op becomes steps of a loop.

    Parameters
    ----------
    emit : callable
        Takes the loop, the operands and the attributes; returns the value's name, or one for each output.
    axes : callable, optional
        For ops that reduce: the axes, from attributes and number of axes.
    takes : callable, optional
        Whether attributes are such that there are steps for them.
    """

    def __init__(
        self,
        emit: Emit,
        axes: Callable[[dict[str, Any], int], Any] | None = None,
        takes: Callable[[dict[str, Any]], bool] = lambda attrs: True,
    ) -> None:
        self._emit, self._axes, self._takes = emit, axes, takes

    def shape(self, node: Node) -> tuple[int, ...] | None:
        """Return the shape of the loop that a node needs, or None where a loop cannot hold it."""
        sig = node.sig
        types = (*sig.input_types, *sig.types)
        if any(t.dtype.name not in FLOATS for t in types) or not self._takes(dict(sig.attrs)):
            return None
        if self._axes is None:
            return sig.type.shape
        shape = sig.input_types[0].shape
        axes = self.axes(node)
        is_trailing = bool(axes) and axes == list(range(axes[0], len(shape)))
        return shape if is_trailing and math.prod(shape[axes[0] :]) <= WIDEST else None

    def axes(self, node: Node) -> list[int]:
        """Return the axes along which a node reduces, in order."""
        assert self._axes is not None
        ndim = node.sig.input_types[0].ndim
        found = self._axes(dict(node.sig.attrs), ndim)
        found = range(ndim) if found is None else [found] if isinstance(found, int) else found
        return sorted(a % ndim for a in found) if ndim else []

    def reduces(self, node: Node) -> bool:
        """Whether a node reduces."""
        return self._axes is not None

    def cuts(self, node: Node, shape: tuple[int, ...]) -> set[int]:
        """Return the cuts of a loop over ``shape`` that suit a node."""
        if self._axes is None:
            return set(range(len(shape) + 1))
        return {self.axes(node)[0]} if node.sig.input_types[0].shape == shape else set()

    def emit(self, loop: Loop, node: Node, operands: list[str]) -> Any:
        """Add the steps of a node; return the name of its value, or one for each output."""
        attrs = dict(node.sig.attrs)
        if self._axes is not None:
            attrs["count"] = float(loop.width)
        return self._emit(loop, operands, attrs)


def _step(name: str) -> Rule:
    return Rule(lambda loop, x, attrs: loop.add(name, *x))


def _swapped(name: str) -> Rule:
    return Rule(lambda loop, x, attrs: loop.add(name, x[1], x[0]))


def _cast(loop: Loop, x: list[str], attrs: dict[str, Any]) -> str:
    if attrs["dtype"].name == "bool":
        return loop.add("not", loop.add("equal", x[0], 0.0))
    return x[0]


def _clip(loop: Loop, x: list[str], attrs: dict[str, Any]) -> str:
    y = x[0]
    if attrs["lower"] is not None:
        y = loop.add("maximum", y, attrs["lower"])
    return y if attrs["upper"] is None else loop.add("minimum", y, attrs["upper"])


def _leaky_relu(loop: Loop, x: list[str], attrs: dict[str, Any]) -> str:
    slope = loop.add("mul", x[0], attrs["negative_slope"])
    return loop.add("where", loop.add("less", 0.0, x[0]), x[0], slope)


_POWERS = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}


def _mean(loop: Loop, x: list[str], attrs: dict[str, Any]) -> str:
    return loop.add("mul", loop.add("sum", x[0]), 1.0 / attrs["count"])


def _softmax(loop: Loop, x: list[str], attrs: dict[str, Any]) -> str:
    powers = loop.add("exp", loop.add("sub", x[0], loop.add("max", x[0])))
    return loop.add("mul", powers, loop.add("reciprocal", loop.add("sum", powers)))


def _logsoftmax(loop: Loop, x: list[str], attrs: dict[str, Any]) -> str:
    low = loop.add("sub", x[0], loop.add("max", x[0]))
    return loop.add("sub", low, loop.add("log", loop.add("sum", loop.add("exp", low))))


def _affine(loop: Loop, y: str, affine: list[str]) -> str:
    for op, operand in zip(("mul", "add"), affine):
        y = loop.add(op, y, operand)
    return y


def _layer_norm(loop: Loop, x: list[str], attrs: dict[str, Any]) -> tuple[str, str, str]:
    mean = _mean(loop, x, attrs)
    low = loop.add("sub", x[0], mean)
    var = _mean(loop, [loop.add("square", low)], attrs)
    scaled = loop.add("mul", low, loop.add("rsqrt", loop.add("add", var, attrs["eps"])))
    return _affine(loop, scaled, x[1:]), mean, var


def _rms_norm(loop: Loop, x: list[str], attrs: dict[str, Any]) -> str:
    squares = _mean(loop, [loop.add("square", x[0])], attrs)
    factor = loop.add("rsqrt", loop.add("add", squares, attrs["eps"]))
    return _affine(loop, loop.add("mul", x[0], factor), x[1:])


def _of_attrs(attrs: dict[str, Any], ndim: int) -> Any:
    return attrs["axis"]


def _of_classes(attrs: dict[str, Any], ndim: int) -> Any:
    return default_axis(ndim) if attrs["axis"] is None else attrs["axis"]


def _last(attrs: dict[str, Any], ndim: int) -> int:
    return ndim - 1


RULES: dict[str, Rule] = {
    **{
        name: _step(name)
        for name in (
            "neg abs sqrt exp log tanh erf sigmoid relu relu6 silu hswish hsigmoid square rsqrt expm1 log1p "
            "sin cos floor ceil round softplus add sub mul div maximum minimum less less_equal equal where"
        ).split()
    },
    "greater": _swapped("less"),
    "greater_equal": _swapped("less_equal"),
    "not_equal": Rule(lambda loop, x, attrs: loop.add("not", loop.add("equal", *x))),
    "logical_and": _step("and"),
    "logical_or": _step("or"),
    "logical_not": _step("not"),
    "cast": Rule(_cast),
    "clip": Rule(_clip),
    "leaky_relu": Rule(_leaky_relu),
    "gelu": Rule(
        lambda loop, x, attrs: loop.add(
            "gelu" if attrs["approximate"] == "none" else "gelu_tanh", *x
        )
    ),
    "pow_scalar": Rule(
        lambda loop, x, attrs: loop.add(_POWERS[attrs["exponent"]], *x),
        takes=lambda attrs: attrs["exponent"] in _POWERS,
    ),
    "sum": Rule(lambda loop, x, attrs: loop.add("sum", *x), _of_attrs),
    "max": Rule(lambda loop, x, attrs: loop.add("max", *x), _of_attrs),
    "min": Rule(lambda loop, x, attrs: loop.add("min", *x), _of_attrs),
    "mean": Rule(_mean, _of_attrs),
    "softmax": Rule(_softmax, _of_classes),
    "logsoftmax": Rule(_logsoftmax, _of_classes),
    "layer_norm": Rule(_layer_norm, _of_attrs),
    "rms_norm": Rule(_rms_norm, _last),
}
