"""Level L3: each op × its samples × dtypes against the reference.

In: a target. Out: cases ``L3/OP/SAMPLE/DTYPE``, and ``L3/OP/large0/DTYPE``.
After ``kernels`` and ``large``; before ``gradients``.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np

from .cases import (
    TOLERANCE,
    Arrays,
    Fault,
    Variant,
    call,
    far,
    far_from_scale,
    kernel_inputs,
    read,
    reference,
    tensors,
)
from .kernels import FILLS, get_kernel, run_guarded, written
from .large import LARGE, large_cases, large_variant
from .target import Skipped, Target


def cases(target: Target) -> Iterator[str]:
    """Yield the names of the cases."""
    for name in target.ops():
        for index, labels in target.labels(name):
            for label in labels:
                yield f"{name}/{index}/{label}"
        for index, label in large_cases(target, name):
            yield f"{name}/large{index}/{label}"


def run(target: Target, name: str, index: str, label: str) -> None:
    """Run one case: the kernel by itself, then the op as a user calls it."""
    if index.startswith("large"):
        variant = large_variant(target, name, int(index.removeprefix("large")), label)
    else:
        variant = target.variant(name, int(index), label)
    kernel = get_kernel(target, variant)
    arrays, types = kernel_inputs(variant), variant.sig.types
    try:
        wanted = reference(variant, arrays)
    except Exception as error:
        if not index.startswith("large") or "::" not in name:
            raise
        raise Skipped(f"the op takes no values that lie between its sample's: {error}") from error
    one, other = (run_guarded(kernel, arrays, types, fill) for fill in FILLS)
    _compare(variant, one, wanted, "")
    written(one, other)
    if any(a.nbytes for a in arrays):
        shifted = run_guarded(kernel, arrays, types, shifted=True)
        _compare(variant, shifted, wanted, "with inputs that are aligned to their elements only, ")
    allowed = getattr(
        kernel, "inplace", None
    )  # a library's kernels say so; others do as the op does
    pairs = [
        (i, k)
        for i, k in variant.op.inplace_pairs(variant.sig)
        if (allowed is None or (i, k) in allowed)
        and variant.sig.input_types[i] is types[k]
        and types[k].nbytes
    ]
    for i, k in pairs:
        over = run_guarded(kernel, arrays, types, over=[(i, k)])
        _compare(variant, over, wanted, f"with output {k} over input {i}, ")
    together: dict[int, int] = {}  # as a plan does where all inputs may go
    for i, k in sorted(pairs, key=lambda pair: pair[1]):
        if i not in together.values():
            together.setdefault(k, i)
    if len(together) > 1:
        over = run_guarded(kernel, arrays, types, over=[(i, k) for k, i in together.items()])
        _compare(variant, over, wanted, "with all outputs over inputs that may be, ")
    _as_users_call_it(target, variant, wanted)


def _as_users_call_it(target: Target, variant: Variant, wanted: Arrays) -> None:
    """Call the op on tensors; all memory comes back."""
    pool = target.device.pool
    gc_needed, before = False, (pool.live_blocks, pool.in_use_bytes)
    _compare(variant, read(call(variant, tensors(variant, target.device))), wanted, "as a call, ")
    after = (pool.live_blocks, pool.in_use_bytes)
    if after != before:
        gc_needed = True
        gc.collect()
        after = (pool.live_blocks, pool.in_use_bytes)
    if after[0] > before[0]:
        how = " (after a garbage collection)" if gc_needed else ""
        raise Fault(
            f"{after[0] - before[0]} blocks, {after[1] - before[1]} bytes stay in use after a call{how}"
        )


def _compare(variant: Variant, given: Arrays | list[np.ndarray], wanted: Arrays, how: str) -> None:
    for i, (one, other) in enumerate(zip(given, wanted, strict=True)):
        problem = far(one, other, variant.op)
        if problem and one.dtype.name in TOLERANCE and one.size < LARGE <= _input_size(variant):
            problem = far_from_scale(one, other, 1)  # long sums, which may cancel
        if problem:
            raise Fault(f"{variant}: {how}output {i}: {problem}")


def _input_size(variant: Variant) -> int:
    return max((a.size for a in variant.arrays), default=0)
