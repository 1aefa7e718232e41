"""What users call to trace: ``trace`` and MegEngine's configuration classes.

In: functions. Out: functions that run as plans.
After ``autodiff``; before ``data``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from .errors import ArgumentError, TraceError
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

    The fields are MegEngine's. None may be below 0; ``trace`` refuses the others with an ``ArgumentError``.

    Attributes
    ----------
    thresh_nr_try, genetic_nr_iter : int
        How long to search for the values to keep: 10 of both together are ``effort=1``; with 0 it is the least.
    lb_memory_mb : int, MB
        Memory use under which no values are dropped: the option ``aim``; 0 is none.
    genetic_pool_size, num_worker : int
        Accepted and ignored: the search is another one, on one thread, so that its plans are always the same.
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
        _check(self)
        aim = f",aim={self.lb_memory_mb}MB" if self.lb_memory_mb else ""
        effort = min(max(self.thresh_nr_try + self.genetic_nr_iter, 1) / 10, 1000.0)
        return f"sublinear:effort={effort}{aim}"


class DTRConfig(NamedTuple):
    """Asks for the memory strategy ``"dtr"``.

    The fields are MegEngine's. None may be below 0; ``trace`` refuses the others with an ``ArgumentError``.

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
        _check(self)
        sizes = f"eviction_threshold={self.eviction_threshold},evictee_minimum_size={self.evictee_minimum_size}"
        factors = f"memory_factor={self.recomp_memory_factor},time_factor={self.recomp_time_factor}"
        return f"dtr:{sizes},{factors}"


def _check(config: SublinearMemoryConfig | DTRConfig) -> None:
    """Raise where a field is no number from 0 on; a size may be a text, as "1MB", which the strategy checks."""
    for field, value in config._asdict().items():
        default = config._field_defaults[field]
        if isinstance(value, str) and field.startswith("evict"):
            continue
        kinds = (int, float) if isinstance(default, float) else int
        if not isinstance(value, kinds) or isinstance(value, bool) or not 0 <= value < float("inf"):
            what = "a number" if isinstance(default, float) else "a whole number"
            raise ArgumentError(
                f"{type(config).__name__}: {field} is {value!r}; it must be {what}, 0 or more",
                hint=f"leave it out (default: {default})",
            )


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
