"""mge.module.module: the tree, its names, hooks, modes, state dicts, errors."""

import copy
import pickle

import numpy as np
import pytest

import mge
import mge.functional as F
import mge.module as M
from mge import graph
from mge.errors import ArgumentError, MgeError, ShapeError
from mge.tensor import ModuleBuffer


class Block(M.Module):
    def __init__(self, size=2):
        super().__init__()
        self.weight = mge.Parameter(np.ones(size))
        self.count = mge.tensor(np.zeros(size))

    def forward(self, x):
        return x * self.weight


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.stem = Block(2)
        self.blocks = [Block(2), {"a": Block(3), "b": (Block(4),)}]
        self.scale = mge.Parameter(np.full(1, 2.0))
        self.shared = self.stem

    def forward(self, x):
        return self.stem(x) * self.scale


class Head(M.Module):
    def __init__(self):
        super().__init__()
        self.head = M.Linear(3, 2)

    def forward(self, x):
        return self.head(x)


NAMES = [
    "stem.weight",
    "blocks.0.weight",
    "blocks.1.a.weight",
    "blocks.1.b.0.weight",
    "scale",
]


def names(pairs):
    return [name for name, _ in pairs]


def test_module_names_parameters_in_the_order_of_attributes():
    net = Net()
    assert names(net.named_parameters()) == NAMES
    assert names(net.named_parameters(prefix="net"))[0] == "net.stem.weight"
    assert names(net.named_parameters(recursive=False)) == ["scale"]
    assert names(net.named_buffers()) == [n.replace("weight", "count") for n in NAMES[:-1]]
    assert [p.shape for p in net.parameters()] == [(2,), (2,), (3,), (4,), (1,)]
    assert len(list(net.tensors())) == 9


def test_module_names_modules():
    net = Net()
    assert names(net.named_modules()) == ["", "stem", "blocks.0", "blocks.1.a", "blocks.1.b.0"]
    assert names(net.named_children()) == ["stem", "blocks.0", "blocks.1.a", "blocks.1.b.0"]
    assert next(net.modules()) is net


def test_module_yields_shared_objects_once_and_survives_cycles():
    net = Net()
    net.self = net
    net.loop = [net.blocks]
    net.loop.append(net.loop)
    net.again = net.scale
    assert names(net.named_parameters()) == NAMES


def test_module_turns_a_plain_tensor_into_a_buffer():
    net = Block()
    assert type(net.count) is ModuleBuffer
    kept = mge.tensor([1.0])
    net.other = kept
    assert net.other is kept and type(kept) is ModuleBuffer
    net.count += 1
    assert type(net.count) is ModuleBuffer
    np.testing.assert_array_equal(net.count.numpy(), [1, 1])


def test_module_keeps_the_handle_when_a_buffer_is_rebound():
    net = Block()
    handle = net.count
    net.count += 1
    assert net.count is handle


def test_module_works_without_calling_the_base_constructor():
    class Bare(M.Module):
        def __init__(self):
            self.layer = M.Linear(2, 2)

        def forward(self, x):
            return self.layer(x)

    assert Bare()(mge.tensor([[1.0, 2.0]])).shape == (1, 2)
    assert Bare().training


def test_module_train_and_eval_reach_all_modules():
    net = Net()
    assert net.eval() is net
    assert not any(m.training for m in net.modules())
    net.train(True, recursive=False)
    assert net.training and not net.stem.training
    net.train()
    assert all(m.training for m in net.modules())


def test_module_disable_quantize_reaches_all_modules():
    net = Net()
    net.disable_quantize()
    assert all(m.quantize_disabled for m in net.modules())


def test_module_apply_sees_each_module_once():
    seen = []
    net = Net()
    net.apply(seen.append)
    assert seen == list(net.modules())


def test_module_zero_grad_drops_gradients():
    net = Block()
    net.weight.grad = mge.tensor([1.0, 1.0])
    net.zero_grad()
    assert net.weight.grad is None


# Hooks and the guard epoch.


def test_module_hooks_replace_inputs_and_outputs_until_removed():
    net = Block()
    pre = net.register_forward_pre_hook(lambda module, inputs: inputs[0] + 1)
    post = net.register_forward_hook(lambda module, inputs, outputs: outputs * 10)
    x = mge.tensor([1.0, 2.0])
    np.testing.assert_array_equal(net(x).numpy(), [20, 30])
    pre.remove()
    pre.remove()
    np.testing.assert_array_equal(net(x).numpy(), [10, 20])
    post.remove()
    np.testing.assert_array_equal(net(x).numpy(), [1, 2])


def test_module_hooks_that_return_none_change_nothing():
    net, seen = Block(), []
    net.register_forward_pre_hook(lambda module, inputs: seen.append(inputs))
    net.register_forward_hook(lambda module, inputs, outputs: seen.append(outputs))
    y = net(mge.tensor([1.0, 2.0]))
    assert len(seen) == 2 and seen[1] is y


@pytest.mark.parametrize(
    ("change", "bumps"),
    [
        (lambda net: setattr(net, "width", 3), True),
        (lambda net: net.train(False), True),
        (lambda net: net.train(True), False),
        (lambda net: net.register_forward_hook(print), True),
        (lambda net: setattr(net, "count", mge.tensor([1.0, 2.0])), True),
        (lambda net: setattr(net, "weight", net.weight), False),
        (lambda net: delattr(net, "count"), True),
        (lambda net: net.weight.set_value([1.0, 2.0]), False),
    ],
)
def test_module_bumps_the_guard_epoch(change, bumps):
    net = Block()
    before = graph.EPOCH[0]
    change(net)
    assert (graph.EPOCH[0] > before) == bumps


def test_module_marks_a_boundary_at_the_outermost_call(monkeypatch):
    calls = []
    monkeypatch.setattr(graph, "boundary", lambda: calls.append(1))
    net = Net()
    net(mge.tensor([1.0, 2.0]))
    assert len(calls) == 1
    net.stem.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        net(mge.tensor([1.0, 2.0]))
    assert len(calls) == 1
    Block()(mge.tensor([1.0, 2.0]))
    assert len(calls) == 2


# State.


def test_module_state_dict_round_trips():
    net = Net()
    for i, t in enumerate(net.tensors()):
        t.set_value(np.full(t.shape, float(i)))
    state = net.state_dict()
    assert list(state) == names(net.named_tensors())
    assert all(isinstance(v, np.ndarray) for v in state.values())
    other = Net()
    assert other.load_state_dict(state) == ([], [])
    for x, y in zip(net.tensors(), other.tensors()):
        np.testing.assert_array_equal(x.numpy(), y.numpy())
    assert net.state_dict(keep_var=True)["scale"] is net.scale
    rst = {}
    assert net.state_dict(rst, prefix="net.") is rst and "net.scale" in rst


def test_module_state_dict_is_a_snapshot():
    net = Block()
    state = net.state_dict()
    net.weight.set_value([5.0, 6.0])
    np.testing.assert_array_equal(state["weight"], [1, 1])


def test_module_loads_tensors_and_casts_to_its_dtype():
    net = Block()
    net.load_state_dict({"weight": mge.tensor([3.0, 4.0], dtype="float64"), "count": np.arange(2)})
    assert net.weight.dtype == "float32"
    np.testing.assert_array_equal(net.weight.numpy(), [3, 4])
    np.testing.assert_array_equal(net.count.numpy(), [0, 1])


def test_module_loads_through_a_function():
    net = Block()
    missing, unexpected = net.load_state_dict(
        lambda name, tensor: np.full(tensor.shape, 7.0) if name == "weight" else None, strict=False
    )
    assert (missing, unexpected) == (["count"], [])
    np.testing.assert_array_equal(net.weight.numpy(), [7, 7])


def test_module_that_cannot_load_stays_as_it_is():
    net = Block()
    state = {"weight": np.array([3.0, 4.0]), "count": np.zeros(3), "more": np.zeros(1)}
    with pytest.raises(
        ArgumentError, match=r"(?s)nothing was changed.*count: shape \(3,\).*more: unexpected"
    ):
        net.load_state_dict(state)
    np.testing.assert_array_equal(net.weight.numpy(), [1, 1])
    with pytest.raises(ArgumentError, match="count: missing"):
        net.load_state_dict({"weight": np.zeros(2)})
    with pytest.raises(ArgumentError, match="weight: shape"):
        net.load_state_dict({"weight": np.zeros(3)}, strict=False)
    np.testing.assert_array_equal(net.weight.numpy(), [1, 1])


def test_module_refuses_floats_for_integers():
    net = Block()
    net.count = mge.tensor([1, 2])
    with pytest.raises(ArgumentError, match="count: dtype float64 was given; it has int32"):
        net.load_state_dict({"weight": np.zeros(2), "count": np.zeros(2)})


def test_module_takes_the_second_name_of_a_shared_tensor():
    net = Net()
    state = {**net.state_dict(), "shared.weight": np.zeros(2)}
    assert net.load_state_dict(state) == ([], [])


def test_module_replace_param_by_position_and_name():
    net = Block()
    new = mge.Parameter(np.zeros(2))
    assert net.replace_param({5: new}, start_pos=5) == 1
    assert net.weight is new
    again = mge.Parameter(np.zeros(2))
    net.replace_param({"weight": again})
    assert net.weight is again
    with pytest.raises(ArgumentError, match="shape and dtype must agree"):
        net.replace_param({0: mge.Parameter(np.zeros(3))})


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_module_copies_are_independent(clone):
    net = Net()
    net.eval()
    net.stem.weight.set_value([3.0, 4.0])
    other = clone(net)
    assert names(other.named_tensors()) == names(net.named_tensors())
    assert other.shared is other.stem and not other.training
    assert type(other.stem.weight) is mge.Parameter and type(other.stem.count) is ModuleBuffer
    np.testing.assert_array_equal(other.stem.weight.numpy(), [3, 4])
    net.stem.weight.set_value([0.0, 0.0])
    np.testing.assert_array_equal(other.stem.weight.numpy(), [3, 4])


def test_module_to_moves_all_tensors():
    net = Net()
    handle = net.scale
    assert net.to("ref:0") is net and net.scale is handle


# Text and errors.


def test_module_prints_as_a_tree():
    class Small(M.Module):
        def __init__(self):
            super().__init__()
            self.layers = [M.Linear(2, 3), M.ReLU()]

    assert repr(Small()) == "Small(\n  (layers.0): Linear(2, 3, bias=True)\n  (layers.1): ReLU()\n)"


def test_module_error_names_the_path_and_the_users_line():
    net = Head()
    with pytest.raises(ShapeError) as caught:
        net(mge.tensor([[1.0, 2.0]]))
    assert str(caught.value).splitlines()[1].startswith("  at: Head.head (Linear), ")
    assert "test_module.py:" in str(caught.value)


def test_module_error_in_the_outermost_module_names_it_once():
    with pytest.raises(MgeError) as caught:
        M.Linear(3, 2)(mge.tensor([[1.0, 2.0]]))
    assert str(caught.value).count("(Linear)") + str(caught.value).count("Linear,") == 1


def test_module_without_forward_says_so():
    with pytest.raises(NotImplementedError, match="Empty: the class has no forward"):
        type("Empty", (M.Module,), {})()(1)


# Sequential.


def test_sequential_behaves_like_a_list():
    net = M.Sequential(M.Linear(2, 3), M.ReLU())
    net.append(M.Linear(3, 1))
    net.insert(0, M.Identity())
    assert [type(m).__name__ for m in net] == ["Identity", "Linear", "ReLU", "Linear"]
    assert net[-1].out_features == 1 and len(net[1:3]) == 2
    assert net(mge.tensor([[1.0, 2.0]])).shape == (1, 1)
    del net[0]
    net[1] = M.Sigmoid()
    assert [type(m).__name__ for m in net.layer_values] == ["Linear", "Sigmoid", "Linear"]
    assert len(list(net.parameters())) == 4
    with pytest.raises(ArgumentError, match="there are 3 modules"):
        net[7]


def test_sequential_takes_names():
    net = M.Sequential({"first": M.Linear(2, 3), "last": M.Linear(3, 1)})
    assert net.first is net["first"] is net[0]
    assert names(net.named_parameters())[0] == "first.weight"
    with pytest.raises(ArgumentError, match="taken"):
        M.Sequential({"forward": M.Identity()})
    with pytest.raises(ArgumentError, match="must be a Module"):
        M.Sequential(print)


def test_an_error_in_a_users_forward_names_the_users_line():
    class Net(M.Module):
        def forward(self, x):
            return F.conv2d(x, x)

    with pytest.raises(mge.ShapeError, match=r"at: Net, .*test_module\.py:\d+"):
        Net()(mge.tensor(np.ones((1, 2, 3))))
