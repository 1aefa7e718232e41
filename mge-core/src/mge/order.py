"""Order: nodes listed so that less is live at once, in place of the order of recording.

In: a graph, and the nodes that overwrite its inputs. Out: the same graph in another order.
After ``schedule``; before ``memory`` and ``plan``, which keeps whichever order takes less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from .graph import Graph, Node, Signature
from .passes.rewrite import collect
from .schedule import origin_of, takes_step


def eased(graph: Graph, overwriting: Mapping[Node, Sequence[Node]]) -> Graph:
    """Return the graph in an order in which less is live.

    A node that frees at least as much as it makes runs as soon as it can: a weight's gradient right after the gradient
    that it comes from. A node that reads nothing but inputs waits for its first reader. A node that overwrites inputs
    runs as soon as nothing else reads these. All others keep their order, and so do ops that are not pure.

    Parameters
    ----------
    graph : Graph
    overwriting : mapping of Node to sequence of Node
        The nodes that no other node reads and that write over inputs of the graph; over which.
    """
    nodes = _List(graph, overwriting).listed()
    constants = [n for n in graph.nodes if n.sig.op.name == "constant"]
    return collect(graph.inputs, graph.outputs, [*constants, *nodes])


def is_repeatable(sig: Signature) -> bool:
    """Whether an op, and each op of a graph among its attributes, may run again."""
    inner = (value for _, value in sig.attrs if isinstance(value, Graph))
    return sig.op.is_pure and all(is_repeatable(n.sig) for graph in inner for n in graph.nodes)


class _List:
    """Nodes and values by number, and what each still waits for."""

    def __init__(self, graph: Graph, overwriting: Mapping[Node, Sequence[Node]]) -> None:
        self.nodes = [n for n in graph.nodes if takes_step(n)]
        ids: dict[tuple[Node, int], int] = {}
        self.maker: list[int] = []  # of each value; -1: an input or constant
        self.nbytes: list[int] = []
        self.readers: list[list[int]] = []

        def number(node: Node, k: int, maker: int) -> int:
            if (node, k) not in ids:
                ids[node, k] = len(ids)
                self.maker.append(maker)
                self.nbytes.append(node.sig.types[k].nbytes)
                self.readers.append([])
            return ids[node, k]

        self.inputs: list[list[int]] = []
        self.outputs: list[list[int]] = []
        for i, node in enumerate(self.nodes):
            read = dict.fromkeys(number(*origin_of(x), -1) for x in node.inputs)
            self.inputs.append(list(read))
            self.outputs.append([number(node, k, i) for k in range(len(node.sig.types))])
            for v in read:
                self.readers[v].append(i)
        self.reads = [len(r) for r in self.readers]  # of each value: readers to come
        self.waits = [sum(self.maker[v] >= 0 for v in read) for read in self.inputs]
        self.results = {ids[origin_of(o)] for o in graph.outputs if origin_of(o) in ids}
        self.is_free = [is_repeatable(n.sig) for n in self.nodes]  # to run anywhere
        self.is_late = [n in overwriting and free for n, free in zip(self.nodes, self.is_free)]
        self.writers: dict[int, int] = {}  # input of the graph -> the node that overwrites it
        for i in (i for i, late in enumerate(self.is_late) if late):
            for v in (ids[x, 0] for x in overwriting[self.nodes[i]]):
                self.writers[v] = i
                self.waits[i] += len(self.readers[v]) - 1
        self.is_done = [False] * len(self.nodes)
        self.order: list[int] = []

    def listed(self) -> list[Node]:
        """Return the nodes in their new order."""
        for i, late in enumerate(self.is_late):
            reads = any(self.maker[v] >= 0 for v in self.inputs[i])
            ends = any(v in self.results or not self.readers[v] for v in self.outputs[i])
            if (reads or ends or not self.is_free[i]) and not late:
                self._run(i)
        for i in range(len(self.nodes)):
            self._run(i)
        return [self.nodes[i] for i in self.order]

    def _run(self, i: int) -> None:
        """Run a node after what it waits for, then all that frees memory."""
        stack, near = [i], list[int]()
        while stack:
            i = stack[-1]
            needed = [self.maker[v] for v in self.inputs[i] if self.maker[v] >= 0]
            needed = [m for m in needed if not self.is_done[m]]
            stack += reversed(needed)
            if not needed:
                stack.pop()
                near += self._finish(i)
        ready = set(near)
        while ready := {r for r in ready if not (self.is_done[r] or self.waits[r])}:
            growth, i = min((self._growth(r), r) for r in ready)
            if growth > 0:
                break
            ready.update(self._finish(i))

    def _finish(self, i: int) -> Iterable[int]:
        """Take a node into the order; return the nodes that this may have made a relief."""
        if self.is_done[i]:
            return
        self.is_done[i] = True
        self.order.append(i)
        for v in self.inputs[i]:
            self.reads[v] -= 1
            if v in self.writers and self.writers[v] != i:
                self.waits[self.writers[v]] -= 1
                yield self.writers[v]
            if self.maker[v] >= 0 and self.reads[v] == 1:
                yield from self.readers[v]
        for v in self.outputs[i]:
            for r in self.readers[v]:
                self.waits[r] -= 1
                yield r

    def _growth(self, i: int) -> float:
        """Return how many bytes more are live after a node than before it; endless where it must keep its place."""
        if not self.is_free[i]:
            return inf
        outputs = () if self.is_late[i] else self.outputs[i]
        made = sum(self.nbytes[v] for v in outputs if self._stays(v))
        gone = (v for v in self.inputs[i] if self.maker[v] >= 0 and self.reads[v] == 1)
        return made - sum(self.nbytes[v] for v in gone if v not in self.results)

    def _stays(self, value: int) -> bool:
        """Whether a value outlives the node that makes it: more reads it than an update that can come at once."""
        later = any(not self.is_late[r] or self.waits[r] > 1 for r in self.readers[value])
        return later or value in self.results
