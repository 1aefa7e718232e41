"""Sharing memory with other libraries through DLPack.

In: arrays and tensors of other libraries. Out: ``from_dlpack``, and ``Tensor.__dlpack__`` for the other way.
After ``serialization``; before ``functional``.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from .buffer import ALIGNMENT, Buffer
from .device import as_device
from .dtype import DTYPES, as_dtype, bfloat16
from .errors import ArgumentError, DeviceError, DTypeError, MgeError, user_place
from .graph import Node, leaf_signature
from .mode import MODE
from .op import default_device
from .tensor import Tensor
from .types import Type

__all__ = ["from_dlpack", "to_dlpack"]

_NUMPY_HAS_FLAGS = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
HOST = (1, 3, 11)  # DLPack's numbers for memory that the CPU reads: CPU, CUDA host, ROCm host
_UINT, _BFLOAT = 1, 4  # DLPack's numbers for kinds of dtypes


class _Shared:
    """A buffer's memory as an array, which keeps the buffer alive: its bytes are not reused meanwhile."""

    def __init__(self, buffer: Any, is_read_only: bool) -> None:
        self.buffer = buffer
        array = buffer.array
        if array.dtype == bfloat16.dtype:
            array = array.view(np.uint16)
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], is_read_only)
        interface.pop("strides", None)
        self.__array_interface__ = interface


def _to_dlpack(
    self: Tensor,
    *,
    stream: Any = None,
    max_version: Any = None,
    dl_device: Any = None,
    copy: bool | None = None,
) -> Any:
    """Return a DLPack capsule of the value: a snapshot that no later computation changes.

    A consumer that knows DLPack 1.0 is told that the memory is read-only. For others the flag does not exist: they
    must not write.
    """
    place = _dlpack_device(self)
    if stream is not None and stream != -1:
        raise DeviceError(
            f"__dlpack__: stream is {stream!r}; {self.device} has no streams to share"
        ).add_place(user_place())
    if dl_device is not None and tuple(dl_device) != place:
        raise DeviceError(
            f"__dlpack__: dl_device is {dl_device}; the tensor is on {place}"
        ).add_place(user_place())
    buffer = self._value()
    array = buffer.array
    is_bfloat16 = array.dtype == bfloat16.dtype
    knows_flags = _NUMPY_HAS_FLAGS and max_version is not None and tuple(max_version) >= (1, 0)
    if copy or not isinstance(buffer, Buffer):  # a number has no memory of its own
        shared = np.array(array.view(np.uint16) if is_bfloat16 else array)
    else:
        shared = np.asarray(_Shared(buffer, knows_flags))
    capsule = shared.__dlpack__(max_version=max_version) if knows_flags else shared.__dlpack__()
    if is_bfloat16:
        _set_kind(capsule, _UINT, _BFLOAT)
    return capsule


def _dlpack_device(self: Tensor) -> tuple[int, int]:
    """Return the (type, index) of the device, by DLPack's numbers."""
    if not self.device.is_host:
        raise DeviceError(
            f"__dlpack__: the tensor is on {self.device}, whose memory is its own; DLPack shares host memory only",
            hint='x.to("ref"), which copies it',
        ).add_place(user_place())
    return (1, 0)


Tensor.__dlpack__ = _to_dlpack  # type: ignore[attr-defined]
Tensor.__dlpack_device__ = _dlpack_device  # type: ignore[attr-defined]


def to_dlpack(tensor: Tensor) -> Any:
    """Return a DLPack capsule of a tensor's value; it can be consumed once.

    Parameters
    ----------
    tensor : Tensor

    Returns
    -------
    capsule
        A read-only snapshot, without the flag that says so: the consumer must not write.
    """
    return tensor.__dlpack__()  # type: ignore[attr-defined]


def from_dlpack(x: Any, device: Any = None, copy: bool | None = None) -> Tensor:
    """Return a tensor over the memory of another library's array.

    The memory is borrowed and never written; what owns it stays alive as long as the tensor needs it. If the owner
    writes to it, the tensor changes too: then pass ``copy=True``.

    Parameters
    ----------
    x : object with ``__dlpack__``, or a DLPack capsule
    device : str or Device, optional
        By default the default device, where it works on host memory.
    copy : bool, optional
        None: only where the memory is not dense, row-major and aligned to 64 bytes. True: always.
        False: never; then such memory is an error.

    Returns
    -------
    Tensor
        The shape and dtype of ``x``.

    Raises
    ------
    DTypeError
        ``x`` has a dtype that mge does not have.
    DeviceError
        ``x`` is not in host memory.
    ArgumentError
        ``x`` speaks no DLPack, or refuses to share; or it must be copied and ``copy`` is False.

    Examples
    --------
    >>> import numpy as np
    >>> from_dlpack(np.arange(3))
    Tensor([0, 1, 2], dtype=int64, device=ref:0)
    """
    try:
        array = _imported(x)
        return _borrowed(array, default_device() if device is None else as_device(device), copy)
    except MgeError as error:
        raise error.add_place(user_place()) from None


def _borrowed(array: np.ndarray, device: Any, copy: bool | None) -> Tensor:
    if array.dtype.name not in DTYPES:
        raise DTypeError(f"from_dlpack: the array is {array.dtype}; known are {', '.join(DTYPES)}")
    type_ = Type(array.shape, as_dtype(array.dtype))
    is_fit = array.flags.c_contiguous and (array.ctypes.data % ALIGNMENT == 0 or not array.size)
    if copy is False and not is_fit:
        raise ArgumentError(
            f"from_dlpack: {type_} is not dense, row-major and aligned to {ALIGNMENT} bytes; it cannot be borrowed",
            hint="copy=None",
        )
    if is_fit and not copy and device.type == "ref":
        view = array.view()
        view.flags.writeable = False
        buffer = Buffer(view, array)
    else:
        buffer = device.upload(array)
    node = Node(leaf_signature(type_, device), (), type_, buffer)
    recording = MODE.get().recording
    if recording is not None:
        recording.owner.made.add(node)
    return Tensor.from_node(node)


class _Capsule:
    """A bare capsule in the form that ``numpy.from_dlpack`` takes."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def _imported(x: Any) -> np.ndarray:
    """Return a NumPy array over the memory of ``x``."""
    is_capsule = type(x).__name__ == "PyCapsule"
    if not is_capsule and not (hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__")):
        raise ArgumentError(
            f"from_dlpack: {type(x).__name__} has no __dlpack__", hint="mge.tensor(x) copies it"
        )
    try:
        place = (1, 0) if is_capsule else x.__dlpack_device__()
        if int(place[0]) not in HOST:
            raise DeviceError(
                f"from_dlpack: the array is on a device of DLPack's type {int(place[0])}; "
                "only host memory can be borrowed",
                hint="copy it to the CPU first",
            )
        capsule = x if is_capsule else _capsule_of(x)
        is_bfloat16 = _set_kind(capsule, _BFLOAT, _UINT)
        array = np.from_dlpack(_Capsule(capsule))
        return array.view(bfloat16.dtype) if is_bfloat16 else array
    except MgeError:
        raise
    except (BufferError, TypeError, ValueError, RuntimeError) as error:
        what = (
            DTypeError
            if "type" in str(error).lower() and "device" not in str(error).lower()
            else ArgumentError
        )
        raise what(f"from_dlpack: {type(x).__name__} cannot be shared: {error}") from error


def _capsule_of(x: Any) -> Any:
    try:
        return x.__dlpack__(max_version=(1, 0))
    except TypeError:  # made before DLPack 1.0
        return x.__dlpack__()


# NumPy's DLPack has no bfloat16. Its capsules are made and taken as uint16, and the two bytes that say so changed.

_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)


class _DLTensor(ctypes.Structure):
    """The head of DLPack's DLTensor, up to its dtype (dlpack.h)."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
    ]  # fmt: skip


class _Versioned(ctypes.Structure):
    """The head of DLPack's DLManagedTensorVersioned, up to its DLTensor."""

    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _DLTensor),
    ]  # fmt: skip


def _set_kind(capsule: Any, old: int, new: int) -> bool:
    """Change the kind of a capsule's 16-bit dtype from ``old`` to ``new``; returns whether it had that kind."""
    if _is_valid(capsule, b"dltensor_versioned"):
        tensor = _Versioned.from_address(_pointer_of(capsule, b"dltensor_versioned")).tensor
    elif _is_valid(capsule, b"dltensor"):  # DLManagedTensor begins with its DLTensor
        tensor = _DLTensor.from_address(_pointer_of(capsule, b"dltensor"))
    else:
        raise ArgumentError(
            "from_dlpack: the capsule holds no DLPack tensor; each can be consumed once"
        )
    if (tensor.code, tensor.bits, tensor.lanes) != (old, 16, 1):
        return False
    tensor.code = new
    return True
