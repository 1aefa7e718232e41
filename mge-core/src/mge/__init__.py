"""mge: a deep learning framework made of a minimal kernel and plugins.

In: installed plugins, found when a name of theirs is used. Out: the names in ``__all__``; no other is promised.
After everything; it imports the kernel, and the interface modules on first use.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from . import cache, functional, refdevice  # noqa: F401  registers the built-in device
from .control import host_call
from .debug import debug
from .device import set_default_device
from .devices import (
    get_allocated_memory,
    get_default_device,
    get_device_count,
    get_max_allocated_memory,
    get_max_reserved_memory,
    get_reserved_memory,
    is_cuda_available,
    reset_max_memory_stats,
)
from .dtype import DTYPES as _DTYPES
from .errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    FileFormatError,
    InternalError,
    MgeError,
    OutOfMemory,
    PluginContractError,
    PluginError,
    PluginIncompatible,
    PluginNotInstalled,
    PluginUnavailable,
    ShapeError,
    TraceError,
    UnsupportedError,
)
from .interop import from_dlpack
from .memory import memory
from .mode import eager
from .modelfile import load_model
from .native import get_cmake_dir, get_include
from .parse import parse_graph
from .quantizing import quantize
from .run import eval, sync
from .serialization import load, save
from .tensor import Parameter, Tensor, tensor

__version__ = "0.1.0"

# The dtypes, as mge.float32; mge.bool is one of them.
globals().update(_DTYPES)

_MODULES = (
    "amp autodiff config data dtr functional jit module optimizer plugin random utils".split()
)  # imported on first use
_PLUGIN_MODULES = ("distributed", "hub", "quantization", "vision")  # from plugins, if installed

__all__ = [
    "ArgumentError", "DTypeError", "DeviceError", "FileFormatError", "InternalError", "MgeError", "OutOfMemory",
    "Parameter", "PluginContractError", "PluginError", "PluginIncompatible", "PluginNotInstalled",
    "PluginUnavailable", "ShapeError", "Tensor", "TraceError", "UnsupportedError", "debug", "eager", "eval",
    "from_dlpack", "get_allocated_memory", "get_cmake_dir", "get_default_device", "get_device_count", "get_include",
    "get_max_allocated_memory", "get_max_reserved_memory", "get_reserved_memory", "host_call", "is_cuda_available",
    "load", "load_model", "memory", "parse_graph", "quantize", "reset_max_memory_stats", "save",
    "set_default_device", "sync", "tensor",
]  # fmt: skip
__all__.extend([*_DTYPES, *_MODULES])


def _show(stages: Any, plan: Any, prologue: Any) -> None:
    importlib.import_module(".view", __name__).VIEW.add(stages, plan, prologue)


def _tune(compile: Any, leaves: Any) -> None:
    importlib.import_module(".tuning", __name__).tune_plan(compile, leaves)


# The page of MGE_VIEW and tuning are loaded with the first plan that needs them.
cache.show, cache.tune = _show, _tune


def _watch_steps() -> None:
    if debug.debug >= 2 or f"{__name__}.utils.step_times" in sys.modules:
        importlib.import_module(".utils.step_times", __name__).watch(debug.debug >= 2)


debug.on_change = _watch_steps
_watch_steps()


def __getattr__(name: str) -> Any:
    if name in _MODULES or name in _PLUGIN_MODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module 'mge' has no attribute {name!r}")
