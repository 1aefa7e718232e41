"""Fused loops: the language, what the pass puts into loops, and equal values for random graphs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mge
import mge.functional as F
import mge.module as M
from mge import device as device_module
from mge.autodiff import GradManager
from mge.debug import debug
from mge.errors import ArgumentError

from .standin import check, counted, device, recorded

loops = pytest.importorskip("mge_x86.loops", reason="the plugin mge-x86 is not installed")


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    monkeypatch.setattr(device_module, "_default", [device()])
    with debug(check=1):
        yield


def draw(*shape, seed=0):
    return mge.tensor(np.random.default_rng(seed).normal(size=shape).astype("float32"))


def programs(graph):
    return [dict(n.sig.attrs)["program"] for n in graph.nodes if n.sig.op.name == "x86::chain"]


def fused(function):
    """Return the loops of a function's graph after all passes, once its values are those of the plain graph."""
    graph, values = recorded(function)
    optimised = check(graph, values)
    return programs(optimised), optimised


def test_a_loop_reads_back_from_its_text():
    loop = loops.Loop(4, 8)
    x, a, r = loop.input("full"), loop.input("column"), loop.input("full", True)
    y = loop.add("where", r, loop.add("mul", x, a), 0.1)
    loop.stores = [y, loop.add("sum", y), loop.add("less", y, x) + " bool"]
    again = loops.parse(str(loop))
    assert str(again) == str(loop) and again.kinds == loop.kinds
    assert loop.add("mul", x, a) == "v0"  # an equal step is taken once
    arrays = [np.ones((4, 8)), np.arange(8.0), np.arange(32).reshape(4, 8) % 2 > 0]
    for one, other in zip(loop.run(arrays), again.run(arrays)):
        assert np.array_equal(one, other)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it stores nothing"),
        ("loop 2 x 2\nx0 full", "it stores nothing"),
        ("x0 full\nstore x0", "line 1 is 'x0 full'"),
        ("loop 2 x 2\nx1 full\nstore x1", "inputs are numbered from x0"),
        ("loop 2 x 2\nx0 large\nstore x0", "of kind full, row, column, scalar"),
        ("loop 2 x 2\nx0 full\nv0 = nonsense x0\nstore v0", "there is no such step"),
        ("loop 2 x 2\nx0 full\nv0 = add x0\nstore v0", "add takes 2"),
        (
            "loop 2 x 2\nx0 full\nv0 = add x0 v1\nstore v0",
            "could not convert string to float: 'v1'",
        ),
        ("loop 2 x 2\nx0 full\nv1 = neg x0\nstore v1", "values are numbered from v0"),
        ("loop 2 x 2\nx0 column\nstore x0", "only values of kind full or row are stored"),
        ("loop 2 x 2\nx0 row\nv0 = sum x0\nstore v0", "only what differs along a row is reduced"),
        ("loop 2 x 2\nloop 2 x 2\nx0 full\nstore x0", "line 2"),
    ],
)
def test_a_wrong_text_names_its_line(text, problem):
    with pytest.raises(ArgumentError, match=problem):
        loops.parse(text)


def test_a_layer_norm_after_gelu_is_one_loop():
    x, res, a, b = draw(6, 40), draw(6, 40, seed=1), draw(40, seed=2), draw(40, seed=3)
    found, graph = fused(lambda: [F.layer_norm(F.gelu(x * a + b) + res, 40)])
    assert len(found) == 1 and found[0].startswith("loop 6 x 40\n")
    assert counted(graph)["x86::chain"] == 1 and "layer_norm" not in counted(graph)


def test_softmax_of_scaled_and_masked_scores_is_one_loop():
    x, mask = draw(2, 3, 4, 5), mge.tensor(draw(2, 3, 4, 5, seed=1).numpy() > 0)
    found, _ = fused(lambda: [F.softmax(F.where(mask, x * 0.5, x - 9.0), axis=-1)])
    assert len(found) == 1 and found[0].startswith("loop 24 x 5\n") and "bool" in found[0]


@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 3, 4), (2, 3, 4, 2)])
@pytest.mark.parametrize("function", [F.softmax, F.logsoftmax])
def test_softmax_without_an_axis_goes_along_that_of_classes(function, shape):
    x = draw(*shape)
    found, _ = fused(lambda: [function(x * 2.0)])
    assert bool(found) == (len(shape) <= 2)  # elsewhere the classes do not lie last


def test_one_op_stays_as_it_is():
    x = draw(4, 5)
    assert fused(lambda: [F.exp(x)])[0] == []


def test_a_path_through_another_op_splits_a_loop():
    x, w = draw(4, 4), draw(4, 4, seed=1)

    def function():
        y = F.exp(x * 2.0)
        return [y + F.matmul(y, w) * y]

    found, graph = fused(function)
    assert len(found) == 2 and graph.nodes


def test_what_is_not_fused_keeps_its_place():
    """The gradient of a weight is not put off until its update: it would keep two images alive."""

    def step():
        x, w, v = draw(8, 4), draw(4, 4, seed=1), draw(4, 4, seed=2)
        loop = F.exp(x @ w) * 2.0
        first = F.matmul(x, loop, transpose_a=True)  # read last of all
        last = F.tanh(F.relu(loop @ v))
        return last, first

    graph = fused(step)[1]
    names = [n.sig.op.name.removeprefix("x86::") for n in graph.nodes]
    products = [i for i, name in enumerate(names) if name in ("matmul", "linear")]
    loops_at = [i for i, name in enumerate(names) if name == "chain"]
    assert len(products) == 3 and len(loops_at) == 2
    assert loops_at[0] < products[1] < products[2] < loops_at[1]
    assert [dict(graph.nodes[i].sig.attrs).get("transpose_a", False) for i in products][1:] == [
        True,
        False,
    ]


def test_a_row_that_broadcasts_as_a_column_is_no_row():
    x = draw(5, 5)
    found, _ = fused(lambda: [x * 2.0 - F.sum(x * 2.0, axis=1)])  # (5,) lies along the columns
    assert all("sum" not in text or "sub" not in text for text in found)


@pytest.mark.parametrize("narrow", [(4, 1), (1, 6), (1, 1)])
@pytest.mark.parametrize(
    "last", [lambda x: [x], lambda x: [x, F.softmax(x, axis=1)], lambda x: [F.logical_not(x > 1.0)]]
)
def test_a_full_value_of_what_is_broadcast_is_full(narrow, last):
    """Of rows, columns or numbers alone a loop makes one number a row, column or loop."""
    x, y = draw(*narrow), draw(*narrow, seed=1)
    fused(lambda: last(F.exp(F.broadcast_to(x, (4, 6)) * y)))


def test_a_sum_of_sums_of_one_element_is_no_loop():
    x = draw(4, 1)

    def total():
        y = F.sum(x * 2.0, axis=1, keepdims=True)  # of the shape of x, and one number a row
        return [F.sum(F.exp(y), axis=1, keepdims=True)]

    assert fused(total)[0] == []


@pytest.mark.parametrize("is_first", [True, False])
def test_the_gradients_of_channels_scaled_by_their_means_are_fused(is_first):
    norm, conv = M.GroupNorm(2, 4), M.Conv2d(4, 4, 3, padding=1)
    net = M.Sequential(norm, conv) if is_first else M.Sequential(conv, norm)
    x, parameters = draw(2, 4, 6, 6), list(net.parameters())
    manager = GradManager().attach(parameters)
    mge.sync()

    def step():
        with manager:
            y = net(x)
            y = y * F.sigmoid(y.mean(axis=(2, 3), keepdims=True))
            loss = F.square(y.mean(axis=(2, 3))).mean()
            manager.backward(loss)
        return [loss, *(p.grad for p in parameters)]

    assert fused(step)[0]


def test_values_that_others_read_leave_the_loop():
    x, w = draw(3, 4), draw(4, 2, seed=1)

    def function():
        y = F.relu(x + 1.0)
        return [F.matmul(y, w), F.exp(y * 2.0)]

    found, _ = fused(function)
    assert len(found) == 1 and found[0].endswith("store v1, v3")


SHAPES = [(4, 6), (4, 1), (6,), (1, 6), ()]
UNARY = [
    F.exp,
    F.tanh,
    F.abs,
    F.sigmoid,
    F.relu,
    F.square,
    lambda x: -x,
    lambda x: F.clip(x, -1, 1),
    lambda x: F.broadcast_to(x, (4, 6)),
]
BINARY = [F.add, F.sub, F.mul, F.maximum, F.minimum, lambda x, y: F.where(x > y, x, y * 2.0)]
REDUCED = [
    lambda x: F.sum(x, axis=-1, keepdims=True), lambda x: F.mean(x, axis=1, keepdims=True),
    lambda x: F.max(x, axis=1, keepdims=True), lambda x: F.softmax(x, axis=1),
    lambda x: F.expand_dims(F.sum(x, axis=1), 1), lambda x: F.layer_norm(x, x.shape[-1], False),
    lambda x: F.sum(x, axis=0, keepdims=True), lambda x: F.matmul(x, F.broadcast_to(x[:1, :1], (x.shape[1],) * 2)),
]  # fmt: skip


@st.composite
def functions(draw_):
    """Random functions of five tensors whose shapes broadcast to (4, 6)."""
    steps = draw_(
        st.lists(
            st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)),
            min_size=2,
            max_size=14,
        )
    )
    kept = draw_(st.integers(1, 3))

    def function(inputs):
        values = list(inputs)
        for kind, first, second in steps:
            x, y = values[first % len(values)], values[second % len(values)]
            if kind % 3 == 0:
                made = UNARY[kind // 3 % len(UNARY)](x)
            elif kind % 3 == 1 or x.shape != (4, 6):
                made = BINARY[kind // 3 % len(BINARY)](x, y)
            else:
                made = REDUCED[kind // 3 % len(REDUCED)](x)
            values.append(F.clip(made, -5.0, 5.0))
        return values[len(inputs) :][-kept:]

    return function


@settings(max_examples=60, deadline=None)
@given(functions())
def test_random_graphs_keep_their_values(function):
    inputs = [draw(*shape, seed=i) for i, shape in enumerate(SHAPES)]
    graph, values = recorded(lambda: function(inputs))
    check(graph, values)


def test_the_terms_of_a_long_sum_are_not_read_at_once():
    rng = np.random.default_rng(0)
    xs = [mge.tensor(rng.normal(size=(3, 5)).astype("float32")) for _ in range(30)]
    weight = draw(5, 7)

    def total():
        return sum(x @ weight for x in xs[1:]) + xs[0] @ weight

    made, _ = fused(total)
    reads = [sum(" full" in line for line in program.splitlines()) for program in made]
    assert len(reads) >= 3 and max(reads) <= 8
