"""Ten small models, of the kinds that memory strategies meet, each with a training step."""

from collections import Counter

import numpy as np

import mge
import mge.functional as F
import mge.module as M
from mge.autodiff import GradManager
from mge.flow import while_loop
from mge.jit import trace
from mge.optimizer import SGD


def _block(i, o):
    return M.Sequential(
        M.Conv2d(i, o, 3, padding=1, bias=False), M.BatchNorm2d(o), M.ReLU(),
        M.Conv2d(o, o, 3, padding=1, bias=False), M.BatchNorm2d(o), M.ReLU(),
    )  # fmt: skip


class Chain(M.Module):
    """Layers one after the other, with SiLU written out and dropout."""

    def __init__(self):
        super().__init__()
        self.layers = [M.Linear(24, 24) for _ in range(6)]
        self.drop = M.Dropout(0.25)

    def forward(self, x):
        for layer in self.layers:
            h = layer(x)
            x = self.drop(F.sigmoid(h) * h)
        return x.mean(axis=1)


class ResNet(M.Module):
    """Convolutions with batch norm, ReLU and skip connections."""

    def __init__(self):
        super().__init__()
        self.first = M.Conv2d(3, 8, 3, padding=1)
        self.blocks = [_block(8, 8) for _ in range(4)]

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = F.relu(block(x) + x)
        return x.mean(axis=(1, 2, 3))


class UNet(M.Module):
    """Two levels down and up, with concatenated skip connections."""

    def __init__(self):
        super().__init__()
        self.down = [_block(3, 6), _block(6, 12), _block(12, 24)]
        self.up = [M.ConvTranspose2d(12, 6, 2, stride=2), M.ConvTranspose2d(24, 12, 2, stride=2)]
        self.merge = [_block(12, 6), _block(24, 12)]
        self.pool = M.MaxPool2d(2)

    def forward(self, x):
        a = self.down[0](x)
        b = self.down[1](self.pool(a))
        c = self.down[2](self.pool(b))
        b = self.merge[1](F.concat([self.up[1](c), b], axis=1))
        a = self.merge[0](F.concat([self.up[0](b), a], axis=1))
        return a.mean(axis=(1, 2, 3))


class Dense(M.Module):
    """Each layer reads the results of all before it."""

    def __init__(self):
        super().__init__()
        self.layers = [M.Conv2d(4 + 4 * i, 4, 3, padding=1) for i in range(5)]
        self.first = M.Conv2d(3, 4, 1)

    def forward(self, x):
        seen = [self.first(x)]
        for layer in self.layers:
            seen.append(F.relu(layer(F.concat(seen, axis=1))))
        return F.concat(seen, axis=1).mean(axis=(1, 2, 3))


class Recurrent(M.Module):
    """An LSTM, unrolled."""

    def __init__(self):
        super().__init__()
        self.cell = M.LSTMCell(8, 12)

    def forward(self, x):
        h = c = F.zeros((x.shape[0], 12))
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
        return h.mean(axis=1)


class Transformer(M.Module):
    """Attention, layer norm and GELU."""

    def __init__(self):
        super().__init__()
        self.norms = [M.LayerNorm(16) for _ in range(6)]
        self.qkv = [M.Linear(16, 48) for _ in range(3)]
        self.wide = [M.Linear(16, 64) for _ in range(3)]
        self.narrow = [M.Linear(64, 16) for _ in range(3)]

    def forward(self, x):
        n, t, d = x.shape
        for i in range(3):
            parts = self.qkv[i](self.norms[2 * i](x)).reshape(n, t, 3, 2, d // 2)
            q, k, v = (F.transpose(parts[:, :, j], (0, 2, 1, 3)) for j in range(3))
            y = F.scaled_dot_product_attention(q, k, v)
            x = x + F.transpose(y, (0, 2, 1, 3)).reshape(n, t, d)
            x = x + self.narrow[i](F.gelu(self.wide[i](self.norms[2 * i + 1](x))))
        return x.mean(axis=(1, 2))


class Detector(M.Module):
    """A backbone with two heads on two scales."""

    def __init__(self):
        super().__init__()
        self.stem, self.deep = _block(3, 8), _block(8, 8)
        self.pool = M.MaxPool2d(2)
        self.boxes = [M.Conv2d(8, 4, 3, padding=1) for _ in range(2)]
        self.scores = [M.Conv2d(8, 2, 3, padding=1) for _ in range(2)]

    def forward(self, x):
        a = self.stem(x)
        b = self.deep(self.pool(a))
        total = 0
        for scale, boxes, scores in zip((a, b), self.boxes, self.scores):
            boxed, scored = F.square(boxes(scale)), F.sigmoid(scores(scale))
            total = total + boxed.mean(axis=(1, 2, 3)) * scored.mean(axis=(1, 2, 3))
        return total


class Shared(M.Module):
    """One layer that is used over and over."""

    def __init__(self):
        super().__init__()
        self.layer = M.Linear(24, 24)

    def forward(self, x):
        for _ in range(8):
            x = F.tanh(self.layer(x)) + x * 0.5
        return x.mean(axis=1)


class Loop(M.Module):
    """A while loop between layers."""

    def __init__(self):
        super().__init__()
        self.layers = [M.Linear(16, 16) for _ in range(4)]

    def forward(self, x):
        for layer in self.layers[:2]:
            x = F.relu(layer(x)) + x
        _, x = while_loop(
            lambda i, x: i < 3,
            lambda i, x: (i + 1, F.tanh(x) * 1.1),
            [mge.tensor(0), x],
            max_trips=4,
        )
        for layer in self.layers[2:]:
            x = F.relu(layer(x)) + x
        return x.mean(axis=1)


class Gan(M.Module):
    """A generator and a discriminator; each has an optimizer of its own."""

    def __init__(self):
        super().__init__()
        self.generator = M.Sequential(
            M.Linear(8, 32), M.ReLU(), M.Linear(32, 32), M.ReLU(), M.Linear(32, 8)
        )
        self.judge = M.Sequential(
            M.Linear(8, 32), M.ReLU(), M.Linear(32, 32), M.ReLU(), M.Linear(32, 1)
        )


MODELS = {
    "chain": (Chain, (48, 24)),
    "resnet": (ResNet, (4, 3, 12, 12)),
    "unet": (UNet, (2, 3, 16, 16)),
    "dense": (Dense, (4, 3, 10, 10)),
    "recurrent": (Recurrent, (16, 6, 8)),
    "transformer": (Transformer, (2, 12, 16)),
    "detector": (Detector, (2, 3, 16, 16)),
    "gan": (Gan, (48, 8)),
    "shared": (Shared, (64, 24)),
    "loop": (Loop, (64, 16)),
}


def _step(net):
    """Return a training step of a model: data to loss."""
    if isinstance(net, Gan):
        pairs = [
            (m, GradManager().attach(m.parameters()), SGD(m.parameters(), lr=0.05))
            for m in (net.judge, net.generator)
        ]
        (judge, watch_judge, move_judge), (generator, watch_generator, move_generator) = pairs

        def gan(x, y):
            with watch_judge:
                fake = generator(x).detach()
                loss = F.square(judge(x) - 1).mean() + F.square(judge(fake)).mean()
                watch_judge.backward(loss)
            move_judge.step().clear_grad()
            with watch_generator:
                other = F.square(judge(generator(x)) - 1).mean()
                watch_generator.backward(other)
            move_generator.step().clear_grad()
            return loss + other

        return gan
    manager = GradManager().attach(net.parameters())
    optimizer = SGD(net.parameters(), lr=0.05, momentum=0.9)

    def step(x, y):
        with manager:
            loss = F.square(net(x) - y).mean()
            manager.backward(loss)
        optimizer.step().clear_grad()
        return loss

    return step


def prepare(name, strategy):
    """Return a model and its traced step."""
    mge.random.seed(7)
    net = MODELS[name][0]()
    for tensor in (*net.parameters(), *net.buffers()):
        tensor.numpy()
    return net, trace(_step(net), memory=strategy)


def train(name, strategy, count=3):
    """Train for a few steps; return the losses, all parameters and buffers, and the plan."""
    net, step = prepare(name, strategy)
    shape = MODELS[name][1]
    rng, losses = np.random.default_rng(3), []
    for _ in range(count):
        x = mge.tensor(rng.normal(size=shape).astype("float32"))
        y = mge.tensor(rng.normal(size=shape[:1]).astype("float32"))
        losses.append(step(x, y).item())
    state = [np.array(p.numpy()) for p in (*net.parameters(), *net.buffers())]
    (compiled,) = step.last.plans.values()
    return losses, state, compiled.plan


def gradients(name, strategy):
    """Return loss and gradients of one training step as a trace gives them, as bytes, and the plan."""
    mge.random.seed(7)
    net = MODELS[name][0]()
    for tensor in (*net.parameters(), *net.buffers()):
        tensor.numpy()
    manager = GradManager().attach(net.parameters())
    score = (lambda x: net.judge(net.generator(x)).mean(axis=1)) if isinstance(net, Gan) else net

    @trace(memory=strategy)
    def step(x, y):
        with manager:
            loss = F.square(score(x) - y).mean()
            manager.backward(loss)
        return [loss, *(p.grad for p in net.parameters())]

    shape, rng = MODELS[name][1], np.random.default_rng(3)
    x, y = (mge.tensor(rng.normal(size=s).astype("float32")) for s in (shape, shape[:1]))
    made = [t.numpy().tobytes() for t in step(x, y)]
    (compiled,) = step.last.plans.values()
    return made, [b.numpy().tobytes() for b in net.buffers()], compiled.plan


def ops(plan):
    """Return how often a plan runs each op, by the op's name without its library's."""
    return Counter(s.slot.node.sig.op.name.rpartition("::")[2] for s in plan.steps)


def same(a, b):
    """Whether two runs gave the same bits."""
    return a[0] == b[0] and all(np.array_equal(x, y) for x, y in zip(a[1], b[1]))
