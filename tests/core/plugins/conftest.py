"""Fake distributions: folders with metadata and modules, put on the path of this process or of another one."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import mge
from mge import device, registry
from mge.cache import PLANS
from mge.control import run_reference
from mge.debug import debug
from mge.discovery import discover
from mge.op import OPS
from mge.plugin import Backend
from tests.core.plugins.installed import REAL

SOURCE = Path(mge.__file__).parents[1]

TOY = """
    import numpy as np
    from mge.plugin import HostBackend

    class Toy(HostBackend):
        name = "{name}"
        kernels = {{"add": np.add, "mul": np.multiply}}
"""


class Site:
    """A folder of fake distributions."""

    def __init__(self, path):
        self.path = path

    def add(self, package, entries, modules=None, version="1.0", requires=()):
        """Write the metadata of a distribution, and modules by name.

        ``entries`` maps groups to {name: value}, or is the text of entry_points.txt.
        """
        info = self.path / f"{package.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {package}", f"Version: {version}"]
        lines += [f"Requires-Dist: {r}" for r in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        if isinstance(entries, dict):
            entries = "\n".join(
                f"[{group}]\n" + "".join(f"{n} = {v}\n" for n, v in names.items())
                for group, names in entries.items()
            )
        (info / "entry_points.txt").write_bytes(
            entries if isinstance(entries, bytes) else entries.encode()
        )
        for name, text in (modules or {}).items():
            (self.path / f"{name}.py").write_text(textwrap.dedent(text))
        return self

    def add_toy(self, name="toy", package=None):
        """Add a backend with two kernels that works."""
        package = package or f"mge-{name}"
        module = package.replace("-", "_")
        entries = {"mge.backends": {name: f"{module}:Toy"}}
        return self.add(package, entries, {module: TOY.format(name=name)})

    def run(self, *words, **variables):
        """Run Python in a process of its own, with this folder in its path."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("MGE_")}
        env |= {
            "PYTHONPATH": f"{self.path}{os.pathsep}{SOURCE}",
            "MGE_PLUGINS_DISABLE": ",".join(REAL),
            **variables,
        }
        return subprocess.run(
            [sys.executable, *words], env=env, cwd=self.path,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    def python(self, code, **variables):
        """Run code; return what it printed, and what it wrote to standard error."""
        done = self.run("-c", textwrap.dedent(code), **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    def mge(self, *words, **variables):
        """Run a command of mge."""
        return self.run("-m", "mge", *words, **variables)

    def plugins(self, *words, **variables):
        """Run ``mge plugins ... --json``; return the status and the object."""
        done = self.mge("plugins", *words, "--json", **variables)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)


@pytest.fixture
def site(tmp_path):
    """An empty site for other processes."""
    return Site(tmp_path)


def forget():
    PLANS.clear()
    for made in (discover, registry._all, registry._hooks):
        made.cache_clear()


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A site in the path of this process, whose plugins are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(
        debug, "_values", debug._values | {"plugins": "*", "plugins_disable": ",".join(REAL)}
    )
    known = [(d, dict(d)) for d in (device.BACKENDS, device._DEVICES, OPS)]
    default, seen = list(device._default), debug.seen
    debug.seen = set()
    mge.sync()
    for name in set(device.BACKENDS) - {"ref"}:  # loaded by another test
        del device.BACKENDS[name]
    forget()
    yield Site(tmp_path)
    mge.sync()
    for table, before in known:
        for name in set(table) - set(before):
            del table[name]
        table.update(before)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
    device._default[:], debug.seen = default, seen
    forget()


class Partial(Backend):
    """A backend in host memory that computes with the references and refuses some ops by name.

    ``graphs=True`` lets it compile graphs, also by the references; it keeps them, and what it refused.
    """

    is_host, priority = True, -1

    def __init__(self, name, refused=(), min_nodes=None, graphs=False):
        self.name, self.refused, self.min_nodes, self.has_graphs = name, refused, min_nodes, graphs
        self.graphs = []

    def devices(self):
        return (self.name,)

    def supports(self, dev, use):
        refused = (
            self.refused(use.op.name) if callable(self.refused) else use.op.name in self.refused
        )
        return "no kernel" if refused else None

    def kernel(self, dev, use):
        assert self.supports(dev, use) is None
        return device.BACKENDS["ref"].kernel(0, use)

    def compile(self, dev, graph):
        self.graphs.append(graph)

        def kernel(inputs, outputs, stream):
            for output, result in zip(outputs, run_reference(graph, inputs), strict=True):
                output[...] = result

        return kernel


@pytest.fixture
def partial():
    """A function that adds a ``Partial`` backend, and gives its device."""
    added = []
    PLANS.clear()

    def add(*arguments, kind=Partial, **options):
        name = f"partial{len(added)}"
        device.BACKENDS[name] = kind(name, *arguments, **options)
        added.append(name)
        return device.as_device(name)

    seen, debug.seen = debug.seen, set()
    yield add
    debug.seen = seen
    mge.sync()
    PLANS.clear()
    for name in added:
        del device.BACKENDS[name]
        device._DEVICES.pop(f"{name}:0", None)
