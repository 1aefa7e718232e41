"""Golden plans: kernels, order, places and peak bytes of five small models, as reviewed text."""

import difflib

import pytest

from tools.golden import FOLDER, MODELS, text_of


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_is_the_reviewed_one(name):
    path = FOLDER / f"{name}.txt"
    wanted, made = path.read_text().splitlines(), text_of(name).splitlines()
    diff = "\n".join(difflib.unified_diff(wanted, made, "reviewed", "now", lineterm="", n=2))
    assert not diff, f"if this is meant: python tools/golden.py\n{diff}"


def test_each_file_has_a_model():
    assert {p.stem for p in FOLDER.glob("*.txt")} == set(MODELS)
