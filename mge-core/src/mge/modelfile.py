"""Model files as functions: what ``trace.dump`` wrote runs again, on any device.

In: a path or file. Out: ``LoadedModel``.
After ``dump``; before ``serialization``.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

from .archive import check_format, from_json, is_path, read_archive
from .device import as_device
from .dump import DumpInfo, dump
from .errors import (
    ArgumentError,
    DTypeError,
    FileFormatError,
    InternalError,
    MgeError,
    ShapeError,
    user_place,
)
from .graph import Graph, Node, current_recording
from .memory import current_strategy
from .mode import MANAGERS, MODE
from .modelrecord import CLASSES, FORMAT, VERSION, Port, Slot, check_record, leaf_of, no_leaf
from .op import default_device
from .parse import parse_graph
from .run import eval as evaluate_tensors
from .tape import ACTIVE
from .tensor import Tensor, as_array, upload
from .traced import Traced
from .tree import flatten

__all__ = ["DumpInfo", "LoadedModel", "Port", "dump", "load_model"]

KEPT_BATCHES = 32  # graphs of one model, by batch size


class LoadedModel:
    """A model from a file: call it like the function that was dumped.

    Inputs are given by position or by name, in the containers that the function took: tensors, arrays, or numbers.
    It runs by the same plans as the traced function. Its weights are parameters and buffers of its own: they can be
    attached to a GradManager, and state that the function updates is updated here too.

    Parameters
    ----------
    record : dict
        Of the file, checked.
    arrays : dict of str to ndarray
    graph : Graph
        Of the record, at the batch size that was dumped.
    device : Device

    Attributes
    ----------
    inputs, outputs : list of Port
        Name and type of each, at the batch size that was dumped.
    weights : dict of str to Tensor
    user_info : object
    dynamic_batch : bool
        Whether it runs at other batch sizes.
    fixed_because : str or None
        Why it does not, where that was asked for.
    """

    def __init__(
        self, record: dict[str, Any], arrays: dict[str, np.ndarray], graph: Graph, device: Any
    ) -> None:
        self.device, self.graph = device, graph
        self._text: str = record["graph"]
        batch = record["batch"]
        self._size, self._growing, self.fixed_because = (
            batch["size"],
            batch["inputs"],
            batch["fixed_because"],
        )
        self._parameters: list[dict[str, Any]] = record["parameters"]
        count = len(record["inputs"])
        types = [n.type for n in self.graph.inputs]
        self.inputs = [Port(name, type_) for name, type_ in zip(record["inputs"], types)]
        self.outputs = [
            Port(name, node.type) for name, node in zip(record["outputs"], self.graph.outputs)
        ]
        self.user_info = from_json(record["user_info"], no_leaf)
        self.weights: dict[str, Tensor] = {}
        for weight in record["weights"]:
            name = weight["name"]
            self.weights[name] = CLASSES[weight["kind"]].from_node(upload(arrays[name], device))
            self.weights[name].name = name
        handles = list(self.weights.values())
        self._captured = [(h, "value") for h in handles[: len(types) - count]]
        self._effects: list[Any] = [
            (handles[w], "value", output) for w, output in record["effects"]
        ]
        self._effects += [(i, "argument", output) for i, output in record["rebinds"]]
        leaves, self._form = flatten(from_json(record["results"], leaf_of("output")))
        self._results = [(True, v.number) if isinstance(v, Slot) else (False, v) for v in leaves]
        self._entries: OrderedDict[int | None, Traced] = OrderedDict()
        self._entry(self._size)

    @property
    def dynamic_batch(self) -> bool:
        """Whether it runs at other batch sizes."""
        return self._size is not None

    def _entry(self, size: int | None) -> Traced:
        """Return the graph for a batch size, ready to run."""
        entry = self._entries.get(size)
        if entry is None:
            graph = self.graph if size == self._size else self._graph_at(size)
            captured, effects = self._captured, self._effects
            entry = Traced(
                graph, len(self.inputs), captured, effects, self._form, self._results, [], []
            )
            self._entries[size] = entry
            while len(self._entries) > KEPT_BATCHES:
                self._entries.popitem(last=False)
        else:
            self._entries.move_to_end(size)
        return entry

    def _graph_at(self, size: Any) -> Graph:
        try:
            return parse_graph(self._text, self.device, n=size)
        except FileFormatError as error:
            raise ShapeError(
                f"model: it does not run at batch {size}: {str(error).splitlines()[0]}",
                hint=f"batch {self._size} was dumped",
            ) from None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            tensors = self._bind(args, kwargs)
            entry = self._entry(self._batch(tensors))
            nodes = entry.inputs([t._node for t in tensors])
            if not entry.fits(nodes):
                self._refuse(tensors, entry, nodes)
        except MgeError as error:
            raise error.add_place(user_place()) from None
        mode = MODE.get()
        if mode.recording is not None or mode.eager or (ACTIVE and MANAGERS.get()):
            recording = current_recording()
            for handle, _ in self._captured:
                recording.enlist(handle._node, handle)
            result = entry.record(nodes, (tensors, {}))
            if mode.eager and mode.recording is None:
                evaluate_tensors(*[t for t in flatten(result)[0] if isinstance(t, Tensor)])
            return result
        return entry.run(nodes, current_strategy(), (tensors, {}))

    def _batch(self, tensors: list[Tensor]) -> int | None:
        """Return the batch size of a call, or None for a file of one size."""
        if self._size is None:
            return None
        sizes = {tensors[i].shape[:1] for i in self._growing}
        if len(sizes) != 1 or sizes == {()}:
            given = ", ".join(
                f"{self.inputs[i].name}: {tensors[i]._node.type}" for i in self._growing
            )
            raise ShapeError(
                f"model: the inputs are {given}; their leading axes are the batch and must be equal"
            )
        return sizes.pop()[0]

    def _refuse(self, tensors: list[Tensor], entry: Traced, nodes: list[Node]) -> None:
        """Raise the error for inputs of other types than the graph takes."""
        for port, tensor, leaf in zip(self.inputs, tensors, entry.graph.inputs):
            if tensor.dtype is not leaf.type.dtype:
                raise DTypeError(
                    f"model: input {port.name} has dtype {tensor.dtype}; the file takes {leaf.type.dtype}",
                    hint=f'.astype("{leaf.type.dtype}")',
                )
            if tensor.shape != leaf.type.shape:
                fixed = (
                    self._size is None and tensor.ndim and tensor.shape[1:] == leaf.type.shape[1:]
                )
                raise ShapeError(
                    f"model: input {port.name} has shape {tensor.shape}; the file takes {leaf.type.shape}",
                    hint="dump(..., dynamic_batch=True) makes a file for all batch sizes"
                    if fixed
                    else None,
                )
        count = len(tensors)
        for (name, weight), node, leaf in zip(
            self.weights.items(), nodes[count:], entry.graph.inputs[count:]
        ):
            if node.type is not leaf.type or node.sig.device is not self.device:
                raise ShapeError(
                    f"model: weight {name} is {weight._node.type} on {weight.device}; the file takes {leaf.type}"
                )
        raise InternalError(f"model: the inputs are {nodes} and the graph is\n{entry.graph}")

    # Arguments.

    def _bind(self, args: tuple, kwargs: dict[str, Any]) -> list[Tensor]:
        """Return the tensor of each input, in order."""
        places = [p for p in self._parameters if p["positional"]]
        if len(args) > len(places):
            raise ArgumentError(
                f"model: {len(args)} positional arguments are too many", hint=self._signature()
            )
        given = {p["name"]: value for p, value in zip(places, args)}
        for name, value in kwargs.items():
            if name in given or name not in [p["name"] for p in self._parameters]:
                what = "is given twice" if name in given else "is unknown"
                raise ArgumentError(f"model: argument {name!r} {what}", hint=self._signature())
            given[name] = value
        found: list[Any] = [None] * len(self.inputs)
        for parameter in self._parameters:
            name = parameter["name"]
            if name in given:
                self._match(parameter["tree"], given[name], name, found)
            else:
                tree = flatten(from_json(parameter["tree"], leaf_of("input")))[0]
                if any(isinstance(leaf, Slot) for leaf in tree):
                    raise ArgumentError(
                        f"model: argument {name!r} is missing", hint=self._signature()
                    )
        return found

    def _signature(self) -> str:
        return f"model({', '.join(f'{p.name}: {p.type}' for p in self.inputs)})"

    def _match(self, tree: Any, value: Any, name: str, found: list[Any]) -> None:
        """Put the tensors of one argument where they belong; a different container or plain value is an error."""
        kind = next(iter(tree)) if isinstance(tree, dict) else None
        if kind == "input":
            found[tree["input"]] = self._tensor(value, self.inputs[tree["input"]])
        elif isinstance(tree, list) or kind == "tuple":
            parts = tree if kind is None else tree["tuple"]
            if not isinstance(value, (list, tuple)) or len(value) != len(parts):
                raise ArgumentError(
                    f"model: {name} must be a {kind or 'list'} of {len(parts)}; it is {_shown(value)}"
                )
            for i, (part, v) in enumerate(zip(parts, value)):
                self._match(part, v, f"{name}[{i}]", found)
        elif kind == "dict":
            parts = {from_json(k, no_leaf): part for k, part in tree["dict"]}
            if not isinstance(value, dict) or value.keys() != parts.keys():
                raise ArgumentError(
                    f"model: {name} must be a dict with keys {list(parts)}; it is {_shown(value)}"
                )
            for key, part in parts.items():
                self._match(part, value[key], f"{name}[{key!r}]", found)
        else:
            fixed = from_json(tree, no_leaf)
            if type(fixed) is not type(value) or (fixed != value and fixed == fixed):
                raise ArgumentError(
                    f"model: {name} is {_shown(value)}; it was {fixed!r} when the model was dumped, and that is fixed",
                    hint="dump a model for the other value",
                )

    def _tensor(self, value: Any, port: Port) -> Tensor:
        if isinstance(value, Tensor):
            if value.device is not self.device:
                raise ArgumentError(
                    f"model: input {port.name} is on {value.device}; the model is on {self.device}",
                    hint=f'.to("{self.device}")',
                )
            return value
        if type(value) in (int, float) and not port.type.ndim:
            return Tensor.from_node(upload(as_array(value, port.type.dtype), self.device))
        is_same = isinstance(value, np.ndarray) and value.dtype == port.type.dtype
        return Tensor.from_node(
            upload(as_array(value, port.type.dtype if is_same else None), self.device)
        )

    def __repr__(self) -> str:
        inputs = ", ".join(f"{p.name}: {p.type}" for p in self.inputs)
        outputs = ", ".join(f"{p.name}: {p.type}" for p in self.outputs)
        batch = ", any batch size" if self.dynamic_batch else ""
        return f"<model ({inputs}) -> ({outputs}) on {self.device}, {len(self.weights)} weights{batch}>"


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {value._node.type}"
    return f"{value!r:.60} ({type(value).__name__})"


def load_model(path: Any, device: Any = None) -> LoadedModel:
    """Read a model that ``trace.dump`` wrote.

    Parameters
    ----------
    path : path, or file open for reading bytes
    device : str or Device, optional
        Where it runs; by default the default device. The file is the same for all devices.

    Returns
    -------
    LoadedModel

    Raises
    ------
    FileFormatError
        The file is cut off or damaged, is no model, has another version or an unknown op, or its parts do not
        fit together. Nothing of it was used, and no code in it is run.

    Examples
    --------
    >>> import io
    >>> from mge.jit import trace
    >>> @trace
    ... def double(x):
    ...     return x * 2
    >>> file = io.BytesIO()
    >>> _ = double(tensor([1.0, 2.0]))
    >>> _ = double.dump(file)
    >>> _ = file.seek(0)
    >>> load_model(file)(x=tensor([3.0, 4.0]))
    Tensor([6., 8.], dtype=float32, device=ref:0)
    """
    target = default_device() if device is None else as_device(device)
    archive = read_archive(path)
    record = check_format(archive.record, FORMAT, VERSION, path)
    try:
        try:
            graph = check_record(record, archive.arrays, target)
            return LoadedModel(record, archive.arrays, graph, target)
        except (TypeError, KeyError, IndexError, AttributeError) as error:
            raise FileFormatError(
                f"record: its parts do not fit together ({type(error).__name__}: {error})"
            ) from None
    except FileFormatError as error:
        name = repr(str(path)) if is_path(path) else "the file"
        made = FileFormatError(f"{name}: {error.args[0]}", hint=error.hint)
        raise made.add_place(user_place()) from None
