"""Loading vendors' libraries: versions, faults, and what each is told."""

import re
from pathlib import Path

import numpy as np
import pytest

import mge
from mge.errors import PluginContractError, PluginIncompatible, PluginUnavailable
from mge.graph import Signature
from mge.native import NativeBackend
from mge.op import OPS
from mge.types import Type
from tests.core.native.build import HERE, compiled


def negates(backend):
    """Whether the backend's kernel for ``neg`` works."""
    use = Signature(OPS["neg"], (Type((5,), mge.float32),), (), (Type((5,), mge.float32),), None)
    assert backend.supports(0, use) is None
    x, y = np.arange(5, dtype=np.float32), np.zeros(5, np.float32)
    backend.kernel(0, use)([x], [y], None)
    return (y == -x).all()


@pytest.fixture(scope="module")
def golden(compiler, tmp_path_factory):
    """Build ``minimal.c`` against a golden or changed header."""
    folder = tmp_path_factory.mktemp("golden")

    def build(name, change=lambda text: text, *flags):
        where = folder / name
        where.mkdir()
        header = (HERE / "golden" / "plugin_1_0.h").read_text()
        (where / "plugin.h").write_text(change(header))
        source = where / "minimal.c"
        source.write_text((HERE / "libraries" / "minimal.c").read_text())
        return str(compiled(where / f"lib{name}.so", source, flags=[f"-I{where}", *flags]))

    return build


def newer(minor, extra="int (*later)(void);"):
    """Return a change that makes the 1.0 header that of a later minor version."""

    def change(text):
        text = text.replace("#define MGE_ABI_MINOR 0", f"#define MGE_ABI_MINOR {minor}")
        return re.sub(r"  /\* What 1\.1 adds.*?\*/", f"  {extra}", text)

    return change


def test_a_library_of_version_1_0_loads(module, golden):
    backend = NativeBackend(golden("v10"))
    assert backend.name == "minimal" and backend.vendor == "Minimal Ltd." and backend.abi == (1, 0)
    assert (
        backend.is_host
        and backend.probe() is None
        and backend.devices() == [""]
        and negates(backend)
    )
    assert backend.stream_count == 1 and not backend.has_graphs


def test_an_older_and_smaller_table_loads(module, golden):
    path = golden("older", lambda t: t, "-DSTRUCT_SIZE=offsetof(MgeBackend,stream_create)")
    backend = NativeBackend(path)
    assert negates(backend) and not backend.handle.has_streams and not backend.has_graphs


def test_a_newer_minor_that_asks_for_nothing_new_loads(module, golden):
    path = golden("newer", newer(7), "-DMINOR=7")
    backend = NativeBackend(path)
    assert backend.abi == (1, 7) and negates(backend)


def test_a_newer_and_larger_table_loads(module, golden):
    path = golden("larger", newer(3), "-DMINOR=3", "-DSTRUCT_SIZE=sizeof(MgeBackend)+256")
    assert negates(NativeBackend(path))


def test_a_library_that_needs_a_newer_host_is_refused(module, golden):
    path = golden("needs", newer(4), "-DMINOR=4", "-DMIN_HOST_MINOR=4")
    with pytest.raises(PluginIncompatible) as caught:
        NativeBackend(path)
    assert (
        caught.value.args[0]
        == "libneeds.so was built for plugin ABI 1.4 or newer; this mge-core offers 1.0."
    )


def test_a_library_that_refuses_the_host_by_itself_is_incompatible(module, golden):
    path = golden("target", newer(4), "-DMGE_TARGET_ABI_MINOR=4")
    with pytest.raises(
        PluginIncompatible,
        match=r"libtarget.so: built for plugin ABI 1.4 or newer; this mge-core offers 1.0",
    ):
        NativeBackend(path)


def test_another_major_version_is_refused_by_its_symbol(module, golden):
    path = golden("major", lambda t: t, "-DOTHER_ENTRY=mge_backend_entry_v2")
    with pytest.raises(PluginIncompatible) as caught:
        NativeBackend(path)
    assert (
        caught.value.args[0]
        == "libmajor.so was built for plugin ABI 2.0 or newer; this mge-core offers 1.0."
    )


def test_another_major_version_is_refused_by_its_table(module, golden):
    path = golden("table", lambda t: t, "-DMAJOR=2", "-DMINOR=1")
    with pytest.raises(
        PluginIncompatible, match=r"libtable.so was built for plugin ABI 2.1 or newer"
    ):
        NativeBackend(path)


@pytest.mark.parametrize(
    ("name", "flag", "text"),
    [
        ("norun", "-DRUN=NULL", "the table has no run"),
        ("noname", "-DNAME=NULL", "the table has no name"),
        ("emptyname", '-DNAME=""', "the table has no name"),
        (
            "streams",
            "-DSTREAM_SYNC=stream_sync",
            "some entries for streams and events, and not all eight",
        ),
        ("graphs", "-DCOMPILE=compile", "some of compile, execute and destroy"),
        ("cut", "-DSTRUCT_SIZE=8", "struct_size of its table is 8 bytes"),
        ("cutrun", "-DSTRUCT_SIZE=offsetof(MgeBackend,run)", "the table has no run"),
        ("nothing", "-DNO_ENTRY", "does not export mge_backend_entry_v1; it is no mge backend"),
    ],
)
def test_a_broken_table_is_named(module, golden, name, flag, text):
    with pytest.raises(PluginContractError, match=f"lib{name}.so.*{text}"):
        NativeBackend(golden(name, lambda t: t, flag))


def test_a_library_that_gives_a_reason_is_unavailable(module, golden):
    with pytest.raises(PluginUnavailable, match="driver 12 is older than 13"):
        NativeBackend(golden("refuses", lambda t: t, "-DREFUSES"))


def test_a_missing_file_is_unavailable(module, tmp_path):
    with pytest.raises(PluginUnavailable, match="cannot open shared object file"):
        NativeBackend(str(tmp_path / "libgone.so"))


def test_a_file_that_is_no_library_is_unavailable(module, tmp_path):
    (tmp_path / "libtext.so").write_text("hello")
    with pytest.raises(PluginUnavailable, match=r"libtext\.so"):
        NativeBackend(str(tmp_path / "libtext.so"))


def test_one_library_is_loaded_once(module, library):
    path = library("toy_native")
    assert NativeBackend(path).handle is NativeBackend(path).handle


def test_the_library_exports_its_entry_alone(module, library):
    import subprocess

    lines = subprocess.run(
        ["nm", "-D", "--defined-only", library("minimal")], capture_output=True, text=True
    ).stdout
    assert [line.split()[-1] for line in lines.splitlines()] == ["mge_backend_entry_v1"]


def test_a_whole_graph_is_one_kernel(module, golden):
    from mge.graph import Graph, Node, make_leaf

    backend = NativeBackend(golden("whole", lambda t: t, "-DGRAPHS"))
    assert backend.has_graphs
    type_ = Type((3,), mge.float32)
    x = make_leaf(type_, None)
    scalar = Type((), mge.float32)
    data = np.float32(2.5).tobytes()
    attrs = (("data", data), ("shape", ()), ("dtype", mge.float32))
    constant = Node(Signature(OPS["constant"], (), attrs, (scalar,), None), (), scalar)
    neg = Node(Signature(OPS["neg"], (type_,), (), (type_,), None), (x,), type_)
    mul = Node(Signature(OPS["mul"], (type_, scalar), (), (type_,), None), (neg, constant), type_)
    kernel = backend.compile(0, Graph((x,), (constant, neg, mul), (mul,)))
    y = np.zeros(3, np.float32)
    kernel([np.array([1, 2, 3], np.float32)], [y], None)
    assert y.tolist() == [-2.5, -5.0, -7.5]
    with pytest.raises(mge.UnsupportedError, match="not this graph"):
        backend.compile(0, Graph((x,), (neg,), (neg,)))


def test_a_backend_without_graphs_says_so(module, golden):
    from mge.graph import Graph, make_leaf

    x = make_leaf(Type((3,), mge.float32), None)
    with pytest.raises(PluginContractError, match="takes no graphs"):
        NativeBackend(golden("nographs")).compile(0, Graph((x,), (), (x,)))


def test_headers_and_cmake_files_are_there():
    assert (Path(mge.get_include()) / "mge" / "plugin.h").is_file()
    assert (Path(mge.get_include()) / "mge" / "kernel.hpp").is_file()
    assert (Path(mge.get_cmake_dir()) / "mge_coreConfig.cmake").is_file()
