"""Libraries for the tests of the native core, built once per session."""

import importlib.util

import pytest

from mge import device as devices
from mge.cache import PLANS
from mge.execute import WATCHERS
from tests.core.native.build import CC, CXX, HERE, TOY, compiled


@pytest.fixture(scope="session")
def compiler():
    if CC is None or CXX is None:
        pytest.skip("no C and C++ compiler here")
    return compiled


@pytest.fixture(scope="session")
def module():
    """``mge._native``, set up."""
    if importlib.util.find_spec("mge._native") is None:
        pytest.skip("mge._native is not built: pip install ./mge-core")
    from mge.native import load_module

    return load_module()


@pytest.fixture(scope="session")
def library(compiler, tmp_path_factory):
    """A function from a name, ``toy_native`` or a file of ``libraries/``, to the path of its built library."""
    folder, built = tmp_path_factory.mktemp("libraries"), {}

    def build(name, *flags, source=None):
        if (name, flags) not in built:
            found = source or (
                TOY if name == "toy_native" else next((HERE / "libraries").glob(f"{name}.*"))
            )
            target = folder / f"lib{name}{len(built)}.so"
            built[name, flags] = str(compiled(target, found, flags=flags))
        return built[name, flags]

    return build


@pytest.fixture
def native_device(module, library):
    """A function from a library's name to its device, as if a plugin offered it."""
    from mge.native import NativeBackend

    added = []

    def make(name):
        if name not in devices.BACKENDS:
            devices.BACKENDS[name] = NativeBackend(library(name))
            added.append(name)
        return devices.as_device(f"{name}:0")

    watchers = WATCHERS[:]  # a watched run waits for each step
    WATCHERS.clear()
    PLANS.clear()
    yield make
    PLANS.clear()
    WATCHERS[:] = watchers
    for name in added:
        del devices.BACKENDS[name]
        devices._DEVICES.pop(f"{name}:0", None)
