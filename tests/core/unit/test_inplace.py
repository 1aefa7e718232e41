"""Which input an output is written over: the first that its op names and nothing reads later."""

import numpy as np
import pytest

import mge
import mge.functional as F
from mge.device import as_device
from mge.op import OPS
from mge.types import Type


def plan_of(function, *arrays):
    traced = mge.jit.trace(function)
    traced(*map(mge.tensor, arrays))
    return traced._last_plan("memory").plan


def over(plan, name):
    """Return for the steps of an op which inputs their outputs lie over."""
    found = []
    for step in plan.steps:
        if step.slot.node.sig.op.name == name:
            read = [plan.values[v].storage for v in step.inputs]
            written = [plan.values[v].storage for v in step.outputs]
            found.append([read.index(s) if s in read else None for s in written])
    return found


def test_of_two_inputs_the_one_that_dies(rng):
    x = rng.normal(size=(50, 40)).astype("float32")

    def keeps_the_first(x):
        a, b = F.sin(x), F.cos(x)
        y = a + b
        return y * y, a.sum()  # a is read after the sum

    def keeps_the_second(x):
        a, b = F.sin(x), F.cos(x)
        y = a + b
        return y * y, b.sum()

    assert over(plan_of(keeps_the_first, x), "add") == [[1]]
    assert over(plan_of(keeps_the_second, x), "add") == [[0]]


def test_one_input_serves_one_output(rng):
    # lstm_gates_grad: the new state's gradient goes over dc, dh or c, whichever dies.
    gates, c = rng.normal(size=(3, 8)).astype("float32"), rng.normal(size=(3, 2)).astype("float32")

    def step(gates, c):
        dgates, dc = OPS["lstm_gates_grad"](F.sin(c), F.cos(c), F.exp(gates), c)
        return dgates.sum(), dc * dc

    assert over(plan_of(step, gates, c), "lstm_gates_grad") == [[2, 1]]


INPLACE = [
    ("softmax", 1), ("logsoftmax", 1), ("cumsum", 1), ("cumprod", 1), ("rms_norm", 1), ("layer_norm", 1),
    ("layer_norm_backward", 2), ("batch_norm_train", 1), ("batch_norm_infer", 1), ("batch_norm_backward", 2),
    ("lstm_gates", 1), ("lstm_gates_grad", 4), ("gru_gates", 1), ("gru_gates_grad", 4), ("attention_backward", 3),
]  # fmt: skip


@pytest.mark.parametrize(("name", "count"), INPLACE)
def test_the_reference_gives_the_same_bits_in_place(rng, name, count):
    op, seen = OPS[name], set()
    for arrays, attrs in op._samples(rng):
        types = [Type(np.shape(a), mge.dtype.float64) for a in arrays]
        sig = op.signature(types, op.normal_attrs(attrs), as_device("ref"))
        kernel = sig.device.kernel(sig)

        def run(over=None):
            given = [np.array(a, "float64") for a in arrays]  # noqa: B023
            made = [np.empty(t.shape, t.dtype.dtype) for t in sig.types]  # noqa: B023
            if over is not None:
                made[over[1]] = given[over[0]]
            kernel(given, made, None)  # noqa: B023
            return [m.tobytes() for m in made]

        for pair in op.inplace_pairs(sig):
            if sig.input_types[pair[0]] is sig.types[pair[1]]:
                seen.add(pair)
                assert run(pair) == run(), pair
    assert len(seen) == count
