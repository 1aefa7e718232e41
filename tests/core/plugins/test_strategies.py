"""Memory strategies of plugins: picked up by name, and every layout checked before it is used."""

import numpy as np
import pytest

import mge
from mge.errors import PluginContractError
from mge.jit import trace

SOURCE = """
    from mge.plugin import MemorySchedule, MemoryStrategy

    class Strategy(MemoryStrategy):
        name = "acme"
        requests = []

        def plan(self, request):
            self.requests.append(request)
            top, offsets = 0, []
            for value in request.values:
                offsets.append(top)
                top += -(-value.nbytes // request.align) * request.align
            {answer}
"""
WRONG = {
    "overlap": ("return MemorySchedule([0] * len(offsets))", "put .* over .*, and both are live"),
    "odd": ("return MemorySchedule([o + 4 for o in offsets])", "multiples of 64"),
    "short": ("return MemorySchedule(offsets[1:])", "gave . offsets for . values"),
    "low": (
        "return MemorySchedule(offsets, 64)",
        "stated a peak of 64 bytes, and its layout takes",
    ),
    "raises": ("raise KeyError(7)", "failed: KeyError: 7"),
    "nothing": ("return None", "failed: AttributeError"),
}


def add(here, answer):
    here.add(
        "acme-memory",
        {"mge.memory": {"acme": "acme_memory:Strategy"}},
        {"acme_memory": SOURCE.format(answer=answer)},
    )


@pytest.fixture
def work():
    """A traced function without plans."""

    @trace
    def work(x):
        y = x @ x
        for _ in range(4):
            y = (y @ x) * 0.5 + x
        return y.sum()

    return work


def test_a_strategy_is_found_by_name(here, work):
    add(here, "return MemorySchedule(offsets, top)")
    x = mge.tensor(np.eye(8, dtype="float32"))
    wanted = work(x).item()
    with mge.memory("acme"):
        assert work(x).item() == wanted
    import acme_memory

    (request,) = acme_memory.Strategy.requests
    assert request.align == 64 and max(v.nbytes for v in request.values) == 256


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_layout_is_refused_by_name(here, work, fault):
    answer, text = WRONG[fault]
    add(here, answer)
    x = mge.tensor(np.eye(8, dtype="float32"))
    with (
        mge.memory("acme"),
        pytest.raises(PluginContractError, match=f'memory strategy "acme" .*{text}'),
    ):
        work(x).numpy()
    assert work(x).item() == 8 * 1.9375  # the sum of 1, 1/2, ... 1/16 on the diagonal
