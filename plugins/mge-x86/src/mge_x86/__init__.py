"""Device type ``x86``: mge's kernels for x86-64 processors, and the passes that make graphs fit them.

``MGE_X86_ISA`` (``sse4``, ``avx2``, ``avx512``, ``avx512vnni``) chooses a level below the processor's, for tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from mge.plugin import NativeBackend, find_library

if TYPE_CHECKING:
    from mge.graph import Graph


class X86Backend(NativeBackend):
    """The kernels of one level of the instruction set, with the device's passes."""

    def passes(self) -> Iterable[tuple[str, Callable[[Graph], Graph]]]:
        """Return the passes of this device, in order."""
        from .passes import passes

        return passes()


def backend() -> X86Backend:
    """Return the backend; the entry point ``x86`` names this function."""
    from . import ops  # noqa: F401  # their records

    return X86Backend(find_library(__package__, "mge_x86"))
