"""How the tests build C and C++: with the headers of the installed mge and the sources of the checkout."""

import shutil
import subprocess
from pathlib import Path

import mge

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
NATIVE = ROOT / "mge-core" / "native"
TOY = ROOT / "examples" / "mge-toy-native" / "toy.cc"
CC, CXX = shutil.which("gcc") or shutil.which("cc"), shutil.which("g++") or shutil.which("c++")


def compiled(target, *sources, flags=(), shared=True):
    """Build a library or program; return its path."""
    is_c = all(str(s).endswith(".c") for s in sources)
    command = [
        CC if is_c else CXX,
        "-std=c11" if is_c else "-std=c++17",
        "-O1",
        "-g",
        "-Wall",
        "-Wextra",
    ]
    command += ["-fPIC", "-shared", "-fvisibility=hidden"] if shared else []
    command += [f"-I{mge.get_include()}", f"-I{mge.get_include()}/mge", f"-I{NATIVE}"]
    command += [f"-I{HERE / 'libraries'}", *flags]
    command += [*map(str, sources), "-o", str(target), "-lpthread", "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target
