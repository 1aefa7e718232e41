"""The plan cache: plans by the structure of what was recorded.

In: keys. Out: a plan, made when a structure is seen for the second time; None at first sight.
After ``execute``; before ``run``.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import graph as graph_module
from .debug import debug
from .device import free_bytes, memory_limit
from .execute import execute
from .graph import Graph, Node
from .memory import current_strategy
from .passes import optimise
from .passes.offload import offload
from .passes.placement import report
from .passes.prologue import split_prologue
from .plan import Plan
from .registry import BUILT_IN
from .replan import Trial, trial_of

LIMIT_PLANS = 256
LIMIT_BYTES = 1 << 30
VARIANTS = 3  # of one structure, before the union of their outputs is compiled
STEP_BYTES = 4096  # of Python objects for one step: node, storages, kernel, arrays
SHAPES = 8  # sets of shapes of one structure, before a warning


def _is_heavy(tokens: tuple) -> bool:
    """Whether running node by node might need more than half of the memory that is free."""
    total = sum(t[0].nbytes for t in tokens if t.__class__ is tuple)
    limit = memory_limit()
    if limit is None and total < 64 << 20:
        return False
    return total > (free_bytes() if limit is None else limit) / 2


class Key(NamedTuple):
    """What decides on a plan.

    Attributes
    ----------
    tokens : tuple
        Ops, attributes, wiring, types and devices, as a Recording keeps them.
    wanted, donated : tuple of int
        Positions of the results that are held, and of the leaves that may be overwritten.
    strategy : str
        The memory strategy with its options.
    """

    tokens: tuple
    wanted: tuple[int, ...]
    donated: tuple[int, ...]
    strategy: str


class Prologue:
    """What several plans compute from parameters alone, kept for the latest versions of these.

    A leaf's version is the identity of its node: a rebind gives the handle another one.
    """

    KEPT = 4  # sets of parameters: as many models as share the structure

    def __init__(self, graph: Graph) -> None:
        self.plan = Plan(graph)  # its results are packed weights: no budget holds for them
        self._results: OrderedDict[tuple[int, ...], tuple[list[weakref.ref[Node]], list[Any]]] = (
            OrderedDict()
        )

    @property
    def nbytes(self) -> int:
        """The bytes of the results that are kept."""
        return sum(b.array.nbytes for _, kept in list(self._results.values()) for b in kept)

    def values(self, leaves: Sequence[Node]) -> list[Any]:
        """Return the results for these leaves, computed if one of them is new."""
        key = tuple(map(id, leaves))
        found = self._results.get(key)
        if found is not None:
            debug.counts["prologue_hits"] += 1
            return found[1]

        owner = weakref.ref(self)

        def forget(_: Any) -> None:
            prologue = owner()
            if prologue is not None:  # a leaf is gone: another one may get its id
                prologue._results.pop(key, None)

        debug.counts["prologues_run"] += 1
        buffers = execute(self.plan, [leaf.buffer for leaf in leaves])
        self._results[key] = ([weakref.ref(leaf, forget) for leaf in leaves], buffers)
        while len(self._results) > self.KEPT:
            self._results.popitem(last=False)
        return buffers


_PROLOGUES: weakref.WeakValueDictionary[tuple, Prologue] = weakref.WeakValueDictionary()


@dataclass(eq=False)
class CompiledPlan:
    """A plan for a recording.

    Attributes
    ----------
    plan : Plan
        May be replaced by another of the same inputs, results and overwrites, when its ``trial`` is over.
    leaves : list of int
        Positions in the recording of the plan's inputs.
    wanted, donated : tuple of int
        Positions that it computes, and that it overwrites.
    prologue : Prologue or None
        Its results are further inputs of the plan.
    sources : list of int
        Which of ``leaves`` the prologue takes.
    trial : Trial or None
        The first runs of the plan, which take times.
    """

    plan: Plan
    leaves: list[int]
    wanted: tuple[int, ...]
    donated: tuple[int, ...]
    prologue: Prologue | None
    sources: list[int]
    trial: Trial | None = None

    def placement(self) -> dict[str, Any]:
        """Return ``Graph.placement`` of the plan, and under ``"prologue"`` that of the prologue, or None."""
        prologue = self.prologue.plan.graph.placement() if self.prologue is not None else None
        return {**self.plan.graph.placement(), "prologue": prologue}

    @property
    def nbytes(self) -> int:
        """An estimate of the host memory that keeping the plan takes: its constants, and its bookkeeping."""
        return STEP_BYTES * len(self.plan.steps) + sum(
            s.nbytes for s in self.plan.storages if s.kind == "constant"
        )

    def run(self, leaves: Sequence[Node]) -> list[Any]:
        """Run over the values of leaves, one for each of ``leaves``; return a buffer for each of ``wanted``."""
        buffers = [leaf.buffer for leaf in leaves]
        if self.prologue is not None:
            buffers += self.prologue.values([leaves[i] for i in self.sources])
        trial = self.trial  # another thread may end it
        return trial.run(self, buffers) if trial is not None else execute(self.plan, buffers)


class _Structure:
    """What the cache knows of one structure.

    Attributes
    ----------
    seen : set of (wanted, donated)
        What was run without a plan.
    plans : dict of (wanted, donated) to CompiledPlan
        By what a plan computes and overwrites.
    served : dict of (wanted, donated) to CompiledPlan
        By what was asked for and may be overwritten.
    nbytes : int
    """

    def __init__(self) -> None:
        self.seen: set[tuple] = set()
        self.plans: dict[tuple, CompiledPlan] = {}
        self.served: dict[tuple, CompiledPlan] = {}
        self.nbytes = 0


class PlanCache:
    """Plans by structure, least recently used first out; bounded by number and bytes of constants and bookkeeping."""

    def __init__(self) -> None:
        self._structures: OrderedDict[tuple, _Structure] = OrderedDict()
        self._shapes: dict[tuple, set[tuple]] = defaultdict(set)
        self._nbytes = 0
        self._lock = threading.RLock()

    def clear(self) -> None:
        """Forget all plans."""
        with self._lock:
            self._structures.clear()
            self._shapes.clear()
            self._nbytes = 0

    def __len__(self) -> int:
        return sum(len(s.plans) for s in self._structures.values())

    def find(self, key: Key, graph: Callable[[tuple[int, ...]], Graph]) -> CompiledPlan | None:
        """Return the plan for a key; None if its structure is new. ``graph(wanted)`` makes the graph to compile."""
        with self._lock:
            outer = (key.tokens, key.strategy)
            structure = self._structures.get(outer)
            if structure is None:
                structure = self._structures[outer] = _Structure()
                self._note_shapes(key.tokens)
                self._evict()
                if ("memory", key.strategy) in BUILT_IN and not _is_heavy(key.tokens):
                    structure.seen.add((key.wanted, key.donated))
                    return None
            else:
                self._structures.move_to_end(outer)
            inner = (key.wanted, key.donated)
            found = structure.served.get(inner)
            if found is None:
                found = self._superset(structure, key) or self._compile(structure, key, graph)
                structure.served[inner] = found
            return found

    @staticmethod
    def _superset(structure: _Structure, key: Key) -> CompiledPlan | None:
        """Return a plan that computes more than is wanted and overwrites no more than it may."""
        wanted, donated = set(key.wanted), set(key.donated)
        for (had_wanted, had_donated), plan in structure.plans.items():
            if wanted <= set(had_wanted) and set(had_donated) <= donated:
                return plan
        return None

    def _compile(
        self, structure: _Structure, key: Key, graph: Callable[[tuple[int, ...]], Graph]
    ) -> CompiledPlan:
        wanted, donated = key.wanted, key.donated
        if len(structure.plans) >= VARIANTS:
            known = structure.seen.union(structure.plans)
            wanted = tuple(sorted({p for had, _ in known for p in had} | set(wanted)))
            donated = tuple(sorted(set(donated).intersection(*(had for _, had in known))))
        plan = compile_graph(graph(wanted), key.tokens, wanted, donated, key.strategy)
        structure.plans[wanted, plan.donated] = plan
        structure.nbytes += plan.nbytes
        self._nbytes += plan.nbytes
        self._evict()
        return plan

    def _note_shapes(self, tokens: tuple) -> None:
        """Warn, once, of a structure that comes with ever new shapes."""
        bare = tuple((t[0].op.name, *t[1:]) if t.__class__ is tuple else "leaf" for t in tokens)
        seen = self._shapes[bare]
        if len(seen) <= SHAPES:
            seen.add(tuple(t[0].type if t.__class__ is tuple else t.type for t in tokens))
            if len(seen) == SHAPES + 1:
                debug.once(
                    f"a graph of {len(tokens)} calls was seen with more than {SHAPES} sets of shapes; each is compiled "
                    "by itself. Padding inputs to a few sizes (bucketing) avoids that"
                )

    def _evict(self) -> None:
        while len(self._structures) > LIMIT_PLANS or (
            self._nbytes > LIMIT_BYTES and len(self._structures) > 1
        ):
            self._nbytes -= self._structures.popitem(last=False)[1].nbytes
        while len(self._shapes) > 4 * LIMIT_PLANS:
            self._shapes.pop(next(iter(self._shapes)))


def compile_graph(
    graph: Graph,
    tokens: tuple,
    wanted: tuple[int, ...],
    donated: tuple[int, ...],
    strategy: str,
    replaced: Sequence[int] = (),
) -> CompiledPlan:
    """Run all passes over a recorded graph and plan it.

    ``replaced``: positions of leaves that get a new value from this graph itself, also where the old one stays.
    """
    debug.counts["plans_compiled"] += 1
    leaves = [i for i, t in enumerate(tokens) if t.__class__ is not tuple]
    stages: list[tuple[str, Graph]] = []
    optimised = optimise(
        graph, lambda name, made: stages.append((name, made)) if debug.view else None
    )
    overwritten = [leaves.index(p) for p in donated]
    first, sources, rest = split_prologue(
        optimised, {*overwritten, *(leaves.index(p) for p in replaced)}
    )
    rest = offload(rest)
    report(rest, first)
    plan = Plan(rest, overwritten, strategy)
    prologue = None
    if first is not None:
        prologue = _PROLOGUES.get(first.key)
        if prologue is None:
            prologue = _PROLOGUES[first.key] = Prologue(first)
    debug.log(1, f"compiled a plan of {len(plan.steps)} steps, peak {plan.peak_bytes:,} bytes")
    debug.log(4, str(plan))
    if debug.view:
        show(stages, plan, prologue.plan if prologue is not None else None)
    donated = tuple(leaves[i] for i in plan.overwrites)
    return CompiledPlan(plan, leaves, wanted, donated, prologue, sources, trial_of(plan, rest))


def _memory_of(graph: Graph, strategy: str) -> dict[str, Any]:
    """Return what ``Graph.memory`` describes."""
    wanted = tuple(range(len(graph.outputs)))
    made = compile_graph(graph, graph.key[:-1], wanted, (), strategy or current_strategy())
    return made.plan.memory_report()


def tune(compile: Callable[[], CompiledPlan], leaves: Sequence[Node]) -> None:
    """Time the algorithms of a graph, and keep the choices. Set by mge/__init__.py."""


def show(stages: list[tuple[str, Graph]], plan: Plan, prologue: Plan | None) -> None:
    """Put a plan on the page of ``MGE_VIEW``. Set by mge/__init__.py."""


graph_module.memory_of = _memory_of
PLANS = PlanCache()
