"""DLPack under the names that MegEngine gives it.

In: tensors, capsules, arrays of other libraries. Out: ``to_dlpack``, ``from_dlpack``.
After ``interop``; nothing follows.
"""

from __future__ import annotations

from typing import Any

from .. import interop
from ..tensor import Tensor

__all__ = ["from_dlpack", "to_dlpack"]


def to_dlpack(tensor: Tensor, stream: Any = None) -> Any:
    """Return a DLPack capsule of a tensor's value; see ``mge.Tensor.__dlpack__``.

    Parameters
    ----------
    tensor : Tensor
    stream : optional
        Of the consumer, for a device that has streams.

    Returns
    -------
    capsule
        To be consumed once, and not to be written to.
    """
    return tensor.__dlpack__(stream=stream)  # type: ignore[attr-defined]


def from_dlpack(x: Any, stream: Any = None) -> Tensor:
    """Return a tensor over the memory of another library; see ``mge.from_dlpack``.

    Parameters
    ----------
    x : object with ``__dlpack__``, or a DLPack capsule
    stream : optional
        Accepted for MegEngine's callers; host memory has no streams.

    Returns
    -------
    Tensor
    """
    return interop.from_dlpack(x)
