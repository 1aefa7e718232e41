"""Running a user's script for what it compiles.

In: a script and its words. Out: the plans, with the graphs that they were made of.
Before ``explain`` and ``memory``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..debug import debug
from ..device import set_default_device
from ..execute import WATCHERS
from ..graph import Graph
from ..plan import Plan
from ..run import sync
from ..view import VIEW


class Compiled(NamedTuple):
    """One plan of a script: what was recorded, what runs, and what is computed once for each version of parameters."""

    recorded: Graph
    plan: Plan
    prologue: Plan | None


def plans_of(
    command: str, path: str, words: Sequence[str], device: str | None
) -> list[Compiled] | None:
    """Run a script, with what it prints on standard error; return its plans, or None where it ended with an error."""
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, "Is a directory, and no file", path)
    if not os.path.isfile(path):
        raise FileNotFoundError(errno.ENOENT, "No such file", path)
    if device:
        set_default_device(device)
    words_before, path_before = sys.argv, list(sys.path)
    sys.argv = [path, *words]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    try:
        with _collecting() as found, contextlib.redirect_stdout(sys.stderr):
            try:
                runpy.run_path(path, run_name="__main__")
                sync()
            except SystemExit as done:
                if done.code not in (None, 0):
                    print(f"mge {command}: {path} ended with {done.code}", file=sys.stderr)
                    return None
    finally:
        sys.argv, sys.path[:] = words_before, path_before
    return found


@contextlib.contextmanager
def _collecting() -> Iterator[list[Compiled]]:
    """Take in, in place of the view, what is compiled inside the block."""
    found: list[Compiled] = []

    def collect(stages: Sequence[tuple[str, Graph]], plan: Plan, prologue: Plan | None) -> None:
        found.append(Compiled(stages[0][1], plan, prologue))

    watchers = list(WATCHERS)
    VIEW.collector = collect
    try:
        with debug(view=os.devnull):
            yield found
    finally:
        VIEW.collector = None
        WATCHERS[:] = watchers
