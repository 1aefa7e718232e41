"""Dumping: a traced function becomes one safetensors file.

In: a ``trace`` that has run. Out: a file with weights and the graph's text; ``trace.dump``.
After ``anybatch``; before ``modelfile``, which reads it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .anybatch import FixedBatch, any_batch, with_slow_weights
from .archive import NotPlain, to_json, write_archive
from .debug import debug
from .errors import ArgumentError, FileFormatError, InternalError, MgeError, TraceError, user_place
from .graph import Graph, Node
from .modelrecord import FORMAT, VERSION, Port, Slot, check_record
from .run import eval as evaluate_tensors
from .tensor import Parameter, Tensor
from .text import print_graph
from .trace import trace
from .traced import Traced
from .tree import flatten, unflatten

__all__ = ["DumpInfo", "dump"]


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
    """Write the last run to a file, which ``mge.load_model`` reads on any device.

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
    >>> from mge.jit import trace
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
        raise ArgumentError(
            "dump: append is True; one file holds one model", hint="write another file"
        ).add_place(user_place())
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
        left = [
            h
            for h, kind, output in entry.effects
            if kind == "grad" and not (output is None and id(h) in without)
        ]
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
        self.tensor_leaves: list[int] = []  # positions among the leaves of those that are inputs
        for i, leaf in enumerate(leaves):
            is_number = type(leaf) in (int, float) and i not in self.traced._static
            if isinstance(leaf, (Tensor, np.ndarray)) or is_number:
                slots.append(Slot("input", count))
                self.tensor_leaves.append(i)
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
        leaves = [
            Slot("output", value) if is_tensor else value for is_tensor, value in entry.results
        ]
        value = unflatten(entry.form, leaves)
        numbers = [v for is_tensor, v in entry.results if is_tensor]
        self.output_names = [f"output{i}" for i in range(len(numbers))]
        if isinstance(value, dict):
            self._name_slots(value, "", self.output_names)
        self.output_names = _different(self.output_names)
        return self._tree(value, "the result")

    def _tree(self, value: Any, name: str) -> Any:
        return _plain(
            _without_classes(value), name, self.where, lambda leaf: {leaf.kind: leaf.number}
        )

    def _name_slots(self, value: Any, name: str, names: list[str]) -> None:
        """Give each slot in a tree the path to it as its name."""
        if isinstance(value, Slot):
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
        if (
            len(names) != len(old)
            or len(set(names)) != len(names)
            or not all(isinstance(n, str) and n for n in names)
        ):
            raise ArgumentError(
                f"{self.where}: {what} is {names}; it must give {len(old)} different names, for {old}"
            )
        return names

    def _renamed(self, arg_names: Any) -> list[dict[str, Any]]:
        if arg_names is None:
            return self.parameters
        names = self._checked("arg_names", list(arg_names), self.input_names)
        self.input_names = names
        return [
            {**p, "name": names[p["tree"]["input"]]}
            if isinstance(p["tree"], dict) and "input" in p["tree"]
            else p
            for p in self.parameters
        ]

    def _rebinds(self) -> list[list[int | None]]:
        """Return (input, output) of each argument whose handle the function rebinds, as ``x += 1`` does."""
        numbers = {leaf: i for i, leaf in enumerate(self.tensor_leaves)}
        return [[numbers[h], o] for h, kind, o in self.entry.effects if kind == "argument"]

    # The file.

    def file(
        self, dynamic_batch: bool | Sequence[str]
    ) -> tuple[dict[str, Any], dict[str, np.ndarray], DumpInfo]:
        """Return the record, the weights and what to tell the caller."""
        entry = self.entry
        weights, arrays, effects = self._weights()
        slow = [w["kind"] != "state" for w in weights]
        text = concrete = print_graph(with_slow_weights(entry.graph, entry.arguments, slow))
        batch: dict[str, Any] = {"size": None, "inputs": [], "fixed_because": None}
        if dynamic_batch:
            try:
                text, batch = self._generalised(text, dynamic_batch, slow)
            except FixedBatch as reason:
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
            "rebinds": self._rebinds(),
            "batch": batch,
            "user_info": None,
        }
        try:
            again = check_record(record, arrays, entry.device)
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

    def _generalised(
        self, text: str, chosen: bool | Sequence[str], slow: list[bool]
    ) -> tuple[str, dict[str, Any]]:
        """Return one text for all batch sizes, and which inputs grow."""
        numbers: list[int] | None = None
        if not isinstance(chosen, bool):
            names = [chosen] if isinstance(chosen, str) else list(chosen)
            unknown = sorted(set(names) - set(self.input_names))
            if unknown:
                raise ArgumentError(
                    f"{self.where}: dynamic_batch names {unknown[0]!r}; the inputs are {self.input_names}"
                )
            numbers = [i for i, name in enumerate(self.input_names) if name in names]
        general, size, growing = any_batch(self.traced, self.entry, text, numbers, slow)
        return general, {"size": size, "inputs": growing, "fixed_because": None}

    def _weights(self) -> tuple[list[dict[str, Any]], dict[str, np.ndarray], list[list[int]]]:
        """Return the weights in order, their arrays by name, and (weight, output) of each effect.

        Weights past those that the graph takes are only written, never read.
        """
        entry = self.entry
        changed = [(h, o) for h, kind, o in entry.effects if kind == "value" and o is not None]
        captured = [
            what if kind == "value" else Tensor.from_node(what) for what, kind in entry.captured
        ]
        captured += [h for h, _ in changed if not any(h is c for c in captured)]
        evaluate_tensors(*captured)
        known = _module_names(self.traced.function, self.entry.example[1])
        names: list[str] = []
        kinds = []
        for i, tensor in enumerate(captured):
            names.append(_new_name(known.get(id(tensor)) or tensor.name or f"w{i}", names))
            is_state = not tensor._slow and any(tensor is h for h, _ in changed)
            kinds.append(
                "parameter" if isinstance(tensor, Parameter) else "state" if is_state else "buffer"
            )
        arrays = {name: np.array(t.numpy()) for name, t in zip(names, captured)}
        position = {id(t): i for i, t in enumerate(captured)}
        weights = [{"name": name, "kind": kind} for name, kind in zip(names, kinds)]
        return weights, arrays, [[position[id(h)], output] for h, output in changed]


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
        return [(f"arg{i}", a, True) for i, a in enumerate(args)] + [
            (k, v, False) for k, v in kwargs.items()
        ]
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
    modules = {
        id(v): (name, v)
        for name, v in found.items()
        if not isinstance(v, type) and hasattr(v, "named_tensors")
    }
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
        to_json(leaves, "", lambda leaf, path: 0 if isinstance(leaf, Slot) else NotImplemented)
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
        return to_json(
            value, name, lambda v, path: leaf(v) if isinstance(v, Slot) else NotImplemented
        )
    except NotPlain as error:
        raise TraceError(
            f"{where}: {error.path} is a {type(error.value).__name__}; files hold tensors, arrays, numbers, texts, "
            "bytes, bools, None, and dicts, lists and tuples of them"
        ) from None


trace.dump = dump
