"""The report: counts, a table of op × dtype, the trust level, JUnit XML and ``conformance.json``.

In: results of all cases. Out: text and files.
After ``runner``; before ``__main__``.
"""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from .. import __version__
from ..dtype import DTYPES
from ..plugin import API
from .runner import BAD, OUTCOMES, Result, Runner

SCHEMA = 1  # of conformance.json
SIGNS = {
    "passed": "ok", "refused": "-", "skipped": "", "xfailed": "x",
    "failed": "FAIL", "crashed": "CRASH", "hanging": "HANG",
}  # fmt: skip
WORST = ("crashed", "hanging", "failed", "xfailed", "passed", "refused", "skipped")


class Report:
    """All results of a device.

    Parameters
    ----------
    runner : Runner
        For its settings.
    results : iterable of Result
    """

    def __init__(self, runner: Runner, results: Iterable[Result]) -> None:
        self.runner, self.results = runner, list(results)

    @property
    def bad(self) -> list[Result]:
        """The results that are the backend's faults."""
        return [r for r in self.results if r.is_bad]

    @property
    def unused(self) -> list[str]:
        """The patterns of both lists that name no case, where all cases were run."""
        entries = [*self.runner.unsupported, *self.runner.xfails]
        partial = self.runner.patterns or self.runner.ops is not None or self.runner.last < "L6"
        return [] if partial else [e.pattern for e in entries if not e.used]

    def levels(self) -> dict[str, Counter[str]]:
        """Return how many cases of each level ended how."""
        found: dict[str, Counter[str]] = {}
        for result in self.results:
            found.setdefault(result.level, Counter())[result.outcome] += 1
        return dict(sorted(found.items()))

    def trust(self) -> str:
        """Return the highest level that is passed with all below it, or ``"none"``.

        A level is passed without a fault, expected ones included. A level that is not claimed (streams) counts as
        passed. So does no level of ops without an op that the device runs. Nothing is said of a run of chosen cases.
        """
        passed = "none"
        if self.runner.patterns:
            return passed
        for level, counts in self.levels().items():
            if any(counts[outcome] for outcome in (*BAD, "xfailed")):
                break
            if level >= "L3" and not counts["passed"]:
                break
            passed = level
        return passed

    def ops(self) -> dict[str, dict[str, str]]:
        """Return the worst outcome of level L3 by op and dtype."""
        found: dict[str, dict[str, str]] = {}
        for result in self.results:
            if result.level == "L3":
                _, op, _, dtype = result.case.split("/")
                row = found.setdefault(op, {})
                row[dtype] = min(row.get(dtype, "skipped"), result.outcome, key=WORST.index)
        return found

    def table(self) -> str:
        """Return the table of op × dtype.

        A line for each op of which the device takes a use, then one with the names of the others.
        """
        rows = self.ops()
        labels = [*DTYPES, "fixed"]
        taken = {op: r for op, r in rows.items() if set(r.values()) - {"refused", "skipped"}}
        labels = [w for w in labels if any(w in r for r in taken.values())]
        lines = []
        if taken:
            width = max(map(len, taken))
            heads = [DTYPES[w].short if w in DTYPES else w for w in labels]
            lines.append(" ".join(["op".ljust(width), *[h.ljust(5) for h in heads]]).rstrip())
            for op, row in taken.items():
                cells = [SIGNS[row[w]] if w in row else "" for w in labels]
                lines.append(" ".join([op.ljust(width), *[c.ljust(5) for c in cells]]).rstrip())
        refused = [op for op, r in rows.items() if op not in taken and "refused" in r.values()]
        if refused:
            lines.append(f"refused in all uses: {len(refused)} ops: {', '.join(refused)}")
        return "\n".join(lines)

    def summary(self) -> str:
        """Return one line for each level, and one for all."""
        lines = []
        for level, counts in self.levels().items():
            lines.append(
                f"{level}  " + ", ".join(f"{counts[o]} {o}" for o in OUTCOMES if counts[o])
            )
        for pattern in self.unused:
            lines.append(f"{pattern}: no case has this name; take it off the list")
        device = self.runner.info.get("device", self.runner.device)
        total = Counter(r.outcome for r in self.results)
        counts_text = ", ".join(f"{total[o]} {o}" for o in OUTCOMES if total[o])
        return "\n".join([*lines, f"{device}: {counts_text}; trust level {self.trust()}"])

    def to_json(self) -> dict[str, Any]:
        """Return what ``conformance.json`` holds."""
        runner = self.runner
        return {
            "schema": SCHEMA,
            "device": runner.info.get("device", runner.device),
            "called": runner.info.get("called", ""),
            "package": runner.info.get("package", ""),
            "version": runner.info.get("version", ""),
            "core": __version__,
            "plugin_api": list(API),
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}",
            "seed": runner.seed,
            "last_level": runner.last,
            "only_ops": runner.ops,
            "only_cases": runner.patterns or None,
            "trust": self.trust(),
            "levels": {level: dict(counts) for level, counts in self.levels().items()},
            "ops": self.ops(),
            "unsupported": {e.pattern: e.reason for e in runner.unsupported},
            "xfails": {e.pattern: e.reason for e in runner.xfails},
            "cases": [
                {
                    "case": r.case,
                    "outcome": r.outcome,
                    "text": r.text,
                    "seconds": round(r.seconds, 4),
                }
                for r in self.results
            ],
        }

    def write_json(self, path: str | Path) -> None:
        """Write ``conformance.json``."""
        Path(path).write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")

    def write_junit(self, path: str | Path) -> None:
        """Write the results as JUnit XML, one suite for each level."""
        root = ElementTree.Element("testsuites")
        for level, counts in self.levels().items():
            results = [r for r in self.results if r.level == level]
            suite = ElementTree.SubElement(
                root,
                "testsuite",
                name=f"{self.runner.device}.{level}",
                tests=str(len(results)),
                failures=str(counts["failed"]),
                errors=str(counts["crashed"] + counts["hanging"]),
                skipped=str(counts["refused"] + counts["skipped"] + counts["xfailed"]),
                time=f"{sum(r.seconds for r in results):.3f}",
            )
            for result in results:
                _, subject, *rest = result.case.split("/")
                case = ElementTree.SubElement(
                    suite,
                    "testcase",
                    classname=f"{level}.{subject}",
                    name="/".join(rest) or subject,
                    time=f"{result.seconds:.4f}",
                )
                _add_outcome(case, result)
        ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _add_outcome(case: ElementTree.Element, result: Result) -> None:
    if result.outcome == "passed":
        return
    tag = {"failed": "failure", "crashed": "error", "hanging": "error"}.get(
        result.outcome, "skipped"
    )
    text = "".join(c for c in result.text if c in "\t\n" or ord(c) >= 32)  # others are no XML
    first = text.split("\n")[0]
    element = ElementTree.SubElement(case, tag, message=f"{result.outcome}: {first}")
    if tag != "skipped":
        element.set("type", result.outcome)
        element.text = text
