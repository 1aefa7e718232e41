"""Write docs/environment.md from the table in mge/debug.py.

In: ``mge.debug.VARIABLES``. Out: the page. A test compares the two.
"""

from pathlib import Path

from mge.debug import VARIABLES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "environment.md"

HEAD = """# Environment variables

Written by `python tools/write_environment.py` from the table in `mge/debug.py`; change it there.
Each is also a setting of `with mge.debug(...)`: the name without `MGE_`, in lower case.

"""


def page() -> str:
    """Return the text of the page."""
    rows = [f"| `{name}` | {v.default!r} | {v.effect} |" for name, v in VARIABLES.items()]
    return HEAD + "\n".join(["| variable | default | effect |", "| --- | --- | --- |", *rows, ""])


if __name__ == "__main__":
    PAGE.write_text(page())
