"""The columns of mge: an undecorated function, and a trace.

In: a case. Out: a function that runs it once, and its output or first losses.
"""

from __future__ import annotations

import importlib
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
    traced = column == "mge-traced"
    if zoo.chain(case):
        return _chain(case)
    if case.model == "gelu_layer_norm":
        return _fused(case, traced)
    net = make(case.model)
    if not case.training:
        net.eval()
        infer = mge.jit.trace(net.__call__) if traced else net
        data = mge.tensor(zoo.inputs(case)[0])
        run = lambda: infer(data).numpy()
        for _ in range(3):  # first sight, plan, run
            output = run()
        return run, output
    step = training(net, case)
    chosen = mge.jit.trace(step) if traced else step
    losses = [chosen().item() for _ in range(3)]
    chosen().item()
    return lambda: chosen().item(), losses


def training(net: M.Module, case: zoo.Case) -> Callable[[], Any]:
    """Return a training step of a model, undecorated; it gives the loss."""
    net.train()
    optimizer = mge.optimizer.SGD(net.parameters(), lr=0.001, momentum=0.9)
    manager = mge.autodiff.GradManager().attach(net.parameters())
    data, labels = map(mge.tensor, zoo.inputs(case))

    def step() -> Any:
        with manager:
            loss = F.cross_entropy(net(data), labels)
            manager.backward(loss)
        optimizer.step().clear_grad()
        return loss

    return step


def _chain(case: zoo.Case) -> tuple[Callable[[], object], Any]:
    """Return the same for a chain of calls, and forward and backward through it."""
    x = mge.tensor(np.ones((case.batch, case.batch), "float32"))
    y = mge.tensor(np.eye(case.batch, dtype="float32"))
    manager = mge.autodiff.GradManager().attach([x])
    call = {"add": lambda a: a + y, "relu": F.relu, "matmul": lambda a: F.matmul(a, y)}[
        zoo.chain(case)
    ]

    def forward() -> Any:
        a = x
        for _ in range(zoo.CALLS):
            a = call(a)
        return a

    def both() -> Any:
        with manager:
            y = forward()
            manager.backward(y)
        grad, x.grad = x.grad, None
        return mge.eval(y, grad)[1]  # PyTorch computes both

    run = both if case.training else lambda: mge.eval(forward())
    for _ in range(4):
        output = run()
    return run, output.numpy()


def _fused(case: zoo.Case, traced: bool) -> tuple[Callable[[], object], Any]:
    """Return the same for gelu(x * a + b) + residual, and a layer norm of it."""
    given = list(map(mge.tensor, zoo.fused_inputs(case)))

    def function(x: Any, a: Any, b: Any, residual: Any, weight: Any, bias: Any) -> Any:
        y = F.gelu(x * a + b) + residual
        return F.layer_norm(y, (zoo.WIDTH,), True, weight, bias)

    chosen = mge.jit.trace(function) if traced else function
    run = lambda: mge.eval(chosen(*given))
    for _ in range(4):
        output = run()
    return run, output.numpy()


def recorded_calls(run: Callable[[], object]) -> int:
    """Return how many calls one run records, undecorated."""
    runner = importlib.import_module("mge.run")
    flush, counts = runner.flush, []

    def counted(recording: Any, only: Any = ()) -> None:
        counts.append(sum(token.__class__ is tuple for token in recording.tokens))
        flush(recording, only)

    runner.flush = counted
    try:
        run()
    finally:
        runner.flush = flush
    return sum(counts)
