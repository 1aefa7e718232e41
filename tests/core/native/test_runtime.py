"""Plans in files: ``mge compile``, and C++ programs that run them with the bits that Python gives."""

import json
import os
import shutil
import subprocess

import numpy as np
import pytest

import mge
import mge.functional as F
from mge.autodiff import GradManager
from mge.cli import main
from mge.debug import debug
from mge.jit import trace
from mge.modelfile import load_model
from mge.optimizer import SGD
from tests.core.native.build import HERE, NATIVE, ROOT, TOY, compiled
from tests.core.native.test_parts import SOURCES, can_build

DEVICE = "toy_native:0"


@pytest.fixture
def weights(native_device, rng):
    native_device("toy_native")
    shapes = [(6, 16), (16,), (16, 4), (4,)]
    return [mge.Parameter(rng.normal(size=s).astype("float32"), device=DEVICE) for s in shapes]


@pytest.fixture
def network(weights, rng, tmp_path):
    """The file of a network for all batch sizes."""
    w1, b1, w2, b2 = weights

    @trace
    def net(x):
        hidden = F.maximum(F.matmul(x, w1) + b1, 0.0)
        return {"y": F.matmul(hidden, w2 * 0.5) + b2, "hidden": hidden}

    net(mge.tensor(rng.normal(size=(8, 6)).astype("float32"), device=DEVICE))
    net.dump(tmp_path / "net.mge", dynamic_batch=True)
    return tmp_path / "net.mge"


@pytest.fixture
def training(weights, rng, tmp_path):
    """The file of a training step; the gradient of its mean square error is written out, as the toy has no sum."""
    w1, _, w2, _ = weights
    manager, optimizer = GradManager().attach([w1, w2]), SGD([w1, w2], lr=0.1, momentum=0.9)

    @trace
    def step(x, target):
        with manager:
            y = F.matmul(F.tanh(F.matmul(x, w1)), w2)
            manager.backward(y, (y - target) * 0.25)
        optimizer.step().clear_grad()
        return y

    for _ in range(3):  # from the second step on momentum is there
        step(*[mge.tensor(a, device=DEVICE) for a in examples(rng)])
    step.dump(tmp_path / "step.mge")
    return tmp_path / "step.mge"


def examples(rng):
    return [rng.normal(size=s).astype("float32") for s in ((8, 6), (8, 4))]


def compile_file(model, *words):
    target = model.with_suffix(".mgeplan")
    assert main(["compile", str(model), "--device", DEVICE, "--out", str(target), *words]) == 0
    return target


@pytest.fixture(scope="module")
def run_plan(compiler, tmp_path_factory):
    """The program of ``examples/cpp-runtime``, built by CMake."""
    if shutil.which("cmake") is None:
        pytest.skip("no cmake here")
    folder = tmp_path_factory.mktemp("build")
    configure = ["cmake", "-S", str(ROOT / "examples" / "cpp-runtime"), "-B", str(folder)]
    for command in (
        [*configure, f"-Dmge_core_DIR={mge.get_cmake_dir()}"],
        ["cmake", "--build", str(folder)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    program = folder / "run_plan"
    needed = subprocess.run(["readelf", "-d", program], capture_output=True, text=True).stdout
    assert "libpython" not in needed

    def run(plan, library, inputs, *words):
        data = plan.parent / "data"
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir()
        for name, array in inputs.items():
            array.tofile(data / f"{name}.bin")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        done = subprocess.run(
            [program, plan, library, data, *words],
            env=environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode in (0, 1), done.stderr  # 1: an error that the program caught
        return done.stdout + done.stderr, lambda name: (data / f"{name}.bin").read_bytes()

    return run


@pytest.mark.slow
def test_a_program_gives_the_bits_that_python_gives(run_plan, network, library, rng, capsys):
    plan = compile_file(network, "--batch", "1,8", "--json")
    facts = json.loads(capsys.readouterr().out)
    assert [p["batch"] for p in facts["plans"]] == [1, 8] and facts["states"] == []
    assert facts["library"] == library("toy_native") and facts["nbytes"] == plan.stat().st_size
    model = load_model(network, DEVICE)
    for batch in (1, 8):
        x = rng.normal(size=(batch, 6)).astype("float32")
        text, result = run_plan(plan, library("toy_native"), {"x": x})
        wanted = model(mge.tensor(x, device=DEVICE))
        for name in ("y", "hidden"):
            assert result(name) == wanted[name].numpy().tobytes(), name
        steps = [line.split()[2] for line in text.splitlines()[1:]]  # w2 * 0.5 was computed before
        assert steps == ["matmul", "add", "maximum", "matmul", "add"]


@pytest.mark.slow
def test_a_program_trains(run_plan, training, library, rng):
    x, target = examples(rng)
    plan = compile_file(training)
    _, result = run_plan(plan, library("toy_native"), {"x": x, "target": target}, "5")
    model = load_model(training, DEVICE)
    before = {name: w.numpy().tobytes() for name, w in model.weights.items()}
    for _ in range(5):
        y = model(mge.tensor(x, device=DEVICE), mge.tensor(target, device=DEVICE))
    assert result("output0") == y.numpy().tobytes()
    after = {name: w.numpy().tobytes() for name, w in model.weights.items()}
    changed = [name for name in after if after[name] != before[name]]
    assert len(changed) == 4  # two parameters, two momenta
    for name in changed:
        assert result(name) == after[name], name


@pytest.mark.slow
def test_prepare_is_told_the_weights_of_the_file(run_plan, native_device, library, tmp_path):
    """The library adds 100 to a constant that it knew, so that the result shows it."""
    device = native_device("extras")
    w = mge.Parameter(np.arange(4, dtype=np.float32), device=device)
    function = trace(lambda x: x + w)
    function(mge.tensor(np.zeros(4, np.float32), device=device))
    function.dump(tmp_path / "f.mge")
    plan = compile_file(tmp_path / "f.mge", "--device", "extras:0")
    _, result = run_plan(plan, library("extras"), {"x": np.ones(4, np.float32)})
    assert np.frombuffer(result("output0"), np.float32).tolist() == [101, 102, 103, 104]


@pytest.mark.slow
def test_streams_and_their_events_are_in_the_file(run_plan, native_device, library, rng, tmp_path):
    device = native_device("fake_async")  # each stream is late in its own way

    @trace
    def function(a, b):
        x, y = a, b
        for _ in range(6):
            x, y = x + a, y * b
        return x, y, x + y

    arrays = [rng.normal(size=8).astype("float32") for _ in range(2)]
    results = function(*[mge.tensor(a, device=device) for a in arrays])
    function.dump(tmp_path / "f.mge")
    plan = compile_file(tmp_path / "f.mge", "--device", "fake_async:0")
    _, result = run_plan(plan, library("fake_async"), dict(zip("ab", arrays)))
    _, again = run_plan(plan, library("fake_async"), dict(zip("ab", arrays)), "3")
    for i, wanted in enumerate(results):
        assert result(f"output{i}") == again(f"output{i}") == wanted.numpy().tobytes(), i


@pytest.mark.slow
def test_a_step_that_fails_is_named(run_plan, native_device, library, tmp_path):
    device, state = native_device("probe"), [mge.tensor([1.0], device="probe:0")]

    @trace
    def function(x):
        state[0] += x
        return -(x * x)

    function(mge.tensor([2.0], device=device))
    function.dump(tmp_path / "f.mge")
    plan = compile_file(tmp_path / "f.mge", "--device", "probe:0")
    x = np.float32([1001**0.5])
    assert x * x == 1001
    text, _ = run_plan(plan, library("probe"), {"x": x})
    assert text.rstrip().endswith("op neg: the value is 1001")


@pytest.mark.slow
def test_another_version_of_the_library_must_fit_the_plan(
    run_plan, network, library, rng, tmp_path
):
    plan = compile_file(network, "--batch", "1,8")
    text = TOY.read_text()
    x = {"x": rng.normal(size=(8, 6)).astype("float32")}
    for number, (old, new, reason) in enumerate(
        [
            (
                ".inplace(0).inplace(1)",
                "",
                "writes its output over an input, which the kernel does",
            ),
            ('"add"', '"plus"', "op add: the library refuses it (no kernel)"),
            ('"toy_native",', '"other",', "it was compiled for toy_native; "),
        ]
    ):
        source = tmp_path / f"toy{number}.cc"
        source.write_text(text.replace(old, new))
        shown, _ = run_plan(plan, library(f"other{number}", source=source), x)
        assert reason in shown and "run_plan: " in shown


@pytest.mark.slow
def test_damaged_files_and_wrong_calls_are_clear_errors(compiler, training, library, tmp_path):
    if not NATIVE.is_dir():
        pytest.skip("the sources of the native core are not here")
    plan = compile_file(training)
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    flags = flags if can_build(compiler, flags, tmp_path) else []
    sources = [NATIVE / f"{s}.cc" for s in (*SOURCES, "plan_file", "runtime")]
    program = compiled(
        tmp_path / "runtime_test", HERE / "runtime_test.cc", *sources, flags=flags, shared=False
    )
    done = subprocess.run(
        [program, plan, library("toy_native"), library("probe"), tmp_path],
        env=os.environ | {"ASAN_OPTIONS": "detect_leaks=1"}, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0 and "good\n" in done.stdout, done.stdout + done.stderr[-5000:]


# What cannot be compiled.


def compile_error(model, capsys, *words):
    assert main(["compile", str(model), *words]) > 0
    assert not model.with_suffix(".mgeplan").exists()
    return capsys.readouterr().err


def test_ops_without_a_kernel_are_named_with_the_reason(native_device, rng, tmp_path, capsys):
    native_device("toy_native")

    @trace
    def function(x):
        return F.sin(x).sum() + F.matmul(x, x)[0, 0]

    with debug(fallback="allow"):
        function(mge.tensor(rng.normal(size=(2, 3, 3)).astype("float32"), device=DEVICE))
    function.dump(tmp_path / "f.mge")
    text = compile_error(tmp_path / "f.mge", capsys, "--device", DEVICE)
    assert "have no native kernel on toy_native:0" in text and "sin(f32[2, 3, 3])" in text
    assert "only products of two matrices" in text and "copy(" not in text


def test_what_a_plan_file_cannot_be_is_said(network, capsys):
    assert "runs in Python" in compile_error(network, capsys, "--device", "ref:0")
    assert "whole numbers from 1" in compile_error(network, capsys, "--batch", "0,x")


def test_a_model_of_one_batch_size_is_compiled_for_it(training, capsys):
    text = compile_error(training, capsys, "--device", DEVICE, "--batch", "4")
    assert "the file is for one batch size" in text
    compile_file(training, "--batch", "8")
    assert "fixed shapes: " in capsys.readouterr().out


def test_a_model_that_rebinds_its_argument_is_refused(native_device, tmp_path, capsys):
    native_device("toy_native")

    @trace
    def function(x):
        x += 1.0
        return x * 2.0

    function(mge.tensor([1.0, 2.0], device=DEVICE))
    function.dump(tmp_path / "f.mge")
    assert "rebinds an argument" in compile_error(tmp_path / "f.mge", capsys, "--device", DEVICE)


def test_equal_models_give_equal_files(network):
    first = compile_file(network, "--batch", "1,8").read_bytes()
    assert compile_file(network, "--batch", "1,8").read_bytes() == first
    assert np.frombuffer(first[16:24], "<u8")[0] == len(first)
