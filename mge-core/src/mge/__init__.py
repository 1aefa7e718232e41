"""mge: a deep learning framework made of a minimal kernel and plugins."""

from . import refdevice as _refdevice  # noqa: F401  registers the built-in device
from . import control as _control  # noqa: F401  registers the ops that hold graphs
from . import autodiff, functional, graph, jit, op, run
from .debug import debug
from .device import Device, as_device, default_device, set_default_device
from .dtype import DType
from .graph import eager
from .memory import memory
from .run import eval, sync
from .tensor import Parameter, Tensor, tensor

__version__ = "0.1.0"
