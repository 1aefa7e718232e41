"""A device in Python whose memory is its own: buffers are handles into a private table."""

import itertools

import numpy as np

from mge.device import BACKENDS
from mge.plugin import Backend, CopyKind, OutOfMemory

OPS = {
    "add", "sub", "mul", "div", "neg", "exp", "relu", "matmul", "conv", "sum", "max", "where", "greater", "cast",
    "reshape", "transpose", "broadcast_to", "sqrt", "square", "max_pool", "flatten",
}  # fmt: skip


class Handle:
    """What the allocator gives: nothing can be done with it but to give it back."""

    def __init__(self, number):
        self.number = number


class Opaque(Backend):
    """Computes by the references, over bytes that only it can reach."""

    name = "opaque"
    priority = -1

    def __init__(self, capacity=1 << 28, ops=OPS):
        self.capacity, self.ops = capacity, ops
        self.table, self.numbers = {}, itertools.count()
        self.copies = dict.fromkeys(CopyKind, 0)  # bytes
        self.fail_at = None  # kernel calls that still work
        self.failure = RuntimeError("planned")

    def devices(self):
        return ("Opaque 1",)

    def allocator(self, dev):
        return self

    def alloc(self, nbytes, align, stream):
        if sum(b.size for b in self.table.values()) + nbytes > self.capacity:
            raise OutOfMemory(f"the table holds {self.capacity} bytes")
        handle = Handle(next(self.numbers))
        self.table[handle.number] = np.full(nbytes, 0xCC, np.uint8)
        return handle

    def free(self, memory, nbytes, stream):
        assert self.table.pop(memory.number).size == nbytes

    def bytes_of(self, array):
        return self.table[array.memory.number][array.offset : array.offset + array.nbytes]

    def values_of(self, array):
        return self.bytes_of(array).view(array.dtype).reshape(array.shape)

    def copy(self, dev, target, source, nbytes, kind, stream):
        self.copies[kind] += nbytes
        to = target if kind == CopyKind.DEVICE_TO_HOST else self.bytes_of(target)
        to[:] = source if kind == CopyKind.HOST_TO_DEVICE else self.bytes_of(source)

    def supports(self, dev, use):
        return None if use.op.name in self.ops else "not in its list"

    def kernel(self, dev, use):
        compute = BACKENDS["ref"].kernel(0, use)

        def kernel(inputs, outputs, stream):
            if self.fail_at is not None:
                self.fail_at -= 1
                if self.fail_at < 0:
                    raise self.failure
            compute([self.values_of(i) for i in inputs], [self.values_of(o) for o in outputs], None)

        return kernel


class Stream:
    """Work waits here until somebody needs it: what reads too early reads old bytes."""

    def __init__(self):
        self.queue = []

    def run_until(self, count):
        while len(self.queue) and count > 0:
            self.queue.pop(0)()
            count -= 1

    def sync(self):
        self.run_until(len(self.queue))


class Event:
    """Marks a place in a stream's queue."""

    def __init__(self):
        self.stream, self.reached = None, True

    def record(self, stream):
        self.stream, self.reached = stream, False
        stream.queue.append(lambda: setattr(self, "reached", True))

    def wait(self, stream):
        stream.queue.append(self.sync)

    def sync(self):
        while not self.reached:
            self.stream.run_until(1)


class OpaqueQueue(Opaque):
    """The same device, with streams."""

    name = "opaque_queue"

    def stream(self, dev):
        return Stream()

    def event(self, dev):
        return Event()

    def kernel(self, dev, use):
        compute = super().kernel(dev, use)

        def kernel(inputs, outputs, stream):
            if stream is None:
                return compute(inputs, outputs, None)
            inputs, outputs = list(inputs), list(outputs)
            stream.queue.append(lambda: compute(inputs, outputs, None))

        return kernel
