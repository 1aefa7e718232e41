"""MegEngine's ways to ask for a strategy, and the steps that move values."""

import numpy as np
import pytest

import mge
import mge.functional as F
import mge.module as M
from mge.autodiff import GradManager
from mge.debug import debug
from mge.errors import PluginContractError
from mge.jit import DTRConfig, SublinearMemoryConfig, trace
from mge.memory import current_strategy, find_strategy

from .models import same, train


def test_the_configurations_of_megengine_choose_a_strategy():
    chosen = [
        trace(lambda x: x + 1, sublinear_memory_config=SublinearMemoryConfig(genetic_nr_iter=10)),
        trace(lambda x: x + 1, dtr_config=DTRConfig(eviction_threshold=1 << 20)),
    ]
    for traced, name in zip(chosen, ("sublinear", "dtr")):
        choice = find_strategy(traced.memory)
        assert choice.name == name
        assert traced(mge.tensor([1.0])).item() == 2
    assert find_strategy(chosen[0].memory).options["effort"] == 2
    assert find_strategy(chosen[1].memory).options["eviction_threshold"] == str(1 << 20)


def test_dtr_is_switched_on_for_the_process():
    mge.dtr.eviction_threshold = "1MB"
    try:
        mge.dtr.enable()
        assert find_strategy(current_strategy()).options["eviction_threshold"] == "1MB"
        assert (mge.tensor([2.0]) * 3).item() == 6
    finally:
        mge.dtr.eviction_threshold = 0
        mge.dtr.disable()
    assert current_strategy() == "static"


def test_dtr_keeps_what_is_dear():
    """With everything but the budget equal, what takes longer to compute again stays."""
    wanted = train("chain", "static", 1)
    run = train("chain", "dtr:evictee_minimum_size=0,budget=75%", 1)
    again = [s.slot.node.sig.op.name for s in run[2].steps]
    once = [s.slot.node.sig.op.name for s in wanted[2].steps]
    more = {name: again.count(name) - once.count(name) for name in set(once)}
    assert sum(more.values()) > 0
    assert more.get("linear", 0) <= sum(more.values()) / 2


def test_offloaded_values_wait_in_a_file(tmp_path):
    x = mge.tensor(np.arange(40_000, dtype="float32").reshape(200, 200) / 4e7)

    def work(x):
        early = F.exp(x @ x)
        late = early
        for _ in range(6):
            late = F.sin(late @ x)
        return (late + early).sum()

    wanted = trace(work)(x).item()
    step = trace(work, memory=f"offload:folder={tmp_path},minimum_size=1KB")
    assert [step(x).item() for _ in range(3)] == [wanted] * 3
    (compiled,) = step.last.plans.values()
    names = [s.slot.node.sig.op.name for s in compiled.plan.steps]
    assert names.count("host_call") == 2 and names.index("host_call") < names.index("sin")
    assert not list(tmp_path.iterdir()), "the file has no name"


WRONG = {
    "twice": ("[*order[:1], Offload(v, f), Offload(v, f), *order[1:]]", "offloads value .* which is not there"),
    "never": ("[*order[:1], Prefetch(v, f), *order[1:]]", "prefetches value .* which was not offloaded"),
    "unread": ("[*order[:1], Offload(v, f), *order[1:]]", "reads value .* after it was freed"),
    "input": ("[Offload(0, f), *order]", "offloads value 0 .* which is not the plan's"),
}  # fmt: skip


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_moves_are_refused_by_name(monkeypatch, fault):
    from mge_sublinear import Sublinear

    from mge import plugin

    code, text = WRONG[fault]

    def plan(self, request):
        order = [plugin.Run(n.number) for n in request.nodes]
        names = {"Offload": plugin.Offload, "Prefetch": plugin.Prefetch, "f": lambda a: a}
        return plugin.MemorySchedule(
            eval(code, {**names, "order": order, "v": request.nodes[0].outputs[0]})
        )

    monkeypatch.setattr(Sublinear, "plan", plan)
    with (
        debug(check=1),
        pytest.raises(PluginContractError, match=f'memory strategy "sublinear".*{text}'),
    ):
        trace(lambda x: F.exp(x) @ x, memory="sublinear")(
            mge.tensor(np.eye(3, dtype="float32"))
        ).numpy()


OPTIMIZERS = {
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "Adam": {"lr": 0.01},
    "AdamW": {"lr": 0.01},
    "Adagrad": {"lr": 0.01},
    "Adadelta": {"lr": 1.0},
    "LAMB": {"lr": 0.01},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_move_one_by_one_with_the_same_bits(on_device, name):
    """A strategy gets an update for each parameter, which runs as soon as its gradient is there."""

    def run(strategy):
        mge.random.seed(5)
        net = M.Sequential(*[M.Linear(32, 32) for _ in range(6)])
        manager = GradManager().attach(net.parameters())
        optimizer = getattr(mge.optimizer, name)(net.parameters(), **OPTIMIZERS[name])

        @trace(memory=strategy)
        def step(x):
            with manager:
                loss = F.square(net(x)).mean()
                manager.backward(loss)
            optimizer.step().clear_grad()
            return loss

        x = mge.tensor(np.linspace(-1, 1, 8 * 32, dtype="float32").reshape(8, 32))
        losses = [step(x).item() for _ in range(3)]
        (compiled,) = step.last.plans.values()
        return losses, [np.array(p.numpy()) for p in net.parameters()], compiled.plan

    wanted, made = run("static"), run("sublinear")
    assert same(made, wanted)
    names = [s.slot.node.sig.op.name for s in made[2].steps]
    updates = [i for i, name in enumerate(names) if name.endswith("_update")]
    assert len(updates) == 12 and updates[0] < len(names) - 12, "no update came early"
    assert made[2].peak_bytes < wanted[2].peak_bytes
