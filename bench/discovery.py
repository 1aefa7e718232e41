"""The time of listing plugins among many installed distributions, and of ``import mge`` beside them.

In: how many fake distributions to write. Out: seconds, medians over fresh processes.

    python bench/discovery.py [--json] [--count 300] [--runs 9]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

CODE = """
import json, sys, time
start = time.perf_counter()
import mge
middle = time.perf_counter()
from mge.registry import plugins
found = plugins()
end = time.perf_counter()
assert len(found) >= {count}, len(found)
again = time.perf_counter()
plugins()
last = time.perf_counter()
assert not [m for m in sys.modules if m.startswith("fake_")]
print(json.dumps([middle - start, end - middle, last - again]))
"""
NAMES = ("import_seconds", "listing_seconds", "listing_again_seconds")


def write_distributions(folder: Path, count: int) -> None:
    """Write fake distributions; each tenth one offers a plugin."""
    for i in range(count):
        info = folder / f"fake_{i}-1.{i}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: fake-{i}\nVersion: 1.{i}\n")
        group = "mge.backends" if i % 10 == 0 else "console_scripts"
        (info / "entry_points.txt").write_text(f"[{group}]\nfake{i} = fake_{i}.module:Main\n")


def measure(folder: Path, count: int, runs: int) -> dict[str, float]:
    """Return the medians over fresh processes."""
    paths = [str(folder), *sys.path[1:], os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    rows = []
    for _ in range(runs + 1):  # the first one compiles the bytecode
        command = [sys.executable, "-c", CODE.format(count=-(-count // 10))]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout))
    return dict(zip(NAMES, (round(statistics.median(column), 5) for column in zip(*rows[1:]))))


def main() -> None:
    """Measure, print a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--runs", type=int, default=9)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_distributions(Path(folder), options.count)
        found = measure(Path(folder), options.count, options.runs)
        (Path(folder) / "fake_0-1.0.dist-info" / "entry_points.txt").write_text("no section\n")
        broken = measure(Path(folder), options.count - 10, options.runs)
        found["listing_with_a_malformed_file_seconds"] = broken["listing_seconds"]
    if options.json:
        print(json.dumps(found | {"distributions": options.count, "runs": options.runs}))
        return
    for name, value in found.items():
        print(f"{name:40}{value:10.5f}")


if __name__ == "__main__":
    main()
