"""``mge run``: run a model file over an array file.

In: a model, a ``.npy`` file. Out: a ``.npy`` file, or a line about the result.
Before ``demo``.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np

from ..errors import ArgumentError, FileFormatError, ShapeError
from ..modelfile import LoadedModel, load_model
from ..tensor import Tensor, tensor
from .options import at_least


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mge run``."""
    parser.description = (
        "Run a model of one input and one output over the first axis of an array. A file for one batch size runs "
        "in batches of it; the last batch is filled up and cut."
    )
    parser.add_argument("model", help="a file that trace.dump wrote, as net.mge")
    parser.add_argument("input", help="the input as a .npy file: samples on the first axis")
    parser.add_argument("--out", metavar="FILE", help="write the result here, as .npy")
    parser.add_argument("--device", metavar="NAME", help="as ref:0")
    parser.add_argument(
        "--batch", type=at_least(1), metavar="N", help="batch size, where the file leaves it open"
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON")


def run(arguments: argparse.Namespace) -> int:
    """Run the model; return 0."""
    model = load_model(arguments.model, arguments.device)
    if len(model.inputs) != 1 or len(model.outputs) != 1:
        raise ArgumentError(f"run: {model!r}; it must have one input and one output")
    port = model.inputs[0]
    array = _read(arguments.input)
    if not port.type.ndim or array.ndim != port.type.ndim or not len(array):
        raise ShapeError(
            f"run: {arguments.input} has shape {array.shape}; the model takes {port.type}, at least one sample"
        )
    size = port.type.shape[0]
    if model.dynamic_batch:
        size = min(arguments.batch or size, len(array))
    elif arguments.batch not in (None, size):
        raise ArgumentError(f"run: --batch is {arguments.batch}; the file is for batches of {size}")
    start = time.perf_counter()
    result = by_batches(model, array, size)
    seconds = time.perf_counter() - start
    if arguments.out:
        with open(arguments.out, "wb") as file:
            np.save(file, result)
    facts = {
        "samples": len(array), "batch": size, "device": str(model.device), "seconds": round(seconds, 6),
        "shape": result.shape, "dtype": str(result.dtype),
    }  # fmt: skip
    if arguments.json:
        print(json.dumps(facts))
    else:
        print(
            f"{len(array):,} samples in {seconds:.3f} s on {model.device}: {result.dtype} of shape {result.shape}"
        )
    return 0


def by_batches(model: Any, array: np.ndarray, size: int) -> np.ndarray:
    """Return what a model gives for an array, in batches of one size; the last one is filled up and cut."""
    results = []
    for start in range(0, len(array), size):
        batch = array[start : start + size]
        fill = size - len(batch)
        if fill:
            batch = np.concatenate([batch, np.repeat(batch[-1:], fill, axis=0)])
        results.append(np.array(_call(model, batch).numpy())[: size - fill])
    return np.concatenate(results)


def _call(model: Any, batch: np.ndarray) -> Tensor:
    if not isinstance(model, LoadedModel):
        return model(tensor(batch))
    result = model(tensor(batch, device=model.device))
    while not isinstance(result, Tensor):  # a container with the one output
        result = next(iter(result.values() if isinstance(result, dict) else result))
    return result


def _read(path: str) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError):
        raise FileFormatError(
            f"run: {path} is no complete .npy file, or it holds Python objects; it must hold numbers"
        ) from None
    if not isinstance(array, np.ndarray):
        raise FileFormatError(f"run: {path} holds several arrays; it must be a .npy file")
    return array
