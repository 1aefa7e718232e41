"""What a dumped function becomes in the file, and what cannot be dumped."""

import collections
import os
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy

import mge.functional as F
import mge.module as M
from mge import archive
from mge.dtype import DTYPES
from mge.errors import ArgumentError, TraceError
from mge.jit import trace
from mge.modelfile import load_model
from mge.tensor import ModuleBuffer, Parameter, tensor
from tests.core.unit.model_files import Net, bits, dumped

# What is written.


def test_a_loaded_model_gives_the_same_bits(images, tmp_path):
    net = Net().eval()

    @trace(capture_as_const=True)
    def predict(x):
        return F.softmax(net(x))

    x = images(2)
    wanted = predict(x)
    info = predict.dump(tmp_path / "net.mge")
    model = load_model(tmp_path / "net.mge")
    assert bits(model(x)) == bits(wanted) == bits(model(x=x)) == bits(model(x.numpy()))
    assert [p.name for p in info.inputs] == ["x"] == [p.name for p in model.inputs]
    assert info.outputs == model.outputs
    assert info.weight_bytes == sum(t._node.type.nbytes for t in net.tensors())
    assert model.device == "ref:0"
    assert "<model (x: f32[2, 3, 4, 4]) -> (output0: f32[2, 5])" in repr(model)


def test_weights_have_the_names_and_kinds_of_the_module(images, tmp_path):
    net = Net().eval()

    @trace
    def predict(x):
        return net(x)

    predict(images(1))
    predict.dump(tmp_path / "net.mge")
    model = load_model(tmp_path / "net.mge")
    assert set(model.weights) == set(net.state_dict())
    for name, value in net.named_tensors():
        assert type(model.weights[name]) is (
            Parameter if isinstance(value, Parameter) else ModuleBuffer
        )
        assert bits(model.weights[name]) == bits(value)
    # Other tools read them.
    arrays = safetensors.numpy.load_file(tmp_path / "net.mge")
    assert set(arrays) == set(model.weights)


def test_a_method_and_two_modules(images):
    class Pair(M.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = M.Linear(3, 3), M.Linear(3, 2)

        @trace
        def forward(self, x):
            return self.two(self.one(x))

    pair, x = Pair(), tensor(np.ones((2, 3)))
    wanted = pair(x)
    model = dumped(Pair.forward)
    assert set(model.weights) == {"one.weight", "one.bias", "two.weight", "two.bias"}
    assert bits(model(x)) == bits(wanted)
    one, two = M.Linear(3, 3), M.Linear(3, 3)

    @trace
    def both(x):
        return one(x) + two(x)

    both(x)
    assert set(dumped(both).weights) == {"one.weight", "one.bias", "two.weight", "two.bias"}


def test_equal_contents_give_equal_bytes_also_in_another_process(tmp_path):
    code = """
import sys, numpy as np, mge
from mge.jit import trace
w = mge.tensor(np.arange(6.0).reshape(2, 3), dtype="bfloat16")
v = mge.tensor(np.arange(3))
@trace
def f(x, y):
    return {"a": x @ w, "b": (x.sum(), y + v)}
f(mge.tensor(np.ones((4, 2)), dtype="bfloat16"), mge.tensor([1, 2, 3]))
f.dump(sys.argv[1], dynamic_batch=["x"], user_info={"k": [1, None], "z": 2.5})
"""
    for name in "ab":
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PYTHONHASHSEED": "random",
        }
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / name)], check=True, env=environment
        )
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("name", list(DTYPES))
def test_weights_of_each_dtype(name):
    kept = tensor(np.array([0, 1, 1, 0]), dtype=name)

    @trace
    def function(x):
        return F.concat([x, kept])

    wanted = function(tensor([1, 0], dtype=name))
    made = dumped(function)(tensor([1, 0], dtype=name))
    assert made.dtype == name and bits(made) == bits(wanted)


def test_small_constants_are_text_and_arrays_are_weights():
    table = np.arange(300.0, dtype=np.float32)

    @trace
    def function(x):
        return x * 3.0 + table

    wanted = function(tensor(np.ones(300)))
    model = dumped(function)
    assert "constant() {data=0x00004040" in str(model.graph)
    assert [w.shape for w in model.weights.values()] == [(300,)]
    assert bits(model(tensor(np.ones(300)))) == bits(wanted)


def test_trees_of_arguments_and_results():
    Point = collections.namedtuple("Point", "x y")

    @trace
    def function(batch, pair, *more, scale, mode="up", **rest):
        point = Point(batch["a"] * scale, pair[0] - pair[1])
        return {"sum": more[0] + rest["last"], "point": point, 3: [None, mode, batch["b"][0]]}

    one, two = tensor([1.0, 2.0]), np.array([3.0, 4.0], np.float32)
    call = lambda f: f({"a": one, "b": [two]}, (one, two), one, scale=2.5, mode="down", last=two)  # noqa: E731
    wanted = call(function)
    model = dumped(function)
    made = call(model)
    assert list(made) == ["sum", "point", 3]
    assert type(made["point"]) is tuple
    assert made[3][:2] == [None, "down"]
    for one_, other in zip(
        [made["sum"], *made["point"], made[3][2]], [wanted["sum"], *wanted["point"], wanted[3][2]]
    ):
        assert bits(one_) == bits(other)
    names = {"batch.a", "batch.b.0", "pair.0", "pair.1", "more0", "last", "scale"}
    assert {p.name for p in model.inputs} == names
    assert [p.name for p in model.outputs] == ["sum", "point.0", "point.1", "3.2"]


def test_names_can_be_given(doubled):
    model = dumped(doubled, arg_names=["image"], output_names="twice")
    assert bits(model(image=tensor([[1.0, 2.0]]))) == bits(tensor([[2.0, 4.0]]))
    assert [p.name for p in model.outputs] == ["twice"]
    for options in ({"arg_names": ["a", "b"]}, {"output_names": ["a", "a"]}, {"arg_names": [""]}):
        with pytest.raises(ArgumentError, match="different names"):
            dumped(doubled, **options)


def test_user_info(doubled):
    info = {"labels": ["cat", "dog"], "mean": (0.5, float("nan")), 7: None, "raw": b"\x00\xff"}
    made = dumped(doubled, user_info=info).user_info
    assert repr(made) == repr(info)
    with pytest.raises(TraceError, match=r'user_info\["f"\]\[0\] is a function'):
        dumped(doubled, user_info={"f": [lambda: 0]})


def test_control_flow_and_nested_graphs():
    @trace
    def function(x):
        y = F.cond(F.sum(x) > 0, lambda v: v * 2, lambda v: v - 1, x)
        return F.while_loop(lambda v: F.sum(v) < 100, lambda v: (v * 2,), (F.abs(y) + 1,))

    model = None
    for value in ([1.0, 2.0], [-1.0, -2.0]):
        wanted = function(tensor(value))
        model = model or dumped(function)
        assert [bits(a) for a in model(tensor(value))] == [bits(a) for a in wanted]


# Errors of dump.


def test_what_cannot_be_dumped(tmp_path):
    def numbers(x):
        return x + 1

    with pytest.raises(TraceError, match="it never ran as a plan"):
        trace(numbers).dump(tmp_path / "a")
    calls = trace(lambda x: F.host_call(lambda a: a, [(x.shape, x.dtype)], x))
    calls(tensor([1.0]))
    with pytest.raises(TraceError, match=r"host_call at .* calls a Python function at execution"):
        calls.dump(tmp_path / "a")
    odd = trace(lambda x: (x, object))
    odd(tensor([1.0]))
    with pytest.raises(TraceError, match=r"the result\[1\] is a type"):
        odd.dump(tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_options_of_megengine(doubled, tmp_path):
    doubled.dump(
        tmp_path / "a", optimize_for_inference=True, strip_info_file="x", dump_format="FBS"
    )
    with pytest.raises(ArgumentError, match=r"enable_nchw44 chooses a layout by hand"):
        doubled.dump(tmp_path / "a", enable_nchw44=True)
    with pytest.raises(ArgumentError, match="unknown argument 'optimise'"):
        doubled.dump(tmp_path / "a", optimise=True)
    with pytest.raises(ArgumentError, match="one file holds one model"):
        doubled.dump(tmp_path / "a", append=True)


def test_a_failure_leaves_the_old_file(doubled, tmp_path, monkeypatch):
    path = tmp_path / "a.mge"
    doubled.dump(path)
    old = path.read_bytes()

    def fail(*_, **__):
        raise OSError("the disk is full")

    monkeypatch.setattr(archive.safetensors, "serialize_file", fail)
    with pytest.raises(OSError, match="the disk is full"):
        doubled.dump(path, user_info=3)
    assert path.read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == ["a.mge"]
