"""Generators: handles on states. A handle is an ordinary tensor, which each draw rebinds.

In: seeds, devices, how many words are drawn. Out: ``make_state``, ``draw``, and the default generator of each device.
After ``random``; before ``dropout``.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import numpy as np

from .. import op as op_module
from ..dtype import uint64
from ..errors import ArgumentError
from ..mode import changed
from .random import advance

if TYPE_CHECKING:
    from ..device import Device
    from ..tensor import Tensor

_lock = threading.RLock()
_default_states: dict[Device, Tensor] = {}
_seed: list[int] = []  # what set_seed() was given last


def make_state(seed: int | None, device: Device) -> Tensor:
    """Return a new state with counter 0; without a seed, one from the system's entropy."""
    if seed is None:
        seed = int.from_bytes(os.urandom(8), "little")
    made = np.array([seed % 2**64, 0], np.uint64)
    return op_module.tensor_class(made, dtype=uint64, device=device)


def draw(handle: Tensor, count: int) -> Tensor:
    """Take ``count`` words from a generator: return its state, and advance its handle.

    Parameters
    ----------
    handle : (2,) uint64
        Rebound to the advanced state.
    count : int

    Returns
    -------
    (2,) uint64
        The state before, for one call of a random op.
    """
    with _lock:  # two threads never get the same words
        after = advance(handle, count=count)
        before = op_module.tensor_class.from_node(handle._node)
        handle._assign(after)
    return before


def default_state(device: Device | None = None) -> Tensor:
    """Return the handle of a device's default generator, which is made on first use."""
    device = device or op_module.default_device()
    with _lock:
        found = _default_states.get(device)
        if found is None:
            with changed(recording=None):  # a trace that draws first does not own the generator
                state = make_state(_seed[0] if _seed else None, device)
            found = _default_states[device] = state
        return found


def set_seed(seed: int) -> None:
    """Restart the default generator of every device, now and later, from one seed."""
    if not isinstance(seed, (int, np.integer)):
        raise ArgumentError(f"seed: {seed!r} is a {type(seed).__name__}; a seed is an integer")
    with _lock:
        _seed[:] = [int(seed)]
        for device, handle in _default_states.items():
            handle._assign(make_state(int(seed), device))
