"""The column of JAX: ``jax.jit`` of a whole training step, for the models without convolutions.

In: a case. Out: a function that runs it once, and its first losses.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import zoo
from with_torch import make


def prepare(column: str, case: zoo.Case, threads: int) -> tuple[Callable[[], object], Any]:
    """Return a function that runs the case once, and its first losses."""
    if case.model not in ("mlp", "transformer"):
        raise ValueError("its convolutions are no peer on processors")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])  # before its threads start
    import jax
    import jax.numpy as np

    values = {n: np.asarray(p.detach().numpy()) for n, p in make(case.model).named_parameters()}
    x, y = map(np.asarray, zoo.inputs(case))

    def linear(p: Any, name: str, x: Any) -> Any:
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    def norm(p: Any, name: str, x: Any) -> Any:
        x = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * p[f"{name}.weight"] + p[f"{name}.bias"]

    def block(p: Any, name: str, x: Any) -> Any:
        z = norm(p, f"{name}.norm1", x)
        n, rows, width = x.shape
        q, k, v = (
            linear(p, f"{name}.{part}", z).reshape(n, rows, 4, width // 4)
            for part in ("query", "key", "value")
        )
        x = x + linear(p, f"{name}.out", jax.nn.dot_product_attention(q, k, v).reshape(x.shape))
        wide = linear(p, f"{name}.wide", norm(p, f"{name}.norm2", x))
        return x + linear(p, f"{name}.narrow", jax.nn.gelu(wide, approximate=False))

    def logits(p: Any, x: Any) -> Any:
        if case.model == "mlp":
            x = jax.nn.relu(linear(p, "2", jax.nn.relu(linear(p, "0", x))))
            return linear(p, "4", x)
        for k in range(2):
            x = block(p, f"blocks.{k}", x)
        return linear(p, "head", norm(p, "norm", x).mean(1))

    def loss_of(p: Any) -> Any:
        return -jax.nn.log_softmax(logits(p, x))[np.arange(len(y)), y].mean()

    if not case.training:
        infer = jax.jit(logits)
        run = lambda: infer(values, x).block_until_ready()
        run()
        return run, run()

    @jax.jit
    def step(p: Any, velocity: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(p)
        velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, gradients)
        return loss, jax.tree.map(lambda w, v: w - 0.001 * v, p, velocity), velocity

    state = [values, jax.tree.map(np.zeros_like, values)]

    def run_step() -> float:
        loss, *state[:] = step(*state)
        return float(loss)

    losses = [run_step() for _ in range(3)]
    return run_step, losses
