"""The passes of device x86: equal values, the number of transposes, what is fused and what must not be."""

import difflib
from pathlib import Path

import numpy as np
import pytest

import mge
import mge.functional as F
import mge.module as M
from mge import device as device_module
from mge.autodiff import GradManager
from mge.debug import debug
from mge.ops.pool import avg_pool, max_pool
from mge.passes import optimise
from mge.passes.prologue import split_prologue
from mge.plan import Plan

from . import models
from .standin import (  # noqa: F401
    check,
    counted,
    device,
    image,
    inference,
    ready,
    recorded,
    stand_in,
    training,
)  # fmt: skip

GOLDEN = Path(__file__).with_name("golden")


SMALL = {
    "resnet": (lambda: models.ResNet((1, 1), width=16, classes=5), (2, 3, 32, 32)),
    "deep_resnet": (lambda: models.ResNet((1, 1), True, width=4, classes=5), (2, 3, 32, 32)),
    "small_resnet": (lambda: models.SmallResNet(1, 16, classes=5), (9, 3, 16, 16)),
    "mobilenet": (
        lambda: models.MobileNetV2(5, ((1, 8, 1, 1), (6, 12, 2, 2), (6, 16, 2, 1)), last=20),
        (2, 3, 32, 32),
    ),
    "vgg": (lambda: models.VGG(((8, 1), (16, 2)), 16, 20, 5), (2, 3, 16, 16)),
    "vit": (lambda: models.ViT(32, 8, 24, 2, 2, 5), (2, 3, 32, 32)),
    "lenet": (lambda: models.LeNet(5), (2, 1, 28, 28)),
    "mlp": (lambda: models.mlp(30, 20, 5), (20, 30)),
}


@pytest.mark.parametrize("name", SMALL)
def test_inference_gives_the_same(name):
    make, shape = SMALL[name]
    made = check(*inference(make(), *shape))
    left = {"conv", "linear", "batch_norm_infer", "relu", "relu6"} & {*counted(made)}
    assert not left, f"not rewritten: {left}"


@pytest.mark.parametrize("name", SMALL)
def test_a_training_step_gives_the_same(name):
    make, shape = SMALL[name]
    made = check(*training(make(), *shape))
    assert not {"conv", "conv_backward_data", "conv_backward_weight"} & {*counted(made)}


def test_segmentation_gives_the_same_forward_and_backward():
    shape = (2, 3, 16, 16)
    check(*inference(models.UNet(width=4, depth=2, classes=3), *shape))
    step = training(models.UNet(width=4, depth=2, classes=3), *shape, labels=(2, 16, 16), classes=3)
    check(*step)


# The real networks, at their real depth and image size, with few channels.
REAL = {
    "ResNet-18": (lambda: models.resnet18(width=8, classes=10), 224, (1, 1)),
    "ResNet-50": (lambda: models.resnet50(width=4, classes=10), 224, (1, 1)),
    "MobileNetV2": (lambda: models.MobileNetV2(classes=10, last=64), 224, (1, 1)),
    # The features of VGG-16 are flattened channel by channel, and their gradient comes back so.
    "VGG-16": (
        lambda: models.VGG(tuple((c // 8, n) for c, n in models.VGG.BLOCKS), 224, 8, 10), 224, (2, 3),
    ),
    "U-Net": (lambda: models.UNet(width=4), 64, (2, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_a_network_is_transposed_only_at_its_ends(name):
    make, size, (forward, step) = REAL[name]
    shape = (1, 3, size, size)
    made = counted(optimise(inference(make(), *shape)[0]))
    assert made["transpose"] == forward
    assert not made["conv"] and not made["batch_norm_infer"] and not made["relu"]
    labels = (1, size, size) if name == "U-Net" else None
    made = counted(optimise(training(make(), *shape, labels=labels, classes=2)[0]))
    assert made["transpose"] == step
    assert not made["conv"] and not made["conv_backward_data"]


def test_weights_are_packed_in_the_prologue():
    graph, _ = inference(SMALL["resnet"][0](), 2, 3, 32, 32)
    first, _, rest = split_prologue(optimise(graph), ())
    packed = [n for n in first.nodes if "pack" in n.sig.op.name]
    assert len(packed) == 7
    steps = Plan(rest).steps
    assert [s.slot.node.sig.op.name for s in steps] == (
        [
            "transpose",
            "x86::conv",
            "x86::max_pool",
            *["x86::conv"] * 5,
            "x86::avg_pool",
            "x86::linear",
        ]
    )


# Golden plans: a residual block, as reviewed text. Remove a file, and the test writes it anew, and fails once.


@pytest.mark.parametrize("name", ["inference", "training"])
def test_the_plan_of_a_residual_block_is_the_reviewed_one(name):
    make = inference if name == "inference" else training
    block = M.Sequential(
        models.Residual(16, 16, 1, False), M.AdaptiveAvgPool2d(1), M.Flatten(), M.Linear(16, 5)
    )
    graph, _ = make(block, 2, 16, 8, 8)
    changing = [i for i, n in enumerate(graph.inputs) if n.sig.attrs] if name == "training" else []
    first, _, rest = split_prologue(optimise(graph), changing)
    text = "".join(
        f"{part}:\n{g}\n{Plan(g)}\n" for part, g in (("prologue", first), ("run", rest)) if g
    )
    path = GOLDEN / f"residual_{name}.txt"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        pytest.fail(f"{path} was written: review it")
    diff = "\n".join(
        difflib.unified_diff(path.read_text().splitlines(), text.splitlines(), lineterm="")
    )
    assert not diff, f"if this is meant, remove {path} and run again\n{diff}"


def test_sequences_are_images_of_height_1():
    net = M.Sequential(M.Conv1d(3, 16, 3, padding=1), M.ReLU(), M.MaxPool1d(2), M.Conv1d(16, 4, 3))
    made = counted(check(*inference(net, 2, 3, 12)))
    assert made["x86::conv"] == 2 and made["transpose"] == 2 and not made["relu"]


def test_volumes_stay_as_they_are():
    made = counted(check(*inference(M.Sequential(M.Conv3d(2, 3, 2), M.ReLU()), 1, 2, 4, 4, 4)))
    assert made["conv"] == 1


def test_what_else_is_read_is_neither_folded_nor_fused():
    conv, norm = M.Conv2d(3, 16, 3), M.BatchNorm2d(16)
    net, x = ready(M.Sequential(conv, norm)), image(1, 3, 8, 8)
    mge.sync()

    def both():
        y = conv(x)
        return [y, F.relu(norm(y)), F.relu(F.sum(y, axis=1))]

    assert len(list(net.parameters())) == 4
    made = split_prologue(check(*recorded(both)), ())[2]
    made = counted(made)
    assert (made["mul"], made["add"], made["relu"]) == (1, 1, 2)


def test_a_product_that_is_read_twice_is_computed_once():
    conv, line = ready(M.Conv1d(3, 16, 3)), ready(M.Linear(6, 16))
    x, row = image(2, 3, 8), image(2, 6)
    mge.sync()

    def twice():
        y, z = conv(x), line(row)
        return [F.sum(y), F.relu(y), z, z + row[:, :1], F.relu(F.reshape(z, (2, 4, 4)))]

    made = counted(check(*recorded(twice)))
    assert (made["x86::conv"], made["x86::linear"]) == (1, 1)


def test_a_matrix_of_parameters_is_packed_as_it_is_given():
    net, x = ready(M.Sequential(M.Linear(5, 5), M.Linear(5, 7))), image(20, 5)
    square, wide = (part.weight for part in net)
    mge.sync()

    def products():
        turned = F.matmul(x, wide, transpose_b=True)
        return [F.relu(turned), F.matmul(x, square)]

    made = counted(check(*recorded(products)))
    assert made["x86::linear"] == 2 and not made["matmul"] and not made["relu"]


@pytest.mark.parametrize("pool", [max_pool, avg_pool])
@pytest.mark.parametrize(("shape", "padding"), [((2, 4, 5, 6), (0, 1, 1, 0)), ((2, 4, 7), (0, 1))])
def test_pools_keep_a_padding_of_their_own_on_each_side(pool, shape, padding):
    x, two = image(*shape), (2,) * (len(shape) - 2)
    mge.sync()

    def pooled():
        y = pool(x, kernel=two, stride=two, padding=padding)
        return y if isinstance(y, tuple) else [y]

    assert counted(check(*recorded(pooled)))[f"x86::{pool.name}"] == 1


def test_a_trained_batch_norm_is_not_folded_by_the_statistics_of_a_batch():
    made = counted(check(*training(M.Sequential(SMALL["small_resnet"][0]()), 9, 3, 16, 16)))
    assert made["x86::batch_norm_apply"] == 9


def test_a_batch_norm_in_training_takes_in_what_follows():
    graph, arrays = training(models.ResNet((1, 2), width=16, classes=5), 2, 3, 32, 32)
    made = check(graph, arrays)
    found = counted(made)
    assert not {"relu", "where", "less", "batch_norm_train", "batch_norm_backward"} & {*found}
    # The statistics are an op of their own, so that a plan may compute a result again without them.
    assert found["x86::batch_norm_moments"] == found["x86::batch_norm_apply"] == 8
    norms = [n for n in made.nodes if n.sig.op.name == "x86::batch_norm_apply"]
    backs = [n for n in made.nodes if n.sig.op.name == "x86::batch_norm_backward"]
    assert [(len(n.inputs) == 6, dict(n.sig.attrs)["activation"]) for n in norms] == (
        # the stem; a block; a block, in which the shortcut's norm comes last; a block
        [(False, "relu"), (False, "relu"), (True, "relu"), (False, "relu"), (False, ""), (True, "relu"),
         (False, "relu"), (True, "relu")]
    )  # fmt: skip
    # The gradient of each sum of two is that of the residual, too; and where both come from norms, of both.
    assert [dict(n.sig.attrs)["residual"] for n in backs].count(True) == 3


def test_an_activation_whose_gradient_reads_its_input_is_not_taken_in():
    net = M.Sequential(
        models.ConvNorm(3, 16, act=M.SiLU),
        models.ConvNorm(16, 16),
        models.ConvNorm(16, 5, 8, act=None),
    )
    net = M.Sequential(net, M.AdaptiveAvgPool2d(1), M.Flatten())
    made = check(*training(net, 2, 3, 8, 8))
    activations = [
        dict(n.sig.attrs)["activation"]
        for n in made.nodes
        if n.sig.op.name == "x86::batch_norm_apply"
    ]
    assert activations == ["", "relu", ""]


def test_a_linear_layer_takes_a_batch_norm_in():
    net = M.Sequential(
        M.Linear(6, 5), M.BatchNorm1d(5), M.ReLU(), M.Linear(5, 3, bias=False), M.BatchNorm1d(3)
    )
    made = check(*inference(net, 4, 6))
    assert counted(split_prologue(made, ())[2]) == {"x86::linear": 2}


def test_a_batch_norm_before_a_convolution_becomes_a_loop():
    parts = [M.Conv2d(3, 16, 3), M.MaxPool2d(2), M.BatchNorm2d(16), M.ReLU(), M.Conv2d(16, 4, 3)]
    made = split_prologue(check(*inference(M.Sequential(*parts), 2, 3, 12, 12)), ())[2]
    found = counted(made)
    assert (found["mul"], found["add"], found["batch_norm_infer"]) == (1, 1, 0)


def test_a_pixel_shuffle_is_the_only_move_between_convolutions():
    first, last = M.Conv2d(3, 16, 3, padding=1), M.Conv2d(4, 2, 3)
    net, x = ready(M.Sequential(first, last)), image(2, 3, 6, 5)
    mge.sync()
    assert len(list(net.parameters())) == 4
    made = check(*recorded(lambda: [F.mean(last(F.pixel_shuffle(first(x), 2)), axis=(2, 3))]))
    assert counted(made)["transpose"] == 2  # of the images that come in, and of the shuffle


def test_transformer_layers_end_in_their_stores():
    made = split_prologue(optimise(inference(models.Encoder(24, 2), 2, 10, 24)[0]), ())[2]
    stores = [dict(n.sig.attrs) for n in made.nodes if n.sig.op.name == "x86::linear"]
    assert [(s["bias"], s["residual"], s["activation"]) for s in stores] == (
        [(True, False, ""), (True, True, ""), (True, False, "gelu"), (True, True, "")]
    )


def test_few_rows_do_not_pay_for_packing_a_trained_matrix():
    few = counted(optimise(training(models.mlp(30, 20, 5), 4, 30)[0]))
    many = counted(optimise(training(models.mlp(30, 20, 5), 40, 30)[0]))
    assert few["x86::linear"] == 0 and few["linear"] == 2
    assert many["x86::linear"] == 3 and many["matmul"] == 2  # the gradients of weights stay


def test_reproducible_algorithms_are_exact():
    with debug(deterministic=True):
        for make, shape in SMALL.values():
            made = optimise(training(make(), *shape)[0])
            algorithms = {dict(n.sig.attrs).get("algorithm") for n in made.nodes}
            assert algorithms <= {None, "direct", "depthwise"}
            check(
                *inference(make(), *shape), tolerance=1e-6
            )  # BLAS rounds by the layout of a matrix


def test_a_refused_algorithm_is_replaced_by_the_direct_one(monkeypatch):
    """Kernels that are missing are no reason to leave the layout, and refused ones leave the graph as it was."""
    for refused, op in (("x86::conv", "conv"), ("x86::conv_backward_data", "conv_backward_data")):
        monkeypatch.setattr(device_module, "_default", [device([refused])])
        made = counted(check(*training(SMALL["resnet"][0](), *SMALL["resnet"][1])))
        assert made[op] and not made[refused]


def test_a_residual_may_be_a_view_that_is_made_after_the_norm():
    norm = M.BatchNorm2d(5)
    manager = GradManager().attach(norm.parameters())
    rng = np.random.default_rng(0)
    x, z = (mge.tensor(rng.normal(size=s).astype("float32")) for s in ((3, 5, 1, 1), (3, 5)))

    def step():
        with manager:
            early = F.exp(z)
            loss = F.square(F.relu(norm(x) + early.reshape(3, 5, 1, 1))).sum()
            manager.backward(loss)
        return [loss, *(p.grad for p in norm.parameters())]

    assert counted(check(*recorded(step)))["x86::batch_norm_apply"] == 1


def test_a_trained_weight_is_packed_on_the_way_where_tiles_are_few():
    def net():
        convs = M.Conv2d(3, 128, 3, padding=1), M.Conv2d(128, 128, 3, padding=1)
        return M.Sequential(*convs, M.AdaptiveAvgPool2d(1), M.Flatten(), M.Linear(128, 5))

    def axes(graph):
        place = {"x86::conv": 1, "x86::conv_backward_data": 0}
        found = [(n.sig.op.name, n.inputs) for n in graph.nodes]
        return [inputs[place[name]].type.ndim for name, inputs in found if name in place]

    # direct, Winograd, and its gradient
    assert axes(check(*training(net(), 2, 3, 8, 8))) == [1, 4, 4]
    assert axes(check(*training(net(), 2, 3, 24, 24))) == [1, 1, 1]  # 72 tiles of 4x4
    assert axes(check(*inference(net(), 2, 3, 8, 8))) == [1, 1]


def test_all_passes_together_give_the_same(monkeypatch):
    monkeypatch.setattr(device_module, "_default", [device()])
    for make, shape in SMALL.values():
        check(*inference(make(), *shape))
        check(*training(make(), *shape))


@pytest.mark.parametrize(
    ("images", "weight", "stride", "groups", "trained", "wanted"),
    [
        ((1, 56, 56, 64), (64, 64, 3, 3), 1, 1, False, "winograd4"),
        ((1, 28, 28, 128), (128, 128, 3, 3), 1, 1, False, "winograd4"),
        ((1, 14, 14, 256), (256, 256, 3, 3), 1, 1, False, "winograd4"),
        ((1, 7, 7, 512), (512, 512, 3, 3), 1, 1, False, "winograd2"),
        ((2, 7, 7, 512), (512, 512, 3, 3), 1, 1, False, "winograd2"),
        ((4, 14, 14, 256), (256, 256, 3, 3), 1, 1, False, "winograd4"),
        ((1, 14, 14, 512), (512, 512, 3, 3), 1, 1, False, "winograd4"),
        ((1, 10, 10, 64), (64, 64, 3, 3), 1, 1, False, "winograd2"),
        ((8, 14, 14, 256), (256, 256, 3, 3), 1, 1, False, "winograd4"),
        ((8, 7, 7, 512), (512, 512, 3, 3), 1, 1, False, "winograd4"),
        ((16, 14, 14, 256), (256, 256, 3, 3), 1, 1, True, "winograd4"),
        ((16, 7, 7, 512), (512, 512, 3, 3), 1, 1, True, "winograd4"),
        ((8, 7, 7, 512), (512, 512, 3, 3), 1, 1, True, "winograd4"),
        ((4, 7, 7, 512), (512, 512, 3, 3), 1, 1, True, "winograd2"),
        ((1, 7, 7, 512), (512, 512, 3, 3), 1, 1, True, "direct"),
        ((8, 28, 28, 128), (128, 64, 3, 3), 2, 1, False, "direct"),
        ((8, 28, 28, 128), (128, 64, 1, 1), 1, 1, False, "direct"),
        ((8, 28, 28, 128), (128, 3, 3, 3), 1, 1, False, "direct"),
        ((8, 28, 28, 96), (96, 1, 3, 3), 2, 96, False, "depthwise"),
        ((8, 28, 28, 192), (192, 1, 3, 3), 1, 96, False, "direct"),
    ],
)
def test_the_algorithm_follows_the_measured_table(images, weight, stride, groups, trained, wanted):
    from mge_x86.passes.algorithm import heuristic

    window = {"stride": (stride, stride), "dilation": (1, 1), "groups": groups}
    assert heuristic(images, weight, window, trained) == wanted
