"""The kit on devices whose memory is their own: two in Python and a library; and faults of such devices."""

import importlib.util
import os

import pytest

from tests.core.native.build import CXX, HERE, compiled
from tools.count_lines import ROOT

OPS = ["add", "conv", "copy", "exp", "matmul", "reshape", "sum"]
LEVELS = ["L0/*", "L1/*", "L2/*", "L3/*", "L4/add/*", "L4/matmul/*", "L5/*", "L6/*"]

FAULTS = """
from mge.plugin import CopyKind
from tests.core.plugins.opaque import Opaque, OpaqueQueue

class Offset(Opaque):  # copies within the device start at the block's first byte
    name = "bad_offset"
    def copy(self, dev, target, source, nbytes, kind, stream):
        if kind == CopyKind.DEVICE_TO_DEVICE:
            source = type(source)(source.device, source.memory, 0, source.shape, source.dtype, None)
        super().copy(dev, target, source, nbytes, kind, stream)

class Past(Opaque):  # a kernel writes one byte past its output
    name = "bad_past"
    def kernel(self, dev, use):
        right = super().kernel(dev, use)
        def kernel(inputs, outputs, stream):
            right(inputs, outputs, stream)
            for out in outputs:
                block = self.table[out.memory.number]
                if use.op.name == "exp" and out.nbytes and out.offset + out.nbytes < block.size:
                    block[out.offset + out.nbytes] ^= 1
        return kernel

class Early(OpaqueQueue):  # one kernel ignores its stream
    name = "bad_early"
    def kernel(self, dev, use):
        compute = super().kernel(dev, use)
        late = use.op.name != "exp"
        return lambda inputs, outputs, stream: compute(inputs, outputs, stream if late else None)
"""


@pytest.fixture
def install(workers, tmp_path, monkeypatch):
    """Let the kit's processes find some entry points of a module."""

    def make(entries, source):
        (tmp_path / "own_devices.py").write_text(source)
        info = tmp_path / "own_devices-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-devices\nVersion: 1.0\n")
        lines = [f"{name} = own_devices:{what}" for name, what in entries.items()]
        (info / "entry_points.txt").write_text("\n".join(["[mge.backends]", *lines]) + "\n")
        path = [str(tmp_path), str(ROOT), os.environ["PYTHONPATH"]]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))

    return make


@pytest.mark.parametrize("name", ["opaque", "opaque_queue"])
def test_a_python_device_passes(install, kit, name):
    source = "from tests.core.plugins.opaque import Opaque, OpaqueQueue\n"
    install({"opaque": "Opaque", "opaque_queue": "OpaqueQueue"}, source)
    report = kit(name, patterns=LEVELS, ops=OPS)
    assert not report.bad, [r.text for r in report.bad]
    outcomes = {r.case: r.outcome for r in report.results}
    wanted = ["L1/copies", "L1/round_trip/bfloat16", "L3/conv/0/float32", "L6/matmul/leak"]
    wanted += ["L2/matmul/event", "L2/event/many"] if name == "opaque_queue" else []
    assert {outcomes[case] for case in wanted} == {"passed"}


def test_a_library_with_streams_passes(install, kit, tmp_path):
    if importlib.util.find_spec("mge._native") is None or CXX is None:
        pytest.skip("mge._native is not built, or there is no C++ compiler")
    library = HERE / "libraries" / "own_memory.cc"
    built = compiled(tmp_path / "libown.so", library, flags=["-DOWN_DELAY_US=20"])
    source = "from mge.plugin import NativeBackend\n"
    install({"own_memory": "make"}, f"{source}def make(): return NativeBackend({str(built)!r})\n")
    levels = [
        "L0/*",
        "L1/*",
        "L2/plan/0[0-3]",
        "L3/add/*",
        "L3/matmul/*",
        "L4/matmul/*",
        "L6/add/*",
    ]
    report = kit("own_memory", patterns=levels, ops=["add", "copy", "matmul"])
    assert not report.bad, [r.text for r in report.bad]
    outcomes = {r.case: r.outcome for r in report.results}
    wanted = ["L1/copies", "L1/out_of_memory", "L2/plan/00", "L3/matmul/0/float32", "L6/add/leak"]
    assert {outcomes[case] for case in wanted} == {"passed"}


@pytest.mark.parametrize(
    ("name", "kind", "case", "text"),
    [
        ("bad_offset", "Offset", "L1/copies", "from byte 64 of another buffer, gave other bytes"),
        ("bad_past", "Past", "L3/exp/0/float32", "the kernel wrote 1 bytes past the end of it"),
        ("bad_early", "Early", "L2/exp/order", "the kernel ignored its stream"),
    ],
)
def test_planted_faults_are_found(install, kit, name, kind, case, text):
    install({name: kind}, FAULTS)
    report = kit(name, patterns=[case], ops=["add", "exp"])
    assert len(report.bad) == 1 and text in report.bad[0].text, [r.text for r in report.results]
