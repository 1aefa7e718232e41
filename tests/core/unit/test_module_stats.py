"""Statistics of modules: parameters, multiply-adds, activations."""

import numpy as np
import pytest

import mge
import mge.functional as F
import mge.module as M
from mge.errors import ArgumentError
from mge.execute import NODE_WATCHERS
from mge.utils.module_stats import module_stats


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.conv = M.Conv2d(2, 8, 3, padding=1, groups=2)
        self.norm = M.BatchNorm2d(8)
        self.head = M.Linear(8 * 4 * 4, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        x = self.head(F.flatten(x, 1))
        return F.matmul(x, mge.tensor(np.ones((10, 3), np.float32)))


def test_counts_of_a_small_network(capsys):
    net = Net()
    total, details = module_stats(net, input_shapes=(2, 2, 8, 8))
    by_name = {row.name: row for row in details.flops}
    assert by_name["conv"].flops == 2 * 8 * 64 * 9
    assert by_name["head"].flops == 2 * 10 * 128
    assert by_name["(model)"].flops == 2 * 3 * 10  # the functional matmul
    assert by_name["norm"].flops == 0
    assert total.flops == sum(row.flops for row in details.flops)
    assert sum(row.ratio for row in details.flops) == pytest.approx(1)
    assert by_name["conv"].input_shapes == ((2, 2, 8, 8),) and by_name["conv"].output_shapes == (
        (2, 8, 8, 8),
    )
    assert (
        total.param_dims == sum(p.size for p in net.parameters())
        and total.param_size == 4 * total.param_dims
    )
    activations = {row.name: row.size for row in details.activations}
    assert activations == {"conv": 1024, "norm": 1024, "head": 20}
    assert total.act_dims == 2068 and total.act_size == 4 * 2068
    text = capsys.readouterr().out
    assert "conv.weight" in text and "total: " in text and "█" in text


def test_the_module_stays_as_it_was():
    net = Net()
    net.norm.eval()
    mean = np.array(net.norm.running_mean.numpy())
    module_stats(net, inputs=np.ones((2, 2, 8, 8), np.float32), logging_to_stdout=False)
    assert net.training and not net.norm.training and not NODE_WATCHERS
    assert not net._forward_hooks and not net.conv._forward_pre_hooks
    np.testing.assert_array_equal(net.norm.running_mean.numpy(), mean)


def test_a_module_that_fails_stays_as_it_was():
    net = Net()
    with pytest.raises(mge.ShapeError):
        module_stats(net, input_shapes=(2, 5, 8, 8), logging_to_stdout=False)
    assert net.training and not NODE_WATCHERS and not net._forward_hooks


def test_a_module_called_twice_counts_twice():
    class Twice(M.Module):
        def __init__(self):
            super().__init__()
            self.layer = M.Linear(4, 4)

        def forward(self, x):
            return self.layer(self.layer(x))

    total, details = module_stats(Twice(), input_shapes=[(1, 4)], logging_to_stdout=False)
    assert total.flops == 32 and total.act_dims == 8 and len(details.flops) == 1


@pytest.mark.parametrize("inputs", ["tuple", "dict", "tensor"])
def test_inputs_come_in_each_form(inputs):
    x = mge.tensor(np.ones((1, 4), np.float32))
    given = {"tuple": (x,), "dict": {"inp": x}, "tensor": x}[inputs]
    layer = M.Linear(4, 2)
    if inputs == "dict":
        layer.forward = lambda inp: F.linear(inp, layer.weight, layer.bias)
    total, _ = module_stats(layer, inputs=given, logging_to_stdout=False)
    assert total.flops == 8


def test_parameters_alone_need_no_run():
    total, details = module_stats(
        Net(), cal_flops=False, cal_activations=False, logging_to_stdout=False
    )
    assert total.param_dims > 0 and total.flops == 0 and details.flops == details.activations == []
    with pytest.raises(ArgumentError, match="neither inputs nor input_shapes"):
        module_stats(Net(), logging_to_stdout=False)
    with pytest.raises(ArgumentError, match="both inputs and input_shapes"):
        module_stats(Net(), inputs=1, input_shapes=(1,), logging_to_stdout=False)


def test_attention_and_transposed_convolutions_count():
    layer = M.ConvTranspose2d(3, 5, 2, stride=2)
    total, _ = module_stats(layer, input_shapes=(1, 3, 4, 4), logging_to_stdout=False)
    assert total.flops == 3 * 16 * 5 * 4
