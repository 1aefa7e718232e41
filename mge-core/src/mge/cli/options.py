"""What several commands share: kinds of options, and figures for people.

In: words, numbers. Out: values, words.
Before the commands.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence


def at_least(least: int) -> Callable[[str], int]:
    """Return a kind of option: a whole number that is not below ``least``."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} on")
        return number

    return read


def show_bytes(count: float) -> str:
    """Return a number of bytes as ``1.5 MiB``."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def table(rows: Sequence[tuple[str, ...]], right: tuple[int, ...] = ()) -> str:
    """Return rows as aligned columns; those in ``right`` are flush right."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            c.rjust(w) if k in right else c.ljust(w) for k, (c, w) in enumerate(zip(row, widths))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
