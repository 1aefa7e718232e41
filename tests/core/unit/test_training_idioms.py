"""Training loops that never read a value: one plan, whatever the learning rate, the scale or the statistics are."""

import numpy as np
import pytest

import mge
import mge.functional as F
import mge.module as M
import mge.optimizer as optim
from mge.amp import GradScaler, autocast
from mge.autodiff import GradManager
from mge.graph import LOCAL
from mge.jit import trace
from mge.optimizer import clip_grad_norm, clip_grad_value


def network(seed=0, norm=False):
    mge.random.seed(seed)
    layers = [M.Linear(6, 8), M.BatchNorm1d(8) if norm else M.Identity(), M.ReLU(), M.Linear(8, 3)]
    return M.Sequential(*layers)


def data(i=0, count=4):
    rng = np.random.default_rng(i)
    x = rng.normal(size=(count, 6)).astype("float32")
    return mge.tensor(x), mge.tensor(rng.integers(0, 3, count).astype("int32"))


def loss_of(net, x, y):
    return F.cross_entropy(net(x), y)


def train(
    optimizer_of,
    steps=12,
    clip=None,
    amp=False,
    lr=None,
    norm=False,
    traced=False,
    accumulate=1,
    wrap=None,
):
    """Run a loop that reads nothing until its end; returns the losses and the parameters."""
    net = network(norm=norm)
    optimizer = optimizer_of(net.parameters())
    manager = GradManager().attach(net.parameters())
    scaler = GradScaler(init_scale=64.0, growth_interval=5)
    low = autocast(low_prec_dtype="bfloat16") if amp else None
    norms = []

    def micro(x, y):
        with manager:
            if low is not None:
                with low:
                    loss = loss_of(net, x, y)
                scaler.backward(manager, loss)
            else:
                loss = loss_of(net, x, y)
                manager.backward(loss)
        return loss

    def step(batches):
        optimizer.clear_grad()
        losses = [micro(x, y) for x, y in batches]
        if clip == "norm":
            norms.append(clip_grad_norm(net.parameters(), 0.5))
        elif clip == "value":
            clip_grad_value(net.parameters(), -0.01, 0.01)
        optimizer.step()
        return losses[-1] if len(losses) == 1 else sum(losses[1:], losses[0])

    chosen = trace(step) if traced else step
    losses = []
    for i in range(steps):
        if lr is not None:
            optimizer.param_groups[0]["lr"] = lr(i)
        losses.append(chosen([data(i * accumulate + k) for k in range(accumulate)]))
        if wrap is not None:
            wrap(i, net, optimizer)
    return [x.item() for x in losses], [p.numpy() for p in net.parameters()]


SGD = {
    "plain": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "nesterov and decay": lambda p: optim.SGD(
        p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3
    ),
}
ADAPTIVE = {
    "Adam": lambda p: optim.Adam(p, lr=0.01),
    "AdamW": lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.01),
    "Adadelta": lambda p: optim.Adadelta(p, lr=1.0),
    "LAMB": lambda p: optim.LAMB(p, lr=0.01),
}
OPTIMIZERS = SGD | ADAPTIVE


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_at_most_two_plans_with_a_changing_learning_rate(name, counts):
    losses, _ = train(
        OPTIMIZERS[name], lr=lambda i: 0.1 / (1 + i) if name in SGD else 0.02 / (1 + i)
    )
    assert len(set(losses)) > 6
    assert counts.plans_compiled <= 2, "a plan for each learning rate"
    assert counts.first_sight_runs <= 3


@pytest.mark.parametrize("name", ["momentum", "Adam"])
@pytest.mark.parametrize("clip", ["norm", "value"])
def test_at_most_two_plans_with_clipping(name, clip, counts):
    train(OPTIMIZERS[name], clip=clip, lr=lambda i: 0.05 * 0.9**i)
    assert counts.plans_compiled <= 2


@pytest.mark.parametrize("name", ["momentum", "Adam"])
@pytest.mark.parametrize("clip", [None, "norm"])
def test_at_most_two_plans_with_mixed_precision(name, clip, counts):
    losses, _ = train(OPTIMIZERS[name], amp=True, clip=clip, lr=lambda i: 0.05 * 0.9**i)
    assert all(np.isfinite(losses))
    assert counts.plans_compiled <= 2


@pytest.mark.parametrize("amp", [False, True])
def test_at_most_four_plans_with_accumulation(amp, counts):
    train(OPTIMIZERS["momentum"], accumulate=4, amp=amp, lr=lambda i: 0.05 * 0.9**i)
    assert counts.plans_compiled <= 4


def test_at_most_two_plans_with_batch_norm(counts):
    losses, _ = train(OPTIMIZERS["momentum"], norm=True, lr=lambda i: 0.05 * 0.9**i)
    assert all(np.isfinite(losses))
    assert counts.plans_compiled <= 2


def test_a_scheduler_changes_no_plan(counts):
    box = []

    def tick(i, net, optimizer):
        if not box:
            box.append(optim.MultiStepLR(optimizer, milestones=[2, 5, 7]))
        box[0].step()

    train(OPTIMIZERS["momentum"], wrap=tick)
    assert counts.plans_compiled <= 2


def test_nothing_is_computed_while_the_loop_is_written_down(counts):
    """step() only asks for a run: it happens at the next call, so nothing has run after the first step."""
    net = network()
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    manager = GradManager().attach(net.parameters())
    mge.sync()
    counts.reset()
    with manager:
        manager.backward(loss_of(net, *data()))
    optimizer.step()
    assert counts.steps_run == 0 and LOCAL.requested is not None
    optimizer.clear_grad()
    assert counts.steps_run == 0
    (mge.tensor([1.0]) + 1).numpy()
    assert counts.steps_run > 0


@pytest.mark.parametrize("order", ["before", "after", "never"])
def test_where_gradients_are_cleared_changes_no_values_and_few_plans(order, counts):
    net = network()
    optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    manager = GradManager().attach(net.parameters())
    for i in range(8):
        if order == "before":
            optimizer.clear_grad()
        with manager:
            manager.backward(loss_of(net, *data(i)))
        if order == "never":
            for p in net.parameters():
                p.grad = p.grad * 1.0 if i else p.grad
        optimizer.step()
        if order == "after":
            optimizer.clear_grad()
    mge.sync()
    assert counts.plans_compiled <= 2


def test_cleared_gradients_are_not_results(counts):
    """A clear_grad() right after step() drops the gradients before the run: they are no outputs of the plan."""
    from mge.device import as_device

    net = network()
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    manager = GradManager().attach(net.parameters())
    pool = as_device("ref").pool

    def step():
        with manager:
            manager.backward(loss_of(net, *data()))
        optimizer.step()
        optimizer.clear_grad()
        mge.sync()

    for _ in range(4):
        step()
    before = pool.live_blocks
    step()
    assert pool.live_blocks == before
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("name", ["momentum", "nesterov and decay", "Adam", "AdamW"])
@pytest.mark.parametrize("kind", ["plain", "norm", "amp", "accumulate"])
def test_losses_and_parameters_are_the_same_in_each_way_of_running(name, kind):
    options = {
        "plain": {},
        "norm": {"clip": "norm", "norm": True},
        "amp": {"amp": True, "clip": "norm"},
        "accumulate": {"accumulate": 2},
    }[kind]
    options |= {"steps": 6, "lr": lambda i: 0.05 * 0.9**i}
    with mge.eager():
        wanted = train(OPTIMIZERS[name], **options)
    for traced in (False, True):
        losses, parameters = train(OPTIMIZERS[name], traced=traced, **options)
        assert losses == wanted[0], f"traced: {traced}"
        for given, right in zip(parameters, wanted[1]):
            assert (given == right).all(), f"traced: {traced}"


def test_a_traced_loop_is_traced_once_and_compiled_twice_at_most(counts):
    train(OPTIMIZERS["momentum"], traced=True, lr=lambda i: 0.05 * 0.9**i)
    assert counts.traces <= 2 and counts.plans_compiled <= 2


def test_clip_grad_norm_returns_a_tensor(counts):
    net = network()
    manager = GradManager().attach(net.parameters())
    with manager:
        manager.backward(loss_of(net, *data()))
    mge.eval(*net.parameters())
    counts.reset()
    norm = clip_grad_norm(net.parameters(), 0.1)
    assert isinstance(norm, mge.Tensor) and norm.shape == () and counts.steps_run == 0
    total = np.sqrt(sum((p.grad.numpy() ** 2).sum() for p in net.parameters()))
    assert total == pytest.approx(min(0.1, norm.item()), rel=1e-4)


def test_a_bad_gradient_is_skipped_without_a_read(counts):
    """found-inf is a tensor: the step after it writes the old values."""
    w = mge.Parameter(np.ones(3, np.float32))
    optimizer = optim.SGD([w], lr=0.1, momentum=0.9)
    manager = GradManager().attach(w)
    scaler = GradScaler(init_scale=8.0, growth_interval=3)
    history, scales = [], []
    factors = [mge.tensor(f) for f in (1.0, np.inf, 1.0, np.nan, 1.0, 1.0, 1.0, 1.0)]
    for factor in factors:
        optimizer.clear_grad()
        with manager:
            scaler.backward(manager, (w * factor).sum())
        optimizer.step()
        history.append(w * 1.0)
        scales.append(scaler.scale_factor * 1.0)
    values = [h.numpy()[0] for h in history]
    assert values[1] == values[0] and values[3] == values[2] and len(set(values)) == 6
    assert [s.item() for s in scales] == [8, 4, 4, 2, 2, 2, 4, 4]
    assert counts.plans_compiled <= 2


def test_statistics_of_batch_norm_are_updated_like_parameters(counts):
    rng = np.random.default_rng(0)
    net = M.BatchNorm1d(3, momentum=0.9)
    xs = [rng.normal(size=(8, 3)).astype("float32") for _ in range(6)]
    for x in xs:
        net(mge.tensor(x))
        mge.sync()
    mean, var = np.zeros(3), np.ones(3)
    for x in xs:
        mean = 0.9 * mean + 0.1 * x.mean(0)
        var = 0.9 * var + 0.1 * x.var(0, ddof=1)
    assert np.allclose(net.running_mean.numpy().ravel(), mean, atol=1e-5)
    assert np.allclose(net.running_var.numpy().ravel(), var, atol=1e-5)
    assert counts.plans_compiled <= 1


def test_the_state_of_an_optimizer_is_there_from_the_start():
    w = mge.Parameter(np.ones(3, np.float32))
    for name, make in OPTIMIZERS.items():
        optimizer = make([w])
        state = optimizer.state_dict()["state"]
        assert name == "plain" or state[0], f"{name}: no state before the first step"


def test_an_error_in_step_changes_no_parameter():
    """All updates are built before the first rebind."""
    good, bad = mge.Parameter(np.ones(3, np.float32)), mge.Parameter(np.ones(2, np.float32))
    optimizer = optim.SGD([{"params": [good]}, {"params": [bad]}], lr=0.1)
    good.grad = mge.tensor(np.ones(3, np.float32))
    bad.grad = mge.tensor(np.ones(5, np.float32))
    with pytest.raises(Exception, match=r"\(5,\)|5"):
        optimizer.step()
    mge.sync()
    assert good.numpy().tolist() == [1, 1, 1] and bad.numpy().tolist() == [1, 1]


def test_one_multi_tensor_update_for_each_group():
    net = network()
    optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for p in net.parameters():
        p.grad = mge.tensor(np.ones(p.shape, np.float32))
    mge.sync()
    optimizer.step()
    names = [n.sig.op.name for n in (LOCAL.requested or LOCAL.recording).nodes if n.inputs]
    updates = [n for n in names if n not in ("get",)]
    assert len(updates) == 1, updates


def test_a_number_argument_for_the_learning_rate(counts):
    """A traced step that is given its learning rate."""
    w = mge.Parameter(np.ones(3, np.float32))
    manager = GradManager().attach(w)

    @trace
    def step(x, lr):
        with manager:
            loss = (w * x).sum()
            manager.backward(loss)
        w._assign(w - w.grad * lr)
        w.grad = None
        return loss

    x = mge.tensor(np.ones(3, np.float32))
    for i in range(6):
        step(x, 0.1 / (1 + i))
    assert counts.plans_compiled <= 2 and counts.traces == 1
    assert w.numpy()[0] == pytest.approx(1 - sum(0.1 / (1 + i) for i in range(6)), rel=1e-5)
