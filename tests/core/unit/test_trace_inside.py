"""Traces: what changes inside attributes, in objects with traced methods, and the default device, is seen."""

import numpy as np
import pytest

import mge
import mge.functional as F
from mge.jit import trace


class Settings:
    pass


def floats(*values):
    return mge.tensor(np.array(values, np.float32))


class Shift(mge.module.Module):
    def forward(self, x):
        return x + 1


class Double(mge.module.Module):
    def forward(self, x):
        return x * 2


class Containers(mge.module.Module):
    """What it reads lies in lists and dicts of its attributes."""

    def __init__(self):
        super().__init__()
        self.blocks, self.functions = [Double(), Double()], [F.exp]
        self.deep, self.mixed, self.tensors = {"a": [Double()]}, [Double(), 3.0], [floats(3)]

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        y = self.functions[0](x) * self.mixed[1] * self.tensors[0]
        return y + self.deep["a"][0](x)


class Trainer:
    """A plain object that holds what its traced method reads."""

    def __init__(self):
        self.model, self.function, self.models = Double(), F.exp, [Double()]
        self.scale, self.array = 1.0, np.ones(1, np.float32)

    def plain(self, x):
        return self.function(self.models[0](self.model(x) * self.scale * mge.tensor(self.array)))

    traced = trace(plain)


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net.blocks.pop(),
        lambda net: net.blocks.append(Shift()),
        lambda net: net.blocks.__setitem__(0, Shift()),
        lambda net: net.functions.__setitem__(0, F.abs),
        lambda net: net.deep["a"].__setitem__(0, Shift()),
        lambda net: net.mixed.__setitem__(1, 7.0),
        lambda net: net.tensors.__setitem__(0, floats(7)),
    ],
)
def test_what_changes_inside_an_attribute_of_a_module_is_seen(change):
    net = Containers()
    traced = trace(lambda x: net(x))
    for _ in range(2):
        assert traced(floats(1)).item() == net(floats(1)).item()
    change(net)
    assert traced(floats(1)).item() == net(floats(1)).item()
    assert traced(floats(2)).item() == net(floats(2)).item()


@pytest.mark.parametrize(
    "change",
    [
        lambda one: setattr(one, "model", Shift()),
        lambda one: setattr(one, "scale", 3.0),
        lambda one: setattr(one, "function", F.abs),
        lambda one: one.models.__setitem__(0, Shift()),
        lambda one: one.array.__setitem__(0, 5),
    ],
)
def test_what_changes_in_an_object_with_a_traced_method_is_seen(change):
    one = Trainer()
    for _ in range(2):
        assert one.traced(floats(1)).item() == one.plain(floats(1)).item()
    change(one)
    assert one.traced(floats(1)).item() == one.plain(floats(1)).item()


def test_a_module_of_a_global_object_is_seen(monkeypatch):
    monkeypatch.setattr(Settings, "model", Double(), raising=False)
    traced = trace(lambda x: Settings.model(x))
    assert traced(floats(3)).item() == 6
    Settings.model = Shift()
    assert traced(floats(3)).item() == 4


def test_a_new_default_device_records_again():
    runs = []
    ones = trace(lambda: runs.append(1) or F.ones((2,)))
    ones()
    ones()
    assert len(runs) == 1
    mge.set_default_device(mge.get_default_device())
    assert ones().device == mge.get_default_device()
    assert len(runs) == 2
