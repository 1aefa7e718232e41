"""Losses, metrics and attention functions against formulas in NumPy, and their errors."""

import itertools

import numpy as np
import pytest

import mge
import mge.functional as F
from mge.errors import ArgumentError, DTypeError, IndexRangeError, ShapeError


def given(array):
    return mge.tensor(array, dtype=np.asarray(array).dtype)


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def rowwise_cross_entropy(x, t):
    return -(t * np.log(softmax(x))).sum(-1)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_follow_their_formulas(rng, reduction):
    reduce = {"mean": np.mean, "sum": np.sum, "none": lambda x: x}[reduction]
    x, z = rng.normal(size=(2, 4, 5))
    p, t = rng.uniform(0.1, 0.9, size=(2, 4, 5))
    d = np.abs(x - z)
    label = rng.integers(0, 5, 4)
    hot = np.eye(5)[label]
    sides = np.where(rng.normal(size=(4, 5)) > 0, 1.0, -1.0)
    hinge = np.maximum(0, 1 - x * sides)
    p_bce = -(t * np.log(p) + (1 - t) * np.log(1 - p))
    s = 1 / (1 + np.exp(-x))
    cases = [
        (F.l1_loss, (x, z), {}, d),
        (F.square_loss, (x, z), {}, d**2),
        (F.smooth_l1_loss, (x, z), {"beta": 0.5}, np.where(d < 0.5, d**2, d - 0.25)),
        (F.huber_loss, (x, z), {"delta": 0.5}, np.where(d < 0.5, d**2 / 2, 0.5 * (d - 0.25))),
        (F.binary_cross_entropy, (x, t), {}, -(t * np.log(s) + (1 - t) * np.log(1 - s))),
        (F.binary_cross_entropy, (p, t), {"with_logits": False}, p_bce),
        (F.cross_entropy, (x, label), {}, rowwise_cross_entropy(x, hot)),
        (F.cross_entropy, (x, t), {}, rowwise_cross_entropy(x, t)),
        (
            F.cross_entropy,
            (x, label),
            {"label_smooth": 0.1},
            rowwise_cross_entropy(x, 0.9 * hot + 0.1 / 5),
        ),
        (F.cross_entropy, (p, label), {"with_logits": False}, -np.log((p * hot).sum(1))),
        (F.nll_loss, (x, label), {}, -(x * hot).sum(1)),
        (F.kl_div, (x, t), {}, t * (np.log(t) - x)),
        (F.hinge_loss, (x, sides), {}, hinge.sum(1)),
        (F.hinge_loss, (x, sides), {"norm": "L2"}, (hinge**2).sum(1)),
    ]
    for loss, arrays, options, wanted in cases:
        found = loss(*map(given, arrays), reduction=reduction, **options).numpy()
        np.testing.assert_allclose(found, reduce(wanted), rtol=1e-12, err_msg=loss.__name__)


def test_losses_take_labels_of_another_dtype():
    pred = mge.tensor([[0.5, -0.5]])
    assert F.square_loss(pred, mge.tensor([[1, 0]])).dtype == "float32"
    assert F.hinge_loss(pred, mge.tensor([[1, -1]])).dtype == "float32"


def test_losses_broadcast_a_label_to_the_shape_of_pred():
    assert F.l1_loss(mge.tensor([[1.0, 2.0], [3.0, 4.0]]), mge.tensor([1.0, 2.0])).item() == 1
    assert F.square_loss(mge.tensor([1.0, 3.0]), 1.0).item() == 2


def test_cross_entropy_stays_finite_for_large_logits():
    loss = F.cross_entropy(mge.tensor([[1e4, 0.0], [0.0, -1e30]]), mge.tensor([0, 0]))
    assert loss.item() == 0


@pytest.mark.parametrize("value", [-1, 3, 100])
@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss])
def test_a_label_out_of_range_is_named(loss, value):
    result = loss(mge.tensor(np.zeros((2, 3), np.float32)), mge.tensor([0, value]))
    with pytest.raises(IndexRangeError, match=f"a label is {value}; pred has 3 classes"):
        result.numpy()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x, i: F.l1_loss(x, x, "avg"), ArgumentError, "reduction is 'avg'"),
        (lambda x, i: F.square_loss(x[:, :1], x[:, 0]), ShapeError, "must have the common shape"),
        (lambda x, i: F.cross_entropy(x, i[:1]), ShapeError, r"label must have \(3,\)"),
        (lambda x, i: F.cross_entropy(i, i), DTypeError, "pred is int32"),
        (lambda x, i: F.cross_entropy(x, x[:1]), ShapeError, "probabilities must have"),
        (lambda x, i: F.cross_entropy(x, i, label_smooth=2), ArgumentError, "label_smooth is 2"),
        (lambda x, i: F.hinge_loss(x, x, norm="L3"), ArgumentError, "norm is 'L3'"),
        (lambda x, i: F.huber_loss(x, x, delta=0), ArgumentError, "delta is 0"),
        (lambda x, i: F.topk_accuracy(x, i, topk=4), ArgumentError, "each k must be 1 to 3"),
        (lambda x, i: F.topk_accuracy(x, x), ShapeError, r"\(n, c\) and \(n,\)"),
    ],
)
def test_losses_name_what_is_wrong(call, error, text):
    x, i = mge.tensor(np.ones((3, 3), np.float32)), mge.tensor([0, 1, 2])
    with pytest.raises(error, match=text):
        call(x, i)


def paths_that_read(label, steps, classes, blank):
    for path in itertools.product(range(classes), repeat=steps):
        read = [k for k, _ in itertools.groupby(path) if k != blank]
        if read == list(label):
            yield path


@pytest.mark.parametrize("label", [[], [1], [1, 1], [2, 1], [1, 2, 1]])
def test_ctc_loss_sums_over_all_paths(rng, label):
    steps, classes = 4, 3
    chances = softmax(rng.normal(size=(steps, 1, classes)))
    wanted = sum(
        np.prod(chances[np.arange(steps), 0, list(path)])
        for path in paths_that_read(label, steps, classes, 0)
    )
    row = np.array([[*label, 0, 0]], np.int32)  # padded; padding is not read
    loss = F.ctc_loss(given(chances), mge.tensor([steps]), given(row), mge.tensor([len(label)]))
    np.testing.assert_allclose(loss.numpy(), -np.log(wanted) / max(len(label), 1))


def test_ctc_loss_takes_labels_one_after_the_other(rng):
    logits = given(rng.normal(size=(5, 3, 4)))
    lengths, counts = mge.tensor([5, 4, 5]), mge.tensor([2, 1, 3])
    padded = mge.tensor([[1, 2, 0], [3, 0, 0], [2, 2, 1]])
    joined = mge.tensor([1, 2, 3, 2, 2, 1])
    one, two = (
        F.ctc_loss(logits, lengths, label, counts, reduction="none", with_logits=True).numpy()
        for label in (padded, joined)
    )
    np.testing.assert_array_equal(one, two)


def test_ctc_loss_of_an_impossible_label_is_infinite():
    pred = mge.tensor(np.full((2, 1, 3), 1 / 3, np.float32))
    loss = F.ctc_loss(pred, mge.tensor([2]), mge.tensor([[1, 1]]), mge.tensor([2]))
    assert loss.item() == np.inf


def test_topk_accuracy_counts_hits():
    scores = mge.tensor([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3], [0.2, 0.3, 0.5]])
    target = mge.tensor([2, 0, 0])
    assert F.topk_accuracy(scores, target).item() == pytest.approx(1 / 3)
    found = F.topk_accuracy(scores, target, topk=(1, 2, 3))
    assert [round(a.item(), 4) for a in found] == [0.3333, 0.6667, 1.0]


def test_multi_head_attention_is_attention_by_head(rng):
    n, length, size, heads = 2, 3, 4, 2
    x = rng.normal(size=(n, length, size))
    weights = rng.normal(size=(4, size, size))
    bias = rng.normal(size=(4, size))
    packed = given(np.concatenate([weights.ravel(), bias.ravel()]))
    hidden = np.zeros((n, length), np.bool_)
    hidden[1, 2] = True
    flags = dict.fromkeys(("qbias", "kbias", "vbias", "obias"), True)
    y, found = F.multi_head_attention(
        *[given(x)] * 3, size, heads, 0.0, 0.0, packed, key_padding_mask=given(hidden), need_weights=True, **flags
    )  # fmt: skip
    q, k, v = (x @ w + b for w, b in zip(weights[:3], bias[:3], strict=True))
    parts = []
    for h in range(heads):
        cut = slice(h * 2, h * 2 + 2)
        scores = q[..., cut] @ k[..., cut].swapaxes(1, 2) / np.sqrt(2)
        p = softmax(np.where(hidden[:, None, :], -np.inf, scores))
        np.testing.assert_allclose(found.numpy().reshape(n, heads, length, length)[:, h], p)
        parts.append(p @ v[..., cut])
    np.testing.assert_allclose(y.numpy(), np.concatenate(parts, -1) @ weights[3] + bias[3])


def test_attention_dropout_and_causal_mask(rng):
    x = given(rng.normal(size=(2, 5, 4)))
    whole = F.scaled_dot_product_attention(x, x, x, is_causal=True).numpy()
    first = F.scaled_dot_product_attention(x[:, :3], x[:, :3], x[:, :3], is_causal=True).numpy()
    np.testing.assert_allclose(whole[:, :3], first)
    dropped = F.scaled_dot_product_attention(x, x, x, dropout_p=0.5).numpy()
    assert (dropped != F.scaled_dot_product_attention(x, x, x).numpy()).any()
