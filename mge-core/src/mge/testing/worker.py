"""The worker: a process that loads the backend, runs cases, and may die of them.

In: one JSON request a line on standard input. Out: one JSON answer a line on what was standard output.
After ``levels``; ``runner`` starts it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
import traceback
from typing import Any

from ..debug import debug
from ..device import as_device, set_default_device
from ..discovery import first_line
from ..errors import MgeError, PluginError
from ..graph import LOCAL, Recording
from ..registry import plugins
from . import levels
from .cases import Fault
from .target import Refused, Skipped, Target

MOST_TEXT = 4000  # characters of an answer


class Service:
    """Answers requests about one device.

    Parameters
    ----------
    name : str
        The device.
    seed : int
    ops : list of str or None
        The ops to try; None: all.
    """

    def __init__(self, name: str, seed: int, ops: list[str] | None) -> None:
        self.name, self.seed, self.ops = name, seed, ops
        self.target: Target | None = None

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Load the backend; say what it is, or why it cannot be loaded."""
        debug.set(fallback="allow")
        set_default_device("ref")  # whatever MGE_DEVICE says
        try:
            as_device(self.name)
        except MgeError as error:
            lines = f"{type(error).__name__}: {error}".splitlines()
            text = "\n".join(
                line for line in lines if not line.startswith("  at: ")
            )  # of this file
            return {"error": text, "absent": isinstance(error, PluginError)}
        self.target = Target(self.name, self.seed, self.ops)
        unknown = sorted({*self.ops} - {*self.target.ops()}) if self.ops is not None else []
        backend = self.target.backend
        plugin = next((p for p in plugins("backend") if p.object is backend), None)
        return {
            "device": self.target.device.name,
            "called": str(list(backend.devices())[self.target.device.index]),
            "package": plugin.package if plugin is not None else "mge-core",
            "version": plugin.version if plugin is not None else "",
            "unknown_ops": unknown,
        }

    def list(self, request: dict[str, Any]) -> dict[str, Any]:
        """Name the cases."""
        assert self.target is not None
        return {"cases": list(levels.cases(self.target, request["last"]))}

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run a case; a dump of all stacks goes to standard error shortly before its time is over."""
        assert self.target is not None
        faulthandler.dump_traceback_later(0.9 * request["limit_s"])
        start = time.perf_counter()
        outcome, text = "passed", ""
        try:
            levels.run(self.target, request["case"])
        except Refused as reason:
            outcome, text = "refused", str(reason)
        except Skipped as reason:
            outcome, text = "skipped", str(reason)
        except Fault as fault:
            outcome, text = "failed", str(fault)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{os.path.basename(last.filename)}:{last.lineno}"
            outcome = "failed"
            text = f"{type(error).__name__}: {first_line(error)} ({where})\n" + "".join(
                traceback.format_exception(error)
            )
        finally:
            faulthandler.cancel_dump_traceback_later()
            LOCAL.recording = Recording()
        return {
            "outcome": outcome,
            "text": text[:MOST_TEXT],
            "seconds": time.perf_counter() - start,
        }


def main() -> None:
    """Answer requests until standard input ends.

    What the plugin prints must not mix with answers, nor may it read requests: both get file descriptors of their own.
    """
    options = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    faulthandler.enable()
    service = Service(options["device"], options["seed"], options["ops"])
    for line in requests:
        request = json.loads(line)
        answer = getattr(service, request["do"])(request)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
