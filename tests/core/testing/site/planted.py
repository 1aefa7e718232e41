"""Backends with one fault each, for the tests of the conformance kit. ``good`` and ``good_queue`` have none."""

import atexit
import ctypes
import os
import queue
import threading
import time

import numpy as np

from mge.buffer import aligned_bytes
from mge.errors import UnsupportedError
from mge.passes.rewrite import rebuild, with_inputs
from mge.plugin import HostBackend


def relu(inputs, outputs):
    np.maximum(inputs[0], 0, out=outputs[0])


class Good(HostBackend):
    name = "good"
    dtypes = ("float16", "float32", "float64")
    kernels = {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative, "tanh": np.tanh,
        "maximum": np.maximum, "relu": relu,
    }  # fmt: skip


def planted(name, op="add", **members):
    """Return a class like ``Good`` with another kernel for one op, or other members."""
    kernels = dict(Good.kernels)
    function = members.pop("function", None)
    if function is not None:
        kernels[op] = function
    made = type(name, (Good,), {"name": name, "kernels": kernels, **members})
    globals()[name] = made


# Wrong values and wrong bytes: L3.


def wrong_on_float16(inputs, outputs):
    np.add(*inputs, out=outputs[0])
    if outputs[0].dtype == np.float16:
        outputs[0][...] += np.float16(0.1)


def wrong_in_place(inputs, outputs):
    outputs[0][...] = 0
    for array in inputs:
        outputs[0][...] += array


def wants_aligned_inputs(inputs, outputs):
    if any(a.nbytes and a.ctypes.data % 64 for a in inputs):
        outputs[0][...] = 7
    else:
        np.add(*inputs, out=outputs[0])


def beside(array, offset, count):
    """Write ``count`` elements of 1, ``offset`` elements from the array's start."""
    where = array.ctypes.data + offset * array.itemsize
    ctypes.memset(where, 1, count * array.itemsize)


def writes_past(inputs, outputs):
    np.add(*inputs, out=outputs[0])
    beside(outputs[0], outputs[0].size, 3)


def writes_before(inputs, outputs):
    np.add(*inputs, out=outputs[0])
    beside(outputs[0], -2, 2)


def leaves_last(inputs, outputs):
    flat = outputs[0].reshape(-1)
    flat[:-1] = np.add(*inputs).reshape(-1)[:-1]


def changes_input(inputs, outputs):
    np.add(*inputs, out=outputs[0])
    inputs[1][...] = 0


def raises(inputs, outputs):
    raise ValueError("no plan for this size")


def refuses_late(inputs, outputs):
    raise UnsupportedError("only on Tuesdays")


def dies(inputs, outputs):
    if inputs[0].dtype == np.float64:
        ctypes.string_at(0)
    np.add(*inputs, out=outputs[0])


def exits(inputs, outputs):
    os._exit(3)


def hangs(inputs, outputs):
    if inputs[0].dtype == np.float64:
        time.sleep(1000)
    np.add(*inputs, out=outputs[0])


def wrong_from_129(inputs, outputs):
    np.add(*inputs, out=outputs[0])
    outputs[0].reshape(-1)[128:] += 1


def wrong_at_the_last(inputs, outputs):
    np.tanh(inputs[0], out=outputs[0])
    if outputs[0].size > 16384:
        outputs[0].reshape(-1)[-1] += 1


def wrong_in_large_matmuls(inputs, outputs, transpose_a=False, transpose_b=False):
    x, y = inputs
    x = np.swapaxes(x, -1, -2) if transpose_a else x
    y = np.swapaxes(y, -1, -2) if transpose_b else y
    np.matmul(x, y, out=outputs[0])
    if max(*x.shape, *y.shape) >= 9:
        outputs[0][..., 8:, :] = 0


planted("bad_dtype", function=wrong_on_float16)
planted("bad_tail", function=wrong_from_129)
planted("bad_last", "tanh", function=wrong_at_the_last)
planted("bad_tile", "matmul", function=wrong_in_large_matmuls)
planted("bad_in_place", function=wrong_in_place)
planted("bad_alignment", function=wants_aligned_inputs)
planted("bad_past", function=writes_past)
planted("bad_before", function=writes_before)
planted("bad_unwritten", function=leaves_last)
planted("bad_input", function=changes_input)
planted("bad_raise", function=raises)
planted("bad_promise", function=refuses_late)
planted("bad_crash", function=dies)
planted("bad_exit", function=exits)
planted("bad_hang", function=hangs)


# A contract that is not kept: L0 and L3.


class bad_supports(Good):
    name = "bad_supports"
    asked = 0

    def supports(self, dev, use):
        self.asked += 1
        match use.op.name:
            case "add":
                return ""
            case "sub":
                return f"request {self.asked}"
            case "mul":
                raise KeyError("mul")
            case "neg":
                return True
            case "tanh":
                return None  # and there is no kernel
        return super().supports(dev, use)

    def kernel(self, dev, use):
        if use.op.name == "tanh":
            raise LookupError("no such kernel")
        return super().kernel(dev, use)


class bad_methods(Good):
    name = "bad_methods"

    def supports(self, use):
        return "no kernel"


class bad_devices(Good):
    name = "bad_devices"
    count = 0

    def devices(self):
        self.count += 1
        return [f"board {self.count}"]


class bad_probe(Good):
    name = "bad_probe"
    probes = 0

    def probe(self):
        self.probes += 1
        return "the licence is used up" if self.probes > 1 else None


class absent(Good):
    name = "absent"

    def probe(self):
        return "no board in this machine"


def bad_load():
    ctypes.string_at(0)


class bad_end(Good):
    name = "bad_end"

    def __init__(self):
        atexit.register(os._exit, 5)


# Memory: L1 and L6.


class Counting:
    """A pool of blocks, with what a pool of the core has."""

    live_blocks = in_use_bytes = cached_bytes = peak_bytes = peak_reserved_bytes = 0

    shift = forgets = 0

    def take(self, nbytes):
        block = aligned_bytes(nbytes + self.shift)[self.shift :]
        self.live_blocks += 1
        self.in_use_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.in_use_bytes)
        return block

    allocate = take

    def give(self, block):
        self.live_blocks -= 1 - self.forgets
        self.in_use_bytes -= block.nbytes * (1 - self.forgets)

    def trim(self):
        pass

    def reset_peak(self):
        self.peak_bytes = self.in_use_bytes


class Odd(Counting):
    shift = 8


class Forgetful(Counting):
    forgets = 1


class Same(Counting):
    """Gives out one block again and again."""

    def take(self, nbytes):
        self.live_blocks += 1
        if not hasattr(self, "block"):
            self.block = aligned_bytes(1 << 21)
        return self.block[:nbytes]


planted("bad_memory_odd", pool=lambda self, dev: Odd())
planted("bad_memory_leak", pool=lambda self, dev: Forgetful())
planted("bad_memory_same", pool=lambda self, dev: Same())


# Gradients, graphs and robustness: L4 to L6.


def wrong_with_ones(inputs, outputs):
    """Right on the op's own samples, which hold no 1."""
    np.multiply(*inputs, out=outputs[0])
    if inputs[0].size > 1 and (inputs[0] == 1).all():
        outputs[0][...] *= 1.5


_KEPT = {}


def keeps_results(inputs, outputs):
    """Takes an address for a value: right until a buffer is used for another one."""
    key = tuple((a.ctypes.data, a.shape, a.dtype) for a in (*inputs, *outputs))
    if key not in _KEPT:
        _KEPT[key] = np.add(*inputs)
    outputs[0][...] = _KEPT[key]


_SCRATCH = np.empty(1 << 16)


def shares_scratch(inputs, outputs):
    scratch = _SCRATCH[: outputs[0].size].reshape(outputs[0].shape)
    scratch[...] = inputs[0]
    time.sleep(0)  # as a kernel does that lets the interpreter go
    outputs[0][...] = scratch + inputs[1]


_LEAKED = []


def leaks(inputs, outputs):
    np.add(*inputs, out=outputs[0])
    _LEAKED.append(np.empty(200, np.uint8))


def noise(inputs, outputs):
    np.add(*inputs, out=outputs[0])
    outputs[0][...] *= 1 + np.finfo(outputs[0].dtype).eps * (time.perf_counter_ns() // 100 % 2)


def loses_nan(inputs, outputs):
    np.fmax(*inputs, out=outputs[0])


def never_empty(inputs, outputs):
    if not outputs[0].size:
        raise RuntimeError("invalid configuration argument")
    np.add(*inputs, out=outputs[0])


planted("bad_backward", op="mul", function=wrong_with_ones)
planted("bad_graph", function=keeps_results)
planted("bad_threads", function=shares_scratch)
planted("bad_leak", function=leaks)
planted("bad_noise", function=noise)
planted("bad_nan", op="maximum", function=loses_nan)
planted("bad_empty", function=never_empty)


class bad_pass(Good):
    """Turns subtractions round when it sees a graph."""

    name = "bad_pass"

    def passes(self):
        def turn(node, inputs):
            return with_inputs(node, inputs[::-1] if node.sig.op.name == "sub" else inputs)

        return [("turn", lambda graph: rebuild(graph, turn))]


# Streams: L2.


class Stream:
    """A thread that does what is queued, a little later."""

    def __init__(self):
        self.work = queue.Queue()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            job = self.work.get()
            time.sleep(0.001)
            job()
            self.work.task_done()

    def sync(self):
        self.work.join()


class Event:
    def __init__(self):
        self.done = threading.Event()
        self.done.set()

    def record(self, stream):
        self.done = done = threading.Event()
        stream.work.put(done.set)

    def wait(self, stream):
        stream.work.put(self.done.wait)

    def sync(self):
        self.done.wait()


class good_queue(Good):
    name = "good_queue"

    def stream(self, dev):
        return Stream()

    def event(self, dev):
        return Event()

    def kernel(self, dev, use):
        function = super().kernel(dev, use)

        def kernel(inputs, outputs, stream):
            if stream is None:
                function(inputs, outputs, None)
            else:
                stream.work.put(lambda: function(inputs, outputs, None))

        return kernel


class bad_stream(good_queue):
    """``neg`` runs at once, whatever its stream has to do before."""

    name = "bad_stream"

    def kernel(self, dev, use):
        right, plain = super().kernel(dev, use), Good.kernel(self, dev, use)
        return plain if use.op.name == "neg" else right


class bad_event(good_queue):
    """A stream does not wait for events."""

    name = "bad_event"

    def event(self, dev):
        made = Event()
        made.wait = lambda stream: None
        return made


class bad_event_sync(good_queue):
    """``event.sync()`` does not wait."""

    name = "bad_event_sync"

    def event(self, dev):
        made = Event()
        made.sync = lambda: None
        return made


class half_queue(good_queue):
    name = "half_queue"
    event = None
