"""Philox against Random123's known answers, and the way its stream is indexed."""

import numpy as np
import pytest

from mge.ops.philox import CHUNK, philox_blocks, philox_words

ONES = 0xFFFFFFFF
# Random123, tests/kat_vectors, rows "philox4x32 10": counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def block(counter, key):
    words = philox_blocks(tuple(np.array([c], np.uint64) for c in counter), key)
    return tuple(int(w[0]) for w in words)


def word(seed, number):
    """Return one word by the definition: word number % 4 of block number // 4."""
    number %= 2**64
    counter = (number // 4 % 2**32, number // 4 // 2**32, 0, 0)
    return block(counter, (seed % 2**32, seed // 2**32))[number % 4]


@pytest.mark.parametrize(("counter", "key", "wanted"), KNOWN)
def test_philox_known_answers(counter, key, wanted):
    assert block(counter, key) == wanted


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**64 - 1])
@pytest.mark.parametrize("first", [0, 1, 3, 4, 4 * CHUNK - 1, 2**34 - 2, 2**63 + 5, 2**64 - 3])
def test_philox_words_follow_the_definition(seed, first):
    words = philox_words(np.array([seed, first], np.uint64), 9)
    assert words.dtype == np.uint32
    assert [int(w) for w in words] == [word(seed, first + i) for i in range(9)]


def test_philox_words_do_not_depend_on_how_a_draw_is_cut(rng):
    whole = philox_words(np.array([5, 2], np.uint64), 10 * CHUNK + 3)
    for start in rng.integers(0, 10 * CHUNK, 20):
        part = philox_words(np.array([5, 2 + start], np.uint64), 7)
        assert (part[: len(whole) - start] == whole[start : start + 7]).all()


def test_philox_words_none():
    assert philox_words(np.array([5, 2], np.uint64), 0).shape == (0,)
