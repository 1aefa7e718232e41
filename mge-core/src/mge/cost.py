"""Cost: what one use of an op takes, by its types.

In: signatures. Out: multiply-adds, bytes, and a modelled time.
After ``graph``; before ``replay``.
"""

from __future__ import annotations

from .graph import Graph, Signature

# One multiply-add of a matrix product, and one byte moved, on a core with AVX-512; only their ratio matters.
_NS_PER_MULTIPLY_ADD = 2 / 350
_NS_PER_BYTE = 1 / 20


def multiply_adds(sig: Signature) -> int:
    """Return the multiply-adds of one use of an op, of graphs among its attributes too (a loop counts once).

    Those of products, convolutions and attention, by the sums that define them; elementwise work counts as none.
    """
    count = getattr(sig.op, "multiply_adds", None)
    inner = (value for _, value in sig.attrs if isinstance(value, Graph))
    return (count(sig) if count else 0) + sum(multiply_adds(n.sig) for g in inner for n in g.nodes)


def read_bytes(sig: Signature) -> int:
    """Return the bytes of the inputs; of one from which elements are picked, as many as are picked."""
    total = sum(t.nbytes for t in sig.input_types)
    picks = getattr(sig.op, "picks", False)
    return total - max(sig.input_types[0].nbytes - sig.type.nbytes, 0) if picks else total


def modelled_ns(sig: Signature) -> float:
    """Return the nanoseconds that one use of an op takes by its multiply-adds and the bytes that it moves."""
    nbytes = sig.nbytes + read_bytes(sig)
    return multiply_adds(sig) * _NS_PER_MULTIPLY_ADD + nbytes * _NS_PER_BYTE
