"""Whether a graph holds together: order, types, and that a pass kept the interface.

In: a graph. Out: nothing, or an InternalError that names the pass and the node.
After ``rewrite``; before ``schedule``.
"""

from __future__ import annotations

from ..errors import InternalError, MgeError
from ..graph import GET, Graph


def verify(graph: Graph, name: str, before: Graph | None = None) -> None:
    """Check a graph after a pass.

    Raises
    ------
    InternalError
        A node comes before its input, an op's rule gives other types than the node has, or the inputs or the
        types of the outputs changed.
    """
    if before is not None:
        if [n.type for n in before.inputs] != [n.type for n in graph.inputs]:
            raise InternalError(f'pass "{name}" changed the inputs of the graph')
        if [n.type for n in before.outputs] != [n.type for n in graph.outputs]:
            raise InternalError(f'pass "{name}" changed the types of the outputs')
    position = {node: i for i, node in enumerate((*graph.inputs, *graph.nodes))}
    for node in graph.nodes:
        label = f"node %{position[node]} ({node.sig.op.name})"
        for x in node.inputs:
            if position.get(x, len(position)) >= position[node]:
                raise InternalError(f'pass "{name}" left {label} before one of its inputs')
        if node.sig.op is GET:
            types = node.inputs[0].sig.types
            if types[node.sig.attrs[0][1]] is not node.type:
                raise InternalError(
                    f'pass "{name}" left {label} with type {node.type}; its input gives {types}'
                )
            continue
        given = tuple(x.type for x in node.inputs)
        if given != node.sig.input_types:
            raise InternalError(
                f'pass "{name}" left {label} with inputs {given}; its signature is {node.sig!r}'
            )
        try:
            made = node.sig.op.rule(*given, **dict(node.sig.attrs))
        except MgeError as error:
            raise InternalError(
                f'pass "{name}" left {label} that its rule refuses: {error}'
            ) from error
        made = tuple(made) if isinstance(made, (tuple, list)) else (made,)
        if made != node.sig.types:
            raise InternalError(
                f'pass "{name}" left {label} with types {node.sig.types}; its inputs give {made}'
            )
    for output in graph.outputs:
        if output not in position:
            raise InternalError(f'pass "{name}" lost an output of type {output.type}')
