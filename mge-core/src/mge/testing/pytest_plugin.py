"""The kit under pytest: each case is a test, run in the kit's worker and not in pytest's process.

In: the options of ``_mge_pytest``. Out: tests of ``test_conformance.py``, the kit's summary, ``conformance.json``.
After ``report``.
"""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from ..errors import ArgumentError
from .__main__ import LEVEL_NAMES, make_runner
from .report import Report
from .runner import Result

PROPERTY = "mge_result"  # of a test's report: it travels from the processes of pytest-xdist


class Kit:
    """Holds the runner, and gathers the results.

    Parameters
    ----------
    config : pytest.Config
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.results: dict[str, Result] = {}
        option = config.getoption
        level = option("--mge-level")
        if level not in LEVEL_NAMES:
            raise pytest.UsageError(
                f"--mge-level is {level!r}; it must be one of {', '.join(LEVEL_NAMES)}"
            )
        options = argparse.Namespace(
            device=option("--mge-device"),
            level=level,
            ops=option("--mge-ops"),
            unsupported=option("--mge-unsupported"),
            xfails=option("--mge-xfails"),
            case=None,
            seed=option("--mge-seed"),
            time_limit=option("--mge-time-limit"),
        )
        try:
            self.runner = make_runner(options)
        except ArgumentError as error:
            raise pytest.UsageError(str(error)) from None

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make a test of each case."""
        if "mge_case" in metafunc.fixturenames:
            try:
                cases = self.runner.cases()
            except ArgumentError as error:
                raise pytest.UsageError(str(error)) from None
            metafunc.parametrize("mge_case", cases)

    def run(self, case: str, request: pytest.FixtureRequest) -> None:
        """Run one case and end the test as it ends."""
        result = self.runner.run(case)
        request.node.user_properties.append((PROPERTY, list(result)))
        if result.is_bad:
            pytest.fail(f"{result.outcome}: {result.text}", pytrace=False)
        if result.outcome == "xfailed":
            pytest.xfail(result.text)
        if result.outcome != "passed":
            pytest.skip(f"{result.outcome}: {result.text}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Gather a result; with pytest-xdist this runs in the main process."""
        for name, value in report.user_properties:
            if name == PROPERTY and isinstance(value, list | tuple):
                result = Result(*value)
                self.results[result.case] = result

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Show the table and the counts; write the file."""
        if not self.results:
            return
        if not self.runner.info:  # the cases ran in other processes
            self.runner.cases()
        report = Report(self.runner, sorted(self.results.values()))
        terminalreporter.section(f"mge conformance of {self.runner.device}")
        terminalreporter.line("\n".join(filter(None, [report.table(), report.summary()])))
        path = self.config.getoption("--mge-json")
        if path:
            report.write_json(path)

    def pytest_unconfigure(self) -> None:
        """End the worker."""
        self.runner.close()
