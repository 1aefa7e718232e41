"""Failures: a fault at any step leaves handles with their last values, or with the error; and errors say where."""

import gc
import inspect

import numpy as np
import pytest

import mge
import mge.functional as F
from mge import graph
from mge.autodiff import GradManager
from mge.cache import PLANS
from mge.debug import debug
from mge.device import as_device
from mge.errors import IndexRangeError, OutOfMemory
from mge.jit import trace


def line():
    return inspect.currentframe().f_back.f_lineno


def floats(*values):
    return mge.tensor(np.array(values, np.float32))


class Training:
    """A tiny training loop with momentum, an embedding and a counter: all of it one plan."""

    def __init__(self, traced=False):
        rng = np.random.default_rng(0)
        self.table = mge.Parameter(rng.normal(size=(6, 4)).astype("float32"))
        self.w = mge.Parameter(rng.normal(size=(4, 1)).astype("float32"))
        self.velocity = mge.tensor(np.zeros((4, 1), np.float32))
        self.count = mge.tensor(0.0)
        self.manager = GradManager().attach([self.table, self.w])
        self.indices = mge.tensor(np.array([0, 2, 5], np.int32))
        self.loss = None
        self.traced = traced
        self.call = trace(self.step) if traced else self.step

    @property
    def handles(self):
        return {"table": self.table, "w": self.w, "velocity": self.velocity, "count": self.count}

    def step(self, indices):
        with self.manager:
            x = self.table[indices]
            loss = (F.tanh(x @ self.w) ** 2).mean()
            self.manager.backward(loss)
        velocity = self.velocity * 0.9 + self.w.grad
        updates = [
            (self.velocity, velocity),
            (self.w, self.w - velocity * 0.1),
            (self.table, self.table - self.table.grad * 0.1),
            (self.count, self.count + 1),
        ]
        for handle, new in updates:
            handle._assign(new)
        self.table.grad = self.w.grad = None
        return loss

    def run(self, times=1, indices=None):
        """Steps, each flushed; returns the losses as numbers."""
        losses = []
        for _ in range(times):
            self.loss = self.call(self.indices if indices is None else indices)
            if not self.traced:
                graph.request_flush()
            mge.sync()
            losses.append(self.loss.item())
        return losses

    def values(self):
        return {name: handle.numpy().copy() for name, handle in self.handles.items()}

    def plan(self):
        if self.traced:
            return list(self.call.last.plans.values())[-1].plan
        structure = list(PLANS._structures.values())[-1]
        return list(structure.plans.values())[-1].plan


def same(one, other):
    return all((one[name] == other[name]).all() for name in one)


@pytest.fixture(params=["plain", "traced"])
def training(request, counts):
    made = Training(traced=request.param == "traced")
    made.run(4)  # the plan is compiled, and updates are in place
    return made


def steps(training):
    plan = training.plan()
    return range(len(plan.steps)), plan.overwrites_from


class Planted(Exception):
    """The fault of these tests."""


@pytest.mark.parametrize("error", [Planted, KeyboardInterrupt, SystemExit])
def test_a_fault_at_each_step_of_a_plan(training, error):
    numbers, overwrites_from = steps(training)
    assert len(numbers) > 8 and 0 < overwrites_from < len(numbers)
    for number in numbers:
        before = training.values()
        calls = training.plan().bound.calls
        good = calls[number]

        def fail(inputs, outputs, stream, number=number):
            raise error(f"planted at step {number}")

        calls[number] = (fail, *good[1:])
        try:
            training.run()
        except error as caught:
            assert f"planted at step {number}" in str(caught)  # noqa: PT017
            failed = True
        else:
            failed = False  # computed step by step instead, since an error may be of the plan alone
            assert error is Planted and number < overwrites_from
        finally:
            calls[number] = good
        if number < overwrites_from:
            if failed:
                assert same(training.values(), before), (
                    f"step {number}: a handle lost its last value"
                )
        else:
            check_lost(training, before, number, error)
        restart(training, before)


def test_a_fault_where_overwrites_come_early(counts, monkeypatch):
    """An order that takes less may overwrite before its last steps: what is lost then says so all the same."""
    monkeypatch.setattr("mge.plan.EASED", 0)
    monkeypatch.setattr("mge.plan.GAIN", -9)  # also where it takes more
    made = Training()
    made.run(4)
    numbers, overwrites_from = steps(made)
    updates = len(made.plan().overwrites)
    assert overwrites_from < len(numbers) - updates, "nothing came early"
    test_a_fault_at_each_step_of_a_plan(made, KeyboardInterrupt)


def check_lost(training, before, number, error):
    """After the first overwrite, a handle has its last value, or reading it raises the original error."""
    lost = 0
    for name, handle in training.handles.items():
        try:
            value = handle.numpy()
        except error as caught:
            assert f"planted at step {number}" in str(caught)  # noqa: PT017
            lost += 1
        else:
            assert (value == before[name]).all(), f"step {number}: {name} is half new"
    assert lost > 0
    with pytest.raises(error, match="planted"):
        (training.w * 2).numpy() if lost == len(training.handles) else [
            h.numpy() for h in training.handles.values()
        ]


def restart(training, values):
    """Go on from the values before the fault: the same losses as ever."""
    for name, handle in training.handles.items():
        handle.set_value(values[name])
    mge.sync()
    fresh = Training()
    for name, handle in fresh.handles.items():
        handle.set_value(values[name])
    with mge.eager():
        wanted = fresh.run(2)
    assert training.run(2) == wanted


def test_a_kernel_that_keeps_failing(training, monkeypatch):
    """Not of the plan alone: the step-by-step run fails too, and finds what fails."""
    for number in range(training.plan().overwrites_from):
        before = training.values()
        plan = training.plan()
        sig = plan.steps[number].slot.node.sig

        def fail(inputs, outputs, stream, sig=sig):
            raise Planted(f"planted in {sig.op.name}")

        good = sig.notes["kernel"]
        calls = plan.bound.calls
        kept = list(calls)
        sig.notes["kernel"] = fail
        for i, step in enumerate(plan.steps):
            if step.slot.node.sig is sig:
                calls[i] = (fail, *calls[i][1:])
        try:
            with pytest.raises(Planted, match="planted in"):
                training.run()
        finally:
            sig.notes["kernel"] = good
            calls[:] = kept
        if all(s.slot.node.sig is not sig for s in plan.steps[plan.overwrites_from :]):
            assert same(training.values(), before), sig
        restart(training, before)


@pytest.mark.parametrize("op", ["matmul", "tanh", "mean", "index"])
def test_a_fault_at_first_sight(op, counts, monkeypatch):
    Training().run()  # now the signatures are known
    PLANS.clear()
    training = Training()
    before = training.values()

    def planted(*_):
        raise Planted(f"planted in {op}")

    with monkeypatch.context() as patch:
        for sig in mge.op.OPS[op]._interned.values():
            patch.setitem(sig.notes, "kernel", planted)
        with pytest.raises(Planted, match=f"planted in {op}"):
            training.run()
        with pytest.raises(Planted, match=f"planted in {op}"):
            training.loss.numpy()
    assert same(training.values(), before)
    restart(training, before)


def test_what_does_not_need_the_failing_node_is_computed(counts):
    table, index = floats(1, 2, 3), mge.tensor(7)
    for _ in range(3):
        bad = table[index]
        good = table * 2
        worse = bad + 1
        with pytest.raises(IndexRangeError):
            mge.sync()
        assert good.numpy().tolist() == [2, 4, 6]
        for x in (bad, worse, bad * 3):
            with pytest.raises(IndexRangeError):
                x.numpy()
        assert (good + 1).numpy().tolist() == [3, 5, 7]


def test_a_bad_index_comes_before_the_first_overwrite(training):
    """Data is checked by kernels that run before any parameter is written over."""
    before = training.values()
    for _ in range(3):
        with pytest.raises(IndexRangeError):
            training.run(indices=mge.tensor(np.array([0, 6, 5], np.int32)))
        assert same(training.values(), before)
    restart(training, before)


def test_handles_return_to_the_last_computed_value_not_to_an_older_one(counts):
    w = floats(1, 2)
    w += 1  # pending when the next one fails
    index = mge.tensor(9)
    w._assign(w * w[index])
    with pytest.raises(IndexRangeError):
        w.numpy()
    assert w.numpy().tolist() == [1, 2]


def test_an_interrupt_in_a_read_leaves_everything_pending_or_computed(counts):
    calls = []

    def interrupt(a):
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return a.copy()

    w = floats(1, 2)
    y = w * 2
    z = F.host_call(interrupt, [((2,), "float32")], y)
    w._assign(z)
    with pytest.raises(KeyboardInterrupt):
        w.numpy()
    assert w.numpy().tolist() == [1, 2]
    assert y.numpy().tolist() == [2, 4]
    assert z.numpy().tolist() == [2, 4] and len(calls) == 2


def test_impure_steps_are_not_run_again(counts):
    """After a failure of a plan with Python at execution nothing is computed again."""
    calls = []

    def note(a):
        calls.append(1)
        return a.copy()

    table = floats(1, 2, 3)
    for bad in (False, False, True):
        calls.clear()
        x = F.host_call(note, [((3,), "float32")], table)
        y = x[mge.tensor(7 if bad else 1)]
        if bad:
            with pytest.raises(IndexRangeError):
                y.numpy()
        else:
            assert y.item() == 2
        assert len(calls) == 1


# Where.


def test_an_error_names_the_line_of_the_call_and_that_of_the_read(counts):
    table = floats(1, 2, 3)
    for _ in range(3):  # by first sight, and from a plan
        y = table[mge.tensor(5)]
        called = line() - 1
        z = y * 2
        with pytest.raises(IndexRangeError) as caught:
            z.numpy()
        read = line() - 1
        text = str(caught.value)
        assert f"{__file__}:{called}" in text, text
        assert f"read at {__file__}:{read}" in text, text


def test_an_error_of_another_kind_names_the_line_too(counts):
    def fail(a):
        raise Planted("no")

    x = floats(1)
    for _ in range(3):
        y = F.host_call(fail, [((1,), "float32")], x)
        called = line() - 1
        with pytest.raises(Planted) as caught:
            y.numpy()
        notes = "\n".join(getattr(caught.value, "__notes__", []))
        assert f"{__file__}:{called}" in notes


def test_an_eager_error_is_raised_at_the_call(counts):
    with mge.eager():
        table = floats(1, 2, 3)
        with pytest.raises(IndexRangeError) as caught:
            table[mge.tensor(5)]
        assert f"{__file__}:{line() - 1}" in str(caught.value)


def test_an_error_in_a_traced_function_names_the_line(counts):
    @trace
    def pick(table, index):
        return table[index] * 2

    first = inspect.getsourcelines(pick.function)[1] + 2
    assert pick(floats(1, 2), mge.tensor(1)).item() == 4
    with pytest.raises(IndexRangeError) as caught:
        pick(floats(1, 2), mge.tensor(5))
    assert f"{__file__}:{first}" in str(caught.value)
    assert pick(floats(1, 2), mge.tensor(0)).item() == 2


def test_a_gradient_carries_the_line_of_its_forward(counts):
    """A failing step of the backward pass says which call it belongs to, or at least where backward was."""
    w = floats(1, 2)
    manager = GradManager().attach(w)
    with manager:
        y = F.exp(w)
        called = line() - 1
        manager.backward(y.sum())
    for node in [n for n in graph.LOCAL.recording.nodes if n.sig.op.name == "call"]:
        assert node.place and __file__ in node.place
    assert y._node.place == f"{__file__}:{called}"


# Memory.


def test_memory_is_reserved_before_the_first_step(training, monkeypatch):
    before = training.values()
    ran = []
    for i, call in enumerate(list(training.plan().bound.calls)):
        training.plan().bound.calls[i] = (
            lambda a, b, c, k=call[0]: ran.append(1) or k(a, b, c),
            *call[1:],
        )
    pool = as_device("ref").pool

    def refuse(nbytes):
        raise OutOfMemory("memory: planted")

    monkeypatch.setattr(pool, "take", refuse)
    with pytest.raises(OutOfMemory, match="planted"):  # noqa: PT012
        training.call(training.indices)
        mge.sync()
    monkeypatch.undo()
    assert not ran
    assert same(training.values(), before)
    restart(training, before)


def test_a_plan_over_the_limit_is_refused_before_it_runs(counts):
    w = mge.tensor(np.ones(40_000, np.float32))
    mge.sync()
    with debug(memory_limit="100KB"):
        y = F.exp(w) + F.sqrt(w)
        w += 1
        with pytest.raises(OutOfMemory) as caught:  # noqa: PT012
            w.numpy()
            y.numpy()
    text = str(caught.value)
    assert "100,000 may be used" in text and "MGE_MEMORY_LIMIT" in text and "largest: " in text
    assert f"{__file__}:" in text
    assert w.numpy()[0] in (1, 2) and y.numpy()[0] == pytest.approx(np.e + 1)


def test_no_buffer_leaks_through_failures(counts):
    table = floats(1, 2, 3)

    def fail():
        y = table[mge.tensor(5)] * 2
        z = F.exp(table) + y
        with pytest.raises(IndexRangeError):
            z.numpy()

    for _ in range(3):
        fail()
    gc.collect()
    before = as_device("ref").pool.live_blocks
    for _ in range(20):
        fail()
    gc.collect()
    assert as_device("ref").pool.live_blocks <= before


def test_after_a_failure_new_work_is_fine(counts):
    table = floats(1, 2, 3)
    other = table + 1
    with pytest.raises(IndexRangeError):
        table[mge.tensor(5)].numpy()
    assert other.numpy().tolist() == [2, 3, 4]
    assert not graph.LOCAL.recording.tokens
    assert (table * 3).numpy().tolist() == [3, 6, 9]


def test_an_error_in_a_callback_or_in_python_between_changes_no_handle():
    w = floats(1, 2)
    manager = GradManager()

    def fail(tensor, grad):
        raise Planted("callback")

    manager.attach(w, fail)
    with pytest.raises(Planted), manager:
        manager.backward((w * w).sum())
    assert w.grad is None and w.numpy().tolist() == [1, 2]
