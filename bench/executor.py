"""The cost of a step of a plan with native kernels, and of a parallel region.

In: nothing; it needs the example backend `toy_native` and the native part of mge-core. Out: microseconds.

    python bench/executor.py [--json] [--rounds 9]

A plan of 100 ``add`` steps on 8×8 runs on device `toy_native`. What the kernel itself takes is measured apart, by
calling it in a row without the interpreter, and subtracted. Figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

import numpy as np

import mge
from mge import execute, native
from mge.cache import PLANS

STEPS = 100
REPEATS = 200
BAR_STEP_US, BAR_REGION_US = 0.3, 3.0


def chain_plan() -> tuple:
    """Return the plan of a chain of additions, and the buffers of its inputs."""
    x, y = (mge.tensor(np.full((8, 8), v, np.float32), device="toy_native:0") for v in (1.0, 0.5))

    def chain() -> mge.Tensor:
        a = x
        for _ in range(STEPS):
            a = a + y
        return a

    PLANS.clear()
    for _ in range(2):
        chain().numpy()
    structure = next(reversed(PLANS._structures.values()))
    compiled = next(iter(structure.plans.values()))
    assert len(compiled.plan.steps) == STEPS
    return compiled.plan, [x._node.buffer, y._node.buffer]


def seconds(function, repeat: int) -> float:
    """Return the seconds of one call, over ``repeat`` calls."""
    start = time.perf_counter()
    for _ in range(repeat):
        function()
    return (time.perf_counter() - start) / repeat


def python_path(plan, buffers) -> None:
    """Run a plan step by step in Python, as without the native part."""
    bound, kept = plan.bound, plan.bound.native
    bound.native = None
    try:
        execute.execute(plan, buffers)
    finally:
        bound.native = kept


def measure(rounds: int) -> dict[str, float]:
    """Return name -> microseconds."""
    plan, buffers = chain_plan()
    kernel = plan.steps[0].kernel.handle
    arrays = [np.zeros((8, 8), np.float32) for _ in range(3)]
    found: dict[str, list[float]] = {"kernel": [], "step": [], "step_python": [], "region": []}
    for _ in range(rounds):
        start = time.perf_counter()
        kernel.repeat(arrays[:2], arrays[2:], STEPS * REPEATS)
        found["kernel"].append((time.perf_counter() - start) / (STEPS * REPEATS))
        found["step"].append(seconds(lambda: execute.execute(plan, buffers), REPEATS) / STEPS)
        found["step_python"].append(
            seconds(lambda: python_path(plan, buffers), REPEATS // 10) / STEPS
        )
        found["region"].append(native.load_module().region_seconds(20_000, 2))
    medians = {name: 1e6 * statistics.median(values) for name, values in found.items()}
    smallest = {name: 1e6 * min(values) for name, values in found.items()}
    return {
        "kernel_us": medians["kernel"],
        "step_us": medians["step"],
        "beyond_kernel_us": medians["step"] - medians["kernel"],
        "beyond_kernel_min_us": smallest["step"] - smallest["kernel"],
        "step_python_us": medians["step_python"],
        "region_us": medians["region"],
        "region_min_us": smallest["region"],
        "threads": native.load_module().thread_count(),
    }


def main() -> int:
    """Print the figures; return 1 where one is over its bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    figures = measure(args.rounds)
    good = figures["beyond_kernel_us"] <= BAR_STEP_US and figures["region_us"] <= BAR_REGION_US
    if args.json:
        print(json.dumps(figures | {"good": good}))
    else:
        for name, value in figures.items():
            print(f"{name:24} {value:8.3f}")
        print(
            f"{STEPS} steps; bars: {BAR_STEP_US} us a step beyond the kernel, {BAR_REGION_US} us a region"
        )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
