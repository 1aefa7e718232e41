"""Large, odd-sized samples of ops: past vector tails, tile edges, and the sizes where kernels go parallel.

In: an op record. Out: samples as ``all_samples`` gives them, with arrays of about 40,000 elements.
After ``target``; before ``ops``. Most grow from the op's own samples. ``large_made`` has those whose sizes depend on
attributes, or on the values of an input.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from ..errors import MgeError
from ..op import OPS
from .cases import Arrays, Variant, admit, all_samples, swept
from .large_made import MADE, Sample
from .target import Skipped, Target

# Lengths of axes, from the last axis on, by how many different lengths the largest array has.
LENGTHS = {1: (40213,), 2: (1087, 37), 3: (223, 37, 5), 4: (73, 37, 5, 3), 5: (37, 13, 7, 5, 3)}
OTHER = 5  # of an axis that only smaller arrays have
LARGE, MOST = 10_000, 60_000  # elements of the largest array
# A sample is tried in each of these that the op takes; where it takes no floats, in the first of the others.
FLOAT_LABELS = ("float32", "float16")
OTHER_LABELS = ("int32", "int64", "bool", "uint64", "fixed")


def large_cases(target: Target, name: str) -> Iterator[tuple[int, str]]:
    """Yield (number, dtype) of each large case: float32 and float16, or one other dtype."""
    for index, sample in enumerate(_samples(target, name)):
        labels = [w for w in FLOAT_LABELS if _admit(target, name, sample, w)]
        others = (w for w in OTHER_LABELS if _admit(target, name, sample, w))
        for label in labels or itertools.islice(others, 1):
            yield index, label


def large_variant(target: Target, name: str, index: int, label: str) -> Variant:
    """Return one large sample under one dtype, on the target's device."""
    samples = _samples(target, name)
    variant = _admit(target, name, samples[index], label) if index < len(samples) else None
    if variant is None:
        raise Skipped(f"the rule of {name} does not admit {label} here")
    return variant


def _samples(target: Target, name: str) -> list[Sample]:
    """Return the samples in ``MADE``, or two that grew from own samples of different rank."""
    if name in MADE:
        return list(MADE[name](target.rng(name, "large")))
    own = [s for s in all_samples(OPS[name], target.rng(name)) if _can_grow(s[0])]
    found: dict[int, Sample] = {}
    for arrays, attrs in sorted(own, key=_rank, reverse=True):
        made = grown(arrays, target.rng(name, "large")), attrs
        rank = max(a.ndim for a in arrays)
        labels = (*FLOAT_LABELS, *OTHER_LABELS)
        if rank not in found and any(_admit(target, name, made, w) for w in labels):
            found[rank] = made
    return list(found.values())[:2]


def _can_grow(arrays: Arrays) -> bool:
    return all(a.size for a in arrays) and any(a.size > 1 and a.dtype != np.uint64 for a in arrays)


def _rank(sample: Sample) -> tuple[bool, int]:
    """Return how well a sample grows: axes that differ in length grow by themselves."""
    largest = max(sample[0], key=lambda a: a.size)
    long = [n for n in largest.shape if n > 1]
    return len(set(long)) == len(long), largest.size


def _admit(target: Target, name: str, sample: Sample, label: str) -> Variant | None:
    """Return a sample under one dtype, or None: its rule refuses that, or its results are too large."""
    arrays, attrs = sample
    made = next((a for word, a in swept(arrays) if word == label), None)
    if made is None:
        return None
    variant = admit(OPS[name], label, made, attrs, target.device, MgeError)
    fits = variant is not None and all(t.nbytes <= 16 * MOST for t in variant.sig.types)
    return variant if fits else None


def grown(arrays: Arrays, rng: np.random.Generator) -> Arrays:
    """Return larger arrays that go together as these do: axes of one length get one new length.

    Axes of length 1, and keys of random numbers (uint64), stay as they are. The values lie between
    values of the sample, so that they suit the op as well.
    """
    scaled = [a for a in arrays if a.dtype != np.uint64]
    largest = max(scaled, key=lambda a: a.size, default=np.zeros(()))
    order = list(dict.fromkeys(n for n in reversed(largest.shape) if n > 1))
    lengths = dict.fromkeys((n for a in scaled for n in a.shape), OTHER) | {1: 1}
    lengths |= dict(zip(order, LENGTHS.get(len(order), ())))

    def shape(a: np.ndarray) -> tuple[int, ...]:
        return tuple(lengths[n] for n in a.shape)

    while max((int(np.prod(shape(a))) for a in scaled), default=0) > MOST:
        lengths = {n: m * 2 // 3 | 1 if n > 1 else m for n, m in lengths.items()}
    return tuple(
        a if a.dtype == np.uint64 or shape(a) == a.shape else between(a, shape(a), rng)
        for a in arrays
    )


def between(array: np.ndarray, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Return values of an array: for floats also numbers between neighbours of one sign, so that few are equal."""
    values = np.sort(array, axis=None)
    if array.dtype != np.float64 or values.size < 2:
        return rng.choice(values, shape)
    at = rng.integers(values.size - 1, size=shape)
    low, high = values[at], values[at + 1]
    with np.errstate(all="ignore"):
        return np.where(low * high > 0, low + rng.random(shape) * (high - low), low)
