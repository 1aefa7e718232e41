"""``mge.functional``: every public op and function on tensors.

In: the files of ``ops``, ``control`` and ``flow``. Out: their names, read from the registry; nothing is listed here.
After ``trace``; before ``module``.
"""

from __future__ import annotations

from typing import Any

from . import control, flow, registry
from .op import Op
from .ops import MODULES

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    """Return the op library of that name, as ``vision``; its plugin is loaded."""
    if name.startswith("_") or name not in (*registry.names("ops"), "vision"):
        raise AttributeError(f"module 'mge.functional' has no attribute {name!r}")
    return registry.load("ops", name, f"mge.functional.{name}")


for _module in (*MODULES, control, flow):
    _private = getattr(_module, "PRIVATE", ())
    _functions = getattr(_module, "FUNCTIONS", ())
    for _name, _value in vars(_module).items():
        if (
            isinstance(_value, Op)
            and _value.__module__ == _module.__name__
            and _value.name not in (*_private, *_functions)
        ):
            globals()[_value.name] = _value
            __all__.append(_value.name)
    for _name in _functions:
        globals()[_name] = getattr(_module, _name)
        __all__.append(_name)
__all__.sort()
