"""Tapes: what gradient managers watch, and the history that is kept for them.

In: nodes to watch, nodes that are computed meanwhile. Out: ``Tape``, and the ``ACTIVE`` ones.
After ``graph``; before ``grad``.
"""

from __future__ import annotations

from collections.abc import Iterable

from .graph import GET, LOCAL, Node, Recording
from .mode import MODE


class Tape:
    """What one manager watches, and the history that it keeps alive until ``release``.

    Attributes
    ----------
    watched, first : set of Node
        Nodes by which the manager differentiates; those of them that it began with, which are constant.
    kept : set of Node
        Computed nodes whose inputs are kept because a gradient may need them.
    outputs : dict of (node, output) to Node
        The computed ``get`` nodes among them, by what they read.
    earlier : list of (Recording, int)
        Recordings, up to a position, from before the manager became active: constant for it.
    before : set of Node
        What other active tapes kept at that time: constant too.
    """

    def __init__(self) -> None:
        self.watched: set[Node] = set()
        self.first: set[Node] = set()
        self.kept: set[Node] = set()
        self.outputs: dict[tuple[Node, int], Node] = {}
        self.earlier: list[tuple[Recording, int]] = []
        self.before: set[Node] = set()

    def __contains__(self, node: object) -> bool:
        """Whether what led to a node is constant for this tape."""
        if node in self.first or node in self.before:
            return True
        return any([r.index.get(node, count) < count for r, count in self.earlier])  # type: ignore[call-overload]

    def begin(self, watched: Iterable[Node]) -> None:
        """Become active: watch these nodes; what has been recorded so far is constant."""
        self.first.update(watched)
        self.watched.update(self.first)
        recordings = [MODE.get().recording or LOCAL.recording, LOCAL.requested]
        self.earlier = [(r, len(r.tokens)) for r in recordings if r is not None and r.tokens]
        for other in ACTIVE:
            self.before |= other.kept
        ACTIVE.append(self)

    def keep(self, node: Node) -> None:
        """Keep the history of a node that has just been computed."""
        self.kept.add(node)
        if node.sig.op is GET:
            self.outputs[node.inputs[0], node.sig.attrs[0][1]] = node

    def release(self) -> None:
        """Drop the history, but for what another active tape keeps."""
        kept, self.kept = self.kept, set()
        self.watched.clear()
        self.first.clear()
        self.outputs.clear()
        self.earlier.clear()
        self.before.clear()
        others = [tape for tape in ACTIVE if tape is not self]
        for node in kept:
            if node.buffer is not None and not any(node in tape.kept for tape in others):
                node.inputs = ()


ACTIVE: list[
    Tape
] = []  # of all threads: what is computed meanwhile keeps the history that a tape needs
