"""Kernels run between guard bytes: what they write, leave unwritten, and change.

In: a kernel and its inputs. Out: its outputs, or a ``Fault`` that says which byte is wrong.
After ``target``; before ``ops``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..buffer import Buffer, DeviceArray, aligned_bytes, transfer
from ..device import Device, is_free
from ..errors import UnsupportedError
from ..registry import library_kernel
from ..types import Type
from .cases import Fault, Variant
from .target import Refused, Skipped, Target

BEFORE, AFTER = 64, 256  # guard bytes around an array
FILLS = (0xA5, 0x5A)
NAN = 0xFF  # as guard bytes of an input: NaN in each float dtype, for a kernel that reads past it


class Room:
    """An array between guard bytes.

    Parameters
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    fill : int
        Of each byte, the guards' too.
    shift : int, bytes
        How far the array's address is from a multiple of 64.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, fill: int, shift: int = 0) -> None:
        nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        self.fill, self.start, self.end = fill, BEFORE + shift, BEFORE + shift + nbytes
        self.bytes = aligned_bytes(self.end + AFTER)
        self.bytes[:] = fill
        self.there: Buffer | None = None
        self.array = self.bytes[self.start : self.end].view(dtype).reshape(shape)

    def put(self, device: Device | None) -> Any:
        """Return the array as a kernel gets it: on a device with memory of its own, a copy there, guards and all."""
        if device is None:
            return self.array
        if self.there is None:
            self.there = device.upload(self.bytes)
        part = self.there.array[self.start : self.end]
        return part.view(self.array.dtype).reshape(self.array.shape)

    def fetch(self) -> None:
        """Copy back what a kernel left."""
        if self.there is not None:
            transfer(self.bytes, self.there.array)

    def trespass(self) -> str | None:
        """Say how many guard bytes were written, and where, or return None."""
        for guard, place in (
            (self.bytes[: self.start], "before"),
            (self.bytes[self.end :], "past"),
        ):
            (where,) = np.nonzero(guard != self.fill)
            if where.size:
                distance = len(guard) - where[0] if place == "before" else where[-1] + 1
                edge = "the start" if place == "before" else "the end"
                return f"wrote {where.size} bytes {place} {edge} of it, up to {distance} bytes away"
        return None


def input_rooms(arrays: Sequence[np.ndarray], shifted: bool = False) -> list[Room]:
    """Return rooms that hold copies of arrays; ``shifted`` aligns them to their element only, as views may be."""
    rooms = []
    for array in arrays:
        room = Room(array.shape, array.dtype, NAN, array.dtype.itemsize * shifted)
        np.copyto(room.array, array)
        rooms.append(room)
    return rooms


def get_kernel(target: Target, variant: Variant) -> Any:
    """Return the kernel for a use of an op.

    Raises
    ------
    Refused
        The device has none.
    Skipped
        It is the core that runs it.
    Fault
        ``supports`` does not keep to the contract.
    """
    sig = variant.sig
    own = library_kernel(target.device.type, sig) if "::" in sig.op.name else None
    if own is None and is_free(sig):
        raise Skipped("the core runs it")
    if own is None:
        answers = []
        for _ in range(2):
            try:
                answers.append(target.backend.supports(target.device.index, sig))
            except Exception as error:
                text = f"supports raised {type(error).__name__}: {error}; it must give None, or the reason"
                raise Fault(text) from error
        if not isinstance(answers[0], str | None):
            raise Fault(f"supports gave {answers[0]!r}; it must give None, or the reason")
        if answers[0] != answers[1]:
            raise Fault(f"supports gave {answers[0]!r}, then {answers[1]!r} for the same use")
        if answers[0] is not None and not answers[0].strip():
            raise Fault("supports gave an empty text; a refusal states its reason")
    reason = target.device.refusal(sig)
    if reason is not None:
        raise Refused(reason)
    kernel = target.device.kernel(sig)
    return kernel if target.device.is_host else OnDevice(kernel, target.device)


class OnDevice:
    """A kernel of a device with memory of its own, which takes arrays of the host as well: they are copied."""

    def __init__(self, kernel: Any, device: Device) -> None:
        self.kernel, self.device = kernel, device

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], stream: Any) -> None:
        there = [
            Buffer(a) if isinstance(a, DeviceArray) else self.device.upload(a)
            for a in (*inputs, *outputs)
        ]
        arrays = [b.array for b in there]
        self.kernel(arrays[: len(inputs)], arrays[len(inputs) :], stream)
        for output, made in zip(outputs, arrays[len(inputs) :]):
            if output is not made:
                transfer(output, made)


def run_kernel(
    kernel: Any, inputs: Sequence[Any], outputs: Sequence[Any], stream: Any = None
) -> None:
    """Run a kernel that ``supports`` promised; whatever it raises is a fault."""
    try:
        with np.errstate(all="ignore"):
            kernel(inputs, outputs, stream)
    except (UnsupportedError, NotImplementedError) as error:
        text = f"supports accepted this use, and the kernel refused it: {error}"
        raise Fault(text) from error
    except Exception as error:
        text = f"supports accepted this use, and the kernel raised {type(error).__name__}: {error}"
        raise Fault(text) from error


def run_guarded(
    kernel: Any,
    arrays: Sequence[np.ndarray],
    types: Sequence[Type],
    fill: int = FILLS[0],
    shifted: bool = False,
    over: Sequence[tuple[int, int]] = (),
) -> list[np.ndarray]:
    """Run a kernel between guard bytes; return its outputs.

    Parameters
    ----------
    kernel : callable
    arrays : sequence of ndarray
        Its inputs; it gets copies.
    types : sequence of Type
        Of its outputs.
    fill : int
        What the bytes of the outputs are before.
    shifted : bool
        Align the inputs to their elements only.
    over : sequence of (input, output)
        Let outputs lie over inputs.

    Raises
    ------
    Fault
        It raised, wrote outside its outputs, or changed an input.
    """
    rooms = input_rooms(arrays, shifted)
    results = [Room(t.shape, t.dtype.dtype, fill) for t in types]
    for i, k in over:
        results[k] = rooms[i]
    device = getattr(kernel, "device", None)
    run_kernel(kernel, [r.put(device) for r in rooms], [r.put(device) for r in results])
    for room in (*rooms, *results):
        room.fetch()
    for i, (room, type_) in enumerate(zip(results, types)):
        trespass = room.trespass()
        if trespass:
            raise Fault(f"output {i} ({type_}): the kernel {trespass}")
    for i, (room, array) in enumerate(zip(rooms, arrays)):
        if any(i == source for source, _ in over):
            continue
        trespass = room.trespass()
        if trespass:
            raise Fault(f"input {i}: the kernel {trespass}")
        if room.array.tobytes() != array.tobytes():
            count = int((_bytes(room.array) != _bytes(array)).sum())
            raise Fault(
                f"input {i}: the kernel changed {count} bytes of it; inputs are never written"
            )
    return [r.array for r in results]


def written(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> None:
    """Check the outputs of two runs that began with different bytes.

    Raises
    ------
    Fault
        Bytes were left as they were, or the two runs differ.
    """
    for i, (a, b) in enumerate(zip(one, other, strict=True)):
        x, y = _bytes(a), _bytes(b)
        left = int(((x == FILLS[0]) & (y == FILLS[1])).sum())
        if left:
            raise Fault(f"output {i}: the kernel left {left} of {x.size} bytes unwritten")
        if (x != y).any():
            count = int((x != y).sum())
            raise Fault(
                f"output {i}: two runs on the same inputs differ in {count} of {x.size} bytes"
            )


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(array.tobytes(), np.uint8)
