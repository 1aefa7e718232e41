"""What users call to trace: ``trace`` and MegEngine's configuration classes.

In: functions. Out: functions that run as plans.
After ``autodiff``; before ``data``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from .errors import TraceError
from .mode import MODE, changed
from .trace import trace

__all__ = [
    "DTRConfig",
    "GraphOptimizationConfig",
    "SublinearMemoryConfig",
    "TraceError",
    "exclude_from_trace",
    "trace",
]


class SublinearMemoryConfig(NamedTuple):
    """Asks for the memory strategy ``"sublinear"``.

    The fields are MegEngine's, and kept for the plugin.

    Attributes
    ----------
    thresh_nr_try, genetic_nr_iter, genetic_pool_size : int
        How long to search for the values to keep.
    lb_memory_mb : int, MB
        Memory use under which no values are dropped.
    num_worker : int
        Threads of the search.
    """

    thresh_nr_try: int = 10
    genetic_nr_iter: int = 0
    genetic_pool_size: int = 20
    lb_memory_mb: int = 0
    num_worker: int = 1

    @property
    def strategy(self) -> str:
        """The strategy as ``mge.memory`` takes it.

        ``lb_memory_mb``, where it is set, is the peak that the search aims at.
        """
        aim = f",aim={self.lb_memory_mb}MB" if self.lb_memory_mb else ""
        return f"sublinear:effort={self.thresh_nr_try / 10 + self.genetic_nr_iter / 10}{aim}"


class DTRConfig(NamedTuple):
    """Asks for the memory strategy ``"dtr"``.

    The fields are MegEngine's, and kept for the plugin.

    Attributes
    ----------
    eviction_threshold : int, bytes
        Memory use from which values are dropped; 0 means the strategy's own choice.
    evictee_minimum_size : int, bytes
        Smaller values are never dropped.
    recomp_memory_factor, recomp_time_factor : float
        How much the size of a value and the time to compute it again count.
    """

    eviction_threshold: int = 0
    evictee_minimum_size: int = 1 << 20
    recomp_memory_factor: float = 1.0
    recomp_time_factor: float = 1.0

    @property
    def strategy(self) -> str:
        """The strategy as ``mge.memory`` takes it."""
        sizes = f"eviction_threshold={self.eviction_threshold},evictee_minimum_size={self.evictee_minimum_size}"
        factors = f"memory_factor={self.recomp_memory_factor},time_factor={self.recomp_time_factor}"
        return f"dtr:{sizes},{factors}"


class GraphOptimizationConfig(NamedTuple):
    """Accepted and ignored: the device's passes decide what is fused.

    Attributes
    ----------
    jit_fuse_dimshuffle, jit_fuse_reduce : bool
    """

    jit_fuse_dimshuffle: bool = False
    jit_fuse_reduce: bool = False


@contextmanager
def exclude_from_trace() -> Iterator[None]:
    """Run a block outside the trace, once, while the function is traced.

    It must not use traced tensors.
    """
    if MODE.get().recording is None:
        yield
        return
    with changed(recording=None):
        yield
