"""Op libraries: loaded by namespace, with kernels of their own or by their references."""

import pytest

import mge
import mge.functional as F
from mge import registry
from mge.errors import PluginNotInstalled

SOURCE = """
    import numpy as np
    from mge.plugin import OperatorLibrary, abstract, op

    @op(name="acme::half")
    def half(inp):
        "Return the half."
        return abstract(inp.shape, inp.dtype)

    @half.reference
    def _(inp):
        return inp / 2

    class Library(OperatorLibrary):
        namespace = "acme"
        asked = []

        def kernels(self, backend):
            self.asked.append(backend)
            {kernels}

    def kernel(use):
        return lambda inputs, outputs, stream: np.multiply(inputs[0], 0.5, out=outputs[0])
"""


@pytest.fixture
def library(here):
    def add(kernels="return {'acme::half': kernel}"):
        source = SOURCE.format(kernels=kernels)
        return here.add("acme-ops", {"mge.ops": {"acme": "acme_ops:Library"}}, {"acme_ops": source})

    return add


def test_a_namespace_loads_its_library(library):
    library()
    mge.parse_graph("graph(%0: f32[2]) {\n  %1: f32[2] = acme::half(%0)\n  return %1\n}")
    assert next(p for p in registry.plugins("ops") if p.name == "acme").state == "loaded"


def test_functional_has_the_library(library):
    library()
    assert F.acme.half(mge.tensor([4.0])).item() == 2.0
    with pytest.raises(AttributeError, match="has no op 'third'"):
        _ = F.acme.third
    import acme_ops

    assert acme_ops.Library.asked == ["ref"]


def test_a_library_without_its_native_part_runs_by_its_references(library, capsys):
    library("raise OSError('libacme.so')")
    assert F.acme.half(mge.tensor([4.0])).item() == 2.0
    line = "mge: op library acme (acme-ops 1.0) runs by its references: kernels(): OSError: libacme.so\n"
    assert capsys.readouterr().err == line


def test_a_maker_that_gives_no_kernel_is_told(library, capsys):
    library("return {'acme::half': lambda use: 3}")
    assert F.acme.half(mge.tensor([4.0])).item() == 2.0
    assert "TypeError: acme::half gave 3, which is no kernel" in capsys.readouterr().err


def test_a_library_runs_on_other_devices(library, here):
    library().add_toy()
    y = F.acme.half(mge.tensor([4.0], device="toy") + 1.0)
    assert y.item() == 2.5 and y.device == "toy:0"
    import acme_ops

    assert acme_ops.Library.asked == ["toy"]


def test_functional_names_the_package():
    assert not hasattr(F, "no_such_function")
    if not any(p.name == "vision" for p in registry.plugins("ops")):
        with pytest.raises(PluginNotInstalled, match="pip install mge-vision"):
            _ = F.vision
