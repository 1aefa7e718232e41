"""Level L0: the backend is found, loads, and says what it has.

In: a target. Out: cases ``L0/TOPIC``. That it loads at all is the runner's to say: the rest needs it.
After ``target``; before ``memory``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator

from ..device import as_device
from ..errors import DeviceError
from ..plugin import API
from .cases import Fault
from .target import Target


def cases(target: Target) -> Iterator[str]:
    """Yield the names of the cases."""
    yield from TOPICS


def run(target: Target, topic: str) -> None:
    """Run one case."""
    TOPICS[topic](target)


def _probe(target: Target) -> None:
    """``probe`` gives None on a machine where the device works, also when it is asked again."""
    for turn in ("first", "second"):
        answer = target.backend.probe()
        if answer is not None:
            raise Fault(f"the {turn} probe() of the loaded backend gave {answer!r}, not None")


def _devices(target: Target) -> None:
    """``devices`` gives a text for each device, always the same; one beyond them is an error."""
    first, again = list(target.backend.devices()), list(target.backend.devices())
    if not first or not all(isinstance(d, str) and d for d in first):
        raise Fault(f"devices() gave {first!r}; it must give a text for each device")
    if first != again:
        raise Fault(f"devices() gave {first!r}, then {again!r}")
    for i in range(len(first)):
        as_device(f"{target.backend.name}:{i}")
    try:
        as_device(f"{target.backend.name}:{len(first)}")
    except DeviceError:
        return
    raise Fault(
        f"device {target.backend.name}:{len(first)} does not exist, and asking for it raised nothing"
    )


def _name(target: Target) -> None:
    """The name can stand in ``"name:0"``."""
    name = target.backend.name
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise Fault(
            f"name is {name!r}; it must be lower-case letters, digits and _, and begin with a letter"
        )
    if target.device.name != f"{name}:{target.device.index}":
        raise Fault(f"{name}:{target.device.index} gives the device {target.device.name}")


def _api_version(target: Target) -> None:
    """The version of the plugin API that the backend was made for is one that this core has."""
    needs = getattr(target.backend, "MGE_PLUGIN_API", (1, 0))
    whole = isinstance(needs, tuple) and len(needs) == 2 and all(isinstance(n, int) for n in needs)
    if not whole or needs[0] != API[0] or needs > API:
        raise Fault(f"MGE_PLUGIN_API is {needs!r}; this mge-core has {API}")


def _methods(target: Target) -> None:
    """The methods are there and take what the core gives them; the attributes have their types."""
    counts = {"probe": 0, "devices": 0, "supports": 2, "kernel": 2}
    if not target.device.is_host:
        counts |= {"copy": 6} if hasattr(target.backend, "pool") else {"allocator": 1, "copy": 6}
    for method, count in counts.items():
        function = getattr(target.backend, method, None)
        if not callable(function):
            raise Fault(f"the backend has no method {method}()")
        try:
            inspect.signature(function).bind(*range(count))
        except TypeError as error:
            raise Fault(
                f"{method}{inspect.signature(function)} does not take {count} arguments"
            ) from error
        except ValueError:  # native code: no signature to read
            continue
    for attribute, kind in (("priority", int), ("is_host", bool)):
        value = getattr(target.backend, attribute, None)
        if not isinstance(value, kind):
            raise Fault(f"{attribute} is {value!r}; it must be of type {kind.__name__}")


TOPICS: dict[str, Callable[[Target], None]] = {
    "probe": _probe,
    "devices": _devices,
    "name": _name,
    "api_version": _api_version,
    "methods": _methods,
}
