"""Inputs for whatever tests ops: op × sample × dtype, read from the op records.

In: ``mge.op.OPS``. Out: variants (one sample under one dtype), their inputs, the reference's results, and comparisons.
After the core; before the levels. The generated tests of the core read it, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..buffer import aligned_bytes
from ..device import Device, as_device
from ..dtype import DTYPES, as_dtype
from ..errors import DTypeError, MgeError
from ..grad import gradients
from ..graph import Signature
from ..op import OPS, Op
from ..tensor import Tensor, tensor
from ..types import Type

# How far a device, or a lowering, may be from the reference: |a - b| <= tolerance * (1 + |b|).
# About eight units in the last place; an op with ``tolerance`` says why in its record. Other dtypes are exact.
TOLERANCE = {"float64": 2e-12, "float32": 2e-6, "float16": 8e-3, "bfloat16": 6e-2}

FLOATS = [d for d in DTYPES.values() if d.is_float]
INTEGERS = [d for d in DTYPES.values() if d.is_integer]
BOOL = DTYPES["bool"]
REF = as_device("ref")

Arrays = tuple[np.ndarray, ...]


class Fault(AssertionError):
    """What a backend, or an op record, does wrong."""


class Variant(NamedTuple):
    """One sample under one dtype, as the op's rule admits it.

    Attributes
    ----------
    op : Op
    label : str
        The dtype that was swept, or ``"fixed"``.
    arrays : tuple of ndarray
        As the user gives them; ``kernel_inputs`` has them as the kernel gets them.
    attrs : dict
    sig : Signature
    """

    op: Op
    label: str
    arrays: Arrays
    attrs: dict[str, Any]
    sig: Signature

    def __str__(self) -> str:
        types = ", ".join(repr(Type(a.shape, as_dtype(a.dtype))) for a in self.arrays)
        return f"({types}) {self.attrs or ''}".strip()


def normal_inputs(inputs: Any) -> Arrays:
    """Return the arrays of a sample: one for each input, without optional ones that are left out."""
    if not isinstance(inputs, tuple | list):
        inputs = (inputs,)
    if len(inputs) == 1 and isinstance(inputs[0], list | tuple):
        inputs = inputs[0]  # a variadic op's list
    inputs = list(inputs)
    while inputs and inputs[-1] is None:
        inputs.pop()
    return tuple(np.asarray(i.numpy() if isinstance(i, Tensor) else i) for i in inputs)


def all_samples(op: Op, rng: np.random.Generator) -> list[tuple[Arrays, dict[str, Any]]]:
    """Return the samples of an op as (arrays, attributes)."""
    if op._samples is None:
        return []
    return [(normal_inputs(inputs), dict(attrs)) for inputs, attrs in op._samples(rng)]


def sample(op: Op, index: int, rng: np.random.Generator) -> tuple[Arrays, dict[str, Any]]:
    """Return one sample, drawn from the caller's random numbers."""
    if op._samples is None:
        raise Fault(f"{op.name} has no samples, so nothing tests it")
    inputs, attrs = next(itertools.islice(op._samples(rng), index, None))
    return normal_inputs(inputs), dict(attrs)


def swept(arrays: Arrays) -> Iterator[tuple[str, Arrays]]:
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


def admit(
    op: Op,
    label: str,
    arrays: Arrays,
    attrs: dict[str, Any],
    device: Device = REF,
    refusal: type[MgeError] = DTypeError,
) -> Variant | None:
    """Return the variant, or None where the rule refuses it."""
    types = [Type(a.shape, as_dtype(a.dtype)) for a in arrays]
    try:
        sig = op.signature(types, op.normal_attrs(attrs), device)
    except refusal:
        return None
    return Variant(op, label, arrays, dict(attrs), sig)


def admitted(
    op: Op, arrays: Arrays, attrs: dict[str, Any], device: Device = REF
) -> Iterator[Variant]:
    """Yield each dtype variant of a sample that the rule admits."""
    whole = not any(a.dtype.kind in "iu" for a in arrays)
    integral = {d.name for d in [*INTEGERS, BOOL]} if whole else set()
    for label, made in swept(arrays):
        # Floats tried as integers may also be refused for the attributes, as x**-1 is.
        refusal = MgeError if label in integral else DTypeError
        variant = admit(op, label, made, attrs, device, refusal)
        if variant is not None:
            yield variant


def variants(
    name: str, index: int, rng: np.random.Generator, device: Device = REF
) -> list[Variant]:
    """Return each dtype variant of a sample that the rule admits, under its label.

    Raises
    ------
    Fault
        The rule admits none.
    """
    arrays, attrs = sample(OPS[name], index, rng)
    found = list(admitted(OPS[name], arrays, attrs, device))
    if not found:
        raise Fault(f"{name}: the rule admits no dtype for sample {index}: {arrays}, {attrs}")
    return found


def aligned(array: np.ndarray) -> np.ndarray:
    """Return a read-only copy whose address is a multiple of 64, as the kernels get it."""
    made = aligned_bytes(array.nbytes).view(array.dtype).reshape(array.shape)
    np.copyto(made, array)
    made.flags.writeable = False
    return made


def kernel_inputs(variant: Variant) -> list[np.ndarray]:
    """Return the arrays that a kernel gets: cast as the call casts them."""
    pairs = zip(variant.arrays, variant.sig.input_types, strict=True)
    with np.errstate(all="ignore"):
        return [aligned(a.astype(t.dtype.dtype)) for a, t in pairs]


def plain_reference(
    variant: Variant, arrays: Sequence[np.ndarray] | None = None
) -> tuple[Any, ...]:
    """Return what the reference gives when it is called on arrays, as a tuple."""
    sig, op = variant.sig, variant.op
    if op._reference is None:
        raise Fault(f"{op.name} has no reference")
    arrays = kernel_inputs(variant) if arrays is None else arrays
    attrs = dict(sig.attrs)
    with np.errstate(all="ignore"):
        if sig.single and op.writes_out:
            out = aligned_bytes(sig.type.nbytes).view(sig.type.dtype.dtype).reshape(sig.type.shape)
            op._reference(*arrays, out=out, **attrs)
            return (out,)
        results = op._reference(*arrays, **attrs)
    return (results,) if sig.single else tuple(results)


def reference(variant: Variant, arrays: Sequence[np.ndarray] | None = None) -> Arrays:
    """Return the results of the reference in the dtypes that the rule says, as a device gives them."""
    results = plain_reference(variant, arrays)
    if len(results) != len(variant.sig.types):
        raise Fault(
            f"{variant.op.name}: {len(results)} results; the rule says {len(variant.sig.types)}"
        )
    with np.errstate(all="ignore"):
        return tuple(
            np.asarray(r).astype(t.dtype.dtype) for r, t in zip(results, variant.sig.types)
        )


def tensors(variant: Variant, device: Any = "ref") -> list[Tensor]:
    """Return the inputs of a variant as new tensors."""
    return [tensor(a, dtype=a.dtype, device=device) for a in variant.arrays]


def as_tuple(result: Any) -> tuple[Any, ...]:
    """Return what an op gave as a tuple."""
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def call(variant: Variant, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Call the op on tensors; the outputs come as a tuple."""
    return as_tuple(variant.op(*inputs, **variant.attrs))


def read(results: Iterable[Any]) -> Arrays:
    """Return the values of tensors as arrays."""
    return tuple(r.numpy() for r in results)


def same_bits(one: Any, other: Any) -> str | None:
    """Say how two arrays differ bit for bit, or return None."""
    one, other = np.asarray(one), np.asarray(other)
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return f"{one.dtype}{one.shape} and {other.dtype}{other.shape}"
    if one.tobytes() == other.tobytes():
        return None
    return f"values differ:\n{one}\n{other}"


def far(one: Any, other: Any, op: Op | None = None) -> str | None:
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
        equal = np.asarray((a == b) | ((a != a) & (b != b)))
        if tolerance:
            equal |= np.abs(a - b) <= tolerance * (1 + np.abs(b))
    return None if equal.all() else _described(one, other, equal, tolerance)


def far_from_scale(one: Any, other: Any, factor: float) -> str | None:
    """Say how ``one`` is further from ``other`` than ``factor`` tolerances of its largest value, or return None.

    For results of several ops, whose errors add up and cancel.
    """
    one, other = np.asarray(one), np.asarray(other)
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return f"{one.dtype}{one.shape} in place of {other.dtype}{other.shape}"
    tolerance = factor * TOLERANCE.get(one.dtype.name, 0)
    a, b = one.astype(np.float64), other.astype(np.float64)
    finite = np.abs(b[np.isfinite(b)])
    with np.errstate(all="ignore"):
        equal = np.asarray((a == b) | ((a != a) & (b != b)))
        equal |= np.abs(a - b) <= tolerance * (1 + finite.max(initial=0))
    return None if equal.all() else _described(one, other, equal, tolerance)


def _described(one: np.ndarray, other: np.ndarray, equal: np.ndarray, tolerance: float) -> str:
    """Describe the places where two arrays are not equal."""
    where = tuple(int(i) for i in np.argwhere(~equal)[0])
    found = f"{one[where]} in place of {other[where]}" + (f" at {list(where)}" if where else "")
    count = f"{(~equal).sum()} of {equal.size} values are off, tolerance {tolerance}"
    return f"{count}: {found}\n{one}\n{other}"


def differentiable(op: Op, label: str, arrays: Arrays, attrs: dict[str, Any]) -> Variant | None:
    """Return the variant of a sample in a float dtype, where the op has float inputs and results in it."""
    dtype = DTYPES[label].dtype
    if op.name == "custom" or not any(a.dtype == np.float64 for a in arrays):
        return None  # "custom" passes on results that its caller computed: its gradient is no derivative
    made = tuple(a.astype(dtype) if a.dtype == np.float64 else a for a in arrays)
    variant = admit(op, label, made, attrs)
    has_results = variant is not None and any(t.dtype == dtype for t in variant.sig.types)
    return variant if has_results else None


def recorded(
    variant: Variant,
    arrays: Sequence[np.ndarray],
    floats: Sequence[int],
    weights: dict[int, np.ndarray],
    device: Any = "ref",
) -> tuple[list[Tensor], list[Tensor], list[Tensor | None]]:
    """Record an op and its gradient.

    Parameters
    ----------
    variant : Variant
    arrays : sequence of ndarray
        One for each input.
    floats : sequence of int
        The inputs to differentiate by.
    weights : dict of int to ndarray
        By the position of an output: the gradient of that output.
    device : str or Device

    Returns
    -------
    inputs, weights, gradients : lists of tensors
    """
    inputs = [tensor(a, dtype=a.dtype, device=device) for a in arrays]
    ys = call(variant, inputs)
    dys = {k: tensor(w, dtype=w.dtype, device=device) for k, w in weights.items()}
    xs = [inputs[i] for i in floats]
    made = gradients([ys[k] for k in dys], xs, list(dys.values()))
    return xs, list(dys.values()), list(made)
