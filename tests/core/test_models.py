"""Acceptance: small models train to the same losses in each way of running, and to PyTorch's within rounding."""

import functools

import numpy as np
import pytest

import mge
import mge.functional as F
import mge.module as M
import mge.optimizer as optim
from mge.autodiff import GradManager
from mge.jit import trace

STEPS = 4


def set_values(net, seed):
    """Give all parameters values from NumPy, so that another framework can have the same."""
    rng = np.random.default_rng(seed)
    for _, p in net.named_parameters():
        fan = max(1, int(np.prod(p.shape[1:])))
        p.set_value(rng.uniform(-1, 1, p.shape).astype("float32") / np.sqrt(fan))
    return net


class LeNet(M.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = M.Conv2d(1, 4, 5)
        self.conv2 = M.Conv2d(4, 6, 5)
        self.pool = M.MaxPool2d(2, 2)
        self.fc1 = M.Linear(6 * 4 * 4, 20)
        self.fc2 = M.Linear(20, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        return self.fc2(F.relu(self.fc1(F.flatten(x, 1))))


class Block(M.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.conv1 = M.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = M.BatchNorm2d(outer)
        self.conv2 = M.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = M.BatchNorm2d(outer)
        self.down = None
        if stride != 1 or inner != outer:
            self.down = M.Sequential(
                M.Conv2d(inner, outer, 1, stride, bias=False), M.BatchNorm2d(outer)
            )

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.down is None else self.down(x)))


class ResNet18(M.Module):
    """As for CIFAR, with an eighth of the channels."""

    def __init__(self, width=8):
        super().__init__()
        self.stem = M.Sequential(
            M.Conv2d(3, width, 3, 1, 1, bias=False), M.BatchNorm2d(width), M.ReLU()
        )
        blocks, inner = [], width
        for stage in range(4):
            outer = width * 2**stage
            blocks += [Block(inner, outer, 1 if stage == 0 else 2), Block(outer, outer, 1)]
            inner = outer
        self.blocks = M.Sequential(*blocks)
        self.head = M.Linear(inner, 10)

    def forward(self, x):
        x = self.blocks(self.stem(x))
        return self.head(F.mean(x, axis=(2, 3)))


class Recurrent(M.Module):
    def __init__(self):
        super().__init__()
        self.embedding = M.Embedding(11, 6)
        self.lstm = M.LSTM(6, 7, num_layers=2)
        self.head = M.Linear(7, 11)

    def forward(self, x):
        y, _ = self.lstm(self.embedding(x))
        return self.head(y)


class Transformer(M.Module):
    def __init__(self, width=8, heads=2):
        super().__init__()
        self.embedding = M.Embedding(11, width)
        self.position = mge.Parameter(np.zeros((5, width), np.float32))
        self.query, self.key, self.value = (M.Linear(width, width) for _ in range(3))
        self.out = M.Linear(width, width)
        self.norm1, self.norm2 = M.LayerNorm(width), M.LayerNorm(width)
        self.up, self.down = M.Linear(width, 16), M.Linear(16, width)
        self.head = M.Linear(width, 11)
        self.heads, self.width = heads, width

    def split(self, x):
        n, t, _ = x.shape
        return x.reshape(n, t, self.heads, self.width // self.heads).transpose(0, 2, 1, 3)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.position
        h = self.norm1(x)
        q, k, v = (self.split(f(h)) for f in (self.query, self.key, self.value))
        scores = q @ k.transpose(0, 1, 3, 2) * (self.width // self.heads) ** -0.5
        mixed = (F.softmax(scores, axis=-1) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
        x = x + self.out(mixed)
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return self.head(x)


def images(i, channels, size, count=2):
    rng = np.random.default_rng(100 + i)
    return rng.normal(size=(count, channels, size, size)).astype("float32"), rng.integers(
        0, 10, count
    ).astype("int32")


def tokens(i, rows, columns):
    rng = np.random.default_rng(200 + i)
    return rng.integers(0, 11, (rows, columns)).astype("int32"), rng.integers(
        0, 11, (rows, columns)
    ).astype("int32")


MODELS = {
    "LeNet": (LeNet, lambda i: images(i, 1, 28), STEPS),
    "ResNet-18": (ResNet18, lambda i: images(i, 3, 32), 2),
    "LSTM": (Recurrent, lambda i: tokens(i, 4, 3), STEPS),
    "transformer": (Transformer, lambda i: tokens(i, 3, 5), STEPS),
}


def cross_entropy(logits, labels):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def losses_of(name, traced=False, steps=None):
    """Train a model; return losses and parameters."""
    make, data, count = MODELS[name]
    net = set_values(make(), 7)
    optimizer = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    manager = GradManager().attach(net.parameters())

    def step(x, y):
        optimizer.clear_grad()
        with manager:
            loss = cross_entropy(net(x), y)
            manager.backward(loss)
        optimizer.step()
        return loss

    chosen = trace(step) if traced else step
    made = []
    for i in range(steps or count):
        x, y = data(i)
        made.append(chosen(mge.tensor(x), mge.tensor(y)))
    return [m.item() for m in made], {n: p.numpy() for n, p in net.named_parameters()}


@functools.cache
def eager_losses(name):
    with mge.eager():
        return losses_of(name)


@pytest.mark.parametrize("traced", [False, True], ids=["untraced", "traced"])
@pytest.mark.parametrize("name", MODELS)
def test_losses_are_the_same_bit_for_bit(name, traced):
    wanted, parameters = eager_losses(name)
    losses, made = losses_of(name, traced)
    assert losses == wanted
    assert all(np.isfinite(losses))
    for key, value in parameters.items():
        assert (made[key] == value).all(), key


@pytest.mark.parametrize("name", ["LeNet", "LSTM", "transformer"])
def test_a_loop_is_one_plan(name, counts):
    losses_of(name, steps=6)
    assert counts.plans_compiled <= 2


# A GAN: two models, two managers, one plan.


def generator():
    return M.Sequential(M.Linear(3, 8), M.ReLU(), M.Linear(8, 2))


def discriminator():
    return M.Sequential(M.Linear(2, 8), M.LeakyReLU(0.1), M.Linear(8, 1))


def gan(traced=False, steps=STEPS):
    g, d = set_values(generator(), 1), set_values(discriminator(), 2)
    g_optimizer = optim.Adam(g.parameters(), lr=0.01)
    d_optimizer = optim.Adam(d.parameters(), lr=0.01)
    by_g, by_d = GradManager().attach(g.parameters()), GradManager().attach(d.parameters())

    def step(real, noise):
        d_optimizer.clear_grad()
        with by_d:
            d_loss = F.mean(F.softplus(-d(real))) + F.mean(F.softplus(d(g(noise).detach())))
            by_d.backward(d_loss)
        d_optimizer.step()
        g_optimizer.clear_grad()
        with by_g:
            g_loss = F.mean(F.softplus(-d(g(noise))))
            by_g.backward(g_loss)
        g_optimizer.step()
        return d_loss, g_loss

    chosen = trace(step) if traced else step
    made = []
    for i in range(steps):
        rng = np.random.default_rng(300 + i)
        real, noise = (
            rng.normal(size=(6, 2)).astype("float32"),
            rng.normal(size=(6, 3)).astype("float32"),
        )
        made += chosen(mge.tensor(real), mge.tensor(noise))
    return [m.item() for m in made], [p.numpy() for net in (g, d) for p in net.parameters()]


@pytest.mark.parametrize("traced", [False, True], ids=["untraced", "traced"])
def test_a_gan_step_is_the_same_bit_for_bit(traced):
    with mge.eager():
        wanted, parameters = gan()
    losses, made = gan(traced)
    assert losses == wanted
    assert all((a == b).all() for a, b in zip(made, parameters))


def test_a_gan_without_reads_needs_few_plans(counts):
    gan(steps=8)
    assert counts.plans_compiled <= 3


# PyTorch.


@pytest.fixture(scope="module")
def torch():
    found = pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")
    found.set_num_threads(1)
    return found


def assert_close(losses, wanted):
    for i, (one, other) in enumerate(zip(losses, wanted, strict=True)):
        assert abs(one - other) <= 1e-4 * abs(other), f"step {i}: {losses} and {wanted}"


def torch_lenet(torch):
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 4, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(96, 20), nn.ReLU(), nn.Linear(20, 10),
    )  # fmt: skip


def torch_resnet(torch, width=8):
    nn = torch.nn

    class TorchBlock(nn.Module):
        def __init__(self, inner, outer, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(outer)
            self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(outer)
            self.down = None
            if stride != 1 or inner != outer:
                self.down = nn.Sequential(
                    nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
                )

        def forward(self, x):
            y = torch.relu(self.bn1(self.conv1(x)))
            y = self.bn2(self.conv2(y))
            return torch.relu(y + (x if self.down is None else self.down(x)))

    class TorchResNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Sequential(
                nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
            )
            blocks, inner = [], width
            for stage in range(4):
                outer = width * 2**stage
                blocks += [
                    TorchBlock(inner, outer, 1 if stage == 0 else 2),
                    TorchBlock(outer, outer, 1),
                ]
                inner = outer
            self.blocks = nn.Sequential(*blocks)
            self.head = nn.Linear(inner, 10)

        def forward(self, x):
            return self.head(self.blocks(self.stem(x)).mean((2, 3)))

    return TorchResNet()


def torch_transformer(torch, width=8, heads=2):
    nn = torch.nn

    class TorchTransformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(11, width)
            self.position = nn.Parameter(torch.zeros(5, width))
            self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
            self.out = nn.Linear(width, width)
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.up, self.down = nn.Linear(width, 16), nn.Linear(16, width)
            self.head = nn.Linear(width, 11)

        def split(self, x):
            n, t, _ = x.shape
            return x.reshape(n, t, heads, width // heads).transpose(1, 2)

        def forward(self, ids):
            x = self.embedding(ids) + self.position
            h = self.norm1(x)
            q, k, v = (self.split(f(h)) for f in (self.query, self.key, self.value))
            scores = q @ k.transpose(2, 3) * (width // heads) ** -0.5
            mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape)
            x = x + self.out(mixed)
            x = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
            return self.head(x)

    return TorchTransformer()


def torch_losses(torch, net, name, copy):
    """Train PyTorch's model from the same values on the same data."""
    make, data, count = MODELS[name]
    copy(net, set_values(make(), 7))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    made = []
    for i in range(count):
        x, y = (torch.from_numpy(a) for a in data(i))
        optimizer.zero_grad()
        logits = net(x if x.dtype == torch.float32 else x.long())
        loss = torch.nn.functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), y.long().reshape(-1)
        )
        loss.backward()
        optimizer.step()
        made.append(loss.item())
    return made


def copy_in_order(torch, net, ours):
    theirs, mine = list(net.parameters()), list(ours.parameters())
    assert len(theirs) == len(mine)
    with torch.no_grad():
        for t, p in zip(theirs, mine):
            t.copy_(torch.from_numpy(p.numpy().copy()).reshape(t.shape))


def copy_by_name(torch, net, ours):
    mine = dict(ours.named_parameters())
    theirs = dict(net.named_parameters())
    assert mine.keys() == theirs.keys()
    with torch.no_grad():
        for name, t in theirs.items():
            t.copy_(torch.from_numpy(mine[name].numpy().copy()).reshape(t.shape))


def test_lenet_beside_pytorch(torch):
    wanted = torch_losses(
        torch, torch_lenet(torch), "LeNet", functools.partial(copy_in_order, torch)
    )
    assert_close(eager_losses("LeNet")[0], wanted)


def test_resnet_beside_pytorch(torch):
    wanted = torch_losses(
        torch, torch_resnet(torch), "ResNet-18", functools.partial(copy_by_name, torch)
    )
    assert_close(eager_losses("ResNet-18")[0], wanted)


def test_transformer_beside_pytorch(torch):
    net = torch_transformer(torch)
    wanted = torch_losses(torch, net, "transformer", functools.partial(copy_by_name, torch))
    assert_close(eager_losses("transformer")[0], wanted)


def test_lstm_beside_pytorch(torch):
    nn = torch.nn

    class TorchRecurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(11, 6)
            self.lstm = nn.LSTM(6, 7, num_layers=2)
            self.head = nn.Linear(7, 11)

        def forward(self, x):
            y, _ = self.lstm(self.embedding(x))
            return self.head(y)

    def copy(net, ours):
        mine, theirs = dict(ours.named_parameters()), dict(net.named_parameters())
        with torch.no_grad():
            for name in ("embedding.weight", "head.weight", "head.bias"):
                theirs[name].copy_(torch.from_numpy(mine[name].numpy().copy()))
            rest = [p for n, p in mine.items() if n.startswith("lstm")]
            lstm = [p for n, p in theirs.items() if n.startswith("lstm")]
            assert [tuple(p.shape) for p in lstm] == [tuple(p.shape) for p in rest], (
                list(mine),
                list(theirs),
            )
            for t, p in zip(lstm, rest):
                t.copy_(torch.from_numpy(p.numpy().copy()))

    wanted = torch_losses(torch, TorchRecurrent(), "LSTM", copy)
    assert_close(eager_losses("LSTM")[0], wanted)


def test_gan_beside_pytorch(torch):
    nn = torch.nn
    g = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    d = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.1), nn.Linear(8, 1))
    copy_in_order(torch, g, set_values(generator(), 1))
    copy_in_order(torch, d, set_values(discriminator(), 2))
    g_optimizer, d_optimizer = (
        torch.optim.Adam(g.parameters(), 0.01),
        torch.optim.Adam(d.parameters(), 0.01),
    )
    softplus = nn.functional.softplus
    wanted = []
    for i in range(STEPS):
        rng = np.random.default_rng(300 + i)
        real = torch.from_numpy(rng.normal(size=(6, 2)).astype("float32"))
        noise = torch.from_numpy(rng.normal(size=(6, 3)).astype("float32"))
        d_optimizer.zero_grad()
        d_loss = softplus(-d(real)).mean() + softplus(d(g(noise).detach())).mean()
        d_loss.backward()
        d_optimizer.step()
        g_optimizer.zero_grad()
        g_loss = softplus(-d(g(noise))).mean()
        g_loss.backward()
        g_optimizer.step()
        wanted += [d_loss.item(), g_loss.item()]
    assert_close(gan()[0], wanted)
