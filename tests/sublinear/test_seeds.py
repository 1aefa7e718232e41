"""Where the search starts: what a minimum cut saves, against all choices; chains, against the known optimum."""

import ctypes
import itertools
import math
import random

import numpy as np
import pytest

from mge.plugin import MemoryRequest, NodeInfo, ValueInfo

native = pytest.importorskip("mge_sublinear.native", reason="mge-sublinear is not installed")


class Graph:
    """Builds a request: value 0 is an input; sizes are multiples of 64 bytes."""

    def __init__(self):
        self.values, self.nodes = [ValueInfo(0, 64, "input", "ref:0", "")], []

    def node(self, phase, inputs, sizes, time_ns=1.0, is_pure=True, pairs=()):
        """Add a node; return its outputs."""
        first = len(self.values)
        for size in sizes:
            self.values.append(ValueInfo(len(self.values), 64 * size, "", "ref:0", ""))
        outputs = tuple(range(first, len(self.values)))
        number = len(self.nodes)
        inplace = tuple((a, outputs[0]) for a in pairs)
        self.nodes.append(
            NodeInfo(number, phase, tuple(inputs), outputs, time_ns, False, 0, is_pure, inplace, phase, "ref:0", None)
        )  # fmt: skip
        return outputs

    def request(self):
        """Return the request, whose last value is its result."""
        self.values[-1] = self.values[-1]._replace(pinned="output")
        return MemoryRequest(self.nodes, self.values, None, {}, 64, lambda steps: 0)


def two_phases(seed):
    """Return a request with a drawn forward phase, whose values some backward nodes read, and the last forward node."""
    rng, graph = random.Random(seed), Graph()
    made, read = [0], []
    for _ in range(rng.randint(3, 7)):
        inputs = rng.sample(made[-4:], min(len(made), rng.randint(1, 2)))
        sizes = [rng.randint(1, 9) for _ in range(rng.choice([1, 1, 2]))]
        outputs = graph.node(
            "forward", inputs, sizes, float(rng.choice([1, 10, 100])), rng.random() < 0.9
        )
        made += outputs
        read.append(rng.sample([*inputs, *outputs], 1))
    turn = len(graph.nodes)
    (gradient,) = graph.node("forward", [made[-1]], [1], is_pure=False)
    for _ in range(20):  # so that the longest gap of each value lies between the phases
        (gradient,) = graph.node("forward", [gradient], [1], is_pure=False)
    for some in reversed(read):
        (gradient,) = graph.node("backward", [gradient, *some], [1])
    return graph.request(), turn


def cost(request, turn, price, is_saved):
    """Return the bytes that stay behind a step plus the price of what is computed again, if these values are saved."""
    maker = {v: node for node in request.nodes for v in node.outputs}
    todo = [v for node in request.nodes[turn + 1 :] for v in node.inputs]
    wanted, again = set(), set()
    while todo:
        v = todo.pop()
        if v in wanted or v not in maker or maker[v].number > turn or not maker[v].is_pure:
            continue
        wanted.add(v)
        if not is_saved(v) and maker[v].number not in again:
            again.add(maker[v].number)
            todo += maker[v].inputs
    bytes_ = sum(request.values[v].nbytes for v in wanted if is_saved(v))
    return bytes_ + sum(int(price * request.nodes[n].time_ns) + 1 for n in again)


@pytest.mark.parametrize("price", [0.01, 1.0, 7.0, 300.0])
def test_a_cut_saves_the_least(price):
    """No choice of the values that stay costs less, in bytes and priced time, than what the cut says."""
    for seed in range(25):
        request, turn = two_phases(seed)
        problem = native.Problem(request)
        hold = np.zeros(len(problem.values), np.int32)
        native.library().mge_sublinear_least_saved(
            ctypes.byref(problem._struct),
            turn,
            ctypes.c_double(price),
            ctypes.c_void_p(hold.ctypes.data),
        )
        kept = {v for v, h in zip(problem.values, hold.tolist()) if h == native.KEEP}
        early = [v for node in request.nodes[:turn] for v in node.outputs]
        every = itertools.chain.from_iterable(
            itertools.combinations(early, k) for k in range(len(early) + 1)
        )
        least = min(cost(request, turn, price, set(some).__contains__) for some in every)
        assert cost(request, turn, price, kept.__contains__) == least, f"seed {seed}"


def fewest_runs(steps, checkpoints):
    """Return how often a chain advances to go back through it step by step (Griewank and Walther 2000, theorem 1)."""
    sweeps = 0
    while math.comb(checkpoints + sweeps, checkpoints) < steps:
        sweeps += 1
    return sweeps * steps - math.comb(checkpoints + sweeps, checkpoints + 1)


def uniform(count):
    """Return a chain of layers of equal size and time, and backward steps that read the layers' inputs in place."""
    graph, v = Graph(), 0
    states = [v]
    for _ in range(count):
        (v,) = graph.node("forward", [v], [1])
        states.append(v)
    gradient = states.pop()
    for state in reversed(states):
        (gradient,) = graph.node("backward", [gradient, state], [1], pairs=[gradient])
    return graph.request()


@pytest.mark.parametrize("count", [24, 64, 150])
def test_plans_for_a_chain_are_near_the_optimum(count):
    """Before any search, within one checkpoint of the fewest runs that any plan needs.

    Of the memory, one value is the gradient; the input of the chain, a further checkpoint, takes none.
    """
    plans = native.Problem(uniform(count)).search(0, 0)
    for units in range(6, 20):
        within = [
            p for p in plans if p.live_bytes <= 64 * units + 64
        ]  # the result lies beside the arena
        runs = min(sum(n < count for n in p.runs) for p in within)
        assert 1 + fewest_runs(count, units + 1) <= runs <= 1 + fewest_runs(count, units - 1), (
            f"{units} values"
        )


def test_a_thousand_layers_are_planned_in_three_sweeps():
    """Checkpoints in several levels: a thirtieth of the memory costs less than two forward phases more."""
    count = 1000
    plans = native.Problem(uniform(count)).search(0, 0)
    runs = min(sum(n < count for n in p.runs) for p in plans if p.live_bytes <= 64 * count // 30)
    assert runs <= 3 * count
