"""Model files: a traced function as one safetensors file, and that file as a function again.

In: a ``trace`` that has run; a path. Out: a file with weights and the graph's text; ``LoadedModel``.
After ``trace``; before the interface layer.

The record of the file has ``graph`` (text; ``n`` in it is the batch size), ``parameters`` and ``results`` (trees as in
``archive.py``, with ``{"input": i}`` and ``{"output": i}``), ``weights`` in the order of the graph's further inputs,
``effects`` (weight, output), ``batch`` and ``user_info``.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .archive import NotPlain, check_format, from_json, is_path, read_archive, to_json, write_archive
from .debug import debug
from .device import as_device
from .dtype import as_dtype
from .errors import ArgumentError, DTypeError, FileFormatError, InternalError, MgeError, ShapeError, TraceError, user_place
from .grad import ACTIVE
from .graph import MANAGERS, MODE, Graph, Node, current_recording, leaf_signature, print_graph
from .memory import current_strategy
from .op import default_device
from .parse import NotAffine, generalised, parse_graph
from .run import eval as evaluate_tensors
from .tensor import ModuleBuffer, Parameter, Tensor, as_array, upload
from .trace import Traced, trace
from .tree import flatten, unflatten
from .types import Type

FORMAT = "mge.model"
VERSION = "1"
KEPT_BATCHES = 32  # graphs of one model, by batch size
_CLASSES = {"parameter": Parameter, "buffer": ModuleBuffer, "state": Tensor}


class Port(NamedTuple):
    """One input or output of a model: its name and type."""

    name: str
    type: Type


class DumpInfo(NamedTuple):
    """What ``dump`` wrote.

    Attributes
    ----------
    inputs, outputs : list of Port
    nodes : int
        Of the graph.
    weight_bytes : int, bytes
    dynamic_batch : bool
    fixed_because : str or None
        Why the file is for one batch size, where another was asked for.
    """

    inputs: list[Port]
    outputs: list[Port]
    nodes: int
    weight_bytes: int
    dynamic_batch: bool
    fixed_because: str | None


IGNORED = frozenset(
    "append_json compat_older_version dump_format enable_metadata input_data input_transform keep_opr_name "
    "keep_opr_priority keep_param_name keep_var_name maxerr model_version no_assert no_change_graph "
    "optimize_for_inference repeat resize_input silent strip_info_file".split()
)


def dump(
    self: trace,
    file: Any,
    *,
    arg_names: Sequence[str] | None = None,
    output_names: str | Sequence[str] | None = None,
    dynamic_batch: bool | Sequence[str] = False,
    user_info: Any = None,
    append: bool = False,
    **options: Any,
) -> DumpInfo:
    """Write the last run of the traced function to a file that ``mge.load_model`` reads on any device.

    Parameters
    ----------
    file : path, or file open for writing bytes
        An old file stays until the new one is complete.
    arg_names : sequence of str, optional
        A name for each input tensor; by default the names of the function's parameters.
    output_names : str or sequence of str, optional
        A name for each output tensor; by default ``"output0"`` and so on, or the keys of a dict.
    dynamic_batch : bool or sequence of str, default False
        Let the file run at any batch size: the leading axis of the first input and of each other input with
        the same size there, or of the inputs named. The function is recorded at other sizes; numbers that differ
        must be ``a*n + b``. If more differs, the file is for one batch size, and says why.
    user_info : plain value, optional
        Kept in the file: nested dicts, lists and tuples of numbers, texts, bytes, bools and None.
    append : bool, default False
        MegEngine's; True is an error, one file holds one model.
    **options
        MegEngine's other arguments are accepted and ignored: %s.
        Its layout flags (``enable_nchw44`` and the like) are an error.

    Returns
    -------
    DumpInfo

    Raises
    ------
    TraceError
        The function never ran, reads or leaves a ``.grad``, calls Python at execution, or takes or returns
        things that a file cannot hold.
    ArgumentError
        A name or option is wrong.

    Notes
    -----
    What the function captured (parameters, buffers, arrays) becomes weights of the file, under the names that the
    module gives them. Tensors that it rebinds, as running statistics, are state: a loaded model updates its own.
    Values read by Python while tracing, and plain arguments, are fixed in the file.

    Examples
    --------
    >>> import io
    >>> @trace
    ... def double(x):
    ...     return x * 2
    >>> file = io.BytesIO()
    >>> _ = double(tensor([1.0, 2.0]))
    >>> double.dump(file).outputs
    [Port(name='output0', type=f32[2])]
    """
    for name in options:
        if name.startswith("enable_"):
            raise ArgumentError(
                f"dump: {name} chooses a layout by hand; layouts are chosen by the device's plugin when a plan is made",
                hint="leave it out",
            ).add_place(user_place())
        if name not in IGNORED:
            raise ArgumentError(f"dump: unknown argument {name!r}").add_place(user_place())
    if append:
        raise ArgumentError("dump: append is True; one file holds one model", hint="write another file").add_place(user_place())
    entry = self.last
    if entry is None:
        raise TraceError(
            f"dump of {self.__name__}: it never ran as a plan, so there is no graph yet"
            + (f" (it runs untraced, after {self._untraced})" if self._untraced else ""),
            hint="call it once with arguments like those to come",
        ).add_place(user_place())
    try:
        record, arrays, info = _Writer(self, entry, arg_names, output_names).file(dynamic_batch)
        record["user_info"] = _plain(user_info, "user_info", "dump")
        written = write_archive(file, record, arrays)
    except MgeError as error:
        raise error.add_place(user_place()) from None
    return info._replace(weight_bytes=written)


dump.__doc__ = (dump.__doc__ or "") % ", ".join(f"``{name}``" for name in sorted(IGNORED))


class _Slot:
    """Stands for an input or output in a tree, where it is a leaf."""

    def __init__(self, kind: str, number: int) -> None:
        self.kind, self.number = kind, number


class _Writer:
    """Turns one recorded run into a record and arrays."""

    def __init__(self, traced: trace, entry: Traced, arg_names: Any, output_names: Any) -> None:
        self.traced, self.entry = traced, entry
        self.where = f"dump of {traced.__name__}"
        self._refuse(entry)
        self.input_names: list[str] = []
        self.output_names: list[str] = []
        self.parameters = self._parameters()
        self.results = self._results()
        self.parameters = self._renamed(arg_names)
        if output_names is not None:
            names = [output_names] if isinstance(output_names, str) else list(output_names)
            self.output_names = self._checked("output_names", names, self.output_names)

    def _refuse(self, entry: Traced) -> None:
        """Raise for what a file cannot hold."""
        without = [id(h) for h in entry.no_grad]
        left = [h for h, kind, output in entry.effects if kind == "grad" and not (output is None and id(h) in without)]
        if left or any(kind == "grad" for _, kind in entry.captured):
            name = (left or [None])[0]
            raise TraceError(
                f"{self.where}: it reads or leaves the .grad of {getattr(name, 'name', None) or 'a tensor'}; "
                "gradients from outside are not part of a file",
                hint="call clear_grad() inside the function, or dump a function that only predicts",
            )
        for node in _all_nodes(entry.graph):
            if any(callable(value) for _, value in node.sig.attrs):
                raise TraceError(
                    f"{self.where}: {node.op.name} at {node.place} calls a Python function at execution, "
                    "which a file cannot hold",
                    hint="use ops of mge.functional there",
                )

    # Arguments and results.

    def _parameters(self) -> list[dict[str, Any]]:
        """Return what the function takes: name, whether it may be given by position, and tree."""
        form, leaves = self.entry.example
        slots: list[Any] = []
        count = 0
        for i, leaf in enumerate(leaves):
            is_number = type(leaf) in (int, float) and i not in self.traced._static
            if isinstance(leaf, (Tensor, np.ndarray)) or is_number:
                slots.append(_Slot("input", count))
                count += 1
            else:
                slots.append(leaf)
        args, kwargs = unflatten(form, slots)
        self.input_names = [""] * count
        made = []
        for name, value, by_position in _bound(self.traced.function, args, kwargs):
            inner, _ = flatten(value)
            if not _is_plain(inner) and len(inner) == 1 and inner[0] is value:
                continue  # a Module, as ``self``: part of the function
            tree = self._tree(value, name)
            self._name_slots(value, name, self.input_names)
            made.append({"name": name, "positional": by_position, "tree": tree})
        self.input_names = _different(self.input_names)
        return made

    def _results(self) -> Any:
        entry = self.entry
        leaves = [_Slot("output", value) if is_tensor else value for is_tensor, value in entry.results]
        value = unflatten(entry.form, leaves)
        numbers = [v for is_tensor, v in entry.results if is_tensor]
        self.output_names = [f"output{i}" for i in range(len(numbers))]
        if isinstance(value, dict):
            self._name_slots(value, "", self.output_names)
        self.output_names = _different(self.output_names)
        return self._tree(value, "the result")

    def _tree(self, value: Any, name: str) -> Any:
        return _plain(_without_classes(value), name, self.where, lambda leaf: {leaf.kind: leaf.number})

    def _name_slots(self, value: Any, name: str, names: list[str]) -> None:
        """Give each slot in a tree the path to it as its name."""
        if isinstance(value, _Slot):
            names[value.number] = name
            return
        items: Iterable = ()
        if isinstance(value, dict):
            items = value.items()
        elif isinstance(value, (tuple, list)):
            items = enumerate(value)
        for key, part in items:
            self._name_slots(part, f"{name}.{key}" if name else str(key), names)

    def _checked(self, what: str, names: list[str], old: list[str]) -> list[str]:
        if len(names) != len(old) or len(set(names)) != len(names) or not all(isinstance(n, str) and n for n in names):
            raise ArgumentError(f"{self.where}: {what} is {names}; it must give {len(old)} different names, for {old}")
        return names

    def _renamed(self, arg_names: Any) -> list[dict[str, Any]]:
        if arg_names is None:
            return self.parameters
        names = self._checked("arg_names", list(arg_names), self.input_names)
        self.input_names = names
        return [
            {**p, "name": names[p["tree"]["input"]]} if isinstance(p["tree"], dict) and "input" in p["tree"] else p
            for p in self.parameters
        ]

    # The file.

    def file(self, dynamic_batch: bool | Sequence[str]) -> tuple[dict[str, Any], dict[str, np.ndarray], DumpInfo]:
        """Return the record, the weights and what to tell the caller."""
        entry = self.entry
        weights, arrays, effects = self._weights()
        slow = [w["kind"] != "state" for w in weights]
        text = concrete = print_graph(_with_slow_weights(entry.graph, entry.arguments, slow))
        batch: dict[str, Any] = {"size": None, "inputs": [], "fixed_because": None}
        if dynamic_batch:
            try:
                text, batch = self._generalised(text, dynamic_batch, slow)
            except _FixedBatch as reason:
                batch["fixed_because"] = str(reason)
                debug.once(f"{self.where}: the file is for one batch size, since {reason}")
        record = {
            "format": FORMAT,
            "version": VERSION,
            "graph": text,
            "inputs": self.input_names,
            "outputs": self.output_names,
            "parameters": self.parameters,
            "results": self.results,
            "weights": weights,
            "effects": effects,
            "batch": batch,
            "user_info": None,
        }
        try:
            again = _check(record, arrays, entry.device)
        except FileFormatError as error:
            raise InternalError(f"{self.where}: the file would not load: {error}") from error
        if print_graph(again) != concrete:
            raise InternalError(f"{self.where}: the text of its graph gives another graph")
        types = [n.type for n in (*entry.graph.inputs, *entry.graph.outputs)]
        info = DumpInfo(
            [Port(n, t) for n, t in zip(self.input_names, types)],
            [Port(n, t) for n, t in zip(self.output_names, types[len(entry.graph.inputs) :])],
            len(entry.graph.nodes),
            0,
            batch["size"] is not None,
            batch["fixed_because"],
        )
        return record, arrays, info

    def _weights(self) -> tuple[list[dict[str, Any]], dict[str, np.ndarray], list[list[int]]]:
        """Return the weights in order, their arrays by name, and (weight, output) of each effect.

        Weights past those that the graph takes are only written, never read.
        """
        entry = self.entry
        changed = [(h, output) for h, kind, output in entry.effects if kind == "value"]
        captured = [what if kind == "value" else Tensor.from_node(what) for what, kind in entry.captured]
        captured += [h for h, _ in changed if not any(h is c for c in captured)]
        evaluate_tensors(*captured)
        known = _module_names(self.traced.function, self.entry.example[1])
        names: list[str] = []
        kinds = []
        for i, tensor in enumerate(captured):
            names.append(_new_name(known.get(id(tensor)) or tensor.name or f"w{i}", names))
            is_state = not tensor._slow and any(tensor is h for h, _ in changed)
            kinds.append("parameter" if isinstance(tensor, Parameter) else "state" if is_state else "buffer")
        arrays = {name: np.array(t.numpy()) for name, t in zip(names, captured)}
        position = {id(t): i for i, t in enumerate(captured)}
        weights = [{"name": name, "kind": kind} for name, kind in zip(names, kinds)]
        return weights, arrays, [[position[id(h)], output] for h, output in changed]

    # Batch sizes.

    def _generalised(self, text: str, chosen: bool | Sequence[str], slow: list[bool]) -> tuple[str, dict[str, Any]]:
        """Record the function at other batch sizes; return one text for all, and which inputs grow."""
        entry = self.entry
        types = [n.type for n in entry.graph.inputs[: entry.arguments]]
        if not isinstance(chosen, bool):
            names = [chosen] if isinstance(chosen, str) else list(chosen)
            unknown = sorted(set(names) - set(self.input_names))
            if unknown:
                raise ArgumentError(f"{self.where}: dynamic_batch names {unknown[0]!r}; the inputs are {self.input_names}")
            growing = [i for i, name in enumerate(self.input_names) if name in names]
        else:
            first = next((t.shape[0] for t in types if t.ndim), None)
            growing = [i for i, t in enumerate(types) if t.ndim and t.shape[0] == first]
        sizes = {types[i].shape[0] if types[i].ndim else None for i in growing}
        if len(sizes) != 1 or None in sizes:
            raise _FixedBatch(f"the leading axes of inputs {growing} are {sorted(map(str, sizes))}; they must be equal")
        (size,) = sizes
        base = max(size, 2)  # at 1, broadcasting may give another graph
        texts = {n: text if n == size else self._text_at(n, growing, slow) for n in (base, base + 1, base + 2)}
        try:
            general = generalised(texts[base], base, texts[base + 1], base + 1)
        except NotAffine as error:
            raise _FixedBatch(str(error)) from None
        for n, wanted in {**texts, size: text}.items():
            try:
                same = print_graph(parse_graph(general, entry.device, n=n)) == wanted
            except FileFormatError:
                same = False
            if not same:
                raise _FixedBatch(f"at batch {n} its graph is not what those of {base} and {base + 1} suggest")
        return general, {"size": size, "inputs": growing, "fixed_because": None}

    def _text_at(self, n: int, growing: list[int], slow: list[bool]) -> str:
        """Return the text of the function's graph at another batch size."""
        entry, (form, leaves) = self.entry, self.entry.example
        resized: list[Any] = []
        count = 0
        for i, leaf in enumerate(leaves):
            is_tensor = isinstance(leaf, (Tensor, np.ndarray))
            if is_tensor and count in growing:
                leaf = _resized(leaf, n)
            count += is_tensor or (type(leaf) in (int, float) and i not in self.traced._static)
            resized.append(leaf)
        args, kwargs = unflatten(form, resized)
        try:
            other = self.traced._trace(args, kwargs)
        except Exception as error:  # of the user's function, which may not take this size
            raise _FixedBatch(f"recording it at batch {n} failed: {str(error).splitlines()[0]}") from error
        same = [k for _, k in other.captured] == [k for _, k in entry.captured]
        same = same and all(_same_source(a, b) for (a, _), (b, _) in zip(entry.captured, other.captured))
        same = same and [(id(h), k, o) for h, k, o in entry.effects] == [(id(h), k, o) for h, k, o in other.effects]
        if not same or other.form != entry.form or other.results != entry.results:
            raise _FixedBatch(f"at batch {n} it uses other tensors, or returns other plain values")
        return print_graph(_with_slow_weights(other.graph, other.arguments, slow))


class _FixedBatch(Exception):
    """The file is for one batch size, for this reason."""


def _same_source(one: Any, other: Any) -> bool:
    """Whether two captured things are one handle, or nodes with equal values."""
    if one is other or not isinstance(one, Node) or not isinstance(other, Node):
        return one is other
    return one.type is other.type and one.buffer.array.tobytes() == other.buffer.array.tobytes()


def _resized(leaf: Any, n: int) -> Any:
    if isinstance(leaf, np.ndarray):
        return np.broadcast_to(np.zeros((), leaf.dtype), (n, *leaf.shape[1:]))
    type_ = Type((n, *leaf.shape[1:]), leaf.dtype)
    return type(leaf).from_node(Node(leaf_signature(type_, leaf.device), (), type_))


def _with_slow_weights(graph: Graph, arguments: int, slow: list[bool]) -> Graph:
    """Return the graph with its weights marked as slow leaves, as they are in a loaded model."""
    new: dict[Node, Node] = {}
    for i, node in enumerate(graph.inputs):
        is_slow = bool(node.sig.attrs) if i < arguments else slow[i - arguments]
        sig = leaf_signature(node.type, node.sig.device, is_slow)
        new[node] = Node(sig, (), node.type)
    for node in graph.nodes:
        new[node] = Node(node.sig, tuple([new[i] for i in node.inputs]), node.type, None, node.code, node.offset)
    inputs = tuple(new[i] for i in graph.inputs)
    return Graph(inputs, tuple(new[i] for i in graph.nodes), tuple(new[o] for o in graph.outputs))


def _all_nodes(graph: Graph) -> Iterator[Node]:
    """Yield the nodes of a graph and of those in its attributes."""
    for node in graph.nodes:
        yield node
        for _, value in node.sig.attrs:
            if isinstance(value, Graph):
                yield from _all_nodes(value)


def _bound(function: Any, args: tuple, kwargs: dict[str, Any]) -> list[tuple[str, Any, bool]]:
    """Return (name, value, by position) of each argument of a call."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return [(f"arg{i}", a, True) for i, a in enumerate(args)] + [(k, v, False) for k, v in kwargs.items()]
    result = []
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            result += [(f"{name}{i}", v, True) for i, v in enumerate(value)]
        elif kind is inspect.Parameter.VAR_KEYWORD:
            result += [(k, v, False) for k, v in value.items()]
        else:
            result.append((name, value, kind is not inspect.Parameter.KEYWORD_ONLY))
    return result


def _module_names(function: Any, leaves: list[Any]) -> dict[int, str]:
    """Return the dotted names, by id, of tensors in the modules that a function uses."""
    found: dict[str, Any] = {}
    while hasattr(function, "__wrapped__") or hasattr(function, "func"):
        function = getattr(function, "__wrapped__", None) or function.func
    owner = getattr(function, "__self__", None)
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is not None:
        variables = getattr(function, "__globals__", {})
        found.update({name: variables[name] for name in code.co_names if name in variables})
        for name, cell in zip(code.co_freevars, function.__closure__ or ()):
            try:
                found[name] = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
    found.update({f"arg{i}": leaf for i, leaf in enumerate([owner, *leaves])})
    modules = {id(v): (name, v) for name, v in found.items() if not isinstance(v, type) and hasattr(v, "named_tensors")}
    names: dict[int, str] = {}
    for variable, module in modules.values():
        prefix = f"{variable}." if len(modules) > 1 else ""
        for name, tensor in module.named_tensors():
            names.setdefault(id(tensor), prefix + name)
    for name, value in found.items():
        if isinstance(value, Tensor):
            names.setdefault(id(value), name)
    return names


def _new_name(name: str, taken: Sequence[str]) -> str:
    """Return the name, with a number where it is taken."""
    made, number = name, 1
    while made in taken or made == "__metadata__":
        made, number = f"{name}.{number}", number + 1
    return made


def _different(names: list[str]) -> list[str]:
    """Return the names, with a number where one is empty or there already."""
    made: list[str] = []
    for name in names:
        made.append(_new_name(name or "value", made))
    return made


def _is_plain(leaves: list[Any]) -> bool:
    try:
        to_json(leaves, "", lambda leaf, path: 0 if isinstance(leaf, _Slot) else NotImplemented)
    except NotPlain:
        return False
    return True


def _without_classes(tree: Any) -> Any:
    """Return a tree in which named tuples are tuples and all dicts are plain."""
    if isinstance(tree, dict):
        return {k: _without_classes(v) for k, v in tree.items()}
    if isinstance(tree, (tuple, list)):
        return (list if isinstance(tree, list) else tuple)(map(_without_classes, tree))
    return tree


def _plain(value: Any, name: str, where: str, leaf: Any = lambda leaf: NotImplemented) -> Any:
    """Return a tree in JSON, or raise an error that names what does not go into a file."""
    try:
        return to_json(value, name, lambda v, path: leaf(v) if isinstance(v, _Slot) else NotImplemented)
    except NotPlain as error:
        raise TraceError(
            f"{where}: {error.path} is a {type(error.value).__name__}; files hold tensors, arrays, numbers, texts, "
            "bytes, bools, None, and dicts, lists and tuples of them"
        ) from None


trace.dump = dump  # type: ignore[attr-defined]


# Loading.


class LoadedModel:
    """A model from a file: call it like the function that was dumped.

    Inputs are given by position or by name, in the containers that the function took: tensors, arrays, or numbers.
    It runs by the same plans as the traced function. Its weights are parameters and buffers of its own: they can be
    attached to a GradManager, and state that the function updates is updated here too.

    Attributes
    ----------
    inputs, outputs : list of Port
        Name and type of each, at the batch size that was dumped.
    weights : dict of str to Tensor
    user_info : object
    graph : Graph
    device : Device
    dynamic_batch : bool
        Whether it runs at other batch sizes.
    fixed_because : str or None
        Why it does not, where that was asked for.
    """

    def __init__(self, record: dict[str, Any], arrays: dict[str, np.ndarray], graph: Graph, device: Any) -> None:
        self.device, self.graph = device, graph
        self._text: str = record["graph"]
        batch = record["batch"]
        self._size, self._growing, self.fixed_because = batch["size"], batch["inputs"], batch["fixed_because"]
        self._parameters: list[dict[str, Any]] = record["parameters"]
        count = len(record["inputs"])
        types = [n.type for n in self.graph.inputs]
        self.inputs = [Port(name, type_) for name, type_ in zip(record["inputs"], types)]
        self.outputs = [Port(name, node.type) for name, node in zip(record["outputs"], self.graph.outputs)]
        self.user_info = from_json(record["user_info"], _no_leaf)
        self.weights: dict[str, Tensor] = {}
        for weight in record["weights"]:
            name = weight["name"]
            self.weights[name] = _CLASSES[weight["kind"]].from_node(upload(arrays[name], device))
            self.weights[name].name = name
        handles = list(self.weights.values())
        self._captured = [(h, "value") for h in handles[: len(types) - count]]
        self._effects: list[Any] = [(handles[w], "value", output) for w, output in record["effects"]]
        leaves, self._form = flatten(from_json(record["results"], _leaf_of("output")))
        self._results = [(True, v.number) if isinstance(v, _Slot) else (False, v) for v in leaves]
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
            entry = Traced(graph, len(self.inputs), captured, effects, self._form, self._results, [], [])  # type: ignore[arg-type]
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
                f"model: it does not run at batch {size}: {str(error).splitlines()[0]}", hint=f"batch {self._size} was dumped"
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
            result = entry.record(nodes)
            if mode.eager and mode.recording is None:
                evaluate_tensors(*[t for t in flatten(result)[0] if isinstance(t, Tensor)])
            return result
        return entry.run(nodes, current_strategy())

    def _batch(self, tensors: list[Tensor]) -> int | None:
        """Return the batch size of a call, or None for a file of one size."""
        if self._size is None:
            return None
        sizes = {tensors[i].shape[:1] for i in self._growing}
        if len(sizes) != 1 or sizes == {()}:
            given = ", ".join(f"{self.inputs[i].name}: {tensors[i]._node.type}" for i in self._growing)
            raise ShapeError(f"model: the inputs are {given}; their leading axes are the batch and must be equal")
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
                fixed = self._size is None and tensor.ndim and tensor.shape[1:] == leaf.type.shape[1:]
                raise ShapeError(
                    f"model: input {port.name} has shape {tensor.shape}; the file takes {leaf.type.shape}",
                    hint="dump(..., dynamic_batch=True) makes a file for all batch sizes" if fixed else None,
                )
        for (name, weight), node, leaf in zip(self.weights.items(), nodes[len(tensors) :], entry.graph.inputs[len(tensors) :]):
            if node.type is not leaf.type or node.sig.device is not self.device:
                raise ShapeError(f"model: weight {name} is {weight._node.type} on {weight.device}; the file takes {leaf.type}")
        raise InternalError(f"model: the inputs are {nodes} and the graph is\n{entry.graph}")

    # Arguments.

    def _bind(self, args: tuple, kwargs: dict[str, Any]) -> list[Tensor]:
        """Return the tensor of each input, in order."""
        places = [p for p in self._parameters if p["positional"]]
        if len(args) > len(places):
            raise ArgumentError(f"model: {len(args)} positional arguments are too many", hint=self._signature())
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
                tree = flatten(from_json(parameter["tree"], _leaf_of("input")))[0]
                if any(isinstance(leaf, _Slot) for leaf in tree):
                    raise ArgumentError(f"model: argument {name!r} is missing", hint=self._signature())
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
                raise ArgumentError(f"model: {name} must be a {kind or 'list'} of {len(parts)}; it is {_shown(value)}")
            for i, (part, v) in enumerate(zip(parts, value)):
                self._match(part, v, f"{name}[{i}]", found)
        elif kind == "dict":
            parts = {from_json(k, _no_leaf): part for k, part in tree["dict"]}
            if not isinstance(value, dict) or value.keys() != parts.keys():
                raise ArgumentError(f"model: {name} must be a dict with keys {list(parts)}; it is {_shown(value)}")
            for key, part in parts.items():
                self._match(part, value[key], f"{name}[{key!r}]", found)
        else:
            fixed = from_json(tree, _no_leaf)
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
        return Tensor.from_node(upload(as_array(value, port.type.dtype if is_same else None), self.device))

    def __repr__(self) -> str:
        inputs = ", ".join(f"{p.name}: {p.type}" for p in self.inputs)
        outputs = ", ".join(f"{p.name}: {p.type}" for p in self.outputs)
        batch = ", any batch size" if self.dynamic_batch else ""
        return f"<model ({inputs}) -> ({outputs}) on {self.device}, {len(self.weights)} weights{batch}>"


def _shown(value: Any) -> str:
    return f"{value!r:.60} ({type(value).__name__})" if not isinstance(value, Tensor) else f"a tensor {value._node.type}"


def _no_leaf(key: str, inside: Any) -> Any:
    raise FileFormatError(f"record: found {key!r}, which has no place there")


def _leaf_of(kind: str) -> Any:
    def leaf(key: str, inside: Any) -> _Slot:
        return _Slot(kind, inside) if key == kind and type(inside) is int else _no_leaf(key, inside)

    return leaf


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
            graph = _check(record, archive.arrays, target)
            return LoadedModel(record, archive.arrays, graph, target)
        except (TypeError, KeyError, IndexError, AttributeError) as error:
            raise FileFormatError(f"record: its parts do not fit together ({type(error).__name__}: {error})") from None
    except FileFormatError as error:
        name = repr(str(path)) if is_path(path) else "the file"
        made = FileFormatError(f"{name}: {error.args[0]}", hint=error.hint)
        raise made.add_place(user_place()) from None


def _check(record: dict[str, Any], arrays: dict[str, np.ndarray], device: Any) -> Graph:
    """Return the graph of a record; raise FileFormatError unless all parts are there and fit together."""
    kinds = {
        "graph": str, "inputs": list, "outputs": list, "parameters": list, "weights": list, "effects": list, "batch": dict,
    }  # fmt: skip
    for key, kind in kinds.items():
        _require(type(record.get(key)) is kind, f"{key!r} must be a {kind.__name__}")
    _require("results" in record and "user_info" in record, "'results' and 'user_info' must be there")
    batch = record["batch"]
    size, growing = batch.get("size"), batch.get("inputs")
    _require(size is None or (type(size) is int and 0 <= size < 1 << 48), f"the batch size is {size!r}")
    _require("fixed_because" in batch and isinstance(batch["fixed_because"], (str, type(None))), "'batch' lacks a reason")
    inputs, outputs = record["inputs"], record["outputs"]
    _require(_are_names([*inputs]) and _are_names([*outputs]), "inputs and outputs must have different names")
    _require(
        isinstance(growing, list) and all(type(i) is int and 0 <= i < len(inputs) for i in growing)
        and bool(growing) == (size is not None),
        f"the inputs of the batch are {growing!r}",
    )  # fmt: skip
    graph = parse_graph(record["graph"], device, n=size)
    weights = record["weights"]
    fine = all(isinstance(w, dict) and isinstance(w.get("name"), str) and w.get("kind") in _CLASSES for w in weights)
    _require(fine and _are_names([w["name"] for w in weights]), "each weight must have a name and a kind")
    _require({w["name"] for w in weights} == set(arrays), "the weights named are not those in the file")
    _check_graph(record, graph, arrays)
    slots: list[int] = []
    names = []
    for p in record["parameters"]:
        _require(isinstance(p, dict) and set(p) == {"name", "positional", "tree"}, "a parameter has name, positional and tree")
        _require(type(p["positional"]) is bool, "a parameter is positional or not")
        names.append(p["name"])
        leaves = flatten(from_json(p["tree"], _leaf_of("input")))[0]
        slots += [leaf.number for leaf in leaves if isinstance(leaf, _Slot)]
    _require(_are_names(names), "parameters must have different names")
    _require(sorted(slots) == list(range(len(inputs))), f"the parameters hold inputs {slots}; each must be there once")
    leaves = flatten(from_json(record["results"], _leaf_of("output")))[0]
    slots = [leaf.number for leaf in leaves if isinstance(leaf, _Slot)]
    _require(sorted(slots) == list(range(len(outputs))), f"the results hold outputs {slots}; each must be there once")
    return graph


def _check_graph(record: dict[str, Any], graph: Graph, arrays: dict[str, np.ndarray]) -> None:
    """Raise FileFormatError unless the graph fits its inputs, weights and effects."""
    inputs, weights, effects = len(record["inputs"]), record["weights"], record["effects"]
    read = len(graph.inputs) - inputs
    _require(0 <= read <= len(weights), f"the graph takes {len(graph.inputs)} inputs; the file has {inputs} and {len(weights)} weights")
    _require(
        len(graph.outputs) == len(record["outputs"]) + len(effects),
        f"the graph has {len(graph.outputs)} outputs; the file has {len(record['outputs'])} and {len(effects)} effects",
    )
    _require(bool(graph.inputs or graph.nodes), "the graph is empty")
    types = {}
    for weight, leaf in zip(weights, [*graph.inputs[inputs:], *[None] * (len(weights) - read)]):
        array = arrays[weight["name"]]
        types[weight["name"]] = made = Type(array.shape, _dtype_of(array, weight["name"]))
        _require(leaf is None or leaf.type is made, f"weight {weight['name']!r} is {made}; the graph takes {leaf and leaf.type}")
    for effect in effects:
        fine = isinstance(effect, list) and len(effect) == 2 and all(type(i) is int for i in effect)
        fine = fine and 0 <= effect[0] < len(weights) and len(record["outputs"]) <= effect[1] < len(graph.outputs)
        _require(fine, f"the effect {effect!r} names no weight and output")
        made = types[weights[effect[0]]["name"]]
        _require(graph.outputs[effect[1]].type is made, f"the effect {effect!r} gives a weight another type than {made}")


def _dtype_of(array: np.ndarray, name: str) -> Any:
    """Return the dtype of a weight; FileFormatError where mge has none like it."""
    try:
        return as_dtype(array.dtype)
    except DTypeError:
        raise FileFormatError(f"weight {name!r} has dtype {array.dtype}, which mge does not have") from None


def _are_names(values: list[Any]) -> bool:
    return all(isinstance(v, str) and v for v in values) and len(set(values)) == len(values)


def _require(is_true: bool, rule: str) -> None:
    if not is_true:
        raise FileFormatError(f"record: {rule}")
