"""The layers of mge.module against NumPy, on small inputs."""

import numpy as np
import pytest

import mge
import mge.functional as F
import mge.module as M
from mge.errors import ArgumentError, ShapeError


def parameters(net):
    return {name: p.numpy() for name, p in net.named_parameters()}


def close(x, y, tolerance=1e-5):
    np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=tolerance, atol=tolerance)


def batch(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


# Linear and embedding.


def test_linear_multiplies_and_adds(rng):
    net = M.Linear(3, 2)
    x, p = batch(rng, 4, 3), parameters(net)
    close(net(mge.tensor(x)), x @ p["weight"].T + p["bias"])
    assert not p["bias"].any() and M.Linear(3, 2, bias=False).bias is None


def test_linear_weights_have_the_variance_of_their_fan_in():
    weight = M.Linear(400, 100).weight.numpy()
    assert weight.std() == pytest.approx(1 / 20, rel=0.05) and abs(weight.mean()) < 0.005


def test_embedding_looks_rows_up(rng):
    table = batch(rng, 5, 3)
    net = M.Embedding(5, 3, initial_weight=table)
    index = np.array([[0, 4], [1, 1]])
    close(net(mge.tensor(index)), table[index])


def test_embedding_padding_row_gets_no_gradient():
    net = M.Embedding(4, 2, padding_idx=-3)
    assert not net.weight.numpy()[1].any() and net.weight.numpy()[0].any()
    gm = mge.autodiff.GradManager().attach(net.parameters())
    with gm:
        gm.backward(net(mge.tensor([1, 2, 2])).sum())
    close(net.weight.grad, [[0, 0], [0, 0], [2, 2], [0, 0]])


def test_embedding_from_pretrained_is_frozen(rng):
    net = M.Embedding.from_pretrained(batch(rng, 4, 2))
    assert net.freeze and net(mge.tensor([3])).shape == (1, 2)
    with pytest.raises(ArgumentError, match="initial_weight has shape"):
        M.Embedding(4, 2, initial_weight=np.zeros((2, 4)))
    with pytest.raises(ArgumentError, match="padding_idx is 4"):
        M.Embedding(4, 2, padding_idx=4)


def test_dropout_acts_in_training_only(rng):
    net, x = M.Dropout(0.5), mge.tensor(np.ones((50, 50)))
    y = net(x).numpy()
    assert set(np.unique(y)) == {0.0, 2.0} and 0.4 < (y == 0).mean() < 0.6
    assert net.eval()(x) is x
    with pytest.raises(ArgumentError, match=r"drop_prob is 1\.5"):
        M.Dropout(1.5)


# Convolutions.


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_conv_shapes_are_megengines(n, groups):
    layer = (M.Conv1d, M.Conv2d, M.Conv3d)[n - 1](4, 6, 3, stride=2, padding=1, groups=groups)
    expected = (6, 4) if groups == 1 else (2, 3, 2)
    assert layer.weight.shape == expected + (3,) * n
    assert layer.bias.shape == (1, 6) + (1,) * n
    assert layer(mge.tensor(np.ones((2, 4) + (8,) * n))).shape == (2, 6) + (4,) * n


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_conv_transpose_shapes_are_megengines(n, groups):
    classes = (M.ConvTranspose1d, M.ConvTranspose2d, M.ConvTranspose3d)
    layer = classes[n - 1](4, 6, 3, stride=2, padding=1, output_padding=1, groups=groups)
    expected = (4, 6) if groups == 1 else (2, 2, 3)
    assert layer.weight.shape == expected + (3,) * n
    assert layer(mge.tensor(np.ones((2, 4) + (4,) * n))).shape == (2, 6) + (8,) * n


def test_conv2d_pointwise_is_a_product(rng):
    net = M.Conv2d(3, 2, 1)
    x, p = batch(rng, 2, 3, 4, 4), parameters(net)
    close(net(mge.tensor(x)), np.einsum("nchw,oc->nohw", x, p["weight"][:, :, 0, 0]) + p["bias"])


@pytest.mark.parametrize(("mode", "numpy_mode"), [("reflect", "reflect"), ("replicate", "edge")])
def test_conv2d_pads_by_mode(rng, mode, numpy_mode):
    net = M.Conv2d(1, 1, 3, padding=1, padding_mode=mode, bias=False)
    plain = M.Conv2d(1, 1, 3, bias=False)
    plain.weight = net.weight
    x = batch(rng, 1, 1, 4, 5)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), mode=numpy_mode)
    close(net(mge.tensor(x)), plain(mge.tensor(padded)))


def test_conv_checks_its_arguments():
    with pytest.raises(ArgumentError, match="groups must divide both"):
        M.Conv2d(3, 4, 1, groups=2)
    with pytest.raises(ArgumentError, match="kernel_size is"):
        M.Conv2d(3, 4, (1, 2, 3))
    with pytest.raises(ArgumentError, match="padding_mode"):
        M.Conv2d(3, 4, 1, padding_mode="circular")


def test_conv_initial_weights_count_one_group():
    weight = M.Conv2d(64, 64, 3, groups=64).weight.numpy()
    assert weight.shape == (64, 1, 1, 3, 3) and weight.std() == pytest.approx(1 / 3, rel=0.15)


# Norms.


def normalized(x, axes, eps=1e-5):
    mean = x.mean(axes, keepdims=True)
    return (x - mean) / np.sqrt(x.var(axes, keepdims=True) + eps)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (M.BatchNorm1d, (6, 3)),
        (M.BatchNorm1d, (4, 3, 5)),
        (M.BatchNorm2d, (4, 3, 2, 5)),
        (M.BatchNorm3d, (2, 3, 2, 2, 3)),
        (M.SyncBatchNorm, (4, 3, 2, 5)),
    ],
)
def test_batch_norm_trains_and_infers(rng, layer, shape):
    net, x = layer(3), 2 + batch(rng, *shape)
    axes = tuple(i for i in range(len(shape)) if i != 1)
    close(net(mge.tensor(x)), normalized(x, axes), 1e-4)
    assert net.running_mean.shape == (1, 3, 1, 1) == net.weight.shape
    mean, var = 0.1 * x.mean(axes), 0.9 + 0.1 * x.var(axes, ddof=1)
    close(net.running_mean.numpy().ravel(), mean)
    close(net.running_var.numpy().ravel(), var)
    net.eval()
    spread = [1, 3] + [1] * (len(shape) - 2)
    expected = (x - mean.reshape(spread)) / np.sqrt(var.reshape(spread) + 1e-5)
    close(net(mge.tensor(x)), expected, 1e-4)


def test_batch_norm_updates_its_handles():
    net = M.BatchNorm1d(2)
    mean = net.running_mean
    net(mge.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert net.running_mean is mean and mean.numpy().any()
    net.reset_running_stats()
    assert not mean.numpy().any()


def test_batch_norm_without_statistics_uses_the_batch(rng):
    net, x = (
        M.BatchNorm2d(3, track_running_stats=False, affine=False).eval(),
        batch(rng, 4, 3, 2, 2),
    )
    close(net(mge.tensor(x)), normalized(x, (0, 2, 3)), 1e-4)
    assert list(net.tensors()) == []


def test_batch_norm_frozen_keeps_statistics_and_gives_no_gradient(rng):
    net, x = M.BatchNorm2d(3, freeze=True), batch(rng, 4, 3, 2, 2)
    gm = mge.autodiff.GradManager().attach(net.parameters())
    with gm:
        y = net(mge.tensor(x))
        gm.backward(y.sum())
    close(y, x, 1e-4)
    assert not net.running_mean.numpy().any()
    assert net.weight.grad is None or not net.weight.grad.numpy().any()


def test_batch_norm_checks_axes_and_channels():
    with pytest.raises(ShapeError, match="4 axes and 3 channels"):
        M.BatchNorm2d(3)(mge.tensor(np.ones((2, 3))))
    with pytest.raises(ShapeError, match="3 channels"):
        M.BatchNorm1d(3)(mge.tensor(np.ones((2, 4))))


def test_layer_norm_normalizes_rows(rng):
    net, x = M.LayerNorm((3, 4)), batch(rng, 2, 3, 4)
    net.weight.set_value(batch(rng, 3, 4))
    net.bias.set_value(batch(rng, 3, 4))
    p = parameters(net)
    close(net(mge.tensor(x)), normalized(x, (1, 2)) * p["weight"] + p["bias"], 1e-4)
    close(M.LayerNorm(4, affine=False)(mge.tensor(x)), normalized(x, -1), 1e-4)


def test_rms_norm_scales_rows(rng):
    net, x = M.RMSNorm(4), batch(rng, 2, 4)
    net.weight.set_value(batch(rng, 4))
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * net.weight.numpy()
    close(net(mge.tensor(x)), expected)
    two = M.RMSNorm((2, 4))
    close(two(mge.tensor(x)), x / np.sqrt((x**2).mean() + 1e-6))
    with pytest.raises(ShapeError, match=r"last axes must be \(4,\)"):
        net(mge.tensor(np.ones((4, 2))))


def test_group_and_instance_norm(rng):
    x = batch(rng, 2, 4, 3, 3)
    grouped = normalized(x.reshape(2, 2, 2, 3, 3), (2, 3, 4)).reshape(x.shape)
    close(M.GroupNorm(2, 4)(mge.tensor(x)), grouped, 1e-4)
    close(M.InstanceNorm(4)(mge.tensor(x)), normalized(x, (2, 3)), 1e-4)
    with pytest.raises(ArgumentError, match="num_groups 3"):
        M.GroupNorm(3, 4)
    with pytest.raises(ShapeError, match="4 channels"):
        M.GroupNorm(2, 4)(mge.tensor(np.ones((2, 6, 3))))


# Pools, padding, activations, losses: each is one call of a function.


@pytest.mark.parametrize("n", [1, 2, 3])
def test_pools_agree_with_windows(rng, n):
    x = batch(rng, 2, 3, *(4,) * n)
    windows = x
    for axis in range(n):
        windows = windows.reshape(*windows.shape[: 2 + axis], 2, 2, *windows.shape[3 + axis :])
        windows = np.moveaxis(windows, 3 + axis, -1)
    axes = tuple(range(-n, 0))
    x = mge.tensor(x)
    close(getattr(M, f"MaxPool{n}d")(2)(x), windows.max(axes))
    close(getattr(M, f"AvgPool{n}d")(2)(x), windows.mean(axes))
    close(getattr(M, f"AdaptiveMaxPool{n}d")(2)(x), windows.max(axes))
    close(getattr(M, f"AdaptiveAvgPool{n}d")((2,) * n)(x), windows.mean(axes))


def test_pool_keeps_stride_and_padding():
    net = M.MaxPool2d(3, 2, 1)
    assert net(mge.tensor(np.ones((1, 1, 7, 7)))).shape == (1, 1, 4, 4)
    assert M.AvgPool2d(3, 2, 1, "average")(mge.tensor(np.ones((1, 1, 5, 5)))).numpy()[
        0, 0, 0, 0
    ] == pytest.approx(4 / 9)
    assert repr(net) == "MaxPool2d(kernel_size=(3, 3), stride=(2, 2), padding=(1, 1))"


def test_pads_and_shuffles(rng):
    x = batch(rng, 2, 8, 3, 3)
    close(
        M.Pad(((0, 0), (0, 0), (1, 0)), "REPLICATE")(mge.tensor(x)),
        np.pad(x, ((0, 0), (0, 0), (1, 0), (0, 0)), "edge"),
    )
    close(M.ZeroPad((1, 2, 0, 3))(mge.tensor(x)), np.pad(x, ((0, 0), (0, 0), (0, 3), (1, 2))))
    shuffled = x.reshape(2, 2, 2, 2, 3, 3).transpose(0, 1, 4, 2, 5, 3).reshape(2, 2, 6, 6)
    close(M.PixelShuffle(2)(mge.tensor(x)), shuffled)
    close(M.Flatten()(mge.tensor(x)), x.reshape(2, -1))


ACTIVATIONS = {
    M.ReLU(): lambda x: np.maximum(x, 0),
    M.ReLU6(): lambda x: np.clip(x, 0, 6),
    M.LeakyReLU(0.1): lambda x: np.where(x > 0, x, 0.1 * x),
    M.PReLU(init=0.2): lambda x: np.where(x > 0, x, 0.2 * x),
    M.PReLU(3, init=0.3): lambda x: np.where(x > 0, x, 0.3 * x),
    M.ELU(0.5): lambda x: np.where(x > 0, x, 0.5 * np.expm1(x)),
    M.CELU(0.5): lambda x: np.where(x > 0, x, 0.5 * np.expm1(x / 0.5)),
    M.SELU(): lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
    M.SiLU(): lambda x: x / (1 + np.exp(-x)),
    M.Sigmoid(): lambda x: 1 / (1 + np.exp(-x)),
    M.LogSigmoid(): lambda x: -np.log1p(np.exp(-x)),
    M.HSigmoid(): lambda x: np.clip(x + 3, 0, 6) / 6,
    M.HSwish(): lambda x: x * np.clip(x + 3, 0, 6) / 6,
    M.Hardtanh(-0.5, 2): lambda x: np.clip(x, -0.5, 2),
    M.Tanh(): np.tanh,
    M.Softplus(): lambda x: np.log1p(np.exp(x)),
    M.Softsign(): lambda x: x / (1 + np.abs(x)),
    M.Softmax(): lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True),
    M.Softmax(-1): lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True),
    M.LogSoftmax(): lambda x: x - np.log(np.exp(x).sum(1, keepdims=True)),
    M.Identity(): lambda x: x,
}


@pytest.mark.parametrize("layer", ACTIVATIONS, ids=repr)
def test_activations_agree_with_numpy(rng, layer):
    x = 3 * batch(rng, 2, 3, 4, 4)
    close(layer(mge.tensor(x)), ACTIVATIONS[layer](x))


def test_glu_and_gelu(rng):
    x = batch(rng, 2, 6)
    close(M.GLU()(mge.tensor(x)), x[:, :3] / (1 + np.exp(-x[:, 3:])))
    close(M.GELU()(mge.tensor([0.0, 1.0, -1.0])), [0, 0.841345, -0.158655], 1e-4)


def test_prelu_takes_other_axes():
    close(M.PReLU(3, init=0.5)(mge.tensor(-np.ones((2, 3)))), np.full((2, 3), -0.5))


LOSSES = [
    (M.L1Loss, F.l1_loss, {}),
    (M.MSELoss, F.square_loss, {"reduction": "sum"}),
    (M.SmoothL1Loss, F.smooth_l1_loss, {"beta": 0.5}),
    (M.HuberLoss, F.huber_loss, {"delta": 0.5}),
    (M.KLDivLoss, F.kl_div, {"reduction": "batchmean", "log_target": True}),
    (M.HingeLoss, F.hinge_loss, {"norm": "L2"}),
]


@pytest.mark.parametrize(
    ("layer", "function", "options"), LOSSES, ids=lambda x: getattr(x, "__name__", "")
)
def test_losses_hand_their_options_on(rng, layer, function, options):
    x, y = mge.tensor(batch(rng, 3, 4)), mge.tensor(batch(rng, 3, 4))
    close(layer(**options)(x, y), function(x, y, **options))


def test_losses_of_labels(rng):
    x, label = batch(rng, 3, 4), np.array([0, 3, 1])
    log = x - np.log(np.exp(x).sum(1, keepdims=True))
    expected = -log[np.arange(3), label].mean()
    close(M.CrossEntropyLoss()(mge.tensor(x), mge.tensor(label)), expected)
    close(M.NLLLoss()(mge.tensor(log), mge.tensor(label)), expected)
    close(
        M.CrossEntropyLoss(label_smooth=0.1, reduction="sum")(mge.tensor(x), mge.tensor(label)),
        F.cross_entropy(mge.tensor(x), mge.tensor(label), label_smooth=0.1, reduction="sum"),
    )


def test_losses_of_probabilities(rng):
    x, y = batch(rng, 3, 4), rng.integers(0, 2, (3, 4)).astype(np.float32)
    p = 1 / (1 + np.exp(-x))
    expected = -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean()
    close(M.BCEWithLogitsLoss()(mge.tensor(x), mge.tensor(y)), expected)
    close(M.BCELoss()(mge.tensor(p), mge.tensor(y)), expected)


def test_losses_of_pairs(rng):
    a, b, c = (mge.tensor(batch(rng, 3, 4)) for _ in range(3))
    close(
        M.TripletMarginLoss(margin=0.5, swap=True)(a, b, c),
        F.triplet_margin_loss(a, b, c, margin=0.5, swap=True),
    )
    label = mge.tensor([1, -1, 1])
    close(M.CosineEmbeddingLoss(0.1)(a, b, label), F.cosine_embedding_loss(a, b, label, margin=0.1))
    assert repr(M.CosineEmbeddingLoss(0.1)) == "CosineEmbeddingLoss(margin=0.1, reduction='mean')"


def test_losses_of_unaligned_labels(rng):
    x, label = mge.tensor(batch(rng, 4, 2, 3)), mge.tensor([[1, 2], [1, 1]])
    lengths, counts = mge.tensor([4, 3]), mge.tensor([2, 1])
    net = M.CTCLoss(with_logits=True, reduction="sum")
    close(
        net(x, lengths, label, counts),
        F.ctc_loss(x, lengths, label, counts, with_logits=True, reduction="sum"),
    )


@pytest.mark.parametrize("stride", [2, (2, 2), [2, 2], (np.int64(2), 2), (2.0, 2.0)])
def test_a_changed_attribute_of_a_layer_is_seen_at_the_next_call(stride):
    conv, pool = M.Conv2d(1, 1, 1), M.MaxPool2d(1)
    x = mge.tensor(np.zeros((1, 1, 4, 4), np.float32))
    assert conv(x).shape == pool(x).shape == (1, 1, 4, 4)
    conv.stride = pool.stride = stride
    assert conv(x).shape == pool(x).shape == (1, 1, 2, 2)


@pytest.mark.parametrize("stride", [(2,), (1, 2, 3), "ab", ()])
def test_a_stride_of_another_length_is_refused(stride):
    x = mge.tensor(np.zeros((1, 1, 4, 4), np.float32))
    for layer in (M.Conv2d(1, 1, 1), M.MaxPool2d(1)):
        layer.stride = stride
        with pytest.raises(ArgumentError, match="stride is"):
            layer(x)
