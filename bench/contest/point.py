"""One point of ``bench/memory.py``: a training step in a process of its own.

In: a point as JSON on the command line. Out: its row as JSON on the last line.
After ``deep`` and ``with_*``.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import deep
import zoo


def rss_bytes() -> int:
    """Return the peak of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(point: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a point: steps are timed after one that warms up."""
    deep.add_models()
    of = {"mge": _mge, "torch": _torch}[point["framework"]]
    case = zoo.Case(point["model"], point["batch"], True)
    importlib.import_module("with_mge" if point["framework"] == "mge" else "with_torch")
    before = rss_bytes()
    step, facts = of(point, case)
    losses = [step(), step()]
    seconds = []
    for _ in range(point["steps"]):
        start = time.perf_counter()
        losses.append(step())
        seconds.append(time.perf_counter() - start)
    return {
        **point,
        "losses": losses,
        "seconds": seconds,
        "seconds_per_step": statistics.median(seconds),
        "rss_bytes": rss_bytes() - before,
        "process_bytes": rss_bytes(),
        **facts(),
    }


def _mge(point: dict[str, Any], case: zoo.Case) -> tuple[Callable[[], float], Callable[[], dict]]:
    import with_mge

    import mge
    import mge.functional as F
    from mge.debug import debug
    from mge.memory import find_strategy, with_options
    from mge.view import VIEW

    with_mge.OPS.concat = lambda parts, axis: F.concat(parts, axis=axis)
    mge.set_default_device(point["device"])
    if point["strategy"] == "dynamic":
        undecorated = with_mge.training(with_mge.make(case.model), case)
        return (lambda: undecorated().item()), dict
    budget = point.get("budget_bytes")
    text = with_options(
        point["strategy"], replan=False, **({"budget": budget} if budget else {})
    )  # one plan: what it predicts is what runs
    choice, planning = find_strategy(text), []
    if choice.decides_order:
        plan = choice.strategy.plan

        def timed(request: Any) -> Any:
            start = time.perf_counter()
            try:
                return plan(request)
            finally:
                planning.append((time.perf_counter() - start, len(request.nodes)))

        choice.strategy.plan = timed
    kept = []
    VIEW.collector = lambda stages, plan, prologue: kept.append(
        sum(n.type.nbytes for n in stages[0][1].nodes if n.sig.op.name not in _NOT_OF_A_TAPE)
    )

    step = mge.jit.trace(memory=text)(with_mge.training(with_mge.make(case.model), case))

    def facts() -> dict[str, Any]:
        plan = step._last_plan("memory").plan
        live = max(plan.memory.live_bytes)
        return {
            "predicted_bytes": plan.peak_bytes - plan.result_bytes,
            "arena_bytes": plan.device.arena.nbytes,
            "layout_bytes": plan.memory.arena_bytes,
            "live_bytes": live,
            "plan_steps": len(plan.steps),
            "predicted_ns": plan.report.predicted_ns if plan.report else None,
            "planning_seconds": planning[0][0] if planning else None,
            "nodes": planning[0][1] if planning else len(plan.steps),
            "keep_all_bytes": kept[0],
        }

    with debug(view=os.devnull):
        first = step().item()
    VIEW.collector = None
    pending = [first]

    return (lambda: pending.pop() if pending else step().item()), facts


# The backward pass is one node of the recording, the update follows it; views and labels take no memory of a tape.
_NOT_OF_A_TAPE = {"call", "get", "sgd_update", "reshape", "flatten", "constant"}


def _torch(point: dict[str, Any], case: zoo.Case) -> tuple[Callable[[], float], Callable[[], dict]]:
    import torch
    import with_torch
    from torch.utils.checkpoint import checkpoint

    with_torch.OPS.concat = torch.cat
    torch.set_num_threads(point["threads"])
    net = with_torch.make(case.model).train()
    strategy, _, share = point["strategy"].partition(":")
    if strategy == "checkpoint":
        for block in _blocks(net):
            forward = block.forward
            block.forward = lambda *a, f=forward: checkpoint(f, *a, use_reentrant=False)
    if strategy == "compile":
        import torch._functorch.config as config

        config.activation_memory_budget = float(share or 1)
        net = torch.compile(net)
    return with_torch.training(net, *map(torch.from_numpy, zoo.inputs(case))), dict


def _blocks(net: Any) -> list[Any]:
    """Return the residual, encoder or level blocks of a model: what its users would checkpoint."""
    named = {"Residual", "Encoder"}
    found = [m for m in net.modules() if type(m).__name__ in named]
    return found or [*getattr(net, "down", []), *getattr(net, "join", [])]


if __name__ == "__main__":
    try:
        answer = measure(json.loads(sys.argv[1]))
    except Exception as error:  # the driver shows it in the row
        traceback.print_exc()
        answer = {**json.loads(sys.argv[1]), "error": f"{type(error).__name__}: {error}"[:400]}
    print("\n" + json.dumps(answer))
