"""Reading the text of graphs: what is read, what is refused and how the error says it."""

import math
import sys

import numpy as np
import pytest

import mge.functional as F
from mge import parse
from mge.errors import FileFormatError
from mge.graph import Graph
from mge.jit import trace
from mge.op import OPS, op
from mge.parse import parse_graph
from mge.tensor import tensor
from mge.text import print_graph
from mge.types import abstract

HEAD = "graph(%0: f32[2, 3], %1: f32[3, 4] slow) {\n"
GOOD = HEAD + "  %2: f32[2, 4] = matmul(%0, %1)\n  return %2\n}"


@pytest.fixture
def everything():
    """An op with an attribute of each kind, which lives for one test."""

    @op(name="test::everything")
    def everything(
        x, *, t: str = "", f: float = 0.0, i: int = 0, b: bool = False, d: tuple[int, ...] = (),
        o: int | None = None, y: bytes = b"", g: Graph | None = None, w: tuple[str, ...] = (),
    ):  # fmt: skip
        return abstract(x.shape, x.dtype), abstract((), x.dtype)

    yield everything
    del OPS["test::everything"]


def text_of(attrs):
    lines = ["graph(%0: f32[2]) {", f"  %1: (f32[2], f32[]) = test::everything(%0) {{{attrs}}}"]
    return "\n".join([*lines, "  %2: f32[] = get(%1) {index=1}", "  return %2, %0", "}"])


VALUES = [
    "t='quote \\' and \\\\ and \\n'", 't="it\'s"', "t='\\x00\\x7f\\u20ac\\U0001f600'", "t='é }'", "f=nan", "f=inf",
    "f=-inf", "f=1e-05", "f=-0.1", "f=1e+300", "i=-9223372036854775808", "b=True", "d=()", "d=(1,)", "d=(1, -2)",
    "o=None", "o=7", "y=0x", "y=0x00ff10", "g=None", "w=('a', 'b,')",
    "g=graph(%0: f32[2]) {\n    %1: f32[2] = neg(%0)\n    return %1\n  }",
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES)
def test_each_kind_of_value_prints_as_it_was_read(everything, value):
    graph = parse_graph(text_of(value))
    printed = print_graph(graph)
    again = parse_graph(printed)
    assert again == graph and print_graph(again) == printed
    name, _, given = value.partition("=")
    shown = given if given[0] not in "'\"" else repr(graph.nodes[0].attrs[name])
    assert f"{name}={shown}" in printed
    if value == "f=nan":
        assert math.isnan(graph.nodes[0].attrs["f"])


def test_the_graph_of_a_trace_is_read_back():
    weight = tensor(np.arange(6.0).reshape(3, 2))

    @trace
    def function(x):
        y = F.cond(F.sum(x) > 0, lambda v: v * 2, lambda v: v - 1, x)
        return F.topk(F.matmul(y, weight), 1)

    function(tensor(np.ones((2, 3))))
    graph = function.last.graph
    assert parse_graph(print_graph(graph)) == graph


def test_slow_inputs_stay_slow():
    graph = parse_graph(GOOD)
    assert [bool(n.sig.attrs) for n in graph.inputs] == [False, True]
    assert print_graph(graph).splitlines()[0] == GOOD.splitlines()[0]


def test_spaces_and_line_ends_do_not_matter():
    assert parse_graph(" ".join(GOOD.split())) == parse_graph(GOOD)
    assert parse_graph(GOOD.replace(" = ", "=\n")) == parse_graph(GOOD)


BAD = [
    (GOOD[:-1], "line 4, column 1: the text ends"),
    (GOOD + "x", "line 4, column 2: found 'x'; the end must stand here"),
    (GOOD.replace("%2: f32[2, 4]", "%2: f32[2, 5]"), r"line 2, column 19: the text gives matmul .*f32\[2, 5\]; "),
    (GOOD.replace("return %2", "return %7"), "line 3, column 10: found %7; a value is defined above"),
    (GOOD.replace("(%0, %1)", "(%2, %1)"), "found %2; a value is defined above"),
    (GOOD.replace("%2: f32", "%0: f32"), "found %0 again; each value is defined once"),
    (GOOD.replace("matmul", "no_such_op"), "found the op 'no_such_op'; this mge has no such op"),
    (GOOD.replace("matmul", "vision::nms"), r"no installed plugin offers 'vision'\n(.*\n)?.*pip install mge-vision"),
    (GOOD.replace("(%0, %1)", "(%0)"), "found 1 inputs of matmul; it takes 2"),
    (GOOD.replace("(%0, %1)", "(%1, %0)"), "the rule of matmul refuses f32"),
    (GOOD.replace("(%0, %1)", "(%0, %1) {colour=1}"), "found the attribute 'colour'; matmul has"),
    (GOOD.replace("(%0, %1)", "(%0, %1) {compute_mode=3}"), "the rule of matmul refuses"),
    (GOOD.replace("(%0, %1)", "(%0, %1) {compute_mode=<function f>}"), "a Python function has no text"),
    (GOOD.replace("(%0, %1)", "(%0, %1) {compute_mode='a\\qb'}"), "found the escape '.{2,3}q'"),
    (GOOD.replace("(%0, %1)", "(%0, %1) {compute_mode=__import__('os')}"), "found '__import__'; a value is"),
    (GOOD.replace("f32[2, 3]", "float[2, 3]"), "found 'float'; a type begins with one of bool, i8"),
    (GOOD.replace("f32[2, 3]", "f32[-2, 3]"), "sizes are at least 0"),
    (GOOD.replace("f32[2, 3]", "f32[9999999999, 9999999999, 9999999999]"), "at most"),
    (GOOD.replace("f32[2, 3]", f"f32[{'9' * 5000}]"), "numbers have at most 64 bits"),
    (GOOD.replace("f32[2, 3]", "f32[n, 3]"), "depends on n; no batch size was given"),
    (GOOD.replace("f32[2, 3]", "f32[2, 3] $"), "found .* that is no word of a graph's text"),
    (GOOD.replace("f32[2, 3]", "f32[2 3]"), "found '3'; ',' must stand here"),
    ("", "line 1, column 1: the text ends; 'graph' must stand here"),
    ("graph(%0: f32[]) { %1: f32[] = get(%0) {index=0} return %1 }", "found get"),
    ("graph(%0: f32[]) { %1: f32[] = constant() {data=0x00, shape=(), dtype=f32} return %1 }", "1 bytes were given"),
    ("graph(%0: f32[]) { %1: f32[] = constant() {data=0x0, shape=(), dtype=f32} return %1 }", "found"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD)
def test_a_wrong_text_is_an_error_with_its_place(text, message):
    with pytest.raises(FileFormatError, match=message):
        parse_graph(text)


def test_outputs_of_a_node_are_read_through_get(everything):
    text = text_of("").replace("return %2, %0", "return %1")
    with pytest.raises(
        FileFormatError, match="a value with 2 outputs; one of them is read through get"
    ):
        parse_graph(text)
    for index in ("2", "-1", "1.0", "True"):
        with pytest.raises(FileFormatError, match="found get"):
            parse_graph(text_of("").replace("index=1", f"index={index}"))


def test_nesting_is_bounded(everything):
    depth = sys.getrecursionlimit() * 20
    with pytest.raises(FileFormatError, match="tuples are nested at most"):
        parse_graph(text_of("d=" + "(" * depth))
    with pytest.raises(FileFormatError, match="graphs are nested at most"):
        parse_graph("graph() { %0: f32[] = call() {graph=" * depth)
    nested = "graph(%0: f32[]) { return %0 }"
    for _ in range(parse.MAX_GRAPHS - 1):
        nested = f"graph(%0: f32[]) {{ %1: f32[] = call(%0) {{graph={nested}}} return %1 }}"
    parse_graph(nested)


def test_size_is_bounded(monkeypatch):
    monkeypatch.setattr(parse, "MAX_CHARACTERS", 10)
    with pytest.raises(FileFormatError, match="at most 10 are read"):
        parse_graph(GOOD)


def test_a_long_text_is_read_in_linear_time():
    lines = [f"  %{i}: f32[2] = neg(%{i - 1})" for i in range(1, 20_001)]
    text = "\n".join(["graph(%0: f32[2]) {", *lines, "  return %20000", "}"])
    assert len(parse_graph(text).nodes) == 20_000


def test_any_cut_text_is_one_of_our_errors():
    for end in range(len(GOOD)):
        with pytest.raises(FileFormatError):
            parse_graph(GOOD[:end])


# Batch sizes.


def test_numbers_may_depend_on_n():
    text = "graph(%0: f32[2*n, 3], %1: f32[n+1, 3]) {\n  return %0, %1\n}"
    shapes = [i.type.shape for i in parse_graph(text, n=4).inputs]
    assert shapes == [(8, 3), (5, 3)]
    assert [i.type.shape for i in parse_graph(text.replace("n+1", "n-1"), n=4).inputs] == [
        (8, 3),
        (3, 3),
    ]
    assert [i.type.shape for i in parse_graph(text.replace("n+1", "-1*n+9"), n=4).inputs] == [
        (8, 3),
        (5, 3),
    ]
    with pytest.raises(FileFormatError, match="sizes are at least 0"):
        parse_graph(text.replace("n+1", "n-9"), n=4)
