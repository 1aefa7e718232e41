"""The options of the conformance kit for pytest; it loads with each pytest, so it imports nothing of mge.

In: pytest's command line. Out: the kit's plugin, where ``--mge-device`` names a device.
Before ``mge.testing.pytest_plugin``.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("mge", "conformance of mge backends (pytest --pyargs mge.testing)")
    add = group.addoption
    add("--mge-device", metavar="NAME", help="the device, as acme or acme:0")
    add("--mge-level", metavar="L", default="L6", help="the last level to run, L0 to L6")
    add("--mge-ops", metavar="A,B", help="try only these ops")
    add("--mge-unsupported", metavar="FILE", help="what the device never does, with reasons")
    add("--mge-xfails", metavar="FILE", help="what fails for now, with reasons")
    add("--mge-json", metavar="FILE", help="write the results, as conformance.json")
    add("--mge-seed", metavar="N", type=int, default=0, help="of all random values")
    add("--mge-time-limit", metavar="S", type=float, default=60.0, help="for each case")


def pytest_configure(config: pytest.Config) -> None:
    """Load the kit where it is asked for."""
    if config.getoption("--mge-device"):
        from mge.testing.pytest_plugin import Kit

        config.pluginmanager.register(Kit(config), "mge-conformance")
