"""The contract's header: C and C++, its layout, and what it refuses."""

import re
import subprocess
from pathlib import Path

import pytest

import mge
from tests.core.native.build import CC, CXX, HERE

STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-c", "-o", "/dev/null"]
SMALL = """
#include "mge/plugin.h"
static const MgeBackend table = {MGE_BACKEND_VERSION, "a", "b", "c", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
MGE_DEFINE_BACKEND(table)
int use(const MgeHost* host) { return MGE_HAS(host, log) && MGE_COVERS(host, thread_count); }
"""


def attempt(compiler, source, *flags):
    return subprocess.run(
        [compiler, *STRICT, f"-I{mge.get_include()}", *flags, "-x", *source],
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("standard", ["c99", "c11", "c17"])
def test_the_header_is_strict_c(compiler, tmp_path, standard):
    (tmp_path / "a.c").write_text(SMALL)
    done = attempt(CC, ["c", str(tmp_path / "a.c")], f"-std={standard}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("standard", ["c++17", "c++20"])
def test_the_headers_are_strict_cpp(compiler, tmp_path, standard):
    (tmp_path / "a.cc").write_text(SMALL.replace("plugin.h", "kernel.hpp"))
    done = attempt(CXX, ["c++", str(tmp_path / "a.cc")], f"-std={standard}")
    assert done.returncode == 0, done.stderr


def test_a_target_newer_than_the_header_is_an_error(compiler, tmp_path):
    (tmp_path / "a.c").write_text(SMALL)
    done = attempt(CC, ["c", str(tmp_path / "a.c")], "-std=c99", "-DMGE_TARGET_ABI_MINOR=9")
    assert done.returncode and "newer than this header" in done.stderr


@pytest.mark.parametrize("header", ["current", "golden/plugin_1_0.h"])
def test_the_layout_is_that_of_version_1(compiler, tmp_path, header):
    folder = Path(mge.get_include()) / "mge"
    if header != "current":
        (tmp_path / "plugin.h").write_text((HERE / header).read_text())
        folder = tmp_path
    layout = HERE / "golden" / "layout_1_0.c"
    done = subprocess.run(
        [CC, "-std=c11", *STRICT, f"-I{folder}", str(layout)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_layout_covers_each_struct_and_field():
    layout = (HERE / "golden" / "layout_1_0.c").read_text()
    header = (HERE / "golden" / "plugin_1_0.h").read_text()
    header = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    structs = re.findall(r"typedef struct (\w+) \{(.*?)\n\} \1;", header, re.DOTALL)
    assert len(structs) == 15, [name for name, _ in structs]
    for name, body in structs:
        assert f"SIZE({name}," in layout
        body = re.sub(r"union \{.*?\} value;", "int value;", body, flags=re.DOTALL)
        body = re.sub(r"#.*", "", body)
        for line in re.sub(r"\s+", " ", body).split(";"):
            field = re.search(r"\(\*(\w+)\)|(\w+)(?:\[\w+\])?$", line.strip())
            if field and line.strip():
                assert f"AT({name}, {field[1] or field[2]}," in layout, (name, line)


def test_the_golden_header_is_part_of_the_current_one():
    """Within a major version the header only grows: no line of 1.0 that declares something may vanish."""

    def lines(text):
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
        return {re.sub(r"\s+", " ", line).strip() for line in text.splitlines()} - {
            "#define MGE_ABI_MINOR 0"
        }

    current = lines((Path(mge.get_include()) / "mge" / "plugin.h").read_text())
    assert not lines((HERE / "golden" / "plugin_1_0.h").read_text()) - current
