"""What users call to trace: ``trace`` and MegEngine's configuration classes.

In: functions. Out: functions that run as plans.
After ``autodiff``; before ``data``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from .errors import TraceError
from .graph import MODE, changed
from .trace import trace

__all__ = ["DTRConfig", "GraphOptimizationConfig", "SublinearMemoryConfig", "TraceError", "exclude_from_trace", "trace"]

class SublinearMemoryConfig(NamedTuple):
    """Asks for the memory strategy ``"sublinear"``; the fields are MegEngine's, and kept for the plugin."""

    thresh_nr_try: int = 10
    genetic_nr_iter: int = 0
    genetic_pool_size: int = 20
    lb_memory_mb: int = 0
    num_worker: int = 1

class DTRConfig(NamedTuple):
    """Asks for the memory strategy ``"dtr"``; the fields are MegEngine's, and kept for the plugin."""

    eviction_threshold: int = 0
    evictee_minimum_size: int = 1 << 20
    recomp_memory_factor: float = 1.0
    recomp_time_factor: float = 1.0

class GraphOptimizationConfig(NamedTuple):
    """Accepted and ignored: the device's passes decide what is fused."""

    jit_fuse_dimshuffle: bool = False
    jit_fuse_reduce: bool = False

@contextmanager
def exclude_from_trace() -> Iterator[None]:
    """Run a block outside the trace: its calls happen once, while the function is traced.

    It must not use traced tensors.
    """
    if MODE.get().recording is None:
        yield
        return
    with changed(recording=None):
        yield

def is_tracing() -> bool:
    """Return whether a function is being traced now."""
    recording = MODE.get().recording
    return recording is not None and recording.owner.traces
