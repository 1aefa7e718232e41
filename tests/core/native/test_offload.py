"""A library that takes whole graphs: parts of plans are kernels of its own, run by the native executor."""

import numpy as np
import pytest

import mge
from mge.autodiff import GradManager
from mge.debug import debug
from mge.jit import trace


def bits(function, device, *arrays):
    traced = trace(function)
    made = traced(*[mge.tensor(a, device=device) for a in arrays])
    return traced, [t.numpy().tobytes() for t in made]


X, Y = np.linspace(-2, 3, 7, dtype="float32"), np.linspace(5, 0.1, 7, dtype="float32")


def test_a_part_is_one_step_with_the_bits_of_ref(native_device):
    device = native_device("whole")

    def function(x, y):
        a = x * 2.5 - y
        return a, -(a + x) * y

    traced, made = bits(function, device, X, Y)
    assert made == bits(function, "ref", X, Y)[1]
    assert traced.placement()["compiled"] == [
        {"device": "whole:0", "nodes": 5, "kernel": "whole_f32", "reason": None}
    ]
    plan = next(iter(traced.last.plans.values())).plan
    assert [s.slot.node.op.name for s in plan.steps] == ["call"]
    assert plan.bound.native is not None and plan.scratch


def test_min_nodes_of_the_capabilities_holds(native_device):
    device = native_device("whole")
    assert device.backend.min_nodes == 3
    assert bits(lambda x: [x + x * 2.0], device, X)[0].placement()["compiled"] == []


def test_a_graph_that_the_library_refuses_runs_node_by_node(native_device):
    device = native_device("whole")

    def function(x):
        for _ in range(13):
            x = x + 1.5
        return [x]

    traced, made = bits(function, device, X)
    assert made == bits(function, "ref", X)[1]
    assert traced.placement()["compiled"] == [
        {"device": "whole:0", "nodes": 13, "kernel": None, "reason": "at most 12 nodes"}
    ]


@pytest.mark.parametrize("check", [0, 2])
def test_training_crosses_between_parts_and_ref(native_device, check):
    device = native_device("whole")

    def losses(where):
        w = mge.Parameter(np.ones(7, np.float32), device=where)
        manager = GradManager().attach([w])

        @trace
        def step(x, y):
            with manager:
                error = x * w - y
                loss = (error * error - error).sum()
                manager.backward(loss)
            w[...] = w - w.grad * 0.01
            w.grad = None
            return loss

        found = [
            step(mge.tensor(X, device=where), mge.tensor(Y, device=where)).item() for _ in range(4)
        ]
        return found, step

    with debug(fallback="allow", check=check):
        made, step = losses(device)
        assert made == losses("ref")[0]
    assert [p for p in step.placement()["compiled"] if p["reason"] is None]
    assert step.placement()["nodes"]["ref:0"] > 0
