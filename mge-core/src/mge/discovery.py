"""Discovery: the entry points of installed distributions that offer something to mge.

In: the folders of ``sys.path``. Out: ``EntryPoint`` lists, made once per process, on first need; nothing is imported.
After ``control``; before ``plugin``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

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
        Distributions whose metadata cannot be read, as far as the search met them.
    """

    entries: list[EntryPoint]
    malformed: list[tuple[str, str]]


@functools.cache
def discover() -> Found:
    """Return the entry points of all distributions; read once per process.

    ``entrypoints`` stops at the first malformed file, of whatever package: then each distribution is read by itself.
    """
    import entrypoints

    malformed: list[tuple[str, str]] = []
    try:
        configs = [(c, (d.name, d.version or "")) for c, d in entrypoints.iter_files_distros()]
    except Exception:
        configs = list(_one_by_one(malformed))
    found: set[EntryPoint] = set()
    for config, (package, version) in configs:
        try:
            found.update(_entries(config, normal_name(package), version))
        except Exception as error:
            malformed.append((normal_name(package), f"{type(error).__name__}: {first_line(error)}"))
    return Found(sorted(found, key=lambda e: (e.name, e.package, e.kind, e.value)), malformed)


def _one_by_one(malformed: list[tuple[str, str]]) -> Iterator[tuple[Any, tuple[str, str]]]:
    from importlib.metadata import distributions

    import entrypoints

    seen: set[str] = set()
    for distribution in distributions():
        folder = str(getattr(distribution, "_path", "?")).replace("\\", "/").rsplit("/", 1)[-1]
        package, _, version = folder.rsplit(".", 1)[0].partition("-")
        if package in seen:
            continue
        seen.add(package)
        try:
            text = distribution.read_text("entry_points.txt")
            if text:
                config = entrypoints.CaseSensitiveConfigParser(delimiters=("=",))
                config.read_string(text)
                yield config, (package, version)
        except Exception as error:
            malformed.append((normal_name(package), f"{type(error).__name__}: {first_line(error)}"))


def _entries(
    config: Mapping[str, Mapping[str, str]], package: str, version: str
) -> Iterator[EntryPoint]:
    for kind, group in KINDS.items():
        if group in config:
            for name, value in config[group].items():
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
