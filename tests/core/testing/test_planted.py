"""The kit itself: each planted fault is found, on its level, and named. ``site/planted.py`` has the faults."""

import re

import pytest

from mge.op import OPS
from mge.testing.large import large_cases, large_variant
from mge.testing.target import Target

BAD = ("failed", "crashed", "hanging")

# backend: cases to run, then cases that must be bad, how, and what the text says.
VALUES = {
    "bad_dtype": ("L3/add/*", "L3/add/0/float16", "failed", r"values are off, tolerance 0\.008"),
    "bad_in_place": ("L3/add/*", "L3/add/0/float32", "failed", "output 0 over input 0"),
    "bad_alignment": ("L3/add/*", "L3/add/0/float32", "failed", "aligned to their elements only"),
    "bad_past": ("L3/add/*", "L3/add/0/float32", "failed",
                 "output 0 .*wrote 12 bytes past the end of it, up to 12 bytes away"),
    "bad_before": ("L3/add/*", "L3/add/0/float32", "failed",
                   "output 0 .*wrote 8 bytes before the start of it, up to 8 bytes away"),
    "bad_unwritten": ("L3/add/*", "L3/add/0/float32", "failed", "values are off|left 4 of .* bytes unwritten"),
    "bad_input": ("L3/add/*", "L3/add/0/float32", "failed", r"input 1: the kernel changed \d+ bytes of it"),
    "bad_raise": ("L3/add/*", "L3/add/0/float32", "failed",
                  "supports accepted this use, and the kernel raised ValueError: no plan for this size"),
    "bad_promise": ("L3/add/*", "L3/add/0/float32", "failed",
                    "supports accepted this use, and the kernel refused it: only on Tuesdays"),
    "bad_crash": ("L3/add/0/*", "L3/add/0/float64", "crashed", "the process died: SIGSEGV"),
    "bad_exit": ("L3/add/0/float32", "L3/add/0/float32", "crashed", "the process died: exit status 3"),
    "bad_memory_odd": ("L1/*", "L1/alignment", "failed", "a buffer of .* bytes starts at 0x.*, no multiple of 64"),
    "bad_memory_leak": ("L1/*", "L1/many_buffers", "failed", "blocks of 2000 stay in use after all were dropped"),
    "bad_memory_same": ("L1/*", "L1/many_buffers", "failed", "buffer 0 of 2000 does not hold what was written to it"),
    "bad_pass": ("L4/tanh/*", "L4/tanh/0/float32", "failed", "gradient of input 0, computed as a plan"),
    "bad_backward": ("L5/gradient/*", "L5/gradient/*", "failed", "run node by node, with .*mul.* on the device"),
    "bad_graph": ("L5/program/*", "L5/program/*", "failed", "run as a kept plan, with add"),
    "bad_threads": ("L6/add/threads", "L6/add/threads", "failed", "beside another thread differs from a run alone"),
    "bad_leak": ("L6/add/leak", "L6/add/leak", "failed", r"run of the kernel keeps about \d+ bytes of the heap"),
    "bad_noise": ("L6/add/repeat", "L6/add/repeat", "failed", r"run \d+ differs from the first"),
    "bad_nan": ("L6/maximum/extreme", "L6/maximum/extreme", "failed", "with NaN and infinities: .* in place of nan"),
    "bad_empty": ("L6/add/extreme", "L6/add/extreme", "failed", "the kernel raised RuntimeError: invalid config"),
    "bad_stream": ("L2/neg/*", "L2/neg/order", "failed", "ignored its stream: it read an input before"),
    "bad_event": ("L2/neg/*", "L2/neg/event", "failed", "did not wait for an event"),
    "bad_event_sync": ("L2/event/*", "L2/event/sync", "failed", r"after event\.sync\(\) the work before the event"),
    "half_queue": ("L2/*", "L2/claim/both", "failed", r"no event\(\): all or none"),
    "bad_methods": ("L0/*", "L0/methods", "failed", r"supports\(use\) does not take 2 arguments"),
    "bad_devices": ("L0/*", "L0/devices", "failed", r"devices\(\) gave \['board .'\], then"),
    "bad_probe": ("L0/*", "L0/probe", "failed", "gave 'the licence is used up', not None"),
    "bad_load": ("L0/*", "L0/plugin/load", "crashed", "while its backend was loaded: the process died: SIGSEGV"),
    "bad_end": ("*/process/end", "L6/process/end", "crashed", "the process ended with exit status 5"),
    "absent": ("L0/*", "L0/plugin/load", "failed", "no board in this machine"),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_a_fault_is_found_and_named(name, kit):
    from fnmatch import fnmatchcase

    pattern, case, outcome, text = VALUES[name]
    ops = None if name in ("bad_graph", "bad_backward") else ["add", "neg", "maximum", "tanh"]
    report = kit(name, patterns=[pattern], ops=ops)
    bad = {r.case: r for r in report.bad}
    found = [r for r in bad.values() if fnmatchcase(r.case, case)]
    assert found, [r for r in report.results if fnmatchcase(r.case, case)]
    assert any(r.outcome == outcome and re.search(text, r.text, re.S) for r in found), found
    for r in bad.values():  # each on its own, too: nothing that only follows from another fault
        assert r.level == found[0].level
    if outcome == "crashed" and "crash" in name:
        assert "planted.py" in found[0].text  # the stack at the crash


def test_one_wrong_dtype_leaves_the_others_alone(kit):
    report = kit("bad_dtype", patterns=["L3/*"], ops=["add", "mul"])
    assert {r.case.split("/")[3] for r in report.bad} == {"float16"}
    assert report.ops()["add"]["float16"] == "failed"
    assert report.ops()["add"]["float32"] == report.ops()["mul"]["float16"] == "passed"


@pytest.mark.parametrize(
    ("name", "op", "where"),
    [
        ("bad_tail", "add", r" at \[128\]"),
        ("bad_last", "tanh", r": 1 of 40213 values are off.* at \[40212\]"),
        ("bad_tile", "matmul", r" at \[8, 0\]"),
    ],
)
def test_only_a_large_case_shows_it(kit, name, op, where):
    """Kernels that are right on every small sample: past a vector's tail, at the last element, past a tile."""
    report = kit(name, last="L3", ops=[op])
    assert {r.case.split("/")[2][:5] for r in report.bad} == {"large"}
    first = next(r for r in report.bad if r.case == f"L3/{op}/large0/float32")
    assert first.outcome == "failed" and re.search(where, first.text, re.S), first.text
    assert report.ops()[op]["float32"] == "failed" and report.trust() == "L2"


def test_each_op_has_a_large_case():
    """What has none: ops without inputs of a size of their own, or with graphs of fixed types, and reshapes."""
    target = Target("ref")
    without = {n for n in OPS if "::" not in n and not any(large_cases(target, n))}
    assert without == {"advance", "call", "cond", "constant", "reshape", "svd", "while_loop"}
    for name in ("add", "conv", "layer_norm", "matmul", "sort"):
        for index, label in large_cases(target, name):
            arrays = large_variant(target, name, index, label).arrays
            assert max(a.size for a in arrays) >= 9_000, (name, index)


def test_a_crash_ends_one_case_only(kit):
    report = kit("bad_crash", patterns=["L3/*"], ops=["add", "mul"])
    assert {r.case.split("/")[1::2] == ["add", "float64"] for r in report.bad} == {True}
    assert report.ops()["mul"]["float64"] == report.ops()["add"]["float32"] == "passed"


def test_silence_is_a_result(kit):
    report = kit("bad_hang", patterns=["L3/add/0/*"], ops=["add"], limit_s=1.5)
    outcomes = {r.case: r.outcome for r in report.results}
    assert outcomes["L3/add/0/float64"] == "hanging"
    assert outcomes["L3/add/0/float32"] == "passed"
    (hanging,) = report.bad
    assert "no answer within 1.5 s" in hanging.text and "in hangs" in hanging.text  # where it stood


def test_lies_of_supports_are_found(kit):
    ops = ["add", "sub", "mul", "neg", "tanh", "relu"]
    report = kit("bad_supports", patterns=["L3/*/0/float32"], ops=ops)
    texts = {r.case.split("/")[1]: r.text for r in report.bad}
    assert texts.keys() == {*ops} - {"relu"}
    assert "supports gave an empty text; a refusal states its reason" in texts["add"]
    assert "supports gave 'request" in texts["sub"] and "for the same use" in texts["sub"]
    assert "supports raised KeyError" in texts["mul"]
    assert "supports gave True; it must give None, or the reason" in texts["neg"]
    assert (
        "kernel raised LookupError" in texts["tanh"]
        and "after supports accepted it" in texts["tanh"]
    )


def test_a_good_backend_passes_every_level(kit):
    report = kit("good", ops=["add", "sub", "mul", "neg", "relu", "sort"])
    assert not report.bad
    assert report.trust() == "L6"
    assert report.ops()["sort"] == dict.fromkeys(report.ops()["sort"], "refused")
    (not_claimed,) = [r for r in report.results if r.level == "L2"]
    assert not_claimed.outcome == "skipped" and "not claimed" in not_claimed.text


def test_good_streams_pass(kit):
    report = kit("good_queue", patterns=["L2/*"], ops=["add", "neg", "sort"])
    assert not report.bad
    outcomes = {r.case: r.outcome for r in report.results}
    for case in ("claim/both", "stream/idle", "event/sync", "event/many", "neg/order", "neg/event"):
        assert outcomes[f"L2/{case}"] == "passed"
    assert outcomes["L2/sort/order"] == "refused"
