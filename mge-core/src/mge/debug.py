"""Settings and counters: the only file that reads the environment.

In: the variables of ``VARIABLES``. Out: ``debug`` (levels, a context, counters), read by every later file.
After ``errors``; before ``dtype``.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from .errors import ArgumentError


class Variable(NamedTuple):
    """One environment variable: its kind, default, and the text of the docs page."""

    kind: type
    default: object
    effect: str
    most: int | None = None


VARIABLES: dict[str, Variable] = {
    "MGE_DEVICE": Variable(
        str, "", "default device, as in `x86:0`; empty: the best one that works"
    ),
    "MGE_DEBUG": Variable(
        int,
        0,
        "1 devices, plans and re-traces; 2 each step: algorithm, µs, GFLOP/s, GB/s, share of the roof; "
        "3 graph after each pass; 4 plans as text",
        most=4,
    ),
    "MGE_CHECK": Variable(
        int,
        0,
        "1 verify the graph after each pass; 2 run each step on `ref` too and compare; 3 guard bytes, NaN stop",
        most=3,
    ),
    "MGE_VIEW": Variable(
        str, "", "file: write an HTML page with graph, passes, plan and memory over time"
    ),
    "MGE_EAGER": Variable(bool, False, "1: compute each call at once"),
    "MGE_TRACE": Variable(bool, True, "0: ignore `trace`; each call runs its Python function"),
    "MGE_DETERMINISTIC": Variable(
        bool,
        False,
        "1: only algorithms and passes that give the same bits in every mode; one BLAS thread",
    ),
    "MGE_TUNE": Variable(
        bool, False, "1: time algorithms when a plan is made, and keep the choice"
    ),
    "MGE_MEMORY": Variable(
        str,
        "static",
        "memory strategy by name: `static`, `naive`, or a plugin's; with options as in `static:budget=2GB`",
    ),
    "MGE_MEMORY_LIMIT": Variable(
        str, "", "bytes that plans of one device may use, as `2GB`; empty: no limit"
    ),
    "MGE_FALLBACK": Variable(
        str,
        "warn",
        "ops that a device refuses run on `ref`: `allow` silently, `warn` with one line a graph, or `error`",
    ),
    "MGE_PLUGINS": Variable(str, "*", "allow-list of plugins, `a,b`; empty loads none"),
    "MGE_PLUGINS_DISABLE": Variable(str, "", "plugins never to load, `a,b` or `*`"),
    "MGE_THREADS": Variable(int, 0, "CPU threads; 0: one for each core"),
    "MGE_CACHE": Variable(
        str, "", "folder for cached plans and tuning results; empty: the user's cache folder"
    ),
}


def parse(name: str, text: str) -> object:
    """Return the value that a text gives to a variable.

    Raises
    ------
    ArgumentError
        The text is of the wrong kind; names the variable.
    """
    kind, _, effect, most = VARIABLES[name]
    if kind is str:
        return text
    word = text.strip().lower()
    words = {"0": 0, "1": 1, "false": 0, "true": 1, "off": 0, "on": 1, "": 0}
    try:
        number = kind(words[word]) if word in words or kind is bool else int(word)
        if number < 0 or (most is not None and number > most):
            raise ValueError
        return number
    except (KeyError, ValueError):
        rule = (
            "0 or 1" if kind is bool else f"0 to {most}" if most else "a whole number, not below 0"
        )
        raise ArgumentError(
            f"environment: {name} is {text!r}; it must be {rule}", hint=effect
        ) from None


def _read(name: str) -> object:
    """Read one variable, or its default."""
    text = os.environ.get(name)
    return VARIABLES[name].default if text is None else parse(name, text)


class Debug:
    """The settings of this process, and counters of what the kernel did.

    ``mge.debug.check`` and the like read a setting; ``with mge.debug(check=2):`` changes some for a while;
    ``mge.debug.stats()`` returns the counters.

    Examples
    --------
    >>> with debug(check=1):
    ...     debug.check
    1
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.seen: set[str] = set()
        self.on_change: Callable[[], object] = lambda: None
        self.reload()

    def reload(self) -> None:
        """Read the environment again."""
        self._use({name.removeprefix("MGE_").lower(): _read(name) for name in VARIABLES})

    def _use(self, values: dict[str, Any]) -> None:
        self._values = values
        self.__dict__.update(values)  # a plain attribute each: some are read at each run
        self.on_change()

    def __getattr__(self, name: str) -> Any:
        known = ", ".join(self.__dict__.get("_values", ()))
        raise AttributeError(f"mge.debug has no setting {name!r}; known: {known}")

    @contextmanager
    def __call__(self, **settings: object) -> Iterator[Debug]:
        """Change settings inside a ``with`` block.

        Parameters
        ----------
        **settings
            Names of ``VARIABLES`` without ``MGE_``, in lower case.
        """
        before = self._values
        self.set(**settings)
        try:
            yield self
        finally:
            self._use(before)

    def set(self, **settings: object) -> None:
        """Change settings for the rest of the process.

        Parameters
        ----------
        **settings
            Names of ``VARIABLES`` without ``MGE_``, in lower case.
        """
        unknown = settings.keys() - self._values.keys()
        if unknown:
            raise ArgumentError(
                f"debug: unknown settings {sorted(unknown)}; known: {', '.join(self._values)}"
            )
        self._use(self._values | settings)

    def stats(self) -> dict[str, int]:
        """Return counters since the start or ``reset``: plans compiled and run, first-sight runs, re-traces."""
        names = (
            "plans_compiled",
            "plans_run",
            "first_sight_runs",
            "steps_run",
            "retraces",
            "trace_hits",
        )
        return {name: self.counts[name] for name in names} | dict(self.counts)

    def reset(self) -> None:
        """Set all counters to zero."""
        self.counts.clear()

    def log(self, level: int, text: str) -> None:
        """Print a line to standard error when ``MGE_DEBUG`` is at least ``level``."""
        if self._values["debug"] >= level:
            print(f"mge: {text}", file=sys.stderr)

    def once(self, text: str) -> None:
        """Print a warning line to standard error, the first time that this text comes up."""
        if text not in self.seen:
            self.seen.add(text)
            print(f"mge: {text}", file=sys.stderr)


debug = Debug()
