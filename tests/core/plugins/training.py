"""Two small nets that train on a device, for tests that compare devices."""

import numpy as np

import mge
import mge.functional as F
import mge.module as M
from mge.autodiff import GradManager
from mge.jit import trace
from mge.optimizer import SGD, Adam


class LeNet(M.Module):
    """The shape of LeNet-5 on 16x16 images."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = M.Conv2d(1, 4, 5, padding=2), M.Conv2d(4, 6, 5)
        self.fc1, self.fc2 = M.Linear(24, 20), M.Linear(20, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(F.flatten(x, 1))))


def mlp():
    return M.Sequential(M.Linear(8, 16), M.ReLU(), M.Linear(16, 4))


class Training:
    """A net on a device, its optimizer, and the same data in each run."""

    def __init__(self, device, make=mlp, traced=False, adam=False):
        rng = np.random.default_rng(3)
        self.device = device
        with default_device(device):
            self.net = make()
            for p in self.net.parameters():
                fan = max(1, int(np.prod(p.shape[1:])))
                p.set_value((rng.uniform(-1, 1, p.shape) / np.sqrt(fan)).astype("float32"))
            parameters = self.net.parameters()
            self.manager = GradManager().attach(self.net.parameters())
            self.optimizer = (
                Adam(parameters, lr=0.01) if adam else SGD(parameters, lr=0.05, momentum=0.9)
            )
        self.batch = (16, 8) if make is mlp else (8, 1, 16, 16)
        self.classes = 4 if make is mlp else 10
        self.rng = np.random.default_rng(5)
        self.step = trace(self._step) if traced else self._step

    def _step(self, x, y):
        with self.manager:
            loss = F.cross_entropy(self.net(x), y)
            self.manager.backward(loss)
        self.optimizer.step().clear_grad()
        return loss

    def data(self):
        x = self.rng.normal(size=self.batch).astype("float32")
        y = self.rng.integers(0, self.classes, self.batch[0]).astype("int32")
        return mge.tensor(x, device=self.device), mge.tensor(y, device=self.device)

    def losses(self, steps):
        with default_device(self.device):
            return [self.step(*self.data()).item() for _ in range(steps)]

    def values(self):
        return [p.numpy().copy() for p in self.net.parameters()]


class default_device:
    """A default device for a block."""

    def __init__(self, device):
        self.device = device

    def __enter__(self):
        mge.set_default_device(self.device)

    def __exit__(self, *error):
        mge.set_default_device("ref")
