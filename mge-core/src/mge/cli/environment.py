"""``mge env``: what a report of a fault should say about this installation.

In: nothing. Out: versions, processor, devices, settings, as text or JSON.
Before ``command``.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import sys
from importlib import metadata
from typing import Any

import numpy as np

import mge

from .. import native, threads
from ..debug import VARIABLES, debug
from ..device import BACKENDS, as_device, default_device
from ..discovery import first_line
from ..errors import MgeError
from ..registry import facts_of
from .options import show_bytes, table

PACKAGES = ("numpy", "ml_dtypes", "safetensors", "pluggy", "entrypoints", "tqdm", "scikit-learn")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mge env``."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print the facts; return 0."""
    facts = environment()
    print(json.dumps(facts, indent=2) if arguments.json else _text(facts))
    return 0


def environment() -> dict[str, Any]:
    """Return versions, machine, devices, settings and the state of the tuning cache."""
    return {
        "mge": mge.__version__,
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "blas": _blas(),
        "devices": _devices(),
        "default_device": _default(),
        "roof": _roof(),
        "settings": {name: getattr(debug, name.removeprefix("MGE_").lower()) for name in VARIABLES},
        "tuning_cache": _tuning_cache(),
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            names = (
                line.partition(":")[2].strip()
                for line in lines
                if line.startswith(("model name", "Model"))
            )
            return next(names, "") or platform.processor()
    except OSError:
        return platform.processor()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _blas() -> dict[str, Any]:
    """Return NumPy's BLAS: name, version, and its threads where the library tells."""
    found = np.show_config(mode="dicts") or {}
    blas = found.get("Build Dependencies", {}).get("blas", {})
    facts: dict[str, Any] = {
        "name": blas.get("name"),
        "version": blas.get("version"),
        "threads": None,
    }
    for path in sorted(threads._loaded_libraries()):
        if "openblas" not in os.path.basename(path):
            continue
        library = ctypes.CDLL(path)
        for prefix in ("scipy_", ""):
            for suffix in ("64_", ""):
                call = getattr(library, f"{prefix}openblas_get_num_threads{suffix}", None)
                if call is not None:
                    facts["threads"] = int(call())
                    return facts
    return facts


def _devices() -> list[dict[str, Any]]:
    devices = []
    for name, backend in BACKENDS.items():
        reason = backend.probe()
        names, priority = facts_of(backend)
        count = len(names) if reason is None else 0
        devices.append({"type": name, "count": count, "priority": priority, "reason": reason})
    return devices


def _tuning_cache() -> str:
    try:
        module = native.load_module()
    except MgeError as error:
        return f"none: {first_line(error)}"
    size, damaged, number, _ = module.tuning_statistics()
    lines = f", {damaged} damaged lines" if damaged else ""
    return f"{native.tuning_path()}: {size} entries, hash {number:016x}{lines}"


def _default() -> str:
    try:
        return str(default_device())
    except MgeError as error:
        return str(error).splitlines()[0]


def _roof() -> dict[str, float] | None:
    """Return what the default device can do a second at most, where it tells: measured now."""
    try:
        device = default_device()
    except MgeError:
        return None
    if not hasattr(device.backend, "roof"):
        return None
    return dict(zip(("flops", "bytes"), device.backend.roof(device.index)))


def _text(facts: dict[str, Any]) -> str:
    blas = facts["blas"]
    rows = [
        ("mge", facts["mge"]),
        ("Python", f"{facts['python']}, {sys.executable}"),
        ("packages", ", ".join(f"{name} {version}" for name, version in facts["packages"].items())),
        ("system", facts["system"]),
        ("processor", f"{facts['processor']}, {facts['cores']} cores"),
        ("memory", show_bytes(facts["memory_bytes"]) if facts["memory_bytes"] else "unknown"),
        ("BLAS", f"{blas['name']} {blas['version']}, {blas['threads'] or 'unknown'} threads"),
        *(("device", _device_line(d)) for d in facts["devices"]),
        ("default device", facts["default_device"]),
        *(("roof", _roof_line(roof)) for roof in [facts["roof"]] if roof),
        ("tuning cache", facts["tuning_cache"]),
    ]
    changed = [(n, v) for n, v in facts["settings"].items() if v != VARIABLES[n].default]
    rows += [(name, repr(value)) for name, value in changed] or [
        ("settings", "all MGE_ variables have their defaults")
    ]
    return table(rows)


def _roof_line(roof: dict[str, float]) -> str:
    return f"{roof['flops'] / 1e9:.0f} GFLOP/s of float32, {roof['bytes'] / 1e9:.1f} GB/s read from memory"


def _device_line(device: dict[str, Any]) -> str:
    if device["reason"]:
        return f"{device['type']}: unavailable: {device['reason']}"
    names = [str(as_device(f"{device['type']}:{i}")) for i in range(device["count"])]
    return ", ".join(names) or f"{device['type']}: none"
