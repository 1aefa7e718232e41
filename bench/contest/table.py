"""The rows of the contest: what is compared, and what we want to hold.

In: nothing. Out: ``ROWS``.
Before ``peers.py``, which runs them.
"""

from __future__ import annotations

from typing import NamedTuple

import zoo


class Row(NamedTuple):
    """One row.

    Attributes
    ----------
    name : str
        Its kind comes first: ``"infer/resnet18/b8"``.
    bar : float
        What the ratio (the best peer's time by ours) must reach; with ``at_most`` what the value must stay below.
    goal : float or None
    at_most : bool
    unit : str
        Of ours and the peer's.
    threads : tuple of int
        Empty: those that the user asks for.
    case : zoo.Case or None
        What frameworks run in turn, each in a process of its own.
    label : str
        What ``bench/gemm.py`` calls it.
    """

    name: str
    bar: float
    goal: float | None = None
    at_most: bool = False
    unit: str = "ms"
    threads: tuple[int, ...] = ()
    case: zoo.Case | None = None
    label: str = ""

    @property
    def kind(self) -> str:
        """The first word of its name."""
        return self.name.partition("/")[0]


def _case(bar: float, goal: float | None, model: str, batch: int, training: bool = False) -> Row:
    case = zoo.Case(model, batch, training)
    return Row(str(case), bar, goal, case=case)


def _kernel(name: str, bar: float, label: str) -> Row:
    return Row(f"kernel/{name}", bar, unit="of the FMA peak", threads=(1,), label=label)


ROWS = [
    _case(1.3, 1.5, "resnet18", 1),
    _case(1.75, 2.0, "resnet18", 8),
    _case(1.12, 1.25, "resnet50", 1),
    _case(1.18, 1.35, "resnet50", 8),
    _case(1.9, None, "vgg16", 1),
    _case(1.0, 1.2, "mobilenetv2", 1),
    _case(1.05, 1.2, "mobilenetv2", 8),
    _case(1.15, None, "vit_tiny", 1),
    _case(1.15, None, "vit_tiny", 8),
    _case(1.0, None, "mlp", 1),
    _case(1.1, None, "mlp", 64),
    _case(1.0, None, "lenet", 1),
    _case(1.5, None, "lenet", 64),
    _case(1.3, None, "resnet18", 16, True),
    _case(1.1, None, "resnet50", 16, True),
    _case(1.2, None, "resnet20", 128, True),
    _case(1.2, None, "mobilenetv2", 16, True),
    _case(1.3, None, "mlp", 64, True),
    _case(1.5, None, "lenet", 64, True),
    _case(1.5, None, "transformer", 32, True),
    *(
        Row(f"calls/{op}/{'both' if both else 'forward'}", 1.0, case=zoo.Case(f"chain_{op}", 8, both))
        for both in (False, True)
        for op in ("add", "relu", "matmul")
    ),
    Row("fused/gelu_layer_norm", 1.3, threads=(1, 2), case=zoo.Case("gelu_layer_norm", 512)),
    Row("memory/resnet18/b32", 0.7, at_most=True, unit="MB", case=zoo.Case("resnet18", 32, True)),
    *(_kernel(f"gemm/{n}", bar, f"matmul {n}x{n}x{n}") for n, bar in ((512, 0.93), (1024, 0.93), (2048, 0.89))),
    *(
        _kernel(f"conv3x3/{c}@{size}", 0.93, f"conv 1, {c}->{c} @{size} 3x3")
        for c, size in ((64, 56), (128, 28), (256, 14), (512, 7))
    ),
    Row("package/wheel", 5.0, at_most=True, unit="MB"),
    Row("package/load", 30.0, at_most=True, unit="ms"),
    Row("tune/seconds", 15.0, at_most=True, unit="s"),
    Row("tune/untuned", 2.0, at_most=True, unit="times the tuned inference"),
]  # fmt: skip

SMOKE = ["infer/mlp/b1", "infer/lenet/b1", "train/mlp/b64", "calls/add/forward", "fused", "package/load",
         "kernel/gemm/512"]  # fmt: skip
