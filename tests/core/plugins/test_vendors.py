"""``docs/vendors.md``: each of its commands runs, in an environment that has mge-core only."""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import mge
from tools.count_lines import ROOT

PAGE = (ROOT / "docs" / "vendors.md").read_text()
SOURCE = Path(mge.__file__).parents[1]


def commands():
    """Return the commands of each section that has some, by its title."""
    found = {}
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE):
        blocks = re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
        if blocks:
            found[section.splitlines()[0]] = "".join(blocks)
    return found


def missing(text):
    """Return what this machine lacks for commands."""
    native = "--lang c++" in text
    modules = ["pip", "pytest", "scikit_build_core" if native else "hatchling"]
    lacks = [m for m in modules if importlib.util.find_spec(m) is None]
    if native:
        lacks += [p for p in ("cmake",) if shutil.which(p) is None]
        lacks += [] if shutil.which("c++") or shutil.which("g++") else ["a C++ compiler"]
        lacks += [] if importlib.util.find_spec("mge._native") else ["mge._native"]
    return lacks


@pytest.fixture
def environment(tmp_path):
    """Make a virtual environment that sees what this one has; return the variables that select it."""
    folder = tmp_path / "env"
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    seen = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
    lines = [f"import site; site.addsitedir({str(p)!r})\n" for p in dict.fromkeys(seen)]
    (site / "parent.pth").write_text("".join([*lines, f"{SOURCE}\n"]))
    try:
        importlib.metadata.distribution("mge-core")
    except importlib.metadata.PackageNotFoundError:  # the sources, on PYTHONPATH
        info = site / f"mge_core-{mge.__version__}.dist-info"
        info.mkdir()
        text = f"Metadata-Version: 2.1\nName: mge-core\nVersion: {mge.__version__}\n"
        (info / "METADATA").write_text(f"{text}Provides-Extra: testing\n")
    pip = folder / "bin" / "pip"
    pip.write_text('#!/bin/sh\nexec "$(dirname "$0")/python" -m pip "$@"\n')
    pip.chmod(0o755)
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("MGE_", "PYTHON", "PYTEST_", "PIP_", "TOX_")) or k == "MGE_CACHE"
    }
    return kept | {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "VIRTUAL_ENV": str(folder),
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip's way to say that there is none
        "PIP_NO_CACHE_DIR": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


@pytest.mark.slow
@pytest.mark.parametrize("title", commands())
def test_the_commands_run(title, environment, tmp_path):
    text = commands()[title]
    if missing(text):
        pytest.skip(f"needs {', '.join(missing(text))}")
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(
        ["sh", "-euxc", text], cwd=work, env=environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]
    assert "trust level L6" in done.stdout and "1 passed" in done.stdout
    assert re.search(r"^acme\S* +backend +mge-acme\S* +0\.1\.0 +loaded", done.stdout, re.MULTILINE)
    (made,) = work.iterdir()
    left = [p.name for p in (tmp_path / "env").glob("lib/python*/site-packages/mge_acme*")]
    assert len(left) == 2, left  # the package and its metadata: it was installed here
    assert (made / "ci.sh").exists()


def test_both_languages_are_shown():
    assert [re.search(r"--lang (\S+)", text)[1] for text in commands().values()] == [
        "python",
        "c++",
    ]
