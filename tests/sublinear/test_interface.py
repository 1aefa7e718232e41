"""MegEngine's ways to ask for a strategy, and the steps that move values."""

import errno
import os
import resource

import numpy as np
import pytest

import mge
import mge.functional as F
import mge.module as M
from mge.autodiff import GradManager
from mge.debug import debug
from mge.errors import ArgumentError, OutOfMemory, PluginContractError, TraceError
from mge.jit import DTRConfig, SublinearMemoryConfig, trace
from mge.memory import current_strategy, find_strategy

from .models import prepare, same, train


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


def test_every_field_of_the_configurations_is_taken_or_refused():
    for made, field in [
        (SublinearMemoryConfig(thresh_nr_try=-1), "thresh_nr_try is -1"),
        (SublinearMemoryConfig(genetic_nr_iter=1.5), "genetic_nr_iter is 1.5"),
        (SublinearMemoryConfig(genetic_pool_size=-2), "genetic_pool_size is -2"),
        (SublinearMemoryConfig(lb_memory_mb=-3), "lb_memory_mb is -3"),
        (SublinearMemoryConfig(num_worker="many"), "num_worker is 'many'"),
        (DTRConfig(eviction_threshold=-1), "eviction_threshold is -1"),
        (DTRConfig(evictee_minimum_size=0.5), "evictee_minimum_size is 0.5"),
        (DTRConfig(evictee_minimum_size="2 parsecs"), "evictee_minimum_size .*'2 parsecs'"),
        (DTRConfig(recomp_memory_factor=float("nan")), "recomp_memory_factor is nan"),
        (DTRConfig(recomp_time_factor=-1.0), "recomp_time_factor is -1.0"),
    ]:
        name = "dtr_config" if isinstance(made, DTRConfig) else "sublinear_memory_config"
        with pytest.raises(ArgumentError, match=f"{field}; it must be"):
            trace(lambda x: x, **{name: made})
    for made, wanted in [
        (SublinearMemoryConfig(0, 0), {"effort": 0.1, "aim": "0"}),
        (SublinearMemoryConfig(20, 10, 40, 300, 8), {"effort": 3.0, "aim": "300MB"}),
        (
            DTRConfig("2GB", 0, 0.5, 2),
            {
                "eviction_threshold": "2GB",
                "evictee_minimum_size": "0",
                "memory_factor": 0.5,
                "time_factor": 2.0,
            },
        ),
    ]:
        options = find_strategy(made.strategy).options
        assert {key: options[key] for key in wanted} == wanted
    for given in (
        {"memory": "sublinear", "dtr_config": DTRConfig()},
        {"sublinear_memory_config": SublinearMemoryConfig(), "dtr_config": DTRConfig()},
    ):
        with pytest.raises(TraceError, match="exclude each other"):
            trace(lambda x: x, **given)


OPTIONS = [
    ("sublinear", "max_slowdown", ("-1", "nan", "inf"), ("0", "0.1", "5")),
    ("sublinear", "aim", ("-1", "much", "nan"), ("0", "2GB")),
    ("sublinear", "effort", ("0", "-1", "nan", "inf", "1e6"), ("0.01", "20")),
    ("sqrt", "seed", ("-1", "0.5", str(2**63)), ("0", str(2**63 - 1))),
    ("dtr", "eviction_threshold", ("-1", ""), ("0", "1GB")),
    ("dtr", "evictee_minimum_size", ("-1", "1e400"), ("0", "1MB")),
    ("dtr", "memory_factor", ("nan", "-0.5"), ("0", "2")),
    ("dtr", "time_factor", ("inf", "-1"), ("0", "2")),
    ("dtr", "sqrt_sampling", ("2", ""), ("true", "0")),
    ("offload", "minimum_size", ("-64KB", "nan"), ("0", "1MB")),
    ("offload", "gigabytes_per_second", ("0", "-1", "nan", "inf"), ("0.5",)),
    ("offload", "folder", ("/no/such/folder", __file__), ("", ".")),
]


@pytest.mark.parametrize(("strategy", "option", "wrong", "right"), OPTIONS)
def test_options_are_checked_where_they_are_stated(strategy, option, wrong, right):
    for value in right:
        find_strategy(f"{strategy}:{option}={value}")
    for value in wrong:
        rule = f'memory: option {option} of strategy "{strategy}" is .*; it must be '
        with pytest.raises(ArgumentError, match=rule) as caught:
            mge.memory(strategy, **{option: value}).__enter__()
        assert "test_interface.py:" in str(caught.value) and "try: leave it" in str(caught.value)


def test_every_option_has_a_rule():
    stated = {option for _, option, _, _ in OPTIONS}
    for strategy in ("sublinear", "sqrt", "dtr", "offload"):
        assert stated.issuperset(find_strategy(strategy).options)


def test_a_file_that_cannot_be_made_is_told_before_anything_runs(tmp_path):
    """As on a full disk: the system allows no file of that size."""
    wanted = train("chain", "static", 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    net, step = prepare("chain", f"offload:minimum_size=0,folder={tmp_path}")
    before = [p.numpy().tobytes() for p in net.parameters()]
    x, y = (mge.tensor(np.ones(shape, "float32")) for shape in ((48, 24), (48,)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OutOfMemory) as caught:
            step(x, y).numpy()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    text = str(caught.value)
    assert "offload: a file of " in text and f"bytes in {tmp_path} cannot be made: File" in text
    assert "try: another folder: offload:folder=" in text
    assert not step.last.plans, "it was made, and would have failed half-way"
    assert before == [p.numpy().tobytes() for p in net.parameters()]
    assert same(train("chain", f"offload:minimum_size=0,folder={tmp_path}", 1), wanted)


def test_a_disk_without_room_is_told(monkeypatch, tmp_path):
    """The room is reserved: a file with holes would end the program once it is written."""

    def full(descriptor, start, nbytes):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    _, step = prepare("chain", f"offload:minimum_size=0,folder={tmp_path}")
    with pytest.raises(OutOfMemory, match=f"bytes in {tmp_path} cannot be made: No space left"):
        step(*(mge.tensor(np.ones(shape, "float32")) for shape in ((48, 24), (48,))))


def test_a_folder_that_goes_away_is_told(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    _, step = prepare("chain", f"offload:minimum_size=0,folder={folder}")
    folder.rmdir()
    with pytest.raises(ArgumentError, match="must be a folder that exists and can be written to"):
        step(*(mge.tensor(np.ones(shape, "float32")) for shape in ((48, 24), (48,))))


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
    mge.dtr.evictee_minimum_size = -1
    try:
        with pytest.raises(
            ArgumentError, match=r"evictee_minimum_size .* is '-1'; it must be a size"
        ):
            mge.dtr.enable()
    finally:
        mge.dtr.evictee_minimum_size = "1MB"
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
