"""``mge doctor``: what is wrong with this installation, one line each.

In: installed distributions, this machine. Out: lines or JSON; exit status 1 where something is wrong.
After ``plugins``; before ``command``.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import platform
import re
from collections.abc import Iterator
from importlib import metadata
from typing import NamedTuple

import mge

from .. import registry, threads
from ..discovery import unreadable
from ..registry import KINDS
from .plugins import SECONDS, check, run_child

RUNTIMES = {
    "BLAS": ("openblas", "mkl_rt", "blis", "libblas"),
    "OpenMP": ("libgomp", "libomp", "libiomp"),
}
_REQUIREMENT = re.compile(r"(~=|==|!=|<=|>=|<|>)\s*([\d.]+)")


class Finding(NamedTuple):
    """One line: what it is about, whether something is wrong (or only advice), and the text."""

    about: str
    is_fault: bool
    text: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mge doctor``."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--libraries", action="store_true", help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    """Look, and print what was found; return 1 where something is wrong."""
    if arguments.libraries:  # the process in which all plugins are loaded
        print(json.dumps(_libraries()))
        return 0
    found = [f for look in _LOOKS for f in look()]
    if arguments.json:
        print(json.dumps({"schema": 1, "findings": [f._asdict() for f in found]}, indent=2))
    else:
        for finding in found:
            print(f"{'fault ' if finding.is_fault else 'advice'}  {finding.about}: {finding.text}")
        if not any(f.is_fault for f in found):
            print("nothing is wrong")
    return int(any(f.is_fault for f in found))


def _metadata() -> Iterator[Finding]:
    for package, reason in unreadable():
        text = f"{package}: its entry_points.txt cannot be read: {reason}; install it again"
        yield Finding("metadata", True, text)


def _plugins() -> Iterator[Finding]:
    for plugin in registry.plugins():
        found = check(plugin)
        if found["state"] in ("failed", "incompatible"):
            yield Finding("plugins", True, f"{plugin}: {found['state']}: {found['reason']}")
        elif found["state"] == "shadowed":
            yield Finding("plugins", True, f"{plugin}: {found['reason']}; uninstall one of them")
        elif found["state"] == "unavailable":
            yield Finding("plugins", False, f"{plugin}: unavailable: {found['reason']}")


def _versions() -> Iterator[Finding]:
    for package in sorted({p.package for p in registry.plugins()}):
        try:
            requirements = metadata.requires(package) or []
        except metadata.PackageNotFoundError:
            continue
        for line in requirements:
            requirement, _, marker = line.partition(";")
            is_core = re.match(r"mge[-_.]core\b", requirement) and "extra" not in marker
            if is_core and not satisfies(mge.__version__, requirement):
                text = f"{package} needs {requirement.strip()}; mge-core is {mge.__version__}"
                yield Finding("versions", True, text)


def satisfies(version: str, requirement: str) -> bool:
    """Whether a version fits what a requirement says, by its numbers: ``mge-core>=0.1,<0.2``."""
    has = _numbers(version)
    for sign, text in _REQUIREMENT.findall(requirement):
        bound = _numbers(text)
        width = max(len(has), len(bound))
        a, b = (n + (0,) * (width - len(n)) for n in (has, bound))
        if sign == "~=":
            holds = a >= b and a[: len(bound) - 1] == b[: len(bound) - 1]
        else:
            holds = {
                "==": a == b,
                "!=": a != b,
                "<=": a <= b,
                ">=": a >= b,
                "<": a < b,
                ">": a > b,
            }[sign]
        if not holds:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.match(r"[\d.]*", version)[0].split(".") if n)  # type: ignore[index]


def _hardware() -> Iterator[Finding]:
    installed = {p.package for p in registry.plugins()}
    for package, seen in _seen():
        if package not in installed:
            yield Finding("hardware", False, f"{seen}; for its kernels: pip install {package}")
    facts = {"system": platform.system(), "machine": platform.machine()}
    for plugin, packages in registry.call_hooks("mge_suggest", platform=facts):
        for package in packages:
            if package not in installed:
                yield Finding("hardware", False, f"{plugin} suggests: pip install {package}")


def _seen() -> Iterator[tuple[str, str]]:
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        yield "mge-x86", "this is an x86-64 processor"
    if machine in ("aarch64", "arm64"):
        yield "mge-arm", "this is an AArch64 processor"
    if glob.glob("/dev/nvidia[0-9]*"):
        yield "mge-cuda", "there is an NVIDIA GPU"
    if glob.glob("/dev/davinci[0-9]*") or glob.glob("/dev/accel/accel[0-9]*"):
        yield "mge-npu", "there is an NPU"


def _runtimes() -> Iterator[Finding]:
    reason, text = run_child(["doctor", "--libraries"], SECONDS)
    if reason:
        yield Finding("runtimes", True, f"loading all plugins together: {reason}")
        return
    libraries = json.loads(text.strip().splitlines()[-1])
    for kind, parts in RUNTIMES.items():
        found = [p for p in libraries if any(part in os.path.basename(p) for part in parts)]
        if len(found) > 1:
            text = f"{len(found)} {kind} libraries in one process, each with its own threads"
            yield Finding("runtimes", True, f"{text}: {', '.join(found)}; MGE_THREADS limits them")


def _libraries() -> list[str]:
    """Load all plugins, and return the shared libraries of this process."""
    for kind in KINDS:
        registry.each(kind)
    return sorted({os.path.realpath(p) for p in threads._loaded_libraries()})


def _hooks() -> Iterator[Finding]:
    for plugin, lines in registry.call_hooks("mge_doctor"):
        for line in lines:
            yield Finding(plugin.name, True, str(line))


_LOOKS = (_metadata, _plugins, _versions, _hardware, _runtimes, _hooks)
