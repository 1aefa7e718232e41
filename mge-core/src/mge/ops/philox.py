"""Philox4x32-10 in NumPy: the stream of random words that every device must reproduce.

In: a seed and the index of the first word, or single blocks. Out: uint32 words.
After ``constant``; before ``random``.
"""

from __future__ import annotations

import numpy as np

# Salmon, Moraes, Dror, Shaw, Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011, section 3.3.
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # golden ratio, sqrt(3) - 1
ROUNDS = 10

LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
CHUNK = 4096  # blocks in one turn: the six working arrays stay in the second-level cache


def philox_blocks(counter: tuple[np.ndarray, ...], key: tuple[int, int]) -> tuple[np.ndarray, ...]:
    """Turn blocks of four 32-bit counter words into four random words, in place.

    Parameters
    ----------
    counter : 4 of (n,) uint64
        The words c0 to c3 of each block; the upper halves are 0. They are overwritten.
    key : tuple of 2 int
        The words k0, k1.

    Returns
    -------
    4 of (n,) uint64, each below 2**32
    """
    x0, x1, x2, x3 = counter
    p0, p1 = np.empty_like(x0), np.empty_like(x0)
    k0, k1 = key
    m0, m1 = np.uint64(MULTIPLIERS[0]), np.uint64(MULTIPLIERS[1])
    for _ in range(ROUNDS):
        # With 64-bit products p0 = m0*x0 and p1 = m1*x2, the new x0 to x3 are:
        # high(p1) ^ x1 ^ k0, low(p1), high(p0) ^ x3 ^ k1, low(p0).
        np.multiply(x0, m0, out=p0)
        np.multiply(x2, m1, out=p1)
        np.bitwise_xor(x1, np.uint64(k0), out=x1)
        np.bitwise_xor(x3, np.uint64(k1), out=x3)
        np.right_shift(p1, HALF, out=x0)
        np.bitwise_xor(x0, x1, out=x0)
        np.right_shift(p0, HALF, out=x2)
        np.bitwise_xor(x2, x3, out=x2)
        np.bitwise_and(p1, LOW, out=x1)
        np.bitwise_and(p0, LOW, out=x3)
        k0, k1 = (k0 + WEYL[0]) & 0xFFFFFFFF, (k1 + WEYL[1]) & 0xFFFFFFFF
    return x0, x1, x2, x3


def philox_words(state: np.ndarray, count: int) -> np.ndarray:
    """Return words ``counter`` to ``counter + count - 1`` of the stream of a seed.

    Word ``w`` is word ``w % 4`` of block ``w // 4``. Block ``b`` has the counter
    ``(b % 2**32, b // 2**32, 0, 0)`` and the key ``(seed % 2**32, seed // 2**32)``. Word numbers
    wrap at ``2**64``.

    Parameters
    ----------
    state : (2,) uint64
        Seed and counter.
    count : int

    Returns
    -------
    (count,) uint32
    """
    seed, first = int(state[0]), int(state[1])
    key = (seed & 0xFFFFFFFF, seed >> 32)
    block, skipped = divmod(first, 4)
    blocks = -(-(skipped + count) // 4)
    words = np.empty((blocks, 4), np.uint32)
    work = np.empty((4, min(blocks, CHUNK)), np.uint64)
    steps = np.arange(work.shape[1], dtype=np.uint64)
    for start in range(0, blocks, CHUNK):
        size = min(CHUNK, blocks - start)
        x = tuple(work[:, :size])
        np.add(steps[:size], np.uint64((block + start) % 2**62), out=x[0])
        np.bitwise_and(x[0], np.uint64(2**62 - 1), out=x[0])
        np.right_shift(x[0], HALF, out=x[1])
        np.bitwise_and(x[0], LOW, out=x[0])
        x[2].fill(0)
        x[3].fill(0)
        part = words[start : start + size]
        for i, word in enumerate(philox_blocks(x, key)):
            part[:, i] = word
    return words.reshape(-1)[skipped : skipped + count]
