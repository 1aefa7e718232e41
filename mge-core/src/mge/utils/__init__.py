"""Profiles, statistics of modules, exchange with other libraries.

In: modules, tensors, running programs. Out: figures and files.
Interface layer.
"""

import importlib
from typing import Any

_MODULES = ("dlpack", "module_stats", "profiler")

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
