"""Recording: a call checks types and records a node; values come when they are needed, each computed once."""

import gc
import inspect
import sys

import numpy as np
import pytest

import mge
import mge.functional as F
from mge import graph
from mge.errors import ArgumentError, DTypeError, ShapeError
from mge.graph import LOCAL


def line():
    return inspect.currentframe().f_back.f_lineno


def ones(*shape):
    return mge.tensor(np.ones(shape, np.float32))


def is_pending(x):
    return x._node.buffer is None


def test_a_call_records_and_computes_nothing(counts):
    x = ones(2, 3)
    y = F.relu(x @ ones(3, 2)) + 1
    assert (y.shape, y.dtype, y.device) == ((2, 2), "float32", "ref:0")
    assert is_pending(y)
    assert counts.steps_run == 0
    assert [n.sig.op.name for n in LOCAL.recording.nodes if n.inputs] == ["matmul", "relu", "add"]


def test_a_wrong_shape_raises_at_the_line_of_the_user():
    x, y = ones(8, 3), ones(4, 5)
    with pytest.raises(ShapeError) as caught:
        x @ y
    where = line() - 1
    assert caught.value.place == f"{__file__}:{where}"
    assert f"  at: {__file__}:{where}" in str(caught.value)
    assert (
        "matmul" in str(caught.value)
        and "(8, 3)" in str(caught.value)
        and "(4, 5)" in str(caught.value)
    )


def test_a_wrong_dtype_and_a_wrong_attribute_raise_at_the_line_of_the_user():
    x = ones(2)
    with pytest.raises(DTypeError) as caught:
        F.relu("two")
    assert caught.value.place == f"{__file__}:{line() - 1}"
    with pytest.raises(ArgumentError) as caught:
        F.sum(x, axis="rows")
    assert caught.value.place == f"{__file__}:{line() - 1}"


def test_a_failed_call_leaves_the_pending_graph_as_it_was(counts):
    x = ones(2, 3)
    y = x + 1
    count = len(LOCAL.recording.tokens)
    with pytest.raises(ShapeError):
        y @ y
    assert len(LOCAL.recording.tokens) == count
    assert y.numpy().tolist() == [[2, 2, 2], [2, 2, 2]]


def test_a_node_knows_the_line_of_its_call():
    x = ones(2)
    y = x * 2
    assert y._node.place == f"{__file__}:{line() - 1}"
    z = x.sum(0)  # a method of mge in between is not the place
    assert z._node.place == f"{__file__}:{line() - 1}"
    pair = F.topk(x, 1)
    assert {t._node.place for t in pair} == {f"{__file__}:{line() - 1}"}


def test_a_call_keeps_code_and_offset_and_no_text():
    y = ones(2) * 2
    assert y._node.code is sys._getframe().f_code
    assert isinstance(y._node.offset, int)


READS = {
    "numpy": lambda x: x.numpy(),
    "item": lambda x: x.sum().item(),
    "item of an index": lambda x: x.item(0),
    "tolist": lambda x: x.tolist(),
    "bool": lambda x: bool(x.sum()),
    "int": lambda x: int(x.sum()),
    "float": lambda x: float(x.sum()),
    "repr": repr,
    "str": str,
    "format": lambda x: f"{x.sum():.1f}",
    "eval": mge.eval,
    "sync": lambda x: mge.sync(),
    "asarray": np.asarray,
    "contains": lambda x: 2.0 in x,
    "dlpack": np.from_dlpack,
    "index": lambda x: [1, 2, 3][x.sum().astype("int32") - 4],
}


@pytest.mark.parametrize("name", READS)
def test_a_read_computes(name, counts):
    x = ones(2) + 1
    assert is_pending(x)
    READS[name](x)
    assert counts.steps_run >= 1
    assert not is_pending(x)  # it is held, so it was computed together with what was read


def test_shape_dtype_and_the_like_are_no_reads(counts):
    x = ones(2, 3) + 1
    assert (x.shape, x.ndim, x.size, len(x)) == ((2, 3), 2, 6, 2)
    assert (x.dtype, x.device, x.name) == ("float32", "ref:0", None)
    assert is_pending(x) and counts.steps_run == 0


def test_eval_takes_several_and_returns_them(counts):
    x, y = ones(2) + 1, ones(3) + 1
    assert mge.eval(x, y) == (x, y) and mge.eval(x) is x
    assert not is_pending(x) and not is_pending(y)


def test_what_is_held_is_computed_together_and_once(counts):
    x = ones(4)
    a = x + 1
    b = a * 2
    c = F.exp(a)  # pending, held, and no input of what is read
    assert b.numpy()[0] == 4
    assert counts.first_sight_runs == 1 and counts.steps_run == 3
    assert a.numpy()[0] == 2 and np.allclose(c.numpy(), np.exp(2))
    assert counts.steps_run == 3 and counts.first_sight_runs == 1


def test_what_nobody_holds_is_not_computed(counts):
    x = ones(4)
    F.exp(x)
    dropped = F.log(x)
    del dropped
    y = x + 1
    mge.sync()
    assert counts.steps_run == 1
    assert y.numpy()[0] == 2


def test_a_result_of_several_is_computed_where_one_is_held(counts):
    values, _ = F.topk(ones(4), 2)
    del _
    mge.sync()
    assert counts.steps_run == 1
    assert values.numpy().tolist() == [1, 1]


def test_held_is_a_reference_count_and_no_collector_runs(counts, monkeypatch):
    monkeypatch.setattr(gc, "collect", lambda *_: pytest.fail("the collector ran"))
    holder = {"x": ones(4) + 1}
    holder["self"] = holder
    node = holder["x"]._node
    del holder  # alive in a cycle: it counts as held
    mge.sync()
    assert node.buffer is not None


def test_a_requested_flush_runs_at_the_next_call(counts):
    x = ones(2)
    y = x + 1
    graph.request_flush()
    assert is_pending(y) and counts.steps_run == 0
    x * 2
    assert not is_pending(y) and counts.steps_run == 1


def test_a_requested_flush_runs_at_the_next_read(counts):
    read_already = mge.eval(ones(2) + 1)
    x = ones(2) + 2
    graph.request_flush()
    read_already.numpy()  # has a value: no need to run
    assert is_pending(x)
    assert x.numpy()[0] == 3


def test_a_requested_flush_runs_at_the_next_boundary(counts):
    x = ones(2) + 2
    graph.request_flush()
    graph.boundary()
    assert not is_pending(x)


def test_a_second_request_runs_the_first(counts):
    x = ones(2) + 2
    graph.request_flush()
    y = ones(2) + 3
    graph.request_flush()
    assert not is_pending(x) and is_pending(y)
    mge.sync()
    assert not is_pending(y)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_gradient_dropped_around_the_request_is_not_computed(when, counts):
    x = ones(2)
    dropped = F.exp(x)
    y = x + 1
    if when == "before":
        del dropped
    graph.request_flush()
    if when == "after":
        del dropped
    mge.sync()
    assert counts.steps_run == 1 and not is_pending(y)


def test_nothing_pending_runs_nothing(counts):
    mge.sync()
    mge.sync()
    mge.eval(ones(2))
    assert counts.first_sight_runs == counts.plans_run == counts.steps_run == 0


def test_a_loop_without_reads_stays_one_graph(counts, descend):
    """Forward, backward and update of an iteration are one plan."""
    w, x = mge.Parameter(np.ones((3, 1), np.float32)), ones(4, 3)
    manager = mge.autodiff.GradManager().attach(w)
    for _ in range(5):
        with manager:
            manager.backward(((x @ w) ** 2).mean())
        descend([w], 0.01)
        w.grad = None
    mge.sync()
    assert counts.first_sight_runs + counts.plans_run == 5
    assert counts.plans_compiled == 1


# Numbers from Python.


def test_the_value_of_a_number_is_not_in_the_key(counts):
    x = ones(3)
    for rate in (0.1, 0.2, 0.3, 0.4):
        assert np.allclose((x * rate - rate).numpy(), 0)
    assert (counts.first_sight_runs, counts.plans_compiled, counts.plans_run) == (1, 1, 3)


def test_the_kind_of_a_number_is_in_the_key(counts):
    x = mge.tensor([1, 2])
    assert (x * 2).dtype == "int32" and (x * 2.0).dtype == "float32" and (x * True).dtype == "int32"
    for number in (2, 2.0):
        y = x * number
        y.numpy()
    assert counts.first_sight_runs == 2 and counts.plans_run == 0


def test_numbers_are_weakly_typed():
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        x = mge.tensor([1.0], dtype=dtype)
        assert {(x * 2).dtype, (x + 0.5).dtype, (1 - x).dtype, (x * True).dtype} == {x.dtype}
    for dtype in ("int8", "uint8", "int16", "int64"):
        x = mge.tensor([1], dtype=dtype)
        assert (x * 2).dtype == dtype and (3 - x).dtype == dtype


def test_a_number_that_does_not_fit_is_an_error_at_the_line():
    x = mge.tensor([1], dtype="uint8")
    with pytest.raises(ArgumentError, match="300 does not fit") as caught:
        x + 300
    assert caught.value.place == f"{__file__}:{line() - 1}"


def test_an_exponent_is_in_the_key(counts):
    x = mge.tensor([3.0])
    assert (x**2).numpy() == 9 and (x**3).numpy() == 27
    assert counts.first_sight_runs == 2 and counts.plans_run == 0


def test_attributes_are_in_the_key(counts):
    x = mge.tensor([[1.0, 5.0]])
    values = [F.clip(x, 0, bound).numpy().max() for bound in (1.0, 2.0, 3.0)]
    assert values == [1, 2, 3]
    assert counts.first_sight_runs == 3 and counts.plans_run == 0


def test_numbers_have_no_gradient_and_numpy_scalars_count_as_numbers():
    w = mge.tensor([1.0, 2.0])
    manager = mge.autodiff.GradManager().attach(w)
    with manager:
        manager.backward((w * np.float64(3.0) + np.float32(1)).sum())
    assert w.grad.numpy().tolist() == [3, 3]
    assert w.grad.dtype == "float32"


# Eager.


def test_eager_computes_each_call(counts):
    with mge.eager():
        x = ones(2) + 1
        assert not is_pending(x) and counts.steps_run == 1
        y = x * 2
        assert not is_pending(y) and counts.steps_run == 2
        values, indices = F.topk(y, 1)
        assert not is_pending(values) and not is_pending(indices)
        with mge.eager(False):
            z = y + 1
            assert is_pending(z)
    assert z.numpy()[0] == 5 and counts.plans_compiled == 0


def test_eager_ends_with_its_block_also_after_an_error():
    with pytest.raises(ZeroDivisionError), mge.eager():
        raise ZeroDivisionError
    assert is_pending(ones(2) + 1)


def test_eager_computes_gradients_and_rebinding(counts):
    w = mge.tensor([1.0, 2.0])
    manager = mge.autodiff.GradManager().attach(w)
    with mge.eager():
        with manager:
            y = (w * w).sum()
            assert not is_pending(y)
            manager.backward(y)
        assert not is_pending(w.grad)
        w -= w.grad * 0.5
        assert not is_pending(w)
    assert w.numpy().tolist() == [0, 0]


def test_eager_runs_what_was_pending_before_it(counts):
    x = ones(2) + 1
    with mge.eager():
        y = x * 3
        assert y._node.buffer is not None
    assert x.numpy()[0] == 2 and y.numpy()[0] == 6


def test_eager_from_the_environment():
    import os
    import subprocess

    code = "import mge; x = mge.tensor([1.0]) + 1; print(x._node.buffer is not None)"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "MGE_EAGER": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == "True"


def test_recording_does_not_rerun_the_shape_rule_for_known_types(monkeypatch):
    relu = F.relu
    x = ones(3, 7)
    F.relu(x)
    monkeypatch.setattr(relu, "rule", lambda *_: pytest.fail("the rule ran again"))
    for _ in range(3):
        F.relu(x)


def test_types_and_signatures_are_interned():
    a, b = ones(2, 3), ones(2, 3)
    assert a._node.type is b._node.type
    assert F.relu(a)._node.sig is F.relu(b)._node.sig
    assert F.sum(a, axis=0)._node.sig is F.sum(b, 0)._node.sig is b.sum(axis=np.int64(0))._node.sig
