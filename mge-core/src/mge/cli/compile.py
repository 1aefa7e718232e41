"""``mge compile``: a model file becomes a plan file for one device, which C++ runs without Python.

In: a model, a device, batch sizes. Out: a file, and a line about it.
Before ``command``.
"""

from __future__ import annotations

import argparse
import json
import os

import mge

from ..modelfile import load_model
from ..planfile import write_plan
from .options import show_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mge compile``."""
    parser.description = (
        "Compile a model file for a device of a vendor's library, for C++ programs that use mge/runtime.hpp. "
        "Where the library has no kernel for some ops, they are listed with the reasons."
    )
    parser.add_argument("model", help="a file that trace.dump wrote, as net.mge")
    parser.add_argument("--device", metavar="NAME", help="as toy_native:0")
    parser.add_argument(
        "--batch",
        type=_sizes,
        default=[],
        metavar="N,N",
        help="batch sizes, where the file leaves them open",
    )
    parser.add_argument("--out", metavar="FILE", help="by default the model's name with .mgeplan")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = [0]
    if min(sizes) < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not one or several whole numbers from 1 on, as 1,8"
        )
    return sizes


def run(arguments: argparse.Namespace) -> int:
    """Compile and write; return 0."""
    model = load_model(arguments.model, arguments.device)
    out = arguments.out or f"{os.path.splitext(arguments.model)[0]}.mgeplan"
    info = write_plan(out, model, arguments.batch, mge.__version__)
    if arguments.json:
        facts = {**info._asdict(), "plans": [p._asdict() for p in info.plans]}
        print(json.dumps({"file": out, "device": str(model.device), **facts}))
        return 0
    for plan in info.plans:
        batch = f"batch {plan.batch}" if plan.batch else "fixed shapes"
        print(f"{batch}: {plan.steps} steps, peak {show_bytes(plan.peak_bytes)}")
    updates = f", {len(info.states)} states" if info.states else ""
    print(f"{out}: {show_bytes(info.nbytes)} for {model.device}{updates}; library {info.library}")
    return 0
