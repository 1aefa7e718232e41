"""Level L1: memory of the device, by what the core asks of it.

In: a target. Out: cases ``L1/TOPIC``; ``round_trip`` has one for each dtype.
After ``target``; before ``streams``.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..buffer import ALIGNMENT, Buffer, DeviceArray, in_host, transfer
from ..dtype import DTYPES, uint8
from ..errors import OutOfMemory
from ..op import OPS
from ..tensor import tensor
from ..types import Type
from .cases import Fault, same_bits
from .target import Target

SHAPES = [(), (1,), (3,), (63,), (64,), (65,), (1000,), (2, 3, 5), (0,), (3, 0, 2)]
SIZES = [0, 1, 2, 3, 7, 31, 63, 64, 65, 127, 4095, 4096, 4097, 65537, 1 << 20]  # bytes
BUFFERS = 2000
TOO_MUCH = 1 << 60  # bytes: more than any address space of today holds


def cases(target: Target) -> Iterator[str]:
    """Yield the names of the cases."""
    yield from (f"round_trip/{name}" for name in DTYPES)
    yield from TOPICS


def run(target: Target, topic: str, label: str = "") -> None:
    """Run one case."""
    if topic == "round_trip":
        _round_trip(target, label)
    else:
        TOPICS[topic](target)


def _round_trip(target: Target, label: str) -> None:
    """What goes to the device comes back bit for bit, whatever the bits are."""
    rng = target.rng("round_trip", label)
    dtype = DTYPES[label].dtype
    for shape in SHAPES:
        raw = rng.integers(0, 2 if label == "bool" else 256, (*shape, dtype.itemsize), np.uint8)
        given = np.frombuffer(raw.tobytes(), dtype).reshape(shape)
        there = tensor(given, dtype=dtype, device=target.device)
        for how, value in (
            ("to the device and back", there),
            ("to the device, to ref and back", there.to("ref")),
            ("from ref to the device", tensor(given, dtype=dtype, device="ref").to(target.device)),
        ):
            problem = same_bits(value.numpy(), given)
            if problem:
                raise Fault(f"{label}{shape}, {how}: {problem}")


def _block(target: Target, nbytes: int) -> Buffer:
    """Return a new buffer of the device."""
    return target.device.array(Type((nbytes,), uint8))


def _set(array: Any, value: int) -> None:
    """Set all bytes of an array of the device."""
    transfer(array, np.full(array.nbytes, value, np.uint8))


def _copies(target: Target) -> None:
    """Parts of buffers are copied from the host, within the device and to the host; the rest stays as it was."""
    rng = target.rng("copies")
    for nbytes in (1, 3, 64, 65, 1000, 1 << 20):
        given = rng.integers(0, 256, nbytes, np.uint8)
        one, other = (_block(target, nbytes + 300) for _ in range(2))
        for at, to in ((0, 0), (64, 128), (1, 7), (293, 300)):
            _set(one.array, 0xA5)
            _set(other.array, 0x5A)
            transfer(one.array[at : at + nbytes], given)
            transfer(other.array[to : to + nbytes], one.array[at : at + nbytes])
            for buffer, start, rest in ((one, at, 0xA5), (other, to, 0x5A)):
                found = np.array(in_host(buffer.array))
                part = in_host(buffer.array[start : start + nbytes])
                wanted = np.full(nbytes + 300, rest, np.uint8)
                wanted[start : start + nbytes] = given
                if (found != wanted).any() or (part != given).any():
                    how = "from the host" if buffer is one else f"from byte {at} of another buffer"
                    raise Fault(
                        f"a copy of {nbytes} bytes to byte {start}, {how}, gave other bytes, or "
                        f"changed some beside it ({(found != wanted).sum()} of {found.size} are wrong)"
                    )


def _alignment(target: Target) -> None:
    """Buffers of odd sizes start at multiples of 64 bytes."""
    buffers = [_block(target, n) for n in SIZES for _ in range(3)]
    for buffer in buffers:
        array = buffer.array
        if isinstance(
            array, DeviceArray
        ):  # handles have no address; values start at an offset from one
            address = array.address if isinstance(array.memory, int) else array.offset
        else:
            address = array.ctypes.data
        if buffer.array.nbytes and address % ALIGNMENT:
            raise Fault(
                f"a buffer of {buffer.array.nbytes} bytes starts at {address:#x}, no multiple of {ALIGNMENT}"
            )


def _zero_bytes(target: Target) -> None:
    """Values without elements can be made, copied and dropped."""
    for shape in ((0,), (0, 5), (4, 0)):
        there = tensor(np.zeros(shape, np.float32), device=target.device)
        if there.to("ref").numpy().shape != shape or OPS["copy"](there).numpy().shape != shape:
            raise Fault(f"an empty value of shape {shape} came back with another shape")


def _many_buffers(target: Target) -> None:
    """Many buffers live side by side without sharing a byte, and all come back."""
    pool = target.device.pool
    gc.collect()
    before = pool.live_blocks
    rng = target.rng("many_buffers")
    buffers = [_block(target, int(n)) for n in rng.integers(1, 3000, BUFFERS)]
    for i, buffer in enumerate(buffers):
        _set(buffer.array, i % 251)
    for i, buffer in enumerate(buffers):
        if (in_host(buffer.array) != i % 251).any():
            raise Fault(
                f"buffer {i} of {BUFFERS} does not hold what was written to it: buffers overlap"
            )
    if pool.live_blocks != before + BUFFERS:
        raise Fault(f"{BUFFERS} new buffers raise live_blocks by {pool.live_blocks - before}")
    del buffer
    buffers.clear()
    if pool.live_blocks != before:
        raise Fault(
            f"{pool.live_blocks - before} blocks of {BUFFERS} stay in use after all were dropped"
        )


def _reuse(target: Target) -> None:
    """Allocating and freeing again and again does not take ever more memory."""
    pool = target.device.pool
    sizes = [int(n) for n in target.rng("reuse").integers(1, 200_000, 20)]

    def turn() -> int:
        for n in sizes:
            buffer = _block(target, n)
            _set(buffer.array, 1)
        return pool.in_use_bytes + pool.cached_bytes

    first = turn()
    last = [turn() for _ in range(100)][-1]
    if last > first:
        raise Fault(
            f"100 turns of the same allocations raised the memory held from {first:,} to {last:,} bytes"
        )


def _accounting(target: Target) -> None:
    """The figures of memory in use follow what is allocated and freed."""
    pool = target.device.pool
    gc.collect()
    before = pool.in_use_bytes
    buffer = _block(target, 1_000_000)
    during, peak = pool.in_use_bytes, pool.peak_bytes
    del buffer
    if not before + 1_000_000 <= during <= peak or pool.in_use_bytes != before:
        text = f"in use: {before:,}, then {during:,} with 1,000,000 bytes more, then {pool.in_use_bytes:,}"
        raise Fault(f"{text}; peak {peak:,}")


def _out_of_memory(target: Target) -> None:
    """A request that no memory holds raises OutOfMemory, and the device works on."""
    for _ in range(3):
        try:
            _block(target, TOO_MUCH)
            what = "gave a buffer"
        except OutOfMemory:
            continue
        except BaseException as error:
            what = f"raised {type(error).__name__}: {error}"
        raise Fault(f"asking for {TOO_MUCH:,} bytes {what}, and not OutOfMemory")
    _round_trip(target, "float32")


TOPICS: dict[str, Callable[[Target], None]] = {
    "alignment": _alignment,
    "copies": _copies,
    "zero_bytes": _zero_bytes,
    "many_buffers": _many_buffers,
    "reuse": _reuse,
    "accounting": _accounting,
    "out_of_memory": _out_of_memory,
}
