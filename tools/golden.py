"""Write the golden plans: the text of the plans of five small models, which tests/core/golden compares.

In: the models of ``MODELS``, on device ``ref``. Out: one file each; ``python tools/golden.py`` after a change of
kernels, order or memory that is meant, so that its diff is reviewed. Run by hand; read by tests/core/golden.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "core" / "golden"


def _array(*shape: int, dtype: str = "float32") -> Any:
    import numpy as np

    import mge

    values = np.arange(int(np.prod(shape))).reshape(shape) % 7
    return mge.tensor(values.astype(dtype) / (7 if dtype == "float32" else 1), dtype=dtype)


def _trained(net: Any, optimizer: Any, loss: Callable[..., Any], *data: Any) -> str:
    """Return the plan of a training step: forward, backward and update."""
    from mge.autodiff import GradManager
    from mge.jit import trace

    manager = GradManager().attach(net.parameters())

    @trace
    def step(*data: Any) -> Any:
        optimizer.clear_grad()
        with manager:
            value = loss(*data)
            manager.backward(value)
        optimizer.step()
        return value

    for _ in range(3):  # the third call overwrites parameters in place
        step(*data)
    return str(list(step.last.plans.values())[-1].plan)


def mlp() -> str:
    """A perceptron with momentum."""
    import mge.functional as F
    import mge.module as M
    import mge.optimizer as optim

    net = M.Sequential(M.Linear(6, 8), M.ReLU(), M.Linear(8, 3))
    optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    return _trained(
        net,
        optimizer,
        lambda x, y: F.cross_entropy(net(x), y),
        _array(4, 6),
        _array(4, dtype="int32") % 3,
    )


def convolution() -> str:
    """A convolution with statistics, pooled."""
    import mge.functional as F
    import mge.module as M
    import mge.optimizer as optim

    net = M.Sequential(M.Conv2d(1, 4, 3), M.BatchNorm2d(4), M.ReLU(), M.MaxPool2d(2, 2))
    optimizer = optim.Adam(net.parameters(), lr=0.01)
    return _trained(net, optimizer, lambda x: F.mean(net(x) ** 2), _array(2, 1, 8, 8))


def attention() -> str:
    """Inference of an attention layer: what depends on weights alone is in the prologue."""
    import mge.functional as F
    from mge.jit import trace
    from mge.tensor import Parameter

    w = [Parameter(_array(8, 8)) for _ in range(3)]

    @trace
    def step(x: Any) -> Any:
        q, k, v = (x @ F.exp(p) for p in w)
        return F.softmax(q @ k.transpose(0, 2, 1) * 8**-0.5, axis=-1) @ v

    for _ in range(2):
        step(_array(2, 5, 8))
    compiled = list(step.last.plans.values())[-1]
    before = "" if compiled.prologue is None else f"prologue\n{compiled.prologue.plan}\n\n"
    return before + str(compiled.plan)


def recurrence() -> str:
    """A loop over time with a carry."""
    import mge.functional as F
    from mge.jit import trace

    w = _array(4, 4)

    @trace
    def step(x: Any) -> Any:
        return F.while_loop(
            lambda i, h: i < 3, lambda i, h: (i + 1, F.tanh(h @ w + x)), [_array(1)[0], x]
        )[1]

    step(_array(2, 4))
    return str(list(step.last.plans.values())[-1].plan)


def views() -> str:
    """Reshapes, slices and several results: views are free."""
    from mge.jit import trace

    @trace
    def step(x: Any) -> Any:
        y = (x * 2).reshape(2, 6)
        return y, y[:, :3] + 1, (y + 1).reshape(3, 4).transpose() @ y.reshape(3, 4)

    step(_array(4, 3))
    return str(list(step.last.plans.values())[-1].plan)


MODELS: dict[str, Callable[[], str]] = {
    "mlp": mlp, "convolution": convolution, "attention": attention, "recurrence": recurrence, "views": views,
}  # fmt: skip


def text_of(name: str) -> str:
    """Return a model's plan as text; graphs in attributes and addresses are left out, since they tell nothing."""
    import mge

    mge.sync()
    return re.sub(r"0x[0-9a-f]{6,}", "0x...", MODELS[name]()) + "\n"


def main() -> int:
    """Write all files; returns 1 if one has changed."""
    changed = 0
    FOLDER.mkdir(exist_ok=True)
    for name in MODELS:
        path, text = FOLDER / f"{name}.txt", text_of(name)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"changed: {path.relative_to(FOLDER.parents[2])}")
            changed = 1
    return changed


if __name__ == "__main__":
    sys.exit(main())
