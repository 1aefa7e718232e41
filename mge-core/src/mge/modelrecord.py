"""The record of a model file: its parts, and the checks before they are used.

In: a record and arrays from ``archive``. Out: the graph, if all parts fit together.
After ``archive``; before ``anybatch``.

A record has ``graph`` (text; ``n`` in it is the batch size), ``inputs`` and ``outputs`` (names), ``parameters`` and
``results`` (trees as in ``archive``, with ``{"input": i}`` and ``{"output": i}``), ``weights`` in the order of the
graph's further inputs, ``effects`` (weight, output), ``rebinds`` (input, output), ``batch`` and ``user_info``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .archive import from_json
from .dtype import as_dtype
from .errors import DTypeError, FileFormatError
from .graph import Graph
from .parse import parse_graph
from .tensor import ModuleBuffer, Parameter, Tensor
from .tree import flatten
from .types import Type

__all__: list[str] = []  # no name here is promised to users

FORMAT = "mge.model"
VERSION = "1"
CLASSES = {"parameter": Parameter, "buffer": ModuleBuffer, "state": Tensor}


class Port(NamedTuple):
    """One input or output of a model.

    Attributes
    ----------
    name : str
    type : Type
        Shape and dtype.
    """

    name: str
    type: Type


class Slot:
    """Stands for an input or output in a tree, where it is a leaf."""

    def __init__(self, kind: str, number: int) -> None:
        self.kind, self.number = kind, number


def no_leaf(key: str, inside: Any) -> Any:
    raise FileFormatError(f"record: found {key!r}, which has no place there")


def leaf_of(kind: str) -> Any:
    def leaf(key: str, inside: Any) -> Slot:
        return Slot(kind, inside) if key == kind and type(inside) is int else no_leaf(key, inside)

    return leaf


def check_record(record: dict[str, Any], arrays: dict[str, np.ndarray], device: Any) -> Graph:
    """Return the graph of a record; raise FileFormatError unless all parts are there and fit together."""
    lists = dict.fromkeys(
        ("inputs", "outputs", "parameters", "weights", "effects", "rebinds"), list
    )
    for key, kind in {"graph": str, "batch": dict, **lists}.items():
        _require(type(record.get(key)) is kind, f"{key!r} must be a {kind.__name__}")
    _require(
        "results" in record and "user_info" in record, "'results' and 'user_info' must be there"
    )
    batch = record["batch"]
    size, growing = batch.get("size"), batch.get("inputs")
    _require(
        size is None or (type(size) is int and 0 <= size < 1 << 48), f"the batch size is {size!r}"
    )
    reason = batch.get("fixed_because", 0)
    _require(isinstance(reason, (str, type(None))), "'batch' lacks a reason")
    inputs, outputs = record["inputs"], record["outputs"]
    _require(
        _are_names([*inputs]) and _are_names([*outputs]),
        "inputs and outputs must have different names",
    )
    _require(
        isinstance(growing, list) and all(type(i) is int and 0 <= i < len(inputs) for i in growing)
        and bool(growing) == (size is not None),
        f"the inputs of the batch are {growing!r}",
    )  # fmt: skip
    graph = parse_graph(record["graph"], device, n=size)
    weights = record["weights"]
    fine = all(
        isinstance(w, dict) and isinstance(w.get("name"), str) and w.get("kind") in CLASSES
        for w in weights
    )
    _require(
        fine and _are_names([w["name"] for w in weights]), "each weight must have a name and a kind"
    )
    _require(
        {w["name"] for w in weights} == set(arrays), "the weights named are not those in the file"
    )
    _check_graph(record, graph, arrays)
    slots: list[int] = []
    names = []
    for p in record["parameters"]:
        is_whole = isinstance(p, dict) and set(p) == {"name", "positional", "tree"}
        _require(is_whole, "a parameter has name, positional and tree")
        _require(type(p["positional"]) is bool, "a parameter is positional or not")
        names.append(p["name"])
        leaves = flatten(from_json(p["tree"], leaf_of("input")))[0]
        slots += [leaf.number for leaf in leaves if isinstance(leaf, Slot)]
    _require(_are_names(names), "parameters must have different names")
    _require(
        sorted(slots) == list(range(len(inputs))),
        f"the parameters hold inputs {slots}; each must be there once",
    )
    leaves = flatten(from_json(record["results"], leaf_of("output")))[0]
    slots = [leaf.number for leaf in leaves if isinstance(leaf, Slot)]
    _require(
        sorted(slots) == list(range(len(outputs))),
        f"the results hold outputs {slots}; each must be there once",
    )
    return graph


def _check_graph(record: dict[str, Any], graph: Graph, arrays: dict[str, np.ndarray]) -> None:
    """Raise FileFormatError unless the graph fits its inputs, weights and effects."""
    inputs, weights, effects = len(record["inputs"]), record["weights"], record["effects"]
    read, rebinds = len(graph.inputs) - inputs, record["rebinds"]
    _require(
        0 <= read <= len(weights),
        f"the graph takes {len(graph.inputs)} inputs; the file has {inputs} and {len(weights)} weights",
    )
    _require(
        len(graph.outputs) == len(record["outputs"]) + len(effects) + len(rebinds),
        f"the graph has {len(graph.outputs)} outputs; the file has {len(record['outputs'])}, "
        f"{len(effects)} effects and {len(rebinds)} rebinds",
    )
    _require(bool(graph.inputs or graph.nodes), "the graph is empty")
    types = {}
    for weight, leaf in zip(weights, [*graph.inputs[inputs:], *[None] * (len(weights) - read)]):
        array = arrays[weight["name"]]
        types[weight["name"]] = made = Type(array.shape, _dtype_of(array, weight["name"]))
        wanted = made if leaf is None else leaf.type
        _require(wanted is made, f"weight {weight['name']!r} is {made}; the graph takes {wanted}")
    further = range(len(record["outputs"]), len(graph.outputs))
    for rebind in rebinds:
        fine = _are_positions(rebind, range(inputs), further)
        _require(fine, f"the rebind {rebind!r} names no input and output")
    for effect in effects:
        fine = _are_positions(effect, range(len(weights)), further)
        _require(fine, f"the effect {effect!r} names no weight and output")
        made = types[weights[effect[0]]["name"]]
        is_same = graph.outputs[effect[1]].type is made
        _require(is_same, f"the effect {effect!r} gives a weight another type than {made}")


def _dtype_of(array: np.ndarray, name: str) -> Any:
    """Return the dtype of a weight; FileFormatError where mge has none like it."""
    try:
        return as_dtype(array.dtype)
    except DTypeError:
        raise FileFormatError(
            f"weight {name!r} has dtype {array.dtype}, which mge does not have"
        ) from None


def _are_positions(value: Any, *allowed: range) -> bool:
    """Whether a value is a list of whole numbers, one from each of ``allowed``."""
    if not isinstance(value, list) or len(value) != len(allowed):
        return False
    return all(type(i) is int and i in numbers for i, numbers in zip(value, allowed))


def _are_names(values: list[Any]) -> bool:
    return all(isinstance(v, str) and v for v in values) and len(set(values)) == len(values)


def _require(is_true: bool, rule: str) -> None:
    if not is_true:
        raise FileFormatError(f"record: {rule}")
