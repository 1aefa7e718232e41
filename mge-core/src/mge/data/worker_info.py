"""Which worker this process is.

In: nothing. Out: ``get_worker_info()``, for a ``StreamDataset`` that reads only its own part.
Before ``worker``, which fills it in.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WorkerInfo:
    """Place of a worker process among the workers of one iteration.

    Attributes
    ----------
    idx : int
        Number of this worker, from 0.
    worker : int
        How many workers there are.
    seed : int
        A number that depends on the iteration's seed and ``idx``.
    """

    idx: int
    worker: int
    seed: int


_INFO: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """Return the place of this worker process; None outside of a worker.

    Returns
    -------
    WorkerInfo or None

    Examples
    --------
    >>> from mge.data import get_worker_info
    >>> get_worker_info() is None
    True
    """
    return _INFO


def set_worker_info(info: WorkerInfo | None) -> None:
    """Say which worker this process is; called once, when a worker starts."""
    global _INFO
    _INFO = info
