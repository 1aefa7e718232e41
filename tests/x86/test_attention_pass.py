"""The pass ``attention``, and what training keeps: no transposes around heads, nothing of the size of the scores."""

import numpy as np
import pytest

import mge
import mge.functional as F
import mge.module as M
from mge import device as device_module
from mge.autodiff import GradManager
from mge.debug import debug

from .standin import check, counted, device, recorded

QUERIES = 20


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    """Make the stand-in the default device; verify graphs after each pass."""
    monkeypatch.setattr(device_module, "_default", [device(without=["fuse"])])
    with debug(check=1):
        yield


def tensors(*shapes):
    rng = np.random.default_rng(1)
    made = [mge.tensor(rng.normal(size=shape).astype("float32")) for shape in shapes]
    mge.sync()
    return made


def step_of(layer, *shapes, **more):
    """The graph of a layer's results, and of the gradients by its inputs and parameters."""
    inputs = tensors(*shapes)
    attached = [*inputs, *layer.parameters()]
    manager = GradManager().attach(attached)
    mge.sync()

    def step():
        with manager:
            y = layer(*inputs, **more)
            y = y[0] if isinstance(y, tuple) else y
            manager.backward(y, y * y)
        return [y, *(t.grad for t in attached)]

    return recorded(step)


def is_of_scores(node, queries, keys):
    return any(t.shape[-2:] == (queries, keys) for t in node.sig.types)


@pytest.mark.parametrize("is_causal", [False, True])
def test_an_encoder_transposes_nothing_and_keeps_no_scores(is_causal):
    layer = M.TransformerEncoderLayer(32, 4, 48, dropout=0.0, batch_first=True)
    made = check(*step_of(layer, (2, QUERIES, 32), is_causal=is_causal))
    ops = counted(made)
    assert ops["x86::attention"] == ops["x86::attention_backward"] == 1
    assert not ops["transpose"]
    assert not any(is_of_scores(n, QUERIES, QUERIES) for n in made.nodes)


def test_a_decoder_with_masks():
    layer = M.MultiHeadAttention(12, 3)
    padding = np.arange(7) > [[4], [6]]
    shapes = (2, QUERIES, 12), (2, 7, 12), (2, 7, 12)
    made = check(*step_of(layer, *shapes, key_padding_mask=mge.tensor(padding)))
    assert counted(made)["x86::attention_backward"] == 1
    assert not any(is_of_scores(n, QUERIES, 7) for n in made.nodes)


def test_heads_first_stay_so():
    q, k, v = tensors((2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 8))
    ops = counted(check(*recorded(lambda: [F.scaled_dot_product_attention(q, k, v)])))
    assert ops["attention"] == 1 and not ops["transpose"]
    turned = F.transpose(q, (0, 2, 1, 3))
    mge.sync()

    def one_turned():
        return [F.scaled_dot_product_attention(F.transpose(turned, (0, 2, 1, 3)), k, v)]

    ops = counted(check(*recorded(one_turned)))
    assert ops["attention"] == ops["transpose"] == 1


def test_transposes_that_others_read_stay():
    x = tensors((2, 5, 3, 4))[0]

    def both():
        q = F.transpose(x, (0, 2, 1, 3))
        return [F.scaled_dot_product_attention(q, q, q), q]

    ops = counted(check(*recorded(both)))
    assert ops["x86::attention"] == 1 and ops["transpose"] == 2


def softmax_of(scores, value):
    return F.matmul(F.softmax(scores, axis=-1), value)


def with_weights(scores, value):
    p = F.softmax(scores, axis=-1)
    return F.matmul(p, value)[..., :1] + p


FOUND = {
    "plain": lambda q, k, v, mask: softmax_of(F.matmul(q, k, transpose_b=True), v),
    "times a number": lambda q, k, v, mask: softmax_of(F.matmul(q, k, transpose_b=True) * 0.3, v),
    "a number times": lambda q, k, v, mask: softmax_of(0.3 * F.matmul(q, k, transpose_b=True), v),
    "over a number": lambda q, k, v, mask: softmax_of(F.matmul(q, F.transpose(k, (0, 1, 3, 2))) / 2.0, v),
    "with a mask": lambda q, k, v, mask: softmax_of(F.matmul(q, k, transpose_b=True) / 2.0 + mask, v),
    "mask first": lambda q, k, v, mask: softmax_of(mask + F.matmul(q, k, transpose_b=True), v),
}  # fmt: skip
LEFT = {
    "the weights": lambda q, k, v, mask: with_weights(F.matmul(q, k, transpose_b=True), v),
    "a number over": lambda q, k, v, mask: softmax_of(2.0 / F.matmul(q, k, transpose_b=True), v),
    "another axis": lambda q, k, v, mask: F.matmul(F.softmax(F.matmul(q, k, transpose_b=True), axis=-2), v),
    "a larger mask": lambda q, k, v, mask: softmax_of(F.matmul(q, k, transpose_b=True) + F.stack([mask, mask]), v),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_attention_is_found(name):
    inputs = tensors((2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 8), (5, 6))
    ops = counted(check(*recorded(lambda: [FOUND[name](*inputs)])))
    assert ops["attention"] == 1 and not ops["softmax"] and not ops["matmul"]


@pytest.mark.parametrize("name", LEFT)
def test_attention_is_not_found(name):
    inputs = tensors((2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 8), (2, 3, 5, 6))
    ops = counted(check(*recorded(lambda: [LEFT[name](*inputs)])))
    assert not ops["attention"] and ops["softmax"] == 1


def test_steps_stay_where_a_gradient_reads_them():
    q, k, v = tensors((2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 8))
    manager = GradManager().attach([q])
    mge.sync()

    def step():
        with manager:
            y = softmax_of(F.matmul(q, k, transpose_b=True), v)
            manager.backward(y, y * y)
        return [y, q.grad]

    assert counted(check(*recorded(step)))["softmax"]


def test_a_device_that_refuses_gets_base_ops(monkeypatch):
    refused = ["x86::attention", "x86::attention_backward", "attention", "attention_backward"]
    monkeypatch.setattr(device_module, "_default", [device(refused, without=["fuse"])])
    ops = counted(check(*step_of(M.MultiHeadAttention(12, 3), *[(2, 5, 12)] * 3)))
    assert not {*refused} & {*ops} and ops["softmax"]
