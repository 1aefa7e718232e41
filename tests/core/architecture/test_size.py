"""Size: the kernel's budget of lines, and the length of files."""

import pytest

from tools.count_lines import BUDGET, LIMIT, PACKAGE, ROOT, code_lines, count

# Files over the limit, each with the reason. At 800 lines a file is split, whatever the reason.
LONG = {}

FOLDERS = ["mge-core", "plugins", "tests", "tools", "examples", "bench"]
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def test_count_ignores_blank_lines_comments_and_docstrings():
    source = '"""Doc.\n\nMore.\n"""\n\n# Why.\nx = (1,\n     2)\n\n\ndef f():\n    """Doc."""\n    return """a\nb"""\n'
    assert code_lines(source) == 5


def test_the_kernel_stays_within_its_budget():
    total = sum(c.code for c in count() if c.group == "kernel")
    assert total <= BUDGET, f"{total} lines of code; see python tools/count_lines.py"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_long_file_has_a_reason(path):
    lines = len(path.read_text().splitlines())
    limit = 800 if str(path.relative_to(ROOT)) in LONG else LIMIT
    assert lines <= limit, (
        f"{path} has {lines} lines, {limit} are allowed: split it, or say why in {__file__}"
    )


def test_reasons_are_still_needed():
    for name in LONG:
        path = ROOT / name
        assert path.exists() and len(path.read_text().splitlines()) > LIMIT, (
            f"remove {name} from LONG"
        )


def test_the_package_is_found():
    assert (PACKAGE / "py.typed").exists()
