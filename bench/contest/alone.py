"""Rows that no other framework takes part in: kernels beside the roof, the package, tuning.

In: a row, and the number of threads. Out: a value, or why there is none.
Used by ``peers.py``; each measurement is a process of its own.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import zlib
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOAD = """
import time, mge
from mge.device import as_device
start = time.perf_counter()
as_device("x86:0")
print(1e3 * (time.perf_counter() - start))
"""
TUNE = """
import json, statistics, time
import mge, with_mge, worker, zoo
case = zoo.Case("resnet50", 1)
run, _ = with_mge.prepare("mge-traced", case, 0)
untuned = statistics.median(worker.timed(run, 1.0))
net = with_mge.make(case.model)
net.eval()
data = mge.tensor(zoo.inputs(case)[0])
infer = mge.jit.trace(net.__call__, tune=True)
start = time.perf_counter()
for _ in range(3):
    infer(data).numpy()
seconds = time.perf_counter() - start
tuned = statistics.median(worker.timed(lambda: infer(data).numpy(), 1.0))
print(json.dumps({"seconds": seconds, "untuned": untuned / tuned}))
"""


class Skipped(Exception):
    """Why a row has no value."""


def _run(arguments: list[str], threads: int, seconds: float, **settings: str) -> str:
    env = {**os.environ, "MGE_THREADS": str(threads), "PYTHONPATH": str(HERE), **settings}
    try:
        done = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, env=env, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        raise Skipped(f"no answer in {seconds:.0f} s") from None
    if done.returncode:
        raise Skipped(done.stderr.strip().splitlines()[-1][:200])
    return done.stdout


def kernel(label: str, threads: int, rounds: int, seconds: float) -> float:
    """Return the share of the roof that one shape of ``bench/gemm.py`` reaches."""
    program = str(HERE.parent / "gemm.py")
    options = ["--json", "--only", label, "--threads", str(threads), "--rounds", str(8 * rounds)]
    text = _run([program, *options], threads, seconds)
    if text.startswith("skipped"):
        raise Skipped(text.strip())
    found = {shape["shape"]: shape["share"] for shape in json.loads(text)["shapes"]}
    return found[label]


def load_ms(threads: int, rounds: int, seconds: float) -> float:
    """Return the milliseconds of loading device x86 after ``import mge``, in fresh processes."""
    return statistics.median(
        float(_run(["-c", LOAD], threads, seconds)) for _ in range(2 * rounds + 1)
    )


def wheel_mb(path: Path | None) -> float:
    """Return the MB of a wheel; without one, of the installed files, each compressed as in a wheel."""
    if path is not None:
        return path.stat().st_size / 1e6
    try:
        files = metadata.files("mge-x86") or []
    except metadata.PackageNotFoundError:
        raise Skipped("mge-x86 is not installed") from None
    found = [Path(str(f.locate())) for f in files if f.suffix != ".pyc"]
    levels = [p for p in found if p.name.startswith("libmge_x86_") and p.is_file()]
    if len(levels) < 4:
        raise Skipped(f"{len(levels)} of 4 levels are installed; give --wheel")
    return sum(len(zlib.compress(p.read_bytes(), 6)) for p in found if p.is_file()) / 1e6


_TUNED: dict[int, dict[str, float]] = {}


def tuned(figure: str, threads: int, seconds: float) -> float:
    """Return a figure of tuning ResNet-50 from an empty cache: ``"seconds"`` or ``"untuned"``."""
    if threads not in _TUNED:
        with tempfile.TemporaryDirectory() as cache:
            text = _run(["-c", TUNE], threads, seconds, MGE_CACHE=cache)
        _TUNED[threads] = json.loads(text.splitlines()[-1])
    return _TUNED[threads][figure]
