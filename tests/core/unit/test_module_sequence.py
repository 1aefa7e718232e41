"""Recurrent layers, attention and transformers of mge.module against NumPy."""

import numpy as np
import pytest

import mge
import mge.module as M
from mge.errors import ArgumentError, ShapeError


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def close(x, y, tolerance=1e-5):
    np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=tolerance, atol=tolerance)


def step(kind, x, state, p, suffix=""):
    """One step of a cell in NumPy; returns the new state."""
    h = state[0]
    gates = x @ p["weight_ih" + suffix].T + p["bias_ih" + suffix]
    hidden = h @ p["weight_hh" + suffix].T + p["bias_hh" + suffix]
    if kind == "tanh":
        return (np.tanh(gates + hidden),)
    if kind == "relu":
        return (np.maximum(gates + hidden, 0),)
    if kind == "lstm":
        i, f, g, o = np.split(gates + hidden, 4, -1)
        c = sigmoid(f) * state[1] + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(c), c
    (xr, xz, xn), (hr, hz, hn) = np.split(gates, 3, -1), np.split(hidden, 3, -1)
    z = sigmoid(xz + hz)
    return ((1 - z) * np.tanh(xn + sigmoid(xr + hr) * hn) + z * h,)


CELLS = {
    "tanh": lambda: M.RNNCell(3, 4),
    "relu": lambda: M.RNNCell(3, 4, nonlinearity="relu"),
    "lstm": lambda: M.LSTMCell(3, 4),
    "gru": lambda: M.GRUCell(3, 4),
}
STACKS = {
    "tanh": lambda **o: M.RNN(3, 4, **o),
    "relu": lambda **o: M.RNN(3, 4, nonlinearity="relu", **o),
    "lstm": lambda **o: M.LSTM(3, 4, **o),
    "gru": lambda **o: M.GRU(3, 4, **o),
}


def states(rng, kind, *shape):
    return tuple(
        rng.normal(size=shape).astype(np.float32) for _ in range(2 if kind == "lstm" else 1)
    )


def given(state):
    tensors = tuple(mge.tensor(s) for s in state)
    return tensors if len(tensors) > 1 else tensors[0]


def parameters(net):
    return {name: p.numpy() for name, p in net.named_parameters()}


@pytest.mark.parametrize("kind", CELLS)
def test_cell_takes_one_step(rng, kind):
    net = CELLS[kind]()
    x, state = rng.normal(size=(2, 3)).astype(np.float32), states(rng, kind, 2, 4)
    expected = step(kind, x, state, parameters(net))
    found = net(mge.tensor(x), given(state))
    for a, b in zip(found if kind == "lstm" else (found,), expected):
        close(a, b)
    zeros = tuple(np.zeros_like(s) for s in state)
    found = net(mge.tensor(x))
    close(found[0] if kind == "lstm" else found, step(kind, x, zeros, parameters(net))[0])


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", STACKS)
def test_stack_runs_over_a_sequence(rng, kind, bidirectional):
    net = STACKS[kind](num_layers=2, bidirectional=bidirectional)
    d = 2 if bidirectional else 1
    x, start = rng.normal(size=(5, 2, 3)).astype(np.float32), states(rng, kind, 2 * d, 2, 4)
    p, inputs, last = parameters(net), x, []
    for layer in range(2):
        outputs = []
        for direction in range(d):
            suffix = f"_l{layer}" + "_reverse" * direction
            state, found = tuple(s[len(last)] for s in start), {}
            for t in range(5)[:: -1 if direction else 1]:
                state = step(kind, inputs[t], state, p, suffix)
                found[t] = state[0]
            outputs.append(np.stack([found[t] for t in range(5)]))
            last.append(state)
        inputs = np.concatenate(outputs, -1)
    output, final = net(mge.tensor(x), given(start))
    close(output, inputs)
    for i, s in enumerate(final if kind == "lstm" else (final,)):
        close(s, np.stack([state[i] for state in last]))


def test_stack_batch_first_and_no_bias(rng):
    x = rng.normal(size=(2, 5, 3)).astype(np.float32)
    net = M.GRU(3, 4, batch_first=True, bias=False)
    assert [n for n, _ in net.named_parameters()] == ["weight_ih_l0", "weight_hh_l0"]
    output, h = net(mge.tensor(x))
    assert output.shape == (2, 5, 4) and h.shape == (1, 2, 4)
    close(output[:, -1], h[0])


def test_stack_learns_through_time(rng):
    net = M.LSTM(3, 4)
    gm = mge.autodiff.GradManager().attach(net.parameters())
    with gm:
        output, _ = net(mge.tensor(rng.normal(size=(5, 2, 3))))
        gm.backward((output * output).sum())
    assert all(np.abs(p.grad.numpy()).sum() > 0 for p in net.parameters())


def test_stack_checks_its_arguments():
    with pytest.raises(ShapeError, match="3 axes, the last one of 3"):
        M.LSTM(3, 4)(mge.tensor(np.ones((2, 3))))
    with pytest.raises(ShapeError, match=r"must be \(1, 2, 4\)"):
        M.GRU(3, 4)(mge.tensor(np.ones((5, 2, 3))), mge.tensor(np.ones((2, 2, 4))))
    with pytest.raises(ArgumentError, match="needs 2"):
        M.LSTM(3, 4)(mge.tensor(np.ones((5, 2, 3))), mge.tensor(np.ones((1, 2, 4))))
    with pytest.raises(ArgumentError, match="nonlinearity is 'gelu'"):
        M.RNN(3, 4, nonlinearity="gelu")
    with pytest.raises(ArgumentError, match="projections"):
        M.LSTM(3, 4, proj_size=2)


# Attention.


def attention(net, q, k, v, mask=None):
    """NumPy attention; ``mask`` is True for what is ignored, (n, 1 or heads, l, s)."""
    p, h = parameters(net), net.num_heads

    def project(x, name):
        y = x @ p[name + ".weight"].T + p[name + ".bias"]
        return y.reshape(*y.shape[:2], h, -1).transpose(0, 2, 1, 3)

    q, k, v = project(q, "q_proj"), project(k, "k_proj"), project(v, "v_proj")
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
    if mask is not None:
        scores = np.where(mask, -1e30, scores)
    weights = softmax(scores)
    joined = (weights @ v).transpose(0, 2, 1, 3)
    joined = joined.reshape(*joined.shape[:2], -1)
    return joined @ p["out_proj.weight"].T + p["out_proj.bias"], weights


def sequences(rng, *shapes):
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def test_attention_agrees_with_numpy(rng):
    net = M.MultiHeadAttention(8, 2, kdim=6, vdim=5)
    q, k, v = sequences(rng, (3, 4, 8), (3, 7, 6), (3, 7, 5))
    output, weights = net(*map(mge.tensor, (q, k, v)))
    assert weights is None
    close(output, attention(net, q, k, v)[0])
    output, weights = net(*map(mge.tensor, (q, k, v)), need_weights=True)
    close(output, attention(net, q, k, v)[0])
    close(weights, attention(net, q, k, v)[1])
    _, weights = net(*map(mge.tensor, (q, k, v)), need_weights=True, average_attn_weights=True)
    close(weights, attention(net, q, k, v)[1].mean(1))


@pytest.mark.parametrize("need_weights", [False, True])
def test_attention_masks(rng, need_weights):
    net = M.MultiHeadAttention(8, 2)
    (x,) = sequences(rng, (3, 5, 8))
    causal = np.triu(np.ones((5, 5), bool), 1)
    padding = np.zeros((3, 5), bool)
    padding[1, 3:] = True
    both = causal[None, None] | padding[:, None, None]
    t = mge.tensor(x)

    def call(**options):
        options = {k: mge.tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
        return net(t, t, t, need_weights=need_weights, **options)[0]

    close(call(is_causal=True), attention(net, x, x, x, causal)[0])
    close(call(attn_mask=causal), attention(net, x, x, x, causal)[0])
    close(call(key_padding_mask=padding), attention(net, x, x, x, padding[:, None, None])[0])
    close(call(attn_mask=causal, key_padding_mask=padding), attention(net, x, x, x, both)[0])
    full = np.broadcast_to(both, (3, 2, 5, 5))
    close(call(attn_mask=full.reshape(6, 5, 5).copy()), attention(net, x, x, x, both)[0])
    added = np.where(causal, -1e4, 0).astype(np.float32)
    close(call(attn_mask=added, key_padding_mask=padding), attention(net, x, x, x, both)[0])
    with pytest.raises(ShapeError, match="attn_mask has shape"):
        call(attn_mask=np.zeros((4, 5), bool))
    with pytest.raises(ShapeError, match="key_padding_mask has shape"):
        call(key_padding_mask=np.zeros((5, 3), bool))


def test_attention_reslink_and_checks(rng):
    (x,) = sequences(rng, (1, 2, 4))
    net = M.MultiHeadAttention(4, 1, reslink=True)
    close(net(*[mge.tensor(x)] * 3)[0], attention(net, x, x, x)[0] + x)
    with pytest.raises(ArgumentError, match="num_heads 3"):
        M.MultiHeadAttention(4, 3)
    with pytest.raises(ArgumentError, match="not supported"):
        M.MultiHeadAttention(4, 2, add_bias_kv=True)
    with pytest.raises(ShapeError, match=r"each must be \(n, t, features\)"):
        net(*[mge.tensor(x[0])] * 3)


# Transformers.


def norm(x, eps=1e-5):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


def feed_forward(p, x):
    return (
        np.maximum(x @ p["linear1.weight"].T + p["linear1.bias"], 0) @ p["linear2.weight"].T
        + p["linear2.bias"]
    )


@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layer_agrees_with_numpy(rng, norm_first):
    net = M.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first).eval()
    (x,) = sequences(rng, (2, 5, 8))
    p, causal = parameters(net), np.triu(np.ones((5, 5), bool), 1)

    def attend(y):
        return attention(net.self_attn, y, y, y, causal)[0]

    if norm_first:
        expected = x + attend(norm(x))
        expected = expected + feed_forward(p, norm(expected))
    else:
        expected = norm(x + attend(x))
        expected = norm(expected + feed_forward(p, expected))
    close(net(mge.tensor(x), is_causal=True), expected, 1e-4)


def test_decoder_layer_agrees_with_numpy(rng):
    net = M.TransformerDecoderLayer(8, 2, 16).eval()
    x, memory = sequences(rng, (5, 2, 8), (3, 2, 8))
    y, m = x.transpose(1, 0, 2), memory.transpose(1, 0, 2)
    y = norm(y + attention(net.self_attn, y, y, y)[0])
    y = norm(y + attention(net.multihead_attn, y, m, m)[0])
    y = norm(y + feed_forward(parameters(net), y))
    close(net(mge.tensor(x), mge.tensor(memory)), y.transpose(1, 0, 2), 1e-4)


def test_transformer_stacks_copies(rng):
    net = M.Transformer(8, 2, 2, 1, 16, batch_first=True).eval()
    src, tgt = map(mge.tensor, sequences(rng, (2, 5, 8), (2, 3, 8)))
    mask = net.generate_square_subsequent_mask(3)
    y = net(src, tgt, tgt_mask=mask)
    assert y.shape == (2, 3, 8)
    layers = net.encoder.layers
    assert layers[0].linear1.weight is not layers[1].linear1.weight
    later = mge.tensor(np.concatenate([tgt.numpy()[:, :2], np.ones((2, 1, 8), np.float32)], 1))
    close(net(src, later, tgt_mask=mask)[:, :2], y[:, :2], 1e-5)
    with pytest.raises(ArgumentError, match="activation is 'tanh'"):
        M.TransformerEncoderLayer(8, 2, activation="tanh")
