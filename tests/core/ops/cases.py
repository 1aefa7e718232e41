"""The cases of the generated tests: op x sample x dtype, read from the op records.

In: ``mge.op.OPS``. Out: lists of pytest parameters, and helpers that build inputs and run a case.
Before ``test_generated``, ``test_gradient`` and ``test_record``.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest

import mge
from mge.device import aligned_bytes, as_device
from mge.dtype import DTYPES, as_dtype
from mge.errors import DTypeError, MgeError
from mge.graph import Signature
from mge.op import OPS
from mge.types import Type

# How far a device, or a lowering, may be from the reference: |a - b| <= tolerance * (1 + |b|).
# About eight units in the last place; an op with ``tolerance`` says why in its record. Other dtypes are exact.
TOLERANCE = {"float64": 2e-12, "float32": 2e-6, "float16": 8e-3, "bfloat16": 6e-2}

FLOATS = [d for d in DTYPES.values() if d.is_float]
INTEGERS = [d for d in DTYPES.values() if d.is_integer]
BOOL = DTYPES["bool"]
REF = as_device("ref")


class Variant(NamedTuple):
    """One sample under one dtype, as the op's rule admits it."""

    op: Any
    label: str
    arrays: tuple[np.ndarray, ...]
    attrs: dict[str, Any]
    sig: Signature


def normal_inputs(inputs):
    """Return the arrays of a sample: one for each input, without optional ones that are left out."""
    if not isinstance(inputs, tuple | list):
        inputs = (inputs,)
    if len(inputs) == 1 and isinstance(inputs[0], list | tuple):
        inputs = inputs[0]  # a variadic op's list
    inputs = list(inputs)
    while inputs and inputs[-1] is None:
        inputs.pop()
    return tuple(np.asarray(i.numpy() if isinstance(i, mge.Tensor) else i) for i in inputs)


def all_samples(op, rng):
    """Return the samples of an op as (arrays, attributes)."""
    if op._samples is None:
        return []
    return [(normal_inputs(inputs), dict(attrs)) for inputs, attrs in op._samples(rng)]


def sample(op, index, rng):
    """Return one sample, drawn from the test's own random numbers."""
    inputs, attrs = next(itertools.islice(op._samples(rng), index, None))
    return normal_inputs(inputs), dict(attrs)


def swept(arrays):
    """Yield (label, arrays) for each dtype that a sample may be tried in.

    float64 arrays stand for any float, integer arrays for any integer. Floats that are whole numbers after
    rounding stand for integers and bools too; arrays of other dtypes stay as they are.
    """
    floats = [a.dtype == np.float64 for a in arrays]
    integers = [a.dtype.kind in "iu" for a in arrays]
    if not any(floats) and not any(integers):
        yield "fixed", arrays
        return
    for dtype in FLOATS if any(floats) else []:
        yield dtype.name, tuple(a.astype(dtype.dtype) if f else a for a, f in zip(arrays, floats))
    for dtype in [*INTEGERS, BOOL]:
        if any(integers):
            info = np.iinfo(dtype.dtype) if dtype.is_integer else None
            chosen = [a for a, i in zip(arrays, integers) if i and a.size]
            if info is None or any(a.min() < info.min or a.max() > info.max for a in chosen):
                continue
            made = [
                a.astype(dtype.dtype) if i else a.astype(np.float32) if f else a
                for a, f, i in zip(arrays, floats, integers)
            ]
        elif dtype is BOOL:
            made = [a > 0 if f else a for a, f in zip(arrays, floats)]
        else:
            made = [
                np.minimum(np.abs(np.rint(a)), 100).astype(dtype.dtype) if f else a
                for a, f in zip(arrays, floats)
            ]
        yield dtype.name, tuple(made)


def admit(op, label, arrays, attrs, device=REF, refusal=DTypeError):
    """Return the variant, or None where the rule refuses it."""
    types = [Type(a.shape, as_dtype(a.dtype)) for a in arrays]
    try:
        sig = op.signature(types, op.normal_attrs(attrs), device)
    except refusal:
        return None
    return Variant(op, label, arrays, dict(attrs), sig)


def variants(name, index, rng, device=REF):
    """Return each dtype variant of a sample that the rule admits, under its label."""
    op = OPS[name]
    arrays, attrs = sample(op, index, rng)
    integral = (
        {d.name for d in [*INTEGERS, BOOL]} if not any(a.dtype.kind in "iu" for a in arrays) else ()
    )
    found = []
    for label, made in swept(arrays):
        # Floats tried as integers may also be refused for the attributes, as x**-1 is.
        refusal = MgeError if label in integral else DTypeError
        found.append(admit(op, label, made, attrs, device, refusal))
    found = [v for v in found if v is not None]
    assert found, f"{name}: the rule admits no dtype for sample {index}: {arrays}, {attrs}"
    return found


def aligned(array):
    """Return a read-only copy whose address is a multiple of 64, as the kernels get it."""
    made = aligned_bytes(array.nbytes).view(array.dtype).reshape(array.shape)
    np.copyto(made, array)
    made.flags.writeable = False
    return made


def kernel_inputs(variant):
    """Return the arrays that the reference sees: cast as the call casts them."""
    pairs = zip(variant.arrays, variant.sig.input_types, strict=True)
    with np.errstate(all="ignore"):
        return [aligned(a.astype(t.dtype.dtype)) for a, t in pairs]


def plain_reference(variant, arrays=None):
    """Return what the reference gives when it is called on arrays, as a tuple."""
    sig, op = variant.sig, variant.op
    arrays = kernel_inputs(variant) if arrays is None else arrays
    attrs = dict(sig.attrs)
    with np.errstate(all="ignore"):
        if sig.single and op.writes_out:
            out = aligned_bytes(sig.type.nbytes).view(sig.type.dtype.dtype).reshape(sig.type.shape)
            op._reference(*arrays, out=out, **attrs)
            return (out,)
        results = op._reference(*arrays, **attrs)
    return (results,) if sig.single else tuple(results)


def reference(variant, arrays=None):
    """Return the results of the reference in the dtypes that the rule says, as a device gives them."""
    results = plain_reference(variant, arrays)
    assert len(results) == len(variant.sig.types), f"{variant.op.name}: {len(results)} results"
    with np.errstate(all="ignore"):
        return tuple(
            np.asarray(r).astype(t.dtype.dtype) for r, t in zip(results, variant.sig.types)
        )


def tensors(variant, device="ref"):
    """Return the inputs of a variant as new tensors."""
    return [mge.tensor(a, dtype=a.dtype, device=device) for a in variant.arrays]


def as_tuple(result):
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def call(variant, inputs):
    """Call the op on tensors; the outputs come as a tuple."""
    return as_tuple(variant.op(*inputs, **variant.attrs))


def read(results):
    """Return the values of tensors as arrays."""
    return tuple(r.numpy() for r in results)


def same_bits(one, other):
    """Say how two arrays differ bit for bit, or return None."""
    one, other = np.asarray(one), np.asarray(other)
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return f"{one.dtype}{one.shape} and {other.dtype}{other.shape}"
    if one.tobytes() == other.tobytes():
        return None
    return f"values differ:\n{one}\n{other}"


def far(one, other, op=None):
    """Say how ``one`` is outside the tolerance around ``other``, or return None."""
    one, other = np.asarray(one), np.asarray(other)
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return f"{one.dtype}{one.shape} in place of {other.dtype}{other.shape}"
    name = one.dtype.name
    tolerance = TOLERANCE.get(name, 0)
    if op is not None:
        tolerance = op.tolerance.get(name, tolerance)
    a, b = (x.astype(np.float64) if name in TOLERANCE else x for x in (one, other))
    with np.errstate(all="ignore"):
        equal = (a == b) | ((a != a) & (b != b))
        if tolerance:
            equal |= np.abs(a - b) <= tolerance * (1 + np.abs(b))
    if equal.all():
        return None
    return (
        f"{(~equal).sum()} of {equal.size} values are off, tolerance {tolerance}:\n{one}\n{other}"
    )


class Faults(list):
    """What is wrong with the variants of one sample: one line for each, raised together."""

    def note(self, variant, what):
        if what:
            self.append(f"{variant.op.name}[{variant.label}] {describe(variant)}: {what}")

    def check(self):
        if self:
            raise AssertionError(
                "\n".join(self[:4] + [f"and {len(self) - 4} more"] * (len(self) > 4))
            )


def describe(variant):
    types = ", ".join(repr(Type(a.shape, as_dtype(a.dtype))) for a in variant.arrays)
    return f"({types}) {variant.attrs or ''}".strip()


def _collect():
    """Return (op name, sample index, whether it has a derivative) of each sample, drawn once to count them."""
    found = []
    for name, op in sorted(OPS.items()):
        try:
            drawn = all_samples(op, np.random.default_rng(0))
        except Exception:  # test_samples_exist shows it
            continue
        for index, (arrays, attrs) in enumerate(drawn):
            found.append((name, index, _differentiable(op, arrays, attrs)))
    return found


def _differentiable(op, arrays, attrs):
    if not any(a.dtype == np.float64 for a in arrays):
        return False
    try:
        variant = admit(op, "float64", arrays, attrs)
    except Exception:  # test_shape_rule shows it
        return False
    return variant is not None and any(t.dtype == np.float64 for t in variant.sig.types)


_FOUND = _collect()
NAMES = sorted(OPS)
CASES = [pytest.param(name, index, id=f"{name}-{index}") for name, index, _ in _FOUND]
# "custom" passes results on that its caller computed: their gradient is not a derivative of the op.
SMOOTH = [
    pytest.param(name, i, id=f"{name}-{i}-float64")
    for name, i, smooth in _FOUND
    if smooth and name != "custom"
]
