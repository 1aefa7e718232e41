"""Level L4: gradients through the device against those of ``ref``.

In: a target. Out: cases ``L4/OP/SAMPLE/DTYPE``.
After ``ops``; before ``graphs``.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import MgeError
from ..op import OPS
from .cases import REF, Fault, differentiable, far_from_scale, kernel_inputs, recorded
from .target import Refused, Skipped, Target

LABELS = ("float32", "float64")
FACTOR = 16  # tolerances: a gradient is several ops


def cases(target: Target) -> Iterator[str]:
    """Yield the names of the cases."""
    for name in target.ops():
        for index, (arrays, attrs) in enumerate(target.samples(name)):
            for label in LABELS:
                try:
                    if differentiable(OPS[name], label, arrays, attrs) is not None:
                        yield f"{name}/{index}/{label}"
                except MgeError:
                    continue


def run(target: Target, name: str, index: str, label: str) -> None:
    """Run one case: node by node, then as a plan."""
    variant = target.variant(name, int(index), label)
    arrays = kernel_inputs(variant)
    floats = [i for i, t in enumerate(variant.sig.input_types) if t.dtype.name == label]
    rng = target.rng(name, index, label, "weights")
    weights = {
        k: rng.normal(size=t.shape).astype(t.dtype.dtype)
        for k, t in enumerate(variant.sig.types)
        if t.dtype.name == label
    }
    on_ref = target.variant(name, int(index), label, device=REF)
    wanted = _values(recorded(on_ref, arrays, floats, weights)[2])
    if all(w is None for w in wanted):
        raise Skipped("it has no gradient by meaning")
    for how in ("node by node", "as a plan"):
        given = _values(recorded(variant, arrays, floats, weights, target.device)[2])
        for i, one, other in zip(floats, given, wanted, strict=True):
            if one is not None:
                problem = far_from_scale(one, other, FACTOR)
                if problem:
                    text = f"{variant}: the gradient of input {i}, computed {how}: {problem}"
                    raise Fault(text)
    reason = target.device.refusal(variant.sig)
    if reason is not None:
        raise Refused(reason)


def _values(gradients: list) -> list:
    return [None if g is None else g.numpy() for g in gradients]
