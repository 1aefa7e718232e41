"""The levels in their order, and how a case is found by its name.

In: a target. Out: names of cases (``L3/add/0/float32``), and one case run.
After ``robustness``; before ``worker``.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from . import gradients, graphs, load, memory, ops, robustness, streams
from .target import Target

LEVELS: dict[str, tuple[str, ModuleType]] = {
    "L0": ("load", load),
    "L1": ("memory", memory),
    "L2": ("streams and events", streams),
    "L3": ("ops", ops),
    "L4": ("gradients", gradients),
    "L5": ("graphs", graphs),
    "L6": ("robustness", robustness),
}


def cases(target: Target, last: str = "L6") -> Iterator[str]:
    """Yield the names of all cases up to a level."""
    for level, (_, module) in LEVELS.items():
        if level <= last:
            yield from (f"{level}/{name}" for name in module.cases(target))


def run(target: Target, case: str) -> None:
    """Run one case.

    Raises
    ------
    Refused, Skipped, Fault
        How it ends, where it does not pass. Any other error is a fault, too.
    """
    level, *words = case.split("/")
    LEVELS[level][1].run(target, *words)
