"""The kit on libraries: a fake asynchronous device, as it is and with faults in its streams."""

import importlib.util
import os

import pytest

from tests.core.native.build import CXX, HERE, compiled

FAULTS = {
    "fake": [],
    "no_wait": [  # streams do not wait for events
        (
            "static_cast<Event*>(event)->hold_back(*static_cast<Stream*>(stream))",
            "(void)event, (void)stream",
        ),
    ],
    "no_queue": [  # products are computed at once, whatever their stream has to do before
        ("  queue->push([=] {\n    int now", "  auto job = [=] {\n    int now"),
        (
            "    --running;\n  });",
            "    --running;\n  };\n  if (work->is_late) queue->push(job); else job();",
        ),
        (
            "  float (*function)(float, float);\n};",
            "  float (*function)(float, float);\n  bool is_late;\n};",
        ),
        ('"add") ? add : mul};', '"add") ? add : mul, !strcmp(op->name, "add")};'),
    ],
}


@pytest.fixture
def library(workers, tmp_path, monkeypatch):
    """Install the fake device, with a fault, for the workers."""
    if importlib.util.find_spec("mge._native") is None or CXX is None:
        pytest.skip("mge._native is not built, or there is no C++ compiler")

    def install(fault):
        text = (HERE / "libraries" / "fake_async.cc").read_text()
        for before, after in FAULTS[fault]:
            assert before in text
            text = text.replace(before, after)
        (tmp_path / "fake.cc").write_text(text)
        built = compiled(
            tmp_path / "libfake.so", tmp_path / "fake.cc", flags=["-DFAKE_DELAY_US=100"]
        )
        module = f"from mge.plugin import NativeBackend\ndef backend(): return NativeBackend({str(built)!r})\n"
        (tmp_path / "fake_queue.py").write_text(module)
        info = tmp_path / "fake_queue-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-queue\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[mge.backends]\nfake_async = fake_queue:backend\n")
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")

    return install


def test_good_streams_of_a_library_pass(library, kit):
    library("fake")
    report = kit(
        "fake_async", patterns=["L0/*", "L2/*", "L3/add/0/*", "L6/process/*"], ops=["add", "mul"]
    )
    assert not report.bad
    outcomes = {r.case: r.outcome for r in report.results}
    assert (
        outcomes["L2/claim/both"]
        == outcomes["L2/plan/00"]
        == outcomes["L3/add/0/float32"]
        == "passed"
    )


@pytest.mark.parametrize("fault", ["no_wait", "no_queue"])
def test_faults_of_a_library_with_streams_are_found(library, kit, fault):
    library(fault)
    report = kit("fake_async", patterns=["L2/plan/*"])
    assert len(report.bad) > 1
    assert all("of a plan over" in r.text for r in report.bad)
