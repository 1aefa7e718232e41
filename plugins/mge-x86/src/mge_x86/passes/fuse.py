"""Pass ``fuse``: elementwise ops and reductions along rows become loops that read and write memory once.

In: a graph after ``epilogue``. Out: the same with ``x86::chain`` nodes in place of two or more such ops.
After ``epilogue`` and ``loop_rules``.

A unit is a set of nodes over one shape, cut into rows and columns at one axis for all of them. Nodes are taken in
order; each joins the units that it reads from, where shapes allow that and no path leaves the unit and comes back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from mge.graph import GET, Graph, Node
from mge.passes.rewrite import collect, with_inputs
from mge.passes.simplify import constant_value

from ..loops import Loop, number
from .build import RESHAPES, Builder, is_mine
from .loop_rules import RULES

SMALLEST = 2  # ops that are worth a loop
MOST_READ = 8  # full values that a loop reads: they are all in memory at once, as the terms of a long sum need not be


class Unit:
    """One node, or nodes that are to be one loop.

    Attributes
    ----------
    nodes, values : list of Node
        The second with the ``get`` nodes of the first.
    shape : tuple of int or None
        Of its full values; None where it cannot be in a loop. Its other values are one number a row.
    cuts : set of int
        The axes at which the shape may be cut: axes before it count rows, the others columns.
    bits : int
        Its own bits, one for each node.
    before : int
        The bits of all from which a path leads here.
    """

    def __init__(self, node: Node, bits: int, before: int) -> None:
        self.nodes, self.values, self.bits, self.before = [node], [node], bits, before
        self.shape: tuple[int, ...] | None = None
        self.cuts: set[int] = set()


def kind_of(shape: tuple[int, ...], whole: tuple[int, ...], cut: int) -> str | None:
    """Return what a value that broadcasts to ``whole`` is in a loop over it: full, row, column, scalar, or None."""
    shape = (1,) * (len(whole) - len(shape)) + shape
    rows, columns = shape[:cut] == whole[:cut], shape[cut:] == whole[cut:]
    one_row, one_column = math.prod(shape[:cut]) == 1, math.prod(shape[cut:]) == 1
    if rows and columns:
        return "full"
    if one_row and one_column:
        return "scalar"
    if rows and one_column:
        return "row"
    return "column" if one_row and columns else None


def seen_through(node: Node) -> tuple[Node, tuple[int, ...]]:
    """Return what a broadcast or a reshape by axes of size 1 shows, and the shape in which it broadcasts."""
    shape = node.type.shape
    while is_mine(node):
        name = node.sig.op.name
        below = node.inputs[0].type.shape if node.inputs else ()
        if name == "broadcast_to" and shape == node.type.shape:
            shape = below
        elif name not in RESHAPES or [n for n in below if n != 1] != [
            n for n in node.type.shape if n != 1
        ]:
            break
        node = node.inputs[0]
    return node, shape


class _Units:
    """The units of a graph.

    Attributes
    ----------
    of : dict of Node to Unit
        Inputs and constants are in none.
    """

    def __init__(self, graph: Graph) -> None:
        self.place = {n: i for i, n in enumerate(graph.nodes)}
        self.of: dict[Node, Unit] = {}
        self.all: dict[Unit, None] = {}
        for node in graph.nodes:
            if node.sig.op is GET:
                if node.inputs[0] in self.of:
                    self.of[node] = self.of[node.inputs[0]]
                    self.of[node].values.append(node)
            elif node.sig.op.name != "constant":
                self._take(node)

    def _take(self, node: Node) -> None:
        before = 0
        for i in (*node.inputs, *(s for s, _ in map(seen_through, node.inputs))):
            if i in self.of:
                before |= self.of[i].before | self.of[i].bits
        unit = self.of[node] = Unit(node, 1 << len(self.of), before)
        self.all[unit] = None
        rule = RULES.get(node.sig.op.name) if is_mine(node) else None
        shape = rule.shape(node) if rule is not None else None
        if rule is None or shape is None or not math.prod(shape):
            return
        unit.shape = shape
        unit.cuts = self._fitting([unit], shape, rule.cuts(node, shape))
        near = {self.of[s]: None for s, _ in map(seen_through, node.inputs) if s in self.of}
        for other in sorted(near, key=lambda u: -u.bits):
            self._try_join(other, self.of[node])

    def _try_join(self, one: Unit, other: Unit) -> None:
        """Make one unit of two, where shapes allow that and no path leads from one to the other through a third."""
        if one is other or one.shape is None or other.shape is None:
            return
        cuts = one.cuts & other.cuts
        if one.shape != other.shape:
            cuts = one.cuts if self._is_of_rows(other, one) else set()
        cuts = self._fitting([one, other], one.shape, cuts)
        if (
            not cuts
            or self._reads(one, other) > MOST_READ
            or self._is_between(one, other)
            or self._is_between(other, one)
        ):
            return
        one.nodes += other.nodes
        one.values += other.values
        one.cuts = cuts
        one.bits |= other.bits
        one.before = (one.before | other.before) & ~one.bits
        self.of.update(dict.fromkeys(other.values, one))
        del self.all[other]
        for unit in self.all:
            if unit.before & one.bits:
                unit.before |= one.before | one.bits

    def _reads(self, *units: Unit) -> int:
        """Return how many values of the shape of the first unit all of them read from others."""
        found = {s for u in units for n in u.nodes for s, _ in map(seen_through, n.inputs)}
        return sum(self.of.get(s) not in units and s.type.shape == units[0].shape for s in found)

    def _fitting(self, units: list[Unit], shape: tuple[int, ...], cuts: set[int]) -> set[int]:
        """Return those cuts at which all that the nodes of units read is of a kind that a loop knows.

        A node of the full shape must read what makes it full: of rows alone a loop makes one number a row.
        Rows of one element are not reduced: what that gives has the full shape and is one number a row.
        """
        for node in [n for u in units for n in u.nodes]:
            reduces = RULES[node.sig.op.name].reduces(node)
            read: dict[int, set[str | None]] = {c: set() for c in cuts}
            for k, (source, seen) in enumerate(map(seen_through, node.inputs)):
                kinds = {c: kind_of(seen, shape, c) for c in cuts}
                for c in cuts:
                    read[c].add(kinds[c])
                home = self.of.get(source)
                if home is not None and home in units and source is not node:
                    mine = "full" if source.type.shape == shape else "row"
                    cuts = {c for c in cuts if kinds[c] == mine}
                cuts = {c for c in cuts if kinds[c] is not None}
                if reduces and k == 0:
                    cuts = {c for c in cuts if kinds[c] == "full" and math.prod(shape[c:]) > 1}
            if not reduces and node.type.shape == shape:
                cuts = {c for c in cuts if "full" in read[c] or {"row", "column"} <= read[c]}
        return cuts

    @staticmethod
    def _is_of_rows(rows: Unit, unit: Unit) -> bool:
        """Whether a unit of one node computes on numbers of the rows of another unit."""
        (node, *others) = rows.nodes
        if others or unit.shape is None or RULES[node.sig.op.name].reduces(node):
            return False
        seen = [shape for _, shape in map(seen_through, node.inputs)]
        kinds = {kind_of(shape, unit.shape, c) for shape in seen for c in unit.cuts}
        return kinds <= {"row", "scalar"} and "row" in kinds

    def sorted(self, unit: Unit) -> list[Node]:
        """Return the nodes of a unit in the order of the graph."""
        return sorted(unit.nodes, key=self.place.__getitem__)

    def _is_between(self, one: Unit, other: Unit) -> bool:
        """Whether a third unit lies on a path from one to the other."""
        return any(
            u.before & one.bits and other.before & u.bits
            for u in self.all
            if u is not one and u is not other
        )


def fuse(graph: Graph) -> Graph:
    """Return the graph with loops in place of groups of elementwise ops and reductions."""
    units = _Units(graph)
    loops = {u for u in units.all if len(u.nodes) >= SMALLEST}
    if not loops:
        return graph
    readers = _readers(graph, units, loops)
    build, new = Builder(), {n: n for n in graph.inputs}
    for thing in _in_order(graph, units, loops):
        if isinstance(thing, Unit):
            _emit(thing, units, readers, build, new)
        elif thing in readers:
            new[thing] = with_inputs(thing, tuple(new[i] for i in thing.inputs))
            build.made.append(new[thing])
    return collect(graph.inputs, [new[o] for o in graph.outputs], build.made)


def _readers(graph: Graph, units: _Units, loops: set[Unit]) -> dict[Node, set[Unit | None]]:
    """Return for each value that is needed who reads it: loops, or None for anything else."""
    readers: dict[Node, set[Unit | None]] = {o: {None} for o in graph.outputs}
    stack, done = list(graph.outputs), set()
    while stack:
        node = stack.pop()
        unit = units.of.get(node)
        loop = unit if unit in loops else None
        thing = loop or node
        if thing not in done:
            done.add(thing)
            read = [i for n in loop.nodes for i in n.inputs] if loop is not None else node.inputs
            for i in read:
                source = seen_through(i)[0] if loop is not None else i
                readers.setdefault(source, set()).add(loop)
                stack.append(source)
    return readers


def _in_order(graph: Graph, units: _Units, loops: set[Unit]) -> Iterator[Node | Unit]:
    """Yield loops and the other nodes, each after all that it reads."""
    done: set[Node | Unit] = set(graph.inputs)

    def thing_of(node: Node) -> Node | Unit:
        unit = units.of.get(node)
        return unit if unit is not None and unit in loops else node

    def waits_for(thing: Node | Unit) -> list[Node | Unit]:
        if isinstance(thing, Node):
            found = [thing_of(i) for i in thing.inputs]
        else:
            found = [thing_of(seen_through(i)[0]) for n in thing.nodes for i in n.inputs]
        return [f for f in found if f is not thing and f not in done]

    for node in graph.nodes:
        stack = [thing_of(node)]
        while stack:
            thing = stack[-1]
            waiting = [] if thing in done else waits_for(thing)
            stack.extend(waiting)
            if not waiting:
                stack.pop()
                if thing not in done:
                    done.add(thing)
                    yield thing


def _emit(
    unit: Unit,
    units: _Units,
    readers: dict[Node, set[Unit | None]],
    build: Builder,
    new: dict[Node, Node],
) -> None:
    """Make the loop of a unit, and put its results into ``new``."""
    assert unit.shape is not None
    cut = min(unit.cuts)
    loop = Loop(math.prod(unit.shape[:cut]), math.prod(unit.shape[cut:]))
    inputs: dict[tuple[Node, str], str] = {}
    values: dict[Node, str] = {}

    def operand(node: Node) -> str:
        source, shape = seen_through(node)
        if source in values:
            return values[source]
        if source.sig.op.name == "constant" and source.type.size == 1:
            return number(float(constant_value(source).item()))
        kind = kind_of(shape, unit.shape, cut)
        assert kind is not None
        key = (new[source], kind)
        if key not in inputs:
            inputs[key] = loop.input(kind, source.type.dtype.name == "bool")
        return inputs[key]

    gets = {(n.inputs[0], n.sig.attrs[0][1]): n for n in unit.values if n.sig.op is GET}
    for node in units.sorted(unit):
        results = RULES[node.sig.op.name].emit(loop, node, [operand(i) for i in node.inputs])
        if isinstance(results, str):
            values[node] = results
        else:
            for index, result in enumerate(results):
                if (node, index) in gets:
                    values[gets[node, index]] = result
    leaving = [n for n in values if readers.get(n, set()) - {unit}]
    for node in leaving:
        is_bool = node.type.dtype.name == "bool"
        loop.stores.append(values[node] + " bool" * is_bool)
    shapes = ";".join(",".join(map(str, n.type.shape)) for n in leaving)
    site = units.sorted(unit)[-1]
    chain = build.make("x86::chain", [n for n, _ in inputs], site, program=str(loop), shapes=shapes)
    for index, node in enumerate(leaving):
        new[node] = chain if len(leaving) == 1 else build.get(chain, index)
