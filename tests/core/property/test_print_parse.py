"""The text of a graph: parsing it gives the graph, printing that gives the text, and it computes the same."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mge
from mge.capture import inline
from mge.errors import MgeError
from mge.graph import LOCAL, Recording
from mge.parse import parse_graph
from mge.text import print_graph
from tests.core.property.programs import programs


def graph_of(program):
    """Return the graph of a program; its leaves are the inputs."""
    recording = LOCAL.recording = Recording()
    leaves = program.tensors()
    for leaf in leaves:
        recording.enlist(leaf._node)
    results = program(*leaves)
    return recording.graph([r._node for r in results], [t._node for t in leaves])


@given(programs())
def test_text_is_a_graph(program):
    graph = graph_of(program)
    text = print_graph(graph)
    again = parse_graph(text)
    assert again == graph
    assert hash(again) == hash(graph)
    assert print_graph(again) == text


@given(programs(most_steps=6))
def test_a_parsed_graph_computes_the_same(program):
    again = parse_graph(print_graph(graph_of(program)))
    leaves = program.tensors()
    with np.errstate(all="ignore"):
        wanted = [t.numpy() for t in program(*leaves)]
        values = [t.numpy() for t in inline(again, program.tensors())]
    for one, other in zip(values, wanted, strict=True):
        assert one.dtype == other.dtype and one.tobytes() == other.tobytes()


@given(programs(most_steps=4), st.data())
def test_a_damaged_text_is_one_of_mges_errors(program, data):
    """Cut, doubled or changed characters give an error of mge or another graph, never anything else."""
    text = print_graph(graph_of(program))
    at = data.draw(st.integers(0, len(text) - 1))
    size = data.draw(st.integers(1, 8))
    with_what = data.draw(
        st.sampled_from(["", "%", "(", "}", "x", "-1", "[9", "\n", "é", text[at : at + size] * 2])
    )
    damaged = text[:at] + with_what + text[at + size :]
    try:
        graph = parse_graph(damaged)
    except MgeError:
        return
    assert parse_graph(print_graph(graph)) == graph


@pytest.mark.parametrize(
    "text", ["", "graph", "graph() {", "graph() {\n}", "graph(%0: f32[2]) {\n  return %1\n}"]
)
def test_text_that_is_no_graph(text):
    with pytest.raises(MgeError):
        parse_graph(text)


def test_the_text_form():
    x, w = mge.tensor([[1.0, 2.0]]), mge.tensor([[3.0, 4.0]])
    recording = LOCAL.recording = Recording()
    y = (x + w) * x
    assert print_graph(recording.graph([y._node])).splitlines() == [
        "graph(%0: f32[1, 2], %1: f32[1, 2]) {",
        "  %2: f32[1, 2] = add(%0, %1)",
        "  %3: f32[1, 2] = mul(%2, %0)",
        "  return %3",
        "}",
    ]
