"""The contest: whole models, chains of calls, kernels and memory, beside PyTorch, ONNX Runtime, OpenVINO and JAX.

In: which rows, columns and numbers of threads. Out: a line or a JSON object a row: our figure, the best peer's, their
ratio, the bar, and whether it holds.

    python bench/peers.py --peers-python PATH [--json] [--smoke] [--rows train/mlp,calls] [--columns mge-traced,torch]
                          [--threads 1,2] [--rounds 5] [--seconds 0.6] [--tune]

Each framework runs in a process of its own; the processes take turns, round by round, and wait otherwise. Figures are
medians. Outputs are compared with PyTorch's: a row whose largest difference is above 1e-3 of the largest value does not
hold, unless PyTorch's own columns are as far apart. Peers live in an environment of their own (``pip install
torch==2.13.0 onnx onnxruntime openvino jax``), named by ``--peers-python``. The rows are in ``contest/table.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent / "contest"
sys.path.insert(0, str(HERE))

import alone
from table import ROWS, SMOKE, Row
from worker import COLUMNS

DIFFERENCE = 1e-3  # of the largest value; more where PyTorch's own columns are further apart, as rounding grows
FOR_INFERENCE = {"torch-jit", "ort", "openvino"}
OF_CALLS = {"mge", "torch"}
OF_FUSED = {"mge", "mge-traced", "torch"}


class Worker:
    """A framework in a process of its own."""

    def __init__(self, column: str, threads: int, options: argparse.Namespace) -> None:
        self.column = column
        python = sys.executable if column.startswith("mge") else options.peers_python
        left = {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"}  # for a fair NumPy
        env = {k: v for k, v in os.environ.items() if k not in left}
        env |= {"MGE_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
        env |= {"OPENBLAS_NUM_THREADS": str(threads)}
        if options.tune:
            env["MGE_TUNE"] = "1"
        self.process = subprocess.Popen(
            [python, str(HERE / "worker.py"), column], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=None if options.verbose else subprocess.DEVNULL, text=True, env=env,
        )  # fmt: skip
        self.patience = options.patience

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send a command and return the answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
            if not select.select([self.process.stdout], [], [], self.patience)[0]:
                return {"error": f"no answer in {self.patience:.0f} s"}
            line = self.process.stdout.readline()
            return json.loads(line) if line else {"error": "its process ended"}
        except OSError as error:
            return {"error": str(error)}

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


def columns_of(row: Row, options: argparse.Namespace) -> list[str]:
    """Return the columns that have something to say in a row."""
    if row.kind == "calls":
        return [c for c in options.columns if c in OF_CALLS]
    if row.kind == "fused":
        return [c for c in options.columns if c in OF_FUSED]
    if row.kind == "memory":
        return [c for c in options.columns if c in ("mge-traced", "torch")]
    return [c for c in options.columns if row.kind == "infer" or c not in FOR_INFERENCE]


def difference(output: list[float], right: list[float]) -> float:
    """Return the largest difference, as a share of the largest value."""
    scale = max(map(abs, right), default=0) or 1
    return max((abs(a - b) for a, b in zip(output, right)), default=0) / scale


def contest(row: Row, threads: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run one case on all columns in turn; return its record."""
    assert row.case is not None
    columns: dict[str, dict[str, Any]] = {}
    workers, outputs, times = [], {}, {}
    kind = "train" if row.case.training else "infer"
    for column in columns_of(row, options):
        worker = Worker(column, threads, options)
        answer = worker.ask(prepare=[kind, row.case.model, row.case.batch], threads=threads)
        columns[column] = {k: v for k, v in answer.items() if k in ("error", "calls")}
        if "error" in answer:
            worker.close()
        else:
            workers.append(worker)
            outputs[column], times[column] = answer["output"], []
    for _ in range(options.rounds):
        for worker in workers:
            answer = worker.ask(time=options.seconds)
            times[worker.column] += answer.get("ms", ())
            if "error" in answer:
                columns[worker.column]["error"] = answer["error"]
    for worker in workers:
        worker.close()
        mine = columns[worker.column]
        if times[worker.column]:
            mine["ms"] = round(statistics.median(times[worker.column]), 5)
        if "torch" in outputs:
            found = difference(outputs[worker.column], outputs["torch"])
            mine["difference"] = float(f"{found:.2g}")
    record: dict[str, Any] = {"columns": columns}
    measured = {c: f["ms"] for c, f in columns.items() if "ms" in f}
    ours = "mge-traced" if "mge-traced" in measured else "mge"
    peers = {c: ms for c, ms in measured.items() if not c.startswith("mge")}
    if ours in measured:
        record |= {"column": ours, "ours": measured[ours]}
    if peers:
        record["best_peer"] = min(peers, key=peers.__getitem__)
        record["peer"] = peers[record["best_peer"]]
    if peers and ours in measured:
        record["ratio"] = round(record["peer"] / record["ours"], 3)
    return record | _undecorated(columns)


def _undecorated(columns: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Say how much longer the undecorated function takes: at most 5 % from 10 ms on, else 3 µs a recorded call."""
    plain, traced = columns.get("mge", {}), columns.get("mge-traced", {})
    if "ms" not in plain or "ms" not in traced:
        return {}
    beyond = plain["ms"] - traced["ms"]
    if traced["ms"] >= 10:
        share = beyond / traced["ms"]
        return {"undecorated": {"percent": round(100 * share, 1), "holds": share <= 0.05}}
    each = 1e3 * beyond / max(plain["calls"], 1)
    return {"undecorated": {"us_a_call": round(each, 2), "holds": each <= 3}}


def memory(row: Row, threads: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the peak memory of a training step beyond the import, one fresh process a framework."""
    assert row.case is not None
    columns = {}
    for column in columns_of(row, options):
        worker = Worker(column, threads, options)
        answer = worker.ask(prepare=["train", row.case.model, row.case.batch], threads=threads)
        columns[column] = {k: v for k, v in answer.items() if k in ("error", "peak_bytes")}
        worker.close()
    record: dict[str, Any] = {"columns": columns}
    for name, column in (("ours", "mge-traced"), ("peer", "torch")):
        if "peak_bytes" in columns.get(column, ()):
            record[name] = round(columns[column]["peak_bytes"] / 1e6, 1)
    if "ours" in record and "peer" in record:
        record |= {"best_peer": "torch", "ratio": round(record["ours"] / record["peer"], 3)}
    return record


def measured_alone(row: Row, threads: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the record of a row without peers."""
    rest = row.name.partition("/")[2]
    try:
        if row.kind == "kernel":
            value = alone.kernel(row.label, threads, options.rounds, options.patience)
        elif row.kind == "tune":
            value = alone.tuned(rest, threads, options.patience)
        elif rest == "wheel":
            value = alone.wheel_mb(options.wheel)
        else:
            value = alone.load_ms(threads, options.rounds, options.patience)
    except alone.Skipped as reason:
        return {"skipped": str(reason)}
    return {"ours": round(value, 4)}


def run(row: Row, threads: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return a row's record, with the verdict."""
    how = memory if row.kind == "memory" else contest if row.case else measured_alone
    return judged(row, threads, how(row, threads, options))


def judged(row: Row, threads: int, record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with its row's aims, and whether they hold."""
    value = record.get("ratio") if row.case else record.get("ours")
    state = "skipped"
    if value is not None:
        state = "holds" if (value <= row.bar if row.at_most else value >= row.bar) else "misses"
        columns = record.get("columns", {})
        far = {c: f.get("difference", 0) for c, f in columns.items()}
        chaos = max((d for c, d in far.items() if c.startswith("torch")), default=0)
        if max((d for c, d in far.items() if c.startswith("mge")), default=0) > max(
            DIFFERENCE, chaos
        ):
            state = "differs"
    elif "skipped" not in record:
        record["skipped"] = "; ".join(
            f"{c}: {f['error']}" for c, f in record["columns"].items() if "error" in f
        ) or "no column of ours, or no peer, is among the columns"  # fmt: skip
    facts = {"row": row.name, "threads": threads, "unit": row.unit}
    aims = {"bar": row.bar, "goal": row.goal, "at_most": row.at_most, "state": state}
    return {**facts, **record, **aims}


def show(record: dict[str, Any]) -> str:
    """Return a record as a line of text, with a second one for the columns."""
    cells = [f"{record['row']:<30} {record['threads']} thr  {record['state']:<8}"]
    if "ours" in record:
        cells.append(f"{record['ours']:.4g}")
    if "peer" in record:
        cells.append(f"{record['best_peer']} {record['peer']:.4g}")
    cells.append(record["unit"])
    if "ratio" in record:
        cells.append(f"ratio {record['ratio']:.2f}")
    cells.append(f"bar {'<=' if record['at_most'] else '>='} {record['bar']:g}")
    if record.get("goal"):
        cells.append(f"goal {record['goal']:g}")
    if "skipped" in record:
        cells.append(f"({record['skipped']})")
    for name, value in record.get("undecorated", {}).items():
        cells.append(
            f"undecorated {'holds' if value else 'misses'}"
            if name == "holds"
            else f"{name} {value}"
        )
    found = [
        f"{c} {f['ms']:.4g}" + (f" ({f['difference']:.0e})" if "difference" in f else "")
        if "ms" in f else f"{c}: {f['error']}" if "error" in f else ""
        for c, f in record.get("columns", {}).items()
    ]  # fmt: skip
    line = "  ".join(cells)
    return line + "\n      " + "  ".join(filter(None, found)) if any(found) else line


def chosen(options: argparse.Namespace) -> list[Row]:
    """Return the rows that the options name."""
    names = options.rows or (SMOKE if options.smoke else None)
    found = [
        row
        for row in ROWS
        if names is None or any(row.name == n or row.name.startswith(f"{n}/") for n in names)
    ]
    if options.kinds is not None:
        found = [row for row in found if row.kind in options.kinds]
    if options.models is not None:
        found = [row for row in found if row.case and row.case.model in options.models]
    if options.batches is not None:
        found = [row for row in found if row.case and str(row.case.batch) in options.batches]
    return found


def main() -> None:
    """Run the contest."""
    words = lambda text: text.split(",")
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peers-python", default=sys.executable, metavar="PATH")
    parser.add_argument(
        "--rows", type=words, help="names, or what they begin with: infer,train/mlp"
    )
    parser.add_argument(
        "--kinds", type=words, help="infer,train,calls,fused,memory,kernel,package,tune"
    )
    parser.add_argument("--models", type=words)
    parser.add_argument("--batches", type=words)
    parser.add_argument("--columns", type=words, default=list(COLUMNS))
    parser.add_argument("--threads", type=words, default=["2"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.6, help="of one turn")
    parser.add_argument(
        "--patience", type=float, default=240.0, help="seconds until a framework is given up"
    )
    parser.add_argument("--tune", action="store_true", help="ours with MGE_TUNE=1")
    parser.add_argument("--wheel", type=Path, help="the wheel of mge-x86, for its size")
    parser.add_argument(
        "--smoke", action="store_true", help="a few rows, one short round: under a minute"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object a row")
    parser.add_argument("--verbose", action="store_true", help="show what the frameworks print")
    options = parser.parse_args()
    if options.smoke:
        options.rounds, options.seconds = 1, 0.05
        options.columns = [c for c in options.columns if c in ("mge", "mge-traced", "torch")]
    states: Counter[str] = Counter()
    for row in chosen(options):
        for threads in row.threads or map(int, options.threads):
            record = run(row, threads, options)
            states[record["state"]] += 1
            print(json.dumps(record) if options.json else show(record), flush=True)
    if not options.json:
        print(", ".join(f"{count} {state}" for state, count in states.items()))


if __name__ == "__main__":
    main()
