"""Generators: seeds, how draws advance the state, moments, and draws inside of traced functions."""

import numpy as np
import pytest

import mge
import mge.functional as F
from mge import random
from mge.errors import ArgumentError, DTypeError, ShapeError

MANY = 100_000


@pytest.fixture
def generator():
    return random.RNG(seed=7)


def test_random_equal_seeds_give_equal_numbers(generator):
    other = random.RNG(seed=7)
    for name in ("uniform", "normal"):
        one, two = (getattr(g, name)(size=5).numpy() for g in (generator, other))
        assert (one == two).all()
    assert (generator.state.numpy() == other.state.numpy()).all()


def test_random_seed_restarts_the_default_generator():
    random.seed(3)
    one = random.normal(size=4).numpy()
    again = random.normal(size=4).numpy()
    random.seed(3)
    assert (random.normal(size=4).numpy() == one).all()
    assert (one != again).all()


def test_random_a_draw_advances_by_the_words_it_takes(generator):
    taken = []
    for draw in (
        lambda: generator.uniform(size=5),
        lambda: generator.uniform(size=5, dtype="float64"),
        lambda: generator.normal(size=5),
        lambda: generator.permutation(5),
        lambda: generator.uniform(size=0),
    ):
        before = int(generator.state.numpy()[1])
        draw()  # also where nobody reads it
        taken.append(int(generator.state.numpy()[1]) - before)
    assert taken == [5, 10, 6, 10, 0]


def test_random_draws_before_a_read_differ(generator):
    one, two = generator.uniform(size=8), generator.uniform(size=8)
    assert (one.numpy() != two.numpy()).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_random_uniform_stays_below_one(generator, dtype):
    values = generator.uniform(size=MANY, dtype=dtype)
    assert values.dtype == dtype
    values = values.numpy().astype(np.float64)
    assert values.min() >= 0 and values.max() < 1
    assert abs(values.mean() - 0.5) < 0.01


@pytest.mark.parametrize(
    ("name", "arguments", "mean", "variance"),
    [
        ("uniform", (-1.0, 3.0), 1, 16 / 12),
        ("normal", (2.0, 3.0), 2, 9),
        ("gamma", (0.3, 2.0), 0.6, 1.2),
        ("gamma", (2.5, 1.0), 2.5, 2.5),
        ("beta", (2.0, 3.0), 0.4, 0.04),
        ("poisson", (0.5,), 0.5, 0.5),
        ("poisson", (9.9,), 9.9, 9.9),
        ("poisson", (10.1,), 10.1, 10.1),
        ("poisson", (400.0,), 400, 400),
        ("exponential", (2.0,), 2, 4),
    ],
)
def test_random_moments(generator, name, arguments, mean, variance):
    values = getattr(generator, name)(*arguments, size=MANY).numpy().astype(np.float64)
    assert abs(values.mean() - mean) < 6 * np.sqrt(variance / MANY)
    assert abs(values.var() - variance) < 0.05 * variance


def test_random_parameters_broadcast_behind_the_size(generator):
    shape, scale = mge.tensor([[1.0], [10.0]]), mge.tensor([1.0, 5.0])
    assert generator.gamma(shape, scale).shape == (2, 2)
    assert generator.gamma(shape, scale, size=3).shape == (3, 2, 2)
    assert generator.poisson(4.0, size=(2, 3)).shape == (2, 3)
    assert generator.normal().shape == ()


def test_random_permutation_and_shuffle_keep_the_elements(generator):
    assert sorted(generator.permutation(50).tolist()) == list(range(50))
    rows = mge.tensor(np.arange(20).reshape(10, 2))
    mixed = generator.permutation(rows).numpy()
    assert (mixed[:, 1] == mixed[:, 0] + 1).all() and sorted(mixed[:, 0]) == list(range(0, 20, 2))
    kept, x = rows.numpy(), rows
    generator.shuffle(x)
    assert x is rows and sorted(x.numpy()[:, 0]) == sorted(kept[:, 0])


def test_random_multinomial_follows_the_weights(generator):
    weights = mge.tensor([1.0, 0.0, 3.0])
    found = generator.multinomial(weights, MANY, replacement=True).numpy()
    shares = np.bincount(found, minlength=3) / MANY
    np.testing.assert_allclose(shares, [0.25, 0, 0.75], atol=0.01)
    rows = generator.multinomial(mge.tensor(np.ones((100, 5), np.float32)), 5).numpy()
    assert (np.sort(rows, axis=1) == np.arange(5)).all()


def test_random_draws_in_a_traced_function_go_on():
    random.seed(11)
    wanted = [random.uniform(size=3).numpy() for _ in range(4)]
    random.seed(11)

    @mge.jit.trace
    def function(x):
        return x + random.uniform(size=3)

    for w in wanted:
        np.testing.assert_array_equal(function(mge.tensor([0.0, 0.0, 0.0])).numpy(), w)


def test_dropout_keeps_the_mean_and_drops_the_same_elements_in_the_gradient():
    x = mge.tensor(np.ones(MANY, np.float32))
    with mge.autodiff.GradManager().attach([x]) as gm:
        y = F.dropout(x, 0.3)
        gm.backward(F.sum(y))
    values, grad = y.numpy(), x.grad.numpy()
    assert abs((values == 0).mean() - 0.3) < 0.01
    np.testing.assert_array_equal(values, grad)
    np.testing.assert_allclose(values[values != 0], 1 / 0.7, rtol=1e-6)
    assert F.dropout(x, 0.3, training=False) is x


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: random.uniform(2, 1), ArgumentError, "low is 2 and high is 1"),
        (lambda: random.normal(0, -1), ArgumentError, "std is -1"),
        (lambda: random.gamma(0.0), ArgumentError, "shape is 0.0"),
        (lambda: random.uniform(size=(2, -1)), ShapeError, r"size is \(2, -1\)"),
        (lambda: random.uniform(dtype="int32"), DTypeError, "dtype is int32"),
        (lambda: random.seed("a"), ArgumentError, "'a' is a str"),
        (lambda: random.multinomial(mge.tensor([1.0]), 2), ArgumentError, "num_samples is 2"),
        (lambda: F.dropout(mge.tensor([1.0]), 1.0), ArgumentError, "drop_prob is 1.0"),
    ],
)
def test_random_errors_name_the_argument(call, error, text):
    with pytest.raises(error, match=text):
        call()
