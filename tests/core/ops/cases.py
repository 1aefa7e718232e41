"""The cases of the generated tests, as pytest parameters. The rest is the conformance kit's: ``mge.testing.cases``.

In: ``mge.op.OPS``. Out: lists of pytest parameters, ``Faults``, and the kit's helpers under one name.
Before ``test_generated``, ``test_gradient`` and ``test_record``.
"""

import numpy as np
import pytest

from mge.op import OPS
from mge.testing.cases import (  # noqa: F401  for the tests
    Variant,
    admit,
    all_samples,
    as_tuple,
    call,
    differentiable,
    far,
    kernel_inputs,
    plain_reference,
    read,
    recorded,
    reference,
    same_bits,
    sample,
    tensors,
    variants,
)


class Faults(list):
    """What is wrong with the variants of one sample: one line for each, raised together."""

    def note(self, variant, what):
        if what:
            self.append(f"{variant.op.name}[{variant.label}] {variant}: {what}")

    def check(self):
        if self:
            raise AssertionError(
                "\n".join(self[:4] + [f"and {len(self) - 4} more"] * (len(self) > 4))
            )


def _collect():
    """Return (op name, sample index, whether it has a derivative) of each sample, drawn once to count them."""
    found = []
    for name, op in sorted(OPS.items()):
        try:
            drawn = all_samples(op, np.random.default_rng(0))
        except Exception:  # test_samples_exist shows it
            continue
        for index, (arrays, attrs) in enumerate(drawn):
            found.append((name, index, _has_derivative(op, arrays, attrs)))
    return found


def _has_derivative(op, arrays, attrs):
    try:
        return differentiable(op, "float64", arrays, attrs) is not None
    except Exception:  # test_shape_rule shows it
        return False


_FOUND = _collect()
NAMES = sorted(OPS)
CASES = [pytest.param(name, index, id=f"{name}-{index}") for name, index, _ in _FOUND]
SMOOTH = [pytest.param(name, i, id=f"{name}-{i}-float64") for name, i, smooth in _FOUND if smooth]
