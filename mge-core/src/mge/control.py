"""Graphs as nodes: calls, branches, loops, and Python at execution.

In: functions of tensors. Out: the ops ``call``, ``cond``, ``while_loop``, ``custom``, ``host_call``, and the functions
``cond`` and ``while_loop`` that users call.
After ``grad``; before ``discovery``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .capture import as_tensor, capture, inline
from .dtype import as_dtype, bool_, int32
from .errors import ArgumentError, DTypeError, ShapeError, UnsupportedError, user_place
from .grad import gradient_graph, graph_gradient
from .graph import GET, Graph, make_leaf
from .op import OPS, op, record_nodes
from .ops import create
from .types import Type, parse_type

if TYPE_CHECKING:
    from .tensor import Tensor

PRIVATE = ("call", "cond", "while_loop", "custom", "host_call")
FUNCTIONS = ("cond", "while_loop", "host_call")


def run_reference(graph: Graph, inputs: Sequence[np.ndarray]) -> list[Any]:
    """Run a graph by the references of its ops; results are dense arrays."""
    values: dict[Any, Any] = dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes:
        if node.sig.op is GET:
            values[node] = values[node.inputs[0]][node.sig.attrs[0][1]]
        else:
            outputs = [np.empty(t.shape, t.dtype.dtype) for t in node.sig.types]
            node.sig.device.kernel(node.sig)([values[i] for i in node.inputs], outputs, None)
            values[node] = outputs[0] if node.sig.single else tuple(outputs)
    return [values[o] for o in graph.outputs]


def _check_graph(name: str, graph: Graph, inputs: Sequence[Type]) -> None:
    wanted = [n.type for n in graph.inputs]
    if list(inputs) != wanted:
        raise ShapeError(f"{name}: the inputs are {list(inputs)}; the graph takes {wanted}")


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
    ShapeError
        The types of the inputs differ from those of the graph.
    """
    _check_graph("call", graph, inps)
    return tuple(o.type for o in graph.outputs)


@_call.reference
def _(*inps, graph):
    results = run_reference(graph, inps)
    return results[0] if len(results) == 1 else tuple(results)


@_call.gradient
def _(dy, y, *inps, graph):

    dys = dy if isinstance(dy, tuple) else (dy,)
    return graph_gradient(graph, inps, dys)


@op(base=True, name="cond")
def _cond(pred: Tensor, *inps: Tensor, then_graph: Graph, else_graph: Graph) -> Tensor:
    """Run one of two graphs, by the value of a scalar.

    ``y = then_graph(*inps) if pred else else_graph(*inps)``

    Parameters
    ----------
    pred : () bool
    *inps
        The inputs of both graphs.
    then_graph, else_graph : Graph

    Returns
    -------
    The outputs of the graph that ran.

    Raises
    ------
    ShapeError
        ``pred`` is no scalar, or the graphs give different types.
    """
    if pred.shape != () or pred.dtype is not bool_:
        raise ShapeError(f"cond: the predicate is {pred}; it must be one bool, bool[]")
    _check_graph("cond", then_graph, inps)
    _check_graph("cond", else_graph, inps)
    first, second = ([o.type for o in g.outputs] for g in (then_graph, else_graph))
    if first != second:
        raise ShapeError(f"cond: the branches give {first} and {second}; they must give the same types")
    return tuple(first)


@_cond.reference
def _(pred, *inps, then_graph, else_graph):
    results = run_reference(then_graph if pred else else_graph, inps)
    return results[0] if len(results) == 1 else tuple(results)


@_cond.gradient
def _(dy, y, pred, *inps, then_graph, else_graph):

    dys = dy if isinstance(dy, tuple) else (dy,)
    given = tuple(d is not None for d in dys)
    wanted = tuple(i.dtype.is_float for i in inps)
    branches = [gradient_graph(g, given, wanted, zeros=True) for g in (then_graph, else_graph)]
    inputs = (*inps, *(d for d in dys if d is not None))
    outputs = OPS["cond"](pred, *inputs, then_graph=branches[0], else_graph=branches[1])
    outputs = iter(outputs if isinstance(outputs, tuple) else (outputs,))
    return (None, *(next(outputs) if w else None for w in wanted))


@op(base=True, name="while_loop")
def _while_loop(*inps: Tensor, cond_graph: Graph, body_graph: Graph, carried: int, max_trips: int | None = None) -> Tensor:
    """Run a graph again and again while another one says so.

    ``while cond_graph(*carry, *rest): carry = body_graph(*carry, *rest)``

    Parameters
    ----------
    *inps
        The carry, then what both graphs read.
    cond_graph, body_graph : Graph
    carried : int
        How many of the inputs are the carry.
    max_trips : int or None
        The loop stops after that many trips. Needed for a gradient.

    Returns
    -------
    The last carry.

    Raises
    ------
    ShapeError
        The body gives other types than the carry's, or the condition is no single bool.
    """
    _check_graph("while_loop", cond_graph, inps)
    _check_graph("while_loop", body_graph, inps)
    if [o.type for o in cond_graph.outputs] != [Type((), bool_)]:
        raise ShapeError(f"while_loop: the condition gives {[o.type for o in cond_graph.outputs]}; it must give bool[]")
    made, given = [o.type for o in body_graph.outputs], list(inps[:carried])
    if made != given:
        raise ShapeError(f"while_loop: the body gives {made}; the carry is {given}, and both must be the same")
    return tuple(given)


@_while_loop.reference
def _(*inps, cond_graph, body_graph, carried, max_trips):
    carry, rest = list(inps[:carried]), inps[carried:]
    trips = 0
    while (max_trips is None or trips < max_trips) and run_reference(cond_graph, [*carry, *rest])[0]:
        carry = run_reference(body_graph, [*carry, *rest])
        trips += 1
    return carry[0] if carried == 1 else tuple(carry)


@_while_loop.gradient
def _(dy, y, *inps, cond_graph, body_graph, carried, max_trips):
    # Forward once more, keeping the carry of each trip; then the body's gradient over the trips, backwards.
    if max_trips is None:
        raise UnsupportedError(
            "while_loop: a gradient was asked for and the number of trips has no bound", hint="pass max_trips=..."
        )
    return _loop_gradient(dy if isinstance(dy, tuple) else (dy,), inps, cond_graph, body_graph, carried, max_trips)


def _loop_gradient(dys, inps, cond_graph, body_graph, carried, max_trips):

    rest = list(inps[carried:])
    floats = [i for i, x in enumerate(inps) if x.dtype.is_float]
    float_carry = [i for i in floats if i < carried]
    float_rest = [i for i in floats if i >= carried]

    def forward(trip, *values):
        carry, stacks = values[:carried], values[carried:]
        new = inline(body_graph, [*carry, *rest])
        kept = [_put(stack, trip, value) for stack, value in zip(stacks, carry)]
        return (trip + 1, *new, *kept)

    def goes_on(trip, *values):
        return OPS["logical_and"](inline(cond_graph, [*values[:carried], *rest])[0], trip < max_trips)

    stacks = [create.zeros((max_trips, *x.shape), dtype=x.dtype) for x in inps[:carried]]
    start = create.zeros((), dtype=int32)
    trips, *others = while_loop(goes_on, forward, [start, *inps[:carried], *stacks])
    stacks = others[carried:]
    given = tuple(i in float_carry for i in range(carried))
    backward_graph = gradient_graph(body_graph, given, tuple(i in floats for i in range(len(inps))), zeros=True)

    def backward(trip, *values):
        dcarry, dsum = values[: len(float_carry)], values[len(float_carry) :]
        carry = [_take(stack, trip - 1) for stack in stacks]
        made = inline(backward_graph, [*carry, *rest, *dcarry])
        new_rest = [a + b for a, b in zip(dsum, made[len(float_carry) :])]
        return (trip - 1, *made[: len(float_carry)], *new_rest)

    zero = lambda i: create.zeros(inps[i].shape, dtype=inps[i].dtype)  # noqa: E731
    first = [dys[i] if dys[i] is not None else zero(i) for i in float_carry]
    result = while_loop(
        lambda trip, *_: trip > 0, backward, [trips, *first, *[zero(i) for i in float_rest]], max_trips=max_trips
    )
    by_input = dict(zip(float_carry + float_rest, result[1:]))
    return tuple(by_input.get(i) for i in range(len(inps)))


def _take(stack, trip):
    return OPS["index"](stack, trip, axes=(0,))


def _put(stack, trip, value):
    return OPS["index_set"](stack, value, trip, axes=(0,), mode="set")


@op(base=True, name="custom")
def _custom(*inps: Tensor, backward: Graph, inputs: int, outputs: int) -> Tensor:
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

    Returns
    -------
    The results.

    Raises
    ------
    ShapeError
        Never for what ``Function`` records.
    """
    return tuple(inps[inputs : inputs + outputs])


@_custom.reference
def _(*inps, backward, inputs, outputs):
    results = inps[inputs : inputs + outputs]
    return results[0] if outputs == 1 else tuple(results)


@_custom.gradient
def _(dy, y, *inps, backward, inputs, outputs):

    dys = dy if isinstance(dy, tuple) else (dy,)
    results = inps[inputs : inputs + outputs]
    filled = [d if d is not None else create.zeros(r.shape, dtype=r.dtype) for d, r in zip(dys, results)]
    made = iter(inline(backward, [*filled, *inps[inputs + outputs :]]))
    return tuple(next(made) if i < inputs and x.dtype.is_float else None for i, x in enumerate(inps))


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
    """
    return tuple(parse_type(t) for t in types)


@_host_call.reference
def _(*inps, function, types):
    results = function(*inps)
    results = results if isinstance(results, (tuple, list)) else (results,)
    wanted = [parse_type(t) for t in types]
    arrays = [np.asarray(r) for r in results]
    if [(a.shape, a.dtype) for a in arrays] != [(t.shape, t.dtype.dtype) for t in wanted]:
        raise ShapeError(f"host_call: the function gave {[(a.shape, a.dtype.name) for a in arrays]}; it promised {wanted}")
    return arrays[0] if len(arrays) == 1 else tuple(arrays)


@_host_call.gradient
def _(dy, y, *inps, function, types):
    return (None,) * len(inps)


# What users call.


def cond(pred: Tensor, then_function: Callable, else_function: Callable, *operands: Tensor) -> Any:
    """Run one of two functions, by the value of a scalar tensor.

    ``y = then_function(*operands) if pred else else_function(*operands)``

    Parameters
    ----------
    pred : () bool
        Other dtypes count as true where they are not zero.
    then_function, else_function : callable
        Take the operands; both must return tensors of the same types. Both are recorded, one runs.
    *operands : tensor
        Tensors used from outside need not be listed.

    Returns
    -------
    What the function that ran returns.

    Raises
    ------
    ShapeError
        ``pred`` is not a scalar, or the functions return different types.

    Examples
    --------
    >>> x = tensor(2.0)
    >>> cond(x > 1, lambda x: x * 10, lambda x: x - 1, x)
    Tensor(20., dtype=float32, device=ref:0)
    """
    if not hasattr(pred, "_node"):
        return then_function(*operands) if pred else else_function(*operands)
    if pred.dtype is not bool_:
        pred = pred != 0
    device, types = pred.device, [x._node.type for x in operands]
    branches = [capture(f, types, device, "cond") for f in (then_function, else_function)]
    effects = list({id(h): h for b in branches for h, _ in b[2]}.values())
    captured = list(dict.fromkeys([*branches[0][1], *branches[1][1], *(h._node for h in effects)]))
    graphs = [_widened(b, len(types), captured, effects) for b in branches]
    attrs = OPS["cond"].normal_attrs({"then_graph": graphs[0], "else_graph": graphs[1]})
    nodes = [pred._node, *(x._node for x in operands), *captured]
    try:
        sig = OPS["cond"].signature([n.type for n in nodes], attrs, device)
    except ShapeError as error:
        raise error.add_place(user_place()) from None
    return _with_effects(record_nodes(sig, nodes), effects, branches[0][3])


def _widened(branch: tuple, operands: int, captured: list, effects: list) -> Graph:
    """Return a branch's graph with the inputs and outputs that both branches share."""


    graph, own, made, _ = branch
    inputs = list(graph.inputs[:operands])
    by_node = dict(zip(own, graph.inputs[operands:]))
    inputs += [by_node.get(n) or make_leaf(n.type, n.sig.device) for n in captured]
    position = {n: i for i, n in enumerate(captured)}
    results = len(graph.outputs) - len(made)
    new = dict(zip((id(h) for h, _ in made), graph.outputs[results:]))
    outputs = [new.get(id(h)) or inputs[operands + position[h._node]] for h in effects]
    return Graph(tuple(inputs), graph.nodes, (*graph.outputs[:results], *outputs))


def _with_effects(outputs: Any, effects: list, form: Any) -> Any:
    """Split a node's outputs into what the function returned and the new values of the handles it rebound."""
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    results = outputs[: len(outputs) - len(effects)]
    for handle, value in zip(effects, outputs[len(results) :]):
        handle._assign(value)
    return results if form is tuple else results[0]


def while_loop(
    cond_function: Callable, body_function: Callable, carry: Sequence[Tensor], *, max_trips: int | None = None
) -> list[Tensor]:
    """Run a function again and again while a condition on its results holds.

    ``while cond_function(*carry): carry = body_function(*carry)``

    Parameters
    ----------
    cond_function : callable
        Takes the carry, returns one bool.
    body_function : callable
        Takes the carry, returns the next one: the same number of tensors, of the same types.
    carry : sequence of tensor
        The start. Tensors that both functions use from outside need not be in it.
    max_trips : int, optional
        Stop after that many trips. A gradient needs it, and keeps the carry of so many trips.

    Returns
    -------
    list of tensor
        The last carry.

    Raises
    ------
    ShapeError
        The body changes the number or the types of the carry.
    ArgumentError
        The carry is empty.

    Examples
    --------
    >>> while_loop(lambda i, s: i < 4, lambda i, s: (i + 1, s + i), [tensor(0), tensor(0)])
    [Tensor(4, dtype=int32, device=ref:0), Tensor(6, dtype=int32, device=ref:0)]
    """
    if not carry:
        raise ArgumentError("while_loop: the carry is empty; it must hold at least 1 tensor").add_place(user_place())
    start = [as_tensor(x, "while_loop") for x in carry]
    device, types = start[0].device, [x._node.type for x in start]
    body = capture(body_function, types, device, "while_loop")
    test = capture(cond_function, types, device, "while_loop")
    effects = [h for h, _ in body[2]]
    extra = [h._node for h in effects]
    others = [n for n in dict.fromkeys([*body[1], *test[1]]) if n not in extra]
    graphs = []
    for graph, own, _, _ in (test, body):
        by_node = dict(zip(own, graph.inputs[len(types) :]))
        inputs = list(graph.inputs[: len(types)])
        inputs += [by_node.get(n) or make_leaf(n.type, n.sig.device) for n in [*extra, *others]]
        graphs.append(Graph(tuple(inputs), graph.nodes, graph.outputs))
    carried = len(types) + len(effects)
    attrs = OPS["while_loop"].normal_attrs(
        {"cond_graph": graphs[0], "body_graph": graphs[1], "carried": carried, "max_trips": max_trips}
    )
    nodes = [*(x._node for x in start), *extra, *others]
    try:
        if graphs[0].outputs and graphs[0].outputs[0].type.dtype is not bool_:
            raise DTypeError(f"while_loop: the condition gives {graphs[0].outputs[0].type}; it must give one bool")
        sig = OPS["while_loop"].signature([n.type for n in nodes], attrs, device)
    except (ShapeError, DTypeError) as error:
        raise error.add_place(user_place()) from None
    return list(_with_effects(record_nodes(sig, nodes), effects, tuple))


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
