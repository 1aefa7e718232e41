"""Training in less memory: peak and time of steps under memory strategies and budgets, beside PyTorch's ways.

In: which goals. Out: a line or a JSON object a point, then a line a goal: what was measured, the bar, whether it holds.

    python bench/memory.py [--json] [--smoke] [--goals M1,M4] [--peers-python PATH] [--device x86] [--threads 2]
                           [--strategy sublinear] [--steps N] [--rounds N]

Each point runs in a process of its own, and the points of a model in turn for some rounds: seconds are medians of all
steps, and what a budget costs is the median over the rounds of its ratio to ``static`` in the same round. Budgets are
shares of the peak (arena and scratch) of strategy ``static`` at the same batch; ``arena_bytes`` is what the device
holds, ``predicted_bytes`` what the plan said.
PyTorch (``pip install torch==2.13.0`` in an environment of its own) runs eager, with a checkpoint around each block,
and compiled with activation budgets; what it takes of memory is read off the process, ours as well in ``rss_bytes``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent / "contest"
GIB = 1 << 30
WAYS = ("eager", "checkpoint", "compile:1", "compile:0.5")  # of PyTorch
FIELDS = (
    "budget_bytes",
    "predicted_bytes",
    "arena_bytes",
    "seconds_per_step",
)  # of every row, null where unknown


class Goal(NamedTuple):
    """Shares of ``static``'s peak for a model, each with the most time that it may cost.

    Attributes
    ----------
    model : str
    batch : int
    bars : dict of float to float
        A share of the peak -> a share of the time.
    ways : tuple of str
        In which PyTorch runs the model as well; compiling 48 blocks takes minutes.
    """

    model: str
    batch: int
    bars: dict[float, float]
    ways: tuple[str, ...] = WAYS


GOALS = {
    "M1": Goal("resnet50", 16, {1 / 2: 0.06, 1 / 3: 0.10, 1 / 4: 0.15}),
    # at batch 1 a twentieth, 82 MB, is mostly one weight's gradient, its packed copy and scratch: 43 MB for any batch
    "M4": Goal("transformer48", 2, {1 / 10: 0.25, 1 / 20: 0.35}, WAYS[:2]),
    "M5": Goal("unet", 1, {1 / 2: 0.06, 1 / 2.5: 0.14}),
}
SMOKE = {
    "M1": Goal("resnet18_64", 32, {0.75: 0.06, 0.6: 0.10}, WAYS[:2]),
    "M4": Goal("transformer12", 4, {1 / 2: 0.25, 1 / 4: 0.35}, ()),
    "M5": Goal("unet_small", 4, {0.75: 0.06}, ()),
}
PROCESS = 8 * GIB  # of M2
BATCHES = {
    0.0: 90,
    0.10: 280,
    0.15: 370,
}  # M2: a share of the time of the first, which is static -> the least batch
EQUAL = 32, 60, 240  # M3: a tape that keeps all, static, sublinear


class Bench:
    """Runs points, prints their rows, keeps the verdicts."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.verdicts = options, []

    def run(
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
        command = [python, str(HERE / "point.py"), json.dumps(given)]
        done = subprocess.run(command, env=env, text=True, capture_output=True, check=False)
        lines = done.stdout.strip().splitlines()
        if done.returncode or not lines:
            words = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            return {**dict.fromkeys(FIELDS), **given, "error": words[-1][:300]}
        return {**dict.fromkeys(FIELDS), **json.loads(lines[-1])}

    def point(
        self, framework: str, model: str, batch: int, strategy: str, **more: Any
    ) -> dict[str, Any]:
        """Run one point; print and return its row."""
        return self.show(self.run(framework, model, batch, strategy, **more))

    def show(self, row: dict[str, Any]) -> dict[str, Any]:
        """Print a row, and return it."""
        print(json.dumps(row) if self.options.json else _line(row), flush=True)
        return row

    def in_turn(
        self, points: list[tuple[Any, ...]], first: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Run points in turn, and return a row for each; ``first`` has those of the first round that are there.

        ``slower`` of a row is its time over that of the first point, less 1.
        """
        rounds = [[*first, *(self.run(*words, **more) for *words, more in points[len(first) :])]]
        for _ in range(self.options.rounds - 1):
            rounds.append([self.run(*words, **more) for *words, more in points])
        rows = []
        for made in zip(*rounds):
            seconds = [s for row in made for s in row.get("seconds", [])]
            row = next((r for r in made if "error" in r), made[0])
            if "error" not in row:
                ratios = [r["seconds_per_step"] / base["seconds_per_step"] for r, base in zip(made, next(zip(*rounds)))
                          if "error" not in base]  # fmt: skip
                row |= {"seconds": seconds, "seconds_per_step": statistics.median(seconds)}
                row["slower"] = statistics.median(ratios) - 1
            rows.append(self.show(row))
        return rows

    def say(self, goal: str, what: str, measured: str, bar: str, holds: bool) -> None:
        """Keep and print a verdict."""
        self.verdicts.append(holds)
        facts = {"goal": goal, "what": what, "measured": measured, "bar": bar, "holds": holds}
        text = f"{goal:4} {what}: {measured} (bar {bar}) {'holds' if holds else 'MISSES'}"
        print(json.dumps(facts) if self.options.json else text, flush=True)

    def curve(self, name: str, goal: Goal) -> None:
        """Measure a model under its budgets, and PyTorch's ways beside it."""
        static = self.run("mge", goal.model, goal.batch, "static")
        if "error" in static:
            self.say(name, goal.model, static["error"], "a static step", False)
            return
        points: list[tuple[Any, ...]] = [("mge", goal.model, goal.batch, "static", {})]
        for share in goal.bars:
            budget = {"budget_bytes": int(static["predicted_bytes"] * share)}
            points.append(("mge", goal.model, goal.batch, self.options.strategy, budget))
        rows = self.in_turn(points, [static])
        for (share, slower), row in zip(goal.bars.items(), rows[1:]):
            what = f"{goal.model} b{goal.batch}, {1 / share:.3g} times less"
            if "error" in row:
                self.say(name, what, row["error"], f"+{slower:.0%}", False)
            else:
                cost = f"{row['slower']:+.1%} time"
                self.say(name, what, cost, f"+{slower:.0%}", row["slower"] <= slower)
        self.check(goal.model, [row for row in rows if "error" not in row])
        if self.options.peers_python:
            eager = None
            for way in goal.ways:
                row = self.run("torch", goal.model, goal.batch, way)
                eager = eager or row
                if "error" not in row and "error" not in eager:
                    row["slower"] = row["seconds_per_step"] / eager["seconds_per_step"] - 1
                self.show(row)

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
        small = self.point("mge", "resnet50", 16, "static")
        dynamic = self.point("mge", "resnet50", 16, "dynamic")
        if "error" in small:
            self.say("M2", "ResNet-50", small["error"], "a static step", False)
            return
        an_image = None  # seconds of static at the largest batch that needs no computing again
        all_kept = int(small["keep_all_bytes"] / 16 * EQUAL[0])
        room = PROCESS - (small["process_bytes"] - small["predicted_bytes"])
        for slower, least in BATCHES.items():
            # room for the batch itself and the transposed copies of it: two more images of pixels
            budget = {"budget_bytes": int(room - least * 2 * 3 * 224 * 224 * 4)} if slower else {}
            strategy = self.options.strategy if slower else "static"
            row = self.point("mge", "resnet50", least, strategy, **budget)
            what = f"ResNet-50 batch {least} in an 8 GiB process"
            if "error" in row:
                self.say("M2", what, row["error"], f"+{slower:.0%}", False)
                continue
            an_image = an_image or row["seconds_per_step"] / least
            cost = row["seconds_per_step"] / least / an_image - 1
            text = f"{row['process_bytes'] / GIB:.2f} GiB, {cost:+.1%} time an image against static, the first"
            holds = row["process_bytes"] <= PROCESS and cost <= slower
            self.say("M2", what, text, f"8 GiB, +{slower:.0%}", holds)
        row = self.point("mge", "resnet50", EQUAL[1], "static", steps=1)
        if "error" not in row:
            bytes_ = f"{row['predicted_bytes'] / 1e9:.3f} of {all_kept / 1e9:.3f} GB"
            text = f"batch {EQUAL[1]} takes {bytes_} of a tape that keeps all of {EQUAL[0]} images"
            self.say("M3", "static", text, "fits", row["predicted_bytes"] <= all_kept)
        row = self.point("mge", "resnet50", EQUAL[2], self.options.strategy, budget_bytes=all_kept)
        if "error" in row:
            self.say("M3", f"batch {EQUAL[2]}", row["error"], "fits", False)
        else:
            cost = row["seconds_per_step"] / EQUAL[2] / (dynamic["seconds_per_step"] / 16) - 1
            text = f"{row['arena_bytes'] / 1e9:.3f} of {all_kept / 1e9:.3f} GB, {cost:+.1%} time an image "
            text += "against the dynamic step"
            self.say(
                "M3",
                f"batch {EQUAL[2]}",
                text,
                "fits, no slower",
                row["arena_bytes"] <= all_kept and cost <= 0,
            )
        if self.options.peers_python:
            for way in WAYS[:2]:
                self.of_torch(way, all_kept)

    def of_torch(self, way: str, all_kept: int) -> None:
        """Say how many images PyTorch would take in the same memory, from its processes with 8 and with 24."""
        rows = [self.point("torch", "resnet50", batch, way) for batch in (8, 24)]
        if any("error" in r for r in rows):
            return
        few, many = (r["process_bytes"] for r in rows)
        image = (many - few) / 16
        what = {
            "goal": "M2, M3", "what": f"PyTorch, {way}", "image_bytes": image,
            "batch_in_8_GiB": int((PROCESS - few) / image) + 8, "batch_in_equal_memory": int(all_kept / image),
        }  # fmt: skip
        text = ", ".join(
            f"{k} {v:,.0f}" if k.endswith("bytes") else f"{k} {v}" for k, v in what.items()
        )
        print(json.dumps(what) if self.options.json else text, flush=True)


def _line(row: dict[str, Any]) -> str:
    head = f"{row['framework']:6}{row['model']:14} b{row['batch']:<4}{row['strategy']:12}"
    if "error" in row:
        return f"{head} {row['error']}"
    budget = f"budget {row['budget_bytes'] / 1e6:9.1f} MB  " if row["budget_bytes"] else " " * 21
    arena = f"arena {row['arena_bytes'] / 1e6:9.1f} MB  " if row["arena_bytes"] else " " * 20
    slower = f"  {row['slower']:+.1%}" if "slower" in row else ""
    rss, step = row["rss_bytes"] / 1e6, row["seconds_per_step"]
    return f"{head} {budget}{arena}rss +{rss:8.1f} MB  {step * 1e3:10.1f} ms a step{slower}"


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
    parser.add_argument("--steps", type=int, help="timed in each round: 3, small ones 9")
    parser.add_argument("--rounds", type=int, help="3, with --smoke 1")
    options = parser.parse_args()
    options.steps = options.steps or (9 if options.smoke else 3)
    options.rounds = options.rounds or (1 if options.smoke else 3)
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
