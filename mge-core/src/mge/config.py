"""MegEngine's ``config``: switches of the process, as properties of this module.

In: assignments, as ``mge.config.deterministic_kernel = True``. Out: the settings of ``debug``.
After ``trace``; before nothing.
"""

from __future__ import annotations

import sys
import types

from .debug import debug
from .mode import MODE, Mode

__all__ = ["async_level", "benchmark_kernel", "deterministic_kernel"]

async_level: int
benchmark_kernel: bool
deterministic_kernel: bool


class _Config(types.ModuleType):
    """The module itself, so that its switches can be assigned."""

    @property
    def deterministic_kernel(self) -> bool:
        """Whether only algorithms and passes run that give the same bits in every mode (``MGE_DETERMINISTIC``)."""
        return bool(debug.deterministic)

    @deterministic_kernel.setter
    def deterministic_kernel(self, value: bool) -> None:
        debug.set(deterministic=bool(value))

    @property
    def benchmark_kernel(self) -> bool:
        """Whether algorithms are timed when a plan is made (``MGE_TUNE``), and kept; device ``ref`` has one of each."""
        return bool(debug.tune)

    @benchmark_kernel.setter
    def benchmark_kernel(self, value: bool) -> None:
        debug.set(tune=bool(value))

    @property
    def async_level(self) -> int:
        """MegEngine's levels: 0 computes each call at once, as ``mge.eager()``; 1 and 2 record and run plans."""
        return 0 if MODE.get().eager else 2

    @async_level.setter
    def async_level(self, value: int) -> None:
        now = MODE.get()
        MODE.set(Mode(now.recording, not value, now.cast, now.memory, now.device))


sys.modules[__name__].__class__ = _Config
