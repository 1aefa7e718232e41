"""Algorithm, speed and share of the roof of each step, under ``MGE_DEBUG=2``.

In: steps of plans, and nodes that run one by one. Out: a line for each on standard error, and a summary at the end.
Interface layer; ``mge`` loads it at level 2.

The roof is the larger of two times: the step's float32 operations at the most that all threads of the device can do
a second, and its bytes at the most that they read from memory (``Backend.roof``, measured once). A step's share is
that time by the time that it took. It exceeds 100 % where Winograd's algorithm needs fewer operations than the sum of
products, which is what counts here, and where the bytes come from a cache.

Sources: Williams, Waterman and Patterson, Roofline, Communications of the ACM 52 (4), 2009.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ..cost import multiply_adds, read_bytes
from ..execute import NODE_WATCHERS, WATCHERS
from ..graph import Node, Signature
from ..native import NativeKernel

__all__ = ["Figures", "Report", "figures", "watch"]

SLOWEST = 10


class Figures(NamedTuple):
    """How fast something was.

    Attributes
    ----------
    us : float, µs
    gflops : float, GFLOP/s
        A multiply-add counts as two.
    gbs : float, GB/s
        Each byte of an input or output once.
    share : float or None
        Of the roof; None where the device does not tell it.
    bound : str
        What the roof is for this: ``"compute"`` or ``"memory"``.
    """

    us: float
    gflops: float
    gbs: float
    share: float | None
    bound: str


def figures(flops: int, nbytes: int, ns: float, roof: tuple[float, float] | None) -> Figures:
    """Return the figures of something that took a time.

    Parameters
    ----------
    flops, nbytes : int
    ns : float, nanoseconds
    roof : (float, float), operations and bytes a second; or None
    """
    ns = max(ns, 1)
    least = [n / most * 1e9 for n, most in zip((flops, nbytes), roof or ())]
    share = max(least) / ns if least else None
    bound = ("compute" if least[0] > least[1] else "memory") if least else "-"
    return Figures(ns / 1e3, flops / ns, nbytes / ns, share, bound)


class _Step(NamedTuple):
    """What is known of a step before it runs."""

    op: str
    algorithm: str
    flops: int
    nbytes: int
    device: Any
    types: str
    place: str

    def line(self, label: str, ns: float) -> str:
        """Return its line for a time."""
        made = figures(self.flops, self.nbytes, ns, _roof_of(self.device))
        return _line(label, self.op, self.algorithm, made, f"{self.types}  {self.place}")


def _line(label: str, op: str, algorithm: str, made: Figures, rest: str) -> str:
    speed = f"{made.gflops:.1f} GFLOP/s" if made.gflops else "-"
    share = "-" if made.share is None else f"{100 * made.share:.0f} % {made.bound}"
    numbers = f"{made.us:10,.1f} µs {speed:>15} {made.gbs:7.1f} GB/s {share:>13}"
    return f"{label:>7} {op:<26} {algorithm:<12}{numbers}  {rest}".rstrip()


class Report:
    """Prints steps as they come, and keeps their times for the summary.

    Attributes
    ----------
    times : dict of (plan, step) to [int, int, int]
        The nanoseconds of the first run, of all later runs together, and the number of these.
    """

    def __init__(self) -> None:
        self.times: dict[tuple[int, int], list[int]] = {}
        self._steps: dict[tuple[int, int], _Step] = {}
        self._numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._count = 0

    def see_step(self, plan: Any, number: int, start: int, end: int) -> None:
        """Take in a step of a plan, and print its line."""
        if plan not in self._numbers:
            self._count += 1
            self._numbers[plan] = self._count
            _print(
                f"plan {self._count}: {len(plan.steps)} steps on {plan.device}{_roof_text(plan)}"
            )
        key = self._numbers[plan], number
        if key not in self._steps:
            self._steps[key] = _step_of(plan, number)
            self.times[key] = [end - start, 0, 0]
        else:
            self.times[key][1] += end - start
            self.times[key][2] += 1
        _print(self._steps[key].line(f"{key[0]}.{number}", end - start))

    def see_node(self, sig: Signature, node: Node, start: int, end: int) -> None:
        """Print the line of a node that ran alone."""
        step = _made(sig, node, sig.notes.get("kernel"), read_bytes(sig) + sig.nbytes)
        _print(step.line("node", end - start))

    def summary(self) -> str:
        """Return the time of all plans, the slowest steps, and each algorithm's time.

        Nothing where no plan ran. Times are means over the runs of a plan but the first, for which nothing is in the
        caches yet.
        """
        if not self.times:
            return ""
        means = {
            k: late / count if count else first for k, (first, late, count) in self.times.items()
        }
        total = sum(means.values())
        lines = [f"one run of each plan: {total / 1e3:,.1f} µs in {len(means)} steps; the slowest:"]
        for key in sorted(means, key=lambda k: -means[k])[:SLOWEST]:
            lines.append(self._steps[key].line(f"{key[0]}.{key[1]}", means[key]))
        groups: dict[tuple[str, str, Any], list[tuple[int, int]]] = {}
        for key in means:
            step = self._steps[key]
            groups.setdefault((step.op, step.algorithm, step.device), []).append(key)
        lines.append("by algorithm:")
        for name, keys in sorted(groups.items(), key=lambda g: -sum(means[k] for k in g[1])):
            ns, steps = sum(means[k] for k in keys), [self._steps[k] for k in keys]
            sums = sum(s.flops for s in steps), sum(s.nbytes for s in steps)
            made = figures(*sums, ns, _roof_of(name[2]))
            share = f"{100 * ns / total:.1f} %"
            lines.append(_line(share, *name[:2], made, f"{len(keys)} steps"))
        return "\n".join(lines)


def _step_of(plan: Any, number: int) -> _Step:
    """Return what is known of a step of a plan. An optional output that nobody reads is not written."""
    step = plan.steps[number]
    read = {plan.values[v].storage for s in plan.steps for v in s.inputs}
    read |= {plan.values[v].storage for v in plan.outputs}
    optional = getattr(step.kernel, "has_optional_outputs", False)
    values = [plan.values[v] for v in step.outputs]
    written = sum(v.type.nbytes for v in values if not optional or v.storage in read)
    sig = step.slot.node.sig
    return _made(sig, step.slot.node, step.kernel, read_bytes(sig) + written)


def _made(sig: Signature, node: Node, kernel: Any, nbytes: int) -> _Step:
    name = kernel.name if isinstance(kernel, NativeKernel) else "in Python"
    algorithm = name.removeprefix(sig.op.name).strip() or "-"
    inputs = ", ".join(map(repr, sig.input_types[:2])) + ", ..." * (len(sig.input_types) > 2)
    flops, place = 2 * multiply_adds(sig), os.path.basename(node.place or "")
    types = f"{inputs} -> {sig.type!r}"
    return _Step(sig.op.name, algorithm, flops, nbytes, sig.device, types, place)


_ROOFS: dict[Any, tuple[float, float] | None] = {}


def _roof_of(device: Any) -> tuple[float, float] | None:
    """Return what a device can do a second at most: operations and bytes; None where it does not tell."""
    if device not in _ROOFS:
        measure = getattr(device.backend, "roof", None)
        _ROOFS[device] = None if measure is None else measure(device.index)
    return _ROOFS[device]


def _roof_text(plan: Any) -> str:
    roof = _roof_of(plan.device)
    if roof is None:
        return ""
    return f", whose roof is {roof[0] / 1e9:.0f} GFLOP/s and {roof[1] / 1e9:.1f} GB/s"


def _print(text: str) -> None:
    for line in text.splitlines():
        sys.stderr.write(f"mge: {line}\n")


REPORT = Report()
atexit.register(lambda: _print(REPORT.summary()))


def watch(on: bool) -> None:
    """Begin or end to print steps.

    Parameters
    ----------
    on : bool
    """
    pairs: list[tuple[list, Any]] = [(WATCHERS, REPORT.see_step), (NODE_WATCHERS, REPORT.see_node)]
    for watchers, see in pairs:
        if on and see not in watchers:
            watchers.append(see)
        elif not on and see in watchers:
            watchers.remove(see)
