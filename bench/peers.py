"""The contest: whole models on mge and its peers, in turn, on one machine, with equal weights and outputs compared.

In: which models, columns and numbers of threads. Out: a table or JSON lines of median milliseconds.

    python bench/peers.py --peers-python PATH [--models resnet18,mlp] [--columns mge,mge-traced,torch] [--threads 1,2]
                          [--kinds infer,train,memory] [--rounds 5] [--seconds 0.6] [--json]

Each framework runs in a process of its own; the processes take turns, round by round, and wait otherwise. Peers live in
an environment of their own (``pip install torch==2.13.0 onnx onnxruntime openvino jax``), named by ``--peers-python``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent / "contest"
sys.path.insert(0, str(HERE))

import zoo
from worker import COLUMNS

MEMORY = zoo.Case("resnet18", 32, True)


class Worker:
    """A framework in a process of its own."""

    def __init__(self, python: str, column: str, threads: int) -> None:
        self.column = column
        left = {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"}  # for a fair NumPy
        env = {k: v for k, v in os.environ.items() if k not in left}
        env |= {"MGE_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
        env |= {"OPENBLAS_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            [python, str(HERE / "worker.py"), column],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL if QUIET else None,
            text=True, env=env,
        )  # fmt: skip

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send a command and return the answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
            return json.loads(line) if line else {"error": "its process ended"}
        except OSError as error:
            return {"error": str(error)}

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


QUIET = True


def pythons(options: argparse.Namespace) -> dict[str, str]:
    """Return which interpreter runs which column."""
    own = {c: sys.executable for c in options.columns if c.startswith("mge")}
    return own | {c: options.peers_python for c in options.columns if c not in own}


def difference(output: list[float], right: list[float]) -> float:
    """Return the largest difference, as a share of the largest value."""
    scale = max(map(abs, right), default=0) or 1
    return max((abs(a - b) for a, b in zip(output, right)), default=0) / scale


def contest(case: zoo.Case, threads: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run one case on all columns; return a row of figures."""
    row: dict[str, Any] = {"case": str(case), "threads": threads}
    workers, outputs = [], {}
    for column, python in pythons(options).items():
        worker = Worker(python, column, threads)
        answer = worker.ask(
            prepare=["train" if case.training else "infer", case.model, case.batch], threads=threads
        )
        if "error" in answer:
            row[column] = {"error": answer["error"]}
            worker.close()
        else:
            workers.append(worker)
            outputs[column] = answer["output"]
            row[column] = {"ms": None, "all": []}
    for _ in range(options.rounds):
        for worker in workers:
            answer = worker.ask(time=options.seconds)
            row[worker.column]["all"] += answer.get("ms", ())
            if "error" in answer:
                row[worker.column]["error"] = answer["error"]
    for worker in workers:
        worker.close()
        mine = row[worker.column]
        times = mine.pop("all")
        mine["ms"] = round(statistics.median(times), 4) if times else None
        right = outputs.get("torch")
        if right is not None:
            mine["difference"] = float(f"{difference(outputs[worker.column], right):.2g}")
    peers = {
        c: row[c]["ms"] for c in options.columns if not c.startswith("mge") and row[c].get("ms")
    }
    if peers:
        row["best_peer"] = min(peers, key=peers.__getitem__)
        for column in ("mge", "mge-traced"):
            if row.get(column, {}).get("ms"):
                row[column]["ratio"] = round(min(peers.values()) / row[column]["ms"], 3)
    return row


def memory(threads: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the peak memory of a training step beyond the import, one fresh process a framework."""
    row: dict[str, Any] = {"case": f"memory/{MEMORY.model}/b{MEMORY.batch}", "threads": threads}
    for column, python in pythons(options).items():
        if column in ("mge-traced", "torch"):
            worker = Worker(python, column, threads)
            row[column] = worker.ask(prepare=["train", MEMORY.model, MEMORY.batch], threads=threads)
            row[column].pop("output", None)
            worker.close()
    if "peak_bytes" in row.get("torch", ()) and "peak_bytes" in row.get("mge-traced", ()):
        row["ratio"] = round(row["mge-traced"]["peak_bytes"] / row["torch"]["peak_bytes"], 3)
    return row


def show(row: dict[str, Any], columns: list[str]) -> str:
    """Return a row as a line of text."""
    cells = [f"{row['case']:<24} {row['threads']} thr"]
    for column in columns:
        found = row.get(column, {})
        if "peak_bytes" in found:
            cells.append(f"{column} {found['peak_bytes'] / 1e6:.0f} MB")
        elif found.get("ms"):
            ratio = f" (x{found['ratio']})" if "ratio" in found else ""
            cells.append(f"{column} {found['ms']:.3f}{ratio}")
        elif found:
            cells.append(f"{column} -")
    return "  ".join(cells)


def main() -> None:
    """Run the contest."""
    global QUIET
    words = lambda text: text.split(",")
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peers-python", default=sys.executable, metavar="PATH")
    parser.add_argument("--models", type=words, default=None)
    parser.add_argument("--batches", type=words, default=None)
    parser.add_argument("--columns", type=words, default=list(COLUMNS))
    parser.add_argument("--kinds", type=words, default=["infer", "train", "memory"])
    parser.add_argument("--threads", type=words, default=["2"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.6, help="of one turn")
    parser.add_argument("--json", action="store_true", help="print a JSON object a row")
    parser.add_argument("--verbose", action="store_true", help="show what the frameworks print")
    options = parser.parse_args()
    QUIET = not options.verbose
    for threads in map(int, options.threads):
        for case in zoo.CASES:
            wanted = options.models is None or case.model in options.models
            wanted &= options.batches is None or str(case.batch) in options.batches
            if wanted and ("train" if case.training else "infer") in options.kinds:
                row = contest(case, threads, options)
                print(json.dumps(row) if options.json else show(row, options.columns), flush=True)
        if "memory" in options.kinds:
            row = memory(threads, options)
            print(json.dumps(row) if options.json else show(row, options.columns), flush=True)


if __name__ == "__main__":
    main()
