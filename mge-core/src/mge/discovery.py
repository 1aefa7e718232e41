"""Discovery: the entry points of installed distributions that offer something to mge.

In: the folders of ``sys.path``. Out: ``EntryPoint`` lists, made once per process, on first need; nothing is imported.
After ``control``; before ``plugin``.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

KINDS = {
    "backend": "mge.backends",
    "memory": "mge.memory",
    "quantizer": "mge.quantizers",
    "ops": "mge.ops",
    "hooks": "mge.hooks",
}


class EntryPoint(NamedTuple):
    """One line of a distribution's ``entry_points.txt``.

    Attributes
    ----------
    kind : str
        A key of ``KINDS``.
    name : str
        What the user types.
    package, version : str
        The distribution; the version is ``""`` where its folder does not tell.
    value : str
        ``"module:object"``.
    """

    kind: str
    name: str
    package: str
    version: str
    value: str


class Found(NamedTuple):
    """What is installed.

    Attributes
    ----------
    entries : list of EntryPoint
        Sorted by name, then package.
    malformed : list of (package, reason)
        Distributions that speak of mge, and whose ``entry_points.txt`` cannot be read.
    """

    entries: list[EntryPoint]
    malformed: list[tuple[str, str]]


@functools.cache
def discover() -> Found:
    """Return the entry points of all distributions; read once per process.

    A file that does not speak of mge is not parsed: the metadata of other packages costs no time and can do no harm.
    """
    found: set[EntryPoint] = set()
    malformed: list[tuple[str, str]] = []
    for package, version, text in _texts():
        if b"mge." in text:
            try:
                found.update(_entries(package, version, text))
            except Exception as error:
                malformed.append((package, f"{type(error).__name__}: {first_line(error)}"))
    return Found(sorted(found, key=lambda e: (e.name, e.package, e.kind, e.value)), malformed)


def unreadable() -> list[tuple[str, str]]:
    """Return (package, reason) of all distributions whose ``entry_points.txt`` cannot be read."""
    malformed = []
    for package, version, text in _texts():
        try:
            list(_entries(package, version, text))
        except Exception as error:
            malformed.append((package, f"{type(error).__name__}: {first_line(error)}"))
    return malformed


def _texts() -> Iterator[tuple[str, str, bytes]]:
    """Yield package, version and text of each ``entry_points.txt``; the first on the path of each package."""
    seen: set[str] = set()
    for folder in sys.path:
        try:
            names = sorted(os.listdir(folder or "."))
        except OSError:  # no folder, or a zip file: what is in there is not looked at
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                package, _, version = name.rpartition(".")[0].partition("-")
                package = normal_name(package)
                if package not in seen:
                    seen.add(package)
                    try:
                        with open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
                            yield package, version, file.read()
                    except OSError:
                        continue


def _entries(package: str, version: str, text: bytes) -> Iterator[EntryPoint]:
    """Yield the entry points of one distribution, read by the parser of ``entrypoints``."""
    import entrypoints

    config = entrypoints.CaseSensitiveConfigParser(delimiters=("=",))
    config.read_string(text.decode())
    for kind, group in KINDS.items():
        for name, value in config[group].items() if group in config else ():
            yield EntryPoint(kind, name, package, version, value.partition("[")[0].strip())


def normal_name(package: str) -> str:
    """Return a distribution's name as package indexes write it: ``Acme_MGE`` is ``acme-mge``."""
    return re.sub(r"[-_.]+", "-", package).lower()


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text that says something."""
    text = (
        str(error.args[0]) if error.args and hasattr(error, "hint") else str(error)
    )  # without hint and place
    return next((line.strip() for line in text.splitlines() if line.strip()), "no text")
