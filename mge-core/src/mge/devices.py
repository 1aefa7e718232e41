"""What users ask about devices: how many there are, and how much memory is in use.

In: device types and names. Out: counts, and bytes of buffers, pools and arenas.
After ``trace``; before nothing.
"""

from __future__ import annotations

from .device import Device, as_device, default_device, find_backend
from .errors import PluginError
from .registry import facts_of

__all__ = [
    "get_allocated_memory",
    "get_default_device",
    "get_device_count",
    "get_max_allocated_memory",
    "get_max_reserved_memory",
    "get_reserved_memory",
    "is_cuda_available",
    "reset_max_memory_stats",
]


def get_default_device() -> str:
    """Return the name of the default device, as ``"ref:0"``."""
    return default_device().name


def get_device_count(device_type: str) -> int:
    """Return how many devices of a type there are.

    Parameters
    ----------
    device_type : str
        ``"ref"``, ``"cuda"``, ...

    Returns
    -------
    int
        0 for a type that no installed plugin offers.
    """
    try:
        return len(facts_of(find_backend(device_type, device_type))[0])
    except PluginError:
        return 0


def is_cuda_available() -> bool:
    """Return whether a plugin offers a CUDA device that works here."""
    return get_device_count("cuda") > 0


def get_allocated_memory(device: object = None) -> int:
    """Return the bytes of live buffers on a device.

    Parameters
    ----------
    device : str or Device, optional
        By default the default device.

    Returns
    -------
    int, bytes
    """
    return _chosen(device).pool.in_use_bytes


def get_reserved_memory(device: object = None) -> int:
    """Return the bytes of live buffers, cached blocks and the arena of a device.

    Parameters
    ----------
    device : str or Device, optional
        By default the default device.

    Returns
    -------
    int, bytes
    """
    chosen = _chosen(device)
    arena = chosen.arena.nbytes if chosen.arena is not None else 0
    return chosen.pool.in_use_bytes + chosen.pool.cached_bytes + arena


def get_max_allocated_memory(device: object = None) -> int:
    """Return the largest value of ``get_allocated_memory`` since the last reset.

    Parameters
    ----------
    device : str or Device, optional
        By default the default device.

    Returns
    -------
    int, bytes
    """
    return _chosen(device).pool.peak_bytes


def get_max_reserved_memory(device: object = None) -> int:
    """Return the largest value of ``get_reserved_memory`` since the last reset.

    Parameters
    ----------
    device : str or Device, optional
        By default the default device.

    Returns
    -------
    int, bytes
    """
    chosen = _chosen(device)
    return max(get_reserved_memory(chosen), chosen.pool.peak_reserved_bytes)


def reset_max_memory_stats(device: object = None) -> None:
    """Start the maxima of memory use again from what is in use now.

    Parameters
    ----------
    device : str or Device, optional
        By default the default device.
    """
    _chosen(device).pool.reset_peak()


def _chosen(device: object) -> Device:
    return default_device() if device is None else as_device(device)
