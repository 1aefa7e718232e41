"""Devices and buffers: what allocates, copies and runs kernels.

In: device names, NumPy arrays, signatures. Out: ``Device`` objects (one for each ``name:index``), ``Buffer``, ``Pool``.
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
from .debug import debug
from .discovery import first_line
from .dtype import as_dtype
from .errors import (
    ArgumentError,
    DeviceError,
    OutOfMemory,
    PluginContractError,
    UnsupportedError,
)
from .graph import Graph, Signature
from .mode import MODE
from .types import Type

ALIGNMENT = 64  # bytes: one cache line, and one AVX-512 register

Kernel = Callable[[Sequence[Any], Sequence[Any], Any], None]  # (inputs, outputs, stream)


class Buffer:
    """Bytes on a device, as an array of the device's kind.

    Attributes
    ----------
    array : ndarray
        Dense, row-major, aligned to 64 bytes where mge allocated it.
    block : object or None
        What goes back to the pool when the buffer dies; None for memory that mge does not own.
    """

    __slots__ = ("__weakref__", "array", "block", "pool")

    def __init__(self, array: Any, block: Any = None, pool: Pool | None = None) -> None:
        self.array, self.block, self.pool = array, block, pool

    def __del__(self) -> None:
        pool = self.pool
        if pool is not None:
            self.array = None
            pool.give(self.block)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        # An array made through this interface keeps the buffer alive, so its bytes are not reused meanwhile.
        interface = dict(self.array.__array_interface__)
        interface["data"] = (interface["data"][0], True)
        interface.pop("strides", None)
        return interface


class Failure:
    """Stands where a buffer would be, for a value whose computation failed: reading it raises the error."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error

    @property
    def array(self) -> Any:
        """Raise the error that stopped the computation."""
        raise self.error


class Pool:
    """A caching allocator of host memory: blocks that come back wait by size for the next request.

    Attributes
    ----------
    in_use_bytes, cached_bytes, peak_bytes, peak_reserved_bytes : int, bytes
    """

    cache_limit_bytes = 1 << 30

    def __init__(self) -> None:
        self.free: dict[int, list[Any]] = {}
        self.in_use_bytes = self.cached_bytes = self.peak_bytes = self.peak_reserved_bytes = 0
        self.live_blocks = 0

    @staticmethod
    def rounded(nbytes: int) -> int:
        """Return the block size for a request: a power of two of lines, or whole 1/8 steps of one when large."""
        lines = max(1, -(-nbytes // ALIGNMENT))
        step = 1 << max(0, lines.bit_length() - 4)
        return -(-lines // step) * step * ALIGNMENT

    def take(self, nbytes: int) -> Any:
        """Return an aligned block of at least ``nbytes`` bytes."""
        size = self.rounded(nbytes)
        waiting = self.free.get(size)
        try:
            block = waiting.pop() if waiting else None
        except IndexError:  # another thread was faster
            block = None
        if block is None:
            try:
                block = self.allocate(size)
            except OutOfMemory:
                self.trim()
                block = self.allocate(size)
        else:
            self.cached_bytes -= size
        self.in_use_bytes += size
        self.live_blocks += 1
        if self.in_use_bytes > self.peak_bytes:
            self.peak_bytes = self.in_use_bytes
            self.peak_reserved_bytes = max(
                self.peak_reserved_bytes, self.in_use_bytes + self.cached_bytes
            )
        return block

    def give(self, block: Any) -> None:
        """Take a block back."""
        size = block.nbytes
        self.in_use_bytes -= size
        self.live_blocks -= 1
        if self.cached_bytes + size <= self.cache_limit_bytes:
            self.free.setdefault(size, []).append(block)
            self.cached_bytes += size

    def trim(self) -> None:
        """Give all cached blocks back to the system."""
        self.free.clear()
        self.cached_bytes = 0

    @staticmethod
    def allocate(nbytes: int) -> Any:
        """Return a block that is neither cached nor counted: an arena."""
        return aligned_bytes(nbytes)

    def reset_peak(self) -> None:
        """Start the maxima again from what is in use now."""
        self.peak_bytes = self.in_use_bytes
        self.peak_reserved_bytes = self.in_use_bytes + self.cached_bytes


def aligned_bytes(nbytes: int) -> np.ndarray:
    """Return ``nbytes`` uninitialised bytes whose address is a multiple of 64."""
    try:
        raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    except MemoryError:
        raise OutOfMemory(
            f"memory: {nbytes:,} bytes were asked for and the system has no such block",
            hint="a smaller batch, or a memory strategy",
        ) from None
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]


class Device:
    """One device, as ``ref:0``. Equal devices are the same object.

    Attributes
    ----------
    name : str
        ``"ref:0"``.
    pool : Pool
    arena : ndarray or None
        Bytes that the plans of this device share, each while it runs.
    lock : RLock
        Held while a plan runs: runs on one device are serialised.
    """

    def __init__(self, backend: Any, index: int) -> None:
        self.backend, self.index = backend, index
        self.type = backend.name
        self.name = f"{backend.name}:{index}"
        own_pool = getattr(backend, "pool", None)
        self.pool: Any = own_pool(index) if own_pool is not None else Pool()
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
        np.copyto(buffer.array, array)
        return buffer

    def kernel(self, sig: Signature) -> Kernel:
        """Return the kernel for a signature; it is looked up once. What the device refuses runs by its reference."""
        found = sig.notes.get("kernel")
        if found is None:
            reason = self.refusal(sig)
            if reason is not None and debug.fallback == "error":
                raise unsupported(sig, reason)
            if sig.notes.get("kernel") is None:
                own = reason is None and not is_free(sig)
                ref = BACKENDS["ref"]
                sig.notes["kernel"] = self._ask("kernel", sig) if own else ref.kernel(0, sig)
            found = sig.notes["kernel"]
        return found

    def refusal(self, sig: Signature) -> str | None:
        """Return None where this device has a kernel for a signature, else the reason; it is asked once."""
        notes = sig.notes
        if "refusal" not in notes:
            own = registry.library_kernel(self.type, sig) if "::" in sig.op.name else None
            if own is not None:
                notes["kernel"] = own
            reason = None if own is not None or is_free(sig) else self._ask("supports", sig)
            if not isinstance(reason, str | None):
                text = f"supports gave {reason!r}; it must give None, or the reason"
                raise PluginContractError(f"{self.type}: {text}")
            notes["refusal"] = reason
        return notes["refusal"]

    def _ask(self, method: str, sig: Signature) -> Any:
        """Call a method of the backend; it must not raise."""
        try:
            return getattr(self.backend, method)(self.index, sig)
        except Exception as error:
            after = " after supports accepted it" if method == "kernel" else ""
            text = f"{method} raised {type(error).__name__} for {sig!r}{after}: {first_line(error)}"
            raise PluginContractError(f"{self.type}: {text}") from error


def is_free(sig: Signature) -> bool:
    """Whether the core itself runs an op for host devices: copies, constants, views, graphs, calls of Python."""
    is_view = sig.op.aliases and sig.nbytes == sig.input_types[0].nbytes
    is_ours = sig.op.name in ("copy", "constant", "host_call")
    return is_view or is_ours or any(isinstance(v, Graph) for _, v in sig.attrs)


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
        raise DeviceError(
            f"device: {name!r} is a {type(name).__name__}; a device is a text as 'ref:0'"
        )
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
        count = len(backend.devices())
        if not 0 <= index < count:
            raise DeviceError(
                f'device: "{full}" was asked for; {kind} has {count}, numbered from 0'
            )
        _DEVICES[full] = Device(backend, index)
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
    return max((b for b in BACKENDS.values() if b.is_host or not host), key=lambda b: b.priority)


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
    except (ValueError, KeyError):
        raise ArgumentError(
            f"memory: {text!r} is no size; one looks like '2GB', '512MiB' or 1000000"
        ) from None


def _after_fork() -> None:
    """In the child of a fork: locks that other threads held would never be released."""
    for device in _DEVICES.values():
        device.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

op_module.default_device = default_device
op_module.as_device = as_device
