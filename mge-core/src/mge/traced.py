"""One recorded run of a traced function: what it takes, gives and changes, and the plans that run it.

In: a graph with what was captured. Out: ``Traced``.
After ``guard``; before ``trace``.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import getrefcount
from typing import Any

from . import cache
from .buffer import Failure
from .cache import CompiledPlan, compile_graph
from .debug import debug
from .execute import WATCHERS, StepError, located
from .graph import EPOCH, Graph, Node, leaf_signature
from .guard import Guard, broken
from .holding import is_donatable
from .mode import MODE
from .op import OPS, record_nodes
from .run import evaluate
from .tape import ACTIVE
from .tensor import Tensor
from .tree import Form, flatten, unflatten


def _calibrate() -> int:
    """Return the reference count of a node that only a handle holds, as ``Traced._donated`` sees it."""
    nodes = [Node(None, (), None)]  # type: ignore[arg-type]
    handle = Tensor.from_node(Node(None, (), None))  # type: ignore[arg-type]
    nodes.append(handle._node)
    return [getrefcount(n) for n in nodes][1]


_ONE_HANDLE = _calibrate()


class Traced:
    """One recorded run of a function: its graph, what it captured, what it changed, and when it may be used.

    Attributes
    ----------
    graph : Graph
        Takes the tensor arguments, then the captured values. Gives the results, then the new values of handles.
    captured : list of (handle, kind)
        Where the values of further inputs come from: ``"value"`` a handle, ``"grad"`` the ``.grad`` of one,
        ``"node"`` a node that never changes.
    effects : list of (handle, kind, output or None)
        Handles to rebind after a run; kind ``"grad"`` sets the ``.grad``, to None without an output; for kind
        ``"argument"`` the handle is that of the argument, by its position among the leaves.
    form, results
        The tree that the function returned: leaves are outputs or plain values.
    tunes : bool
        Algorithms are timed before the first plan is made.
    shortcut : tuple or None
        The last run as one native call, with what must still be so for it: see ``run_shortcut``.
    example : (form, leaves)
        The arguments; tensors and arrays are there without their values.
    """

    tunes = False

    def __init__(
        self,
        graph: Graph,
        arguments: int,
        captured: list[tuple[Any, str]],
        effects: list[tuple[Any, str, Any]],
        form: Form,
        results: list[tuple[bool, Any]],
        guards: list[Guard],
        no_grad: list[Any],
    ) -> None:
        self.graph, self.arguments = graph, arguments
        self.captured, self.effects = captured, effects
        self.form, self.results, self.guards, self.no_grad = form, results, guards, no_grad
        self.example: tuple[Form, list[Any]] = (form, [])
        self.epoch = EPOCH[0]
        self.device = (graph.inputs or graph.nodes or graph.outputs)[0].sig.device
        self.plans: dict[tuple, CompiledPlan] = {}
        self.shortcut: Any = None
        self.returns = sum(is_tensor for is_tensor, _ in results)  # the first outputs
        self.single = form.kind is None and results[0][0]
        rebound = {id(h) for h, kind, _ in effects if kind == "value"}
        self.replaceable = [
            i
            for i, (h, kind) in enumerate(captured, arguments)
            if kind == "value" and id(h) in rebound
        ]

    def broken_guard(self) -> str | None:
        """Return why this run cannot be used now, or None."""
        guard = broken(self.guards)
        if guard is not None:
            return str(guard)
        for handle in self.no_grad:
            if getattr(handle, "_grad", None) is not None:
                return "a .grad that was None is there now"
        for handle, kind in self.captured:
            if kind == "grad" and getattr(handle, "_grad", None) is None:
                return "a .grad that was there is None now"
        return None

    def fits(self, nodes: Sequence[Node]) -> bool:
        """Whether captured handles still have the types that were recorded."""
        return all(
            n.type is i.type and n.sig.device is i.sig.device
            for n, i in zip(nodes, self.graph.inputs)
        )

    def inputs(self, arguments: list[Node]) -> list[Node]:
        """Return the node of each input of the graph, as things are now."""
        nodes = arguments
        for handle, kind in self.captured:
            if kind == "value":
                nodes.append(handle._node)
            else:
                nodes.append(handle if kind == "node" else handle._grad._node)
        return nodes

    def run(
        self, nodes: list[Node], strategy: str, arguments: Any = None, again: bool = False
    ) -> Any:
        """Run over these inputs; rebind what the function rebinds; return what it returns.

        ``again``: further runs may take the shortcut.
        """
        waiting = [n for n in nodes if n.buffer is None]
        if waiting:
            evaluate(waiting)
        donated = self._donated(nodes)
        plan = self.plans.get((donated, strategy))
        if plan is None:
            if self.tunes or debug.tune:
                cache.tune(lambda: self._compile((), strategy), nodes)
            plan = self.plans[donated, strategy] = self._compile(donated, strategy)
        has_run = False
        try:
            buffers = plan.run(nodes)
            has_run = True
            if again:
                self._shorten(nodes, donated, plan)
            outputs = [self._leaf(o, b) for o, b in zip(self.graph.outputs, buffers)]
            return self._finish(outputs, arguments)
        except BaseException as failure:  # an interrupt, too
            error = failure.error if isinstance(failure, StepError) else failure
            if has_run or getattr(failure, "overwritten", False):
                for i in plan.donated:  # handles that do not have their new values yet
                    nodes[i].buffer = Failure(error)
            if error is failure:
                raise
            raise error from None

    def _shorten(self, nodes: list[Node], donated: tuple[int, ...], plan: CompiledPlan) -> None:
        """After a run over ``nodes``: keep the shortest way for calls that change arguments and state alone."""
        bound, prologue, call = plan.plan.bound, plan.prologue, None
        if plan.trial is None and bound is not None and bound.native is not None:
            sources = [nodes[i] for i in plan.sources]
            extra = prologue.values(sources) if prologue is not None else []
            call = bound.native.call(self, nodes, extra, plan.sources, donated)
        where = MODE.get().memory, debug._values
        self.shortcut = None if call is None else (call, plan, bound, prologue is not None, *where)

    def run_shortcut(self, nodes: list[Node], mode: Any) -> list[Tensor] | None:
        """Run as the last time, in one native call, which checks the guards; None where something else changed."""
        call, compiled, bound, has_prologue, memory, settings = self.shortcut
        same = mode.memory == memory and settings is debug._values and self.epoch == EPOCH[0]
        if not same or ACTIVE or WATCHERS:
            return None
        plan, native = compiled.plan, bound.native
        with plan.devices[0].lock:
            for device, arena in bound.arenas.items():
                same = same and device.arena is arena
            if not same or plan.bound is not bound:
                return None
            try:
                made = call(nodes)
                if made.__class__ is tuple:
                    raise located(native.error(*made), plan.steps[native.step].slot.node)
            except BaseException as error:
                if plan.donated and native.step >= plan.overwrites_from:
                    for i in compiled.donated:
                        self.captured[i - self.arguments][0]._node.buffer = Failure(error)
                raise
        if made is None and (waiting := [n for n in nodes if n.buffer is None]):
            evaluate(waiting)
            return self.run_shortcut(nodes, mode)
        if made is not None:
            counts = debug.counts
            counts["trace_hits"] += 1
            counts["plans_run"] += 1
            counts["steps_run"] += len(plan.steps)
            counts["prologue_hits"] += has_prologue
        return made

    def _leaf(self, output: Node, buffer: Any) -> Node:
        return Node(leaf_signature(output.type, output.sig.device), (), output.type, buffer)

    def _donated(self, nodes: list[Node]) -> tuple[int, ...]:
        """Return the inputs that the run replaces and that nobody but their handle can see."""
        return tuple(
            [
                i
                for i in self.replaceable
                if getrefcount(nodes[i]) <= _ONE_HANDLE and is_donatable(nodes[i].buffer)
            ]
        )

    def _compile(self, donated: tuple[int, ...], strategy: str) -> CompiledPlan:
        tokens = self.graph.key[:-1]
        return compile_graph(
            self.graph,
            tokens,
            tuple(range(len(self.graph.outputs))),
            donated,
            strategy,
            self.replaceable,
        )

    def record(self, nodes: list[Node], arguments: Any = None) -> Any:
        """Record the run as one differentiable node, for an active manager outside."""
        call = OPS["call"]
        types = [n.type for n in nodes]
        sig = call.signature(types, call.normal_attrs({"graph": self.graph}), self.device)
        outputs = record_nodes(sig, nodes)
        return self._finish(
            [t._node for t in (outputs if isinstance(outputs, tuple) else (outputs,))], arguments
        )

    def _finish(self, outputs: list[Node], arguments: Any) -> Any:
        """Rebind handles and return the results. ``arguments``: (args, kwargs) of the call."""
        for handle, kind, position in self.effects:
            if kind == "argument":
                handle = flatten(arguments)[0][handle]
                if not isinstance(handle, Tensor):
                    continue
            if kind == "grad":
                handle._grad = None if position is None else Tensor.from_node(outputs[position])
            elif outputs[position].buffer is None:
                handle._rebind(outputs[position])
            else:
                handle._node = outputs[position]
        return self.returned([Tensor.from_node(o) for o in outputs[: self.returns]])

    def returned(self, outputs: list[Tensor]) -> Any:
        """Return what the function returns, from the tensors among it."""
        if self.single:
            return outputs[0]
        leaves = [outputs[v] if is_tensor else v for is_tensor, v in self.results]
        return unflatten(self.form, leaves)
