"""Values that are to become those of tensors: whether they fit, and as nodes.

In: a tensor, and an array or tensor. Out: the reason why it does not fit; a node of the right dtype and device.
After ``tensor``; before ``module``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..tensor import Tensor, upload


def misfit(name: str, tensor: Tensor, value: Any) -> str | None:
    """Return why a value cannot be set, or None."""
    if not isinstance(value, Tensor):
        value = np.asarray(value)
    if tuple(value.shape) != tensor.shape:
        return f"{name}: shape {tuple(value.shape)} was given; it has {tensor.shape}"
    source, target = np.dtype(getattr(value.dtype, "dtype", value.dtype)), tensor.dtype.dtype
    if not np.can_cast(source, target, "same_kind") and not (
        tensor.dtype.is_float and source.kind in "fViub"
    ):
        return f"{name}: dtype {source} was given; it has {tensor.dtype}"
    return None


def node_for(tensor: Tensor, value: Any) -> Any:
    """Return a node with the value, of the tensor's dtype and device."""
    if not isinstance(value, Tensor):
        return upload(np.asarray(value).astype(tensor.dtype.dtype), tensor.device)
    if value.dtype != tensor.dtype:
        value = value.astype(tensor.dtype)
    return (value if value.device is tensor.device else value.to(tensor.device))._node
