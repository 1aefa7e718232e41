"""``mge new-backend``: write a plugin for a device: kernels, build files, tests, and what a CI job runs.

In: a name, a language, a folder. Out: the files of a distribution that builds and passes the conformance kit.
After ``plugins``; before ``command``. The files are made from ``templates/``, where ``@word@`` stands for what varies.
"""

from __future__ import annotations

import argparse
import keyword
import re
from importlib.resources import files
from pathlib import Path

import mge

from .. import registry
from ..errors import ArgumentError
from ..plugin import API

# Template, and the file that is made of it.
COMMON = {
    "common/test_conformance.py": "tests/test_conformance.py",
    "common/unsupported.txt": "unsupported.txt",
    "common/xfails.txt": "xfails.txt",
    "common/ci.sh": "ci.sh",
    "common/ci.yml": ".github/workflows/ci.yml",
}
FILES = {
    "python": {
        "python/pyproject.toml": "pyproject.toml",
        "python/README.md": "README.md",
        "python/package.py": "src/@module@/__init__.py",
        **COMMON,
    },
    "c++": {
        "cpp/pyproject.toml": "pyproject.toml",
        "cpp/CMakeLists.txt": "CMakeLists.txt",
        "cpp/README.md": "README.md",
        "cpp/kernels.cc": "@name@.cc",
        "cpp/package.py": "src/@module@/__init__.py",
        **COMMON,
    },
}
# What these mean is settled: choices of a device, words of `mge plugins --expect`, the kernel's own distribution.
RESERVED = {"auto", "cpu", "cpux", "xpu", "core", "all", "mge"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mge new-backend``."""
    parser.description = (
        "Write a plugin for a device: a distribution mge-NAME with a few kernels, a test that runs the conformance "
        "kit, and what a CI job runs. It is complete: install it, run its test, then add kernels. See docs/vendors.md."
    )
    parser.add_argument(
        "name", metavar="NAME", help='the device type, as users type it: acme in "acme:0"'
    )
    parser.add_argument("--lang", choices=list(FILES), default="python", help="default: python")
    parser.add_argument("--out", metavar="DIR", help="default: mge-NAME in this folder")


def run(arguments: argparse.Namespace) -> int:
    """Write the files, and say what to do with them; return 0."""
    check_name(arguments.name)
    texts = render(arguments.name, arguments.lang)
    folder = Path(arguments.out or words_of(arguments.name)["package"])
    there = [name for name in texts if (folder / name).exists()]
    if there:
        raise ArgumentError(
            f"new-backend: {folder} has {', '.join(there)} already; nothing was written",
            hint="--out names another folder",
        )
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
        if path.suffix == ".sh":
            path.chmod(0o755)
    lines = sum(len(text.splitlines()) for text in texts.values())
    print(f"{folder}: {len(texts)} files, {lines} lines")
    print("".join(f"  {name}\n" for name in texts), end="")
    where = folder if folder.is_absolute() else f"./{folder}"
    print(f"next: pip install {where} && python -m mge.testing {arguments.name}")
    return 0


def check_name(name: str) -> None:
    """Refuse what cannot name a device, or does so already.

    Parameters
    ----------
    name : str
        Lower-case letters, digits and single underscores; it begins with a letter.

    Raises
    ------
    ArgumentError
        The name has another form, or is taken.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise ArgumentError(
            f"new-backend: {name!r} cannot name a device; a name has lower-case letters, digits and single "
            "underscores, begins with a letter, and is no word of Python's"
        )
    taken = dict.fromkeys(RESERVED, "a name that mge uses")
    taken |= {
        n: f"the name of a plugin of mge, {package}" for n, package in registry.PACKAGES.items()
    }
    taken |= {
        p.name: f"the name of an installed plugin, {p.package}" for p in registry.plugins("backend")
    }
    taken |= {n: "built in" for kind, n in registry.BUILT_IN if kind == "backend"}
    if name in taken:
        raise ArgumentError(f"new-backend: {name!r} is {taken[name]}", hint="choose another name")


def words_of(name: str) -> dict[str, str]:
    """Return what the words between ``@`` in templates stand for."""
    major, minor = (int(n) for n in re.findall(r"\d+", mge.__version__)[:2])
    return {
        "name": name,
        "package": f"mge-{name.replace('_', '-')}",
        "module": f"mge_{name}",
        "class": "".join(part.capitalize() for part in name.split("_")),
        "pin": f">={major}.{minor},<{major}.{minor + 1}"
        if major == 0
        else f">={major}.{minor},<{major + 1}",
        "api": repr(API),
        "abi": ".".join(map(str, API)),
    }


def render(name: str, language: str) -> dict[str, str]:
    """Return the text of each file of a plugin, by its path in the distribution.

    Parameters
    ----------
    name : str
        The device type.
    language : {"python", "c++"}
    """
    words = words_of(name)
    templates = files(__package__) / "templates"

    def fill(text: str) -> str:
        return re.sub(r"@(\w+)@", lambda found: words[found[1]], text)

    return {
        fill(target): fill((templates / f"{template}.tmpl").read_text(encoding="utf-8"))
        for template, target in FILES[language].items()
    }
