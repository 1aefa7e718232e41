"""Devices and buffers: what allocates, copies and runs kernels.

In: device names, NumPy arrays, signatures. Out: ``Device`` objects, one for each ``name:index``.
After ``registry``; before ``refdevice``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import op as op_module
from . import registry
from .buffer import BYTE, Buffer, CopyKind, DeviceArray, DevicePool, Pool, in_host, transfer
from .debug import debug
from .discovery import first_line
from .dtype import as_dtype
from .errors import (
    ArgumentError,
    DeviceError,
    MgeError,
    PluginContractError,
    UnsupportedError,
)
from .graph import Graph, Signature, bump_epoch
from .mode import MODE
from .types import Type

Kernel = Callable[[Sequence[Any], Sequence[Any], Any], None]  # (inputs, outputs, stream)


class Device:
    """One device, as ``ref:0``. Equal devices are the same object.

    Attributes
    ----------
    name : str
        ``"ref:0"``.
    is_host : bool
        Its memory is the host's: its buffers are NumPy arrays.
    pool : Pool
    arena : ndarray, DeviceArray or None
        Bytes that the plans of this device share, each while it runs.
    lock : RLock
        Held while a plan runs: runs on one device are serialised.
    """

    def __init__(self, backend: Any, index: int) -> None:
        self.backend, self.index = backend, index
        self.type = backend.name
        self.name = f"{backend.name}:{index}"
        self.is_host: bool = backend.is_host
        if hasattr(backend, "pool"):
            self.pool: Any = backend.pool(index)
            self.pool.device = self
        else:
            self.pool = Pool() if self.is_host else DevicePool(self, backend.allocator(index))
        self._stream: list[Any] = []
        self.lock = threading.RLock()
        self.arena: Any = None  # bytes that the plans of this device share while they run

    def __repr__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, str) and other == self.name)

    def __hash__(self) -> int:
        return hash(self.name)

    def __reduce__(self) -> tuple:
        return as_device, (self.name,)

    def array(self, type: Type) -> Buffer:
        """Return a new buffer for a value of this type; its contents are undefined."""
        block = self.pool.take(type.nbytes)
        array = block[: type.nbytes].view(type.dtype.dtype).reshape(type.shape)
        return Buffer(array, block, self.pool)

    def upload(self, array: np.ndarray) -> Buffer:
        """Return a buffer with a copy of a NumPy array."""
        buffer = self.array(Type(array.shape, as_dtype(array.dtype)))
        transfer(buffer.array, array)
        return buffer

    def stream(self) -> Any:
        """Return the stream of a backend in Python, made at the first call; None where it has no streams."""
        if not self._stream and hasattr(self.backend, "stream"):
            self._stream.append(self.backend.stream(self.index))
        return self._stream[0] if self._stream else None

    def dlpack_device(self) -> tuple[int, int]:
        """Return the (type, index) that kernels of libraries see: of the host, or of what the library says."""
        if self.is_host or not hasattr(self.backend, "dlpack_device"):
            return (1, 0)
        return self.backend.dlpack_device(self.index)

    def local(self, buffer: Any) -> Any:
        """Return a buffer where this device's kernels read it: itself, or a copy of a number's."""
        here = self.is_host or buffer.array.__class__ is DeviceArray
        return buffer if here else self.upload(buffer.array)

    def copy(self, target: Any, source: Any, kind: CopyKind) -> None:
        """Copy between the host and this device's own memory, or within it; complete on return."""
        if not source.nbytes:
            return
        sides = [a if a.__class__ is DeviceArray else a.reshape(-1) for a in (target, source)]
        to, start = (a.view(BYTE) for a in sides)
        try:
            self.backend.copy(self.index, to, start, source.nbytes, kind, None)
        except MgeError:
            raise
        except Exception as error:
            text = f"copy of {source.nbytes:,} bytes ({kind.name}) raised {type(error).__name__}"
            raise DeviceError(f"{self}: {text}: {first_line(error)}") from error

    def kernel(self, sig: Signature) -> Kernel:
        """Return the kernel for a signature; it is looked up once. What the device refuses runs by its reference."""
        found = sig.notes.get("kernel")
        if found is None:
            reason = self.refusal(sig)
            if reason is not None and debug.fallback == "error":
                raise unsupported(sig, reason)
            if sig.notes.get("kernel") is None:
                own = reason is None and not is_free(sig)
                sig.notes["kernel"] = self._ask("kernel", sig) if own else self._by_ref(sig)
            found = sig.notes["kernel"]
        return found

    def refusal(self, sig: Signature) -> str | None:
        """Return None where this device has a kernel for a signature, else the reason; it is asked once."""
        notes = sig.notes
        if "refusal" not in notes:
            own = registry.library_kernel(self.type, sig) if "::" in sig.op.name else None
            if own is not None:
                notes |= {"kernel": own, "library": sig.op.name.partition("::")[0]}
            if own is not None or is_free(sig):
                reason = None
            elif _calls_python(sig):
                reason = "it runs in host memory"
            else:
                reason = self._ask("supports", sig)
            if not isinstance(reason, str | None):
                text = f"supports gave {reason!r}; it must give None, or the reason"
                raise PluginContractError(f"{self.type}: {text}")
            notes["refusal"] = "no reason given" if reason == "" else reason
        return notes["refusal"]

    def host_kernel(self, sig: Signature) -> Kernel:
        """Return a kernel for arrays in host memory: the device's own where its memory is that, else the reference."""
        return self.kernel(sig) if self.is_host else BACKENDS["ref"].kernel(0, sig)

    def _by_ref(self, sig: Signature) -> Kernel:
        """Return the kernel for what the core runs: copies, and references over arrays in host memory."""
        if sig.op.name == "copy" or (not self.is_host and sig.is_view):
            return lambda inputs, outputs, stream: transfer(outputs[0], inputs[0])
        kernel: Kernel = BACKENDS["ref"].kernel(0, sig)
        return kernel if self.is_host else _staged(kernel)

    def _ask(self, method: str, sig: Signature) -> Any:
        """Call a method of the backend; it must not raise."""
        try:
            made = getattr(self.backend, method)(self.index, sig)
            if method == "kernel" and not callable(made):
                raise TypeError(f"it gave {made!r:.60}, which cannot be called")
            return made
        except Exception as error:
            after = " after supports accepted it" if method == "kernel" else ""
            text = f"{method} raised {type(error).__name__} for {sig!r}{after}: {first_line(error)}"
            raise PluginContractError(f"{self.type}: {text}") from error


def _staged(kernel: Kernel) -> Kernel:
    """Return a kernel over arrays of a device's own memory that computes in host memory."""

    def staged(inputs: Sequence[Any], outputs: Sequence[Any], stream: Any) -> None:
        made = [None if o is None else np.empty(o.shape, o.dtype) for o in outputs]
        kernel([in_host(i) for i in inputs], made, None)
        for output, array in zip(outputs, made):
            if output is not None:
                transfer(output, array)

    return staged


def is_free(sig: Signature) -> bool:
    """Whether the core itself runs an op: copies, constants, views; in host memory graphs and calls of Python, too."""
    is_ours = sig.op.name in ("copy", "constant")
    return sig.is_view or is_ours or (sig.device.is_host and _calls_python(sig))


def _calls_python(sig: Signature) -> bool:
    return sig.op.name == "host_call" or any(isinstance(v, Graph) for _, v in sig.attrs)


def unsupported(sig: Signature, reason: str) -> UnsupportedError:
    """Return the error for an op that would have to leave its device."""
    text = f"{sig.op.name}: no kernel on {sig.device} for {sig!r}, and MGE_FALLBACK is error"
    hint = 'MGE_FALLBACK=allow, or device "ref"'
    return UnsupportedError(f"{text}\n  refused: {reason}", hint=hint)


BACKENDS: dict[str, Any] = {}  # those that are loaded: each a plugin.Backend
_DEVICES: dict[str, Device] = {}
_default: list[Device] = []


def as_device(name: object) -> Device:
    """Return the device for ``"ref"``, ``"ref:0"``, ``"auto"`` or a Device.

    Raises
    ------
    PluginNotInstalled, PluginUnavailable, PluginIncompatible
        No installed plugin offers it, or not one that can be used here.
    DeviceError
        The text is no device name, or there is no device with that index.
    """
    if isinstance(name, Device):
        return name
    if not isinstance(name, str):
        text = f"device: {name!r} is a {type(name).__name__}; a device is a text as 'ref:0'"
        raise DeviceError(text)
    kind, _, number = name.partition(":")
    # MegEngine's names for the processor and for whatever is best.
    if kind in ("auto", "", "cpu", "cpux", "xpu"):
        kind = best_backend(kind.startswith("cpu")).name
    try:
        index = int(number) if number else 0
    except ValueError:
        raise DeviceError(f"device: {name!r} is no device name; one looks like 'ref:0'") from None
    full = f"{kind}:{index}"
    if full not in _DEVICES:
        backend = find_backend(kind, name)
        count = len(registry.facts_of(backend)[0])
        if not 0 <= index < count:
            text = f'device: "{full}" was asked for; {kind} has {count}, numbered from 0'
            raise DeviceError(text)
        _DEVICES.setdefault(full, Device(backend, index))  # another thread may have been faster
    return _DEVICES[full]


def find_backend(kind: str, wanted: str) -> Any:
    """Return the backend of a device type; its plugin, and no other, is loaded where it is not built in."""
    if kind not in BACKENDS:
        BACKENDS[kind] = registry.load("backend", kind, f'device "{wanted}"')
    return BACKENDS[kind]


def best_backend(host: bool = False) -> Any:
    """Return the usable backend with the highest priority, of all or of those in host memory."""
    for plugin in registry.each("backend"):
        BACKENDS.setdefault(plugin.name, plugin.object)
    usable = (b for b in BACKENDS.values() if b.is_host or not host)
    return max(usable, key=lambda backend: registry.facts_of(backend)[1])


def default_device() -> Device:
    """Return the device of tensors made without naming one: the context's, the process's, or ``MGE_DEVICE``."""
    chosen = MODE.get().device
    if chosen is not None:
        return chosen
    if not _default:
        _default.append(as_device(debug.device or "auto"))
    return _default[0]


def set_default_device(device: object) -> None:
    """Set the device of tensors made without naming one, for the whole process.

    Parameters
    ----------
    device : str or Device
        As ``"ref:0"``.
    """
    _default[:] = [as_device(device)]
    bump_epoch()  # traces made tensors on the one before


def memory_limit() -> int | None:
    """Return ``MGE_MEMORY_LIMIT`` in bytes, or None."""
    return parse_bytes(debug.memory_limit) if debug.memory_limit else None


def free_bytes() -> int:
    """Return the bytes of host memory that are free for new data."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            found = (int(x.split()[1]) << 10 for x in lines if x.startswith("MemAvailable"))
            return next(found)
    except (OSError, StopIteration):
        return 1 << 34  # not Linux: assume 16 GiB


def parse_bytes(text: str | int) -> int:
    """Return the number of bytes of ``2GB``, ``512MiB`` or a plain number.

    Raises
    ------
    ArgumentError
        The text is no size.
    """
    if isinstance(text, int):
        return text
    units = {"": 1, "b": 1} | {
        p + s: f**e
        for e, p in enumerate("kmgt", 1)
        for s, f in (("", 1000), ("b", 1000), ("ib", 1024))
    }
    number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = text.strip()[len(number) :].strip().lower()
    try:
        return int(float(number) * units[unit])
    except (ValueError, KeyError, OverflowError):
        rule = "one looks like '2GB', '512MiB' or 1000000"
        raise ArgumentError(f"memory: {text!r} is no size; {rule}") from None


class _Lost:
    """Stands for the backend and the memory of a device that a forked process cannot use."""

    def __init__(self, device: Device) -> None:
        self._text = f"{device}: this process was forked, and only its parent can use the device"

    def __getattr__(self, name: str) -> Any:
        raise DeviceError(self._text, hint='start workers with "spawn" or "forkserver"')


def _after_fork() -> None:
    """In the child of a fork: locks that other threads held would never be released; devices are the parent's."""
    for device in _DEVICES.values():
        device.lock = threading.RLock()
        if not device.is_host:
            device.backend = device.pool = _Lost(device)
            device.arena = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

op_module.default_device = default_device
op_module.as_device = as_device
