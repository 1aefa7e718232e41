"""Compiled plans, step-by-step runs, eager runs and traces agree bit for bit on ``ref``."""

import numpy as np
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import mge
from mge.autodiff import GradManager
from mge.debug import debug
from mge.errors import MgeError
from mge.jit import trace
from mge.memory import memory
from tests.core.property.programs import MOST_ELEMENTS, programs


def values(results):
    with np.errstate(all="ignore"):
        return [r.numpy() for r in results]


def check(given_values, wanted, how):
    for i, (one, other) in enumerate(zip(given_values, wanted, strict=True)):
        assert (one.shape, one.dtype) == (other.shape, other.dtype), f"{how}, output {i}"
        assert one.tobytes() == other.tobytes(), f"{how}, output {i}: {one} and {other}"


def eager_values(program):
    """Return the outputs of an eager run; a program whose data an op refuses (a singular matrix) is drawn again."""
    with mge.eager(), np.errstate(all="ignore"):
        try:
            return values(program(*program.tensors()))
        except MgeError:
            reject()


@given(programs())
@settings(max_examples=60)
def test_a_repeated_program_is_compiled_and_stays_the_same(program):
    wanted = eager_values(program)
    before = debug.stats()["plans_run"]
    with debug(check=1):  # each pass is verified too
        for turn in range(3):
            check(values(program(*program.tensors())), wanted, f"run {turn}")
    if program.steps:
        assert debug.stats()["plans_run"] > before, "no plan ran"


@given(programs())
@settings(max_examples=40)
def test_a_trace_is_the_function(program):
    wanted = eager_values(program)
    traced = trace(lambda *leaves: program(*leaves))
    for turn in range(3):
        with np.errstate(all="ignore"):
            check(values(traced(*program.tensors())), wanted, f"traced run {turn}")


@given(programs(most_steps=8))
@settings(max_examples=30)
def test_a_loaded_model_is_the_function(tmp_path, program):
    wanted = eager_values(program)
    traced = trace(lambda *leaves: program(*leaves))
    with np.errstate(all="ignore"):
        values(traced(*program.tensors()))
        traced.dump(str(tmp_path / "program.mge"))
        loaded = mge.load_model(str(tmp_path / "program.mge"))
        result = loaded(*program.tensors())
    check(values(result if isinstance(result, tuple) else (result,)), wanted, "loaded")


@given(programs())
@settings(max_examples=40)
def test_results_that_are_kept_or_dropped(program):
    """What is held between calls changes the plan and not the values."""
    wanted = eager_values(program)
    leaves = program.tensors()
    for turn in range(3):
        results = program(*leaves)
        last = values(results[-1:])  # read one, the others are computed with it as they are held
        check(last + values(results[:-1]), wanted[-1:] + wanted[:-1], f"run {turn}")
        del results


@given(programs(most_steps=6))
@settings(max_examples=30)
def test_strategies_agree(program):
    wanted = eager_values(program)
    for strategy in ("naive", "static"):
        with memory(strategy):
            for turn in range(2):
                check(values(program(*program.tensors())), wanted, f"{strategy}, run {turn}")


def gradient_values(program, dys):
    """Return the outputs, and the gradients of their sum by the float leaves."""
    leaves = program.tensors()
    floats = [x for x in leaves if x.dtype.is_float]
    manager = GradManager().attach(floats)
    with manager, np.errstate(all="ignore"):
        results = program(*leaves)
        ys = [y for y in results if y.dtype.is_float]
        manager.backward(
            ys, [mge.tensor(dys[: y.size].reshape(y.shape), dtype=y.dtype) for y in ys]
        )
        return values(results), [None if x.grad is None else x.grad.numpy() for x in floats]


@given(programs(most_steps=8, dtypes=["float32", "float64", "int32"]), st.integers(0, 2**32))
@settings(max_examples=60)
def test_gradients_are_the_same_in_each_mode(program, seed):
    eager_values(program)
    dys = np.random.default_rng(seed).normal(size=MOST_ELEMENTS)
    try:
        with mge.eager():
            wanted, wanted_grads = gradient_values(program, dys)
    except MgeError:  # no float output, or none that depends on a float leaf
        reject()
    for turn in range(3):
        given_values, grads = gradient_values(program, dys)
        check(given_values, wanted, f"run {turn}")
        assert [g is None for g in grads] == [g is None for g in wanted_grads]
        pairs = [(g, w) for g, w in zip(grads, wanted_grads, strict=True) if g is not None]
        check([g for g, _ in pairs], [w for _, w in pairs], f"gradients of run {turn}")
