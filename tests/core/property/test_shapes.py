"""Shape, joining, creation, lookup and mask functions give what NumPy gives, and have the right gradients."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mge
import mge.functional as F
from mge.errors import ArgumentError, DTypeError, IndexRangeError, MgeError, ShapeError, TraceError
from mge.grad import gradients

shapes = st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple)


def numbers(shape):
    return np.arange(1, int(np.prod(shape)) + 1, dtype=np.float64).reshape(shape)


def check(ours, numpys, shape):
    """Assert that both functions of one array agree, and that the gradient of ours is that linear map's transpose."""
    array = numbers(shape)
    x = mge.tensor(array, dtype="float64")
    wanted = numpys(array)
    y = ours(x)
    assert y.shape == wanted.shape
    weights = np.cos(numbers(wanted.shape))
    (dx,) = gradients(
        [y], [x], [mge.tensor(weights, dtype="float64")]
    )  # before y is read: that drops its history
    assert np.array_equal(y.numpy(), wanted)
    base = numpys(np.zeros(shape))
    slope = np.zeros(array.size)
    for i, unit in enumerate(np.eye(array.size)):
        slope[i] = (weights * (numpys(unit.reshape(shape)) - base)).sum()
    given = np.zeros(shape) if dx is None else dx.numpy()
    assert np.allclose(given.ravel(), slope, rtol=1e-12, atol=1e-12)


@given(shapes, st.data())
def test_roll(shape, data):
    axes = data.draw(
        st.none()
        | st.lists(st.integers(-len(shape), len(shape) - 1), min_size=1, max_size=3).map(tuple)
    )
    count = 1 if axes is None else len(axes)
    shift = tuple(data.draw(st.lists(st.integers(-7, 7), min_size=count, max_size=count)))
    shift = shift[0] if count == 1 else shift
    check(lambda x: F.roll(x, shift, axes), lambda a: np.roll(a, shift, axes), shape)


@given(shapes, st.data())
def test_repeat(shape, data):
    axis = data.draw(st.none() | st.integers(-len(shape), len(shape) - 1))
    n = int(np.prod(shape)) if axis is None else shape[axis]
    repeats = data.draw(st.integers(0, 3) | st.lists(st.integers(0, 3), min_size=n, max_size=n))
    check(
        lambda x: F.repeat(x, repeats, axis),
        lambda a: np.repeat(a, np.asarray(repeats, int), axis),
        shape,
    )


@given(shapes, st.lists(st.integers(0, 3), max_size=5).map(tuple) | st.integers(0, 3))
def test_tile(shape, reps):
    check(lambda x: F.tile(x, reps), lambda a: np.tile(a, reps), shape)


@given(shapes, st.data())
def test_flip(shape, data):
    axis = data.draw(
        st.none() | st.integers(-len(shape), len(shape) - 1) | st.just(tuple(range(len(shape))))
    )
    check(lambda x: F.flip(x, axis), lambda a: np.flip(a, axis), shape)


@given(shapes, st.data())
def test_split_and_concat(shape, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    cuts = data.draw(st.integers(1, 5) | st.lists(st.integers(-2, 6), max_size=4).map(sorted))
    array = numbers(shape)
    parts = F.split(mge.tensor(array), cuts, axis)
    wanted = np.array_split(array, cuts, axis)
    assert [p.shape for p in parts] == [w.shape for w in wanted]
    for part, right in zip(parts, wanted, strict=True):
        assert np.array_equal(part.numpy(), right)
    check(
        lambda x: F.concat(F.split(x, cuts, axis), axis),
        lambda a: np.concatenate(np.array_split(a, cuts, axis), axis),
        shape,
    )


@given(shapes, st.data())
def test_stack(shape, data):
    axis = data.draw(st.integers(-len(shape) - 1, len(shape)))
    check(lambda x: F.stack([x, x * 2.0], axis), lambda a: np.stack([a, a * 2], axis), shape)


@given(shapes, st.sampled_from(["constant", "edge", "reflect"]), st.data())
def test_pad(shape, mode, data):
    widths = []
    for n in shape:
        most = {"constant": 3, "edge": 3 if n else 0, "reflect": max(n - 1, 0)}[mode]
        widths.append((data.draw(st.integers(0, most)), data.draw(st.integers(0, most))))
    options = {"constant_values": -2.0} if mode == "constant" else {}
    check(
        lambda x: F.pad(x, widths, mode, constant_value=-2.0),
        lambda a: np.pad(a, widths, mode, **options),
        shape,
    )
    if mode == "edge":
        check(lambda x: F.pad(x, widths, "replicate"), lambda a: np.pad(a, widths, mode), shape)


def test_pad_takes_pairs_for_the_first_axes():
    assert F.pad(mge.tensor(np.ones((2, 3))), ((1, 2),)).shape == (5, 3)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=2).map(tuple), st.integers(-3, 3))
def test_diag(shape, k):
    check(lambda x: F.diag(x, k), lambda a: np.diag(a, k), shape)


@given(st.lists(st.integers(0, 3), max_size=3), st.sampled_from(["xy", "ij"]))
def test_meshgrid(sizes, indexing):
    lines = [numbers((n,)) for n in sizes]
    given = F.meshgrid(*map(mge.tensor, lines), indexing=indexing)
    wanted = np.meshgrid(*lines, indexing=indexing)
    assert len(given) == len(wanted)
    for one, other in zip(given, wanted, strict=True):
        assert np.array_equal(one.numpy(), other)


@pytest.mark.parametrize(
    ("shape", "pattern", "wanted"),
    [
        ((), ("x",), (1,)),
        ((3,), ("x", 0), (1, 3)),
        ((2, 3), (0, "x", 1), (2, 1, 3)),
        ((2, 3), (-1, "x", 0), (3, 1, 2)),
        ((1, 3), (1,), (3,)),
        ((2, 3, 4), None, (4, 3, 2)),
        ((2, 3, 4), [2, 0, 1], (4, 2, 3)),
    ],
)
def test_transpose_patterns(shape, pattern, wanted):
    y = F.transpose(mge.tensor(numbers(shape)), pattern)
    assert y.shape == wanted
    moved = [a for a in (pattern or range(len(shape))[::-1]) if a != "x"]
    rest = [a for a in range(len(shape)) if a not in [m % len(shape) for m in moved]]
    assert np.array_equal(y.numpy().ravel(), numbers(shape).transpose([*moved, *rest]).ravel())


@given(shapes, st.data())
def test_swapaxes(shape, data):
    one, other = (data.draw(st.integers(-len(shape), len(shape) - 1)) for _ in "ab")
    check(lambda x: F.swapaxes(x, one, other), lambda a: np.swapaxes(a, one, other), shape)


# Creation.

steps = st.integers(-5, 5) | st.floats(-3, 3).map(lambda n: round(n, 2))


@given(
    steps,
    steps,
    steps.filter(bool),
    st.sampled_from(["float32", "float64", "int32", "int64", "float16"]),
)
def test_arange(start, stop, step, dtype):
    count = max(0, int(np.ceil((stop - start) / step)))
    wanted = (start + np.arange(count) * float(step)).astype(dtype)
    given = F.arange(start, stop, step, dtype=dtype)
    assert given.dtype == dtype
    assert np.array_equal(given.numpy(), wanted)


def test_arange_is_exact_for_large_integers():
    assert F.arange(2**40, 2**40 + 3, dtype="int64").tolist() == [2**40, 2**40 + 1, 2**40 + 2]
    assert F.arange(255, 252, -1, dtype="uint8").tolist() == [255, 254, 253]
    assert F.arange(3).dtype == "float32"


@given(steps, steps, st.integers(0, 9), st.sampled_from(["float32", "float64"]))
def test_linspace(start, stop, num, dtype):
    given = F.linspace(start, stop, num, dtype=dtype).numpy()
    assert np.array_equal(given, np.linspace(start, stop, num).astype(dtype))


def test_creation_records_nodes_without_leaves():
    made = [
        F.zeros((2, 3)), F.ones(2, dtype="int32"), F.full((2,), 7), F.arange(1.5, 9, 0.25), F.linspace(0, 1, 3),
        F.eye(2, 3), F.full((), 2.5), F.zeros_like(mge.tensor([1, 2])), F.full_like(mge.tensor([1.0]), 3),
    ]  # fmt: skip
    for tensor in made:
        nodes = [tensor._node]
        while nodes:
            node = nodes.pop()
            assert node.buffer is None, f"{node} holds a value"
            nodes.extend(node.inputs)
    assert [t.dtype.name for t in made[:3]] == ["float32", "int32", "int32"]
    assert np.array_equal(made[5].numpy(), np.eye(2, 3))
    assert made[7].dtype == "int32"
    assert F.full((2,), True).dtype == "bool"
    assert F.full((2,), 0.5).dtype == "float32"


def test_a_shape_may_be_a_tensor():
    assert F.zeros(mge.tensor([2, 3])).shape == (2, 3)
    assert F.ones(mge.tensor(4)).shape == (4,)


def test_one_hot():
    y = F.one_hot(mge.tensor([[1, 0], [3, 5]]), 4)
    assert y.dtype == "int32"
    assert np.array_equal(
        y.numpy(), (np.arange(4) == np.array([[1, 0], [3, 5]])[..., None]).astype(int)
    )


# Lookup.


@given(shapes.filter(all), st.data())
def test_gather_and_scatter(shape, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    wanted = tuple(data.draw(st.integers(0, 4 if i == axis else n)) for i, n in enumerate(shape))
    size = int(np.prod(wanted))
    n = shape[axis]
    index = np.array(
        data.draw(st.lists(st.integers(-n, n - 1), min_size=size, max_size=size)), int
    ).reshape(wanted)
    part = tuple(slice(None) if i == axis else slice(m) for i, m in enumerate(wanted))
    check(
        lambda x: F.gather(x, axis, mge.tensor(index)),
        lambda a: np.take_along_axis(a[part], index, axis),
        shape,
    )
    source = np.sin(numbers(wanted))

    def scattered(a):
        a = a.copy()
        np.put_along_axis(a[part], index, source, axis)
        return a

    check(
        lambda x: F.scatter(x, axis, mge.tensor(index), mge.tensor(source, dtype="float64")),
        scattered,
        shape,
    )


def test_indexing_one_hot():
    array, index = numbers((2, 3, 4)), np.array([[0, 1, 2, 0], [2, 2, 1, 0]])
    wanted = np.take_along_axis(array, index[:, None], 1)
    assert np.array_equal(
        F.indexing_one_hot(mge.tensor(array), mge.tensor(index)).numpy(), wanted[:, 0]
    )
    assert np.array_equal(
        F.indexing_one_hot(mge.tensor(array), mge.tensor(index), keepdims=True).numpy(), wanted
    )


def test_embedding():
    table, rows = numbers((4, 3)), np.array([[1, 0], [1, -1]])
    weight = mge.tensor(table, dtype="float64")
    y = F.embedding(mge.tensor(rows), weight)
    (dw,) = gradients([y], [weight])
    assert np.array_equal(y.numpy(), table[rows])
    assert np.array_equal(dw.numpy()[:, 0], [1, 2, 0, 1])
    (dw,) = gradients([F.embedding(mge.tensor(rows), weight, padding_idx=3)], [weight])
    assert np.array_equal(dw.numpy()[:, 0], [1, 2, 0, 0])
    short = F.embedding(mge.tensor(rows), weight, max_norm=1.0).numpy()
    assert np.allclose(np.linalg.norm(short, axis=-1), 1, atol=1e-6)
    with pytest.raises(
        IndexRangeError, match="index 4 is out of range for axis 0, which has 4 elements"
    ):
        F.embedding(mge.tensor([0, 4]), weight).numpy()


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bag(mode):
    table, rows = numbers((4, 3)), np.array([[1, 0], [1, 3]])
    y = F.embedding_bag(mge.tensor(rows), mge.tensor(table), mode=mode)
    assert np.array_equal(y.numpy(), getattr(table[rows], mode)(1))
    if mode != "max":
        y = F.embedding_bag(mge.tensor([1, 0, 3]), mge.tensor(table), mge.tensor([0, 2, 2]), mode)
        first = getattr(table[[1, 0]], mode)(0)
        assert np.array_equal(y.numpy(), [first, np.zeros(3), table[3]])


@pytest.mark.parametrize("shape", [(8, 2, 3), (2, 4, 1, 2), (4, 0, 2)])
def test_pixel_shuffle(shape):
    *lead, c, h, w = shape

    def shuffled(a):
        blocks = a.reshape(*lead, c // 4, 2, 2, h, w)
        n = len(lead)
        return blocks.transpose(*range(n), n, n + 3, n + 1, n + 4, n + 2).reshape(
            *lead, c // 4, h * 2, w * 2
        )

    check(lambda x: F.pixel_shuffle(x, 2), shuffled, shape)
    check(lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2), lambda a: a, shape)


# Masks.

masks = shapes.flatmap(
    lambda s: st.lists(st.booleans(), min_size=int(np.prod(s)), max_size=int(np.prod(s))).map(
        lambda flat: np.array(flat, bool).reshape(s)
    )
)


@given(masks, st.integers(0, 6))
def test_cond_take(mask, size):
    array, m = numbers(mask.shape), mge.tensor(mask)
    positions = np.flatnonzero(mask)
    values, index = F.cond_take(m, mge.tensor(array))
    assert np.array_equal(values.numpy(), array[mask])
    assert np.array_equal(index.numpy(), positions)
    values, index, count = F.cond_take(m, mge.tensor(array), size=size, fill=-5)
    kept = min(size, len(positions))
    assert values.shape == index.shape == (size,)
    assert int(count) == len(positions)
    assert np.array_equal(values.numpy(), [*array[mask][:kept], *[-5] * (size - kept)])
    assert np.array_equal(index.numpy(), [*positions[:kept], *[-1] * (size - kept)])
    check(lambda x: F.cond_take(m, x)[0], lambda a: a[mask], mask.shape)
    check(
        lambda x: F.cond_take(m, x, size=size)[0],
        lambda a: np.append(a[mask], np.zeros(size))[:size],
        mask.shape,
    )


@given(masks, st.integers(0, 6))
def test_non_zero(mask, size):
    for condition in (mge.tensor(mask), mge.tensor(mask.astype(np.float32) * -2)):
        assert np.array_equal(F.non_zero(condition).numpy(), np.argwhere(mask))
        for one, other in zip(F.non_zero(condition, as_tuple=True), np.nonzero(mask), strict=True):
            assert np.array_equal(one.numpy(), other)
        rows, count = F.non_zero(condition, size=size)
        wanted = np.full((size, mask.ndim), -1)
        kept = np.argwhere(mask)[:size]
        wanted[: len(kept)] = kept
        assert np.array_equal(rows.numpy(), wanted)
        assert int(count) == mask.sum()


@given(
    st.lists(st.sampled_from([1.0, -2.0, 3.5, 0.0, np.nan, np.inf]), max_size=8), st.integers(0, 5)
)
def test_unique(values, size):
    array = np.array(values, np.float32)
    wanted = np.unique(array)
    assert np.array_equal(F.unique(mge.tensor(array)).numpy(), wanted, equal_nan=True)
    given, count = F.unique(mge.tensor(array), size=size, fill=9)
    assert int(count) == len(wanted)
    padded = np.append(wanted, np.full(size, 9))[:size]
    assert np.array_equal(given.numpy(), padded.astype(np.float32), equal_nan=True)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, mask: x[mask],
        lambda x, mask: F.cond_take(mask, x)[0],
        lambda x, mask: F.non_zero(mask),
        lambda x, mask: F.unique(x),
        lambda x, mask: mge.functional.where(mask, x, x)[mask],
    ],
)
def test_a_mask_inside_a_trace_names_the_size_form(call):
    x, mask = mge.tensor([1.0, 2.0]), mge.tensor([True, False])
    with pytest.raises(TraceError, match=r"cond_take\(mask, x, size=n\)"):
        mge.jit.trace(call)(x, mask)


def test_the_size_forms_and_masked_writes_trace():
    @mge.jit.trace
    def function(x):
        mask = x > 1
        values, index, count = F.cond_take(mask, x, size=3)
        distinct, number = F.unique(x, size=2)
        y = x[...]
        y[mask] = 0
        return values, index, count, F.non_zero(mask, size=2)[0], distinct, number, y

    for array in ([1.0, 2.0, 3.0], [4.0, 1.0, 1.0], [1.0, 1.0, 1.0]):
        array = np.array(array, np.float32)
        values, index, count, rows, distinct, number, y = function(mge.tensor(array))
        found = np.flatnonzero(array > 1)
        assert np.array_equal(values.numpy()[: len(found)], array[found])
        assert np.array_equal(index.numpy(), [*found, *[-1] * (3 - len(found))])
        assert int(count) == len(found)
        assert np.array_equal(rows.numpy().ravel(), [*found[:2], *[-1] * (2 - len(found))])
        assert int(number) == len(np.unique(array))
        assert np.array_equal(distinct.numpy()[: int(number)], np.unique(array)[:2])
        assert np.array_equal(y.numpy(), np.where(array > 1, 0, array))


def test_unique_keeps_the_dtype():
    assert F.unique(mge.tensor([True, False, True])).tolist() == [False, True]
    assert F.unique(mge.tensor([3, 1, 3])).dtype == "int32"


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda x: F.reshape(x, (4, 2)),
            ShapeError,
            r"inp of shape \(2, 3\) has 6 elements; shape \(4, 2\) holds 8",
        ),
        (lambda x: F.reshape(x, (-1, 4)), ShapeError, r"do not divide into shape \(-1, 4\)"),
        (lambda x: F.transpose(x, (0, 0)), ShapeError, "must name each of the 2 axes"),
        (lambda x: F.broadcast_to(x, (3, 3)), ShapeError, r"inp has shape \(2, 3\)"),
        (lambda x: F.squeeze(x, 1), ShapeError, "each of these axes must have size 1"),
        (lambda x: F.flatten(x, 1, 0), ShapeError, "the first must not come after the last"),
        (lambda x: F.concat([x, F.zeros((2, 2))]), ShapeError, r"inps\[1\] has shape \(2, 2\)"),
        (lambda x: F.concat([]), ArgumentError, "inps is empty"),
        (lambda x: F.stack([x, x[0]]), ShapeError, r"the inputs have shapes \(2, 3\), \(3,\)"),
        (lambda x: F.split(x, 0), ArgumentError, "at least 1 part"),
        (lambda x: F.pad(x, ((1, 1),), "wrap"), ArgumentError, "mode is 'wrap'"),
        (lambda x: F.pad(x, ((2, 1),), "reflect"), ShapeError, "at most 1 fit"),
        (lambda x: F.roll(x, (1, 2), (0, 1, 0)), ArgumentError, "same length"),
        (lambda x: F.gather(x, 0, x), DTypeError, "an index must be an integer"),
        (lambda x: F.arange(0, 1, 0), ArgumentError, "step not 0"),
        (lambda x: F.zeros((-1,)), ShapeError, "each size must be 0 or more"),
        (lambda x: F.zeros(1.5), ArgumentError, "a sequence of ints"),
        (lambda x: F.cond_take(x, x), DTypeError, "it must be bool"),
        (lambda x: F.one_hot(x, 3), DTypeError, "class numbers must be integers"),
        (lambda x: F.pixel_shuffle(x, 2), ShapeError, "channels, height and width"),
        (lambda x: F.diag(F.zeros((1, 1, 1))), ShapeError, "1 or 2 axes"),
    ],
)
def test_errors(call, error, text):
    with pytest.raises(error, match=text) as caught:
        call(mge.tensor(np.zeros((2, 3))))
    assert isinstance(caught.value, MgeError)
    assert "test_shapes.py" in caught.value.place
