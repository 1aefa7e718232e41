"""Traces: recorded once for each kind of arguments, guarded, replayed with current values."""

import collections
import copy
import inspect
import math

import numpy as np
import pytest

import mge
import mge.functional as F
from mge import autodiff, graph, jit
from mge.debug import debug
from mge.errors import (
    DTypeError,
    InternalError,
    MgeError,
    PluginNotInstalled,
    ShapeError,
    TraceError,
)
from mge.jit import trace
from mge.mode import MODE
from mge.tensor import ModuleBuffer

SCALE = 2.0
CONFIG = {"rate": 0.5, "sizes": [1, 2]}


class Settings:
    bias = 1.0


def line():
    return inspect.currentframe().f_back.f_lineno


def floats(*values):
    return mge.tensor(np.array(values, np.float32))


class Calls:
    """Counts the runs of Python functions without being seen by traces."""

    def __init__(self):
        self.made = []

    def __call__(self):
        self.made.append(1)

    def __len__(self):
        return len(self.made)


@pytest.fixture
def calls():
    return Calls()


# The Python function runs once.


def test_the_function_runs_once_for_each_kind_of_arguments(calls, counts):
    @trace
    def double(x):
        calls()
        return x * 2

    for i in range(5):
        assert double(floats(i, 1)).numpy().tolist() == [2 * i, 2]
    assert len(calls) == 1 and counts.trace_hits == 4
    double(floats(1, 2, 3))
    double(mge.tensor([1, 2]))
    assert len(calls) == 3
    double(floats(1, 2)), double(floats(1, 2, 3))
    assert len(calls) == 3


def test_a_trace_looks_like_its_function():
    @trace
    def double(x):
        """Twice x."""
        return x * 2

    assert (double.__name__, double.__doc__) == ("double", "Twice x.")
    assert double.__wrapped__(floats(1)).item() == 2


def test_a_trace_of_a_method():
    class Model:
        def __init__(self):
            self.w = floats(2)

        @trace
        def forward(self, x):
            return x * self.w

    one, two = Model(), Model()
    two.w = floats(5)
    for _ in range(2):
        assert one.forward(floats(3)).item() == 6
        assert two.forward(floats(3)).item() == 15


def test_a_trace_with_options():
    @trace(memory="naive", symbolic=True, capture_as_const=True)
    def double(x):
        return x * 2

    assert double(floats(1)).item() == 2 and double(floats(2)).item() == 4
    with pytest.raises(TraceError, match="callable"):
        trace(3)
    with pytest.raises(PluginNotInstalled, match="no_such"):
        trace(lambda x: x, memory="no_such")
    assert trace(lambda x: x * 2)(floats(3)).item() == 6


def test_one_plan_and_nothing_recorded(counts):
    @trace
    def step(x):
        return F.exp(x) * 2 + 1

    for i in range(5):
        step(floats(i))
        assert not graph.LOCAL.recording.tokens
    assert counts.plans_compiled == 1 and counts.plans_run == 5 and counts.first_sight_runs == 0


def test_a_pending_argument_is_computed_first():
    @trace
    def double(x):
        return x * 2

    for i in range(3):
        assert double(floats(i) + 1).item() == 2 * (i + 1)


# Trees.


Pair = collections.namedtuple("Pair", "a b")


def test_arguments_and_results_are_trees(calls):
    @trace
    def mix(batch, pair, *, options):
        calls()
        total = batch["x"] + batch["more"][0] * pair.b
        return {"sum": total, "list": [total * 2, None], "pair": Pair(total, "text"), "n": 3, "options": options["mode"]}

    for i in range(3):
        batch = {"x": floats(i), "more": [floats(10), floats(0)]}
        made = mix(batch, Pair(floats(1), floats(2)), options={"mode": "fast"})
        assert made["sum"].item() == i + 20 and made["list"][0].item() == 2 * (i + 20) and made["list"][1] is None
        assert isinstance(made["pair"], Pair) and made["pair"].b == "text" and made["n"] == 3
        assert made["options"] == "fast"
    assert len(calls) == 1
    mix(batch, Pair(floats(1), floats(2)), options={"mode": "slow"})
    assert len(calls) == 2


def test_no_result_and_no_arguments():
    w = floats(1)

    @trace
    def step():
        w._assign(w * 2)

    for _ in range(3):
        assert step() is None
    assert w.item() == 8


def test_arrays_are_inputs(calls):
    @trace
    def double(x):
        calls()
        return x * 2

    for i in range(3):
        assert double(np.array([i, 1], np.float32)).numpy().tolist() == [2 * i, 2]
    assert len(calls) == 1


def test_an_argument_that_is_returned_or_returned_twice():
    @trace
    def same(x, y):
        z = x + y
        return x, z, z, y

    for i in range(3):
        x, y = floats(i), floats(5)
        a, b, c, d = same(x, y)
        assert (a.item(), b.item(), c.item(), d.item()) == (i, i + 5, i + 5, 5)
        a += 100
        assert x.item() == i and b.item() == i + 5


def test_the_same_tensor_twice():
    @trace
    def mix(x, y):
        return x * 10 + y

    x = floats(2)
    for _ in range(3):
        assert mix(x, x).item() == 22
        assert mix(x, floats(1)).item() == 21


def test_keyword_arguments_and_defaults(calls):
    @trace
    def scaled(x, factor=2.0, *, shift=floats(1)):
        calls()
        return x * factor + shift

    for _ in range(2):
        assert scaled(floats(3)).item() == 7
        assert scaled(floats(3), factor=3.0).item() == 10
        assert scaled(floats(3), 4.0).item() == 13
        assert scaled(floats(3), shift=floats(10)).item() == 16
        assert scaled(x=floats(3)).item() == 7


# Numbers.


def test_numbers_are_inputs(calls):
    @trace
    def scaled(x, rate, n):
        calls()
        return x * rate - n

    for i in range(5):
        assert scaled(floats(2), 0.5 * i, i).item() == 0
    assert len(calls) == 1
    assert scaled(floats(2), 2, 1).item() == 3  # an int is another kind than a float
    assert len(calls) == 2


def test_numbers_are_weakly_typed_inside():
    @trace
    def scaled(x, rate):
        return x * rate, rate * 2

    for dtype in ("float16", "float64", "float32"):
        y, twice = scaled(mge.tensor([2.0], dtype=dtype), 0.5)
        assert y.dtype == dtype and y.item() == 1 and twice.item() == 1.0


def test_arithmetic_with_numbers_is_recorded(calls):
    @trace
    def schedule(x, step, base):
        calls()
        rate = -(base / (1 + step * 0.5) - 1.0) + 2
        return x * rate

    def wanted(step, base):
        return 2 * (-(base / (1 + step * 0.5) - 1) + 2)

    for step in range(4):
        assert schedule(floats(2), step, 0.1 * step).item() == pytest.approx(wanted(step, 0.1 * step), rel=1e-6)
    assert len(calls) == 1


def test_a_number_whose_value_is_read_belongs_to_the_kind(calls):
    @trace
    def repeat(x, n, factor):
        calls()
        for _ in range(n):
            x = x * factor
        return x if n < 10 else -x

    for n, result in ((1, 2), (3, 8), (1, 2), (3, 8), (0, 1)):
        assert repeat(floats(1), n, 2.0).item() == result
    before = len(calls)
    assert repeat(floats(1), 3, 3.0).item() == 27  # the factor is still an input
    assert len(calls) == before


def test_a_number_in_an_attribute_is_read(calls):
    @trace
    def total(x, axis):
        return F.sum(x, axis=axis)

    x = mge.tensor([[1.0, 2.0], [3.0, 4.0]])
    for _ in range(2):
        assert total(x, 0).numpy().tolist() == [4, 6] and total(x, 1).numpy().tolist() == [3, 7]


def test_bool_none_and_text_belong_to_the_kind(calls):
    @trace
    def apply(x, flag, mode, nothing):
        calls()
        x = x * 2 if flag else x
        return x + 1 if mode == "add" else x

    for flag, mode, result in ((True, "add", 7), (False, "add", 4), (True, "no", 6), (True, "add", 7)):
        assert apply(floats(3), flag, mode, None).item() == result
    assert len(calls) == 3


def test_an_integer_too_large_for_int32():
    @trace
    def shifted(x, n):
        return x + n

    x = mge.tensor([1], dtype="int64")
    for n in (2**40, 2**41):
        assert shifted(x, n).item() == n + 1


def test_a_large_python_float_does_not_lose_digits_in_float64():
    @trace
    def shifted(x, n):
        return x + n

    x = mge.tensor([0.0], dtype="float64")
    for n in (0.1, 1 / 3):
        assert shifted(x, n).item() == n


# Captured tensors.


def test_captured_tensors_are_inputs_with_their_current_values(calls):
    w = floats(1)

    @trace
    def scaled(x):
        calls()
        return x * w

    assert scaled(floats(3)).item() == 3
    w += 1
    assert scaled(floats(3)).item() == 6
    w.set_value([10])
    assert scaled(floats(3)).item() == 30
    w._assign(w * 2)
    assert scaled(floats(3)).item() == 60
    assert len(calls) == 1


def test_a_captured_tensor_of_another_shape_retraces(calls):
    w = floats(1)

    @trace
    def scaled(x):
        calls()
        return x * w

    assert scaled(floats(3)).item() == 3
    w._assign(floats(1, 2, 3))
    assert scaled(floats(3)).numpy().tolist() == [3, 6, 9]
    assert len(calls) == 2


def test_a_captured_variable_that_stands_for_another_tensor(calls):
    w = floats(2)

    def make():
        @trace
        def scaled(x):
            calls()
            return x * w

        return scaled

    scaled = make()
    assert scaled(floats(3)).item() == 6
    w = floats(5)  # another handle under the name
    assert scaled(floats(3)).item() == 15
    assert scaled(floats(3)).item() == 15


def test_a_list_of_captured_tensors(calls):
    weights = [floats(1), floats(2)]

    @trace
    def total(x):
        calls()
        for w in weights:
            x = x * w
        return x

    assert total(floats(3)).item() == 6
    weights[1] += 1
    assert total(floats(3)).item() == 9
    assert len(calls) == 1


def test_constants_made_inside_stay():
    @trace
    def shifted(x):
        return x + mge.tensor([1.0, 2.0]) + np.array([10, 20], np.float32) + F.zeros((2,))

    for _ in range(3):
        assert shifted(floats(0, 0)).numpy().tolist() == [11, 22]


# What the function changes.


def test_rebinding_is_replayed(calls):
    w, b = mge.Parameter(floats(1)), ModuleBuffer(floats(0))

    @trace
    def step(x):
        calls()
        nonlocal_free = x * w
        w._assign(w * 2)
        b.__iadd__(x)
        return nonlocal_free

    results = [step(floats(1)).item() for _ in range(5)]
    assert results == [1, 2, 4, 8, 16] and w.item() == 32 and b.item() == 5
    assert len(calls) == 1


def test_a_handle_that_is_rebound_and_read_again_inside():
    w = floats(1)

    @trace
    def step():
        w.__iadd__(1)
        y = w * 10
        w.__imul__(2)
        return y

    assert [step().item() for _ in range(4)] == [20, 50, 110, 230]
    assert w.item() == 46


def test_swap():
    a, b = floats(1), floats(2)

    @trace
    def swap():
        old = copy.copy(a)
        a._assign(b)
        b._assign(old)

    for i in range(4):
        swap()
        assert (a.item(), b.item()) == ((2, 1) if i % 2 == 0 else (1, 2))


def test_rebinding_an_argument_is_seen_outside():
    """``x += 1`` on an argument: the caller's handle, as without a trace."""

    def step(x):
        x += 1
        return x * 2

    plain, traced = floats(1), floats(1)
    for _ in range(3):
        assert step(plain).item() == trace(step)(traced).item()
    assert plain.item() == 4


def test_item_assignment_to_a_captured_tensor():
    cache = mge.tensor(np.zeros((3, 2), np.float32))

    @trace
    def store(i, row):
        cache[i] = row
        return cache.sum()

    totals = [store(mge.tensor(i), floats(i + 1, 1)).item() for i in range(3)]
    assert totals == [2, 5, 9] and cache.numpy().tolist() == [[1, 1], [2, 1], [3, 1]]


def test_grad_is_replayed(calls):
    w = floats(1, 2)
    manager = autodiff.GradManager().attach(w)

    @trace
    def step(x):
        calls()
        with manager:
            loss = (w * w * x).sum()
            manager.backward(loss)
        return loss

    step(floats(1, 1))
    assert w.grad.numpy().tolist() == [2, 4]
    step(floats(1, 1))  # now there is a grad to add to: another graph
    assert w.grad.numpy().tolist() == [4, 8]
    step(floats(1, 10))
    assert w.grad.numpy().tolist() == [6, 48]
    assert len(calls) == 2
    w.grad = None
    step(floats(1, 1))
    assert w.grad.numpy().tolist() == [2, 4]
    assert len(calls) == 2


def test_a_grad_that_is_cleared_inside(calls):
    w = floats(1, 2)
    manager = autodiff.GradManager().attach(w)

    @trace
    def step():
        calls()
        w.grad = None
        with manager:
            manager.backward((w * w).sum())
        w._assign(w - w.grad * 0.25)
        w.grad = None

    for _ in range(3):
        step()
    assert w.grad is None and w.numpy().tolist() == [0.125, 0.25] and len(calls) == 1


def test_a_grad_that_is_set_outside_is_an_input(calls):
    w = floats(1)

    @trace
    def update():
        calls()
        w._assign(w - w.grad)

    for i in range(4):
        w.grad = floats(i)
        update()
    assert w.item() == 1 - 6 and len(calls) == 1


def test_parameters_are_written_in_place(counts):
    w = mge.Parameter(np.ones(1000, np.float32))

    @trace
    def step():
        w._assign(w * 2)

    addresses = set()
    for _ in range(6):
        step()
        addresses.add(w._node.buffer.array.ctypes.data)
    assert len(addresses) <= 2 and w.numpy()[0] == 64
    old = w.numpy()
    step()
    assert old[0] == 64 and w.numpy()[0] == 128


def test_generator_state_is_replayed(calls):
    rng = mge.random.RNG(seed=7)
    wanted = [rng.uniform(size=3).numpy().tolist() for _ in range(5)]
    rng = mge.random.RNG(seed=7)

    @trace
    def draw():
        calls()
        return rng.uniform(size=3)

    assert [draw().numpy().tolist() for _ in range(4)] == wanted[:4]
    assert rng.uniform(size=3).numpy().tolist() == wanted[4]
    assert len(calls) == 1


def test_the_default_generator_is_replayed():
    def draw(x):
        return F.dropout(x, 0.5, True)

    x = mge.tensor(np.ones(20, np.float32))
    mge.random.seed(5)
    wanted = [draw(x).numpy().tolist() for _ in range(4)]
    mge.random.seed(5)
    traced = trace(draw)
    assert [traced(x).numpy().tolist() for _ in range(4)] == wanted
    mge.random.seed(5)
    assert traced(x).numpy().tolist() == wanted[0]


# Guards.


def scaled_by_global(x):
    return x * SCALE


def calls_another(x):
    return scaled_by_global(x) + CONFIG["rate"]


def reads_class(x):
    return x + Settings.bias


def test_a_global_is_guarded(monkeypatch, counts):
    traced = trace(scaled_by_global)
    assert traced(floats(3)).item() == 6
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    assert traced(floats(3)).item() == 15
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    assert traced(floats(3)).item() == 6
    assert counts.traces == 2, "an earlier graph fits again"


def test_a_global_of_a_called_function_and_a_container(monkeypatch, counts):
    traced = trace(calls_another)
    assert traced(floats(3)).item() == 6.5
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert traced(floats(3)).item() == 9.5
    monkeypatch.setitem(CONFIG, "rate", 1.0)
    assert traced(floats(3)).item() == 10
    assert traced(floats(3)).item() == 10
    assert counts.traces == 3


def test_a_called_function_that_is_replaced(monkeypatch):
    traced = trace(calls_another)
    assert traced(floats(3)).item() == 6.5
    monkeypatch.setitem(globals(), "scaled_by_global", lambda x: x * 100)
    assert traced(floats(3)).item() == 300.5


def test_an_attribute_of_a_global(monkeypatch):
    traced = trace(reads_class)
    assert traced(floats(3)).item() == 4
    monkeypatch.setattr(Settings, "bias", 10.0)
    assert traced(floats(3)).item() == 13


def test_a_closure_is_guarded(calls):
    scale, sizes = 2.0, [1, 2]

    @trace
    def scaled(x):
        calls()
        return x * scale + sum(sizes)

    assert scaled(floats(3)).item() == 9
    scale = 4.0
    assert scaled(floats(3)).item() == 15
    sizes.append(10)
    assert scaled(floats(3)).item() == 25
    assert scaled(floats(3)).item() == 25
    assert len(calls) == 3


def test_an_attribute_of_a_closure_object():
    settings = Settings()
    settings.factor = 2.0

    @trace
    def scaled(x):
        return x * settings.factor

    assert scaled(floats(3)).item() == 6
    settings.factor = 7.0
    assert scaled(floats(3)).item() == 21


def test_a_closure_of_an_inner_function():
    factor = 2.0

    def inner(x):
        return x * factor

    @trace
    def outer(x):
        return inner(x) + 1

    assert outer(floats(3)).item() == 7
    factor = 3.0
    assert outer(floats(3)).item() == 10


def test_a_default_is_guarded():
    def scaled(x, factor=2.0):
        return x * factor

    def outer(x):
        return scaled(x)

    traced = trace(outer)
    assert traced(floats(3)).item() == 6
    scaled.__defaults__ = (5.0,)
    assert traced(floats(3)).item() == 15


def test_a_default_of_the_function_itself_is_guarded():
    def scaled(x, factor=2.0, *, mode="mul"):
        return x * factor if mode == "mul" else x + factor

    traced = trace(scaled)
    assert traced(floats(3)).item() == 6
    scaled.__defaults__ = (5.0,)
    assert traced(floats(3)).item() == 15
    scaled.__kwdefaults__ = {"mode": "add"}
    assert traced(floats(3)).item() == 8


def test_equal_values_are_the_same(monkeypatch, counts):
    traced = trace(calls_another)
    traced(floats(3))
    monkeypatch.setitem(globals(), "CONFIG", {"rate": 0.5, "sizes": [1, 2]})  # by identity, then by value
    traced(floats(3))
    monkeypatch.setitem(globals(), "SCALE", float("2.0"))
    traced(floats(3))
    assert counts.traces == 1


def test_true_and_one_are_not_the_same():
    flag = True

    @trace
    def chosen(x):
        return x * 2 if flag is True else x

    assert chosen(floats(3)).item() == 6
    flag = 1
    assert chosen(floats(3)).item() == 3


def test_nan_is_the_same_as_nan(counts):
    limit = math.nan

    @trace
    def shifted(x):
        return x if limit != limit else x + limit

    shifted(floats(3))
    limit = float("nan")
    shifted(floats(3))
    assert counts.traces == 1


def test_a_failed_guard_says_why(monkeypatch, capsys):
    traced = trace(scaled_by_global)
    with debug(debug=1):
        traced(floats(3))
        monkeypatch.setitem(globals(), "SCALE", 5.0)
        traced(floats(3))
    text = capsys.readouterr().err
    assert "scaled_by_global" in text and "SCALE" in text and "2.0" in text and "5.0" in text


def test_retraces_are_counted(monkeypatch, counts):
    traced = trace(scaled_by_global)
    traced(floats(3))
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    traced(floats(3))
    traced(floats(3))
    assert counts.retraces == 1 and counts.traces == 2


def test_after_eight_retraces_it_runs_untraced(calls, counts, capsys):
    factor = 0.0

    @trace
    def scaled(x):
        calls()
        return F.clip(x * 100, 0, factor)

    for i in range(20):
        factor = float(i)
        assert scaled(floats(3)).item() == i
    assert len(calls) == 20 and counts.traces == 9
    text = capsys.readouterr().err
    assert text.count("runs untraced") == 1 and "scaled" in text and "8 different graphs" in text


def test_a_guard_that_changes_nothing_in_the_graph_never_gives_up(calls):
    """A counter that is read, as for logging every tenth call: the graph stays the same."""
    count = 0

    @trace
    def scaled(x):
        calls()
        if count % 10 == 11:
            raise AssertionError
        return x * 2

    for i in range(15):
        count = i
        assert scaled(floats(i)).item() == 2 * i
    assert scaled._untraced is None


# The epoch of Modules and Optimizers.


def test_a_bumped_epoch_checks_again(calls, counts):
    class Thing:
        mode = "add"

        def __setattr__(self, name, value):
            object.__setattr__(self, name, value)
            graph.bump_epoch()

        def __call__(self, x):
            return x + 1 if self.mode == "add" else x * 10

    holder = {"thing": Thing()}
    traced = trace(lambda x: calls() or holder["thing"](x))
    assert traced(floats(3)).item() == 4
    holder["thing"].mode = "mul"
    assert traced(floats(3)).item() == 30
    assert traced(floats(3)).item() == 30
    holder["thing"].mode = "add"
    assert traced(floats(3)).item() == 4
    epoch = graph.EPOCH[0]
    before = len(calls)
    traced(floats(3))
    assert graph.EPOCH[0] == epoch and len(calls) == before, "an unchanged epoch costs nothing"


def test_train_and_eval_of_a_module(counts):
    import mge.module as M

    net = M.Sequential(M.Linear(3, 3), M.Dropout(0.5))
    traced = trace(lambda x: net(x))
    x = mge.tensor(np.ones((4, 3), np.float32))
    net.eval()
    wanted = net(x).numpy()
    assert (traced(x).numpy() == wanted).all() and (traced(x).numpy() == wanted).all()
    net.train()
    first, second = traced(x).numpy(), traced(x).numpy()
    assert (first == 0).any() or (second == 0).any()
    assert (first != second).any()
    net.eval()
    assert (traced(x).numpy() == wanted).all()


def test_an_attribute_and_a_hook_of_a_module():
    import mge.module as M

    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.factor = 2.0

        def forward(self, x):
            return x * self.factor

    net = Net()
    traced = trace(lambda x: net(x))
    assert traced(floats(3)).item() == 6
    net.factor = 5.0
    assert traced(floats(3)).item() == 15
    hook = net.register_forward_hook(lambda module, args, result: result + 1)
    assert traced(floats(3)).item() == 16
    hook.remove()
    assert traced(floats(3)).item() == 15


def test_statistics_of_batch_norm_are_replayed():
    import mge.module as M

    rng = np.random.default_rng(0)
    data = [mge.tensor(rng.normal(size=(6, 3)).astype("float32")) for _ in range(4)]
    plain, net = M.BatchNorm1d(3), M.BatchNorm1d(3)
    traced = trace(lambda x: net(x))
    for x in data:
        assert (plain(x).numpy() == traced(x).numpy()).all()
    for name in ("running_mean", "running_var"):
        assert (getattr(plain, name).numpy() == getattr(net, name).numpy()).all()


# Side effects.


def test_a_value_that_the_function_writes_is_a_side_effect(capsys, counts):
    step = 0

    @trace
    def count(x):
        nonlocal step
        step += 1
        return x * 2

    for i in range(4):
        assert count(floats(i)).item() == 2 * i
    assert step == 1 and counts.traces == 1  # neither guarded nor replayed
    text = capsys.readouterr().err
    assert text.count("step") == 1 and "count" in text and "only while it is traced" in text


COUNTER = 0


def test_a_global_that_the_function_writes(capsys, counts):
    def count(x):
        global COUNTER
        COUNTER += 1
        return x * 2

    traced = trace(count)
    for i in range(3):
        assert traced(floats(i)).item() == 2 * i
    assert counts.traces == 1 and "COUNTER" in capsys.readouterr().err


# Reading.


READS = {
    "numpy": lambda x: x.numpy(),
    "item": lambda x: x.item(),
    "bool": lambda x: 1 if x > 0 else 2,
    "int": lambda x: int(x),
    "float": lambda x: float(x),
    "format": lambda x: f"{x:.1f}",
    "tolist": lambda x: x.tolist(),
    "asarray": lambda x: np.asarray(x),
    "range": lambda x: range(x.astype("int32")),
    "min of two": lambda x: min(x, x * 2),
}


@pytest.mark.parametrize("name", READS)
def test_reading_inside_is_an_error_that_names_the_line(name):
    first = inspect.getsourcelines(READS[name])[1]

    @trace
    def reads(x):
        return READS[name](x.sum() * 2)

    with pytest.raises(TraceError, match="value of a tensor") as caught:
        reads(floats(1, 2))
    assert caught.value.place == f"{__file__}:{first}" and "reads" in str(caught.value)
    assert MODE.get().recording is None
    assert (floats(1) + 1).item() == 2  # all is well afterwards


def test_a_shape_from_data_inside_names_the_other_form():
    @trace
    def positives(x):
        return F.cond_take(x > 0, x)

    with pytest.raises(TraceError, match="size="):
        positives(floats(1, -1, 2))

    @trace
    def padded(x):
        values, _, count = F.cond_take(x > 0, x, size=3)
        return values, count

    for _ in range(2):
        values, count = padded(floats(1, -1, 2))
        assert values.numpy()[: count.item()].tolist() == [1, 2]


def test_printing_inside_shows_the_type():
    @trace
    def shown(x):
        shown.text = repr(x * 2)
        return x

    shown(floats(1, 2))
    assert "f32[2]" in shown.text


def test_a_captured_tensor_is_not_read_either():
    w = floats(1)

    @trace
    def reads(x):
        return x * w.item()

    with pytest.raises(TraceError):
        reads(floats(1))


def test_an_error_inside_leaves_everything_as_it_was():
    w = floats(1)
    w.grad = floats(7)

    @trace
    def fails(x):
        w._assign(w * 2)
        w.grad = None
        return x @ x.reshape(3, 1)

    with pytest.raises(ShapeError) as caught:
        fails(floats(1, 2))
    assert __file__ in str(caught.value)
    assert w.item() == 1 and w.grad.item() == 7 and MODE.get().recording is None


# Under a manager.


def test_under_an_outer_manager_it_is_one_differentiable_node(counts):
    w = floats(2)
    manager = autodiff.GradManager().attach(w)

    @trace
    def model(x):
        return F.exp(x * w) * w

    for i in range(4):
        w.grad = None
        x = floats(0.1 * i)
        with manager:
            y = model(x)
            assert y._node.sig.op.name in ("call", "get")
            manager.backward(y)
        wanted = np.exp(0.2 * i) * (1 + 0.1 * i * 2)
        assert w.grad.item() == pytest.approx(wanted, rel=1e-5)
    assert counts.traces == 1


def test_an_argument_is_differentiated_through_a_trace():
    x = floats(2, 3)
    manager = autodiff.GradManager().attach(x)
    model = trace(lambda x: {"y": x * x, "z": x.sum()})
    for _ in range(3):
        x.grad = None
        with manager:
            made = model(x)
            manager.backward((made["y"] * 2).sum() + made["z"] * 10)
        assert x.grad.numpy().tolist() == [18, 22]


def test_a_trace_that_rebinds_under_a_manager():
    w, mean = floats(2), ModuleBuffer(floats(0))
    manager = autodiff.GradManager().attach(w)

    @trace
    def model(x):
        mean._assign(mean * 0.5 + x.detach() * 0.5)
        return (x * w - mean) ** 2

    for i in range(4):
        w.grad = None
        with manager:
            manager.backward(model(floats(1)))
        m = 1 - 0.5 ** (i + 1)
        assert mean.item() == pytest.approx(m)
        assert w.grad.item() == pytest.approx(2 * (2 - m))


def test_a_trace_inside_a_trace(calls):
    @trace
    def inner(x):
        calls()
        return x * 2

    @trace
    def outer(x):
        return inner(x) + 1

    for i in range(3):
        assert outer(floats(i)).item() == 2 * i + 1
    assert inner(floats(5)).item() == 10


def test_gradients_of_gradients_through_a_trace():
    x = floats(2, 3)
    model = trace(lambda x: x * x * x)
    for _ in range(3):
        x.grad = None
        outer, inner = autodiff.GradManager().attach(x), autodiff.GradManager().attach(x)
        with outer:
            with inner:
                inner.backward(model(x).sum())
            first, x.grad = x.grad, None
            outer.backward(first.sum())
        assert x.grad.numpy().tolist() == [12, 18]


# check=True.


def test_check_compares_with_the_python_function(calls):
    w = mge.Parameter(floats(1))

    @trace(check=True)
    def step(x):
        calls()
        y = x * w
        w._assign(w * 2)
        return y

    assert [step(floats(3)).item() for _ in range(4)] == [3, 6, 12, 24]
    assert w.item() == 16
    assert len(calls) >= 4


def test_check_finds_what_a_trace_does_not_see():
    hidden = {"n": 0}

    def sneaky():
        hidden["n"] += 1
        return hidden["n"]

    @trace(check=True)
    def step(x):
        return x * float(sneaky())

    with pytest.raises(InternalError, match="differs from that of the Python function"):
        for _ in range(3):
            step(floats(3))


def test_check_with_random_numbers():
    rng = mge.random.RNG(seed=3)

    @trace(check=True)
    def draw(x):
        return x + rng.uniform(size=2)

    for _ in range(3):
        draw(floats(0, 0))


# Switches.


def test_eager_mode_and_mge_trace_0_run_the_function(calls):
    @trace
    def double(x):
        calls()
        return x * 2

    with mge.eager():
        assert double(floats(1))._node.buffer is not None
        double(floats(1))
    with debug(trace=False):
        double(floats(1))
        double(floats(1))
    assert len(calls) == 4
    double(floats(1)), double(floats(1))
    assert len(calls) == 5


def test_profiling_keeps_the_steps():
    @trace(profiling=True)
    def step(x):
        return F.exp(x) + 1

    step(floats(1)), step(floats(1))
    profile = step.get_profile()
    assert [p["op"] for p in profile] == ["exp", "add"] and all(p["ns"] >= 0 for p in profile)
    assert __file__ in profile[0]["place"]


def test_a_function_that_returns_no_tree():
    marker = object()
    traced = trace(lambda x: (x, marker, {"a": marker}))
    for _ in range(2):
        result = traced(floats(1))
        assert result[1] is marker and result[2]["a"] is marker


def test_arguments_that_are_objects():
    class Batch:
        def __init__(self, x):
            self.x = x

    @trace
    def total(batch):
        return batch.x * 2

    batch = Batch(floats(1))
    assert total(batch).item() == 2
    batch.x += 1
    assert total(batch).item() == 4
    assert total(Batch(floats(7))).item() == 14


def test_dtypes_and_devices_of_results():
    @trace
    def cast(x):
        return x.astype("float16"), x > 1, x.argmax()

    for _ in range(2):
        a, b, c = cast(floats(1, 2))
        assert (a.dtype, b.dtype, c.dtype, a.device) == ("float16", "bool", "int32", "ref:0")


def test_wrong_arguments_raise_as_the_function_does():
    @trace
    def double(x, y):
        return x * y

    with pytest.raises(TypeError):
        double(floats(1))
    with pytest.raises((DTypeError, MgeError)):
        double(floats(1), "text")
    assert double(floats(2), floats(3)).item() == 6


def test_traces_share_no_state_between_functions():
    made = [trace(lambda x, n=n: x * n) for n in (1.0, 2.0, 3.0)]
    for _ in range(2):
        assert [f(floats(2)).item() for f in made] == [2, 4, 6]
    assert jit.trace is trace


# What passes through handles.


def test_a_copy_from_one_handle_to_another_is_replayed():
    """As for a target network: the value is that of the source at the time of each call."""
    source, target = floats(1), floats(0)
    for copy_over in (lambda: target._assign(source), lambda: target.set_value(source)):
        traced = trace(copy_over)
        for i in range(4):
            source.set_value([i])
            traced()
            assert target.item() == i


def test_a_captured_tensor_that_is_returned():
    w = floats(1)
    traced = trace(lambda x: (w, mge.Tensor(w), copy.copy(w), x))
    for i in range(3):
        w.set_value([i])
        assert [t.item() for t in traced(floats(9))] == [i, i, i, 9]


def test_a_gradient_that_is_given_from_outside():
    w, dy = floats(2), floats(1)
    manager = autodiff.GradManager().attach(w)

    @trace
    def step():
        w.grad = None
        with manager:
            manager.backward(w * w, dy)
        return w.grad

    for i in range(3):
        dy.set_value([i])
        assert step().item() == 4 * i


def test_branches_use_current_values():
    w = floats(1)

    @trace
    def step(x):
        (y,) = F.while_loop(lambda v: v.sum() < 10, lambda v: (v + w,), [x])
        return F.cond(x.sum() > 0, lambda x: x * w, lambda x: x - w, x), y

    for i in range(1, 4):
        w.set_value([i])
        for _ in range(2):
            y, z = step(floats(2))
            assert y.item() == 2 * i and z.item() == next(v for v in range(2, 99, i) if v >= 10)
            assert step(floats(-1))[0].item() == -1 - i


def test_an_argument_is_rebound_outside():
    @trace
    def step(pair, scale):
        x, y = pair
        x += scale
        old = x * 1
        y._assign(old)
        return old

    for mode in ("plain", "under a manager"):
        x, y = floats(1), floats(5)
        for i in range(1, 4):
            if mode == "plain":
                step((x, y), 1.0)
            else:
                manager = autodiff.GradManager().attach(x)
                with manager:
                    manager.backward(step([x, y], 1.0))
                assert x.grad.item() == i
            assert (x.item(), y.item()) == (1 + i, 1 + i)


def test_swapped_arguments():
    @trace
    def swap(x, y):
        old = copy.copy(x)
        x._assign(y)
        y._assign(old)

    x, y = floats(1), floats(2)
    for i in range(4):
        swap(x, y)
        assert (x.item(), y.item()) == ((2, 1) if i % 2 == 0 else (1, 2))


def test_an_escaped_value_is_an_error_when_it_is_read():
    kept = []
    traced = trace(lambda x: kept.append(x * 2) or x + 1)
    assert traced(floats(1)).item() == 2
    with pytest.raises(MgeError, match="trac|recorded"):
        kept[0].numpy()
    assert traced(floats(5)).item() == 6


# More guards.


class Plain:
    """An object of the user's, which tells nobody when it changes."""

    def __init__(self):
        self.rate = 2.0
        self.inner = Settings()

    @property
    def doubled(self):
        return self.rate * 2

    def scaled(self, x):
        return x * self.rate

    @trace
    def traced(self, x):
        return x * self.doubled + self.inner.bias


def test_attributes_of_an_object_that_is_an_argument():
    thing = Plain()
    assert thing.traced(floats(3)).item() == 13
    thing.rate = 5.0
    assert thing.traced(floats(3)).item() == 31
    thing.inner.bias = 2.0
    assert thing.traced(floats(3)).item() == 32
    thing.inner = Settings()
    assert thing.traced(floats(3)).item() == 31


def test_attributes_of_an_object_in_a_method_that_is_called():
    thing = Plain()
    traced = trace(lambda x: thing.scaled(x))
    assert traced(floats(3)).item() == 6
    thing.rate = 5.0
    assert traced(floats(3)).item() == 15
    thing = Plain()
    assert traced(floats(3)).item() == 6


def test_a_closure_through_an_inner_lambda():
    scale = 2.0

    @trace
    def scaled(x):
        return F.cond(x.sum() > 0, lambda x: x * scale, lambda x: x, x)

    assert scaled(floats(3)).item() == 6
    scale = 5.0
    assert scaled(floats(3)).item() == 15


def test_functions_of_one_code_and_different_closures():
    def factory(holder):
        factor = holder[0]

        def scaled(x):
            return x * factor

        def change(value):
            nonlocal factor
            factor = value

        return scaled, change

    (one, change_one), (two, change_two) = factory([2.0]), factory([3.0])
    traced = trace(lambda x: two(one(x)))
    assert traced(floats(1)).item() == 6
    change_two(10.0)
    assert traced(floats(1)).item() == 20
    change_one(7.0)
    assert traced(floats(1)).item() == 70


def test_a_local_variable_that_an_inner_function_writes_is_no_side_effect(capsys):
    @trace
    def total(x):
        count = 0

        def add(y):
            nonlocal count
            count += 1
            return y + count

        return add(add(x))

    assert total(floats(0)).item() == 3 and total(floats(1)).item() == 4
    assert capsys.readouterr().err == ""


def test_an_attribute_that_the_function_writes_is_a_side_effect(capsys, counts):
    state = Settings()
    state.step = 0

    @trace
    def count(x):
        state.step += 1
        state.last = "seen"
        return x * 2

    for i in range(4):
        assert count(floats(i)).item() == 2 * i
    text = capsys.readouterr().err
    assert counts.traces == 1 and state.step == 1
    assert "state.step" in text and "state.last" in text


def test_guards_hold_no_text_of_tensors(capsys):
    """Why a guard failed is told without reading anything."""
    w = floats(1) + 1

    @trace
    def scaled(x):
        return x * w

    with debug(debug=1):
        scaled(floats(3))
        w = floats(5) + 1
        assert scaled(floats(3)).item() == 18
    assert "w was a Tensor" in capsys.readouterr().err


def test_a_property_of_a_tensor_is_not_evaluated_to_check(counts):
    w = mge.tensor([[1.0, 2.0]])

    @trace
    def product(x):
        return x @ w.T

    for _ in range(3):
        assert product(mge.tensor([[1.0, 1.0]])).item() == 3
        assert not graph.LOCAL.recording.tokens
    assert counts.traces == 1


def test_exceptions_in_the_function_leave_no_profile_and_no_mode():
    import sys

    @trace
    def fails(x):
        raise KeyError("no")

    before = sys.getprofile()
    with pytest.raises(KeyError):
        fails(floats(1))
    assert sys.getprofile() is before and MODE.get().recording is None


def test_a_trace_frees_what_it_recorded():
    import gc
    import weakref

    w = floats(1, 2, 3)
    node = weakref.ref(w._node)
    traced = trace(lambda x: x * w)
    traced(floats(1, 1, 1))
    w += 1
    mge.sync()
    gc.disable()
    try:
        assert node() is None, "the recording of a trace keeps old values"
    finally:
        gc.enable()


def test_what_is_returned_is_the_value_at_the_end():
    w = floats(1)

    @trace
    def step(x):
        w._assign(w * 2)
        x += 5
        return w, x, [w, x * 1]

    for i in range(1, 4):
        a, b, (c, d) = step(floats(i))
        assert [t.item() for t in (a, b, c, d)] == [2**i, i + 5, 2**i, i + 5]
    a += 1
    assert w.item() == 8 and c.item() == 8


def test_a_grad_from_outside_that_is_changed_in_place():
    w = floats(1)

    @trace
    def unscale():
        w.grad *= 0.5

    for i in range(1, 4):
        w.grad = floats(i)
        unscale()
        assert w.grad.item() == i / 2
        unscale()
        assert w.grad.item() == i / 4


def test_a_number_that_is_returned():
    traced = trace(lambda n, rate: (n, rate, n * 2 + 1, rate / 4))
    for n, rate in ((1, 0.5), (7, 0.25)):
        made = traced(n, rate)
        assert [float(v) for v in made] == [n, rate, 2 * n + 1, rate / 4]
