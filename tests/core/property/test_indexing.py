"""Indexing is NumPy's: reading, writing and their gradients, for random shapes and index tuples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mge
from mge.errors import DTypeError, IndexRangeError, ShapeError
from mge.grad import gradients


@st.composite
def slices(draw, n):
    bound = st.none() | st.integers(-n - 2, n + 2)
    return slice(draw(bound), draw(bound), draw(st.sampled_from([None, 1, 2, -1, -2, 3])))


@st.composite
def cases(draw, arrays=True):
    """Return (shape, index); arrays in the index broadcast together, and values come twice now and then."""
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    common = draw(st.sampled_from([(), (1,), (2,), (3,), (2, 2), (0,)]))
    entries, axis = [], 0
    kinds = ["int", "slice", "slice", "new"] + (
        ["array", "array", "mask", "bool"] if arrays else []
    )
    had_dots = False
    masks = None  # the number of true elements that masks share
    while len(entries) < 6:
        kind = draw(st.sampled_from([*kinds, "dots", "stop"]))
        n = shape[axis] if axis < len(shape) else None
        if kind == "stop":
            break
        if kind == "new":
            entries.append(None)
        elif kind == "dots":
            if not had_dots:
                had_dots = True
                skipped = draw(st.integers(0, len(shape) - axis))
                axis = len(shape) - skipped
                entries.append(Ellipsis)
        elif kind == "bool":
            if masks in (None, 1) and not common:
                entries.append(draw(st.booleans()))
        elif n is None:
            break
        elif kind == "int":
            if n:
                entries.append(draw(st.integers(-n, n - 1)))
                axis += 1
        elif kind == "slice":
            entries.append(draw(slices(n)))
            axis += 1
        elif kind == "array":
            mine = common[draw(st.integers(0, len(common))) :]
            mine = tuple(draw(st.sampled_from([1, m])) for m in mine)
            if n or 0 in mine:
                size = int(np.prod(mine))
                values = draw(
                    st.lists(st.integers(-n, max(n - 1, 0)), min_size=size, max_size=size)
                )
                entries.append(np.array(values, np.int64).reshape(mine))
                axis += 1
        elif kind == "mask":
            count = draw(st.integers(1, min(2, len(shape) - axis)))
            part = shape[axis : axis + count]
            wanted = common[-1] if common else masks
            size = int(np.prod(part))
            if wanted is None:
                flat = draw(st.lists(st.booleans(), min_size=size, max_size=size))
                masks = sum(flat)
                common = (masks,)
            elif wanted <= size:
                flat = draw(st.permutations([True] * wanted + [False] * (size - wanted)))
            else:
                continue
            entries.append(np.array(flat, bool).reshape(part))
            axis += count
    if had_dots:  # what comes behind the dots reaches the last axis
        entries += [slice(None)] * (len(shape) - axis)
    return shape, tuple(entries)


FORMS = st.sampled_from(["array", "tensor", "list"])


def formed(index, form):
    """Return the index with its arrays as mge's user may give them."""
    made = []
    for entry in index:
        if isinstance(entry, np.ndarray) and form == "tensor":
            entry = mge.tensor(entry)
        elif isinstance(entry, np.ndarray) and form == "list" and entry.size:
            entry = entry.tolist()
        made.append(entry)
    return tuple(made)


def numbers(shape):
    return np.arange(1, int(np.prod(shape)) + 1, dtype=np.float32).reshape(shape)


def numpys(function):
    """Return what NumPy gives, or None where it refuses."""
    try:
        return function()
    except (IndexError, ValueError, TypeError):
        return None


@given(cases(), FORMS)
def test_reading_is_numpys(case, form):
    shape, index = case
    array = numbers(shape)
    wanted = numpys(lambda: array[index])
    x = mge.tensor(array)
    if wanted is None:
        with pytest.raises((IndexRangeError, ShapeError)):
            x[formed(index, form)].numpy()
        return
    given = x[formed(index, form)]
    assert given.shape == wanted.shape
    assert np.array_equal(given.numpy(), wanted)


@st.composite
def values_for(draw, shape):
    """Return a shape that broadcasts to ``shape``, as NumPy's assignment does it."""
    kept = shape[draw(st.integers(0, len(shape))) :]
    kept = tuple(draw(st.sampled_from([1, n, n])) for n in kept)
    return (1,) * draw(st.sampled_from([0, 0, 0, 1])) + kept if len(kept) == len(shape) else kept


@given(cases(), FORMS, st.data())
def test_writing_is_numpys(case, form, data):
    shape, index = case
    array = numbers(shape)
    part = numpys(lambda: array[index])
    if part is None:
        return
    value = np.negative(numbers(data.draw(values_for(part.shape))), dtype=np.float32)[...]
    wanted = array.copy()
    if numpys(lambda: wanted.__setitem__(index, value) or True) is None:
        return
    x = mge.tensor(array)
    before = x[...]
    x[formed(index, form)] = (
        data.draw(st.sampled_from([value, mge.tensor(value)])) if value.ndim else float(value)
    )
    assert x.shape == wanted.shape
    assert np.array_equal(x.numpy(), wanted)
    assert np.array_equal(before.numpy(), array), "another tensor changed"


def slope(function, array, weights):
    """Return d sum(weights * function) / d array for a function that is linear in the array."""
    result = np.zeros(array.size)
    for i in range(array.size):
        unit = np.zeros(array.size)
        unit[i] = 1
        result[i] = (weights * function(unit.reshape(array.shape))).sum()
    return result.reshape(array.shape)


@given(cases(), FORMS)
def test_the_gradient_of_reading(case, form):
    shape, index = case
    array = numbers(shape).astype(np.float64)
    part = numpys(lambda: array[index])
    if part is None:
        return
    x = mge.tensor(array, dtype="float64")
    weights = numbers(part.shape).astype(np.float64)
    (dx,) = gradients([x[formed(index, form)]], [x], [mge.tensor(weights, dtype="float64")])
    assert np.array_equal(dx.numpy(), slope(lambda a: a[index], array, weights))


@given(cases(), FORMS, st.data())
def test_the_gradients_of_writing(case, form, data):
    shape, index = case
    array = numbers(shape).astype(np.float64)
    part = numpys(lambda: array[index])
    if part is None:
        return
    value = numbers(data.draw(values_for(part.shape))).astype(np.float64)

    def written(a, v):
        a = np.array(a)
        a[index] = v
        return a

    if numpys(lambda: written(array, value)) is None:
        return
    x, v = mge.tensor(array, dtype="float64"), mge.tensor(value, dtype="float64")
    y = x[...]
    y[formed(index, form)] = v
    weights = numbers(shape).astype(np.float64)
    dx, dv = gradients([y], [x, v], [mge.tensor(weights, dtype="float64")])
    wanted_x = slope(lambda a: written(a, np.zeros_like(value)), array, weights)
    wanted_v = slope(lambda v: written(np.zeros_like(array), v), value, weights)
    assert np.array_equal(np.zeros(shape) if dx is None else dx.numpy(), wanted_x)
    assert np.array_equal(np.zeros(value.shape) if dv is None else dv.numpy(), wanted_v)


@given(cases(arrays=False))
def test_basic_indices_do_not_read(case):
    shape, index = case
    if numpys(lambda: np.zeros(shape)[index]) is not None:
        assert mge.tensor(np.zeros(shape))[index]._node.buffer is None


def test_integer_tensors_are_inputs_of_the_graph():
    x, i = mge.tensor(numbers((3, 2))), mge.tensor(1)
    y = x[i]
    assert y.shape == (2,)
    assert np.array_equal(y.numpy(), [3, 4])
    assert np.array_equal(x[:, i].numpy(), [2, 4, 6])
    x[i, 0] = 9
    assert x.numpy()[1, 0] == 9


def test_the_last_of_two_values_stays():
    x = mge.tensor(np.zeros(3))
    x[[1, 1]] = np.array([5.0, 6.0])
    assert np.array_equal(x.numpy(), [0, 6, 0])


def test_a_mask_with_one_value_is_not_read():
    x = mge.tensor(numbers((2, 2)))
    mask = x > 2
    x[mask] = 0
    assert mask._node.buffer is None
    assert np.array_equal(x.numpy(), [[1, 2], [0, 0]])


def test_values_are_cast_to_the_dtype():
    x = mge.tensor([1, 2, 3])
    x[0] = 7.9
    x[1:] = np.array([1.5, 2.5])
    assert x.dtype == "int32"
    assert np.array_equal(x.numpy(), [7, 1, 2])


def test_an_assignment_makes_a_new_value():
    x = mge.tensor([1.0, 2.0])
    y, part = x, x[:1]
    z = x[...]
    x[0] = 5
    assert y is x
    assert part.numpy()[0] == 1
    assert z.numpy()[0] == 1


@pytest.mark.parametrize(
    ("index", "error", "text"),
    [
        (
            5,
            IndexRangeError,
            r"index 5 is out of range for axis 0 of a tensor of shape \(3, 2\) \(-3 to 2\)",
        ),
        ((0, -3), IndexRangeError, "index -3 is out of range for axis 1"),
        ((0, 0, 0), IndexRangeError, r"3 indices are too many for a tensor of shape \(3, 2\)"),
        (
            (slice(None), [0, 2]),
            IndexRangeError,
            "index 2 is out of range for axis 1, which has 2 elements",
        ),
        ((Ellipsis, Ellipsis), IndexRangeError, "two Ellipsis"),
        (
            np.ones(2, bool),
            IndexRangeError,
            r"the mask has shape \(2,\); axes 0 to 0 of the tensor have shape \(3,\)",
        ),
        (1.5, DTypeError, r"an index is 1.5 of type float"),
        ("a", DTypeError, "an index is 'a' of type str"),
        (([0, 1], [0, 1, 1]), ShapeError, "do not broadcast"),
    ],
)
def test_errors_name_the_index(index, error, text):
    x = mge.tensor(numbers((3, 2)))
    with pytest.raises(error, match=text) as caught:
        x[index]
    assert "test_indexing.py" in caught.value.place
    with pytest.raises(error, match=text):
        x[index] = 1.0
    if error is IndexRangeError:
        assert isinstance(caught.value, IndexError)


def test_a_value_that_does_not_fit_is_refused():
    x = mge.tensor(numbers((3, 2)))
    with pytest.raises(
        ShapeError,
        match=r"the value has shape \(3,\); it must broadcast to the part's shape \(2,\)",
    ):
        x[0] = np.zeros(3)


def test_tensor_indices_are_checked_before_anything_is_written():
    x, bad = mge.tensor(numbers((3, 2))), mge.tensor([0, 3])
    with pytest.raises(
        IndexRangeError, match="index 3 is out of range for axis 0, which has 3 elements"
    ):
        x[bad].numpy()
    y = x[...]
    y[bad] = 0
    with pytest.raises(IndexRangeError, match="index 3 is out of range"):
        y.numpy()
    assert np.array_equal(x.numpy(), numbers((3, 2)))
