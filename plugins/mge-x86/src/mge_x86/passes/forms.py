"""The forms of a value during the layout pass: its elements in memory in one order of the axes or another.

In: nodes of the old graph. Out: nodes of the new one, in the order of axes that a reader asks for.
After ``build``; before ``layout``.

An order is a tuple: ``axes[p]`` is the logical axis that lies at position ``p`` in memory. (0, 1, 2, 3) is the order
in which a value was recorded, and (0, 2, 3, 1) of images (n, c, h, w) puts the channels last. Axes of one element may
stand anywhere, so two orders that differ in those only are one.
"""

from __future__ import annotations

from collections.abc import Sequence

from mge.graph import Node

from .build import Axes, Builder, is_ordered


def plain(ndim: int) -> Axes:
    """Return the order in which a value was recorded."""
    return tuple(range(ndim))


def channels_last(ndim: int) -> Axes:
    """Return the order with axis 1, the channels, at the end."""
    return (0, *range(2, ndim), 1)


def moved(shape: Sequence[int], axes: Axes) -> tuple[int, ...]:
    """Return a shape in another order."""
    return tuple(shape[a] for a in axes)


class Forms:
    """For each node of the old graph its forms in the new one; the first is the one that was computed."""

    def __init__(self, build: Builder) -> None:
        self.build = build
        self._known: dict[Node, dict[Axes, Node]] = {}
        self._spread: dict[Node, Node] = {}  # results of broadcast_to -> what they repeat

    def put(self, old: Node, axes: Axes, new: Node) -> None:
        """Note a form of a value."""
        self._known.setdefault(old, {})[axes] = new

    def put_spread(self, old: Node, source: Node) -> None:
        """Note that a value repeats another: repeating another form of that costs nothing more."""
        self._spread[old] = source

    def native(self, old: Node) -> Axes:
        """Return the order in which a value was computed."""
        return next(iter(self._known[old]))

    def is_plain(self, old: Node) -> bool:
        """Whether a value exists in the order in which it was recorded."""
        return self.cost(old, plain(old.type.ndim)) == 0

    def plain(self, old: Node) -> Node:
        """Return a value in the order in which it was recorded."""
        return self.get(old, plain(old.type.ndim))

    def cost(self, old: Node, axes: Axes) -> int:
        """Return the bytes that must be moved to have a value in an order of (at least as many) axes."""
        if old.type.ndim < len(axes):
            return self.cost_aligned(old, axes)
        if self._nearest(old, axes) is not None:
            return 0
        if old in self._spread:
            return self.cost_aligned(self._spread[old], axes)
        return old.type.nbytes

    def cost_aligned(self, old: Node, axes: Axes) -> int:
        """Return the same for a value that is broadcast: axes of one element are put before its own."""
        missing = len(axes) - old.type.ndim
        if not missing:
            return self.cost(old, axes)
        real = [a - missing for a in axes if a >= missing and old.type.shape[a - missing] != 1]
        return 0 if is_ordered(real) and self.is_plain(old) else old.type.nbytes

    def get(self, old: Node, axes: Axes) -> Node:
        """Return a value in an order, made of the form that is nearest."""
        forms = self._known[old]
        found = forms.get(axes)
        if found is None:
            near = self._nearest(old, axes)
            if near is None and old in self._spread:
                small = self.aligned(self._spread[old], axes)
                shape = moved(old.type.shape, axes)
                found = self.build.make("broadcast_to", [small], old, shape=shape)
            else:
                near = self.native(old) if near is None else near
                found = self.build.transpose(forms[near], tuple(near.index(a) for a in axes), old)
            forms[axes] = found
        return found

    def aligned(self, old: Node, axes: Axes) -> Node:
        """Return a value in an order of more axes than it has: those of one element come first, as in broadcasting."""
        missing = len(axes) - old.type.ndim
        if not missing:
            return self.get(old, axes)
        if not old.type.ndim:
            return self.plain(old)
        wide = self.build.reshape(self.plain(old), (*(1,) * missing, *old.type.shape), old)
        return self.build.transpose(wide, axes, old)

    def _nearest(self, old: Node, axes: Axes) -> Axes | None:
        """Return an order from which no element has to move."""
        forms, shape = self._known[old], old.type.shape
        if axes in forms:
            return axes
        wanted = [a for a in axes if shape[a] != 1]
        return next((f for f in forms if [a for a in f if shape[a] != 1] == wanted), None)
