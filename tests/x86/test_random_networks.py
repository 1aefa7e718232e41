"""Random networks on device x86: all passes together give the values that the recorded graph gives.

Layers are drawn one after the other, on what is there already; then the whole is run forward and backward.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mge
import mge.functional as F
import mge.module as M
from mge import device as device_module
from mge.autodiff import GradManager
from mge.debug import debug

from . import models
from .standin import check, device, image, inference, ready, recorded, training


@pytest.fixture(autouse=True)
def all_passes(monkeypatch):
    """Make the stand-in, with all passes, the default device; verify graphs after each pass."""
    monkeypatch.setattr(device_module, "_default", [device()])
    with debug(check=1):
        yield


class Drawn(M.Module):
    """Layers that a strategy drew; each takes images (n, c, h, w) and gives such."""

    def __init__(self, draw, c, size):
        super().__init__()
        self.parts, self.steps = [], []
        shapes = [(c, size)]
        for _ in range(draw(st.integers(1, 7))):
            c, size = shapes[-1]
            kind = draw(st.sampled_from(sorted(KINDS)))
            step = KINDS[kind](draw, self, c, size, shapes)
            if step is not None:
                self.steps.append((kind, step[0]))
                shapes.append(step[1])

    def keep(self, module):
        self.parts.append(module)
        return module

    def forward(self, x):
        seen = [x]
        for _, step in self.steps:
            seen.append(step(seen))
        return seen[-1]


def _conv(draw, net, c, size, shapes):
    groups = draw(st.sampled_from([1, 1, 1, c]))
    o = (
        draw(st.sampled_from([1, 3, 16, 18]))
        if groups == 1
        else c * draw(st.sampled_from([1, 1, 2]))
    )
    k = draw(st.sampled_from([k for k in (1, 2, 3, 3, 5) if k <= size]))
    stride, dilation = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 2)]))
    padding = draw(st.integers(0, k // 2))
    new = (size + 2 * padding - dilation * (k - 1) - 1) // stride + 1
    if new < 1 or size + 2 * padding < dilation * (k - 1) + 1:
        return None
    conv = net.keep(
        M.Conv2d(c, o, k, stride=stride, padding=padding, dilation=dilation, groups=groups,
                 bias=draw(st.booleans()))
    )  # fmt: skip
    return lambda seen: conv(seen[-1]), (o, new)


def _up(draw, net, c, size, shapes):
    conv = net.keep(M.ConvTranspose2d(c, o := draw(st.sampled_from([2, 16])), 2, stride=2))
    return (lambda seen: conv(seen[-1]), (o, 2 * size)) if size < 10 else None


def _norm(draw, net, c, size, shapes):
    norm = net.keep(M.BatchNorm2d(c, eps=0.1))  # small variances would amplify rounding
    return lambda seen: norm(seen[-1]), (c, size)


def _act(draw, net, c, size, shapes):
    act = draw(
        st.sampled_from([F.relu, F.relu6, F.silu, F.gelu, F.hswish, F.tanh, F.sigmoid, F.abs])
    )
    return lambda seen: act(seen[-1]), (c, size)


def _pool(draw, net, c, size, shapes):
    pool = draw(st.sampled_from([F.max_pool2d, F.avg_pool2d]))
    return (lambda seen: pool(seen[-1], 2), (c, size // 2)) if size > 3 else None


def _join(draw, net, c, size, shapes):
    same = [i for i, s in enumerate(shapes[:-1]) if s == (c, size)]
    alike = [i for i, s in enumerate(shapes[:-1]) if s[1] == size]
    if same and draw(st.booleans()):
        i = draw(st.sampled_from(same))
        return lambda seen: seen[-1] + seen[i], (c, size)
    if not alike:
        return None
    i = draw(st.sampled_from(alike))
    return lambda seen: F.concat([seen[i], seen[-1]], axis=1), (c + shapes[i][0], size)


def _rows(draw, net, c, size, shapes):
    row = image(size)
    return lambda seen: seen[-1] * row - 0.5, (c, size)


def _gate(draw, net, c, size, shapes):
    def gate(seen):
        mean = F.mean(seen[-1], axis=(2, 3), keepdims=True)
        return seen[-1] * F.sigmoid(mean) + F.reshape(F.max(seen[-1], axis=2), (-1, c, 1, size))

    return gate, (c, size)


def _cut(draw, net, c, size, shapes):
    return (lambda seen: seen[-1][:, ::2, 1:, :-1], ((c + 1) // 2, size - 1)) if size > 2 else None


def _pad(draw, net, c, size, shapes):
    mode = draw(st.sampled_from(["constant", "reflect", "edge"]))
    widths = ((0, 0), (0, 0), (1, 0), (1, 0))
    return (lambda seen: F.pad(seen[-1], widths, mode), (c, size + 1)) if size > 1 else None


def _shuffle(draw, net, c, size, shapes):
    def shuffle(seen):
        n = seen[-1].shape[0]
        parts = F.reshape(seen[-1], (n, 2, c // 2, size, size))
        return F.reshape(F.transpose(parts, (0, 2, 1, 3, 4)), (n, c, size, size))

    return (shuffle, (c, size)) if c % 2 == 0 else None


def _spread(draw, net, c, size, shapes):
    if c % 4 == 0 and size < 8:
        return lambda seen: F.pixel_shuffle(seen[-1], 2), (c // 4, 2 * size)
    if size % 2 == 0:
        return lambda seen: F.pixel_unshuffle(seen[-1], 2), (4 * c, size // 2)
    return None


def _turn(draw, net, c, size, shapes):
    def turn(seen):
        tokens = F.transpose(F.flatten(seen[-1], 2), (0, 2, 1))
        tokens = F.softmax(tokens, axis=-1) + tokens
        return F.reshape(F.transpose(tokens, (0, 2, 1)), (-1, c, size, size))

    return turn, (c, size)


def _softmax(draw, net, c, size, shapes):
    axis = draw(st.sampled_from([1, 2, -1]))
    return lambda seen: F.softmax(seen[-1], axis=axis), (c, size)


KINDS = {
    "conv": _conv, "conv_again": _conv, "up": _up, "norm": _norm, "act": _act, "pool": _pool, "join": _join,
    "rows": _rows, "gate": _gate, "cut": _cut, "pad": _pad, "shuffle": _shuffle, "turn": _turn,
    "softmax": _softmax, "spread": _spread,
}  # fmt: skip


@given(st.data())
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
def test_random_networks_give_the_same(data):
    n, c, size = (data.draw(st.sampled_from(s)) for s in ([1, 2, 9], [1, 3, 16], [4, 7, 12]))
    net = Drawn(data.draw, c, size)
    module, x = ready(net, train=data.draw(st.booleans())), image(n, c, size, size)
    parameters = list(module.parameters())
    manager = GradManager().attach([x, *parameters])
    mge.sync()

    def step():
        with manager:
            y = module(x)
            loss = F.mean(y * y)
            if parameters or net.steps:
                manager.backward(loss)
        return [y, loss, *(p.grad for p in [x, *parameters] if p.grad is not None)]

    check(*recorded(step), tolerance=1e-4)


@given(st.data())
@settings(max_examples=10, suppress_health_check=list(HealthCheck))
def test_random_transformers_give_the_same(data):
    heads, size, depth, patch = (
        data.draw(st.sampled_from(s)) for s in ([1, 3], [4, 5, 16], [1, 2], [4, 8])
    )
    made = models.ViT(16, patch, heads * size, heads, depth, 5)
    shape = (data.draw(st.sampled_from([1, 2, 9])), 3, 16, 16)
    check(*(training if data.draw(st.booleans()) else inference)(made, *shape), tolerance=1e-4)
