"""``examples/mge-toy-memory``: small enough, picked up by name, within its budget, and with the bits of ``static``."""

import numpy as np
import pytest

from mge.errors import OutOfMemory
from tools.count_lines import ROOT

from .test_strategies import Convnet, Mlp, train

FILE = ROOT / "examples" / "mge-toy-memory" / "src" / "mge_toy_memory" / "__init__.py"


@pytest.fixture
def toy(here):
    here.add(
        "mge-toy-memory-copy",
        {"mge.memory": {"toy": "mge_toy_memory_copy:Toy"}},
        {"mge_toy_memory_copy": FILE.read_text()},
    )


def test_the_toy_is_small():
    assert len(FILE.read_text().splitlines()) <= 60


@pytest.mark.parametrize(
    ("make", "shape", "budget"),
    [(Mlp, (64, 32), "80%"), (Convnet, (6, 2, 9, 9), "90%")],
)
def test_one_word_swaps_the_strategy(toy, make, shape, budget):
    wanted, state, static = train(make, shape, "static")
    losses, state_too, plan = train(make, shape, f"toy:budget={budget}")
    assert losses == wanted
    assert all(np.array_equal(a, b) for a, b in zip(state, state_too))
    assert plan.peak_bytes <= float(budget[:-1]) / 100 * static.peak_bytes
    assert len(plan.steps) > len(static.steps), "nothing was computed again"


def test_without_a_budget_nothing_changes(toy):
    _, _, static = train(Mlp, (64, 32), "static")
    _, _, plan = train(Mlp, (64, 32), "toy")
    assert [s.slot.node.op for s in plan.steps] == [s.slot.node.op for s in static.steps]


def test_what_cannot_fit_is_said_before_it_runs(toy):
    with pytest.raises(OutOfMemory, match="toy forgets no more than this"):
        train(Mlp, (64, 32), "toy:budget=1KB")
