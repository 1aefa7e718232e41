"""Random programs: a few leaves, then calls of ops from the registry on what is there already.

In: the op records. Out: the Hypothesis strategy ``programs``, and ``Program`` that runs on tensors.
Before ``test_print_parse``, ``test_plan_equals_steps`` and ``test_memory_plan``.
"""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

import mge
from mge.device import as_device
from mge.dtype import as_dtype
from mge.errors import MgeError
from mge.op import OPS
from mge.types import Type
from tests.core.ops.cases import all_samples

MOST_ELEMENTS = 400
SHAPES = [(), (1,), (3,), (2, 3), (3, 3), (3, 1), (4, 3), (2, 2, 3), (0, 3)]
DTYPES = ["float32", "float32", "float64", "float16", "bfloat16", "int32", "uint8", "bool"]


def _choices():
    """Return [(attributes, number of inputs)] by op, for ops that take any tensors: not where one indexes another."""
    found = {}
    for name, op in sorted(OPS.items()):
        samples = all_samples(op, np.random.default_rng(0))
        indexes = any(a.dtype.kind in "iu" for arrays, _ in samples for a in arrays)
        if not op.is_pure or not op.input_names or (indexes and op.promotes is None):
            continue
        for arrays, attrs in samples:
            if arrays and not any(map(callable, attrs.values())):
                choices = found.setdefault(name, [])
                if (attrs, len(arrays)) not in choices:
                    choices.append((attrs, len(arrays)))
    return found


CHOICES = _choices()


@dataclass(frozen=True)
class Program:
    """Leaves as arrays, steps as (op, attributes, positions of inputs), and the positions that are outputs."""

    leaves: tuple
    steps: tuple
    outputs: tuple

    def __repr__(self):
        lines = [f"%{i} = {a.dtype}{a.shape}" for i, a in enumerate(self.leaves)]
        at = len(lines)
        for op, attrs, inputs, count in self.steps:
            names = ", ".join(f"%{at + i}" for i in range(count))
            lines.append(f"{names} = {op.name}({', '.join(f'%{i}' for i in inputs)}, **{attrs})")
            at += count
        return "\n" + "\n".join([*lines, f"return {self.outputs}"])

    def tensors(self):
        """Return the leaves as new tensors."""
        return [mge.tensor(a, dtype=a.dtype) for a in self.leaves]

    def __call__(self, *leaves):
        """Run the program on tensors; the outputs come as a tuple."""
        values = list(leaves)
        for op, attrs, inputs, _ in self.steps:
            result = op(*[values[i] for i in inputs], **attrs)
            values += result if isinstance(result, tuple) else (result,)
        return tuple(values[i] for i in self.outputs)


@st.composite
def programs(draw, most_steps=10, dtypes=DTYPES):
    """Draw a program; calls that a shape rule refuses are left out."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32), label="seed of the leaves"))
    leaves, types = [], []
    for _ in range(draw(st.integers(1, 3))):
        shape, dtype = draw(st.sampled_from(SHAPES)), as_dtype(draw(st.sampled_from(dtypes)))
        array = (
            rng.normal(size=shape)
            if dtype.is_float
            else rng.integers(0, 2 if dtype.is_bool else 5, shape)
        )
        leaves.append(np.asarray(array).astype(dtype.dtype))
        types.append(Type(shape, dtype))
    steps = []
    for _ in range(draw(st.integers(1, most_steps))):
        op = OPS[draw(st.sampled_from(sorted(CHOICES)))]
        attrs, arity = draw(st.sampled_from(CHOICES[op.name]))
        # Mostly recent values, so that programs are deep as well as wide.
        inputs = tuple(
            max(0, len(types) - 1 - draw(st.integers(0, 5))) if draw(st.booleans())
            else draw(st.integers(0, len(types) - 1))
            for _ in range(arity)
        )  # fmt: skip
        try:
            sig = op.signature([types[i] for i in inputs], op.normal_attrs(attrs), as_device("ref"))
        except MgeError:
            continue
        if any(t.size > MOST_ELEMENTS for t in sig.types):
            continue
        steps.append((op, attrs, inputs, len(sig.types)))
        types += sig.types
    made = range(len(leaves), len(types))
    outputs = draw(st.lists(st.sampled_from(made), max_size=3, unique=True)) if made else []
    return Program(tuple(leaves), tuple(steps), (*outputs, len(types) - 1))
