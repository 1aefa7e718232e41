"""Convolution and its gradients against plain loops, in every block size; the functions; and their errors."""

import itertools
import re

import numpy as np
import pytest

import mge
from mge.errors import ArgumentError, DTypeError, ShapeError
from mge.ops import conv_reference
from mge.ops.conv_functions import conv1d, conv2d
from mge.ops.conv_transpose import conv_transpose2d

# Shape of the input, shape of the weight, then stride, padding, dilation and groups.
CASES = [
    ((3, 2, 9), (4, 2, 3), (2,), (1,), (2,), 1),
    ((2, 3, 6, 5), (4, 3, 3, 2), (1, 1), (1, 0), (1, 1), 1),
    ((3, 4, 7, 6), (6, 2, 3, 3), (2, 1), (1, 2), (1, 2), 2),
    ((2, 3, 5, 6), (3, 1, 3, 3), (1, 1), (1, 1), (1, 1), 3),
    ((2, 3, 6, 5), (6, 1, 2, 2), (2, 2), (0, 1), (1, 1), 3),
    ((2, 3, 5, 4), (4, 3, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    ((2, 4, 2, 3), (4, 2, 1, 1), (1, 1), (0, 0), (1, 1), 2),
    ((2, 2, 6, 6), (3, 2, 1, 1), (3, 2), (0, 0), (1, 1), 1),
    ((2, 1, 5, 5), (1, 1, 2, 2), (3, 3), (2, 2), (1, 1), 1),
    ((2, 2, 4, 3, 4), (2, 2, 2, 2, 3), (1, 2, 1), (1, 0, 1), (1, 1, 1), 1),
]


def terms(inp, weight, count, stride, padding, dilation, groups):
    """Yield (output index, input index, weight index) of each product that a convolution sums."""
    per_group, channels = weight[0] // groups, weight[1]
    for n, o, c in itertools.product(range(inp[0]), range(weight[0]), range(channels)):
        for p in np.ndindex(*count):
            for k in np.ndindex(*weight[2:]):
                q = [a * s + b * d - e for a, s, b, d, e in zip(p, stride, k, dilation, padding)]
                if all(0 <= i < m for i, m in zip(q, inp[2:])):
                    yield (n, o, *p), (n, o // per_group * channels + c, *q), (o, c, *k)


@pytest.mark.parametrize(("block", "limit"), [(4 << 20, 32 << 20), (2000, 32 << 20), (1, 600)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CASES)
def test_conv_is_its_loops(case, dtype, block, limit, rng, monkeypatch):
    monkeypatch.setattr(conv_reference, "BLOCK_BYTES", block)
    monkeypatch.setattr(conv_reference, "LIMIT_BYTES", limit)
    inp, weight, stride, padding, dilation, groups = case
    attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    x, w = rng.normal(size=inp).astype(dtype), rng.normal(size=weight).astype(dtype)
    y = mge.op.OPS["conv"](mge.tensor(x, dtype=dtype), mge.tensor(w, dtype=dtype), **attrs).numpy()
    dy = rng.normal(size=y.shape).astype(dtype)
    wanted = [np.zeros(s) for s in (y.shape, inp, weight)]
    for i, j, k in terms(inp, weight, y.shape[2:], stride, padding, dilation, groups):
        wanted[0][i] += float(x[j]) * w[k]
        wanted[1][j] += float(dy[i]) * w[k]
        wanted[2][k] += float(dy[i]) * x[j]
    dx, dw = np.full(inp, np.nan, dtype), np.full(weight, np.nan, dtype)
    conv_reference.convolve_backward_data(w, dy, input_shape=inp, out=dx, **attrs)
    conv_reference.convolve_backward_weight(x, dy, weight_shape=weight, out=dw, **attrs)
    tolerance = 1e-12 if dtype == "float64" else 2e-5
    for given, loops in zip((y, dx, dw), wanted, strict=True):
        np.testing.assert_allclose(given, loops, rtol=tolerance, atol=tolerance)


def test_conv_bits_do_not_depend_on_alignment(rng):
    x, w = rng.normal(size=(3, 5, 9, 9)).astype("f"), rng.normal(size=(4, 5, 3, 3)).astype("f")
    attrs = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    found = set()
    for offset in range(0, 16, 4):
        room = np.empty(x.nbytes + 64, np.uint8)[offset : offset + x.nbytes]
        moved = room.view(np.float32).reshape(x.shape)
        moved[...] = x
        out = np.empty((3, 4, 9, 9), "f")
        conv_reference.convolve(moved, w, out=out, **attrs)
        found.add(out.tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_conv_of_halves_accumulates_in_float32(dtype):
    # 2048 + 1 is not a float16, and 256 + 1 no bfloat16: a sum in the narrow dtype would stop there.
    n = 4096
    x, w = mge.tensor(np.ones((1, n, 1)), dtype=dtype), mge.tensor(np.ones((1, n, 1)), dtype=dtype)
    assert float(conv1d(x, w).numpy().ravel()[0]) == n


def test_conv2d_takes_grouped_weights_and_both_forms_of_bias(rng):
    x = mge.tensor(rng.normal(size=(2, 4, 5, 5)))
    w, b = rng.normal(size=(6, 2, 3, 3)).astype("f"), rng.normal(size=6).astype("f")
    plain = conv2d(x, mge.tensor(w), mge.tensor(b), groups=2).numpy()
    grouped = conv2d(
        x, mge.tensor(w.reshape(2, 3, 2, 3, 3)), mge.tensor(b.reshape(1, 6, 1, 1)), groups=2
    )
    assert (plain == grouped.numpy()).all()
    np.testing.assert_allclose(
        plain - conv2d(x, mge.tensor(w), groups=2).numpy(),
        np.broadcast_to(b.reshape(1, 6, 1, 1), plain.shape),
        atol=1e-5,
    )


def test_conv_transpose2d_inverts_the_shape_of_conv2d(rng):
    x, w = mge.tensor(rng.normal(size=(1, 3, 8, 7))), mge.tensor(rng.normal(size=(5, 3, 3, 3)))
    y = conv2d(x, w, stride=2, padding=1)
    back = conv_transpose2d(y, w, stride=2, padding=1, output_padding=(1, 0))
    assert back.shape == x.shape


SMALL, KERNEL = np.ones((1, 4, 5, 5), "f"), np.ones((2, 4, 3, 3), "f")


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: conv2d(mge.tensor(SMALL[0]), mge.tensor(KERNEL)), ShapeError, "must have 4 axes"),
        (lambda: conv2d(SMALL, KERNEL[:, :3]), ShapeError, "inp's channels (4) must be"),
        (lambda: conv2d(SMALL, np.ones((2, 4, 6, 6), "f")), ShapeError, "a window spans (6, 6)"),
        (lambda: conv2d(SMALL, KERNEL, dilation=3), ShapeError, "a window spans (7, 7)"),
        (lambda: conv2d(SMALL, KERNEL, np.ones(3, "f")), ShapeError, "bias has shape (3,)"),
        (lambda: conv2d(SMALL, KERNEL[None], groups=2), ShapeError, "or 5 with groups first"),
        (lambda: conv2d(SMALL, KERNEL, stride=0), ArgumentError, "stride is (0, 0)"),
        (lambda: conv2d(SMALL, KERNEL, padding=-1), ArgumentError, "padding is (-1, -1)"),
        (
            lambda: conv2d(SMALL, KERNEL, stride=(1, 2, 3)),
            ArgumentError,
            "an integer or 2 integers",
        ),
        (lambda: conv2d(SMALL, KERNEL[:, :1], groups=4), ArgumentError, "groups is 4"),
        (lambda: conv2d(SMALL, KERNEL, conv_mode="convolution"), ArgumentError, "conv_mode"),
        (lambda: conv2d(SMALL.astype("i4"), KERNEL.astype("i4")), DTypeError, "inp is int32"),
        (lambda: conv_transpose2d(SMALL, KERNEL), ShapeError, "must be weight.shape[0] (2)"),
        (
            lambda: conv_transpose2d(SMALL, SMALL.swapaxes(0, 1), padding=9),
            ShapeError,
            "padding is (9, 9)",
        ),
        (
            lambda: conv_transpose2d(SMALL, SMALL.swapaxes(0, 1), output_padding=1),
            ArgumentError,
            "output_padding is (1, 1)",
        ),
    ],
)
def test_an_error_says_what_does_not_fit(call, error, text):
    with pytest.raises(error, match=re.escape(text)):
        call()
