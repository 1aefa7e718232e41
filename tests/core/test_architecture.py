"""The code of ARCHITECTURE.md and README.md runs."""

import re
from pathlib import Path

import pytest

import mge

ROOT = Path(__file__).parents[2]


def blocks(path):
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", ["ARCHITECTURE.md"])
def test_code_of_page_runs(name, capsys):
    mge.sync()  # what other tests left pending would be in the page's recording
    names = {}
    code = blocks(ROOT / name)
    assert code
    for block in code:
        exec(compile(block, name, "exec"), names)


def test_page_names_files_that_exist():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    source = ROOT / "mge-core/src/mge"
    for name in re.findall(r"`([\w/]+\.py)`", text):
        assert (source / name).exists() or (ROOT / name).exists(), name
