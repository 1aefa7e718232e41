"""A folder of fake distributions for the workers of the kit, and a way to run the kit on what they offer."""

import os
import re
from pathlib import Path

import pytest

import mge
from mge.testing import Report, Runner
from tools.count_lines import ROOT

HERE = Path(__file__).parent
SOURCE = Path(mge.__file__).parents[1]


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """Return a search path on which the planted backends, and the toy example, are installed."""
    folder = tmp_path_factory.mktemp("site")
    planted = (HERE / "site" / "planted.py").read_text()
    names = re.findall(
        r'^(?:class (\w+)\(good_queue|class (\w+)\(Good|planted\("(\w+)"|def (bad_load))',
        planted,
        re.M,
    )
    names = ["".join(groups) for groups in names]
    lines = ["good = planted:Good", *[f"{n} = planted:{n}" for n in names]]
    _install(folder, "planted", lines)
    _install(folder, "mge-toy-copy", ["toy = mge_toy:Toy"])
    toy = ROOT / "examples" / "mge-toy" / "src"
    return os.pathsep.join(
        map(str, [folder, HERE / "site", toy, SOURCE, ROOT / "mge-core" / "src"])
    )


def _install(folder, package, lines):
    info = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(["[mge.backends]", *lines]) + "\n")


@pytest.fixture
def workers(site, monkeypatch):
    """Let processes that this test starts find the fake distributions."""
    for name in [n for n in os.environ if n.startswith("MGE_") and n != "MGE_CACHE"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MGE_PLUGINS_DISABLE", "mge-toy")  # where the example itself is installed
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [site, before])))


@pytest.fixture
def kit(workers):
    """Run the kit on a device; return its report."""
    runners = []

    def run(device, **settings):
        runner = Runner(device, **settings)
        runners.append(runner)
        return Report(runner, runner.results())

    yield run
    for runner in runners:
        runner.close()
