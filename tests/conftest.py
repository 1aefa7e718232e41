"""Settings of all tests: seeds, the Hypothesis profile, devices.

Random order and its seed come from pytest-randomly, which prints the seed; ``-p no:randomly`` keeps file order.
"""

import functools
import os
import re
import shutil
import sys
import tempfile
import zlib

import hypothesis
import numpy as np
import pytest

# A test may use both @given and fixtures such as ``device``: they hold nothing that an example changes.
common = {
    "deadline": None,
    "suppress_health_check": [hypothesis.HealthCheck.function_scoped_fixture],
}
hypothesis.settings.register_profile("dev", **common)
hypothesis.settings.register_profile("ci", **common, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_addoption(parser):
    group = parser.getgroup("mge")
    group.addoption(
        "--devices", default="ref", help="devices for tests that take `device`, as ref,x86:0"
    )
    group.addoption("--op", help="only generated tests of this op")


def pytest_configure(config):
    # Tests that name no device run on `ref`, whatever plugins are installed; their child processes, too.
    os.environ.setdefault("MGE_DEVICE", "ref")
    if "mge" in sys.modules:  # a plugin of pytest imported it, with the environment as it was
        sys.modules["mge.debug"].debug.set(device=os.environ["MGE_DEVICE"])
    if (
        "PYTEST_XDIST_WORKER" in os.environ
    ):  # each worker has a core; two with two BLAS threads each only wait
        from mge.threads import limit_threads

        limit_threads(1)
    # Plans and tuning results of the user stay out of the tests, and theirs out of the user's folder.
    if "MGE_CACHE" not in os.environ:
        folder = tempfile.mkdtemp(prefix="mge-test-cache-")
        os.environ["MGE_CACHE"] = folder
        config.add_cleanup(lambda: (os.environ.pop("MGE_CACHE", None), shutil.rmtree(folder, True)))


def pytest_report_header(config):
    settings = {k: v for k, v in os.environ.items() if k.startswith("MGE_") and k != "MGE_CACHE"}
    lines = [f"mge devices: {config.getoption('--devices')}"]
    if settings:
        lines.append("mge settings: " + " ".join(f"{k}={v}" for k, v in sorted(settings.items())))
    return lines


def pytest_generate_tests(metafunc):
    if "device" in metafunc.fixturenames:
        names = metafunc.config.getoption("--devices").split(",")
        metafunc.parametrize("device", names, indirect=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    op = config.getoption("--op")
    if op:
        # The parameters in a test's id are separated by "-": test_gradient[ref-rms_norm-0].
        word = re.compile(rf"[\[-]{re.escape(op)}[-\]]")
        kept = [item for item in items if word.search(item.nodeid)]
        config.hook.pytest_deselected(items=[i for i in items if not word.search(i.nodeid)])
        items[:] = kept
        if not kept:
            raise pytest.UsageError(f"--op: no test of an op named {op!r}")
    # The smallest tests of the whole stack run first, whatever the random order.
    items.sort(key=lambda item: item.path.name != "test_tiny.py")


@functools.cache
def absence(name):
    """Why a device cannot be used here; None when it can."""
    import mge
    from mge.errors import DeviceError, PluginError

    try:
        mge.tensor([0.0], device=name).numpy()
    except (DeviceError, PluginError) as error:
        return str(error).splitlines()[0]
    return None


@pytest.fixture
def device(request):
    """A device's name, for each of ``--devices``; skips with the reason where it is absent."""
    reason = None if request.param == "ref" else absence(request.param)
    if reason:
        pytest.skip(f"device {request.param}: {reason}")
    return request.param


def seed_of(request):
    run = request.config.getoption("randomly_seed", default=0)
    return zlib.crc32(f"{run} {request.node.nodeid}".encode())


@pytest.fixture
def seed(request):
    """A number that depends on the run's seed and the test's name, and not on the order of tests."""
    value = seed_of(request)
    print(f"seed {value}")  # shown when the test fails
    return value


@pytest.fixture
def rng(seed):
    """A NumPy generator with the test's own seed."""
    return np.random.default_rng(seed)


@pytest.fixture(autouse=True)
def _nothing_pending():
    """Start each test with an empty recording: what an earlier test left held is not part of this one's graphs."""
    mode, graph = sys.modules.get("mge.mode"), sys.modules.get("mge.graph")
    if mode is not None and graph is not None:
        graph.LOCAL.recording, graph.LOCAL.requested = graph.Recording(), None


@pytest.fixture(autouse=True)
def _seeds(request):
    """Seed mge's generator before each test; pytest-randomly does the same for random and numpy.random."""
    generator = sys.modules.get("mge.random")
    if generator is not None:
        generator.seed(seed_of(request))
