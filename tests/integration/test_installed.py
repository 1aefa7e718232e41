"""What is installed, whatever it is: a net trains on each device that works, and what does not work says why.

tox runs these in environments of exactly the distributions that their names say.
"""

import json
import subprocess
import sys

import numpy as np
import pytest

import mge
import mge.functional as F
import mge.module as M
from mge import registry
from mge.autodiff import GradManager
from mge.debug import debug
from mge.optimizer import SGD

# Of tests/integration/mge-broken.
REASONS = {
    "broken": ("failed", "libmge_broken_driver.so.5"),
    "broken_api": ("incompatible", "9.0"),
    "broken_exit": ("failed", "no licence"),
    "broken_hooks": ("incompatible", "mge_graph_pases"),
}


def plugins(*words):
    done = subprocess.run(
        [sys.executable, "-m", "mge", "plugins", *words, "--json"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return json.loads(done.stdout)["plugins"]


@pytest.fixture(scope="module")
def checked():
    """Each plugin, loaded in a process of its own."""
    return {p["name"]: p for p in plugins("check")}


def losses(device, steps=4):
    """Train a small convolutional net; return the losses."""
    rng = np.random.default_rng(3)
    mge.set_default_device(device)
    try:
        net = M.Sequential(
            M.Conv2d(1, 4, 3), M.ReLU(), M.MaxPool2d(2), M.Flatten(), M.Linear(36, 10)
        )
        for p in net.parameters():
            p[...] = rng.normal(size=p.shape).astype("float32") * 0.3
        manager = GradManager().attach(net.parameters())
        optimizer = SGD(net.parameters(), lr=0.05, momentum=0.9)
        found = []
        for _ in range(steps):
            x = mge.tensor(rng.normal(size=(16, 1, 8, 8)).astype("float32"))
            y = mge.tensor(rng.integers(0, 10, 16).astype("int32"))
            with manager:
                loss = F.cross_entropy(net(x), y)
                manager.backward(loss)
            optimizer.step().clear_grad()
            found.append(loss.item())
        return found
    finally:
        mge.set_default_device("ref")


def test_a_net_trains_on_each_device_that_works(checked):
    expected = losses("ref")
    assert expected[-1] < expected[0] * 2  # finite, at least
    devices = [
        p["name"] for p in checked.values() if (p["kind"], p["state"]) == ("backend", "loaded")
    ]
    with debug(fallback="allow"):
        for device in devices:
            np.testing.assert_allclose(losses(device), expected, rtol=1e-4, err_msg=device)


def test_what_does_not_work_says_why(checked):
    there = {p.name for p in registry.plugins() if p.package == "mge-broken"}
    assert there in (set(), {*REASONS})
    for name in there:
        state, reason = REASONS[name]
        assert checked[name]["state"] == state and reason in checked[name]["reason"], checked[name]
    wrong = [p for p in checked.values() if p["state"] in ("failed", "incompatible")]
    assert {p["package"] for p in wrong} <= {"mge-broken"}, wrong


def test_importing_mge_imports_no_plugin():
    code = "import sys, mge; print([m for m in sys.modules if m.startswith('mge_')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_a_device_is_chosen_whatever_is_broken():
    code = "import mge; print((mge.tensor([1.0]) + 1.0).tolist())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[2.0]\n", done.stderr
    assert "Traceback" not in done.stderr
