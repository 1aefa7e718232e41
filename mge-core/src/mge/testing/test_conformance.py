"""The one test of ``pytest --pyargs mge.testing --mge-device=NAME``: a case of the conformance kit.

In: cases that ``pytest_plugin`` names. Out: passes, skips (refused, not claimed), expected failures and failures.
After ``pytest_plugin``.
"""

from __future__ import annotations

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Say what is missing where no device is named."""
    if not metafunc.config.pluginmanager.has_plugin("mge-conformance"):
        raise pytest.UsageError(
            "name the device to test: pytest --pyargs mge.testing --mge-device=NAME"
        )


def test_conformance(mge_case: str, request: pytest.FixtureRequest) -> None:
    """The backend does what the core and its users expect; ``docs/conformance.md`` says what each case is."""
    kit = request.config.pluginmanager.get_plugin("mge-conformance")
    assert kit is not None
    kit.run(mge_case, request)
