"""The time of ``import mge`` beyond NumPy's own import, and the size of the wheel.

In: nothing. Out: seconds (medians over fresh processes, in turn) and bytes.

    python bench/import_time.py [--json] [--runs 15] [--wheel DIST.whl]
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

CODE = "import time; import {first}; start = time.perf_counter(); import {second}; print(time.perf_counter() - start)"


def seconds(first: str, second: str, cache: str) -> float:
    """Return how long a fresh process takes to import ``second`` after ``first``.

    Bytecode is kept in the folder ``cache``, as an installed package has it, whatever the environment says.
    """
    unset = {"PYTHONDONTWRITEBYTECODE", "PYTHONOPTIMIZE"}
    environment = {n: v for n, v in os.environ.items() if n not in unset}
    command = [sys.executable, "-X", f"pycache_prefix={cache}", "-c"]
    done = subprocess.run(
        [*command, CODE.format(first=first, second=second)],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(done.stdout)


def main() -> None:
    """Measure, print a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--wheel", type=Path, help="a built wheel, whose size is reported too")
    options = parser.parse_args()
    rows: dict[str, list[float]] = {"numpy": [], "mge_beyond_numpy": []}
    with tempfile.TemporaryDirectory() as cache:
        seconds("numpy", "mge", cache)  # compiles the bytecode
        for _ in range(options.runs):
            rows["numpy"].append(seconds("sys", "numpy", cache))
            rows["mge_beyond_numpy"].append(seconds("numpy", "mge", cache))
    found: dict[str, float] = {
        f"{name}_seconds": round(statistics.median(v), 4) for name, v in rows.items()
    }
    if options.wheel:
        found["wheel_bytes"] = options.wheel.stat().st_size
    if options.json:
        print(json.dumps(found | {"runs": options.runs}))
        return
    for name, value in found.items():
        print(f"{name:28}{value:12,}")


if __name__ == "__main__":
    main()
