"""mge: a deep learning framework made of a minimal kernel and plugins."""

from . import ops, device, refdevice, run  # noqa
from .tensor import Tensor, Parameter, tensor
