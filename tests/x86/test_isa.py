"""Each level of the instruction set by itself: it loads, keeps the kit's rules, and the error bounds of math.hpp."""

import json
from pathlib import Path

import pytest

# What include/mge/cpu/math.hpp states, in units in the last place.
BOUNDS = {"exp": 2, "expm1": 2, "log": 2, "log1p": 2, "tanh": 6, "sigmoid": 3, "erf": 6}
ABSOLUTE = {"sin": 1e-7, "cos": 1e-7, "tan": 3e-7}  # of max(1, |y|), for |x| < 8192
OPS = "add,div,maximum,exp,tanh,gelu,floor_div,less,where,cast,transpose,slice_set,concat,clip,logical_xor"


def test_the_level_that_was_asked_for_is_loaded(on_level, request):
    program = "import mge_x86; print(mge_x86.backend().capabilities(0)['isa'])"
    assert on_level("-c", program).strip() in request.node.name


def test_an_unknown_level_is_refused(x86, run_python):
    program = (
        "import mge_x86\n"
        "try: mge_x86.backend()\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    said = run_python("-c", program, MGE_X86_ISA="mmx")
    assert "MGE_X86_ISA=mmx: this processor has the levels" in said
    assert "sse4" in said


def test_the_kit_finds_no_fault(on_level, tmp_path):
    listed = tmp_path / "conformance.json"
    on_level("-m", "mge.testing", "x86", "--level", "L3", "--ops", OPS, "--quiet", "--json", listed)
    passed = {
        c["case"].split("/")[1]
        for c in json.loads(listed.read_text())["cases"]
        if c["outcome"] == "passed"
    }
    assert passed >= set(OPS.split(","))


def test_elementary_functions_keep_their_bounds(on_level):
    errors = json.loads(on_level(Path(__file__).with_name("ulps.py")))
    far = {name: e for name, e in errors.items() if e["ulp"] > BOUNDS.get(name, 1e9)}
    far |= {name: e for name, e in errors.items() if e["absolute"] > ABSOLUTE.get(name, 1)}
    assert not far


@pytest.mark.parametrize("x", [8192.0, 1e6, 3e38])
def test_large_angles_are_right_too(x86, x):
    import numpy as np

    from .against import check

    values = np.float32([x, -x, 0.5])
    for name in ("sin", "cos", "tan"):
        check(name, (values,))
