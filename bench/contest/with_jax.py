"""The column of JAX: ``jax.jit`` of a model, or of a whole training step.

In: a case. Out: a function that runs it once, and its output or first losses.

The models are those of ``zoo`` over a small set of layers, whose arrays a traced function puts in their places.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import zoo


def prepare(column: str, case: zoo.Case, threads: int) -> tuple[Callable[[], object], Any]:
    """Return a function that runs the case once, and what it gives (logits, or the first losses)."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])  # before its threads start
    import jax
    import jax.numpy as np
    import layers_jax

    net = zoo.make(case.model, layers_jax, layers_jax.OPS)
    layers_jax.MODE.training = case.training
    places = dict(_arrays(net, ""))
    values = {n: np.asarray(zoo.weight(n, tuple(a.shape))) for n, (_, a) in places.items()}
    trained = {n: v for n, v in values.items() if "running_" not in n}
    running = {n: v for n, v in values.items() if "running_" in n}
    x, y = map(np.asarray, zoo.inputs(case))

    def put(new: dict[str, Any]) -> None:
        for name, value in new.items():
            setattr(places[name][0], name.rpartition(".")[2], value)

    def logits(trained: Any, running: Any, x: Any) -> Any:
        put(trained | running)
        made = net(x)
        return made, {n: getattr(places[n][0], n.rpartition(".")[2]) for n in running}

    if not case.training:
        infer = jax.jit(lambda *given: logits(*given)[0])
        run = lambda: infer(trained, running, x).block_until_ready()
        run()
        return run, run()

    def loss_of(trained: Any, running: Any) -> Any:
        made, running = logits(trained, running, x)
        return -jax.nn.log_softmax(made)[np.arange(len(y)), y].mean(), running

    def step(trained: Any, running: Any, velocity: Any) -> Any:
        (loss, running), gradients = jax.value_and_grad(loss_of, has_aux=True)(trained, running)
        velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, gradients)
        return loss, jax.tree.map(lambda w, v: w - 0.001 * v, trained, velocity), running, velocity

    compiled = jax.jit(step, donate_argnums=(0, 1, 2))
    state = [trained, running, jax.tree.map(np.zeros_like, trained)]

    def run_step() -> float:
        loss, *state[:] = compiled(*state)
        return float(loss)

    losses = [run_step() for _ in range(3)]
    return run_step, losses


def _arrays(module: Any, prefix: str) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield the names of a model's arrays, each with the layer that holds it and the array."""
    parts = (
        list(enumerate(module.parts)) if hasattr(module, "parts") else list(vars(module).items())
    )
    for name, value in parts:
        if hasattr(value, "forward"):
            yield from _arrays(value, f"{prefix}{name}.")
        elif hasattr(value, "dtype"):
            yield f"{prefix}{name}", (module, value)
