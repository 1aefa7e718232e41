"""Files for all batch sizes: which functions have one, and what the others say."""

import io
import re

import numpy as np
import pytest

import mge.functional as F
from mge.anybatch import FixedBatch, generalised
from mge.debug import debug
from mge.errors import ArgumentError, ShapeError
from mge.jit import trace
from mge.modelfile import load_model
from mge.tensor import tensor
from tests.core.unit.model_files import Net, bits, dumped


@pytest.mark.parametrize("size", [1, 2, 5])
def test_dynamic_batch(images, size):
    net = Net().eval()

    @trace
    def predict(x):
        y = net(x)
        return F.concat([y, y]), F.reshape(y, (-1,)), x.transpose(3, 0, 1, 2)

    predict(images(size))
    model = dumped(predict, dynamic_batch=True)
    assert model.dynamic_batch and model.fixed_because is None
    for n in (size, 1, 2, 3, 8, 1):
        x = images(n)
        assert [bits(a) for a in model(x)] == [bits(a) for a in predict(x)]
    if size > 1:
        assert "concat" in str(model.graph)


def test_two_inputs_grow_together():
    @trace
    def function(x, y, table):
        return F.matmul(x, table) + y

    function(tensor(np.ones((2, 3))), tensor(np.ones((2, 4))), tensor(np.ones((3, 4))))
    model = dumped(function, dynamic_batch=True)
    assert model(
        tensor(np.ones((7, 3))), tensor(np.ones((7, 4))), tensor(np.ones((3, 4)))
    ).shape == (7, 4)
    with pytest.raises(ShapeError, match="their leading axes are the batch and must be equal"):
        model(tensor(np.ones((7, 3))), tensor(np.ones((6, 4))), tensor(np.ones((3, 4))))
    with pytest.raises(ShapeError, match="input table has shape"):
        model(tensor(np.ones((7, 3))), tensor(np.ones((7, 4))), tensor(np.ones((3, 5))))


def test_inputs_that_grow_can_be_named():
    @trace
    def function(x, square):
        return F.matmul(x, square)

    function(tensor(np.ones((3, 3))), tensor(np.ones((3, 3))))
    model = dumped(function, dynamic_batch=["x"])
    assert model(tensor(np.ones((5, 3))), tensor(np.ones((3, 3)))).shape == (5, 3)
    with pytest.raises(
        ArgumentError, match=r"dynamic_batch names 'z'; the inputs are \['x', 'square'\]"
    ):
        dumped(function, dynamic_batch=["z"])


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x * x.shape[0], "more than whole numbers differs"),
        (lambda x: x.sum() if x.shape[0] > 2 else x, "more than whole numbers differs"),
        (
            lambda x: x.sum() if x.shape[0] > 3 else x,
            "at batch 4 its graph is not what those of 2 and 3 suggest",
        ),
        (lambda x: (x, x.shape[0]), "returns other plain values"),
        (lambda x: F.broadcast_to(x[:1], (x.shape[0] ** 2, 2)), "not what those of"),
        (lambda x: x + np.arange(float(x.shape[0]))[:, None], "uses other tensors"),
        (lambda x: 1 / (x.shape[0] == 2) + x, "recording it at batch 3 failed"),
    ],
)
def test_a_file_for_one_batch_size_says_why(function, reason, capsys):
    traced = trace(function)
    x = tensor(np.ones((2, 2)))
    wanted = traced(x)
    file = io.BytesIO()
    debug.seen.clear()
    info = traced.dump(file, dynamic_batch=True)
    assert not info.dynamic_batch
    file.seek(0)
    model = load_model(file)
    assert not model.dynamic_batch
    assert re.search(reason, model.fixed_because), model.fixed_because
    assert "the file is for one batch size" in capsys.readouterr().err
    made = model(x)
    one, other = (m[0] if isinstance(m, tuple) else m for m in (made, wanted))
    assert bits(one) == bits(other)
    with pytest.raises(ShapeError):
        model(tensor(np.ones((3, 2))))


def test_the_last_run_is_dumped():
    @trace
    def function(x):
        return x + 1

    one, two = tensor([1.0]), tensor([1.0, 2.0])
    for x in (one, two, one):
        function(x)
    assert dumped(function).inputs[0].type.shape == (1,)
    assert dumped(function, dynamic_batch=True)(two).tolist() == [2.0, 3.0]


@pytest.mark.parametrize(
    ("first", "second", "general"),
    [
        ("f32[2, 3]", "f32[3, 3]", "f32[n, 3]"),
        ("{shape=(6, 1), k=-4}", "{shape=(9, 1), k=-5}", "{shape=(3*n, 1), k=-1*n-2}"),
        ("a(%1) {i=1}", "a(%1) {i=2}", "a(%1) {i=n-1}"),
        ("a {t='2', y=0x02}", "a {t='2', y=0x02}", "a {t='2', y=0x02}"),
    ],
)
def test_two_texts_give_one(first, second, general):
    assert generalised(first, 2, second, 3) == general


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ("%1 = add(%0)", "%1 = sub(%0)", "more than whole numbers differs"),
        ("{y=0x01}", "{y=0x02}", "more than whole numbers differs"),
        ("{f=0.5}", "{f=0.25}", "more than whole numbers differs"),
        ("a()", "a() b()", "more than whole numbers differs"),
    ],
)
def test_texts_that_have_no_common_form(first, second, reason):
    with pytest.raises(FixedBatch, match=reason):
        generalised(first, 2, second, 3)


def test_numbers_grow_by_whole_steps():
    with pytest.raises(FixedBatch, match=r"not a\*n\+b"):
        generalised("{i=1}", 2, "{i=2}", 4)
