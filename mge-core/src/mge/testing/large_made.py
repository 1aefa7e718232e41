"""Large samples made by hand, for ops whose sizes depend on attributes, or on the values of an input.

In: random numbers. Out: ``MADE``, from an op's name to its large samples.
After ``cases``; before ``large``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .cases import Arrays

Rng = np.random.Generator
Sample = tuple[Arrays, dict[str, Any]]

MADE: dict[str, Callable[[Rng], Iterator[Sample]]] = {}

# Convolutions: input, weight, output, and attributes. All 35 output channels; stride 1, stride 2, groups.
_CONVS: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 19, 17, 23), (35, 19, 3, 3), (2, 35, 17, 23), {"stride": (1, 1), "padding": (1, 1), "groups": 1}),
    ((2, 19, 17, 23), (35, 19, 3, 3), (2, 35, 9, 12), {"stride": (2, 2), "padding": (1, 1), "groups": 1}),
    ((2, 20, 17, 23), (35, 4, 3, 5), (2, 35, 15, 19), {"stride": (1, 1), "padding": (0, 0), "groups": 5}),
    ((2, 19, 17, 23), (35, 19, 1, 1), (2, 35, 17, 23), {"stride": (1, 1), "padding": (0, 0), "groups": 1}),
]  # fmt: skip
_POOL_IN, _POOL_OUT = (2, 19, 37, 41), (2, 19, 18, 20)
_POOL = {"kernel": (3, 3), "stride": (2, 2), "padding": (0, 0, 0, 0)}


def eighths(rng: Rng, *shape: int) -> np.ndarray:
    """Return multiples of 1/8 from -1 to 1: sums of their products are exact in float32."""
    return rng.integers(-8, 9, shape) / 8


def made(*names: str) -> Callable[[Any], Any]:
    """Let a function make the large samples of these ops."""

    def keep(function: Callable[[Rng], Iterator[Sample]]) -> Callable[[Rng], Iterator[Sample]]:
        MADE.update(dict.fromkeys(names, function))
        return function

    return keep


@made("matmul")
def _(rng: Rng) -> Iterator[Sample]:
    yield (eighths(rng, 70, 130), eighths(rng, 130, 90)), {}
    yield (eighths(rng, 130, 70), eighths(rng, 90, 130)), {"transpose_a": True, "transpose_b": True}
    yield (eighths(rng, 5, 37, 67), eighths(rng, 5, 67, 43)), {}
    yield (eighths(rng, 1, 1087), eighths(rng, 1087, 37)), {}


@made("linear")
def _(rng: Rng) -> Iterator[Sample]:
    yield (eighths(rng, 70, 130), eighths(rng, 90, 130), eighths(rng, 90)), {}


@made("conv")
def _(rng: Rng) -> Iterator[Sample]:
    for x, w, _, attrs in _CONVS:
        yield (eighths(rng, *x), eighths(rng, *w)), {**attrs, "dilation": (1, 1)}


@made("conv_backward_data")
def _(rng: Rng) -> Iterator[Sample]:
    for x, w, y, attrs in _CONVS:
        yield (eighths(rng, *w), eighths(rng, *y)), {**attrs, "dilation": (1, 1), "input_shape": x}


@made("conv_backward_weight")
def _(rng: Rng) -> Iterator[Sample]:
    for x, w, y, attrs in _CONVS:
        yield (eighths(rng, *x), eighths(rng, *y)), {**attrs, "dilation": (1, 1), "weight_shape": w}


@made("max_pool")
def _(rng: Rng) -> Iterator[Sample]:
    yield (rng.normal(size=_POOL_IN),), _POOL


@made("max_pool_backward")
def _(rng: Rng) -> Iterator[Sample]:
    where = rng.integers(0, 9, _POOL_OUT).astype(np.uint8)
    yield (where, eighths(rng, *_POOL_OUT)), {**_POOL, "input_shape": _POOL_IN}


@made("avg_pool")
def _(rng: Rng) -> Iterator[Sample]:
    yield (eighths(rng, *_POOL_IN),), {**_POOL, "count_padding": False}


@made("avg_pool_backward")
def _(rng: Rng) -> Iterator[Sample]:
    yield (eighths(rng, *_POOL_OUT),), {**_POOL, "count_padding": False, "input_shape": _POOL_IN}


@made("cumsum", "mean", "std", "sum", "var")
def _(rng: Rng) -> Iterator[Sample]:
    yield (eighths(rng, 37, 1087),), {"axis": 1}
    yield (eighths(rng, 1087, 37),), {"axis": 0}
    yield (eighths(rng, 5, 37, 223),), {"axis": 1}


@made("argmax", "argmin", "logsoftmax", "logsumexp", "max", "min", "norm", "softmax")
def _(rng: Rng) -> Iterator[Sample]:
    yield (rng.normal(size=(37, 1087)),), {"axis": 1}
    yield (rng.normal(size=(1087, 37)),), {"axis": 0}
    yield (rng.normal(size=(5, 37, 223)),), {"axis": 1}


@made("argsort", "sort")
def _(rng: Rng) -> Iterator[Sample]:
    yield (rng.normal(size=(37, 1087)),), {}
    yield (rng.normal(size=(1087, 37)),), {"dim": 0, "descending": True}


@made("layer_norm")
def _(rng: Rng) -> Iterator[Sample]:
    inputs = rng.normal(size=(37, 1087)), rng.normal(size=1087), rng.normal(size=1087)
    yield inputs, {"axis": (1,)}


@made("ctc")
def _(rng: Rng) -> Iterator[Sample]:
    logits = rng.normal(size=(61, 7, 37))
    chances = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    lengths, counts = rng.integers(40, 62, 7), rng.integers(1, 18, 7)
    yield (chances, lengths, rng.integers(1, 37, (7, 17)), counts), {}


@made("ctc_grad")
def _(rng: Rng) -> Iterator[Sample]:
    ((inputs, attrs),) = MADE["ctc"](rng)
    yield (rng.normal(size=7), *inputs), attrs


@made("attention")
def _(rng: Rng) -> Iterator[Sample]:
    sizes = (2, 67, 33), (2, 129, 33), (2, 129, 35)
    yield tuple(rng.normal(size=s) for s in sizes), {}


@made("attention_backward")
def _(rng: Rng) -> Iterator[Sample]:
    sizes = (2, 67, 35), (2, 67, 33), (2, 129, 33), (2, 129, 35)
    yield tuple(rng.normal(size=s) for s in sizes), {}


@made("concat")
def _(rng: Rng) -> Iterator[Sample]:
    yield tuple(rng.normal(size=(37, n)) for n in (129, 951, 7)), {"axis": 1}
    yield tuple(rng.normal(size=(n, 1087)) for n in (19, 1, 17)), {"axis": 0}


@made("slice")
def _(rng: Rng) -> Iterator[Sample]:
    attrs = {"starts": (1, 3), "stops": (36, 1087), "steps": (1, 1)}
    yield (rng.normal(size=(37, 1087)),), attrs
    yield (rng.normal(size=(37, 1087)),), {**attrs, "steps": (2, 3)}


@made("slice_set")
def _(rng: Rng) -> Iterator[Sample]:
    attrs = {"starts": (1, 3), "stops": (36, 1087), "steps": (1, 1)}
    yield (rng.normal(size=(37, 1087)), rng.normal(size=(35, 1084))), attrs


@made("broadcast_to")
def _(rng: Rng) -> Iterator[Sample]:
    yield (rng.normal(size=(37, 1)),), {"shape": (5, 37, 223)}
    yield (rng.normal(size=(223,)),), {"shape": (5, 37, 223)}


@made("index")
def _(rng: Rng) -> Iterator[Sample]:
    yield (rng.normal(size=(1087, 37)), rng.integers(-1087, 1087, 1201)), {"axes": (0,)}
    yield (rng.normal(size=(37, 1087)), rng.integers(-1087, 1087, 1201)), {"axes": (1,)}


@made("index_set")
def _(rng: Rng) -> Iterator[Sample]:
    rows = rng.permutation(1087)[:901]
    yield (rng.normal(size=(1087, 37)), rng.normal(size=(901, 37)), rows), {"axes": (0,)}


@made("take_along")
def _(rng: Rng) -> Iterator[Sample]:
    yield (rng.normal(size=(37, 1087)), rng.integers(-1087, 1087, (37, 901))), {"axis": 1}


@made("put_along")
def _(rng: Rng) -> Iterator[Sample]:
    where = rng.permuted(np.tile(np.arange(1087), (37, 1)), axis=1)[:, :901]
    yield (rng.normal(size=(37, 1087)), where, rng.normal(size=(37, 901))), {"axis": 1}


@made("pick_class")
def _(rng: Rng) -> Iterator[Sample]:
    yield (rng.normal(size=(37, 1087)), rng.integers(0, 1087, 37)), {}
    yield (rng.normal(size=(1087, 37)), rng.integers(0, 37, 1087)), {}


@made("softmax_cross_entropy")
def _(rng: Rng) -> Iterator[Sample]:
    yield (rng.normal(size=(37, 1087)), rng.integers(0, 1087, 37)), {}


@made("softmax_cross_entropy_grad")
def _(rng: Rng) -> Iterator[Sample]:
    yield (rng.normal(size=37), rng.normal(size=(37, 1087)), rng.integers(0, 1087, 37)), {}


@made("searchsorted")
def _(rng: Rng) -> Iterator[Sample]:
    yield (np.sort(rng.normal(size=1087)), rng.normal(size=40213)), {}


@made("find_true")
def _(rng: Rng) -> Iterator[Sample]:
    yield (rng.random(40213) < 0.3,), {"size": 20011}


@made("topk")
def _(rng: Rng) -> Iterator[Sample]:
    yield (rng.normal(size=(37, 1087)),), {"k": 129}


@made("cross")
def _(rng: Rng) -> Iterator[Sample]:
    yield (rng.normal(size=(13001, 3)), rng.normal(size=(13001, 3))), {}


@made("matinv")
def _(rng: Rng) -> Iterator[Sample]:
    yield (rng.uniform(-1, 1, (3, 37, 37)) + 40 * np.eye(37),), {}


@made("svd")
def _(rng: Rng) -> Iterator[Sample]:
    yield from ()  # an algorithm for small matrices; the signs of its vectors are free


@made("gru_gates")
def _(rng: Rng) -> Iterator[Sample]:
    yield tuple(rng.normal(size=(37, n)) for n in (1101, 1101, 367)), {}


@made("gru_gates_grad")
def _(rng: Rng) -> Iterator[Sample]:
    yield tuple(rng.normal(size=(37, n)) for n in (367, 1101, 1101, 367)), {}


@made("lstm_gates")
def _(rng: Rng) -> Iterator[Sample]:
    yield tuple(rng.normal(size=(37, n)) for n in (1084, 271)), {}


@made("lstm_gates_grad")
def _(rng: Rng) -> Iterator[Sample]:
    yield tuple(rng.normal(size=(37, n)) for n in (271, 271, 1084, 271)), {}


@made("normal", "random_bits", "uniform")
def _(rng: Rng) -> Iterator[Sample]:
    yield (rng.integers(0, 1 << 40, 2).astype(np.uint64),), {"shape": (37, 1087)}


@made("permutation")
def _(rng: Rng) -> Iterator[Sample]:
    yield (rng.integers(0, 1 << 40, 2).astype(np.uint64),), {"n": 40213}


@made("iota")
def _(rng: Rng) -> Iterator[Sample]:
    yield (), {"shape": (37, 1087), "axis": 1}
