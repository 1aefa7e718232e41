"""Compiled plans of random graphs, and ways to run them."""

import numpy as np

import mge
import mge.functional as F
from mge import execute
from mge.cache import PLANS

BINARY = [lambda x, y: x + y, lambda x, y: x * y, lambda x, y: x - y, F.maximum]
UNARY = [
    lambda x: -x,
    F.abs,
    F.tanh,
    F.relu,
    F.sin,
    lambda x: x.sum(axis=0, keepdims=True) + x,
    lambda x: x * 0.5,
]


def random_function(rng, steps, binary=BINARY, unary=UNARY):
    """Return a function of tensors whose calls are a random graph."""
    recipe = []
    for _ in range(steps):
        kind = int(rng.integers(3)) if unary else 0
        recipe.append((kind, int(rng.integers(1 << 30)), rng.random(), rng.random()))

    def function(*leaves):
        values = list(leaves)
        for kind, choice, i, j in recipe:
            x, y = values[int(i * len(values))], values[int(j * len(values))]
            made = (
                unary[choice % len(unary)](x) if kind == 2 else binary[choice % len(binary)](x, y)
            )
            values.append(made)
        count = len(values)
        wanted = sorted({max(count * k // 6, len(leaves)) for k in (3, 4, 5)} | {count - 1})
        return tuple(values[i] for i in wanted)  # in the order of recording, as a plan gives them

    return function


def compiled_plan(function, *leaves):
    """Run a function until its graph is compiled; return the plan, the buffers of its inputs, the results."""
    PLANS.clear()
    for _ in range(2):
        results = [t.numpy().copy() for t in mge.eval(*function(*leaves))]
    structure = next(reversed(PLANS._structures.values()))
    compiled = next(iter(structure.plans.values()))
    return compiled.plan, _buffers(compiled, function, leaves), results


def _buffers(compiled, function, leaves):
    """Record the function again and return the buffers of the plan's inputs."""
    from mge.graph import LOCAL

    kept = function(*leaves)
    recording = LOCAL.recording
    found = [recording.nodes[i].buffer for i in compiled.leaves]
    if compiled.prologue is not None:
        found += compiled.prologue.values(
            [recording.nodes[compiled.leaves[i]] for i in compiled.sources]
        )
    mge.eval(*kept)
    return found


def run(plan, buffers, native=True):
    """Run a plan by the native executor or step by step in Python; return copies of its outputs."""
    if plan.bound is None or not native:
        execute.execute(plan, buffers)
    kept = plan.bound.native
    assert kept is not None, "no step has a native kernel"
    if not native:
        plan.bound.native = None
    try:
        return [np.array(b.array) for b in execute.execute(plan, buffers)]
    finally:
        plan.bound.native = kept
