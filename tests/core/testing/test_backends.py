"""The kit on backends that keep the contract: ``ref``, the example in Python, and the one in C++ where it is built."""

import pytest

OPS = ["add", "conv", "matmul", "pow", "relu", "softmax", "sort", "sum", "topk", "while_loop"]


def test_ref_passes_every_level(kit):
    report = kit("ref", ops=OPS)
    assert not report.bad
    assert report.trust() == "L6"
    assert set(report.ops()["matmul"].values()) == {"passed"}
    levels = report.levels()
    assert levels["L1"].total() == levels["L1"]["passed"] == 20
    assert levels["L3"]["refused"] == levels["L4"]["refused"] == levels["L6"]["refused"] == 0
    assert report.runner.info["package"] == "mge-core"


@pytest.mark.parametrize("level", ["L3", "L5", "L6"])
def test_all_ops_of_the_toy(kit, level):
    """The levels side by side, as processes of pytest-xdist."""
    report = kit("toy", patterns=["L0/*", f"{level}/*"])
    assert not report.bad
    assert report.runner.info["package"] == "mge-toy-copy"
    if level == "L3":
        taken = {op for op, row in report.ops().items() if "passed" in row.values()}
        assert taken == {*"add sub mul div neg exp maximum relu matmul".split()}
        assert report.ops()["conv"]["float32"] == "refused"
        refused = next(r for r in report.results if r.case == "L3/conv/0/float32")
        assert refused.text == "no kernel"


def test_gradients_across_the_toy(kit):
    report = kit(
        "toy", patterns=["L4/*"], ops=["linear", "matmul", "relu", "softmax", "mean", "while_loop"]
    )
    assert not report.bad
    assert report.levels()["L4"]["passed"] > 0 and report.levels()["L4"]["refused"] > 0


def test_the_native_toy(kit):
    pytest.importorskip("mge._native", reason="mge-core was not built")
    pytest.importorskip("mge_toy_native", reason="mge-toy-native is not installed")
    report = kit("toy_native", ops=["add", "matmul", "tanh", "sort"])
    assert not report.bad
    assert report.trust() == "L6"
    assert report.ops()["matmul"]["float32"] == "passed"


def test_another_seed_is_another_draw(kit):
    from mge.testing.graphs import Program
    from mge.testing.target import Target

    one, same, other = (Program(Target("ref", seed), "program", 1) for seed in (0, 0, 1))
    assert str(one) == str(same) != str(other)
    assert not kit("ref", patterns=["L5/*1"], seed=7).bad
