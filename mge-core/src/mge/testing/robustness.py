"""Level L6: what must not break a backend: odd calls, odd values, threads, many runs, the end of the process.

In: a target. Out: cases ``L6/OP/TOPIC``, and ``L6/strategy/NAME`` for each installed memory strategy.
After ``graphs``; before ``levels``.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np

from .. import registry
from ..debug import debug
from ..device import Device
from ..errors import InternalError, MgeError, PluginContractError
from ..graph import LOCAL, Recording
from ..memory import memory
from ..op import OPS
from ..tensor import tensor
from .cases import (
    REF,
    Fault,
    Variant,
    admit,
    as_tuple,
    call,
    far,
    far_from_scale,
    kernel_inputs,
    read,
    reference,
    same_bits,
    sample,
    tensors,
)
from .graphs import FACTOR, Program
from .heap import heap_bytes
from .impossible import odd_calls
from .kernels import get_kernel, run_guarded, run_kernel
from .target import Refused, Skipped, Target

EXTREME = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, -2.5]
MOST_BYTES = 1 << 16  # results of odd calls that are computed
RUNS = 1000
MOST_S = 2.0  # for one measurement of many runs
THREAD_RUNS = 60
STRATEGY_PROGRAMS = 4


def cases(target: Target) -> Iterator[str]:
    """Yield the names of the cases."""
    for name in target.ops():
        yield from (f"{name}/{topic}" for topic in TOPICS)
    yield from (f"strategy/{name}" for name in registry.names("memory"))


def run(target: Target, name: str, topic: str) -> None:
    """Run one case."""
    if name == "strategy":
        _strategy(target, topic)
    else:
        TOPICS[topic](target, name)


def _strategy(target: Target, name: str) -> None:
    """A program and its gradients, planned by a memory strategy, give what they give on ``ref``."""
    with debug(fallback="allow"):
        for number in range(STRATEGY_PROGRAMS):
            program = Program(target, "gradient", number)
            for turn in range(3):  # node by node, a new plan, a kept one
                wanted = program.run("ref", turn)
                with memory(name):
                    given = program.run(target.device, turn)
                for i, (one, other) in enumerate(zip(given, wanted, strict=True)):
                    problem = far_from_scale(one, other, FACTOR)
                    if problem:
                        raise Fault(f'strategy "{name}", result {i} is wrong: {problem}\n{program}')


def _outputs(variant: Variant) -> list[np.ndarray]:
    return [np.empty(t.shape, t.dtype.dtype) for t in variant.sig.types]


def _odd_calls(target: Target, name: str) -> None:
    """A call that makes no sense raises an error of mge; one that makes sense gives what ``ref`` gives."""
    if name == "host_call":
        raise Skipped("the errors are those of the user's function")
    index, label = target.usable(name)
    arrays, attrs = sample(OPS[name], index, target.rng(name))
    arrays = tuple(
        a.astype(label) if a.dtype == np.float64 and "float" in label else a for a in arrays
    )
    for inputs, changed in odd_calls(arrays, attrs, OPS[name]):
        LOCAL.recording = Recording()
        shown = [f"{i.dtype}{i.shape}" if isinstance(i, np.ndarray) else i for i in inputs]
        where = f"{name}(*{shown}, **{changed})"
        try:
            given = _called(name, inputs, changed, target.device)
        except (InternalError, PluginContractError) as error:
            raise Fault(f"{where} raised {type(error).__name__}: {error}") from error
        except MgeError:
            continue
        except Exception as error:
            raise Fault(
                f"{where} raised {type(error).__name__}: {error}; it must be an error of mge"
            ) from error
        for i, (one, other) in enumerate(
            zip(given, _called(name, inputs, changed, REF), strict=True)
        ):
            problem = far(one, other, OPS[name])
            if problem:
                raise Fault(f"{where}, output {i}: {problem}")


def _called(name: str, inputs: tuple, attrs: dict, device: Device) -> tuple[np.ndarray, ...]:
    made = [
        tensor(i, dtype=i.dtype, device=device) if isinstance(i, np.ndarray) else i for i in inputs
    ]
    results = as_tuple(OPS[name](*made, **attrs))
    return () if sum(r._node.type.nbytes for r in results) > MOST_BYTES else read(results)


def _extreme(target: Target, name: str) -> None:
    """NaN, infinities and empty inputs: elementwise ops give what NumPy gives, others write only their outputs."""
    op = OPS[name]
    count, refused = 0, None
    for label in ("float16", "bfloat16", "float32", "float64"):
        for variant in _extreme_variants(target, name, label):
            try:
                kernel = get_kernel(target, variant)
            except Refused as error:
                refused = error
                continue
            arrays = kernel_inputs(variant)
            try:
                wanted = reference(variant, arrays)
            except MgeError:  # as from a decomposition of NaN
                continue
            given = run_guarded(kernel, arrays, variant.sig.types)
            count += 1
            if isinstance(op._reference, np.ufunc):
                for one, other in zip(given, wanted, strict=True):
                    problem = far(one, other, op)
                    if problem:
                        raise Fault(f"{variant}, with NaN and infinities: {problem}")
    if not count:
        raise refused or Skipped("it takes no floats")


def _extreme_variants(target: Target, name: str, label: str) -> Iterator[Variant]:
    """Yield uses of an op with odd values: all pairs of them for an elementwise one, else samples with some."""
    op = OPS[name]
    dtype = np.dtype(np.float64) if label == "float64" else tensor([0.0], dtype=label).dtype.dtype
    if isinstance(op._reference, np.ufunc) and not op.attr_names:
        line = np.array(EXTREME)
        grid = tuple(a.ravel() for a in np.meshgrid(*[line] * len(op.input_names)))
        for arrays in (grid, tuple(a[:0] for a in grid)):
            made = admit(
                op, label, tuple(a.astype(dtype) for a in arrays), {}, target.device, MgeError
            )
            if made is not None:
                yield made
        return
    rng = target.rng(name, "extreme")
    for arrays, attrs in target.samples(name):
        if not any(a.dtype == np.float64 and a.size for a in arrays):
            continue
        spoilt = []
        for array in arrays:
            if array.dtype == np.float64 and array.size:
                array = array.astype(dtype)
                array.flat[rng.integers(0, array.size)] = rng.choice(EXTREME[:3])
            spoilt.append(array)
        made = admit(op, label, tuple(spoilt), attrs, target.device, MgeError)
        if made is not None:
            yield made


def _threads(target: Target, name: str) -> None:
    """One kernel runs in two threads at once, on other values: each gets its own result."""
    index, label = target.usable(name)
    jobs: list[tuple[Variant, list[np.ndarray], list[np.ndarray]]] = []
    for draw in (0, 1):
        variant = target.variant(name, index, label, draw)
        if draw and variant.sig is not jobs[0][0].sig:
            variant = jobs[0][0]
        inputs, wanted = kernel_inputs(variant), _outputs(variant)
        run_kernel(get_kernel(target, variant), inputs, wanted)
        jobs.append((variant, inputs, wanted))
    kernel, start = get_kernel(target, jobs[0][0]), threading.Barrier(2)
    faults: list[str] = []

    def work(variant: Variant, inputs: list[np.ndarray], wanted: list[np.ndarray]) -> None:
        start.wait()
        for turn in range(THREAD_RUNS):
            outputs = _outputs(variant)
            try:
                run_kernel(kernel, inputs, outputs)
            except Fault as fault:
                faults.append(str(fault))
                return
            problem = next(filter(None, map(same_bits, outputs, wanted)), None)
            if problem:
                faults.append(
                    f"run {turn} beside another thread differs from a run alone: {problem}"
                )
                return

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=job, daemon=True) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if faults:
        raise Fault(f"{jobs[0][0]}: {faults[0]}")


def _repeat(target: Target, name: str) -> None:
    """The same kernel on the same inputs gives the same bits, each time."""
    variant = target.variant(name, *target.usable(name))
    kernel, inputs = get_kernel(target, variant), kernel_inputs(variant)
    first = _outputs(variant)
    run_kernel(kernel, inputs, first)
    for turn in range(1, 20):
        outputs = _outputs(variant)
        run_kernel(kernel, inputs, outputs)
        for one, other in zip(outputs, first, strict=True):
            problem = same_bits(one, other)
            if problem:
                raise Fault(f"{variant}: run {turn} differs from the first: {problem}")


def _leak(target: Target, name: str) -> None:
    """A thousand runs of a kernel, and a hundred calls, hold no more memory than a few do."""
    variant = target.variant(name, *target.usable(name))
    kernel, inputs, outputs = get_kernel(target, variant), kernel_inputs(variant), _outputs(variant)

    def once() -> None:
        with np.errstate(all="ignore"):
            kernel(inputs, outputs, None)

    _check_growth(once, "run of the kernel")
    pool = target.device.pool
    before = pool.live_blocks
    for _ in range(100):
        read(call(variant, tensors(variant, target.device)))
    if pool.live_blocks > before:
        raise Fault(f"{pool.live_blocks - before} blocks stay in use after 100 calls")


def _check_growth(once: Callable[[], None], what: str) -> None:
    """Check that neither the heap nor the number of Python objects grows with each run."""
    start, runs = time.perf_counter(), RUNS // 5
    for _ in range(runs):
        once()
        if time.perf_counter() - start > MOST_S / 4:
            runs = 20
            break
    else:
        runs = 2 * runs
    if _growth(once, runs, collect=False):
        found = _growth(once, runs, collect=True)  # slower; what a collection frees is no leak
        if found:
            raise Fault(f"each {what} keeps about {found}: it leaks")


def _growth(once: Callable[[], None], runs: int, collect: bool) -> str:
    """Return what each run keeps, as text; empty where it keeps nothing."""
    figures = []
    for turn in range(3):  # growth in both halves is a leak; in the first alone it is a cache
        for _ in range(runs if turn else 0):
            once()
        if collect:
            gc.collect()
        figures.append((heap_bytes(), sys.getallocatedblocks()))
    for k, unit in enumerate(("bytes of the heap", "Python objects")):
        grown = min(figures[1][k] - figures[0][k], figures[2][k] - figures[1][k])
        if grown >= 0.9 * runs:
            return f"{grown / runs:.0f} {unit}"
    return ""


TOPICS: dict[str, Callable[[Target, str], None]] = {
    "odd_calls": _odd_calls,
    "extreme": _extreme,
    "threads": _threads,
    "repeat": _repeat,
    "leak": _leak,
}
