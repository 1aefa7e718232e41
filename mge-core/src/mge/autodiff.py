"""What users call for gradients: ``GradManager`` and ``Function``.

In: tensors to differentiate by. Out: their ``.grad``.
After ``module``; before ``jit``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from . import graph
from .capture import capture
from .errors import ArgumentError, DTypeError, ShapeError, TraceError, user_place
from .grad import gradient_nodes, gradients
from .graph import Node
from .mode import MANAGERS, MODE
from .op import OPS, record_nodes
from .ops import create
from .tape import ACTIVE, Tape
from .tensor import Tensor

__all__ = ["Function", "GradManager", "gradients"]

Callback = Callable[[Tensor, Tensor], Tensor]


class GradManager:
    """Adds gradients by the tensors attached to it to their ``.grad``.

    Only calls made while the manager is active count (inside ``with gm:``, or between ``record()`` and
    ``release()``), and each attached tensor counts as what it was when the manager became active, or when it was
    attached. ``backward`` and ``release`` drop the history. Several managers may be active at once, also one
    inside another: the inner one's gradients are differentiable by the outer one.

    Examples
    --------
    >>> from mge.autodiff import GradManager
    >>> w = tensor([1.0, 2.0])
    >>> gm = GradManager().attach(w)
    >>> with gm:
    ...     gm.backward((w * w).sum())
    >>> w.grad
    Tensor([2., 4.], dtype=float32, device=ref:0)
    """

    def __init__(self) -> None:
        self._attached: dict[int, tuple[weakref.ref[Tensor], list[Callback]]] = {}
        self._snapshot: dict[int, Node] = {}
        self._tape: Tape | None = None

    def attach(
        self,
        tensors: Tensor | Iterable[Tensor],
        callbacks: Callback | Sequence[Callback] | None = None,
    ) -> GradManager:
        """Differentiate by these tensors too; returns the manager.

        Parameters
        ----------
        tensors : tensor or iterable of tensor
            Of float dtypes. The manager holds them weakly.
        callbacks : callable or sequence of callable, optional
            ``callback(tensor, grad) -> grad``, called in order once after the backward pass was recorded.

        Raises
        ------
        DTypeError
            A tensor is not of a float dtype.
        """
        several = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        added = [callbacks] if callable(callbacks) else list(callbacks or ())
        for tensor in several:
            if not isinstance(tensor, Tensor):
                raise DTypeError(
                    f"attach: {tensor!r} is a {type(tensor).__name__}; only tensors can be attached"
                ).add_place(user_place())
            if not tensor.dtype.is_float:
                raise DTypeError(
                    f"attach: the tensor is {tensor._node.type}; only float tensors have gradients"
                ).add_place(user_place())
        for tensor in several:
            known = self._attached.get(id(tensor))
            if known is not None and known[0]() is tensor:
                known[1].extend(added)
            else:
                self._attached[id(tensor)] = (weakref.ref(tensor), added.copy())
            if self._tape is not None and id(tensor) not in self._snapshot:
                self._snapshot[id(tensor)] = tensor._node
                self._tape.watched.add(tensor._node)
        return self

    def attached_tensors(self) -> list[Tensor]:
        """Return the attached tensors that are still alive."""
        return [t for ref, _ in self._attached.values() if (t := ref()) is not None]

    def record(self) -> None:
        """Become active.

        Raises
        ------
        TraceError
            The manager is active already.
        """
        if self._tape is not None:
            raise TraceError(
                "GradManager: it is recording already", hint="one `with gm:` at a time"
            ).add_place(user_place())
        self._tape = tape = Tape()
        for key, (ref, _) in list(self._attached.items()):
            tensor = ref()
            if tensor is None:
                del self._attached[key]
            else:
                self._snapshot[key] = tensor._node
        tape.begin(self._snapshot.values())
        MANAGERS.set((*MANAGERS.get(), self))

    def release(self) -> None:
        """Stop recording and drop the history."""
        if self._tape is None:
            return
        tape, self._tape = self._tape, None
        ACTIVE.remove(tape)
        tape.release()
        self._snapshot.clear()
        MANAGERS.set(tuple(m for m in MANAGERS.get() if m is not self))

    def backward(
        self,
        y: Tensor | Sequence[Tensor] | None = None,
        dy: Tensor | Sequence[Tensor] | None = None,
    ) -> None:
        """Add the gradients of ``y`` to each attached tensor's ``.grad``, then release.

        Parameters
        ----------
        y : float tensor, or sequence of them, optional
            None: callbacks run for tensors that have a ``.grad``, and nothing else happens.
        dy : of the shapes and dtypes of ``y``, optional
            By default ones.

        Raises
        ------
        TraceError
            The manager is not active.
        DTypeError, ShapeError
            ``y`` is not of a float dtype, or ``dy`` does not fit it.
        """
        try:
            self._backward(y, dy)
        finally:
            self.release()
        _end_backward([self])

    def _backward(self, y: Any, dy: Any) -> None:
        if self._tape is None:
            raise TraceError(
                "GradManager: backward was called while the manager is not recording; nothing is known about y",
                hint="compute y and call backward inside `with gm:`",
            ).add_place(user_place())
        ys = [] if y is None else [y] if isinstance(y, Tensor) else list(y)
        dys = [None] * len(ys) if dy is None else [dy] if isinstance(dy, Tensor) else list(dy)
        _check(ys, dys)
        snapshot = self._snapshot
        alive = [
            (t, callbacks, snapshot[key])
            for key, (ref, callbacks) in self._attached.items()
            if key in snapshot and (t := ref()) is not None
        ]
        targets = [node for _, _, node in alive]
        found = (
            gradient_nodes([t._node for t in ys], targets, dys, self._tape)
            if ys
            else [None] * len(targets)
        )
        for (tensor, callbacks, _), gradient in zip(alive, found):
            if gradient is None:
                continue
            for callback in callbacks:
                gradient = callback(tensor, gradient)
                if not isinstance(gradient, Tensor):
                    raise ArgumentError(
                        f"GradManager: a callback returned {gradient!r}; it must return the gradient, a tensor"
                    )
            before = tensor.grad
            tensor.grad = gradient if before is None else before + gradient

    def __enter__(self) -> GradManager:
        self.record()
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def __or__(self, other: GradManager) -> GradManagerGroup:
        return GradManagerGroup([self, other])


class GradManagerGroup:
    """Several managers used as one: ``with gm1 | gm2:``."""

    def __init__(self, managers: Sequence[GradManager]) -> None:
        self._managers = list(managers)

    def __or__(self, other: GradManager | GradManagerGroup) -> GradManagerGroup:
        return GradManagerGroup(
            [
                *self._managers,
                *(other._managers if isinstance(other, GradManagerGroup) else [other]),
            ]
        )

    def record(self) -> None:
        """Make all of them active."""
        for manager in self._managers:
            manager.record()

    def release(self) -> None:
        """Release all of them."""
        for manager in self._managers:
            manager.release()

    def backward(self, y: Any = None, dy: Any = None) -> None:
        """Add the gradients of ``y`` by the tensors of each manager, then release all."""
        try:
            for manager in self._managers:
                manager._backward(y, dy)
        finally:
            self.release()
        _end_backward(self._managers)

    def __enter__(self) -> GradManagerGroup:
        self.record()
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def _end_backward(managers: Sequence[GradManager]) -> None:
    """Compute the gradients in eager mode, now that the history is gone; else the pending graph may be cut here."""
    mode = MODE.get()
    if mode.eager and mode.recording is None:
        graph.evaluate(
            [t.grad._node for m in managers for t in m.attached_tensors() if t.grad is not None]
        )
    graph.boundary()


def _check(ys: Sequence[Any], dys: Sequence[Any]) -> None:
    if len(ys) != len(dys):
        raise ArgumentError(
            f"backward: {len(ys)} results and {len(dys)} gradients were given; there must be as many"
        ).add_place(user_place())
    for y, dy in zip(ys, dys):
        if not isinstance(y, Tensor) or not y.dtype.is_float:
            given = y._node.type if isinstance(y, Tensor) else type(y).__name__
            raise DTypeError(f"backward: y is {given}; it must be a float tensor").add_place(
                user_place()
            )
        if dy is not None and dy._node.type is not y._node.type:
            raise ArgumentError(
                f"backward: dy is {dy._node.type} and y is {y._node.type}; they must be the same"
            ).add_place(user_place())


class Function:
    """An operation with a gradient of its own, made by subclassing.

    One instance serves one call.
    ``forward(*tensors)`` returns one tensor or a tuple of them. ``backward(*output_grads)`` returns one gradient
    for each input, or None where no gradient flows. It is recorded at the call, so it must not read values
    (``mge.functional.host_call`` runs Python on values).

    Examples
    --------
    >>> from mge.autodiff import Function
    >>> class Double(Function):
    ...     def forward(self, x):
    ...         return x * 2
    ...     def backward(self, dy):
    ...         return dy * 2
    >>> Double()(tensor([1.0, 2.0]))
    Tensor([2., 4.], dtype=float32, device=ref:0)
    """

    def forward(self, *inputs: Tensor) -> Any:
        """Return the results. Subclasses write this."""
        raise NotImplementedError(f"{type(self).__name__}.forward is not written")

    def backward(self, *output_grads: Tensor) -> Any:
        """Return the gradient by each input. Subclasses write this."""
        raise NotImplementedError(f"{type(self).__name__}.backward is not written")

    def __call__(self, *inputs: Tensor) -> Any:
        for x in inputs:
            if not isinstance(x, Tensor):
                raise DTypeError(
                    f"{type(self).__name__}: an input is a {type(x).__name__}; positional inputs must be tensors",
                    hint="pass other values to the constructor",
                ).add_place(user_place())
        plain = [x.detach() for x in inputs]
        made = self.forward(*plain)
        several = isinstance(made, (tuple, list))
        results = list(made) if several else [made]
        if not ACTIVE and MODE.get().recording is None:
            return tuple(results) if several else made
        floats = [x.dtype.is_float for x in inputs]

        def backward(*dys: Tensor) -> tuple:
            grads = self.backward(*dys)
            grads = list(grads) if isinstance(grads, (tuple, list)) else [grads]
            if len(grads) != len(inputs):
                raise ArgumentError(
                    f"{type(self).__name__}.backward returned {len(grads)} gradients for {len(inputs)} inputs"
                ).add_place(user_place())
            for k, (x, g) in enumerate(zip(inputs, grads)):
                if g is not None and floats[k] and (g.shape, g.dtype) != (x.shape, x.dtype):
                    raise ShapeError(
                        f"{type(self).__name__}.backward: gradient {k} is {g._node.type}; "
                        f"input {k} is {x._node.type}, and both must be the same"
                    ).add_place(user_place())
            return tuple(
                create.zeros_like(x) if g is None else g
                for x, g, f in zip(inputs, grads, floats)
                if f
            )

        device = results[0].device
        backward_graph, captured, _, _ = capture(
            backward, [r._node.type for r in results], device, f"{type(self).__name__}.backward"
        )
        # What backward saved of the inputs and results is differentiable: the input itself, the result of this node.
        inputs_by_node = {id(p._node): x._node for p, x in zip(plain, inputs)}
        results_by_node = {id(r._node): k for k, r in enumerate(results)}
        own = tuple(results_by_node.get(id(n), -1) for n in captured)
        others = [inputs_by_node.get(id(n), n) for n, k in zip(captured, own) if k < 0]
        nodes = [*(x._node for x in inputs), *(r._node for r in results), *others]
        attrs = OPS["custom"].normal_attrs(
            {
                "backward": backward_graph,
                "inputs": len(inputs),
                "outputs": len(results),
                "own": own,
            }
        )
        outputs = record_nodes(
            OPS["custom"].signature([n.type for n in nodes], attrs, device), nodes
        )
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return outputs if several else outputs[0]
