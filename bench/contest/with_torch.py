"""The columns of PyTorch: eager, channels_last, compiled, and frozen TorchScript.

In: a case. Out: a function that runs it once, and its output or first losses.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import zoo
from torch import nn
from torch.nn import functional as F

OPS = SimpleNamespace(
    relu=torch.relu,
    gelu=F.gelu,
    flatten=lambda x: torch.flatten(x, 1),
    mean=lambda x, axes: x.mean(axes),
    swap=lambda x: x.transpose(1, 2),
    tokens=lambda x: x.flatten(2).transpose(1, 2),
    attention=F.scaled_dot_product_attention,
    position=lambda rows, width: nn.Parameter(torch.zeros(rows, width)),
)


def make(model: str) -> nn.Module:
    """Return a model with the weights of the contest."""
    net = zoo.make(model, nn, OPS)
    with torch.no_grad():
        for name, value in net.state_dict().items():
            if not name.endswith("num_batches_tracked"):
                value.copy_(torch.from_numpy(zoo.weight(name, tuple(value.shape))))
    return net


def prepare(column: str, case: zoo.Case, threads: int) -> tuple[Callable[[], object], Any]:
    """Return a function that runs the case once, and what it gives (logits, or the first losses)."""
    torch.set_num_threads(threads)
    if zoo.chain(case):
        return _chain(case)
    if case.model == "gelu_layer_norm":
        return _fused(case)
    x, y = map(torch.from_numpy, zoo.inputs(case))
    net = make(case.model).train(case.training)
    if column == "torch-cl":
        if x.dim() != 4:
            raise ValueError("channels_last is for images")
        x, net = (t.to(memory_format=torch.channels_last) for t in (x, net))
    if not case.training:
        infer: Any = torch.compile(net) if column == "torch-compile" else net
        with torch.inference_mode():
            if column == "torch-jit":
                infer = torch.jit.optimize_for_inference(torch.jit.freeze(torch.jit.trace(net, x)))

            def run() -> np.ndarray:
                with torch.inference_mode():
                    return infer(x).numpy()

            for _ in range(4):
                output = run()
        return run, output
    if column == "torch-jit":
        raise ValueError("TorchScript is for inference")
    step = training(torch.compile(net) if column == "torch-compile" else net, x, y)
    losses = [step() for _ in range(3)]
    return step, losses


def training(net: Any, x: torch.Tensor, y: torch.Tensor) -> Callable[[], float]:
    """Return a training step of a model, compiled or not; it gives the loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9)
    labels = y.long()

    def step() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def _chain(case: zoo.Case) -> tuple[Callable[[], object], Any]:
    """Return the same for a chain of calls, and forward and backward through it."""
    x = torch.ones(case.batch, case.batch, requires_grad=case.training)
    y, one = torch.eye(case.batch), torch.ones(case.batch, case.batch)
    call = {"add": lambda a: a + y, "relu": torch.relu, "matmul": lambda a: a @ y}[zoo.chain(case)]

    def forward() -> Any:
        a = x
        for _ in range(zoo.CALLS):
            a = call(a)
        return a

    def both() -> Any:
        x.grad = None
        forward().backward(one)
        return x.grad

    run = both if case.training else forward
    return run, run().numpy()


def _fused(case: zoo.Case) -> tuple[Callable[[], object], Any]:
    """Return the same for gelu(x * a + b) + residual, and a layer norm of it."""
    x, a, b, residual, weight, bias = map(torch.from_numpy, zoo.fused_inputs(case))

    def run() -> Any:
        return F.layer_norm(F.gelu(x * a + b) + residual, (zoo.WIDTH,), weight, bias)

    return run, run().numpy()
