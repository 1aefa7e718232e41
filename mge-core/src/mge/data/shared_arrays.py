"""Move values with large arrays between processes, the arrays through shared memory.

In: any picklable value. Out: a small packet for a pipe, and its value again in the other process.
Before ``worker`` and ``pool``.

The parent process removes every segment, and no other does. Names are counted up, so the parent
can also find the segment that a killed worker has made and not yet announced.
"""

from __future__ import annotations

import errno
import mmap
import os
import pickle
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

ALIGN = 64  # bytes: a cache line
LARGE = 4096  # bytes; smaller arrays travel inside the packet
_FOLDER = "/dev/shm"  # where Linux shows shared memory as files


@dataclass(frozen=True, slots=True)
class Packet:
    """A value in parts.

    Attributes
    ----------
    head : bytes
        The pickled value without its large arrays.
    generation : int
        Which segment of the slot holds the arrays.
    spans : tuple of (offset, bytes)
        Where each array is in it; empty if there is none.
    spilled : bool
        Shared memory had no room, so that the arrays are in ``head``.
    """

    head: bytes
    generation: int = 0
    spans: tuple[tuple[int, int], ...] = ()
    spilled: bool = False


class SharedWriter:
    """Writes values into numbered slots; a slot's segment is used again, and replaced when too small.

    Parameters
    ----------
    prefix : str
        Start of the segments' names; the reader has the same.
    removes : bool
        Whether this process removes segments: true in the parent.
    """

    def __init__(self, prefix: str, *, removes: bool) -> None:
        self._prefix = prefix
        self._removes = removes
        self._slots: dict[int, tuple[SharedMemory, int]] = {}

    def write(self, slot: int, value: Any) -> Packet:
        """Pack ``value``. Its reader must be done with what the slot held before."""
        buffers: list[memoryview] = []

        def stays_inside(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < LARGE:
                return True
            buffers.append(raw)
            return False

        head = pickle.dumps(value, protocol=5, buffer_callback=stays_inside)
        if not buffers:
            return Packet(head)
        spans, size = [], 0
        for raw in buffers:
            spans.append((size, raw.nbytes))
            size += -(-raw.nbytes // ALIGN) * ALIGN
        found = self._room(slot, size)
        if found is None:
            return Packet(pickle.dumps(value, protocol=5), spilled=True)
        segment, generation = found
        for (offset, nbytes), raw in zip(spans, buffers):
            _bytes(segment)[offset : offset + nbytes] = raw
        return Packet(head, generation, tuple(spans))

    def close(self) -> None:
        """Let go of the segments."""
        for segment, _ in self._slots.values():
            segment.close()
            if self._removes:
                segment.unlink()
        self._slots.clear()

    def _room(self, slot: int, size: int) -> tuple[SharedMemory, int] | None:
        old, generation = self._slots.get(slot, (None, 0))
        if old is not None and old.size >= size:
            return old, generation
        generation += 1
        # The next batch is likely to differ a little, so a slot that had to grow gets more than it asks for.
        segment = _create(
            f"{self._prefix}{slot}_{generation}", size if old is None else size + size // 4
        )
        if segment is None:
            return None
        if old is not None:
            old.close()
            if self._removes:
                old.unlink()
        self._slots[slot] = (segment, generation)
        return segment, generation


class SharedReader:
    """Reads what a :class:`SharedWriter` of the same prefix has packed.

    Parameters
    ----------
    prefix : str
        Start of the segments' names.
    removes : bool
        Whether this process removes segments: true in the parent.
    """

    def __init__(self, prefix: str, *, removes: bool) -> None:
        self._prefix = prefix
        self._removes = removes
        self._slots: dict[int, tuple[SharedMemory, int]] = {}

    def read(self, slot: int, packet: Packet) -> Any:
        """Return the value, with arrays of its own: the slot is free again."""
        if not packet.spans:
            return pickle.loads(packet.head)
        segment = self._segment(slot, packet.generation)
        copies = []
        for offset, nbytes in packet.spans:
            view = np.frombuffer(_bytes(segment), np.uint8, nbytes, offset)
            copies.append(view.copy())  # without the GIL
            del view  # a segment with views cannot be closed
        return pickle.loads(packet.head, buffers=copies)

    def close(self, slots: int = 0) -> None:
        """Let go of the segments; and remove those of ``slots`` slots, announced or not."""
        generations = {slot: generation for slot, (_, generation) in self._slots.items()}
        for segment, _ in self._slots.values():
            segment.close()
            if self._removes:
                segment.unlink()
        self._slots.clear()
        if self._removes:
            for slot in range(slots):
                _remove(f"{self._prefix}{slot}_{generations.get(slot, 0) + 1}")

    def _segment(self, slot: int, generation: int) -> SharedMemory:
        old, known = self._slots.get(slot, (None, 0))
        if old is not None and known == generation:
            return old
        segment = SharedMemory(f"{self._prefix}{slot}_{generation}")
        if old is not None:
            old.close()
            if self._removes:
                old.unlink()
        self._slots[slot] = (segment, generation)
        return segment


def read_private(prefix: str, packet: Packet) -> Any:
    """Return the value of slot 0; arrays that this process changes become its own, page by page.

    Where that is not possible, all arrays are copied.
    """
    if not packet.spans:
        return pickle.loads(packet.head)
    try:
        file = os.open(f"{_FOLDER}/{prefix}0_{packet.generation}", os.O_RDONLY)
    except OSError:
        reader = SharedReader(prefix, removes=False)
        value = reader.read(0, packet)
        reader.close()
        return value
    try:
        pages = memoryview(mmap.mmap(file, 0, access=mmap.ACCESS_COPY))
    finally:
        os.close(file)
    views = [pages[offset : offset + nbytes] for offset, nbytes in packet.spans]
    return pickle.loads(packet.head, buffers=views)


def _bytes(segment: SharedMemory) -> memoryview:
    assert segment.buf is not None  # None after close()
    return segment.buf


def _create(name: str, size: int) -> SharedMemory | None:
    """Make a segment; None if there is no room for it."""
    try:
        segment = SharedMemory(name, create=True, size=size)
    except OSError:
        return None
    if not _reserve(name, size):
        segment.close()
        segment.unlink()
        return None
    return segment


def _reserve(name: str, size: int) -> bool:
    """Take the memory now: a full /dev/shm would kill the process at the first write."""
    try:
        file = os.open(f"{_FOLDER}/{name}", os.O_RDWR)
    except OSError:
        return True  # a system that keeps shared memory elsewhere
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        return error.errno not in (errno.ENOSPC, errno.ENOMEM)
    finally:
        os.close(file)
    return True


def _remove(name: str) -> None:
    try:
        segment = SharedMemory(name)
    except OSError:
        return  # the usual case: there is none
    except ValueError:  # made, and its maker was killed before it had a size
        with suppress(OSError):
            os.unlink(f"{_FOLDER}/{name}")
        return
    segment.close()
    segment.unlink()
