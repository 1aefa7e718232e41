"""MegEngine's ``dtr``: the strategy that drops values and computes them again.

In: ``enable()``. Out: the strategy ``"dtr"`` of the plugin mge-sublinear, for the process.
After ``memory``; before nothing.
"""

from __future__ import annotations

from .debug import debug
from .memory import find_strategy

__all__ = [
    "disable",
    "enable",
    "enable_sqrt_sampling",
    "eviction_threshold",
    "evictee_minimum_size",
]

# Bytes in use from which values are dropped; 0: the strategy's own choice.
eviction_threshold: int | str = 0
evictee_minimum_size: int | str = "1MB"  # smaller values are never dropped
enable_sqrt_sampling: bool = False  # consider a sample of the values, as many as the square root


def enable() -> None:
    """Use the strategy ``"dtr"`` from now on.

    Raises
    ------
    PluginNotInstalled
        The plugin that offers it, mge-sublinear, is not installed.
    """
    sizes = f"eviction_threshold={eviction_threshold},evictee_minimum_size={evictee_minimum_size}"
    chosen = f"dtr:{sizes},sqrt_sampling={enable_sqrt_sampling}"
    find_strategy(chosen)
    debug.set(memory=chosen)


def disable() -> None:
    """Go back to the built-in strategy."""
    debug.set(memory="static")
