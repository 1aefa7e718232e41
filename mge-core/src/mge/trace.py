"""Traces: a Python function that runs once for each kind of arguments, and as a plan from then on.

In: a function of tensors. Out: ``trace``, which calls like it.
After ``traced``; before the interface layer.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from .capture import Capture, NumberRead, TracedNumber
from .debug import debug
from .errors import InternalError, TraceError, user_place
from .execute import WATCHERS
from .graph import EPOCH, Node, make_leaf
from .guard import Watcher, is_plain
from .memory import current_strategy, find_strategy
from .mode import MANAGERS, MODE, changed
from .op import default_device
from .run import evaluate
from .tape import ACTIVE
from .tensor import Tensor, as_array, upload
from .traced import Traced
from .tree import Form, flatten, unflatten

RETRACES = 8  # different graphs for one kind of arguments, before the function runs untraced


def _number(value: float) -> np.ndarray:
    """Return a number argument in the 64 bits that Python computes with."""
    return np.array(value, np.float64 if isinstance(value, float) else np.int64)


def _without_value(leaf: Any) -> Any:
    """Return what stands for a leaf of the arguments where only its type counts."""
    if isinstance(leaf, Tensor):
        return type(leaf).from_node(make_leaf(leaf._node.type, leaf.device))
    if isinstance(leaf, np.ndarray):
        return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
    return leaf


class trace:
    """Run a function as a plan: its Python code runs once for each kind of arguments.

    Parameters
    ----------
    function : callable
        Takes and returns trees (tuples, lists, dicts) of tensors, arrays and plain values. Tensors that it uses
        from outside are inputs of the plan: their current values count. Numbers that it is given are inputs too,
        unless it reads their value; other plain values belong to the kind of the arguments.
    memory : str, optional
        A memory strategy for the plans of this function, by name and with options: ``"sublinear:budget=2GB"``.
    tune : bool
        Time the algorithms of a plan before it is made, and keep the choices, as ``MGE_TUNE=1`` does for all plans.
    check : bool
        Run the Python function beside each call and compare, bit for bit.
    symbolic, record_only, symbolic_shape, without_host, imperative : bool
        Accepted and ignored: there is one way to run, shapes are tuples of ints, and a new shape is a new plan.
    capture_as_const : bool
        Accepted and ignored: ``dump`` works with or without it.
    opt_level, graph_opt_config
        Accepted and ignored: the device's passes decide.
    sublinear_memory_config, dtr_config
        Accepted; any value but None selects the strategy ``"sublinear"`` or ``"dtr"`` of the plugin mge-sublinear.
    profiling : bool
        Keep the times of each step for ``get_profile()``.

    Notes
    -----
    Plain values that the function reads from globals, closures and defaults are guarded, and Modules and Optimizers
    say when an attribute changes; a guard that fails re-traces (``MGE_DEBUG=1`` says why). After 8 different graphs
    for one kind of arguments the function runs untraced. A variable that the function itself writes is not
    replayed; that gives one warning. Reading a traced value inside is a ``TraceError`` that names the line.

    Examples
    --------
    >>> from mge.jit import trace
    >>> @trace
    ... def double(x):
    ...     return x * 2
    >>> double(tensor([1.0, 2.0]))
    Tensor([2., 4.], dtype=float32, device=ref:0)
    """

    __name__: str  # the function's
    dump: Callable[..., Any]  # set by dump.py

    def __new__(cls, function: Callable[..., Any] | None = None, **_options: Any) -> Any:
        if function is None:
            return functools.partial(cls, **_options)
        return object.__new__(cls)

    def __init__(
        self,
        function: Callable[..., Any] | None = None,
        *,
        memory: str | None = None,
        check: bool = False,
        tune: bool = False,
        symbolic: bool = False,
        capture_as_const: bool = False,
        record_only: bool = False,
        sublinear_memory_config: Any = None,
        dtr_config: Any = None,
        profiling: bool = False,
        opt_level: int = 2,
        graph_opt_config: Any = None,
        symbolic_shape: bool = True,
        without_host: bool = False,
        imperative: bool = False,
    ) -> None:
        if not callable(function):
            raise TraceError(
                f"trace: {function!r} is no function; trace takes a callable"
            ).add_place(user_place())
        self.function = function
        functools.update_wrapper(self, function)
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        configs = {"sublinear": sublinear_memory_config, "dtr": dtr_config}
        chosen = [getattr(c, "strategy", name) for name, c in configs.items() if c is not None]
        chosen += [memory] if memory is not None else []
        if len(chosen) > 1:
            rule = "memory, sublinear_memory_config and dtr_config exclude each other"
            raise TraceError(f"trace: {rule}").add_place(user_place())
        for text in chosen:
            find_strategy(text)
        self.memory = chosen[0] if chosen else None
        self.check, self.tune, self.profiling = check, tune, profiling
        self.last: Traced | None = None
        self.last_arguments: tuple[tuple, dict[str, Any]] = ((), {})
        self._entries: dict[tuple, list[Traced]] = {}
        # Numbers, by position among the leaves, whose value the function reads.
        self._static: set[int] = set()
        self._untraced: str | None = None
        self._lock = threading.RLock()  # held while the function is traced

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        mode = MODE.get()
        if self._untraced or mode.recording is not None or mode.eager or not debug.trace:
            return self.function(*args, **kwargs)
        try:
            nodes = [a._node for a in args]
            key: tuple = tuple([n.type for n in nodes])
            if kwargs:
                raise AttributeError
        except AttributeError:
            key, nodes = self._key(args, kwargs)
        if mode.cast is not None:
            key = (*key, mode.cast)
        entries = self._entries.get(key)
        if entries:
            entry = entries[-1]
            if entry.shortcut is not None:
                made = entry.run_shortcut(nodes, mode)
                if made is not None:
                    self.last = entry
                    return entry.returned(made)
            if entry.epoch == EPOCH[0] and entry.broken_guard() is None:
                inputs = entry.inputs(nodes)
                if entry.fits(inputs):
                    debug.counts["trace_hits"] += 1
                    return self._result(entry, inputs, args, kwargs)
        return self._slow(key, args, kwargs)

    def _result(
        self, entry: Traced, inputs: list[Node], args: tuple, kwargs: dict[str, Any]
    ) -> Any:
        self.last = entry
        if ACTIVE and MANAGERS.get():
            return entry.record(inputs, (args, kwargs))
        if self.check:
            return self._checked(entry, inputs, args, kwargs)
        strategy = self.memory or current_strategy()
        if self.profiling:
            return self._profiled(entry, inputs, strategy, (args, kwargs))
        return entry.run(inputs, strategy, (args, kwargs), again=True)

    def _key(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, list[Node]]:
        """Return the kind of the arguments, and the nodes of those that are inputs of the plan."""
        leaves, form = flatten((args, kwargs))
        kinds: list[Any] = [form]
        nodes: list[Node] = []
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor):
                kinds.append((leaf._node.type, leaf.device))
                nodes.append(leaf._node)
            elif isinstance(leaf, np.ndarray):
                node = upload(as_array(leaf))
                kinds.append((node.type, "array"))
                nodes.append(node)
            elif self._is_input(leaf, i):
                kinds.append(type(leaf))
                nodes.append(upload(_number(leaf)))
            else:
                kinds.append(
                    (type(leaf), leaf)
                    if is_plain(leaf) and not isinstance(leaf, (list, dict, set))
                    else id(leaf)
                )
        return tuple(kinds), nodes

    def _is_input(self, leaf: Any, position: int) -> bool:
        """Whether a leaf of the arguments is a number whose value is an input of the plan."""
        if type(leaf) not in (int, float) or position in self._static:
            return False
        return type(leaf) is float or -(2**63) <= leaf < 2**63

    def _slow(self, key: tuple, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Find an earlier run whose guards hold, or trace; then run."""
        with self._lock:
            entry = self._find(key, args, kwargs)
        return self._result(entry, entry.inputs(self._nodes(key, args, kwargs)), args, kwargs)

    def _find(self, key: tuple, args: tuple, kwargs: dict[str, Any]) -> Traced:
        """Return an earlier run whose guards hold, or a new one. Lists are replaced: other threads read them."""
        entries = list(self._entries.get(key, ()))
        for entry in reversed(entries):
            holds = entry.epoch == EPOCH[0] and entry.broken_guard() is None
            if holds and entry.fits(entry.inputs(self._nodes(key, args, kwargs))):
                self._entries[key] = [*(e for e in entries if e is not entry), entry]
                return entry
        if entries:
            reason = entries[-1].broken_guard() or "an attribute of a Module or Optimizer changed"
            debug.counts["retraces"] += 1
            debug.log(1, f"trace of {self.__name__}: traced again, since {reason}")
        try:
            made = self._trace(args, kwargs)
        except NumberRead as read:
            self._static.add(read.position)
            return self._find(self._key(args, kwargs)[0], args, kwargs)
        entry = self._known(entries, made)
        self._entries[key] = entries
        if len(entries) > RETRACES:
            self._untraced = f"{RETRACES} different graphs for one kind of arguments"
            debug.once(
                f"trace of {self.__name__}: it runs untraced from here on, after {self._untraced}"
            )
            self._entries.clear()
        self.last_arguments = (args, kwargs)
        return entry

    def _nodes(self, key: tuple, args: tuple, kwargs: dict[str, Any]) -> list[Node]:
        if not kwargs and all(isinstance(a, Tensor) for a in args):
            return [a._node for a in args]
        return self._key(args, kwargs)[1]

    @staticmethod
    def _known(entries: list[Traced], made: Traced) -> Traced:
        """Return the earlier run that equals a new one, with its guards renewed; else the new one."""
        for entry in entries:
            same = (
                entry.graph == made.graph
                and entry.form == made.form
                and len(entry.captured) == len(made.captured)
            )
            same = same and all(
                a[0] is b[0] and a[1] == b[1]
                for a, b in zip(entry.captured, made.captured)
                if a[1] != "node"
            )
            same = same and all(k != "node" for _, k in made.captured)
            same = same and [(id(h), k, o) for h, k, o in entry.effects] == [
                (id(h), k, o) for h, k, o in made.effects
            ]
            if same and [r for r in entry.results if not r[0]] == [
                r for r in made.results if not r[0]
            ]:
                entry.guards, entry.epoch, entry.no_grad = made.guards, made.epoch, made.no_grad
                entries.remove(entry)
                entries.append(entry)
                return entry
        entries.append(made)
        return made

    def _trace(self, args: tuple, kwargs: dict[str, Any]) -> Traced:
        """Run the Python function once, recording."""
        leaves, form = flatten((args, kwargs))
        device = next((x.device for x in leaves if isinstance(x, Tensor)), None) or default_device()
        owner = Capture(f"trace of {self.__name__}", device, inlines=False, traces=True)
        arguments: list[Node] = []
        stand_ins = [self._stand_in(x, i, device, arguments) for i, x in enumerate(leaves)]
        watcher = Watcher()
        debug.counts["traces"] += 1
        with changed(recording=owner.recording):
            for node in arguments:
                owner.recording.enlist(node)
            new_args, new_kwargs = unflatten(form, stand_ins)
            grads_after: list[tuple[Any, Any]] = []
            try:
                with watcher.watching(self.function):
                    returned, result_form = flatten(self.function(*new_args, **new_kwargs))
                returned = [(x, x._node) if isinstance(x, Tensor) else (x, None) for x in returned]
            finally:  # what handles stand for now is looked at first
                for handle, _ in owner.grads.values():
                    grad = getattr(handle, "_grad", None)
                    grads_after.append((handle, None if grad is None else grad._node))
                effects = owner.restore()
                for handle, before in owner.grads.values():
                    handle._grad = before
            made = self._traced(
                owner, arguments, stand_ins, returned, result_form, effects, grads_after, watcher
            )
            made.example = form, [_without_value(x) for x in leaves]
            made.tunes = self.tune
            owner.close()
            return made

    def _stand_in(self, leaf: Any, position: int, device: Any, arguments: list[Node]) -> Any:
        """Return what the function is given for one leaf of its arguments."""
        if isinstance(leaf, (Tensor, np.ndarray)):
            node = leaf._node if isinstance(leaf, Tensor) else upload(as_array(leaf))
            where = leaf.device if isinstance(leaf, Tensor) else device
            arguments.append(make_leaf(node.type, where))
            return (
                type(leaf).from_node(arguments[-1])
                if isinstance(leaf, Tensor)
                else Tensor.from_node(arguments[-1])
            )
        if self._is_input(leaf, position):
            arguments.append(make_leaf(upload(_number(leaf)).type, device))
            return TracedNumber(arguments[-1], type(leaf), position)
        return leaf

    def _traced(
        self,
        owner: Capture,
        arguments: list[Node],
        stand_ins: list[Any],
        returned: list[tuple[Any, Any]],
        form: Form,
        effects: list[tuple[Any, Node]],
        grads: list[tuple[Any, Any]],
        watcher: Watcher,
    ) -> Traced:
        recording = owner.recording
        outputs: list[Node] = []

        def output(node: Node, handle: Any = None) -> int:
            recording.enlist(node, handle)
            outputs.append(node)
            return len(outputs) - 1

        results: list[tuple[bool, Any]] = []
        for leaf, node in returned:
            if isinstance(leaf, TracedNumber):
                node = leaf.tensor()._node
            results.append((False, leaf) if node is None else (True, output(node, leaf)))
        own = {id(x): i for i, x in enumerate(stand_ins)}
        made: list[tuple[Any, str, int | None]] = [
            (own[id(h)], "argument", output(n)) if id(h) in own else (h, "value", output(n))
            for h, n in effects
        ]
        for handle, grad in grads:
            made.append((handle, "grad", None if grad is None else output(grad)))
        handles = dict(recording.handles or ())
        grad_of = {id(g): h for h, g in owner.grads_read.values() if g is not None}
        captured: list[tuple[Any, str]] = []
        leaves = [n for n in recording.leaves if n not in arguments]
        rebound = {before: handle for handle, before in owner.effects.values()}
        for leaf in leaves:
            handle = rebound.get(leaf, handles.get(recording.index[leaf]))
            if handle is None or leaf in owner.made:
                captured.append((leaf, "node"))
            elif id(handle) in grad_of:
                captured.append((grad_of[id(handle)], "grad"))
            else:
                captured.append((handle, "value"))
        guards, written = watcher.guards()
        if written:
            debug.once(
                f"trace of {self.__name__}: it writes {', '.join(sorted(written))}, variables from outside; "
                "that happens only while it is traced"
            )
        no_grad = [h for h, g in owner.grads_read.values() if g is None]
        graph = recording.graph(outputs, arguments + leaves)
        return Traced(graph, len(arguments), captured, made, form, results, guards, no_grad)

    def _checked(
        self, entry: Traced, inputs: list[Node], args: tuple, kwargs: dict[str, Any]
    ) -> Any:
        """Run the Python function too, on the same values, and compare."""
        effects = [(h, k) for h, k, _ in entry.effects if k != "argument"]
        before = [
            (h, k, h._node if k == "value" else getattr(h, "_grad", None)) for h, k in effects
        ]
        evaluate([handle._node for handle, kind, _ in entry.effects if kind == "value"])
        leaves = [x for x in flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        kept = [x._node for x in leaves]
        wanted, _ = flatten(self.function(*args, **kwargs))
        wanted = [np.array(w.numpy()) if isinstance(w, Tensor) else w for w in wanted]
        for handle, kind, value in before:
            if kind == "value":
                handle._node = value
            else:
                handle._grad = value
        for leaf, node in zip(leaves, kept):
            leaf._node = node
        result = entry.run(
            entry.inputs(inputs[: entry.arguments]),
            self.memory or current_strategy(),
            (args, kwargs),
        )
        for i, (made, right) in enumerate(zip(flatten(result)[0], wanted)):
            if isinstance(made, Tensor) and not np.array_equal(
                made.numpy(), right, equal_nan=made.dtype.is_float
            ):
                raise InternalError(
                    f"trace of {self.__name__}: result {i} differs from that of the Python function"
                )
        return result

    def _profiled(self, entry: Traced, inputs: list[Node], strategy: str, arguments: tuple) -> Any:
        self._profile: list[dict[str, Any]] = []

        def watch(plan: Any, number: int, start: int, end: int) -> None:
            node = plan.steps[number].slot.node
            self._profile.append(
                {"step": number, "op": node.sig.op.name, "ns": end - start, "place": node.place}
            )

        WATCHERS.append(watch)
        try:
            return entry.run(inputs, strategy, arguments)
        finally:
            WATCHERS.remove(watch)

    def placement(self) -> dict[str, Any]:
        """Return on which devices the ops of the last run are, and why.

        Returns
        -------
        dict
            As ``Graph.placement`` describes it. ``"prologue"`` is the same for what depends on parameters alone and is
            computed once for each of their versions, or None.

        Raises
        ------
        TraceError
            The function has not run as a plan of its own.
        """
        return self._last_plan("placement").placement()

    def memory_report(self) -> dict[str, Any]:
        """Return the memory of the plan of the last run, as ``Graph.memory`` describes it.

        Raises
        ------
        TraceError
            The function has not run as a plan of its own.
        """
        return self._last_plan("memory").plan.memory_report()

    def _last_plan(self, what: str) -> Any:
        plans = list(self.last.plans.values()) if self.last is not None else []
        if not plans:
            raise TraceError(
                f"trace of {self.__name__}: {what} is known once it has run as a plan",
                hint="call it first, outside a GradManager",
            ).add_place(user_place())
        return plans[-1]

    def get_profile(self) -> list[dict[str, Any]]:
        """Return op, nanoseconds and line of each step of the last profiled run."""
        return list(getattr(self, "_profile", []))
