"""One framework in a process of its own: prepares a case, then times it whenever it is told to.

In: ``worker.py COLUMN``, commands as JSON lines on standard input. Out: answers as JSON lines on standard output.
Started by ``bench/peers.py``; the columns are in the files ``with_*.py`` beside this one.

    {"prepare": ["infer", "resnet18", 1], "threads": 2}  ->  {"output": [...], "notes": "..."}
    {"time": 0.5}                                        ->  {"ms": [one for each run]}
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable

import numpy as np
import zoo

COLUMNS = {
    "mge": "with_mge", "mge-traced": "with_mge", "torch": "with_torch", "torch-cl": "with_torch",
    "torch-compile": "with_torch", "torch-jit": "with_torch", "ort": "with_onnx", "openvino": "with_onnx",
    "jax": "with_jax",
}  # fmt: skip


def timed(run: Callable[[], object], seconds: float) -> list[float]:
    """Return the milliseconds of single runs, for about this long and at least three."""
    found: list[float] = []
    end = time.perf_counter() + seconds
    while len(found) < 3 or (time.perf_counter() < end and len(found) < 2000):
        start = time.perf_counter()
        run()
        found.append((time.perf_counter() - start) * 1e3)
    return found


def main() -> None:
    """Answer commands until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print goes to standard error
    column = sys.argv[1]
    run: Callable[[], object] | None = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if "prepare" in command:
                kind, model, batch = command["prepare"]
                case = zoo.Case(model, batch, kind == "train")
                module = importlib.import_module(COLUMNS[column])
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                run, output = module.prepare(column, case, command["threads"])
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
                answer = {
                    "output": np.asarray(output, "float64").ravel()[:4096].tolist(),
                    "peak_bytes": peak * 1024,
                }
                if column == "mge":
                    answer["calls"] = module.recorded_calls(run)
            else:
                assert run is not None
                answer = {"ms": timed(run, command["time"])}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {str(error).splitlines()[:1]}"}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
