"""Graphs as nodes: calls, gradients that the user defined, and Python at execution.

In: graphs as attributes. Out: the ops ``call``, ``custom``, ``host_call``.
After ``grad``; before ``flow``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .capture import inline
from .dtype import as_dtype
from .errors import ArgumentError, DTypeError, ShapeError
from .grad import graph_gradient
from .graph import GET, Graph
from .op import OPS, op
from .ops import create
from .parse import parse_graph
from .types import Type, parse_type

if TYPE_CHECKING:
    from .tensor import Tensor

PRIVATE = ("call", "custom", "host_call")
FUNCTIONS = ("host_call",)


def run_reference(graph: Graph, inputs: Sequence[np.ndarray]) -> list[Any]:
    """Run a graph by the references of its ops; results are dense arrays."""
    values: dict[Any, Any] = dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes:
        if node.sig.op is GET:
            values[node] = values[node.inputs[0]][node.sig.attrs[0][1]]
        else:
            outputs = [np.empty(t.shape, t.dtype.dtype) for t in node.sig.types]
            kernel = node.sig.device.host_kernel(node.sig)
            kernel([values[i] for i in node.inputs], outputs, None)
            values[node] = outputs[0] if node.sig.single else tuple(outputs)
    return [values[o] for o in graph.outputs]


def check_graph(name: str, graph: Graph, inputs: Sequence[Tensor | Type]) -> None:
    wanted = [n.type for n in graph.inputs]
    if list(inputs) != wanted:
        same_shapes = [x.shape for x in inputs] == [t.shape for t in wanted]
        raise (DTypeError if same_shapes else ShapeError)(
            f"{name}: the inputs are {list(inputs)}; the graph takes {wanted}"
        )


@op(base=True, name="call")
def _call(*inps: Tensor, graph: Graph) -> Tensor:
    """Run a graph on the inputs.

    ``y = graph(*inps)``

    Parameters
    ----------
    *inps
        One tensor for each input of the graph.
    graph : Graph

    Returns
    -------
    The outputs of the graph.

    Raises
    ------
    ShapeError, DTypeError
        The types of the inputs differ from those of the graph.

    Examples
    --------
    >>> from mge.op import OPS
    >>> double = mge.parse_graph("graph(%0: f32[2]) { %1: f32[2] = add(%0, %0) return %1 }")
    >>> OPS["call"](tensor([1.0, 2.0]), graph=double)
    Tensor([2., 4.], dtype=float32, device=ref:0)
    """
    check_graph("call", graph, inps)
    return tuple(o.type for o in graph.outputs)


@_call.reference
def _(*inps, graph):
    results = run_reference(graph, inps)
    return results[0] if len(results) == 1 else tuple(results)


@_call.gradient
def _(dy, y, *inps, graph):

    dys = dy if isinstance(dy, tuple) else (dy,)
    return graph_gradient(graph, inps, dys)


@_call.samples
def _(rng):
    graph = (
        "graph(%0: f64[2, 3], %1: f64[3]) "
        "{ %2: f64[2, 3] = mul(%0, %1) %3: f64[3] = sum(%2) {axis=0, keepdims=False} "
    )
    yield (
        (rng.normal(size=(2, 3)), rng.normal(size=3)),
        {"graph": parse_graph(graph + "return %3, %2 }")},
    )
    yield (
        (rng.normal(size=(2, 3)), rng.normal(size=3)),
        {"graph": parse_graph(graph + "return %3 }")},
    )


@op(base=True, name="custom")
def _custom(
    *inps: Tensor, backward: Graph, inputs: int, outputs: int, own: tuple[int, ...] = ()
) -> Tensor:
    """Pass results on, with a gradient that the user defined.

    ``y = inps[inputs : inputs + outputs]``

    Parameters
    ----------
    *inps
        The inputs of a ``Function``, then its results, then what its backward reads.
    backward : Graph
        From the gradients of the results, then what it reads, to those of the inputs.
    inputs, outputs : int
        How many of ``inps`` are inputs and results.
    own : tuple of int, default ()
        For each value that ``backward`` reads: which result of this node it is, or -1 for the next of ``inps``.

    Returns
    -------
    The results.

    Raises
    ------
    ArgumentError
        There are fewer inputs than the attributes count.

    Examples
    --------
    >>> from mge.op import OPS
    >>> straight = mge.parse_graph("graph(%0: f32[]) { return %0 }")
    >>> OPS["custom"](tensor(0.3), tensor(1.0), backward=straight, inputs=1, outputs=1)
    Tensor(1., dtype=float32, device=ref:0)
    """
    if inputs < 0 or outputs < 1 or len(inps) < inputs + outputs:
        raise ArgumentError(
            f"custom: {len(inps)} inputs were given for {inputs} inputs and {outputs} results"
        )
    return tuple(inps[inputs : inputs + outputs])


@_custom.reference
def _(*inps, backward, inputs, outputs, own):
    results = inps[inputs : inputs + outputs]
    return results[0] if outputs == 1 else tuple(results)


@_custom.gradient
def _(dy, y, *inps, backward, inputs, outputs, own):
    dys = dy if isinstance(dy, tuple) else (dy,)
    results = inps[inputs : inputs + outputs]
    filled = [
        d if d is not None else create.zeros(r.shape, dtype=r.dtype) for d, r in zip(dys, results)
    ]
    ys = y if isinstance(y, tuple) else (y,)
    others = iter(inps[inputs + outputs :])
    read = [ys[k] if k >= 0 else next(others) for k in own] if own else list(others)
    made = iter(inline(backward, [*filled, *read]))
    return tuple(
        next(made) if i < inputs and x.dtype.is_float else None for i, x in enumerate(inps)
    )


@_custom.samples
def _(rng):
    # y = x * k, given as a result, with the gradient that belongs to it: dy * k.
    backward = parse_graph("graph(%0: f64[3], %1: f64[3]) { %2: f64[3] = mul(%0, %1) return %2 }")
    yield (
        (rng.normal(size=3), rng.normal(size=3), rng.normal(size=3)),
        {"backward": backward, "inputs": 1, "outputs": 1},
    )


@op(base=True, name="host_call", pure=False)
def _host_call(*inps: Tensor, function: Callable, types: tuple[str, ...]) -> Tensor:
    """Run a Python function on NumPy arrays when the graph runs.

    ``y = function(*inps)``

    Parameters
    ----------
    *inps
        Tensors; the function gets read-only arrays.
    function : callable
    types : tuple of str
        The types of the results, as ``"f32[4, 8]"``.

    Returns
    -------
    One tensor for each of ``types``.

    Raises
    ------
    ArgumentError
        A text in ``types`` is no type.

    Examples
    --------
    >>> from mge.op import OPS
    >>> OPS["host_call"](tensor([1.0, 2.0]), function=lambda x: x[::-1].copy(), types=("f32[2]",))
    Tensor([2., 1.], dtype=float32, device=ref:0)
    """
    return tuple(parse_type(t) for t in types)


@_host_call.reference
def _(*inps, function, types):
    results = function(*inps)
    results = results if isinstance(results, (tuple, list)) else (results,)
    wanted = [parse_type(t) for t in types]
    arrays = [np.asarray(r) for r in results]
    if [(a.shape, a.dtype) for a in arrays] != [(t.shape, t.dtype.dtype) for t in wanted]:
        raise ShapeError(
            f"host_call: the function gave {[(a.shape, a.dtype.name) for a in arrays]}; it promised {wanted}"
        )
    return arrays[0] if len(arrays) == 1 else tuple(arrays)


@_host_call.gradient
def _(dy, y, *inps, function, types):
    return (None,) * len(inps)


def _reversed(x: np.ndarray) -> np.ndarray:
    return x[::-1].copy()


@_host_call.samples
def _(rng):
    yield (rng.normal(size=3).astype(np.float32),), {"function": _reversed, "types": ("f32[3]",)}


def host_call(function: Callable, types: Sequence[Any], *inps: Tensor) -> Any:
    """Run a Python function on NumPy arrays when the graph runs.

    ``y = function(*inps)``

    It is called once for each time that the graph runs, is never computed again to save memory, has no gradient,
    and cannot be dumped to a file.

    Parameters
    ----------
    function : callable
        Takes NumPy arrays; returns one array, or a tuple of them.
    types : sequence of (shape, dtype)
        What it returns.
    *inps : tensor

    Returns
    -------
    tensor, or tuple of tensor
        One for each of ``types``.

    Raises
    ------
    ShapeError
        At execution: the function returned other shapes or dtypes than ``types`` says.

    Examples
    --------
    >>> host_call(lambda x: x[::-1].copy(), [((2,), "float32")], tensor([1.0, 2.0]))
    Tensor([2., 1.], dtype=float32, device=ref:0)
    """
    texts = tuple(repr(Type(tuple(shape), as_dtype(dtype))) for shape, dtype in types)
    return OPS["host_call"](*inps, function=function, types=texts)
