"""Quantise a model by a plugin's scheme: annotate, observe, convert, check.

In: a model and batches of its inputs. Out: a traced function that runs the converted graph.
After ``trace``; an interface file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .capture import TracedNumber
from .discovery import first_line
from .errors import (
    ArgumentError,
    InternalError,
    PluginContractError,
    UnsupportedError,
    user_place,
)
from .graph import GET, Graph, Node, current_recording
from .memory import current_strategy
from .mode import changed
from .passes.inline import inline_calls
from .passes.verify import verify
from .registry import load
from .tensor import Tensor, as_array, upload
from .trace import trace
from .traced import Traced
from .tree import flatten

__all__ = ["quantize"]


def quantize(
    model: Callable[..., Any], scheme: str, data: Iterable[Any], **config: Any
) -> Callable[..., Any]:
    """Quantise a model after training.

    Parameters
    ----------
    model : callable
        A Module in evaluation mode, a loaded model, or a function of tensors, traced or not.
    scheme : str
        A quantiser by name, as ``"int8"``.
    data : iterable
        Batches of inputs by which ranges are found: each a tensor or array, or a tuple of arguments.
    **config
        What the scheme takes.

    Returns
    -------
    trace
        Takes the arguments of the model by position, and returns what it does. It uses the weights of the model, as
        they are when it runs. ``dump`` writes it to a file.

    Raises
    ------
    PluginNotInstalled
        No installed quantiser has that name.
    ArgumentError
        There is no batch, the model changes state while it runs, or it calls other ops for inputs of other types.
    PluginContractError
        The quantiser raised, or its graph does not hold together or has other inputs or outputs; names it.
    UnsupportedError
        The device refuses the converted graph; says why.
    """
    ask = _Asker(scheme, load("quantizer", scheme))
    try:
        batches = (b if isinstance(b, tuple) else (b,) for b in iter(data))
    except TypeError:
        raise ArgumentError(f"quantize: data is {data!r:.60}; it must give batches") from None
    first = next(batches, None)
    if first is None:
        raise ArgumentError(f'quantize: there is no batch in data; "{scheme}" needs at least one')
    source = _Source(model, first)
    device = source.first.entry.device
    told = getattr(device.backend, "capabilities", None)
    graph = source.first.graph
    plan = ask("annotate", graph, config, told(device.index) if told is not None else {})
    _check_plan(scheme, plan, graph)
    observers = {node: ask("observer", spec) for node, spec in plan.items()}
    for batch in (first, *batches) if observers else ():
        for node, value in source.at(batch).values(list(observers), batch):
            ask("update", value.numpy(), of=observers[node])
    parameters = {node: ask("finalize", of=observer) for node, observer in observers.items()}

    def converted(variant: _Variant) -> Traced:
        twin = variant.twin
        specs, found = ({twin[n]: v for n, v in m.items()} for m in (plan, parameters))
        made = ask("convert", variant.graph, specs, found)
        _check_graph(scheme, made, variant.graph)
        refused = ask("validate", made, device.backend, device.index)
        if isinstance(refused, str) or not (
            isinstance(refused, Sequence) and all(isinstance(reason, str) for reason in refused)
        ):
            text = f'quantiser "{scheme}": validate gave {refused!r:.60}'
            raise PluginContractError(f"{text}; it must give a list of reasons, empty for none")
        if refused:
            text = f'quantize: {device} refuses the graph of quantiser "{scheme}": {refused[0]}'
            raise UnsupportedError("\n  ".join([text, *refused[1:]])).add_place(user_place())
        return variant.traced(made)

    made = trace(_runner(source, converted))
    made(*first)
    return made


class _Asker:
    """Calls methods of a quantiser and of its observers; what they raise is an error that names it."""

    def __init__(self, scheme: str, quantizer: Any) -> None:
        self.scheme, self.quantizer = scheme, quantizer

    def __call__(self, method: str, *arguments: Any, of: Any = None) -> Any:
        try:
            return getattr(self.quantizer if of is None else of, method)(*arguments)
        except (ArgumentError, KeyboardInterrupt):
            raise
        except BaseException as error:  # SystemExit, too: a plugin must not end the program
            text = f'quantiser "{self.scheme}" failed in {method}: {type(error).__name__}: {first_line(error)}'
            raise PluginContractError(text) from error


class _Variant:
    """The graph of a model for inputs of some types.

    Attributes
    ----------
    entry : Traced
        How it was recorded.
    graph : Graph
        Without calls of other graphs.
    twin : dict of Node to Node
        From the nodes of the first variant to those of this one, which are the same calls.
    """

    def __init__(self, entry: Traced, first: Graph | None) -> None:
        self.entry, self.graph = entry, inline_calls(entry.graph)
        nodes = [(*g.inputs, *g.nodes) for g in (first or self.graph, self.graph)]
        ops, again = ([n.op.name for n in row] for row in nodes)
        if ops != again:
            types = ", ".join(str(n.type) for n in self.graph.inputs[: entry.arguments])
            text = (
                f"quantize: for inputs ({types}) the model calls other ops than for the first batch"
            )
            hint = "quantise it for each of them"
            raise ArgumentError(text, hint=hint).add_place(user_place())
        self.twin = dict(zip(*nodes))
        self._watched: Traced | None = None

    def traced(self, graph: Graph) -> Traced:
        """Return a graph in place of this one, ready to run."""
        entry = self.entry
        return Traced(graph, entry.arguments, entry.captured, [], entry.form, entry.results, [], [])

    def values(self, nodes: Sequence[Node], batch: tuple) -> Iterable[tuple[Node, Tensor]]:
        """Return (node, value) for nodes of the first variant, while the graph runs over a batch."""
        if self._watched is None:
            outputs = tuple(self.twin[n] for n in nodes)
            self._watched = self.traced(Graph(self.graph.inputs, self.graph.nodes, outputs))
            self._watched.results = [(True, i) for i in range(len(nodes))]
            self._watched.form, self._watched.single = flatten(nodes)[1], False
            self._watched.returns = len(nodes)
        inputs = self.entry.inputs(_nodes(batch))
        return zip(nodes, self._watched.run(inputs, current_strategy()))


class _Source:
    """A model as graphs, one for inputs of each list of types."""

    def __init__(self, model: Any, first: tuple) -> None:
        self.function = trace(model.function if isinstance(model, trace) else model)
        self._variants: dict[tuple, _Variant] = {}
        self._first: Graph | None = None
        self.first = self.at(first)
        self._first = self.first.graph

    def at(self, arguments: tuple) -> _Variant:
        """Return the graph for arguments of these types."""
        types = tuple(n.type for n in _nodes(arguments))
        found = self._variants.get(types)
        if found is None:
            function = self.function
            entry = function._find(function._key(arguments, {})[0], arguments, {})
            if entry.effects:
                raise ArgumentError(
                    f"quantize: {function.__name__} changes {len(entry.effects)} values while it runs, as in training",
                    hint="model.eval()",
                ).add_place(user_place())
            found = self._variants[types] = _Variant(entry, self._first)
        return found


def _nodes(arguments: tuple) -> list[Node]:
    """Return the node of each argument that is an input of the graph."""
    found = []
    for leaf in flatten((arguments, {}))[0]:
        if isinstance(leaf, TracedNumber):
            found.append(leaf.node)
        elif isinstance(leaf, Tensor) or hasattr(leaf, "__array__"):
            found.append(leaf._node if isinstance(leaf, Tensor) else upload(as_array(leaf)))
    return found


def _check_plan(scheme: str, plan: Any, graph: Graph) -> None:
    if not isinstance(plan, Mapping):
        text = f'quantiser "{scheme}": annotate gave a {type(plan).__name__}'
        raise PluginContractError(f"{text}; it must give a mapping from nodes")
    known = {*graph.inputs, *graph.nodes}
    for node in plan:
        if node not in known or (node.sig.op is not GET and not node.sig.single):
            text = f'quantiser "{scheme}": annotate gave {node!r}'
            raise PluginContractError(f"{text}, which is no value of the graph")


def _check_graph(scheme: str, converted: Any, graph: Graph) -> None:
    text = f'quantiser "{scheme}": convert gave'
    if not isinstance(converted, Graph):
        raise PluginContractError(f"{text} a {type(converted).__name__}, and not a Graph")
    try:
        verify(converted, "convert", graph)
    except InternalError as error:
        raise PluginContractError(f"{text} a wrong graph: {first_line(error)}") from None


def _runner(source: _Source, converted: Callable[[_Variant], Traced]) -> Callable[..., Any]:
    """Return a function that records the converted graph for its arguments as one call."""
    runs: dict[_Variant, Traced] = {}

    def quantized(*args: Any) -> Any:
        variant = source.at(args)
        if variant not in runs:
            with changed(recording=None):  # a quantiser may compute with tensors
                runs[variant] = converted(variant)
        for handle, kind in variant.entry.captured:
            if kind == "value":  # so that who traces knows whose value it is
                current_recording().enlist(handle._node, handle)
        return runs[variant].record(runs[variant].inputs(_nodes(args)))

    quantized.__name__ = quantized.__qualname__ = source.function.__name__
    return quantized
