"""The gradient of attention: second order, broadcast inputs, the mask's gradient, and what training keeps."""

import numpy as np
import pytest

import mge
import mge.functional as F
from mge.autodiff import GradManager
from mge.debug import debug
from mge.graph import LOCAL, Recording
from mge.passes import optimise


def draw(rng, *shapes):
    return [mge.tensor(rng.normal(size=shape), dtype="float64") for shape in shapes]


def of_gradient(inputs, is_causal):
    """A number made of the gradients of attention by query, key and value; and its own gradient by each input."""
    outer, inner = GradManager().attach(inputs), GradManager().attach(inputs[:3])
    with outer:
        with inner:
            inner.backward(F.sum(F.scaled_dot_product_attention(*inputs, is_causal=is_causal) ** 2))
        number = sum(F.sum(F.sin(t.grad)) for t in inputs[:3])
        for t in inputs:
            t.grad = None
        outer.backward(number)
    return number, [t.grad for t in inputs]


@pytest.mark.parametrize("is_causal", [False, True])
def test_second_order_is_the_slope_of_the_first(rng, is_causal):
    inputs = draw(rng, (2, 3, 4), (5, 4), (2, 5, 2), (3, 5))  # the key and the mask repeat
    found = of_gradient(inputs, is_causal)[1]
    for i, gradient in enumerate(found):
        step = rng.normal(size=inputs[i].shape) * 1e-5
        ends = []
        for sign in (1, -1):
            moved = [
                mge.tensor(t.numpy() + (sign * step if k == i else 0), dtype="float64")
                for k, t in enumerate(inputs)
            ]
            ends.append(float(of_gradient(moved, is_causal)[0]))
        slope = (ends[0] - ends[1]) / 2
        assert slope == pytest.approx(float(np.sum(gradient.numpy() * step)), rel=1e-4, abs=1e-12)


def test_training_keeps_nothing_of_the_size_of_the_scores(rng):
    inputs = draw(rng, (2, 7, 4), (2, 9, 4), (2, 9, 3))
    manager = GradManager().attach(inputs)
    mge.sync()
    LOCAL.recording, LOCAL.requested = Recording(), None
    with debug(check=1), manager:
        y = F.scaled_dot_product_attention(*inputs, mge.tensor(np.zeros((7, 9)), dtype="float64"))
        manager.backward(y, y)
    graph = LOCAL.recording.graph([t.grad._node for t in inputs])
    LOCAL.recording = Recording()
    sizes = {t.shape[-2:] for n in optimise(graph).nodes for t in n.sig.types}
    assert (7, 9) not in sizes and (9, 4) in sizes
