"""What a loaded model computes, its state, its gradients, and wrong calls."""

import numpy as np
import pytest

import mge
import mge.functional as F
import mge.module as M
from mge.autodiff import GradManager
from mge.debug import debug
from mge.errors import ArgumentError, DTypeError, ShapeError, TraceError
from mge.jit import trace
from mge.optimizer import SGD
from mge.tensor import tensor
from tests.core.unit.model_files import Net, bits, dumped

# Effects.


def test_a_training_step_continues_from_the_file(rng):
    net = Net()
    gm, opt = GradManager().attach(net.parameters()), SGD(net.parameters(), lr=0.1, momentum=0.9)

    @trace
    def step(x, label):
        with gm:
            loss = F.cross_entropy(net(x), label)
            gm.backward(loss)
        opt.step().clear_grad()
        return loss

    x, label = tensor(rng.normal(size=(4, 3, 4, 4))), tensor([0, 1, 2, 3])
    step(x, label)
    model = dumped(step)
    before = bits(net.bn.running_mean)
    losses = [bits(model(x, label)) for _ in range(4)]
    assert bits(net.bn.running_mean) == before  # it has state of its own
    assert [bits(step(x, label)) for _ in range(4)] == losses
    assert len(set(losses)) == 4
    for name, value in net.named_tensors():
        assert bits(model.weights[name]) == bits(value)


def test_random_numbers_continue_from_the_file():
    @trace
    def function(x):
        return F.dropout(x, 0.5, training=True)

    x = tensor(np.ones(100))
    function(x)
    model = dumped(function)
    wanted = [bits(function(x)) for _ in range(3)]
    assert [bits(model(x)) for _ in range(3)] == wanted


def test_a_state_that_is_only_written():
    seen = tensor([0.0, 0.0])

    @trace
    def function(x):
        seen.set_value(x)
        return x + 1

    function(tensor([1.0, 2.0]))
    model = dumped(function)
    model(tensor([5.0, 6.0]))
    assert model.weights["seen"].tolist() == [5.0, 6.0]
    assert seen.tolist() == [1.0, 2.0]


def test_an_argument_that_is_rebound():
    @trace
    def function(scale, x):
        x += scale
        return x * 2

    function(3, tensor([1.0, 2.0]))
    model = dumped(function, dynamic_batch=["x"])
    for given, wanted in (([1.0, 2.0], [4.0, 5.0]), ([1.0], [4.0])):
        x = tensor(given)
        assert model(3, x).tolist() == [2 * v for v in wanted]
        assert x.tolist() == wanted
    assert model(3, np.float32([1.0])).tolist() == [8.0]


def test_gradients_that_stay_are_refused():
    net = M.Linear(2, 2)
    gm = GradManager().attach(net.parameters())

    @trace
    def function(x):
        with gm:
            gm.backward(F.sum(net(x)))

    function(tensor([[1.0, 2.0]]))
    with pytest.raises(TraceError, match=r"reads or leaves the \.grad"):
        dumped(function)


# Running.


def test_a_loaded_model_is_differentiable(images):
    net = Net().eval()

    @trace
    def predict(x):
        return net(x)

    x = images(2)
    predict(x)
    model = dumped(predict)
    grads = []
    for function, weight in ((net, net.fc.weight), (model, model.weights["fc.weight"])):
        given = tensor(x.numpy())
        gm = GradManager().attach([given, weight])
        with gm:
            gm.backward(F.sum(function(given) ** 2))
        grads.append([given.grad.numpy(), weight.grad.numpy()])
    for one, other in zip(*grads):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_loaded_model_inside_a_trace_and_under_eager(doubled):
    model = dumped(doubled)
    x = tensor([[1.0, 2.0]])
    outer = trace(lambda v: model(v) + 1)
    for _ in range(3):
        assert outer(x).tolist() == [[3.0, 5.0]]
    with mge.eager():
        assert model(x).tolist() == [[2.0, 4.0]]
    again = dumped(outer)
    assert again(x).tolist() == [[3.0, 5.0]]


def test_parameters_of_a_model_feed_the_prologue(images):
    net = Net().eval()

    @trace
    def predict(x):
        return F.matmul(x, net.fc.weight * 2, transpose_b=True)

    x = tensor(np.ones((1, 16)))
    predict(x)
    model = dumped(predict)
    model(x).numpy()
    before = debug.counts["prologue_hits"]
    model(x).numpy()
    assert debug.counts["prologue_hits"] == before + 1
    model.weights["fc.weight"].set_value(np.zeros((5, 16)))
    assert not model(x).numpy().any()


def test_wrong_calls_say_what_the_model_takes(doubled):
    model = dumped(doubled)
    x = tensor([[1.0, 2.0]])
    with pytest.raises(
        ArgumentError, match=r"argument 'x' is missing\n(.*\n)?  try: model\(x: f32\[1, 2\]\)"
    ):
        model()
    with pytest.raises(ArgumentError, match="2 positional arguments are too many"):
        model(x, x)
    with pytest.raises(ArgumentError, match="argument 'y' is unknown"):
        model(x, y=x)
    with pytest.raises(ArgumentError, match="argument 'x' is given twice"):
        model(x, x=x)
    with pytest.raises(DTypeError, match="input x has dtype int32; the file takes float32"):
        model(tensor([[1, 2]]))
    with pytest.raises(ShapeError, match=r"has shape \(1, 3\); the file takes \(1, 2\)") as error:
        model(tensor([[1.0, 2.0, 3.0]]))
    assert error.value.hint is None
    with pytest.raises(ShapeError, match="dynamic_batch=True"):
        model(tensor([[1.0, 2.0], [3.0, 4.0]]))


def test_plain_arguments_are_fixed():
    @trace
    def function(x, mode, options):
        return F.sum(x, axis=options["axis"]) if mode == "sum" else x

    function(tensor([[1.0]]), "sum", {"axis": None})
    model = dumped(function)
    assert model(tensor([[2.0]])).item() == 2.0
    assert model(tensor([[2.0]]), "sum", {"axis": None}).item() == 2.0
    with pytest.raises(
        ArgumentError, match=r"mode is 'mean' .*it was 'sum' when the model was dumped"
    ):
        model(tensor([[2.0]]), "mean")
    with pytest.raises(ArgumentError, match=r"options must be a dict with keys \['axis'\]"):
        model(tensor([[2.0]]), "sum", {})
