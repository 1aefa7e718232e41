"""The cost of a call: recording, running from the plan cache, and a small training step.

In: nothing. Out: microseconds a call and milliseconds a step, beside PyTorch eager where it is installed.

    python bench/overhead.py [--json] [--rounds 9]

The device is that of MGE_DEVICE. A chain is 100 calls on 8x8; ``_both`` is forward and backward of it. Ours and the
peer's are measured in turn, round by round; the figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable

_odd = [
    name
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
    if os.environ.pop(name, None) is not None
]
if _odd:  # a fair NumPy: these are set for old versions of OpenBLAS, and read when it loads
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])

import numpy as np

import mge
import mge.functional as F
import mge.module as M
from mge.autodiff import GradManager
from mge.jit import trace
from mge.optimizer import SGD

try:
    import torch
except ImportError:
    torch = None

CALLS = 100
BATCH = 64


def seconds(function: Callable[[], object], repeat: int) -> float:
    """Return the seconds of one call, over ``repeat`` calls after one that warms the caches."""
    function()
    start = time.perf_counter()
    for _ in range(repeat):
        function()
    return (time.perf_counter() - start) / repeat


class Mlp(M.Module):
    """784-512-512-10 with ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = M.Linear(784, 512), M.Linear(512, 512), M.Linear(512, 10)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


def ours() -> dict[str, tuple[Callable[[], object], int, float]]:
    """Return name -> (function, repeats, scale): what is measured of mge."""
    x = mge.tensor(np.ones((8, 8), np.float32))
    y = mge.tensor(np.zeros((8, 8), np.float32))
    manager = GradManager().attach([x, y])

    def chain() -> mge.Tensor:
        a = x
        for _ in range(CALLS):
            a = a + y
        return a

    def drop() -> None:
        mge.graph.LOCAL.recording = mge.graph.Recording()

    def record() -> None:
        chain()
        drop()

    def record_with_manager() -> None:
        with manager:
            chain()
            drop()

    array, zero, out = (
        np.ones((8, 8), np.float32),
        np.zeros((8, 8), np.float32),
        np.empty((8, 8), np.float32),
    )

    def kernels() -> None:
        for _ in range(CALLS):
            np.add(array, zero, out=out)

    images = mge.tensor(np.random.default_rng(0).normal(size=(BATCH, 784)).astype(np.float32))
    labels = mge.tensor(np.random.default_rng(1).integers(0, 10, BATCH).astype(np.int32))

    def training() -> Callable[[mge.Tensor, mge.Tensor], mge.Tensor]:
        model = Mlp()
        gm = GradManager().attach(model.parameters())
        optimizer = SGD(model.parameters(), lr=0.01, momentum=0.9)

        def step(images: mge.Tensor, labels: mge.Tensor) -> mge.Tensor:
            with gm:
                loss = F.cross_entropy(model(images), labels)
                gm.backward(loss)
            optimizer.step().clear_grad()
            return loss

        return step

    untraced, traced = training(), trace(training())
    micro = 1e6 / CALLS
    eye = mge.tensor(np.eye(8, dtype=np.float32))
    ops = {"add": lambda a: a + y, "relu": F.relu, "matmul": lambda a: F.matmul(a, eye)}

    def forward(name: str) -> mge.Tensor:
        a = x
        for _ in range(CALLS):
            a = ops[name](a)
        return a

    def both(name: str) -> mge.Tensor:
        with manager:
            manager.backward(forward(name))
        grad, x.grad = x.grad, None
        return mge.eval(grad)

    chains = {name: (lambda name=name: mge.eval(forward(name)), 30, micro) for name in ops}
    chains |= {f"{name}_both": (lambda name=name: both(name), 30, micro) for name in ops}
    model = Mlp()
    call, add, image = trace(model), trace(lambda a, b: a + b), images[:1]
    calls = {
        "trace_add_call": (lambda: add(x, y).numpy(), 300, 1e6),
        "trace_mlp_b1_call": (lambda: call(image).numpy(), 300, 1e6),
    }
    return {
        "record": (record, 30, micro),
        "record_gradmanager": (record_with_manager, 30, micro),
        "kernels": (kernels, 30, micro),
        "record_and_run": (lambda: mge.eval(chain()), 30, micro),
        "mlp_step_untraced": (lambda: untraced(images, labels).item(), 20, 1e3),
        "mlp_step_traced": (lambda: traced(images, labels).item(), 20, 1e3),
        **chains,
        **calls,
    }


def peer() -> dict[str, tuple[Callable[[], object], int, float]]:
    """Return the same for PyTorch eager, where it is installed."""
    if torch is None:
        return {}
    x, y = torch.ones(8, 8), torch.zeros(8, 8)
    leaf = torch.ones(8, 8, requires_grad=True)

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(784, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(BATCH, 784), torch.randint(0, 10, (BATCH,))

    def step() -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    eye = torch.eye(8)
    ops = {"add": lambda a: a + y, "relu": torch.relu, "matmul": lambda a: a @ eye}

    def forward(name: str, a: torch.Tensor) -> torch.Tensor:
        for _ in range(CALLS):
            a = ops[name](a)
        return a

    def both(name: str) -> None:
        leaf.grad = None
        forward(name, leaf).backward(x)

    micro = 1e6 / CALLS
    found = {f"torch_{name}": (lambda name=name: forward(name, x), 30, micro) for name in ops}
    found |= {f"torch_{name}_both": (lambda name=name: both(name), 30, micro) for name in ops}
    return found | {"torch_mlp_step": (step, 20, 1e3)}


def main() -> None:
    """Measure, print a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    work = ours() | peer()
    for function, _, _ in work.values():
        for _ in range(4):  # first sight, compile, and two runs of the plan
            function()
    found: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(options.rounds):
        for name, (function, repeat, scale) in work.items():
            found[name].append(seconds(function, repeat) * scale)
    medians = {name: statistics.median(values) for name, values in found.items()}
    beyond = [a - b for a, b in zip(found["record_and_run"], found["kernels"])]
    medians["record_and_run_beyond_kernels"] = statistics.median(beyond)
    ratios = [a / b for a, b in zip(found["mlp_step_untraced"], found["mlp_step_traced"])]
    medians["untraced_over_traced"] = statistics.median(ratios)
    if options.json:
        print(
            json.dumps(
                {name: round(value, 4) for name, value in medians.items()}
                | {"rounds": options.rounds}
            )
        )
        return
    for name, value in medians.items():
        unit = "" if "over" in name else "ms a step" if "step" in name else "µs a call"
        print(f"{name:32}{value:10.3f} {unit}")


if __name__ == "__main__":
    main()
