"""Cost: what one use of an op takes, by its types.

In: signatures. Out: multiply-adds, and a modelled time.
After ``graph``; before ``replay``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .graph import Graph, Signature

# One multiply-add of a matrix product, and one byte moved, on a core with AVX-512; only their ratio matters.
_NS_PER_MULTIPLY_ADD = 2 / 350
_NS_PER_BYTE = 1 / 20

# Multiply-adds of one use of an op, by its types and attributes. What is not here counts as none.
_COUNTS: dict[str, Callable[[Signature], int]] = {
    "matmul": lambda sig: (
        sig.type.size * sig.input_types[0].shape[-2 if dict(sig.attrs)["transpose_a"] else -1 :][0]
    ),
    "linear": lambda sig: sig.type.size * sig.input_types[0].shape[-1],
    "conv": lambda sig: sig.type.size * math.prod(sig.input_types[1].shape[1:]),
    # A transposed convolution: each input element meets each tap that it has.
    "conv_backward_data": lambda sig: (
        sig.input_types[1].size * math.prod(sig.input_types[0].shape[1:])
    ),
    "conv_backward_weight": lambda sig: sig.input_types[1].size * math.prod(sig.type.shape[1:]),
    # Scores, then their products with the values: (..., q, k) times both depths.
    "attention": lambda sig: (
        sig.input_types[0].size * sig.input_types[1].shape[-2]
        + sig.type.size * sig.input_types[1].shape[-2]
    ),
    # The scores again and three products of depth d, two of depth v.
    "attention_backward": lambda sig: (
        (3 * sig.types[0].size + 2 * sig.input_types[0].size) * sig.input_types[2].shape[-2]
    ),
}


def multiply_adds(sig: Signature) -> int:
    """Return the multiply-adds of one use of an op, of graphs among its attributes too (a loop counts once)."""
    count = _COUNTS.get(sig.op.name)
    inner = (value for _, value in sig.attrs if isinstance(value, Graph))
    return (count(sig) if count else 0) + sum(multiply_adds(n.sig) for g in inner for n in g.nodes)


def modelled_ns(sig: Signature) -> float:
    """Return the nanoseconds that one use of an op takes by its multiply-adds and the bytes that it moves."""
    nbytes = sig.nbytes + sum(t.nbytes for t in sig.input_types)
    return multiply_adds(sig) * _NS_PER_MULTIPLY_ADD + nbytes * _NS_PER_BYTE
