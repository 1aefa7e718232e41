"""Training in less memory: peak and time of steps under memory strategies and budgets, beside PyTorch's ways.

In: which goals. Out: a line or a JSON object a point, then a line a goal: what was measured, the bar, whether it holds.

    python bench/memory.py [--json] [--smoke] [--goals M1,M4] [--peers-python PATH] [--device x86] [--threads 2]
                           [--strategy sublinear] [--steps 5]

Each point runs in a process of its own. Budgets are shares of the peak (arena and scratch) of strategy ``static`` at
the same batch; ``arena_bytes`` is what the device holds, ``predicted_bytes`` what the plan said. Seconds are medians.
PyTorch (``pip install torch==2.13.0`` in an environment of its own) runs eager, with a checkpoint around each block,
and compiled with activation budgets.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent / "contest"
GIB = 1 << 30
WAYS = ("eager", "checkpoint", "compile:1", "compile:0.5")


class Goal(NamedTuple):
    """Shares of ``static``'s peak for a model, each with the most time that it may cost.

    Attributes
    ----------
    model : str
    batch : int
    bars : dict of float to float
        A share of the peak -> a share of the time.
    peers : bool
        Whether PyTorch runs the model as well.
    """

    model: str
    batch: int
    bars: dict[float, float]
    peers: bool = True


GOALS = {
    "M1": Goal("resnet50", 16, {1 / 2: 0.06, 1 / 3: 0.10, 1 / 4: 0.15}),
    "M4": Goal("transformer48", 1, {1 / 10: 0.25, 1 / 20: 0.35}),
    "M5": Goal("unet", 1, {1 / 2: 0.06, 1 / 2.5: 0.14}),
}
SMOKE = {
    "M1": Goal("resnet18_64", 8, {0.75: 0.06, 0.6: 0.10}),
    "M4": Goal("transformer12", 4, {1 / 2: 0.25, 1 / 4: 0.35}, False),
    "M5": Goal("unet_small", 4, {0.75: 0.06}, False),
}
PROCESS = 8 * GIB  # of M2
BATCHES = {0.0: 90, 0.10: 280, 0.15: 370}  # M2: a share of the time -> the least batch
EQUAL = 32, 60, 240  # M3: a tape that keeps all, static, sublinear


class Bench:
    """Runs points and keeps their rows."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.rows, self.verdicts = options, [], []

    def point(
        self, framework: str, model: str, batch: int, strategy: str, **more: Any
    ) -> dict[str, Any]:
        """Run one point in a process of its own; return its row."""
        given = {
            "framework": framework, "model": model, "batch": batch, "strategy": strategy,
            "device": self.options.device, "threads": self.options.threads, "steps": self.options.steps, **more,
        }  # fmt: skip
        python = sys.executable if framework == "mge" else self.options.peers_python
        threads = str(self.options.threads)
        left = {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"}  # for a fair NumPy
        env = {k: v for k, v in os.environ.items() if k not in left}
        env |= {"MGE_THREADS": threads, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
        done = subprocess.run(
            [python, str(HERE / "point.py"), json.dumps(given)],
            env=env,
            text=True,
            capture_output=True,
            check=False,
        )
        lines = done.stdout.strip().splitlines()
        if done.returncode or not lines:
            row = {
                **given,
                "error": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[
                    -1
                ][:300],
            }
        else:
            row = json.loads(lines[-1])
        row.setdefault("budget_bytes", None)
        self.rows.append(row)
        if self.options.json:
            print(json.dumps(row), flush=True)
        else:
            print(_line(row), flush=True)
        return row

    def say(self, goal: str, what: str, measured: str, bar: str, holds: bool) -> None:
        """Keep and print a verdict."""
        self.verdicts.append(holds)
        facts = {"goal": goal, "what": what, "measured": measured, "bar": bar, "holds": holds}
        text = f"{goal:4} {what}: {measured} (bar {bar}) {'holds' if holds else 'MISSES'}"
        print(json.dumps(facts) if self.options.json else text, flush=True)

    def curve(self, name: str, goal: Goal) -> None:
        """Measure a model under its budgets, and PyTorch's ways beside it."""
        static = self.point("mge", goal.model, goal.batch, "static")
        if "error" in static:
            self.say(name, goal.model, static["error"], "a static step", False)
            return
        made = [static]
        for share, slower in goal.bars.items():
            budget = int(static["predicted_bytes"] * share)
            row = self.point(
                "mge", goal.model, goal.batch, self.options.strategy, budget_bytes=budget
            )
            what = f"{goal.model} b{goal.batch}, {1 / share:.3g} times less"
            if "error" in row:
                self.say(name, what, row["error"], f"+{slower:.0%}", False)
                continue
            made.append(row)
            cost = row["seconds_per_step"] / static["seconds_per_step"] - 1
            self.say(name, what, f"{cost:+.1%} time", f"+{slower:.0%}", cost <= slower)
        self.check(goal.model, made)
        if goal.peers and self.options.peers_python:
            for way in WAYS:
                self.point("torch", goal.model, goal.batch, way)

    def check(self, model: str, made: list[dict[str, Any]]) -> None:
        """Say what must hold of all rows of a model: M6, M7, M9 and M10."""
        hard = all(
            r["arena_bytes"] == r["predicted_bytes"] <= (r["budget_bytes"] or r["arena_bytes"])
            for r in made
        )
        self.say(
            "M6",
            model,
            "arena = prediction <= budget" if hard else "an arena differs",
            "all rows",
            hard,
        )
        times = [r["predicted_ns"] for r in made if r["predicted_ns"]]
        self.say(
            "M6", model, "predicted times rise as budgets fall", "monotone", times == sorted(times)
        )
        for row in (r for r in made if r["planning_seconds"] is not None):
            most = 2 if row["nodes"] <= 300 else 20
            spent = f"{row['planning_seconds']:.2f} s for {row['nodes']} ops"
            self.say("M7", model, spent, f"{most} s", row["planning_seconds"] <= most)
        same = all(r["losses"] == made[0]["losses"] for r in made)
        self.say(
            "M9", model, "losses equal in all bits" if same else "losses differ", "equal", same
        )
        waste = max(r["layout_bytes"] / max(r["live_bytes"], 1) for r in made)
        self.say("M10", model, f"arena {waste:.4f} x live peak", "1.03", waste <= 1.03)

    def batches(self) -> None:
        """M2 and M3: the largest batches in 8 GiB, and in the memory of a tape that keeps all results of 32 images."""
        small = self.point("mge", "resnet50", 16, "static", steps=2)
        if "error" in small:
            return
        image = small["predicted_bytes"] / 16
        fixed = small["process_bytes"] - small["predicted_bytes"]
        room = PROCESS - fixed
        for slower, least in BATCHES.items():
            strategy = self.options.strategy if slower else "static"
            # room for the batch itself and the transposed copies of it: two more images of pixels
            budget = int(room - least * 2 * 3 * 224 * 224 * 4) if slower else None
            row = self.point("mge", "resnet50", least, strategy, steps=1, budget_bytes=budget)
            what = f"ResNet-50 batch {least} in an 8 GiB process"
            if "error" in row:
                self.say("M2", what, row["error"], f"+{slower:.0%}", False)
                continue
            cost = row["seconds_per_step"] / least / (small["seconds_per_step"] / 16) - 1
            text = f"{row['process_bytes'] / GIB:.2f} GiB, {cost:+.1%} time an image against static"
            self.say(
                "M2",
                what,
                text,
                f"8 GiB, +{slower:.0%}",
                row["process_bytes"] <= PROCESS and cost <= max(slower, 0.03),
            )
        all_kept = small["keep_all_bytes"] / 16 * EQUAL[0]
        text = f"{int(all_kept / image)} images of static in the bytes of a tape of {EQUAL[0]} that keeps all"
        self.say("M3", "static", text, f"{EQUAL[1]}", all_kept / image >= EQUAL[1])
        row = self.point(
            "mge", "resnet50", EQUAL[2], self.options.strategy, steps=1, budget_bytes=int(all_kept)
        )
        fits = "error" not in row
        text = (
            f"{row['arena_bytes'] / 1e9:.2f} of {all_kept / 1e9:.2f} GB" if fits else row["error"]
        )
        self.say("M3", f"{self.options.strategy} at batch {EQUAL[2]}", text, "fits", fits)


def _line(row: dict[str, Any]) -> str:
    head = f"{row['framework']:6}{row['model']:14} b{row['batch']:<4}{row['strategy']:12}"
    if "error" in row:
        return f"{head} {row['error']}"
    budget = f"budget {row['budget_bytes'] / 1e6:9.1f} MB  " if row["budget_bytes"] else " " * 21
    arena = f"arena {row['arena_bytes'] / 1e6:9.1f} MB  " if "arena_bytes" in row else " " * 20
    rss, step = row["rss_bytes"] / 1e6, row["seconds_per_step"]
    return f"{head} {budget}{arena}rss +{rss:8.1f} MB  {step * 1e3:10.1f} ms a step"


def main() -> int:
    """Run the goals; return 1 where one misses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--smoke", action="store_true", help="small models, in under 40 s")
    parser.add_argument("--goals", help="as M1,M4; by default all")
    parser.add_argument("--peers-python", metavar="PATH", help="a Python with PyTorch")
    parser.add_argument("--device", default="x86")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--strategy", default="sublinear")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    bench, table = Bench(options), SMOKE if options.smoke else GOALS
    wanted = (
        options.goals.split(",")
        if options.goals
        else [*table, *([] if options.smoke else ["M2", "M3"])]
    )
    for name in (n for n in table if n in wanted):
        bench.curve(name, table[name])
    if {"M2", "M3"} & set(wanted):
        bench.batches()
    return 0 if all(bench.verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
