"""Branches and loops over tensors: values, gradients, closures, handles, random numbers; each way of running."""

import numpy as np
import pytest

import mge
import mge.functional as F
from mge.autodiff import GradManager
from mge.errors import ArgumentError, DTypeError, MgeError, ShapeError, TraceError, UnsupportedError
from mge.jit import trace
from mge.tensor import ModuleBuffer


def floats(*values):
    return mge.tensor(np.array(values, np.float32))


@pytest.fixture(params=["plain", "traced", "eager"])
def way(request):
    """Turn a function into one that runs as it is, traced, or eagerly."""

    def turn(function):
        if request.param == "traced":
            return trace(function)
        if request.param == "plain":
            return function

        def eager(*args):
            with mge.eager():
                return function(*args)

        return eager

    turn.mode = request.param
    return turn


# cond.


def test_cond_runs_the_branch_of_the_value(way):
    choose = way(lambda x: F.cond(x.sum() > 0, lambda x: x * 10, lambda x: x - 1, x))
    for value, wanted in ((2, 20), (-2, -3), (3, 30), (-5, -6)):
        assert choose(floats(value)).item() == wanted


def test_cond_runs_one_branch_only(way):
    calls = []

    def note(name):
        return lambda x: F.host_call(
            lambda a: calls.append(name) or a.copy(), [((1,), "float32")], x
        )

    choose = way(lambda x: F.cond(x.sum() > 0, note("then"), note("else"), x))
    for value in (1, -1, 1):
        choose(floats(value)).numpy()
    assert calls == ["then", "else", "then"]


def test_cond_with_a_python_value_and_with_other_dtypes():
    x = floats(3)
    assert F.cond(True, lambda x: x * 2, lambda x: x, x).item() == 6
    assert F.cond(0, lambda x: x * 2, lambda x: x, x).item() == 3
    assert F.cond(mge.tensor(5), lambda x: x * 2, lambda x: x, x).item() == 6
    assert F.cond(mge.tensor(0.0), lambda x: x * 2, lambda x: x, x).item() == 3


def test_cond_with_several_results_and_none_used(way):
    def step(x):
        a, b = F.cond(x.sum() > 0, lambda x: (x + 1, x * 2), lambda x: (x - 1, x * 3), x)
        return a, b

    step = way(step)
    for value in (1, -1, 4):
        a, b = step(floats(value))
        assert (a.item(), b.item()) == (
            (value + 1, value * 2) if value > 0 else (value - 1, value * 3)
        )


def test_cond_closures(way):
    w, v = floats(10), floats(100)
    choose = way(lambda x: F.cond(x.sum() > 0, lambda x: x * w, lambda x: x + v * w, x))
    for i in range(1, 4):
        w.set_value([i])
        assert choose(floats(2)).item() == 2 * i
        assert choose(floats(-2)).item() == -2 + 100 * i


def test_cond_without_operands_returns_numbers_and_closures(way):
    w = floats(7)
    choose = way(lambda p: F.cond(p, lambda: (w, 1.0), lambda: (w * 2, 2.0)))
    for flag in (True, False, True):
        a, b = choose(mge.tensor(flag))
        assert (a.item(), b.item()) == ((7, 1) if flag else (14, 2))


def test_cond_gradients(way):
    w = floats(3)
    manager = GradManager().attach(w)

    def step(x):
        w.grad = None
        with manager:
            y = F.cond(x.sum() > 0, lambda x: x * w * w, lambda x: x - w, x)
            manager.backward(y)
        return w.grad

    step = way(step)
    for value, wanted in ((2, 12), (-2, -1), (5, 30)):
        assert step(floats(value)).item() == wanted


def test_cond_gradient_by_the_operand_and_where_a_branch_ignores_it(way):
    x = floats(2, 3)
    manager = GradManager().attach(x)

    def step(p):
        x.grad = None
        with manager:
            y = F.cond(p, lambda x: (x * x).sum(), lambda x: F.zeros(()) + 1.0, x)
            manager.backward(y)
        return x.grad

    step = way(step)
    for flag, wanted in ((True, [4, 6]), (False, [0, 0]), (True, [4, 6])):
        assert step(mge.tensor(flag)).numpy().tolist() == wanted


def test_cond_second_derivative(way):
    x = floats(2)

    def step(p):
        outer, inner = GradManager().attach(x), GradManager().attach(x)
        x.grad = None
        with outer:
            with inner:
                inner.backward(F.cond(p, lambda x: x * x * x, lambda x: x * x, x))
            first, x.grad = x.grad, None
            outer.backward(first)
        return first, x.grad

    step = way(step)
    for flag, wanted in ((True, (12, 12)), (False, (4, 2)), (True, (12, 12))):
        assert tuple(t.item() for t in step(mge.tensor(flag))) == wanted


def test_cond_rebinds_handles(way):
    """Both branches see the old value; the one that runs decides on the new one."""
    count, total = floats(0), floats(0)

    def step(x):
        def then(x):
            count.__iadd__(1)
            total.__iadd__(x)
            return x * 2

        def other(x):
            count.__isub__(1)
            return x

        return F.cond(x.sum() > 0, then, other, x)

    step = way(step)
    for value in (1, 2, -5, 3):
        assert step(floats(value)).item() == (value * 2 if value > 0 else value)
    assert (count.item(), total.item()) == (2, 6)


def test_cond_inside_cond(way):
    def step(x):
        return F.cond(
            x.sum() > 0,
            lambda x: F.cond(x.sum() > 10, lambda x: x * 100, lambda x: x * 10, x),
            lambda x: -x,
            x,
        )

    step = way(step)
    assert [step(floats(v)).item() for v in (1, 20, -3)] == [10, 2000, 3]


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda x: F.cond(x > 0, lambda x: x, lambda x: x, x), ShapeError, "predicate"),
        (
            lambda x: F.cond(x.sum() > 0, lambda x: x, lambda x: x.sum(), x),
            ShapeError,
            "same types",
        ),
        (
            lambda x: F.cond(x.sum() > 0, lambda x: x, lambda x: x.astype("float16"), x),
            ShapeError,
            "same types",
        ),
        (
            lambda x: F.cond(x.sum() > 0, lambda x: x, lambda x: "text", x),
            TraceError,
            "must return tensors",
        ),
        (
            lambda x: F.cond(x.sum() > 0, lambda x: x * x.sum().item(), lambda x: x, x),
            TraceError,
            "value of a tensor",
        ),
        (
            lambda x: F.while_loop(lambda v: v, lambda v: (v,), [x]),
            (DTypeError, ShapeError),
            "condition",
        ),
        (
            lambda x: F.while_loop(lambda v: v.sum() > 0, lambda v: (v.sum(),), [x]),
            ShapeError,
            "both must be the same",
        ),
        (
            lambda x: F.while_loop(lambda v: v.sum() > 0, lambda v: (v, v), [x]),
            ShapeError,
            "both must be the same",
        ),
        (lambda x: F.while_loop(lambda: True, lambda: (), []), ArgumentError, "empty"),
    ],
)
def test_what_does_not_fit_is_an_error_at_the_line(make, kind, text):
    with pytest.raises(kind, match=text) as caught:
        make(floats(1, 2))
    assert __file__ in str(caught.value)
    assert (floats(1) + 1).item() == 2


def test_an_error_in_a_branch_restores_handles():
    w = floats(1)

    def bad(x):
        w.__iadd__(1)
        return x @ x.reshape(3, 1)

    with pytest.raises(MgeError):
        F.cond(w.sum() > 0, lambda x: x, bad, floats(1, 2))
    assert w.item() == 1
    with pytest.raises(MgeError):
        F.while_loop(lambda x: w.sum() > 0, lambda x: (bad(x),), [floats(1, 2)])
    assert w.item() == 1


# while_loop.


def test_while_loop_runs_until_the_condition_fails(way):
    def step(n):
        return F.while_loop(
            lambda i, s: i < n, lambda i, s: (i + 1, s + i), [mge.tensor(0), mge.tensor(0)]
        )

    step = way(step)
    for n in (4, 0, 10):
        i, s = step(mge.tensor(n))
        assert (i.item(), s.item()) == (n, n * (n - 1) // 2)


def test_max_trips_stops_a_loop(way):
    step = way(
        lambda x: F.while_loop(lambda v: v.sum() > 0, lambda v: (v + 1,), [x], max_trips=5)[0]
    )
    assert step(floats(1)).item() == 6 and step(floats(-10)).item() == -10


def test_while_loop_closures_and_rebound_handles(way):
    w, seen = floats(2), ModuleBuffer(floats(0))

    def step(x):
        def body(v):
            seen.__iadd__(v)
            return (v * w,)

        return F.while_loop(lambda v: v.sum() < 100, body, [x])[0]

    step = way(step)
    assert step(floats(1)).item() == 128 and seen.item() == 127
    w.set_value([10])
    seen.reset_zero()
    assert step(floats(1)).item() == 100 and seen.item() == 11


def test_while_loop_gradients_by_carry_and_closure(way):
    w, x = floats(2), floats(3)
    manager = GradManager().attach([w, x])

    def step(n):
        w.grad = x.grad = None
        with manager:
            _, y = F.while_loop(
                lambda i, v: i < n, lambda i, v: (i + 1, v * w), [mge.tensor(0), x], max_trips=6
            )
            manager.backward(y)
        return y, w.grad, x.grad

    step = way(step)
    for n in (3, 0, 5):
        y, dw, dx = (t.item() for t in step(mge.tensor(n)))
        assert (y, dw, dx) == (3 * 2**n, 3 * n * 2 ** (n - 1) if n else 0, 2**n)


def test_while_loop_gradient_equals_that_of_the_unrolled_loop(way):
    rng = np.random.default_rng(1)
    w = mge.tensor(rng.normal(size=(3, 3)).astype("float32") * 0.5)
    b = mge.tensor(rng.normal(size=(3,)).astype("float32"))
    x = mge.tensor(rng.normal(size=(2, 3)).astype("float32"))
    manager = GradManager().attach([w, b])

    def gradients_of(forward):
        w.grad = b.grad = None
        with manager:
            manager.backward((forward() ** 2).sum())
        return w.grad, b.grad

    def unrolled():
        v = x
        for _ in range(4):
            v = F.tanh(v @ w + b)
        return v

    def looped():
        return F.while_loop(
            lambda i, v: i < 4,
            lambda i, v: (i + 1, F.tanh(v @ w + b)),
            [mge.tensor(0), x],
            max_trips=4,
        )[1]

    wanted = [g.numpy() for g in gradients_of(unrolled)]
    step = way(lambda: gradients_of(looped))
    for _ in range(3):
        for given, right in zip(step(), wanted):
            assert np.allclose(given.numpy(), right, atol=1e-5)


def test_while_loop_second_derivative():
    x = floats(2)
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    for _ in range(3):
        x.grad = None
        with outer:
            with inner:
                _, y = F.while_loop(
                    lambda i, v: i < 3,
                    lambda i, v: (i + 1, v * x),
                    [mge.tensor(0), x * 1.0],
                    max_trips=3,
                )
                inner.backward(y)  # x**4
            first, x.grad = x.grad, None
            outer.backward(first)
        assert (first.item(), x.grad.item()) == (32, 48)


def test_a_gradient_without_a_bound_is_an_error():
    x = floats(1)
    manager = GradManager().attach(x)
    with pytest.raises(UnsupportedError, match="max_trips"), manager:  # noqa: PT012
        (y,) = F.while_loop(lambda v: v.sum() < 9, lambda v: (v * 2,), [x])
        manager.backward(y)


def test_a_loop_inside_a_loop_and_a_branch_inside_a_loop(way):
    def step(n):
        def body(i, total):
            _, inner = F.while_loop(
                lambda j, s: j < i, lambda j, s: (j + 1, s + j), [mge.tensor(0), mge.tensor(0)]
            )
            inner = F.cond(inner > 2, lambda s: s * 10, lambda s: s, inner)
            return i + 1, total + inner

        return F.while_loop(lambda i, t: i < n, body, [mge.tensor(0), mge.tensor(0)])[1]

    step = way(step)

    def wanted(n):
        sums = [i * (i - 1) // 2 for i in range(n)]
        return sum(s * 10 if s > 2 else s for s in sums)

    assert [step(mge.tensor(n)).item() for n in (0, 3, 5)] == [wanted(n) for n in (0, 3, 5)]


def test_numbers_and_arrays_in_the_carry(way):
    step = way(lambda x: F.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * 2), [0, x])[1])
    assert step(floats(1)).item() == 8
    assert F.while_loop(lambda v: v.sum() < 5, lambda v: (v + 1,), [np.zeros(2, np.float32)])[
        0
    ].numpy().tolist() == [3, 3]


def test_a_structure_is_compiled_once(counts):
    for i in range(4):
        x = floats(i)
        F.cond(x.sum() > 1, lambda x: x * 2, lambda x: x, x).numpy()
    assert (counts.first_sight_runs, counts.plans_compiled) == (1, 1)


# Random numbers.


def test_draws_in_a_loop_differ_by_iteration_and_advance_the_generator(way):
    rng = mge.random.RNG(seed=11)

    def step():
        stack = F.zeros((4, 3))

        def body(i, s):
            s[i] = rng.uniform(size=3)
            return i + 1, s

        return F.while_loop(lambda i, s: i < 4, body, [mge.tensor(0), stack])[1]

    step = way(step)
    made = np.concatenate([step().numpy() for _ in range(3)])
    assert len(np.unique(made)) == made.size, "a draw came twice"
    again = mge.random.RNG(seed=11)
    assert (made == again.uniform(size=(12, 3)).numpy()).all() or len(np.unique(made[:, 0])) == 12


def test_draws_in_a_branch_advance_the_generator_only_if_it_runs(way):
    rng = mge.random.RNG(seed=12)
    wanted = rng.uniform(size=6).numpy()
    rng = mge.random.RNG(seed=12)
    step = way(lambda p: F.cond(p, lambda: rng.uniform(size=2), lambda: F.zeros((2,))))
    made = [step(mge.tensor(flag)).numpy() for flag in (True, False, True, True)]
    assert (made[1] == 0).all()
    drawn = np.concatenate([made[0], made[2], made[3]])
    assert len(np.unique(drawn)) == 6 and len(wanted) == 6
