"""Copies: the same values again, here or on another device.

In: tensors. Out: the base op ``copy``.
After ``op``; before ``tensor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..op import op
from ..types import abstract

if TYPE_CHECKING:
    from ..tensor import Tensor


@op(base=True)
def copy(inp: Tensor, *, device: str | None = None) -> Tensor:
    """Return the same values, on another device where one is named.

    ``y = inp``

    Parameters
    ----------
    inp : any shape, any dtype
    device : str, optional
        As ``"ref:0"``. By default the device of ``inp``.

    Returns
    -------
    shape and dtype of ``inp``

    Raises
    ------
    DeviceError
        There is no such device.

    Examples
    --------
    >>> copy(tensor([1.0, 2.0]))
    Tensor([1., 2.], dtype=float32, device=ref:0)
    """
    return abstract(inp.shape, inp.dtype)


copy.inplace = (0,)


@copy.reference
def _(inp, *, device):
    return inp


@copy.gradient
def _(dy, y, inp, *, device):
    return (dy if device is None else copy(dy, device=str(inp.device)),)


@copy.samples
def _(rng):
    yield (rng.normal(size=(2, 3)),), {}
    yield (rng.normal(size=()),), {}
    yield (np.zeros((0, 2)),), {}
