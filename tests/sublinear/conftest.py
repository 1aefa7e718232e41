"""What tests of mge-sublinear share: they skip where it is not installed, and run on each device that is."""

import pytest

from mge import device as device_module
from mge import registry
from mge.device import as_device
from mge.discovery import discover


def pytest_collection_modifyitems(items):
    try:
        from mge_sublinear import native

        native.library()
    except Exception as error:
        reason = f"mge-sublinear is not installed, or does not work here: {error}".splitlines()[0]
        for item in items:
            if "/sublinear/" in str(item.path):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def real_plugins():
    """Forget what tests with fake plugins left behind."""
    for made in (discover, registry._all, registry._hooks):
        made.cache_clear()


@pytest.fixture(params=["ref", "x86"])
def on_device(request, monkeypatch):
    """Run on a device as the default one; skips where it is absent."""
    try:
        device = as_device(request.param)
    except Exception as error:
        pytest.skip(f"device {request.param} is not usable: {error}".splitlines()[0])
    monkeypatch.setattr(device_module, "_default", [device])
    return request.param
