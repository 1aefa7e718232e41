"""What tests of the kernel share: a clean plan cache, counters, and a tiny optimizer."""

import pytest

import mge
from mge import graph
from mge.cache import PLANS
from mge.debug import debug


class Counts:
    """The counters of ``mge.debug.stats()`` since the last look."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.before = debug.stats()

    def __getattr__(self, name):
        return debug.stats().get(name, 0) - self.before.get(name, 0)


@pytest.fixture
def counts():
    """Counters from zero, an empty plan cache, nothing pending, and no warning given so far."""
    mge.sync()
    PLANS.clear()
    seen, debug.seen = debug.seen, set()
    yield Counts()
    debug.seen = seen


class Calls:
    """Counts the runs of a Python function; a trace sees nothing of it."""

    def __init__(self):
        self.made = []

    def __call__(self):
        self.made.append(1)

    def __len__(self):
        return len(self.made)


@pytest.fixture
def calls():
    """Call it to count; ``len`` is the count."""
    return Calls()


def descend(parameters, rate=0.1):
    """One step of gradient descent as an optimizer takes it: all updates, then all rebinds, then a request."""
    chosen = [p for p in parameters if p.grad is not None]
    for p, new in [(p, p - p.grad * rate) for p in chosen]:
        p._assign(new)
    graph.request_flush()


@pytest.fixture(name="descend")
def _descend():
    return descend
