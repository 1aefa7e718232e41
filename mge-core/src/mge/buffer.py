"""Buffers: bytes of the host or of a device's own memory, the pools that they come from, and copies between them.

In: sizes; a device's allocator. Out: ``Buffer``, ``DeviceArray``, ``Pool``, ``DevicePool``, ``transfer``.
After ``discovery``; before ``native``.
"""

from __future__ import annotations

import enum
import math
from typing import Any

import numpy as np

from .discovery import first_line
from .errors import DeviceError, MgeError, OutOfMemory, PluginContractError

ALIGNMENT = 64  # bytes: one cache line, and one AVX-512 register
BYTE = np.dtype(np.uint8)


class CopyKind(enum.IntEnum):
    """Where a copy goes from and to; as ``MgeCopyKind`` of ``mge/plugin.h``."""

    HOST_TO_DEVICE = 0
    DEVICE_TO_HOST = 1
    DEVICE_TO_DEVICE = 2


class DeviceArray:
    """A dense value in a device's own memory, as kernels and ``copy`` of its backend get it. NumPy cannot read it.

    Attributes
    ----------
    device : Device
    memory : object
        What the device's allocator gave; for a library, the address.
    offset : int, bytes
        Where the value starts in ``memory``.
    shape : tuple of int
    dtype : numpy.dtype
    nbytes : int, bytes
    """

    __slots__ = ("device", "dtype", "memory", "nbytes", "offset", "owner", "shape")

    def __init__(
        self, device: Any, memory: Any, offset: int, shape: Any, dtype: Any, owner: Any
    ) -> None:
        self.device, self.memory, self.offset, self.owner = device, memory, offset, owner
        self.shape, self.dtype = shape, dtype
        self.nbytes = math.prod(shape) * dtype.itemsize

    def __repr__(self) -> str:
        return (
            f"<{self.dtype}{self.shape} at byte {self.offset} of {self.memory!r} on {self.device}>"
        )

    @property
    def address(self) -> int:
        """Where the value is, for devices of libraries."""
        return int(self.memory + self.offset)

    def __getitem__(self, part: slice) -> DeviceArray:
        """Return some of an array of bytes."""
        start, stop, _ = part.indices(self.nbytes)
        size = (max(stop - start, 0),)
        return DeviceArray(self.device, self.memory, self.offset + start, size, BYTE, self.owner)

    def view(self, dtype: Any) -> DeviceArray:
        """Return the same bytes as elements of a dtype, in one axis."""
        size = (self.nbytes // dtype.itemsize,)
        return DeviceArray(self.device, self.memory, self.offset, size, dtype, self.owner)

    def reshape(self, shape: Any) -> DeviceArray:
        """Return the same bytes in another shape."""
        return DeviceArray(self.device, self.memory, self.offset, shape, self.dtype, self.owner)

    def numpy(self) -> np.ndarray:
        """Return a copy in host memory."""
        made = aligned_bytes(self.nbytes).view(self.dtype).reshape(self.shape)
        transfer(made, self)
        return made

    def tobytes(self) -> bytes:
        """Return a copy of the bytes."""
        return self.numpy().tobytes()

    def __array__(self, *unused: Any, **options: Any) -> np.ndarray:
        raise DeviceError(
            f"{self.device}: its memory is its own, and NumPy cannot read it",
            hint="array.numpy() copies it",
        )


def in_host(array: Any) -> Any:
    """Return an array in host memory: the same, or a copy of a device's."""
    return array.numpy() if array.__class__ is DeviceArray else array


def transfer(target: Any, source: Any) -> None:
    """Copy a value between arrays of the host, of a device, or of two; complete on return."""
    if target.__class__ is not DeviceArray:
        if source.__class__ is not DeviceArray:
            np.copyto(target, source)
        elif target.flags.c_contiguous:
            source.device.copy(target, source, CopyKind.DEVICE_TO_HOST)
        else:
            np.copyto(target, source.numpy())
    elif source.__class__ is not DeviceArray:
        target.device.copy(target, np.ascontiguousarray(source), CopyKind.HOST_TO_DEVICE)
    elif source.device is target.device:
        target.device.copy(target, source, CopyKind.DEVICE_TO_DEVICE)
    else:
        transfer(target, source.numpy())


class Buffer:
    """Bytes on a device, as an array of the device's kind.

    Attributes
    ----------
    array : ndarray or DeviceArray
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

    def allocate(self, nbytes: int) -> Any:
        """Return a block that is neither cached nor counted: an arena. What is cached is given up for it."""
        try:
            return self.new_block(nbytes)
        except OutOfMemory:
            self.trim()
            return self.new_block(nbytes)

    def new_block(self, nbytes: int) -> Any:
        """Return new memory, which is freed when nothing refers to it."""
        return aligned_bytes(nbytes)

    def reset_peak(self) -> None:
        """Start the maxima again from what is in use now."""
        self.peak_bytes = self.in_use_bytes
        self.peak_reserved_bytes = self.in_use_bytes + self.cached_bytes


class DevicePool(Pool):
    """The same over the allocator of a device whose memory is its own."""

    def __init__(self, device: Any, allocator: Any) -> None:
        super().__init__()
        self.device, self.allocator = device, allocator
        self.limit_bytes = 0
        # Of live blocks: the collector must not free what a buffer in the same cycle still gives back.
        self._owners: set[_Owner] = set()

    def limit(self, nbytes: int) -> None:
        """Let live blocks take at most ``nbytes`` bytes together; 0 is no limit."""
        self.limit_bytes = nbytes

    def take(self, nbytes: int) -> Any:
        """Return an aligned block of at least ``nbytes`` bytes."""
        if self.limit_bytes and self.in_use_bytes + self.rounded(nbytes) > self.limit_bytes:
            raise self._out_of_memory(nbytes, f"the limit is {self.limit_bytes:,}")
        block = super().take(nbytes)
        self._owners.add(block.owner)
        return block

    def give(self, block: Any) -> None:
        """Take a block back."""
        super().give(block)
        self._owners.discard(block.owner)

    def _out_of_memory(self, nbytes: int, reason: str) -> OutOfMemory:
        text = f"{nbytes:,} bytes were asked for, {self.in_use_bytes:,} are in use"
        hint = "a smaller batch, or a memory strategy: mge.memory(...)"
        return OutOfMemory(f"memory of {self.device}: {text}, and {reason}", hint=hint)

    def new_block(self, nbytes: int) -> DeviceArray:
        """Return new memory of the device, which is freed when nothing refers to it."""
        try:
            memory = self.allocator.alloc(nbytes, ALIGNMENT, None)
        except MemoryError as error:  # OutOfMemory is one
            reason = f"the device gives no more: {first_line(error)}"
            raise self._out_of_memory(nbytes, reason) from None
        except MgeError:
            raise
        except Exception as error:
            text = f"alloc raised {type(error).__name__}, and not OutOfMemory: {first_line(error)}"
            raise PluginContractError(f"{self.device}: {text}") from error
        owner = _Owner(self.allocator, memory, nbytes)
        return DeviceArray(self.device, memory, 0, (nbytes,), BYTE, owner)

    def trim(self) -> None:
        """Give all cached blocks back to the device, and ask it to do the same."""
        super().trim()
        if hasattr(self.allocator, "trim"):
            self.allocator.trim()


class _Owner:
    """Frees memory of a device when the last array over it is gone."""

    __slots__ = ("allocator", "memory", "nbytes")

    def __init__(self, allocator: Any, memory: Any, nbytes: int) -> None:
        self.allocator, self.memory, self.nbytes = allocator, memory, nbytes

    def __del__(self) -> None:
        self.allocator.free(self.memory, self.nbytes, None)


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
