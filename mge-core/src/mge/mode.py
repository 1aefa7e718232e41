"""The mode of a context: what changes how calls are recorded.

In: recordings, devices, memory strategies. Out: ``MODE`` with ``changed`` and ``eager``, and the active ``MANAGERS``.
After ``debug``; before ``graph``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .debug import debug


class Mode:
    """What changes how a call is recorded. Immutable; ``with changed(...)`` installs another one.

    Attributes
    ----------
    recording : Recording or None
        Where nodes go; None means the thread's pending graph.
    eager : bool
    cast : callable or None
        Autocast: ``cast(op, nodes) -> nodes``.
    memory : str or None
        The memory strategy with its options.
    device : Device or None
        Default device of new tensors.
    plain : bool
        No ``eager`` and no ``cast``: the fast path applies.
    """

    __slots__ = ("cast", "device", "eager", "memory", "plain", "recording")

    def __init__(
        self,
        recording: Any = None,
        eager: bool = False,
        cast: Any = None,
        memory: Any = None,
        device: Any = None,
    ) -> None:
        self.recording, self.eager, self.cast = recording, eager, cast
        self.memory, self.device = memory, device
        self.plain = not eager and cast is None


_START = Mode(eager=debug.eager)
MODE: ContextVar[Mode] = ContextVar("mge_mode", default=_START)

MANAGERS: ContextVar[tuple[Any, ...]] = ContextVar(
    "mge_managers", default=()
)  # the active GradManagers


@contextmanager
def changed(**fields: Any) -> Iterator[None]:
    """Run a block under a mode that differs in ``fields`` from the current one."""
    now = MODE.get()
    values = {name: getattr(now, name) for name in Mode.__slots__ if name != "plain"}
    token = MODE.set(Mode(**(values | fields)))
    try:
        yield
    finally:
        MODE.reset(token)


@contextmanager
def eager(enabled: bool = True) -> Iterator[None]:
    """Compute each call at once inside the block, for debugging.

    Parameters
    ----------
    enabled : bool
        False records as usual inside an eager block.
    """
    with changed(eager=enabled):
        yield
