"""The columns of mge: an undecorated function, and a trace.

In: a case. Out: a function that runs it once, and its output or first losses.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import zoo

import mge
import mge.functional as F
import mge.module as M

OPS = SimpleNamespace(
    relu=F.relu,
    gelu=F.gelu,
    flatten=lambda x: F.flatten(x, 1),
    mean=lambda x, axes: F.mean(x, axis=axes),
    swap=lambda x: F.transpose(x, (0, 2, 1, 3)),
    tokens=lambda x: F.transpose(F.flatten(x, 2), (0, 2, 1)),
    attention=F.scaled_dot_product_attention,
    position=lambda rows, width: mge.Parameter(np.zeros((rows, width), "float32")),
)


def make(model: str) -> M.Module:
    """Return a model with the weights of the contest."""
    net = zoo.make(model, M, OPS)
    shapes = {name: tuple(value.shape) for name, value in net.state_dict().items()}
    net.load_state_dict({name: zoo.weight(name, shape) for name, shape in shapes.items()})
    return net


def prepare(column: str, case: zoo.Case, threads: int) -> tuple[Callable[[], object], Any]:
    """Return a function that runs the case once, and what it gives (logits, or the first losses)."""
    net = make(case.model)
    x, y = zoo.inputs(case)
    if not case.training:
        net.eval()
        infer = mge.jit.trace(net.__call__) if column == "mge-traced" else net
        data = mge.tensor(x)
        run = lambda: infer(data).numpy()
        for _ in range(3):  # first sight, plan, run
            output = run()
        return run, output
    net.train()
    optimizer = mge.optimizer.SGD(net.parameters(), lr=0.001, momentum=0.9)
    manager = mge.autodiff.GradManager().attach(net.parameters())
    data, labels = mge.tensor(x), mge.tensor(y)

    def step() -> Any:
        with manager:
            loss = F.cross_entropy(net(data), labels)
            manager.backward(loss)
        optimizer.step().clear_grad()
        return loss

    chosen = mge.jit.trace(step) if column == "mge-traced" else step
    losses = [chosen().item() for _ in range(3)]
    chosen().item()
    return lambda: chosen().item(), losses
