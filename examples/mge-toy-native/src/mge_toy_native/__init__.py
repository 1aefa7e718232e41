"""Device type ``toy_native``: what the library beside this file offers."""

from mge.plugin import NativeBackend, find_library


def backend() -> NativeBackend:
    """Return the backend; the entry point ``toy_native`` names this function."""
    return NativeBackend(find_library(__package__, "mge_toy_native"))
