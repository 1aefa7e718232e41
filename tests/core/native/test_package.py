"""Wheels: of the core with its native part, and of the example in C++, built and used as vendors do."""

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile

import pytest

from tests.core.native.build import CXX, ROOT

MISSING = [
    m for m in ("scikit_build_core", "pybind11", "pip") if importlib.util.find_spec(m) is None
]
MISSING += [p for p in ("cmake",) if shutil.which(p) is None] + ([] if CXX else ["a C++ compiler"])
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}"),
]
NOT_COPIED = shutil.ignore_patterns("__pycache__", ".*", "build", "dist")
QUIET = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check", "-q"]


def call(*command, **options):
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, timeout=280, **options
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def exported(library):
    lines = call("nm", "-D", "--defined-only", library).splitlines()
    return [line.split()[-1] for line in lines]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A function from a folder of the checkout to the wheel built from a copy of it."""
    work = tmp_path_factory.mktemp("wheels")

    def build(folder, **options):
        source = work / folder.name
        shutil.copytree(folder, source, ignore=NOT_COPIED)
        before = set(work.glob("*.whl"))
        call(sys.executable, "-m", "pip", "wheel", *QUIET, "-w", work, source, cwd=work, **options)
        (made,) = set(work.glob("*.whl")) - before
        return made

    return build


@pytest.fixture(scope="module")
def core(wheel):
    return wheel(ROOT / "mge-core")


def test_the_cores_wheel_is_small_and_whole(core, tmp_path):
    assert core.stat().st_size <= 1_000_000, "bytes"
    with zipfile.ZipFile(core) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path)
    for name in (
        "include/mge/plugin.h",
        "include/mge/kernel.hpp",
        "include/mge/runtime.hpp",
        "cmake/mge_coreConfig.cmake",
        "sources/runtime.cc",
    ):
        assert f"mge/{name}" in names
    assert not [n for n in names if "__pycache__" in n or "/." in n]
    (native,) = (tmp_path / "mge").glob("_native*")
    assert exported(native) == ["PyInit__native"]
    assert ".debug_info" not in call("readelf", "-S", native)


def test_the_examples_wheel_serves_each_python_and_works(core, wheel, tmp_path):
    site = tmp_path / "site"
    call(sys.executable, "-m", "pip", "install", *QUIET, "--target", site, core)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(site), *sys.path])}
    toy = wheel(
        ROOT / "examples" / "mge-toy-native",
        env=environment | {"CMAKE_ARGS": f"-Dmge_core_DIR={site / 'mge' / 'cmake'}"},
    )
    assert "-py3-none-" in toy.name
    call(sys.executable, "-m", "pip", "install", *QUIET, "--target", site, toy)
    (library,) = (site / "mge_toy_native").glob("*.so")
    assert exported(library) == ["mge_backend_entry_v1"]
    needed = call("readelf", "-d", library)
    assert "libpython" not in needed and "mge" not in needed.replace("mge_toy_native", "")
    code = "import mge; x = mge.tensor([1.0, 2.0], device='toy_native:0'); print((x + x).numpy())"
    assert "[2. 4.]" in call(sys.executable, "-c", code, env=environment, cwd=tmp_path)
    check = [sys.executable, "-m", "mge", "plugins", "check", "toy_native"]
    assert "loaded" in call(*check, env=environment, cwd=tmp_path)
