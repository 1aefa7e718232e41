"""Count the lines of code of the core, and hold the kernel to its budget.

In: the sources, and the order of the core in pyproject.toml. Out: a table; exit status 1 above the budget.
A line counts when it holds code: blank lines, comments and docstrings are free.
"""

import ast
import io
import sys
import tokenize
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "mge-core" / "src" / "mge"
BUDGET = 7730  # lines of code of the kernel; a record in docs/decisions/ raises it
NORMAL = 310  # lines of a file, comments included; a longer file is marked
LIMIT = 500  # a longer file needs a reason in tests/core/architecture/test_size.py

RECORDS = {
    "ops",
    "control",
    "flow",
}  # op records count apart; the last two need gradients, so they come later

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


class Count(NamedTuple):
    """One file: its group (kernel, ops or interface), all lines, and lines of code."""

    name: str
    group: str
    lines: int
    code: int


def layers() -> list[list[str]]:
    """Return the modules of the core, lowest layer first; the last list is the interface layer."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = settings["tool"]["importlinter"]["contracts"]
    return [
        [name.strip(" ()") for name in line.replace("|", ":").split(":")]
        for line in reversed(contract["layers"])
    ]


def top_module(path: Path) -> str:
    """Return which module directly below ``mge`` a file belongs to; ``""`` for ``mge/__init__.py``."""
    first = path.relative_to(PACKAGE).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def code_lines(source: str) -> int:
    """Return how many lines hold code."""
    rows: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            rows.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if first is not None and ast.get_docstring(node, clean=False) is not None:
                rows.difference_update(range(first.lineno, (first.end_lineno or 0) + 1))
    return len(rows)


def count() -> list[Count]:
    """Count each Python file of the core, in the order of the layers."""
    order = {name: rank for rank, layer in enumerate(layers()) for name in layer}
    top = len(layers()) - 1

    def place(path: Path) -> tuple[int, str]:
        return order.get(top_module(path), top), str(path)

    counts = []
    for path in sorted(PACKAGE.rglob("*.py"), key=place):
        module = top_module(path)
        rank = order.get(module, top)
        group = "ops" if module in RECORDS else "interface" if rank == top else "kernel"
        source = path.read_text()
        name = str(path.relative_to(PACKAGE))
        counts.append(Count(name, group, len(source.splitlines()), code_lines(source)))
    return counts


def main() -> int:
    """Print the table; return 1 when the kernel is above its budget."""
    counts = count()
    for group in ("kernel", "ops", "interface"):
        files = [c for c in counts if c.group == group]
        print(f"{group}  ({len(files)} files)")
        for c in files:
            mark = f"  long: over {NORMAL} lines" if c.lines > NORMAL else ""
            print(f"  {c.name:<32} {c.code:>6} code {c.lines:>6} lines{mark}")
        print(f"  {'sum':<32} {sum(c.code for c in files):>6} code")
    kernel = sum(c.code for c in counts if c.group == "kernel")
    print(f"kernel: {kernel} of {BUDGET} lines of code")
    return 1 if kernel > BUDGET else 0


if __name__ == "__main__":
    sys.exit(main())
