"""How much memory this process holds.

In: nothing. Out: bytes of the heap, exact with glibc, else those of the resident pages.
Before ``robustness``.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any


class _Figures(ctypes.Structure):
    """``struct mallinfo2`` of <malloc.h>."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


@functools.cache
def _mallinfo() -> Callable[[], Any] | None:
    """Return glibc's ``mallinfo2``, or None."""
    try:
        function: Any = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    function.restype = _Figures
    return function


def heap_bytes() -> int:
    """Return the bytes that are allocated now; 0 where this system does not tell."""
    function = _mallinfo()
    if function is not None:
        figures = function()
        return int(figures.uordblks + figures.hblkhd)
    try:
        with open("/proc/self/statm", encoding="ascii") as line:
            return int(line.read().split()[1]) << 12
    except OSError:
        return 0
