"""Activations that kernels apply to a value before they store it.

In: the name of an activation. Out: its check, and its NumPy reference.
Before ``conv``, ``linear``.
"""

from __future__ import annotations

import numpy as np

from mge.errors import ArgumentError
from mge.op import OPS

ATTRS = {"": None, "relu": {}, "relu6": {}, "sigmoid": {}, "tanh": {}, "silu": {}, "hswish": {},
         "hsigmoid": {}, "gelu": {"approximate": "none"}}  # fmt: skip


def check_activation(where: str, activation: str) -> None:
    """Raise an ArgumentError for an activation that kernels do not have."""
    if activation not in ATTRS:
        raise ArgumentError(
            f"{where}: activation is {activation!r}; it must be one of {', '.join(map(repr, ATTRS))}"
        )


def activate(y: np.ndarray, activation: str) -> np.ndarray:
    """Return the values of an activation, by the reference of the op of that name."""
    attrs = ATTRS[activation]
    if attrs is None:
        return y
    op = OPS[activation]
    if op.writes_out:
        out = np.empty_like(y)
        op._reference(y, **attrs, out=out)
        return out
    return op._reference(y, **attrs)
