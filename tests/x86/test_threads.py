"""Each kernel gives the same bits under any number of threads, on each level of the instruction set."""

import json
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_bits_do_not_depend_on_the_threads(on_level):
    one, *others = (
        json.loads(on_level(Path(__file__).with_name("bits.py"), MGE_THREADS=str(n)))
        for n in (1, 2, 4)
    )
    assert len(one) > 100
    for found in others:
        assert [name for name in one if one[name] != found[name]] == []
