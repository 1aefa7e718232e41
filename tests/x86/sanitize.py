"""Build one level of mge-x86 under the address and undefined-behaviour sanitizers; run the kit and the fuzz tests.

    python tests/x86/sanitize.py FOLDER [--level avx2] [--jobs 2] [words for pytest]

FOLDER keeps the build (3 minutes of one core, the first time). Needs g++, cmake, and mge-core[test] and mge-x86 in
this environment. Exit status: of the
first run with a fault; a sanitizer's report ends the program that it is about.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PLUGIN = ROOT / "plugins" / "mge-x86"
FLAGS = "-O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all"
FUZZ = [
    *("conv", "products", "attention", "norm", "pool"),
    *("reduce", "softmax", "index", "update", "elementwise"),
]


def build(folder: Path, level: str, jobs: int) -> Path:
    """Return a folder for PYTHONPATH, with the package and the library of one level."""
    package = folder / "python" / "mge_x86"
    shutil.copytree(PLUGIN / "src" / "mge_x86", package, dirs_exist_ok=True)
    made = folder / "build"
    options = [f"-DMGE_X86_LEVELS={level}", "-DCMAKE_BUILD_TYPE=Debug", f"-DCMAKE_CXX_FLAGS_DEBUG={FLAGS}"]  # fmt: skip
    options.append(f"-DPython_EXECUTABLE={sys.executable}")
    subprocess.run(["cmake", "-S", PLUGIN, "-B", made, *options], check=True)
    subprocess.run(["cmake", "--build", made, "-j", str(jobs)], check=True)
    for library in made.glob("lib*.so"):
        shutil.copy2(library, package)
    return package.parent


def preloaded(compiler: str = "g++") -> str:
    """Return the libraries of the sanitizers: a program that was built without them needs them first."""
    names = ("libasan.so", "libubsan.so", "libstdc++.so")  # the last: so that exceptions are seen
    found = (
        subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True)
        for name in names
    )
    return " ".join(f.stdout.strip() for f in found)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="for the build")
    parser.add_argument("--level", default="avx2", help="sse4, avx2, avx512 or avx512vnni")
    parser.add_argument("--jobs", type=int, default=2)
    options, words = parser.parse_known_args()
    path = build(options.folder.resolve(), options.level, options.jobs)
    settings = {
        "PYTHONPATH": str(path),
        "LD_PRELOAD": preloaded(),
        # Python's own leaks are not looked for; a request for too much memory is refused, as without a sanitizer.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "MGE_X86_ISA": options.level,
    }
    fuzz = ["-m", "pytest", "-q", "-p", "no:cacheprovider", HERE, "-m", "not slow"]
    fuzz += ["-k", " or ".join(FUZZ)]
    for command in (["-m", "mge.testing", "x86", "--level", "L4", "--quiet"], [*fuzz, *words]):
        done = subprocess.run([sys.executable, *command], cwd=ROOT, env={**os.environ, **settings})
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
