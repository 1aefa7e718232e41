"""Tuning: what is chosen, when it is timed, and what stays of it. The device here has an op of three algorithms."""

import importlib.util
import json
import time

import numpy as np
import pytest

import mge
from mge import device as devices
from mge import native, tuning
from mge.cli import main
from mge.debug import debug
from mge.jit import trace
from mge.op import OPS
from mge.plugin import abstract, op, rewrite
from mge.refdevice import RefBackend

MILLISECONDS = {"usual": 2, "quick": 0, "slow": 5}


class Backend(RefBackend):
    """NumPy; ``exp`` becomes an op that waits, by its algorithm."""

    name, version = "waiting", "1"
    offers, runs = ("usual", "quick", "slow"), 0

    def passes(self):
        return [("algorithms", self.take_algorithms)]

    def take_algorithms(self, graph):
        def visit(node, inputs):
            if node.sig.op.name != "exp":
                return None
            use = f"exp {node.type}"
            taken = tuning.choose(node.sig.device, use, self.offers, "usual")
            return OPS["test::waits"](inputs[0], algorithm=taken)

        return rewrite(graph, visit)

    def choice_of(self, node):
        if node.sig.op.name != "test::waits":
            return None
        return f"exp {node.type}", dict(node.sig.attrs)["algorithm"], ()

    def kernel(self, dev, sig):
        if sig.op.name != "test::waits":
            return super().kernel(dev, sig)
        algorithm = dict(sig.attrs)["algorithm"]

        def run(inputs, outputs, stream):
            self.runs += 1
            time.sleep(MILLISECONDS[algorithm] / 1e3)
            np.exp(inputs[0], out=outputs[0])

        return run


@pytest.fixture
def backend(monkeypatch, tmp_path):
    """The device's backend, with an empty tuning cache."""
    if importlib.util.find_spec("mge._native") is None:
        pytest.skip("mge._native is not built: pip install ./mge-core")

    @op(name="test::waits")
    def waits(x: mge.Tensor, *, algorithm: str = "usual") -> mge.Tensor:
        """Compute exp(x)."""
        return abstract(x.shape, x.dtype)

    waits.reference(lambda x, *, algorithm: np.exp(x))
    made = Backend()
    monkeypatch.setitem(devices.BACKENDS, "waiting", made)
    monkeypatch.setattr(devices, "_default", [devices.Device(made, 0)])
    with debug(cache=str(tmp_path)):
        reopen()
        yield made
    native.load_module().tuning_open(str(native.tuning_path()))
    del OPS["test::waits"]


def reopen():
    """Read the tuning cache again, as a new process would."""
    tuning._CHECKED.clear()
    native.load_module().tuning_open(str(native.tuning_path()))


def entries():
    return native.load_module().tuning_statistics()[0]


def taken(function):
    """The algorithm in the last plan of a trace."""
    plan = next(reversed(function.last.plans.values())).plan
    return next(a[1] for s in plan.steps for a in s.slot.node.sig.attrs if a[0] == "algorithm")


def made(**options):
    return trace(lambda x: mge.functional.exp(x) * 2, **options)


X = np.arange(6, dtype=np.float32)


def test_the_quickest_is_chosen_and_stays(backend):
    before, tuned, after = made(), made(tune=True), made()
    y = before(mge.tensor(X)).numpy()
    assert taken(before) == "usual" and entries() == 0
    assert (tuned(mge.tensor(X)).numpy() == y).all() and taken(tuned) == "quick"
    assert entries() == 1
    reopen()
    after(mge.tensor(X)).numpy()
    assert taken(after) == "quick"


def test_without_a_clear_win_the_present_one_stays(backend, monkeypatch):
    monkeypatch.setitem(MILLISECONDS, "quick", 2)
    tuned = made(tune=True)
    tuned(mge.tensor(X)).numpy()
    assert taken(tuned) == "usual" and entries() == 1


def test_an_ordinary_run_times_nothing(backend, monkeypatch):
    def fail(*given):
        raise AssertionError("an ordinary run was timed")

    monkeypatch.setattr(tuning, "tune", fail)
    monkeypatch.setattr(tuning._Timed, "__init__", fail)
    function = made()
    for _ in range(3):
        function(mge.tensor(X)).numpy()
        (mge.functional.exp(mge.tensor(X)) + 1).numpy()
    assert backend.runs == 3 + 2  # undecorated: at first sight the op itself runs
    assert entries() == 0


def test_what_has_entries_is_not_timed_again(backend):
    made(tune=True)(mge.tensor(X)).numpy()
    runs = backend.runs
    made(tune=True)(mge.tensor(X)).numpy()
    assert backend.runs == runs + 1


def test_undecorated_code_is_tuned_where_that_is_set(backend):
    with debug(tune=True):
        for _ in range(3):
            y = (mge.functional.exp(mge.tensor(X)) + 3).numpy()
    assert entries() == 1 and np.allclose(y, np.exp(X) + 3)
    after = made()
    after(mge.tensor(X)).numpy()
    assert taken(after) == "quick"


def test_another_version_or_number_of_threads_is_another_entry(backend):
    device = devices.Device(backend, 0)
    keys = {tuning._key(device, "exp")}
    for threads in (1, 2, 3, 4):
        with debug(threads=threads):
            keys.add(tuning._key(device, "exp"))
    assert {k.split()[-2] for k in keys} >= {"t1", "t2", "t4"}
    backend.version = "2"
    assert tuning._key(device, "exp") not in keys


def test_an_entry_that_the_device_no_longer_has_is_not_taken(backend):
    made(tune=True)(mge.tensor(X)).numpy()
    backend.offers = ("usual", "slow")
    after = made()
    after(mge.tensor(X)).numpy()
    assert taken(after) == "usual"


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda data: data[:-4] + b"zzz\n", "1 damaged lines are ignored"),
        (lambda data: b"something else\n", "no file of tuning results of this version"),
    ],
)
def test_a_damaged_file_is_told_and_mended(backend, capsys, damage, text):
    made(tune=True)(mge.tensor(X)).numpy()
    path = native.tuning_path()
    path.write_bytes(damage(path.read_bytes()))
    reopen()
    after = made()
    after(mge.tensor(X)).numpy()
    assert taken(after) == "usual" and f"{path}: " in (told := capsys.readouterr().err)
    assert text in told
    made(tune=True)(mge.tensor(X)).numpy()
    reopen()
    again = made()
    again(mge.tensor(X)).numpy()
    assert taken(again) == "quick"
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # nothing half written stays


def test_what_has_side_effects_is_not_run_for_its_times(backend):
    calls = []

    @trace(tune=True)
    def function(x):
        y = mge.host_call(lambda a: calls.append(1) or a, [((6,), "float32")], x)
        return mge.functional.exp(y)

    function(mge.tensor(X)).numpy()
    assert len(calls) == 1 and entries() == 0


def test_a_failure_while_timing_costs_a_line(backend, monkeypatch, capsys):
    monkeypatch.setattr(tuning, "tune", lambda *given: 1 / 0)
    assert np.allclose(made(tune=True)(mge.tensor(X)).numpy(), np.exp(X) * 2)
    assert "tuning failed: ZeroDivisionError" in capsys.readouterr().err


# mge tune, mge env


@pytest.fixture
def model(backend, tmp_path):
    function, path = made(), tmp_path / "net.mge"
    function(mge.tensor(X)).numpy()
    function.dump(path)
    return str(path)


def test_results_that_cannot_be_kept_cost_a_line(backend, tmp_path, capsys):
    (tmp_path / "file").touch()
    with debug(cache=str(tmp_path / "file" / "folder")):
        reopen()
        tuned = made(tune=True)
        tuned(mge.tensor(X)).numpy()
    assert taken(tuned) == "quick", "the choice holds for this process"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"mge: tuning results are not kept: {tmp_path}/file/folder/")
    assert "MGE_CACHE names the folder" in line


def test_the_command_tells_what_changed(model, capsys):
    assert main(["tune", model, "--seconds", "1"]) == 0
    out = capsys.readouterr().out
    assert "usual" in out and "quick" in out and str(native.tuning_path()) in out
    assert "1 of 1 choices changed" in out
    assert main(["tune", model, "--json", "--input", "6", "--seconds", "1"]) == 0
    facts = json.loads(capsys.readouterr().out)
    (choice,) = facts["choices"]
    assert (choice["old"], choice["new"]) == ("quick", "quick")


def test_the_environment_has_the_caches_hash(model, capsys):
    hashes = []
    for words in (["tune", model, "--seconds", "1"], ["env", "--json"]):
        main(["env", "--json"])
        hashes.append(json.loads(capsys.readouterr().out)["tuning_cache"])
        assert main(words) == 0
        capsys.readouterr()
    assert "0 entries, hash " in hashes[0] and "1 entries, hash " in hashes[1]
    assert hashes[0][-16:] != hashes[1][-16:]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--input", "3", "--input", "3"], "--input is given 2 times; the model has 1 inputs"),
        (["--input", "3x3"], "--input is (3, 3); input x of the model is f32[6]"),
        (["--input", "7"], "input x has shape (7,); the file takes (6,)"),
        (["--input", "a"], "'a' is no shape"),
        (["--seconds", "0"], "'0' is no whole number"),
    ],
)
def test_wrong_words_are_told(model, capsys, words, text):
    assert main(["tune", model, *words]) != 0
    assert text in capsys.readouterr().err


def test_a_device_without_choices_says_so(model, capsys):
    assert main(["tune", model, "--device", "ref:0"]) == 0
    assert "ref:0 has one algorithm" in capsys.readouterr().out
