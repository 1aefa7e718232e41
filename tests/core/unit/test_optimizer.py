"""mge.optimizer: each rule against NumPy, groups, state, and a step that never reads."""

import copy
import pickle

import numpy as np
import pytest

import mge
import mge.module as M
import mge.optimizer as optim
from mge import amp, graph, mode
from mge.autodiff import GradManager
from mge.errors import ArgumentError, DTypeError, ShapeError


def sgd(p, g, s, t, lr, weight_decay=0.0, momentum=0.0, nesterov=False):
    g = g + weight_decay * p
    if momentum:
        s["v"] = momentum * s.get("v", 0) + g
        g = g + momentum * s["v"] if nesterov else s["v"]
    return p - lr * g


def adam(p, g, s, t, lr, weight_decay=0.0, betas=(0.9, 0.999), eps=1e-8, decoupled=False):
    if decoupled:
        p = p - lr * weight_decay * p
    else:
        g = g + weight_decay * p
    s["m"] = betas[0] * s.get("m", 0) + (1 - betas[0]) * g
    s["v"] = betas[1] * s.get("v", 0) + (1 - betas[1]) * g * g
    m, v = s["m"] / (1 - betas[0] ** t), s["v"] / (1 - betas[1] ** t)
    return p - lr * m / (np.sqrt(v) + eps)


def adamw(p, g, s, t, lr, weight_decay=0.01, **options):
    return adam(p, g, s, t, lr, weight_decay, decoupled=True, **options)


def adagrad(p, g, s, t, lr=0.01, lr_decay=0.0, eps=1e-10, weight_decay=0.0):
    g = g + weight_decay * p
    s["s"] = s.get("s", 0) + g * g
    return p - lr / (1 + (t - 1) * lr_decay) * g / np.sqrt(s["s"] + eps)


def adadelta(p, g, s, t, lr=1.0, rho=0.9, eps=1e-6, weight_decay=0.0):
    g = g + weight_decay * p
    s["s"] = rho * s.get("s", 0) + (1 - rho) * g * g
    d = np.sqrt(s.get("a", 0) + eps) / np.sqrt(s["s"] + eps) * g
    s["a"] = rho * s.get("a", 0) + (1 - rho) * d * d
    return p - lr * d


def lamb(p, g, s, t, lr, weight_decay=0.0, betas=(0.9, 0.999), eps=1e-8):
    s["m"] = betas[0] * s.get("m", 0) + (1 - betas[0]) * g
    s["v"] = betas[1] * s.get("v", 0) + (1 - betas[1]) * g * g
    d = (
        s["m"] / (1 - betas[0] ** t) / (np.sqrt(s["v"] / (1 - betas[1] ** t)) + eps)
        + weight_decay * p
    )
    ratio = np.linalg.norm(p) / np.linalg.norm(d) if weight_decay else 1
    return p - lr * ratio * d


RULES = [
    (optim.SGD, sgd, {"lr": 0.1}),
    (optim.SGD, sgd, {"lr": 0.1, "weight_decay": 0.1, "momentum": 0.9}),
    (optim.SGD, sgd, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (optim.Adam, adam, {"lr": 0.1, "betas": (0.8, 0.95), "weight_decay": 0.1}),
    (optim.AdamW, adamw, {"lr": 0.1}),
    (optim.Adagrad, adagrad, {"lr_decay": 0.1, "weight_decay": 0.1}),
    (optim.Adadelta, adadelta, {"weight_decay": 0.1}),
    (optim.LAMB, lamb, {"lr": 0.1, "weight_decay": 0.1}),
]
SHAPES = [(3,), (2, 2), ()]


def make(kind, options, shapes=SHAPES, dtype="float32", rng=None):
    rng = rng or np.random.default_rng(0)
    params = [mge.Parameter(rng.normal(size=s), dtype=dtype) for s in shapes]
    return params, kind(params, **options)


def set_grads(params, rng):
    grads = [rng.normal(size=p.shape) for p in params]
    for p, g in zip(params, grads):
        p.grad = mge.tensor(g, dtype=p.dtype)
    return grads


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("kind", "rule", "options"), RULES, ids=lambda x: getattr(x, "__name__", "")
)
def test_optimizer_follows_its_rule(rng, kind, rule, options, dtype):
    params, opt = make(kind, options, dtype=dtype)
    expected = [p.numpy().astype(np.float64) for p in params]
    states = [{} for _ in params]
    for t in range(1, 5):
        grads = set_grads(params, rng)
        expected = [rule(p, g, s, t, **options) for p, g, s in zip(expected, grads, states)]
        assert opt.step().clear_grad() is opt
        assert all(p.grad is None for p in params)
    for p, e in zip(params, expected):
        assert p.dtype == dtype
        np.testing.assert_allclose(
            p.numpy(), e, rtol=1e-5 if dtype == "float32" else 1e-12, atol=1e-6
        )


@pytest.mark.parametrize(
    ("kind", "rule", "options"), RULES, ids=lambda x: getattr(x, "__name__", "")
)
def test_optimizer_skips_parameters_without_gradient(rng, kind, rule, options):
    params, opt = make(kind, options)
    expected = [p.numpy().astype(np.float64) for p in params]
    states, counts = [{} for _ in params], [0] * len(params)
    for left_out in (None, 1, None, 0, 0, None):
        grads = set_grads(params, rng)
        for i, (p, g) in enumerate(zip(params, grads)):
            if i == left_out:
                p.grad = None
            else:
                counts[i] += 1
                expected[i] = rule(expected[i], g, states[i], counts[i], **options)
        opt.step().clear_grad()
    for p, e in zip(params, expected):
        np.testing.assert_allclose(p.numpy(), e, rtol=1e-4, atol=1e-6)


def test_optimizer_without_any_gradient_does_nothing():
    params, opt = make(optim.Adam, {"lr": 0.1})
    before = [p.numpy() for p in params]
    opt.step()
    for p, b in zip(params, before):
        np.testing.assert_array_equal(p.numpy(), b)


@pytest.mark.parametrize(
    ("kind", "rule", "options"), RULES, ids=lambda x: getattr(x, "__name__", "")
)
def test_optimizer_records_one_update_a_group_and_never_reads(
    monkeypatch, rng, kind, rule, options
):
    params, opt = make(kind, options)
    set_grads(params, rng)
    before = [p._node for p in params]
    asked = []
    monkeypatch.setattr(graph, "request_flush", lambda: asked.append(1))
    monkeypatch.setattr(graph, "evaluate", lambda nodes: pytest.fail("a value was read"))
    with mode.changed(eager=False):
        opt.step()
    assert asked == [1]
    sources = {id(p._node.inputs[0] if p._node.inputs else p._node) for p in params}
    assert len(sources) == 1 and all(p._node is not b for p, b in zip(params, before))


def test_optimizer_step_that_fails_changes_nothing(rng):
    params, opt = make(optim.SGD, {"lr": 0.1})
    opt.add_param_group({"params": [mge.Parameter(np.ones(2))]})
    set_grads(params, rng)
    opt.param_groups[1]["params"][0].grad = mge.tensor([1.0, 2.0, 3.0])
    before = [p.numpy() for p in params]
    with pytest.raises(ShapeError):
        opt.step()
    for p, b in zip(params, before):
        np.testing.assert_array_equal(p.numpy(), b)


def test_optimizer_keeps_handles(rng):
    params, opt = make(optim.Adam, {"lr": 0.1})
    state = [t for tensors in opt._state.values() for t in tensors.values()]
    set_grads(params, rng)
    opt.step()
    assert [id(t) for tensors in opt._state.values() for t in tensors.values()] == [
        id(t) for t in state
    ]
    assert all(type(p) is mge.Parameter for p in opt.param_groups[0]["params"])


def test_optimizer_computes_initial_values_when_it_is_made():
    net = M.Linear(3, 2)
    optim.SGD(net.parameters(), lr=0.1)
    assert all(p._node.buffer is not None for p in net.parameters())


# Groups.


def test_groups_have_their_own_hyper_parameters():
    a, b, c = (mge.Parameter([1.0]) for _ in range(3))
    opt = optim.SGD([{"params": a}, {"params": [b], "lr": 0.5}], lr=0.1)
    opt.add_param_group({"params": [c], "lr": 1.0})
    for p in (a, b, c):
        p.grad = mge.tensor([1.0])
    opt.step()
    np.testing.assert_allclose([a.item(), b.item(), c.item()], [0.9, 0.5, 0.0], atol=1e-7)
    assert "lr=0.5" in repr(opt)


@pytest.mark.parametrize(
    "value", [0.5, np.float32(0.5), mge.tensor(0.5), mge.tensor(0.5, dtype="float64")]
)
def test_group_hyper_parameters_can_change(value):
    w = mge.Parameter([1.0])
    opt = optim.SGD([w], lr=0.1)
    handle = opt.param_groups[0].tensor("lr")
    epoch = graph.EPOCH[0]
    opt.param_groups[0]["lr"] = value
    assert opt.param_groups[0].tensor("lr") is handle and graph.EPOCH[0] == epoch
    w.grad = mge.tensor([1.0])
    opt.step()
    assert w.item() == 0.5


def test_group_sets_by_update_and_setdefault():
    group = optim.SGD([mge.Parameter([1.0])], lr=0.1).param_groups[0]
    group.update(lr=0.25, initial_lr=1.0)
    assert group.tensor("lr").item() == 0.25 and group.setdefault("lr", 9) == 0.25
    assert group.setdefault("new", 3) == 3
    with pytest.raises(DTypeError, match="lr is 'x'"):
        group["lr"] = "x"
    with pytest.raises(ShapeError, match=r"lr has shape \(2,\)"):
        group["lr"] = mge.tensor([1.0, 2.0])


def test_momentum_can_be_switched_on_later():
    w = mge.Parameter([1.0])
    opt = optim.SGD([w], lr=0.1)
    for momentum in (0.0, 0.5, 0.5):
        opt.param_groups[0]["momentum"] = momentum
        w.grad = mge.tensor([1.0])
        opt.step()
    np.testing.assert_allclose(w.item(), 1 - 0.1 - 0.1 - 0.15, rtol=1e-6)


@pytest.mark.parametrize(
    ("params", "error", "text"),
    [
        ([], ArgumentError, "no parameters"),
        ({mge.Parameter([1.0])}, DTypeError, "ordered iterable"),
        ([mge.Parameter([1])], DTypeError, "Parameter of int32"),
        (["w"], DTypeError, "is a str"),
        ([mge.Parameter([1.0]), {"params": []}], DTypeError, "one kind"),
        ([mge.Parameter([1.0])] * 2, ArgumentError, "named once"),
        (
            [mge.tensor([1.0]).__class__.from_node(mge.tensor([1.0])._node), 3],
            DTypeError,
            "is a int",
        ),
        ([{"params": [mge.Parameter([1.0])], "lr": -1}], ArgumentError, "lr is -1"),
    ],
)
def test_optimizer_checks_its_parameters(params, error, text):
    with pytest.raises(error, match=text):
        optim.SGD(params, lr=0.1)


def test_optimizer_refuses_buffers_and_parameters_that_it_has():
    net = M.BatchNorm1d(2)
    with pytest.raises(DTypeError, match="is a ModuleBuffer"):
        optim.SGD(net.tensors(), lr=0.1)
    opt = optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(ArgumentError, match="named once"):
        opt.add_param_group({"params": [net.weight]})
    assert len(opt.param_groups) == 1


@pytest.mark.parametrize(
    ("make_one", "text"),
    [
        (lambda p: optim.SGD(p, lr=-0.1), "lr is -0"),
        (lambda p: optim.SGD(p, lr=0.1, nesterov=True), "needs a momentum"),
        (lambda p: optim.Adam(p, lr=0.1, betas=(0.9, 1.0)), "betas are"),
        (lambda p: optim.Adagrad(p, lr_decay=-1), "lr_decay is -1"),
        (lambda p: optim.Adadelta(p, rho=2), "rho is 2"),
    ],
)
def test_optimizer_checks_hyper_parameters(make_one, text):
    with pytest.raises(ArgumentError, match=text):
        make_one([mge.Parameter([1.0])])


# State.


@pytest.mark.parametrize(
    ("kind", "rule", "options"), RULES, ids=lambda x: getattr(x, "__name__", "")
)
@pytest.mark.parametrize("pack", [lambda s: s, lambda s: pickle.loads(pickle.dumps(s))])
def test_state_dict_continues_exactly(kind, rule, options, pack):
    params, opt = make(kind, options)
    for seed in range(3):
        set_grads(params[: 2 if seed == 1 else 3], np.random.default_rng(seed))
        opt.step().clear_grad()
    state = pack(opt.state_dict())
    assert all(isinstance(v, np.ndarray) for s in state["state"].values() for v in s.values())
    others = [mge.Parameter(p.numpy()) for p in params]
    other = kind(others, **{**options, "lr": 0.7})
    other.load_state_dict(state)
    for each, some in ((opt, params), (other, others)):
        set_grads(some, np.random.default_rng(9))
        each.step()
    for p, q in zip(params, others):
        np.testing.assert_array_equal(p.numpy(), q.numpy())
    a, b = opt.state_dict(), other.state_dict()
    assert a["param_groups"] == b["param_groups"]
    for i, tensors in a["state"].items():
        for name, array in tensors.items():
            np.testing.assert_array_equal(array, b["state"][i][name])


def test_state_dict_has_megengines_names():
    _, opt = make(optim.Adam, {"lr": 0.1})
    state = opt.state_dict()
    assert state["param_groups"][0]["params"] == [0, 1, 2]
    assert set(state["state"][0]) == {"exp_avg", "exp_avg_sq", "step"}
    assert (
        opt.state_dict(keep_var=True)["state"][0]["step"]
        is opt._state[opt.param_groups[0]["params"][0]]["step"]
    )


def test_state_that_does_not_fit_changes_nothing(rng):
    params, opt = make(optim.Adam, {"lr": 0.1})
    set_grads(params, rng)
    state = opt.step().state_dict()
    _, other = make(optim.Adam, {"lr": 0.5}, shapes=[(4,), (2, 2), ()])
    with pytest.raises(
        ArgumentError,
        match=r"(?s)nothing was changed.*exp_avg: shape \(3,\) was given; it has \(4,\)",
    ):
        other.load_state_dict(state)
    assert (
        other.param_groups[0]["lr"] == 0.5 and not other.state_dict()["state"][1]["exp_avg"].any()
    )
    _, momentum = make(optim.SGD, {"lr": 0.1, "momentum": 0.9})
    _, plain = make(optim.SGD, {"lr": 0.1})
    with pytest.raises(ArgumentError, match="momentum_buffer: unexpected"):
        plain.load_state_dict(momentum.state_dict())
    with pytest.raises(ArgumentError, match="momentum_buffer: nothing was given"):
        momentum.load_state_dict(plain.state_dict())
    plain.add_param_group({"params": mge.Parameter([1.0])})
    with pytest.raises(ArgumentError, match="1 groups were given; there are 2"):
        plain.load_state_dict(make(optim.SGD, {"lr": 0.1})[1].state_dict())


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_optimizer_copies_are_independent(rng, clone):
    params, opt = make(optim.Adam, {"lr": 0.1})
    set_grads(params, rng)
    other = clone(opt.step())
    other.param_groups[0]["lr"] = 0.5
    assert opt.param_groups[0].tensor("lr").item() == pytest.approx(0.1)
    assert other.param_groups[0].tensor("lr").item() == 0.5
    before = params[0].numpy()
    set_grads(other.param_groups[0]["params"], rng)
    other.step()
    np.testing.assert_array_equal(params[0].numpy(), before)
    assert len({id(s["step"]) for s in other._state.values()}) == 1


# Half precision and GradScaler.


def test_float16_parameters_have_float32_state(rng):
    params, opt = make(optim.Adam, {"lr": 0.1}, dtype="float16")
    set_grads(params, rng)
    opt.step()
    assert all(p.dtype == "float16" for p in params)
    assert all(s["exp_avg"].dtype == "float32" for s in opt._state.values())


def test_lamb_fp16_updates_a_float32_copy(rng):
    params, opt = make(optim.LAMBFp16, {"lr": 1e-4, "weight_decay": 0.1}, dtype="float16")
    expected, states = [p.numpy().astype(np.float64) for p in params], [{} for _ in params]
    for t in range(1, 4):
        grads = [g.astype(np.float16).astype(np.float64) for g in set_grads(params, rng)]
        expected = [lamb(p, g, s, t, 1e-4, 0.1) for p, g, s in zip(expected, grads, states)]
        opt.step()
    for p, e in zip(params, expected):
        np.testing.assert_allclose(opt._state[p]["param_fp32"].numpy(), e, rtol=1e-5, atol=1e-6)
        assert p.dtype == "float16"
        np.testing.assert_array_equal(
            p.numpy(), opt._state[p]["param_fp32"].numpy().astype(np.float16)
        )


@pytest.mark.parametrize(
    ("kind", "rule", "options"), RULES, ids=lambda x: getattr(x, "__name__", "")
)
def test_a_step_after_an_overflow_keeps_everything(rng, kind, rule, options):
    params, opt = make(kind, options)
    scaler = amp.GradScaler()
    set_grads(params, rng)
    opt.step().clear_grad()
    before = opt.state_dict(), [p.numpy() for p in params]
    set_grads(params, rng)
    params[1].grad = mge.tensor([[1.0, np.inf], [0.0, 0.0]])
    scaler.unscale(params)
    opt.step().clear_grad()
    for p, b in zip(params, before[1]):
        np.testing.assert_array_equal(p.numpy(), b)
    after = opt.state_dict()["state"]
    for i, tensors in before[0]["state"].items():
        for name, array in tensors.items():
            np.testing.assert_array_equal(after[i][name], array)
    set_grads(params, rng)
    opt.step()
    assert all((p.numpy() != b).any() for p, b in zip(params, before[1]))


def test_clear_grad_forgets_an_overflow(rng):
    params, opt = make(optim.SGD, {"lr": 0.1})
    set_grads(params, rng)
    params[0].grad = mge.tensor([np.inf, 0.0, 0.0])
    amp.GradScaler().unscale(params)
    opt.clear_grad()
    before = params[1].numpy()
    set_grads(params, rng)
    opt.step()
    assert (params[1].numpy() != before).all()


# Training.


def test_training_reaches_a_low_loss(rng):
    mge.random.seed(1)
    x = rng.normal(size=(64, 2)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int32)
    net = M.Sequential(M.Linear(2, 16), M.BatchNorm1d(16), M.Tanh(), M.Linear(16, 2))
    gm, opt = GradManager().attach(net.parameters()), optim.Adam(net.parameters(), lr=0.05)
    loss_function = M.CrossEntropyLoss()
    for _ in range(60):
        with gm:
            loss = loss_function(net(mge.tensor(x)), mge.tensor(y))
            gm.backward(loss)
        optim.clip_grad_norm(net.parameters(), 10.0)
        opt.step().clear_grad()
    assert loss.item() < 0.2


def test_training_in_mixed_precision_recovers_from_an_overflow(rng):
    mge.random.seed(1)
    x = rng.normal(size=(32, 3)).astype(np.float32)
    y = x @ np.array([[1.0], [-2.0], [0.5]], np.float32)
    net, scaler, losses = M.Linear(3, 1), amp.GradScaler(init_scale=2.0**20), []
    gm, opt = (
        GradManager().attach(net.parameters()),
        optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
    )
    for _ in range(60):
        with gm, amp.autocast():
            loss = M.MSELoss()(net(mge.tensor(x)), mge.tensor(y))
            scaler.backward(gm, loss)
        opt.step().clear_grad()
        losses.append(loss.item())
    # Momentum swings, so how near it gets depends on the draw: twenty-fold is far from the least that was seen.
    assert losses[-1] < losses[0] / 20 and scaler.scale_factor.item() < 2**20


@pytest.mark.parametrize("mixed", [False, True])
def test_a_traced_step_is_the_untraced_one(rng, mixed):
    data = [(rng.normal(size=(4, 3)).astype(np.float32), rng.integers(0, 2, 4)) for _ in range(5)]

    def train(wrap):
        mge.random.seed(1)
        net = M.Sequential(M.Linear(3, 4), M.BatchNorm1d(4), M.ReLU(), M.Linear(4, 2))
        gm, opt = GradManager().attach(net.parameters()), optim.Adam(net.parameters(), lr=0.1)
        scaler = amp.GradScaler(growth_interval=2)

        def step(x, y):
            with gm, amp.autocast(enabled=mixed):
                loss = M.CrossEntropyLoss()(net(x), y)
                scaler.backward(gm, loss)
            optim.clip_grad_norm(net.parameters(), 1.0)
            opt.step().clear_grad()
            return loss

        step, losses = wrap(step), []
        for i, (x, y) in enumerate(data):
            opt.param_groups[0]["lr"] = 0.1 if i < 3 else 0.01
            losses.append(step(mge.tensor(x), mge.tensor(y)).item())
        return (
            losses,
            list(net.state_dict().values()),
            opt.state_dict()["state"][0]["step"],
            scaler.state_dict(),
        )

    plain, traced = train(lambda f: f), train(mge.jit.trace)
    np.testing.assert_array_equal(plain[0], traced[0])
    for a, b in zip(plain[1], traced[1]):
        np.testing.assert_array_equal(a, b)
    assert plain[2:] == traced[2:] and plain[3]["scale_factor"] == 64
