"""Compiled plans, step-by-step runs, eager runs and traces agree bit for bit on ``ref``."""

import numpy as np
from hypothesis import given, settings

import mge
from tests.core.property.programs import programs


def values(results):
    with np.errstate(all="ignore"):
        return [r.numpy() for r in results]


def check(given_values, wanted, how):
    for i, (one, other) in enumerate(zip(given_values, wanted, strict=True)):
        assert (one.shape, one.dtype) == (other.shape, other.dtype), f"{how}, output {i}"
        assert one.tobytes() == other.tobytes(), f"{how}, output {i}: {one} and {other}"


def eager_values(program):
    with mge.eager(), np.errstate(all="ignore"):
        return values(program(*program.tensors()))


@given(programs())
@settings(max_examples=60)
def test_a_repeated_program_is_compiled_and_stays_the_same(program):
    wanted = eager_values(program)
    before = mge.debug.stats()["plans_run"]
    for turn in range(3):
        check(values(program(*program.tensors())), wanted, f"run {turn}")
    if program.steps:
        assert mge.debug.stats()["plans_run"] > before, "no plan ran"


@given(programs())
@settings(max_examples=40)
def test_a_trace_is_the_function(program):
    wanted = eager_values(program)
    traced = mge.jit.trace(lambda *leaves: program(*leaves))
    for turn in range(3):
        with np.errstate(all="ignore"):
            check(values(traced(*program.tensors())), wanted, f"traced run {turn}")


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
        with mge.memory(strategy):
            for turn in range(2):
                check(values(program(*program.tensors())), wanted, f"{strategy}, run {turn}")
