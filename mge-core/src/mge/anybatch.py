"""One graph for all batch sizes: numbers that differ become ``a*n+b``.

In: a traced function and one run of it. Out: a text with ``n`` in it, or the reason why there is none.
After ``modelrecord``; before ``dump``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .errors import FileFormatError
from .graph import Graph, Node, leaf_signature
from .parse import TOKEN, Token, parse_graph
from .tensor import Tensor
from .text import print_graph
from .trace import trace
from .traced import Traced
from .tree import unflatten
from .types import Type

__all__: list[str] = []  # no name here is promised to users


class FixedBatch(Exception):
    """The graph is for one batch size, for this reason."""


def any_batch(
    traced: trace, entry: Traced, text: str, growing: Sequence[int] | None, slow: list[bool]
) -> tuple[str, int, list[int]]:
    """Record a function at other batch sizes and return one text for all.

    Parameters
    ----------
    traced : trace
    entry : Traced
        Its run at the batch size that was dumped.
    text : str
        Of that run.
    growing : sequence of int or None
        The inputs whose leading axis is the batch. None: the first that has an axis, and those of the same size.
    slow : list of bool
        Which weights are slow leaves.

    Returns
    -------
    (text, size, growing)

    Raises
    ------
    FixedBatch
        More than whole numbers differs, or a number is not ``a*n+b``.
    """
    types = [n.type for n in entry.graph.inputs[: entry.arguments]]
    if growing is None:
        first = next((t.shape[0] for t in types if t.ndim), None)
        growing = [i for i, t in enumerate(types) if t.ndim and t.shape[0] == first]
    sizes = {types[i].shape[:1] for i in growing}
    if len(sizes) != 1 or sizes == {()}:
        raise FixedBatch(f"its inputs {list(growing)} have no common leading axis")
    (size,) = sizes.pop()
    base = max(size, 2)  # at 1, broadcasting may give another graph
    texts = {
        n: text if n == size else _text_at(n, traced, entry, growing, slow)
        for n in (base, base + 1, base + 2)
    }
    general = generalised(texts[base], base, texts[base + 1], base + 1)
    for n, wanted in {**texts, size: text}.items():
        try:
            same = print_graph(parse_graph(general, entry.device, n=n)) == wanted
        except FileFormatError:
            same = False
        if not same:
            raise FixedBatch(
                f"at batch {n} its graph is not what those of {base} and {base + 1} suggest"
            )
    return general, size, list(growing)


def _text_at(n: int, traced: trace, entry: Traced, growing: Sequence[int], slow: list[bool]) -> str:
    """Return the text of the function's graph at another batch size."""
    form, leaves = entry.example
    resized: list[Any] = []
    count = 0
    for i, leaf in enumerate(leaves):
        is_tensor = isinstance(leaf, (Tensor, np.ndarray))
        resized.append(_resized(leaf, n) if is_tensor and count in growing else leaf)
        count += is_tensor or (type(leaf) in (int, float) and i not in traced._static)
    args, kwargs = unflatten(form, resized)
    try:
        other = traced._trace(args, kwargs)
    except Exception as error:  # of the user's function, which may not take this size
        raise FixedBatch(
            f"recording it at batch {n} failed: {str(error).splitlines()[0]}"
        ) from error
    same = [k for _, k in other.captured] == [k for _, k in entry.captured]
    same = same and all(
        _same_source(a, b) for (a, _), (b, _) in zip(entry.captured, other.captured)
    )
    same = same and _effects(entry) == _effects(other)
    if not same or other.form != entry.form or other.results != entry.results:
        raise FixedBatch(f"at batch {n} it uses other tensors, or returns other plain values")
    return print_graph(with_slow_weights(other.graph, other.arguments, slow))


def _effects(entry: Traced) -> list[tuple]:
    return [(h if kind == "argument" else id(h), kind, o) for h, kind, o in entry.effects]


def _same_source(one: Any, other: Any) -> bool:
    """Whether two captured things are one handle, or nodes with equal values."""
    if one is other or not isinstance(one, Node) or not isinstance(other, Node):
        return one is other
    return one.type is other.type and one.buffer.array.tobytes() == other.buffer.array.tobytes()


def _resized(leaf: Any, n: int) -> Any:
    if isinstance(leaf, np.ndarray):
        return np.broadcast_to(np.zeros((), leaf.dtype), (n, *leaf.shape[1:]))
    type_ = Type((n, *leaf.shape[1:]), leaf.dtype)
    return type(leaf).from_node(Node(leaf_signature(type_, leaf.device), (), type_))


def with_slow_weights(graph: Graph, arguments: int, slow: list[bool]) -> Graph:
    """Return the graph with its weights marked as slow leaves, as they are in a loaded model."""
    new: dict[Node, Node] = {}
    for i, node in enumerate(graph.inputs):
        is_slow = bool(node.sig.attrs) if i < arguments else slow[i - arguments]
        new[node] = Node(leaf_signature(node.type, node.sig.device, is_slow), (), node.type)
    for node in graph.nodes:
        inputs = tuple([new[i] for i in node.inputs])
        new[node] = Node(node.sig, inputs, node.type, None, node.code, node.offset)
    return Graph(
        tuple([new[i] for i in graph.inputs]),
        tuple([new[i] for i in graph.nodes]),
        tuple([new[o] for o in graph.outputs]),
    )


def _tokens(text: str) -> Iterator[Token]:
    position = 0
    while True:
        match = TOKEN.match(text, position)
        if match is None:
            raise FixedBatch(f"its text holds {text[position : position + 20].strip()!r}")
        kind = match.lastgroup or ""
        yield Token(kind, match[kind], match.start(kind))
        if kind == "end":
            return
        position = match.end()


def generalised(first: str, n_first: int, second: str, n_second: int) -> str:
    """Return a text that gives the first for one batch size and the second for another.

    Whole numbers that differ become ``a*n+b``.

    Raises
    ------
    FixedBatch
        Something else differs, or a number does not grow by whole steps.
    """
    pieces, done = [], 0
    for one, two in zip(_tokens(first), _tokens(second)):
        if one.kind == two.kind and one.text == two.text:
            continue
        line = first[first.rfind("\n", 0, one.start) + 1 :].partition("\n")[0].strip()[:100]
        if one.kind != "integer" or two.kind != "integer":
            raise FixedBatch(
                f"more than whole numbers differs between batch {n_first} and {n_second}, at: {line}"
            )
        a, rest = divmod(int(two.text) - int(one.text), n_second - n_first)
        if rest:
            values = f"{one.text} at batch {n_first} and {two.text} at batch {n_second}"
            raise FixedBatch(f"{values} are not a*n+b, at: {line}")
        b = int(one.text) - a * n_first
        pieces += [first[done : one.start], f"{a}*n" if a != 1 else "n", f"{b:+}" if b else ""]
        done = one.start + len(one.text)
    return "".join([*pieces, first[done:]])
