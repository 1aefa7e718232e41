"""Control flow: branches and loops, as ops that hold graphs and as the functions that users call.

In: functions of tensors. Out: ``cond`` and ``while_loop``, records and functions.
After ``control``; before ``discovery``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .capture import as_tensor, capture, inline
from .control import check_graph, run_reference
from .dtype import bool_, int32
from .errors import ArgumentError, DTypeError, ShapeError, UnsupportedError, user_place
from .grad import gradient_graph
from .graph import Graph, make_leaf
from .op import OPS, op, record_nodes
from .ops import create
from .parse import parse_graph
from .types import Type

if TYPE_CHECKING:
    from .tensor import Tensor

PRIVATE = ("cond", "while_loop")
FUNCTIONS = ("cond", "while_loop")


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
    ShapeError, DTypeError
        ``pred`` is no scalar, or the graphs take or give different types.

    Examples
    --------
    >>> from mge.op import OPS
    >>> double = mge.parse_graph("graph(%0: f32[2]) { %1: f32[2] = add(%0, %0) return %1 }")
    >>> same = mge.parse_graph("graph(%0: f32[2]) { return %0 }")
    >>> OPS["cond"](tensor(True), tensor([1.0, 2.0]), then_graph=double, else_graph=same)
    Tensor([2., 4.], dtype=float32, device=ref:0)
    """
    if pred.shape != () or pred.dtype is not bool_:
        raise ShapeError(f"cond: the predicate is {pred}; it must be one bool, bool[]")
    check_graph("cond", then_graph, inps)
    check_graph("cond", else_graph, inps)
    first, second = ([o.type for o in g.outputs] for g in (then_graph, else_graph))
    if first != second:
        raise ShapeError(
            f"cond: the branches give {first} and {second}; they must give the same types"
        )
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


@_cond.samples
def _(rng):
    graphs = {
        "then_graph": parse_graph("graph(%0: f64[3]) { %1: f64[3] = mul(%0, %0) return %1 }"),
        "else_graph": parse_graph("graph(%0: f64[3]) { %1: f64[3] = sin(%0) return %1 }"),
    }
    for pred in (True, False):
        yield (np.array(pred), rng.normal(size=3)), graphs


@op(base=True, name="while_loop")
def _while_loop(
    *inps: Tensor, cond_graph: Graph, body_graph: Graph, carried: int, max_trips: int | None = None
) -> Tensor:
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
    ShapeError, DTypeError
        The body gives other types than the carry's, or the condition is no single bool.

    Examples
    --------
    >>> from mge.op import OPS
    >>> below = mge.parse_graph("graph(%0: f32[], %1: f32[]) { %2: bool[] = less(%0, %1) return %2 }")
    >>> double = mge.parse_graph("graph(%0: f32[], %1: f32[]) { %2: f32[] = add(%0, %0) return %2 }")
    >>> OPS["while_loop"](tensor(1.0), tensor(50.0), cond_graph=below, body_graph=double, carried=1)
    Tensor(64., dtype=float32, device=ref:0)
    """
    check_graph("while_loop", cond_graph, inps)
    check_graph("while_loop", body_graph, inps)
    if [o.type for o in cond_graph.outputs] != [Type((), bool_)]:
        raise ShapeError(
            f"while_loop: the condition gives {[o.type for o in cond_graph.outputs]}; it must give bool[]"
        )
    made, given = [o.type for o in body_graph.outputs], list(inps[:carried])
    if made != given:
        raise ShapeError(
            f"while_loop: the body gives {made}; the carry is {given}, and both must be the same"
        )
    return tuple(given)


@_while_loop.reference
def _(*inps, cond_graph, body_graph, carried, max_trips):
    carry, rest = list(inps[:carried]), inps[carried:]
    trips = 0
    while (max_trips is None or trips < max_trips) and run_reference(cond_graph, [*carry, *rest])[
        0
    ]:
        carry = run_reference(body_graph, [*carry, *rest])
        trips += 1
    return carry[0] if carried == 1 else tuple(carry)


@_while_loop.gradient
def _(dy, y, *inps, cond_graph, body_graph, carried, max_trips):
    # Forward once more, keeping the carry of each trip; then the body's gradient over the trips, backwards.
    if max_trips is None:
        raise UnsupportedError(
            "while_loop: a gradient was asked for and the number of trips has no bound",
            hint="pass max_trips=...",
        )
    return _loop_gradient(
        dy if isinstance(dy, tuple) else (dy,), inps, cond_graph, body_graph, carried, max_trips
    )


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
        return OPS["logical_and"](
            inline(cond_graph, [*values[:carried], *rest])[0], trip < max_trips
        )

    stacks = [create.zeros((max_trips, *x.shape), dtype=x.dtype) for x in inps[:carried]]
    start = create.zeros((), dtype=int32)
    trips, *others = while_loop(
        goes_on, forward, [start, *inps[:carried], *stacks], max_trips=max_trips
    )
    stacks = others[carried:]
    given = tuple(i in float_carry for i in range(carried))
    backward_graph = gradient_graph(
        body_graph, given, tuple(i in floats for i in range(len(inps))), zeros=True
    )

    def backward(trip, *values):
        dcarry, dsum = values[: len(float_carry)], values[len(float_carry) :]
        carry = [_take(stack, trip - 1) for stack in stacks]
        made = inline(backward_graph, [*carry, *rest, *dcarry])
        new_rest = [a + b for a, b in zip(dsum, made[len(float_carry) :])]
        return (trip - 1, *made[: len(float_carry)], *new_rest)

    zero = lambda i: create.zeros(inps[i].shape, dtype=inps[i].dtype)  # noqa: E731
    first = [dys[i] if dys[i] is not None else zero(i) for i in float_carry]
    result = while_loop(
        lambda trip, *_: trip > 0,
        backward,
        [trips, *first, *[zero(i) for i in float_rest]],
        max_trips=max_trips,
    )
    by_input = dict(zip(float_carry + float_rest, result[1:]))
    return tuple(by_input.get(i) for i in range(len(inps)))


def _take(stack, trip):
    return OPS["index"](stack, trip, axes=(0,))


def _put(stack, trip, value):
    return OPS["index_set"](stack, value, trip, axes=(0,), mode="set")


@_while_loop.samples
def _(rng):
    inputs = "graph(%0: i32[], %1: f64[3], %2: f64[3]) { "
    graphs = {
        "cond_graph": parse_graph(
            inputs
            + "%3: i32[] = constant() {data=0x03000000, shape=(), dtype=i32} %4: bool[] = less(%0, %3) return %4 }"
        ),
        "body_graph": parse_graph(
            inputs
            + "%3: i32[] = constant() {data=0x01000000, shape=(), dtype=i32} %4: i32[] = add(%0, %3) "
            "%5: f64[3] = mul(%1, %2) return %4, %5 }"
        ),
    }
    for trips in (5, 2):
        arrays = np.array(0, np.int32), rng.normal(size=3), rng.uniform(0.5, 1.5, 3)
        yield arrays, graphs | {"carried": 2, "max_trips": trips}


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
    cond_function: Callable,
    body_function: Callable,
    carry: Sequence[Tensor],
    *,
    max_trips: int | None = None,
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
        raise ArgumentError(
            "while_loop: the carry is empty; it must hold at least 1 tensor"
        ).add_place(user_place())
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
        {
            "cond_graph": graphs[0],
            "body_graph": graphs[1],
            "carried": carried,
            "max_trips": max_trips,
        }
    )
    nodes = [*(x._node for x in start), *extra, *others]
    try:
        if graphs[0].outputs and graphs[0].outputs[0].type.dtype is not bool_:
            raise DTypeError(
                f"while_loop: the condition gives {graphs[0].outputs[0].type}; it must give one bool"
            )
        sig = OPS["while_loop"].signature([n.type for n in nodes], attrs, device)
    except (ShapeError, DTypeError) as error:
        raise error.add_place(user_place()) from None
    return list(_with_effects(record_nodes(sig, nodes), effects, tuple))
