"""``mge explain``: how a model would run, or how a script's plans do.

In: a model file or a Python script. Out: device, kernel and reason of each node; peak and memory over time.
Before ``command``.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..cache import compile_graph
from ..errors import ArgumentError
from ..graph import GET, Graph
from ..memory import current_strategy
from ..modelfile import LoadedModel, load_model
from ..plan import Plan
from ..schedule import is_view
from .options import at_least, show_bytes, table
from .script import plans_of

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 64  # marks in the picture of memory over time
_LARGEST = 8  # values that are shown of those that are live at the peak


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mge explain``."""
    parser.description = (
        "Say for each node on which device it runs, by which kernel and why, and how much memory that takes. A model "
        "file is compiled, not run. A Python script is run, and each plan that it compiles is explained."
    )
    parser.add_argument(
        "model", help="a file that trace.dump wrote, or a script whose name ends in .py"
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="arguments of the script")
    parser.add_argument(
        "--batch", type=at_least(1), metavar="N", help="batch size, where the file leaves it open"
    )
    parser.add_argument("--device", metavar="NAME", help="as ref:0")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Explain; return 0."""
    if arguments.model.endswith(".py"):
        return _explain_script(arguments)
    if arguments.words:
        raise ArgumentError(
            f"explain: {' '.join(arguments.words)}: a model file takes no arguments"
        )
    model = load_model(arguments.model, arguments.device)
    graph = _graph(model, arguments.batch)
    compiled = compile_graph(
        graph, graph.key[:-1], tuple(range(len(graph.outputs))), (), current_strategy()
    )
    facts = {
        "model": arguments.model,
        "inputs": [f"{port.name}: {node.type}" for port, node in zip(model.inputs, graph.inputs)],
        "outputs": [
            f"{port.name}: {node.type}" for port, node in zip(model.outputs, graph.outputs)
        ],
        "dynamic_batch": model.dynamic_batch,
        "weights": len(model.weights),
        "weight_bytes": sum(w._node.type.nbytes for w in model.weights.values()),
        "recorded_nodes": len(graph.nodes),
        **explain_plan(compiled.plan, compiled.prologue.plan if compiled.prologue else None),
    }
    if arguments.json:
        print(json.dumps(facts))
        return 0
    batch = "any batch size" if model.dynamic_batch else "one batch size"
    print(
        f"{arguments.model}: {', '.join(facts['inputs'])} -> {', '.join(facts['outputs'])}, {batch}"
    )
    weight_bytes = show_bytes(facts["weight_bytes"])
    print(f"{facts['weights']} weights, {weight_bytes}; {facts['recorded_nodes']} nodes recorded\n")
    print(text_of(facts))
    return 0


def _graph(model: LoadedModel, batch: int | None) -> Graph:
    if batch is None or batch == model._size:
        return model.graph
    if not model.dynamic_batch:
        raise ArgumentError(
            f"explain: --batch is {batch}; the file is for one batch size: {model!r}",
            hint="trace.dump(..., dynamic_batch=True) makes a file for all batch sizes",
        )
    return model._graph_at(batch)


def _explain_script(arguments: argparse.Namespace) -> int:
    if arguments.batch:
        raise ArgumentError("explain: --batch is for model files; a script makes its own batches")
    plans = plans_of("explain", arguments.model, arguments.words, arguments.device)
    if plans is None:
        return 1
    found = [
        {"recorded_nodes": len(p.recorded.nodes), **explain_plan(p.plan, p.prologue)} for p in plans
    ]
    if arguments.json:
        print(json.dumps({"script": arguments.model, "plans": found}))
        return 0
    for number, facts in enumerate(found, 1):
        print(
            f"plan {number} of {len(found)}: {facts['recorded_nodes']} nodes recorded\n{text_of(facts)}\n"
        )
    if not found:
        print(
            "no plan was compiled: a structure runs step by step at first sight (trace compiles at once)"
        )
    return 0


def explain_plan(plan: Plan, prologue: Plan | None = None) -> dict[str, Any]:
    """Return nodes, peak and memory over time of a plan.

    Parameters
    ----------
    plan : Plan
    prologue : Plan, optional
        What is computed before it, once for each version of the parameters.
    """
    nodes = _nodes(plan)
    if prologue is not None:
        nodes = [{**n, "step": None, "part": "prologue"} for n in _nodes(prologue)] + nodes
    memory = plan.memory_report()
    return {
        "device": str(plan.device),
        "steps": len(plan.steps),
        "nodes": nodes,
        "placement": plan.graph.placement(),
        **memory,
        "live_at_peak": memory["live_at_peak"][:_LARGEST],
    }


def _nodes(plan: Plan) -> list[dict[str, Any]]:
    step_of = {step.slot.node: i for i, step in enumerate(plan.steps)}
    found = []
    for node in plan.graph.nodes:
        sig = node.sig
        if sig.op is GET:
            continue
        step = step_of.get(node)
        kernel: str | None = (
            getattr(plan.steps[step].kernel, "name", None) if step is not None else None
        )
        if step is None and sig.op.name == "constant":
            reason = "a constant: part of the plan"
        elif step is None and is_view(node):
            reason = "a view: the bytes of its input in another shape"
        else:
            kernel = kernel or ("NumPy reference" if sig.device.type == "ref" else "own kernel")
            reason = _reason(plan, sig)
        found.append(
            {
                "step": step,
                "part": "plan",
                "op": sig.op.name,
                "types": [str(t) for t in sig.types],
                "device": str(sig.device),
                "kernel": kernel,
                "reason": reason,
                "bytes": sig.nbytes,
                "place": node.place,
            }
        )
    return found


def _reason(plan: Plan, sig: Any) -> str:
    if "refused" in sig.notes:
        return "not on {}: {}".format(*sig.notes["refused"])
    if "compiled" in sig.notes:
        return "{nodes} nodes compiled as a whole".format(**sig.notes["compiled"])
    if sig.op.name == "copy" and sig.device is not plan.device:
        return "moves a value between devices"
    return "ref runs every op" if sig.device.type == "ref" else f"{sig.device} has a kernel"


def text_of(facts: dict[str, Any]) -> str:
    """Return the facts of a plan for people to read."""
    rows = [("step", "op", "result", "device", "kernel", "why")]
    for n in facts["nodes"]:
        step = "pro" if n["part"] == "prologue" else "-" if n["step"] is None else str(n["step"])
        types = ", ".join(n["types"][:3]) + (
            f" and {len(n['types']) - 3} more" if len(n["types"]) > 3 else ""
        )
        rows.append((step, n["op"], types, n["device"], n["kernel"] or "-", n["reason"]))
    lines = [table(rows, right=(0,)), "", *_placement_lines(facts["placement"])]
    if any(n["part"] == "prologue" for n in facts["nodes"]):
        lines.append("pro: the prologue, computed once for each version of the weights")
    lines.append(
        f"peak {show_bytes(facts['peak_bytes'])}: arena {show_bytes(facts['arena_bytes'])}, "
        f"scratch {show_bytes(facts['workspace_bytes'])}, "
        f"results {show_bytes(facts['result_bytes'])}; strategy {facts['strategy']}"
    )
    if facts["live_bytes"]:
        picture = _picture(facts["live_bytes"])
        lines.append(
            f"memory over {facts['steps']} steps  {picture}  most at step {facts['peak_step']}; live there:"
        )
    lines += [f"  {show_bytes(v['bytes']):>10}  {v['value']}" for v in facts["live_at_peak"]]
    return "\n".join(lines)


def _placement_lines(placement: dict[str, Any]) -> list[str]:
    """Return a line for each device, where there are several, and for each part that a device did not take whole."""
    devices, parts = placement["devices"], placement["compiled"]
    lines = [
        f"{name}: nodes {d['nodes']}, islands {d['islands']}, copies in {show_bytes(d['bytes_in'])}, "
        f"out {show_bytes(d['bytes_out'])}"
        for name, d in devices.items()
        if len(devices) > 1
    ]
    texts = "{device}: {nodes} nodes were not compiled as a whole: {reason}"
    return lines + [texts.format(**p) for p in parts if p["reason"] is not None]


def _picture(values: list[int]) -> str:
    """Return values as a row of bars; of steps that share a bar, the largest counts."""
    columns = min(_WIDTH, len(values))
    top = max(values) or 1
    groups = [
        values[i * len(values) // columns : (i + 1) * len(values) // columns]
        for i in range(columns)
    ]
    return "".join(_BARS[round(max(g) / top * (len(_BARS) - 1))] for g in groups)
