"""Modules that plugins offer under MegEngine's names, as ``mge.vision``.

In: the name of such a module, the package that has it. Out: the package's own module, under both names.
Before ``quantization``, ``vision``, ``hub`` and ``distributed``, which call it and hold nothing else.
"""

from __future__ import annotations

import importlib
import re
import sys

from . import registry
from .errors import PluginNotInstalled, PluginUnavailable

__all__ = ["provide"]


def provide(name: str, package: str, part: str = "") -> None:
    """Let a package's module stand for one of mge's.

    Parameters
    ----------
    name : str
        ``"mge.quantization"``.
    package : str
        The distribution, ``"mge-quant"``; its module is that of its first entry point.
    part : str
        A module inside that one; by default the top one.

    Raises
    ------
    PluginNotInstalled
        The distribution is not installed.
    PluginUnavailable
        It is switched off, or its module cannot be imported.
    """
    found = [p for p in registry.plugins() if p.package == package]
    if not found:
        raise PluginNotInstalled(
            f"{name} was asked for, and no installed plugin offers it",
            hint=f"pip install {package}",
        )
    if all(p.state == "disabled" for p in found):
        raise PluginUnavailable(f"{name} was asked for, and {package} is off: {found[0].reason}")
    module = ".".join(filter(None, (re.split(r"[.:]", found[0].value)[0], part)))
    try:
        sys.modules[name] = importlib.import_module(module)
    except Exception as error:
        raise PluginUnavailable(
            f"{name} was asked for, and {found[0].package} {found[0].version} cannot be used here\n"
            f"  {type(error).__name__}: {error}; details: mge plugins show {found[0].name}"
        ) from error
