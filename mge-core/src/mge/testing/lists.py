"""The vendor's two lists: what a device never does, and what fails for now.

In: TOML or text files. Out: ``Entry`` objects that know which cases they speak of.
Before ``runner``.

A TOML file has lines ``"L3/sort/*" = "reason"``, at its top or in the table ``[unsupported]`` or ``[xfails]``, so that
one file can hold both lists. Any other file has lines ``L3/sort/*: reason``; ``#`` begins a comment. A pattern
without ``/`` is the name of an op.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from ..errors import ArgumentError


class Entry:
    """One line of a list.

    Attributes
    ----------
    pattern, reason : str
    used : bool
        Some case was named by it.
    """

    def __init__(self, pattern: str, reason: str) -> None:
        self.pattern, self.reason, self.used = pattern, reason, False

    def names(self, case: str) -> bool:
        """Whether a case is meant."""
        subject = case if "/" in self.pattern else case.split("/")[1]
        return fnmatchcase(subject, self.pattern)


def read_list(path: str | Path, table: str) -> list[Entry]:
    """Read a list.

    Parameters
    ----------
    path : str or Path
    table : {"unsupported", "xfails"}
        The table of a TOML file that holds both.

    Raises
    ------
    ArgumentError
        The file cannot be read, or a line of it has no pattern or no reason.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        pairs = _toml_pairs(text, table) if path.suffix == ".toml" else _text_pairs(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ArgumentError(f"{table}: it cannot be read: {error}").add_place(str(path)) from None
    for where, pattern, reason in pairs:
        if not pattern or not isinstance(reason, str) or not reason.strip():
            raise ArgumentError(
                f"{table}: {pattern!r} has no reason",
                hint="a line is 'L3/sort/*: reason', in TOML '\"L3/sort/*\" = \"reason\"'",
            ).add_place(f"{path}, {where}")
    return [Entry(pattern, str(reason).strip()) for _, pattern, reason in pairs]


def _toml_pairs(text: str, table: str) -> list[tuple[str, str, object]]:
    values = tomllib.loads(text)
    tables = {"unsupported", "xfails"}
    own = values.get(table, {}) if tables & values.keys() else values
    return [(f"key {key!r}", key, reason) for key, reason in own.items()]


def _text_pairs(text: str) -> list[tuple[str, str, object]]:
    pairs: list[tuple[str, str, object]] = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.split("#", 1)[0].strip()
        if line:
            pattern, _, reason = line.partition(": ")
            pairs.append((f"line {number}", pattern.strip(), reason))
    return pairs


def find(entries: Iterable[Entry], case: str) -> Entry | None:
    """Return the first entry that names a case; each that does counts as used."""
    found = [e for e in entries if e.names(case)]
    for entry in found:
        entry.used = True
    return found[0] if found else None
