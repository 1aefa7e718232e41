"""Device type ``x86``: mge's kernels for x86-64 processors, and the passes that make graphs fit them.

``MGE_X86_ISA`` (``sse4``, ``avx2``, ``avx512``, ``avx512vnni``) chooses a level below the processor's, for tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from mge.dtype import as_dtype
from mge.plugin import NativeBackend, Signature, abstract, find_library

if TYPE_CHECKING:
    from mge.graph import Graph, Node


class X86Backend(NativeBackend):
    """The kernels of one level of the instruction set, with the device's passes."""

    def passes(self) -> Iterable[tuple[str, Callable[[Graph], Graph]]]:
        """Return the passes of this device, in order."""
        from .passes import passes

        return passes()

    def roof(self, dev: int) -> tuple[float, float]:
        """Return what all threads do a second at most: float32 operations, and bytes read. Takes 15 ms."""
        op: Any = SimpleNamespace(name="x86::roof")  # in no graph
        use = Signature(op, (), (), (abstract((2,), as_dtype("float64")),), None)
        found = np.empty(2)
        self.kernel(dev, use)((), (found,))
        return float(found[0]), float(found[1])

    def choice_of(self, node: Node) -> tuple[str, str, tuple[Node, ...]] | None:
        """Return what tuning asks for a node of a plan: the use, the algorithm, further nodes to time; or None."""
        from .passes.algorithm import choice_of

        return choice_of(node)


def backend() -> X86Backend:
    """Return the backend; the entry point ``x86`` names this function."""
    from . import ops  # noqa: F401  # their records

    return X86Backend(find_library(__package__, "mge_x86"))
