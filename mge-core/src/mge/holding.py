"""What is held: which results somebody can still read, and which memory nobody else can see.

In: recordings and their nodes. Out: ``held``, ``is_donatable``; both count references.
After ``buffer``; before ``run``.
"""

from __future__ import annotations

from sys import getrefcount
from typing import Any

from .buffer import Buffer
from .graph import Node, Recording


def _calibrate() -> tuple[int, int]:
    """Return the reference counts of a node that only its recording holds, and of a buffer that only a node holds."""
    index = {Node(None, (), None, Buffer(None)): 0}  # type: ignore[arg-type]
    nodes = list(index)
    counts = list(map(getrefcount, nodes))  # as ``held`` counts
    return counts[0], getrefcount(nodes[0].buffer)


_UNHELD, _UNSHARED = _calibrate()


def is_donatable(buffer: Any) -> bool:
    """Whether a buffer is memory of the pool that only its node sees (and the caller's argument)."""
    return (
        buffer.__class__ is Buffer
        and buffer.pool is not None
        and getrefcount(buffer) <= _UNSHARED + 1
    )


def held(recording: Recording, nodes: list[Node]) -> tuple[list[int], list[int]]:
    """Return the positions of results that somebody holds, and of leaves that nobody else can see.

    ``nodes`` are those of the recording, and the only list of them. The native part has the same in C++.
    """
    tokens = recording.tokens
    refs = list(map(getrefcount, nodes))
    edges = [_UNHELD] * len(tokens)
    for token in tokens:
        if token.__class__ is tuple:
            for position in token[1:]:
                edges[position] += 1
    for _, before in recording.rebinds.values():
        position = recording.index.get(before)
        if position is not None:
            edges[position] += 1
    wanted, donated = [], []
    for i, token in enumerate(tokens):
        if token.__class__ is tuple:
            if refs[i] > edges[i] and token[0].single:
                wanted.append(i)
        elif refs[i] <= edges[i] and is_donatable(nodes[i].buffer):
            donated.append(i)
    return wanted, donated
