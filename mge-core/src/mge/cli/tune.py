"""``mge tune``: time the algorithms of a model's layers, and keep the fastest.

In: a model file. Out: a table of what changed and what that gains; entries of the tuning cache.
Before ``command``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ArgumentError, ShapeError
from ..memory import current_strategy
from ..modelfile import LoadedModel, load_model
from ..native import thread_count, tuning_path
from ..tensor import Tensor
from ..tuning import SECONDS, Report, tune
from .options import at_least, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mge tune``."""
    parser.description = (
        "Time the algorithms that a device has for the layers of a model, inside the whole model, and keep the fastest "
        "in the tuning cache of this machine. Later runs take them without timing anything. A result holds for the "
        "shapes, the processor, the number of threads (mge --set threads=N tune ...) and the version of the device."
    )
    parser.add_argument("model", help="a file that trace.dump wrote, as net.mge")
    parser.add_argument(
        "--input",
        type=_shape,
        action="append",
        default=[],
        metavar="SHAPE",
        help="the shape of an input, as 8x3x224x224; once for each input, in their order. By default that of the file",
    )
    parser.add_argument("--device", metavar="NAME", help="as x86:0")
    parser.add_argument(
        "--seconds", type=at_least(1), default=round(SECONDS), metavar="N",
        help="about how long to run the model at most; once with each algorithm in any case",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(part) for part in text.lower().split("x"))
    except ValueError:
        shape = (-1,)
    if min(shape) < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no shape, as 8x3x224x224")
    return shape


def run(arguments: argparse.Namespace) -> int:
    """Tune; return 0."""
    model = load_model(arguments.model, arguments.device)
    tensors = _inputs(model, arguments.input)
    entry = model._entry(model._batch(tensors))
    nodes = entry.inputs([t._node for t in tensors])
    if not entry.fits(nodes):
        model._refuse(tensors, entry, nodes)
    strategy = current_strategy()
    report = tune(lambda: entry._compile((), strategy), nodes, arguments.seconds, again=True)
    if arguments.json:
        choices = [] if report is None else [c._asdict() for c in report.choices]
        facts = {} if report is None else report._asdict()
        print(json.dumps({"device": str(model.device), **facts, "choices": choices}))
    elif report is None:
        print(f"{arguments.model}: {model.device} has one algorithm for each of its nodes")
    else:
        print(_text(report))
    return 0


def _inputs(model: LoadedModel, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Return made-up inputs: normal numbers, and zeros where there are integers or bools."""
    if shapes and len(shapes) != len(model.inputs):
        raise ArgumentError(
            f"tune: --input is given {len(shapes)} times; the model has {len(model.inputs)} inputs",
            hint=model._signature(),
        )
    wanted: Any = shapes or [port.type.shape for port in model.inputs]
    rng = np.random.default_rng(0)
    made = []
    for port, shape in zip(model.inputs, wanted, strict=True):
        if len(shape) != port.type.ndim:
            raise ShapeError(
                f"tune: --input is {shape}; input {port.name} of the model is {port.type}"
            )
        dtype = port.type.dtype
        values = rng.normal(size=shape) if dtype.is_float else np.zeros(shape)
        made.append(model._tensor(values.astype(dtype.dtype), port))
    return made


def _text(report: Report) -> str:
    rows: list[tuple[str, ...]] = [("layer", "nodes", "before", "after", "before", "after")]
    rows += [
        (
            " ".join(c.key.split()[4:]),
            str(c.nodes),
            c.old,
            c.new,
            f"{c.old_ns / 1e3:,.1f} us",
            f"{c.new_ns / 1e3:,.1f} us",
        )
        for c in report.choices
    ]
    changed = sum(c.old != c.new for c in report.choices)
    path = tuning_path()
    head = f"{changed} of {len(report.choices)} choices changed"
    return "\n".join(
        [
            table(rows, (1, 4, 5)),
            f"{head} for {thread_count()} threads, in {report.seconds:.1f} s",
            f"whole model: {report.before_ns / 1e6:.3f} ms before, {report.after_ns / 1e6:.3f} ms after",
            f"kept in {path}"
            if path.is_file()
            else f"NOT kept: {path} cannot be written; MGE_CACHE names the folder",
        ]
    )
