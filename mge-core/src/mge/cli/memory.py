"""``mge memory``: how much memory a script's largest plan takes under each strategy and budget, and what time it costs.

In: a Python script, budgets. Out: the trade-off curve as a table, and as a picture.
After ``script``; before ``command``.
"""

from __future__ import annotations

import argparse
import html
import json
import time
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, OutOfMemory
from ..memory import find_strategy, with_options
from ..plan import Plan
from ..registry import BUILT_IN, names
from .options import show_bytes, table
from .script import plans_of

_SHARES = ("80%", "60%", "50%", "40%", "33%", "25%", "20%", "15%", "10%")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mge memory``."""
    parser.description = (
        "Run a script, take its largest plan, and plan it again under memory strategies and budgets: peak in bytes "
        "against modelled time, strategies side by side. Shares are of what the strategy static takes."
    )
    parser.add_argument("model", help="a script that trains or infers, whose name ends in .py")
    parser.add_argument("words", nargs="*", metavar="WORD", help="arguments of the script")
    parser.add_argument(
        "--budget", action="append", metavar="SIZE",
        help="as 2GB or 50%%; may be given several times (by default a row of shares)",
    )  # fmt: skip
    parser.add_argument(
        "--strategy", action="append", metavar="NAME",
        help="a strategy, with options as in sublinear:seed=3; may be given several times (by default all installed)",
    )  # fmt: skip
    parser.add_argument("--device", metavar="NAME", help="as ref:0")
    parser.add_argument(
        "--picture",
        metavar="FILE",
        help="draw the curves into FILE.html, or FILE.png with matplotlib",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print the curves; return 0."""
    _check(arguments)
    found = plans_of("memory", arguments.model, arguments.words, arguments.device)
    if found is None:
        return 1
    if not found:
        raise ArgumentError(
            f"memory: {arguments.model} compiled no plan",
            hint="a structure is compiled when it is seen twice, or at once inside mge.jit.trace",
        )
    largest = max((c.plan for c in found), key=lambda p: p.peak_bytes)
    rows = curves(largest, arguments.strategy or _installed(), arguments.budget or list(_SHARES))
    facts = {
        "script": arguments.model,
        "plans": len(found),
        "device": str(largest.device),
        "static_bytes": rows[0]["peak_bytes"],
        "rows": rows,
    }
    if arguments.picture:
        draw(rows, arguments.picture, f"{arguments.model} on {largest.device}")
    if arguments.json:
        print(json.dumps(facts))
        return 0
    print(
        f"{arguments.model}: the largest of {len(found)} plans, {rows[0]['steps']} steps on {largest.device}; "
        f"static takes {show_bytes(rows[0]['peak_bytes'])}. Times are modelled.\n"
    )
    print(text_of(rows))
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Refuse what could not be done once the script has run."""
    if not arguments.model.endswith(".py"):
        raise ArgumentError(
            f"memory: {arguments.model} is no Python script; its name must end in .py",
            hint="mge explain says the peak of a model file",
        )
    for name in arguments.strategy or ():
        for budget in arguments.budget or ("50%",):
            with_options(name, budget=budget)
    if arguments.picture and Path(arguments.picture).suffix not in (".html", ".png"):
        raise ArgumentError(
            f"memory: --picture is {arguments.picture!r}; its name must end in .html or .png"
        )
    if arguments.picture and arguments.picture.endswith(".png"):
        _pyplot()


def _installed() -> list[str]:
    return [name for name in names("memory") if ("memory", name) not in BUILT_IN]


def curves(base: Plan, strategies: list[str], budgets: list[str]) -> list[dict[str, Any]]:
    """Return a row for each strategy and budget; the first is ``static`` without a budget.

    Parameters
    ----------
    base : Plan
        Of which graph.
    strategies, budgets : list of str

    Returns
    -------
    list of dict
        ``strategy``, ``budget``, ``fits``, and then either ``peak_bytes``, ``steps``, ``time_ns`` (modelled, or
        measured where the strategy knows), ``slowdown`` (a share of the time of ``static``), ``planning_s``; or
        ``reason``.
    """
    static = Plan(base.graph, base.donated, "static")
    first = {"strategy": "static", "budget": "", "fits": True, **_facts(static), "planning_s": 0.0}
    rows = [{**first, "slowdown": 0.0}]
    for strategy in strategies:
        for budget in budgets:
            row: dict[str, Any] = {"strategy": strategy, "budget": budget}
            start = time.perf_counter()
            try:
                text = with_options(strategy, budget=budget)
                plan = Plan(base.graph, base.donated, text)
                most = find_strategy(text).budget_bytes(lambda: static.peak_bytes)
                row["fits"] = most is None or plan.peak_bytes <= most
                if row["fits"]:
                    row |= _facts(plan)
                    row["slowdown"] = row["time_ns"] / max(first["time_ns"], 1e-9) - 1
                else:  # see waits_for_backward in replay.py
                    row["reason"] = (
                        f"takes {plan.peak_bytes:,} bytes, and runs: a share is an aim without a backward phase"
                    )
            except OutOfMemory as error:
                floor = next(
                    (x.strip() for x in str(error).splitlines() if "floor:" in x), str(error)
                )
                row |= {"fits": False, "reason": floor}
            row["planning_s"] = time.perf_counter() - start
            rows.append(row)
    return rows


def _facts(plan: Plan) -> dict[str, Any]:
    modelled, _ = plan.predicted_ns()
    stated = plan.report.predicted_ns if plan.report is not None else 0
    return {"peak_bytes": plan.peak_bytes, "steps": len(plan.steps), "time_ns": stated or modelled}


def text_of(rows: list[dict[str, Any]]) -> str:
    """Return the rows for people to read."""
    lines = [("strategy", "budget", "peak", "of static", "steps", "time", "planned in", "")]
    whole = rows[0]["peak_bytes"]
    for row in rows:
        head, tail = (row["strategy"], row["budget"] or "-"), f"{row['planning_s']:.2f} s"
        if row["fits"]:
            share, slower = row["peak_bytes"] / max(whole, 1), row["slowdown"]
            figures = (
                show_bytes(row["peak_bytes"]),
                f"{share:.0%}",
                str(row["steps"]),
                f"{slower:+.1%}",
            )
            lines.append((*head, *figures, tail, ""))
        else:
            lines.append((*head, "-", "-", "-", "-", tail, row["reason"]))
    return table(lines, right=(1, 2, 3, 4, 5, 6))


def draw(rows: list[dict[str, Any]], path: str, title: str) -> None:
    """Draw peak against time, a line for each strategy, into an HTML page or a PNG file."""
    lines: dict[str, list[tuple[float, float]]] = {}
    whole = rows[0]["peak_bytes"] or 1
    for row in (r for r in rows if r["fits"]):
        lines.setdefault(row["strategy"], []).append((row["peak_bytes"] / whole, row["slowdown"]))
    lines = {name: sorted(set(points)) for name, points in lines.items()}
    if path.endswith(".png"):
        _draw_png(lines, path, title)
    else:
        Path(path).write_text(_page(lines, title, text_of(rows)), encoding="utf-8")


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot as pyplot  # type: ignore[import-not-found]
    except ImportError as error:
        raise ArgumentError(
            "memory: a PNG needs matplotlib, which is not installed",
            hint="pip install matplotlib, or a name that ends in .html",
        ) from error
    return pyplot


def _draw_png(lines: dict[str, list[tuple[float, float]]], path: str, title: str) -> None:
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for name, points in lines.items():
        axes.plot(
            [100 * x for x, _ in points], [100 * y for _, y in points], marker="o", label=name
        )
    axes.set(xlabel="peak, % of static", ylabel="more time, %", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


_COLOURS = ("#1b6ca8", "#c8553d", "#3a7d44", "#8a4fa3", "#b8860b", "#444444")


def _page(lines: dict[str, list[tuple[float, float]]], title: str, rows: str) -> str:
    """Return a page of its own: the curves as SVG, and the table."""
    width, height, left, top = 720, 420, 60, 20
    points = [p for line in lines.values() for p in line]
    right = max(x for x, _ in points) * 1.02
    high = max(0.05, max(y for _, y in points) * 1.1)

    def place(x: float, y: float) -> tuple[float, float]:
        return left + x / right * (width - left - 20), top + (1 - y / high) * (height - top - 50)

    marks = []
    for k in range(6):
        x, y = right * k / 5, high * k / 5
        (px, base), (_, py) = place(x, 0), place(0, y)
        marks.append(f'<line x1="{px:.1f}" y1="{top}" x2="{px:.1f}" y2="{base:.1f}" class="grid"/>')
        marks.append(f'<text x="{px:.1f}" y="{base + 18:.1f}" text-anchor="middle">{x:.0%}</text>')
        marks.append(
            f'<line x1="{left}" y1="{py:.1f}" x2="{width - 20}" y2="{py:.1f}" class="grid"/>'
        )
        marks.append(f'<text x="{left - 8}" y="{py + 4:.1f}" text-anchor="end">{y:+.0%}</text>')
    for k, (name, line) in enumerate(lines.items()):
        colour = _COLOURS[k % len(_COLOURS)]
        places = [place(x, max(y, 0.0)) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        marks.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for (x, y), (share, slower) in zip(places, line):
            note = f"{html.escape(name)}: {share:.0%} of static, {slower:+.1%} time"
            marks.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"><title>{note}</title></circle>'
            )
        y = top + 16 + 18 * k
        marks.append(f'<text x="{width - 200}" y="{y}" fill="{colour}">{html.escape(name)}</text>')
    marks.append(
        f'<text x="{width / 2}" y="{height - 6}" text-anchor="middle">peak, share of static</text>'
    )
    style = "body{font:14px sans-serif;margin:2em}svg text{font-size:12px}.grid{stroke:#ddd}pre{font-size:12px}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{style}</style><h1>{html.escape(title)}</h1>"
        f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img">{"".join(marks)}</svg>'
        f"<pre>{html.escape(rows)}</pre></html>\n"
    )
