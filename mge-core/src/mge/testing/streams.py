"""Level L2: streams and events, where the backend has them.

In: a target. Out: cases ``L2/TOPIC`` and ``L2/OP/order``, ``L2/OP/event``.
After ``memory``; before ``ops``.

A backend in Python claims them by two methods. ``stream(dev)`` gives a queue with ``sync()``. ``event(dev)`` gives an
object with ``record(stream)``, ``wait(stream)`` (later work of that stream waits) and ``sync()`` (the caller waits).
A kernel that gets a stream puts its work there; with None it is complete on return. A library claims them by its
table; the core's executor uses them, so there the cases are plans.

What ignores its stream shows by reading too early: each check queues long work first, then what fills an input, and
only then the kernel.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..buffer import Buffer, in_host
from ..dtype import as_dtype, float32
from ..errors import OutOfMemory
from ..op import OPS
from ..tensor import tensor
from ..types import Type
from .cases import Fault, Variant, admit, far, far_from_scale, kernel_inputs, reference, same_bits
from .kernels import get_kernel, run_kernel
from .target import Refused, Skipped, Target

LONG_S = 0.002  # one kernel of the long work
LONG_COUNT = 8
MOST = 1 << 24  # elements
ROUNDS = 20
PLANS = 12


def cases(target: Target) -> Iterator[str]:
    """Yield the names of the cases."""
    yield "claim/both"
    if _is_claimed(target.backend):
        yield from ("stream/idle", "event/idle", "event/sync", "event/many")
        for name in target.ops():
            yield from (f"{name}/order", f"{name}/event")
    if getattr(target.backend, "has_streams", False):
        yield from (f"plan/{number:02}" for number in range(PLANS))


def _is_claimed(backend: Any) -> bool:
    """Whether a backend has one of the methods at least."""
    return callable(getattr(backend, "stream", None)) or callable(getattr(backend, "event", None))


def run(target: Target, subject: str, topic: str) -> None:
    """Run one case."""
    if subject == "claim":
        _both(target)
    elif subject == "plan":
        _plan(target, int(topic))
    else:
        _with_streams(target, subject, topic)


def _with_streams(target: Target, subject: str, topic: str) -> None:
    """Run a case on two new streams."""
    streams = [target.backend.stream(target.device.index) for _ in range(2)]
    bench = Bench(target)
    try:
        if topic == "idle":
            _idle(target, streams)
        elif subject == "event":
            (bench.sync if topic == "sync" else bench.many)(streams)
        else:
            bench.use(subject, streams if topic == "event" else streams[:1])
    except Fault:
        _LATE.append(bench)  # work that ignored its stream may still write there
        raise
    finally:
        for stream in streams:
            stream.sync()


_LATE: list[Any] = []


def _both(target: Target) -> None:
    """Streams and events come together."""
    if not _is_claimed(target.backend):
        if getattr(target.backend, "has_streams", False):
            return  # the core checks a library's table when it loads it
        raise Skipped("not claimed: the backend has no stream() and event()")
    for method in ("stream", "event"):
        if not callable(getattr(target.backend, method, None)):
            raise Fault(
                f"the backend has one of stream() and event(), and no {method}(): all or none"
            )


def _idle(target: Target, streams: Sequence[Any]) -> None:
    """A stream without work, and an event on it, are complete."""
    for stream in streams:
        stream.sync()
        event = target.backend.event(target.device.index)
        event.record(stream)
        event.wait(stream)
        event.sync()


def _plan(target: Target, number: int) -> None:
    """Values branch, cross and join in a plan: the same bits on each run, and what ``ref`` gives."""
    rng = target.rng("plan", number)
    width, shape = int(rng.integers(2, 7)), (int(rng.integers(1, 5)) * 8192,)
    leaves = [rng.uniform(-1, 1, shape).astype(np.float32) for _ in range(width)]
    choices = [
        (n, *rng.integers(0, width, 3)) for n in rng.choice(["add", "sub", "mul"], 6 * width)
    ]

    def program(device: Any) -> list[np.ndarray]:
        values = [tensor(a, device=device) for a in leaves]
        for name, to, one, other in choices:
            values[to] = OPS[name](values[one], values[other]) * 0.5
        return [v.numpy() for v in values]

    wanted = program("ref")
    runs = [program(target.device) for _ in range(8)]
    for turn, given in enumerate(runs):
        for i, (one, right) in enumerate(zip(given, wanted, strict=True)):
            problem = (
                far_from_scale(one, right, 100) or (turn > 1 and same_bits(one, runs[1][i])) or None
            )
            if problem:
                raise Fault(f"run {turn} of a plan over {width} branches, result {i}: {problem}")


class Bench:
    """Buffers and the kernels that keep a stream busy."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.kept: list[Buffer] = []
        self.pair: list[Any] = []

    def new(self, shape: tuple[int, ...], dtype: np.dtype, fill: int = 0xFF) -> Any:
        """Return an array of the device whose bytes make no sense yet: NaN in each float dtype."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return self.put(np.full(size, fill, np.uint8).view(dtype).reshape(shape))

    def put(self, array: np.ndarray) -> Any:
        """Return a copy on the device."""
        self.kept.append(self.target.device.upload(array))
        return self.kept[-1].array

    def event(self) -> Any:
        """Return a new event."""
        return self.target.backend.event(self.target.device.index)

    def adder(self, type_: Type) -> Any:
        """Return the device's kernel for ``x + x``, of one type."""
        zeros = np.zeros(type_.shape, type_.dtype.dtype)
        variant = admit(OPS["add"], "", (zeros, zeros), {}, self.target.device)
        if variant is None:
            raise Skipped(f"there is no add of {type_} to fill an input with")
        try:
            return get_kernel(self.target, variant)
        except Refused as refused:
            raise Skipped(
                f"the device refuses add of {type_}, which the check needs: {refused}"
            ) from None

    def busy(self, stream: Any) -> None:
        """Queue long work."""
        size, kernel = self._long_work(stream)
        if not self.pair:  # all that is busy writes the same zeros
            self.pair = [self.new((size,), float32.dtype, 0) for _ in range(2)]
        source, result = self.pair
        for _ in range(LONG_COUNT):
            run_kernel(kernel, [source, source], [result], stream)

    def _long_work(self, stream: Any) -> tuple[int, Any]:
        """Return a size for which adding takes long enough, and its kernel; found once."""
        found = vars(self.target).setdefault("long_work", None)
        size = 1 << 14
        while found is None:
            kernel = self.adder(Type((size,), float32))
            try:
                x, y = self.new((size,), float32.dtype, 0), self.new((size,), float32.dtype, 0)
            except OutOfMemory:  # then what a small device holds is long enough
                found = vars(self.target)["long_work"] = (
                    size // 4,
                    self.adder(Type((size // 4,), float32)),
                )
                break
            times = []
            for _ in range(2):
                start = time.perf_counter()
                run_kernel(kernel, [x, x], [y], stream)
                stream.sync()
                times.append(time.perf_counter() - start)
            del x, y, self.kept[-2:]
            if min(times) >= LONG_S or size >= MOST:
                found = vars(self.target)["long_work"] = (size, kernel)
            size *= 4
        return found

    def fill(self, array: np.ndarray, stream: Any) -> np.ndarray:
        """Queue work that puts the values of an array into a new buffer; return that buffer."""
        type_ = Type(array.shape, as_dtype(array.dtype))
        kernel = self.adder(type_)
        with np.errstate(all="ignore"):
            half = self.put((array / 2).astype(array.dtype))
        made = self.new(array.shape, array.dtype)
        run_kernel(kernel, [half, half], [made], stream)
        return made

    def sync(self, streams: Sequence[Any]) -> None:
        """What was queued before an event is complete when ``event.sync()`` returns."""
        value = np.array([1.0, -2.0, 3.5], np.float32)
        for stream in streams:
            self.busy(stream)
            made, event = self.fill(value, stream), self.event()
            event.record(stream)
            event.sync()
            problem = far(in_host(made), value)
            if problem:
                raise Fault(
                    f"after event.sync() the work before the event is not complete: {problem}"
                )

    def many(self, streams: Sequence[Any]) -> None:
        """Two streams hand a value to each other, many times."""
        kernel = self.adder(Type((4,), float32))
        value = self.put(np.ones(4, np.float32))
        for turn in range(ROUNDS):
            stream, following = streams[turn % 2], streams[(turn + 1) % 2]
            result, event = self.new((4,), float32.dtype), self.event()
            run_kernel(kernel, [value, value], [result], stream)
            event.record(stream)
            event.wait(following)
            value = result
        for stream in streams:
            stream.sync()
        problem = far(in_host(value), np.full(4, 2.0**ROUNDS, np.float32))
        if problem:
            raise Fault(f"a value that two streams doubled in turn, {ROUNDS} times: {problem}")

    def use(self, name: str, streams: Sequence[Any]) -> None:
        """A kernel reads what was queued before it: on its stream, or on another one before an event."""
        variant, place = self._fillable(name)
        kernel = get_kernel(self.target, variant)
        inputs = kernel_inputs(variant)
        wanted = reference(variant, inputs)
        outputs = [self.new(t.shape, t.dtype.dtype) for t in variant.sig.types]
        self.busy(streams[0])
        filled = self.fill(inputs[place], streams[0])
        inputs = [filled if i == place else self.put(a) for i, a in enumerate(inputs)]
        if len(streams) > 1:
            event = self.event()
            event.record(streams[0])
            event.wait(streams[1])
        run_kernel(kernel, inputs, outputs, streams[-1])
        streams[-1].sync()
        how = "ignored its stream: it read an input before, or wrote after"
        if len(streams) > 1:
            how = "did not wait for an event: its stream was told to, and it read an input before, or wrote after"
        for i, (one, other) in enumerate(zip(outputs, wanted, strict=True)):
            problem = far(in_host(one), other, variant.op)
            if problem:
                raise Fault(f"{variant}: the kernel {how} stream.sync(). Output {i}: {problem}")

    def _fillable(self, name: str) -> tuple[Variant, int]:
        """Return a use of an op that the device takes, and a float input that decides its result."""
        index, label = self.target.usable(name)
        variant = self.target.variant(name, index, label)
        for place, type_ in enumerate(variant.sig.input_types):
            if type_.dtype.is_float and type_.size:
                return variant, place
        raise Skipped("no use that the device takes has a float input")
