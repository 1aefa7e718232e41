"""What follows from each op record: the values. No code per op; a failing test names op and sample."""

import numpy as np
import pytest

import mge
from mge.dtype import wide_of
from mge.jit import trace
from mge.op import OPS
from mge.refdevice import RefBackend
from tests.core.ops.cases import (
    CASES,
    Faults,
    as_tuple,
    call,
    far,
    kernel_inputs,
    plain_reference,
    read,
    reference,
    same_bits,
    tensors,
    variants,
)

each_case = pytest.mark.parametrize(("name", "index"), CASES)


@each_case
def test_shape_rule(name, index, rng):
    """The rule says the shape and dtype that the reference's result has, for each dtype it admits.

    Where a float16 or bfloat16 result is accumulated in float32, the copy into the output may do the rounding.
    """
    faults = Faults()
    for variant in variants(name, index, rng):
        sig, op = variant.sig, variant.op
        results = plain_reference(variant)
        if len(results) != len(sig.types):
            faults.note(variant, f"{len(results)} results for {len(sig.types)} types")
            continue
        if isinstance(op._reference, np.ufunc):  # what NumPy gives when nobody asks for a dtype
            with np.errstate(all="ignore"):
                results = as_tuple(op._reference(*kernel_inputs(variant), **dict(sig.attrs)))
        for result, said in zip(results, sig.types, strict=True):
            given = np.asarray(result)
            if given.shape != said.shape or given.dtype not in (said.dtype, wide_of(said.dtype)):
                faults.note(
                    variant, f"the rule says {said}, the reference gives {given.dtype}{given.shape}"
                )
    faults.check()


@each_case
def test_device(name, index, rng, device):
    """A device gives what the reference gives: bit for bit on ``ref``, else within the tolerance."""
    faults = Faults()
    op = OPS[name]
    for variant in variants(name, index, rng):
        wanted = reference(variant)
        given = read(call(variant, tensors(variant, device)))
        for one, other in zip(given, wanted, strict=True):
            faults.note(variant, same_bits(one, other) if device == "ref" else far(one, other, op))
    faults.check()


@each_case
def test_lowering(name, index, rng):
    """The lowering gives the reference's result, within the dtype's tolerance."""
    op = OPS[name]
    if op._lowering is None:
        return  # a base op; test_record checks that it is one
    faults = Faults()
    for variant in variants(name, index, rng):
        inputs = [mge.tensor(a, dtype=a.dtype) for a in kernel_inputs(variant)]
        results = as_tuple(op._lowering(*inputs, **dict(variant.sig.attrs)))
        assert len(results) == len(variant.sig.types), f"{len(results)} results"
        for result, said in zip(results, variant.sig.types, strict=True):
            if (result.shape, result.dtype) != (said.shape, said.dtype):
                faults.note(variant, f"gives {result.dtype}{result.shape}, the rule says {said}")
        for one, other in zip(read(results), reference(variant), strict=True):
            faults.note(variant, far(one, other, op))
    faults.check()


@each_case
def test_traced(name, index, rng):
    """Recorded, compiled, eager and traced runs agree bit for bit on ``ref``."""
    faults = Faults()
    found = {v.label: v for v in variants(name, index, rng)}
    for variant in [found.get("float32") or next(iter(found.values()))]:
        inputs = tensors(variant)
        with mge.eager():
            wanted = read(call(variant, inputs))
        for turn in range(3):  # first sight, then compiled, then from the cache
            for one, other in zip(read(call(variant, inputs)), wanted, strict=True):
                faults.note(variant, (d := same_bits(one, other)) and f"untraced run {turn}: {d}")
        if not inputs:
            continue

        @trace
        def function(*given, variant=variant):
            return call(variant, given)

        for turn in range(3):
            for one, other in zip(read(function(*inputs)), wanted, strict=True):
                faults.note(variant, (d := same_bits(one, other)) and f"traced run {turn}: {d}")
    faults.check()


@each_case
def test_guard_bytes(name, index, rng):
    """The kernel writes its whole outputs and nothing else; it leaves its inputs alone."""
    faults = Faults()
    for variant in variants(name, index, rng):
        inputs = kernel_inputs(variant)  # read-only
        kernel = RefBackend().kernel(0, variant.sig)
        filled = []
        for fill in (0xA5, 0x5A):
            guards, outputs = [], []
            for type_ in variant.sig.types:
                room = np.full(type_.nbytes + 128, fill, np.uint8)
                inside = room[64 : 64 + type_.nbytes].view(type_.dtype.dtype)
                guards.append(room)
                outputs.append(inside.reshape(type_.shape))
            with np.errstate(all="ignore"):
                kernel(inputs, outputs, None)
            for room, type_ in zip(guards, variant.sig.types, strict=True):
                around = np.concatenate([room[:64], room[64 + type_.nbytes :]])
                faults.note(variant, None if (around == fill).all() else "wrote outside an output")
            filled.append(outputs)
        for one, other in zip(*filled, strict=True):
            faults.note(variant, (d := same_bits(one, other)) and f"left bytes unwritten: {d}")
    faults.check()


# NumPy's names where they differ from ours.
ALIASES = {
    "sub": "subtract", "mul": "multiply", "div": "divide", "mod": "remainder", "neg": "negative",
    "floor_div": "floor_divide", "round": "rint", "and": "bitwise_and",
}  # fmt: skip
UFUNCS = {
    name: found
    for name in OPS
    if isinstance(found := getattr(np, ALIASES.get(name, name), None), np.ufunc)
    and found.nin == len(OPS[name].input_names)
    and not OPS[name].attr_names
    and found.signature is None
}
EXTREME = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, -3e30]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", sorted(UFUNCS))
def test_elementwise_is_numpys(name, dtype):
    """NaN, infinities, signed zeros and empty inputs give what NumPy gives."""
    op, ufunc = OPS[name], UFUNCS[name]
    line = np.array(EXTREME, dtype)
    grid = [a.ravel() for a in np.meshgrid(*[line] * ufunc.nin)]
    for arrays in (grid, [a[:0] for a in grid]):
        with np.errstate(all="ignore"):
            try:
                wanted = ufunc(*arrays)
            except TypeError:  # no loop for floats: bitwise
                return
        given = op(*[mge.tensor(a, dtype=dtype) for a in arrays]).numpy()
        problem = far(given, wanted.astype(given.dtype))
        assert not problem, problem
        if given.dtype.kind == "f":
            odd = (np.signbit(given) != np.signbit(wanted)) & (given == 0)
            assert not odd.any(), f"signs of zeros differ for {[a[odd] for a in arrays]}"
