"""The rules of all options of the four strategies, by name.

In: an option as the user stated it. Out: the rule that it breaks.
After nothing; before ``strategies``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from mge.device import parse_bytes


def _is_size(text: str) -> bool:
    try:
        return parse_bytes(text) >= 0
    except ValueError:
        return False


def _is_folder(path: str) -> bool:
    return not path or (os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK))


_SIZE: tuple[str, Callable[[Any], bool]] = "a size of 0 or more, as 2GB", _is_size
_FACTOR: tuple[str, Callable[[Any], bool]] = "0 or more, as 1.0", lambda value: value >= 0
_RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "max_slowdown": ("a share of the time, 0 or more, as 0.1", lambda value: value >= 0),
    "aim": _SIZE,
    "effort": ("over 0 and at most 1000, as 1.0", lambda value: 0 < value <= 1000),
    "seed": ("from 0 to 2**63 - 1", lambda value: 0 <= value < 2**63),
    "eviction_threshold": _SIZE,
    "evictee_minimum_size": _SIZE,
    "memory_factor": _FACTOR,
    "time_factor": _FACTOR,
    "folder": ("a folder that exists and can be written to", _is_folder),
    "minimum_size": _SIZE,
    "gigabytes_per_second": ("over 0, as 1.0", lambda value: value > 0),
}


def broken_rule(name: str, value: Any) -> str | None:
    """Return the rule that the value of an option breaks; None where it is fine."""
    rule, holds = _RULES.get(name, ("", lambda value: True))
    return None if holds(value) else rule
