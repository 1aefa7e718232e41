"""``mge plugins``: which plugins are installed, whether they work, and why not.

In: a verb and options. Out: lines or JSON; for ``check`` and ``--expect`` also the exit status.
After ``options``; before ``doctor``.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import mge

from .. import registry
from ..debug import VARIABLES, debug
from ..device import as_device, is_free
from ..discovery import unreadable
from ..dtype import as_dtype
from ..errors import ArgumentError, MgeError
from ..graph import Signature
from ..op import OPS, Op
from ..passes.lower import helps
from ..plugin import API
from ..registry import Plugin
from ..types import Type
from .options import table

SCHEMA = 1  # of the JSON; a change of what a name means raises it
SECONDS = 30.0  # for one plugin to load in a process of its own
_CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    "from mge.cli import main; sys.exit(main(sys.argv[2:]))"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verbs of ``mge plugins`` and their options."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--expect", metavar="NAMES",
        help="fail unless exactly these plugins can be used, as x86,vision; also the name of a tox environment: "
        "py311-x86-vision; core stands for none",
    )  # fmt: skip
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    listed = verbs.add_parser(
        "list", parents=[common], help="all plugins; imports none (the default)"
    )
    listed.add_argument(
        "--strict", action="store_true", help="load each as check does; fail if one is broken"
    )
    show = verbs.add_parser("show", parents=[common], help="load one and print all about it")
    show.add_argument("name", metavar="NAME")
    show.add_argument("--kind", choices=registry.KINDS, help="where several have the name")
    check = verbs.add_parser("check", parents=[common], help="load each in a process of its own")
    check.add_argument("names", metavar="NAME", nargs="*", help="by default all")
    check.add_argument("--timeout", type=float, default=SECONDS, metavar="SECONDS")
    ops = verbs.add_parser("ops", parents=[common], help="the ops that a device has kernels for")
    ops.add_argument("name", metavar="NAME", help="a device, or an op library")
    ops.add_argument("--csv", action="store_true", help="print comma-separated values")
    why = verbs.add_parser("why", parents=[common], help="why an op runs where it does")
    why.add_argument("op", metavar="OP")
    for verb in (ops, why):
        verb.add_argument("--dtype", default="float32", help="of float inputs; default: float32")
    why.add_argument("--device", required=True, metavar="NAME")
    verbs.add_parser("env", parents=[common], help="versions, switches and unreadable metadata")


def run(arguments: argparse.Namespace) -> int:
    """Do what the verb says; return 0, or 1 where a check failed."""
    if arguments.expect is not None:
        return _expect(arguments)
    verb = arguments.verb or "list"
    facts, status = _VERBS[verb](arguments)
    if arguments.json:
        print(json.dumps({"schema": SCHEMA, **facts}, indent=2))
    elif getattr(arguments, "csv", False):
        _write_csv(facts)
    else:
        print(_TEXTS[verb](facts))
    return status


# Verbs: each returns facts, and the exit status.


def _list(arguments: argparse.Namespace) -> tuple[dict[str, Any], int]:
    strict, malformed = getattr(arguments, "strict", False), _malformed()
    listed = [check(p) if strict else facts_of(p) for p in registry.plugins()]
    broken = [p for p in listed if p["state"] in ("failed", "incompatible")]
    status = int(strict and bool(broken or malformed["malformed"]))
    return {"plugins": _built_in() + listed, **malformed}, status


def _show(arguments: argparse.Namespace) -> tuple[dict[str, Any], int]:
    shown = [p for p in _built_in() if p["name"] == arguments.name]
    for plugin in _named(arguments.name, arguments.kind) if not shown else ():
        registry.try_load(plugin)
        shown.append(facts_of(plugin) | {"traceback": plugin.traceback} | _offered(plugin))
    return {"plugins": shown}, int(any(p["state"] not in ("loaded", "built in") for p in shown))


def _check(arguments: argparse.Namespace) -> tuple[dict[str, Any], int]:
    names = arguments.names
    chosen = [p for n in names for p in _named(n)] if names else registry.plugins()
    checked = [check(p, arguments.timeout) for p in chosen]
    good = ("loaded",) if names else ("loaded", "disabled", "shadowed", "unavailable")
    return {"plugins": checked}, int(any(c["state"] not in good for c in checked))


def _ops(arguments: argparse.Namespace) -> tuple[dict[str, Any], int]:
    name = arguments.name
    if any(p.name == name for p in registry.plugins("ops")):
        registry.load("ops", name)
        return {"library": name, "ops": sorted(n for n in OPS if n.startswith(f"{name}::"))}, 0
    device = as_device(name)
    rows = []
    for op in sorted(OPS.values(), key=lambda op: op.name):
        answers = [a for _, a in _answers(op, device, arguments.dtype)]
        if answers:
            refused = sorted({a for a in answers if a not in ("kernel", "core")})
            kept = sum(a in ("kernel", "core") for a in answers)
            rows.append(
                {
                    "op": op.name,
                    "base": op.is_base,
                    "samples": len(answers),
                    "accepted": kept,
                    "refused": refused,
                }
            )
    return {"device": str(device), "dtype": arguments.dtype, "ops": rows}, 0


def _why(arguments: argparse.Namespace) -> tuple[dict[str, Any], int]:
    op = OPS.get(arguments.op)
    if op is None and "::" in arguments.op:
        registry.load_namespace(arguments.op.partition("::")[0])
        op = OPS.get(arguments.op)
    if op is None:
        raise ArgumentError(f"plugins: there is no op {arguments.op!r}")
    device = as_device(arguments.device)
    uses = [{"use": repr(sig), "answer": a} for sig, a in _answers(op, device, arguments.dtype)]
    return {"op": op.name, "device": str(device), "dtype": arguments.dtype, "uses": uses}, 0


def _env(arguments: argparse.Namespace) -> tuple[dict[str, Any], int]:
    settings = ("plugins", "plugins_disable", "device", "fallback", "memory")
    facts = {
        "mge": mge.__version__,
        "plugin_api": list(API),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "settings": {f"MGE_{s.upper()}": getattr(debug, s) for s in settings},
        "packages": sorted({f"{p.package} {p.version}".strip() for p in registry.plugins()}),
    }
    return {**facts, **_malformed()}, 0


def _expect(arguments: argparse.Namespace) -> int:
    """Compare the plugins that can be used, each tried in a process of its own, with those named."""
    words = {
        w
        for w in re.split(r"[\s,-]+", arguments.expect)
        if w and not re.fullmatch(r"core|py[\d.]*", w)
    }
    checked = [check(p) for p in registry.plugins()]
    usable = [c for c in checked if c["state"] == "loaded"]
    called = [{c["name"], c["package"], c["package"].removeprefix("mge-")} for c in usable]
    missing = sorted(w for w in words if not any(w in names for names in called))
    extra = sorted(c["name"] for c, names in zip(usable, called) if not names & words)
    facts = {
        "schema": SCHEMA,
        "expected": sorted(words),
        "missing": missing,
        "unexpected": extra,
        "plugins": checked,
    }
    if arguments.json:
        print(json.dumps(facts, indent=2))
    else:
        print(_plugin_table(facts))
    for text, names in (("missing", missing), ("not expected", extra)):
        if names:
            print(f"mge plugins: {text}: {', '.join(names)}", file=sys.stderr)
    return int(bool(missing or extra))


# Facts.


def facts_of(plugin: Plugin) -> dict[str, Any]:
    """Return what is known of a plugin; loads nothing."""
    names = ("name", "kind", "package", "version", "value", "state", "reason")
    facts = {name: getattr(plugin, name) for name in names} | {"seconds": round(plugin.seconds, 4)}
    return facts | ({"conformance": _claimed(plugin)} if plugin.kind == "backend" else {})


def _claimed(plugin: Plugin) -> str:
    """Return the trust level in the ``conformance.json`` that a backend's package holds, as ``"L4"``, or nothing."""
    top = re.split(r"[.:]", plugin.value)[0]
    try:
        spec = importlib.util.find_spec(top)
        folders = (spec.submodule_search_locations if spec is not None else None) or ()
        files = [p for p in (Path(f, "conformance.json") for f in folders) if p.is_file()]
        level = json.loads(files[0].read_text(encoding="utf-8"))["trust"] if files else ""
    except (OSError, ValueError, KeyError, TypeError, ImportError):
        return ""
    return level if isinstance(level, str) and re.fullmatch(r"L\d", level) else ""


def _built_in() -> list[dict[str, Any]]:
    own = {
        "package": "mge-core",
        "version": mge.__version__,
        "value": "",
        "state": "built in",
        "reason": "",
    }
    return [{"name": n, "kind": k, **own, "seconds": 0.0} for k, n in registry.BUILT_IN]


def _malformed() -> dict[str, Any]:
    return {"malformed": [{"package": p, "reason": r} for p, r in unreadable()]}


def _named(name: str, kind: str | None = None) -> list[Plugin]:
    """Return the plugins of a name; of several in one kind, the one that is used."""
    found = [p for p in registry.plugins(kind) if name in (p.name, p.package)]
    if not found:
        raise registry.not_installed(kind or "backend", name, f'plugin "{name}"')
    return [p for p in found if p.state != "shadowed"] or found


def _offered(plugin: Plugin) -> dict[str, Any]:
    made = plugin.object
    if made is None:
        return {}
    if plugin.kind == "backend":
        names, priority = registry.facts_of(made)
        devices = [f"{plugin.name}:{i} {name}" for i, name in enumerate(names)]
        return {"devices": devices, "priority": priority}
    if plugin.kind == "ops":
        return {"ops": sorted(n for n in OPS if n.startswith(f"{plugin.name}::"))}
    if plugin.kind == "hooks":
        return {"hooks": registry.hooks_of(plugin)}
    return {}


def check(plugin: Plugin, seconds: float = SECONDS) -> dict[str, Any]:
    """Load a plugin in a process of its own, so that a crash or a hang is a result."""
    facts = facts_of(plugin)
    if plugin.state in ("disabled", "shadowed"):
        return facts
    words = ["plugins", "show", plugin.name, "--kind", plugin.kind, "--json"]
    reason, text = run_child(words, seconds)
    if not reason:
        try:
            shown = json.loads("{" + f"\n{text}".rpartition("\n{\n")[2])["plugins"]
            return next(s for s in shown if s["package"] == plugin.package)
        except (ValueError, KeyError, StopIteration):
            reason = "the process gave no answer"
    return facts | {"state": "failed", "reason": reason}


def run_child(words: list[str], seconds: float) -> tuple[str, str]:
    """Run ``mge`` with other words in a fresh process; return how it broke down, or nothing, and its output."""
    switches = (f"--set={name}={getattr(debug, name)}" for name in ("plugins", "plugins_disable"))
    command = [sys.executable, "-c", _CHILD, json.dumps(sys.path), *switches, *words]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return f"timed out after {seconds:g} s", ""
    if done.returncode < 0:
        return f"crashed ({signal.Signals(-done.returncode).name})", ""
    if done.returncode > 1:
        last = (done.stderr.strip().splitlines() or ["no text"])[-1]
        return f"its process ended with status {done.returncode}: {last}", ""
    return "", done.stdout


def _answers(op: Op, device: Any, dtype: str) -> Iterator[tuple[Signature, str]]:
    """Yield each sample of an op as a use on a device, and the device's answer."""
    wide = as_dtype(dtype)
    for arrays, attrs in op._samples(np.random.default_rng(0)) if op._samples is not None else ():
        arrays = [np.asarray(a) for a in arrays if a is not None]
        try:
            kinds = [wide if a.dtype.kind == "f" else as_dtype(a.dtype) for a in arrays]
            types = [Type(a.shape, k) for a, k in zip(arrays, kinds)]
            _, given = op.bind(tuple(types), dict(attrs))
            sig = op.signature(types, op.normal_attrs(given), device)
        except MgeError:  # not for this dtype
            continue
        reason = device.refusal(sig)
        if reason is None:
            yield sig, "core" if is_free(sig) else "kernel"
        else:
            yield sig, f"{reason}; {'lowered' if helps(sig) else 'runs on ref'}"


# Text.


def _plugin_table(facts: dict[str, Any]) -> str:
    rows = [("NAME", "KIND", "PACKAGE", "VERSION", "STATE", "NOTE")]
    rows += [
        (p["name"], p["kind"], p["package"], p["version"] or "-", p["state"], _note(p))
        for p in facts["plugins"]
    ]
    broken = [
        f"unreadable metadata: {m['package']}: {m['reason']}" for m in facts.get("malformed", ())
    ]
    return "\n".join([table(rows), *broken])


def _note(plugin: dict[str, Any]) -> str:
    claimed = plugin.get("conformance")
    return "; ".join(filter(None, (plugin["reason"], claimed and f"states conformance {claimed}")))


def _show_text(facts: dict[str, Any]) -> str:
    blocks = []
    for plugin in facts["plugins"]:
        rows = []
        for name, value in plugin.items():
            if value and name != "traceback":
                text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
                rows.append((name, text))
        blocks.append("\n".join([table(rows), plugin.get("traceback", "")]).rstrip())
    return "\n\n".join(blocks)


def _ops_text(facts: dict[str, Any]) -> str:
    if "library" in facts:
        return "\n".join(facts["ops"]) or f"{facts['library']} has no ops"
    rows = [("OP", "SAMPLES", "ACCEPTED", "REFUSED")]
    rows += [
        (r["op"], str(r["samples"]), str(r["accepted"]), " | ".join(r["refused"]))
        for r in facts["ops"]
    ]
    whole = sum(r["accepted"] == r["samples"] for r in facts["ops"])
    return f"{table(rows, right=(1, 2))}\n{facts['device']}: {whole} of {len(facts['ops'])} ops, {facts['dtype']}"


def _write_csv(facts: dict[str, Any]) -> None:
    """Print what ``ops`` found, a line for each op."""
    rows = facts["ops"] if "device" in facts else [{"op": name} for name in facts["ops"]]
    columns = ("op", "base", "samples", "accepted", "refused") if "device" in facts else ("op",)
    writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(row | ({"refused": " | ".join(row["refused"])} if "refused" in row else {}))


def _why_text(facts: dict[str, Any]) -> str:
    if not facts["uses"]:
        return f"{facts['op']}: no sample of it takes {facts['dtype']}"
    meanings = {
        "kernel": f"{facts['device']} has a kernel",
        "core": "the core does it, on any device",
    }
    return table([(u["use"], meanings.get(u["answer"], u["answer"])) for u in facts["uses"]])


def _env_text(facts: dict[str, Any]) -> str:
    rows = [
        ("mge", f"{facts['mge']}, plugin API {'.'.join(map(str, facts['plugin_api']))}"),
        ("Python", f"{facts['python']}, {facts['platform']}"),
        *((name, repr(value)) for name, value in facts["settings"].items()),
        ("packages", ", ".join(facts["packages"]) or "none"),
        *(("unreadable", f"{m['package']}: {m['reason']}") for m in facts["malformed"]),
    ]
    changed = [
        v
        for v in VARIABLES
        if v in facts["settings"] and facts["settings"][v] != VARIABLES[v].default
    ]
    return table(rows) + (f"\nnot the defaults: {', '.join(changed)}" if changed else "")


_VERBS = {"list": _list, "show": _show, "check": _check, "ops": _ops, "why": _why, "env": _env}
_TEXTS = {
    "list": _plugin_table,
    "show": _show_text,
    "check": _plugin_table,
    "ops": _ops_text,
    "why": _why_text,
    "env": _env_text,
}
