"""The kit itself: each generated test finds the mistake that it is for."""

import numpy as np
import pytest

import mge
from mge.dtype import float32
from mge.errors import ShapeError
from mge.op import OPS, Op
from mge.types import abstract
from tests.core.ops import test_generated, test_gradient, test_record

NAME = "planted"


def rule(x, *, axis: int = 0):
    """Square ``x`` along ``axis``.

    ``y = x * x``

    Parameters
    ----------
    x : (...) number
    axis : int, default 0

    Returns
    -------
    (...) same dtype as ``x``

    Raises
    ------
    ShapeError
        There is no such axis.

    Examples
    --------
    >>> tensor([1.0]).shape
    (1,)
    """
    if not -x.ndim <= axis < x.ndim:
        raise ShapeError(f"planted: axis is {axis}; x has {x.ndim} axes")
    return abstract(x.shape, x.dtype)


def wide(x, *, axis: int = 0):
    return abstract(x.shape, float32)


def careless(x, *, axis: int = 0):
    return abstract((x.shape[axis], *x.shape[1:]), x.dtype)


def samples(rng):
    yield (rng.uniform(1, 2, size=(2, 3)),), {}
    yield (rng.uniform(1, 2, size=(3,)),), {"axis": -1}


def square(x, *, axis):
    return x * x


def half(x, *, axis, out):
    out.ravel()[: out.size // 2] = (x * x).ravel()[: out.size // 2]


def over_input(x, *, axis):
    x *= x
    return x


def gradient(dy, y, x, *, axis):
    return (dy * x * 2.0,)


@pytest.fixture
def plant(monkeypatch):
    def add(
        rule=rule, reference=square, gradient=gradient, lowering=square, samples=samples, base=False
    ):
        op = Op(rule, name=NAME, base=base, autocast=None, pure=True, promotes=None, promoted=None)
        op.reference(reference)
        if gradient:
            op.gradient(gradient)
        if lowering:
            op.lowering(lowering)
        if samples:
            op.samples(samples)
        op.__doc__ = op.__doc__ or globals()["rule"].__doc__
        monkeypatch.setitem(OPS, NAME, op)
        return op

    return add


def run_all(rng, tmp_path):
    for index in (0, 1):
        test_generated.test_shape_rule(NAME, index, rng)
        test_generated.test_device(NAME, index, rng, "ref")
        test_generated.test_lowering(NAME, index, rng)
        test_generated.test_traced(NAME, index, rng)
        test_generated.test_guard_bytes(NAME, index, rng)
        test_gradient.test_gradient(NAME, index, rng)
        test_gradient.test_gradient_in_each_dtype(NAME, index, rng)
        test_gradient.test_second_order(NAME, index, rng)
        test_record.test_print_and_parse(NAME, index, rng)
        test_record.test_dump_and_load(NAME, index, rng, tmp_path)
        test_record.test_impossible_calls(NAME, index, rng)
    test_record.test_samples_exist(NAME, rng)
    test_record.test_docs(NAME)


def test_a_good_record_passes(plant, rng, tmp_path):
    plant()
    run_all(rng, tmp_path)


def test_a_wrong_rule_is_found(plant, rng):
    plant(rule=wide)
    with pytest.raises(AssertionError, match=r"planted\[float16\].*the rule says f32\[2, 3\]"):
        test_generated.test_shape_rule(NAME, 0, rng)


def test_a_wrong_lowering_is_found(plant, rng):
    plant(lowering=lambda x, *, axis: x * x * 1.0001)
    with pytest.raises(AssertionError, match="6 of 6 values are off"):
        test_generated.test_lowering(NAME, 0, rng)


def test_a_lowering_of_another_dtype_is_found(plant, rng):
    plant(lowering=lambda x, *, axis: (x * x).astype("float32"))
    with pytest.raises(AssertionError, match=r"gives float32\(2, 3\), the rule says f16"):
        test_generated.test_lowering(NAME, 0, rng)


def test_unwritten_bytes_are_found(plant, rng):
    plant(reference=half)
    with pytest.raises(AssertionError, match="left bytes unwritten"):
        test_generated.test_guard_bytes(NAME, 0, rng)


def test_a_changed_input_is_found(plant, rng):
    plant(reference=over_input)
    with pytest.raises(ValueError, match="read-only"):
        test_generated.test_guard_bytes(NAME, 0, rng)


@pytest.mark.parametrize("factor", [1.0, 2.01, -2.0, 0.0])
def test_a_wrong_gradient_is_found(plant, rng, factor):
    plant(gradient=lambda dy, y, x, *, axis: (dy * x * factor,))
    with pytest.raises(AssertionError, match=r"planted, input 0.*central differences give"):
        test_gradient.test_gradient(NAME, 0, rng)


def test_a_gradient_of_another_shape_is_found(plant, rng):
    plant(gradient=lambda dy, y, x, *, axis: (OPS["reshape"](dy * x, (6,)),))
    with pytest.raises((AssertionError, mge.errors.MgeError), match="gradient"):
        test_gradient.test_gradient(NAME, 0, rng)


def test_a_gradient_of_another_dtype_is_found(plant, rng):
    plant(gradient=lambda dy, y, x, *, axis: ((dy * x * 2.0).astype("float32"),))
    with pytest.raises((AssertionError, mge.errors.InternalError), match="gradient"):
        test_gradient.test_gradient_in_each_dtype(NAME, 0, rng)


def test_a_gradient_that_loses_digits_is_found(plant, rng):
    plant(gradient=lambda dy, y, x, *, axis: (dy * (x + 3e4 - 3e4) * 2.0,))
    with pytest.raises(AssertionError, match=r"planted\[float32\].*off that of float64"):
        test_gradient.test_gradient_in_each_dtype(NAME, 0, rng)


def test_a_gradient_that_is_right_once_is_found(plant, rng):
    plant(gradient=lambda dy, y, x, *, axis: (dy * x.detach() * 2.0,))
    test_gradient.test_gradient(NAME, 0, rng)
    with pytest.raises(AssertionError, match="second order"):
        test_gradient.test_second_order(NAME, 0, rng)


def test_a_kink_is_no_derivative(plant, rng):
    def at_zero(rng):
        yield (rng.uniform(-1e-4, 1e-4, size=(2, 3)),), {}

    plant(reference=lambda x, *, axis: np.maximum(x, 0), samples=at_zero)
    with pytest.raises(AssertionError, match="kink"):
        test_gradient.test_gradient(NAME, 0, rng)


def test_a_careless_rule_is_found(plant, rng):
    plant(rule=careless)
    with pytest.raises(AssertionError, match="IndexError"):
        test_record.test_impossible_calls(NAME, 0, rng)


def test_missing_parts_are_found(plant, rng):
    plant(samples=None)
    with pytest.raises(AssertionError, match="has no samples"):
        test_record.test_samples_exist(NAME, rng)
    plant(lowering=None)
    with pytest.raises(AssertionError, match="no base op, and has no lowering"):
        test_record.test_samples_exist(NAME, rng)
    plant(base=True)
    with pytest.raises(AssertionError, match="is a base op, and has a lowering"):
        test_record.test_samples_exist(NAME, rng)


def test_missing_docs_are_found(plant, rng):
    plant().__doc__ = rule.__doc__.replace("axis : int", "width : int")
    with pytest.raises(AssertionError, match="does not describe axis"):
        test_record.test_docs(NAME)
    plant().__doc__ = rule.__doc__.replace("(1,)", "(2,)")
    with pytest.raises(AssertionError, match="Expected"):
        test_record.test_docs(NAME)
