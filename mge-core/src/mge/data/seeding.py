"""The random numbers of transforms: one generator for each batch, whoever loads it.

In: the seed of an iteration and a batch's number. Out: ``current_rng()``, which transforms draw from.
Before ``fetch`` and ``transform``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

_GENERATOR: ContextVar[np.random.Generator | None] = ContextVar("mge_data_rng", default=None)


def current_rng() -> np.random.Generator:
    """Return the generator that transforms draw from.

    Returns
    -------
    numpy.random.Generator
        Inside a :class:`DataLoader`: the generator of the batch being made. Outside: one that shares
        the state of ``numpy.random``, so that ``numpy.random.seed`` fixes its draws.

    Notes
    -----
    A batch's generator is PCG64, seeded with ``SeedSequence(seed, spawn_key=(number,))``: the seed of the
    iteration and the batch's number, and nothing else. So the draws do not depend on the number of
    workers, nor on which worker loads the batch. See :class:`DataLoader`.

    Examples
    --------
    >>> from mge.data import current_rng
    >>> np.random.seed(0)
    >>> first = current_rng().random()
    >>> np.random.seed(0)
    >>> bool(current_rng().random() == first)
    True
    """
    found = _GENERATOR.get()
    if found is None:
        found = np.random.Generator(np.random.get_bit_generator())  # type: ignore[attr-defined]
    return found


def fresh_entropy() -> tuple[int, ...]:
    """Draw the seed of one iteration, 128 bits, from the current generator."""
    return tuple(int(word) for word in current_rng().integers(0, 2**32, size=4, dtype=np.uint32))


@contextmanager
def seeded(
    entropy: Sequence[int], key: tuple[int, ...], *, globally: bool = False
) -> Iterator[None]:
    """Give the ``with`` block the generator of one batch.

    Parameters
    ----------
    entropy : sequence of int
        Seed of the iteration.
    key : tuple of int
        Names the batch.
    globally : bool, default False
        Seed ``random`` and ``numpy.random`` too; for worker processes, where nothing else uses them.
    """
    sequence = np.random.SeedSequence(list(entropy), spawn_key=key)
    if globally:
        words = sequence.generate_state(8)
        np.random.seed(words[:4])  # noqa: NPY002 (user code in a worker may draw from it)
        random.seed(words[4:].tobytes())
    token = _GENERATOR.set(np.random.Generator(np.random.PCG64(sequence)))
    try:
        yield
    finally:
        _GENERATOR.reset(token)
