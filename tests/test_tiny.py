"""The whole stack in under five seconds: data, module, gradients, optimizer, trace, file, and the same numbers."""

import numpy as np
import pytest

import mge
import mge.functional as F
import mge.module as M
from mge.autodiff import GradManager
from mge.jit import trace
from mge.optimizer import SGD


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.conv = M.Conv2d(1, 4, 3, padding=1)
        self.norm = M.BatchNorm2d(4)
        self.head = M.Linear(4, 2)

    def forward(self, x):
        return self.head(F.relu(self.norm(self.conv(x))).mean(axis=(2, 3)))


def data(count=64):
    rng = np.random.default_rng(0)
    images = rng.normal(size=(count, 1, 8, 8)).astype(np.float32)
    labels = rng.integers(0, 2, count).astype(np.int32)
    images += 3 * labels[:, None, None, None] * (np.indices((8, 8)).sum(0) % 2)
    return mge.tensor(images), mge.tensor(labels)


def train(decorate, steps=12):
    mge.random.seed(1)
    net = Net()
    manager = GradManager().attach(net.parameters())
    optimizer = SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step(x, y):
        with manager:
            loss = F.cross_entropy(net(x), y)
            manager.backward(loss)
        optimizer.step().clear_grad()
        return loss

    step = decorate(step)
    x, y = data()
    return net, [step(x, y).item() for _ in range(steps)]


def test_training_learns_and_agrees_in_all_modes():
    _, losses = train(lambda step: step)
    assert losses[-1] < 0.5 * losses[0]
    assert train(trace)[1] == losses
    with mge.eager():
        assert train(lambda step: step)[1] == losses


def test_model_is_the_same_after_a_file(tmp_path):
    net, _ = train(trace, steps=3)
    net.eval()
    x, _ = data()
    predict = trace(lambda x: F.softmax(net(x)))
    wanted = predict(x).numpy()
    predict.dump(tmp_path / "net.mge")
    loaded = mge.load_model(tmp_path / "net.mge")
    assert np.array_equal(loaded(x).numpy(), wanted)

    mge.save(net.state_dict(), tmp_path / "net.ckpt")
    other = Net()
    other.load_state_dict(mge.load(tmp_path / "net.ckpt"))
    other.eval()
    assert np.array_equal(F.softmax(other(x)).numpy(), wanted)


def test_wrong_shape_raises_at_the_call():
    x, y = mge.tensor(np.ones((8, 3))), mge.tensor(np.ones((4, 5)))
    with pytest.raises(mge.ShapeError, match=r"\(8, 3\).*\(4, 5\)(.|\n)*test_tiny\.py"):
        F.matmul(x, y)
