"""``python -m mge.testing NAME``: run the conformance kit on a device.

In: words of a command line. Out: a summary, files, and an exit status: 0 no fault, 1 faults, 2 the kit could not run.
After ``report``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from ..errors import ArgumentError
from .lists import read_list
from .report import Report
from .runner import LIMIT_S, Result, Runner

LEVEL_NAMES = ("L0", "L1", "L2", "L3", "L4", "L5", "L6")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    made = argparse.ArgumentParser(
        prog="python -m mge.testing",
        description="Prove that a backend does what mge expects of it.",
    )
    made.add_argument("device", metavar="NAME", help="the device, as acme or acme:0")
    made.add_argument(
        "--level", default="L6", choices=LEVEL_NAMES, help="the last level to run: L0 load, L1 memory, L2 streams, "
        "L3 ops, L4 gradients, L5 graphs, L6 robustness (default)",
    )  # fmt: skip
    made.add_argument("--ops", metavar="A,B", help="try only these ops; for young backends")
    made.add_argument(
        "--case", metavar="PATTERN", action="append", help="run only such cases, as 'L3/add/*'"
    )
    made.add_argument(
        "--unsupported", metavar="FILE", help="what the device never does, with reasons"
    )
    made.add_argument(
        "--xfails", metavar="FILE", help="what fails for now, with reasons; a pass is a failure"
    )
    made.add_argument("--json", metavar="FILE", help="write the results, as conformance.json")
    made.add_argument("--junit", metavar="FILE", help="write the results as JUnit XML")
    made.add_argument("--seed", type=int, default=0, help="of all random values")
    made.add_argument(
        "--time-limit", type=float, default=LIMIT_S, metavar="S", help="for each case"
    )
    made.add_argument("--quiet", action="store_true", help="no table, and no line for each fault")
    return made


def make_runner(options: argparse.Namespace) -> Runner:
    """Return the runner for a command line.

    Raises
    ------
    ArgumentError
        A list cannot be read.
    """
    return Runner(
        options.device,
        options.level,
        [word.strip() for word in options.ops.split(",")] if options.ops else None,
        read_list(options.unsupported, "unsupported") if options.unsupported else (),
        read_list(options.xfails, "xfails") if options.xfails else (),
        options.case or (),
        options.seed,
        options.time_limit,
    )


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = parser().parse_args(words)
    try:
        runner = make_runner(options)
        report = Report(runner, _told(runner, options.quiet))
    except ArgumentError as error:
        print(f"mge.testing: {error}", file=sys.stderr)
        return 2
    finally:
        if "runner" in locals():
            runner.close()
    if not report.results:
        print("mge.testing: no case has such a name", file=sys.stderr)
        return 2
    if options.json:
        report.write_json(options.json)
    if options.junit:
        report.write_junit(options.junit)
    if not options.quiet and report.table():
        print(report.table())
    print(report.summary())
    if runner.is_absent:
        return 2
    return 1 if report.bad or report.unused else 0


def _told(runner: Runner, quiet: bool) -> Iterator[Result]:
    """Yield the results; print those that are faults as they come."""
    for result in runner.results():
        if result.is_bad and not quiet:
            print(f"{result.outcome.upper()} {result.case}: {result.text}", flush=True)
        yield result


if __name__ == "__main__":
    sys.exit(main())
