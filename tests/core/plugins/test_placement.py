"""Placement: what a device refuses runs on ``ref``, with as few copies as the graph allows."""

import re
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

import mge
import mge.functional as F
from mge.cli.command import main
from mge.debug import debug
from mge.errors import ArgumentError, MgeError, TraceError, UnsupportedError
from mge.jit import trace
from mge.op import OPS
from mge.passes import optimise
from mge.passes.islands import crosses
from tests.core.property.programs import programs

copy = OPS["copy"]
FEW = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def placed(function, *tensors):
    """Trace a function; return its graph after all passes, once devices fit together."""
    return placed_and_run(function, *tensors)[0]


def placed_and_run(function, *tensors):
    """Also return the results."""
    traced = trace(function)
    with debug(fallback="allow", check=1):
        results = traced(*tensors)
        graph = optimise(traced.last.graph)
    seen = set()
    for node in graph.nodes:
        if not crosses(node):
            assert {i.sig.device for i in node.inputs} <= {node.sig.device}
            continue
        (source,) = node.inputs
        assert not crosses(source) if source in graph.nodes else True, "copied on, or back"
        assert (source, node.sig.device) not in seen, "copied twice"
        assert not source.sig.is_view, "a view was copied"
        seen.add((source, node.sig.device))
    recorded = [o.sig.device for o in traced.last.graph.outputs]
    assert [o.sig.device for o in graph.outputs] == recorded
    return graph, results


def text(graph):
    """Return ``device op`` of each node, sorted."""
    return sorted(f"{n.sig.device.type} {n.op.name}" for n in graph.nodes)


def vector(device, n=6):
    return mge.tensor(np.arange(1, n + 1, dtype="float32"), device=device)


# Copies.


def test_a_value_is_copied_once_for_all_its_readers(partial):
    graph = placed(lambda x: (F.tan(x), F.sin(x), F.cos(x)), vector(partial({"tan", "sin"})))
    assert text(graph) == sorted(
        ["ref copy", "ref tan", "ref sin", "partial0 cos", "partial0 copy", "partial0 copy"]
    )


def test_neighbours_on_ref_need_no_copies_between_them(partial):
    graph = placed(lambda x: F.sin(F.tan(x)) + x, vector(partial({"tan", "sin"})))
    assert text(graph) == sorted(
        ["ref copy", "ref tan", "ref sin", "partial0 copy", "partial0 add"]
    )


def test_views_stay_with_their_source(partial):
    device = partial({"tan", "sin"})
    graph = placed(lambda x: F.sin(F.tan(x).reshape(2, 3)).reshape(6) + 1.0, vector(device))
    assert text(graph) == sorted([
        "ref copy", "ref tan", "ref reshape", "ref sin", "partial0 constant", "partial0 copy",
        "partial0 reshape", "partial0 add",
    ])  # fmt: skip


def test_views_of_one_value_are_copied_as_one(partial):
    device = partial({"tan", "sin"})
    graph = placed(
        lambda x: F.tan(x.reshape(2, 3)).sum() + F.sin(x.reshape(3, 2)).sum(), vector(device)
    )
    assert sum(map(crosses, graph.nodes)) == 3  # x there, two results back
    assert text(graph).count("ref copy") == 1 and text(graph).count("ref reshape") == 2


def test_constants_are_made_where_they_are_read(partial):
    graph = placed(lambda x: F.cos(x + 2.0), vector(partial({"add"})))
    assert text(graph) == sorted(
        ["ref copy", "ref constant", "ref add", "partial0 copy", "partial0 cos"]
    )


def test_results_of_several_outputs_come_back_one_by_one(partial):
    graph = placed(lambda x: F.cos(F.sort(x)[0]), vector(partial({"sort"})))
    assert text(graph) == sorted(
        ["ref copy", "ref sort", "ref get", "partial0 copy", "partial0 cos"]
    )


def test_copies_of_the_user_decide_where_nodes_run(partial):
    device = partial()

    def function(x):
        y = copy(F.sin(x), device="ref")
        return copy(F.tan(y), device=str(device)) + x

    graph = placed(function, vector(device))
    assert text(graph) == sorted(
        ["partial0 sin", "ref copy", "ref tan", "partial0 copy", "partial0 add"]
    )
    assert graph.placement()["refused"] == []


def test_copies_of_the_user_and_back_are_none(partial):
    device = partial()
    graph = placed(
        lambda x: copy(copy(x + x, device="ref"), device=str(device)) + x, vector(device)
    )
    assert text(graph) == sorted(["partial0 add", "partial0 add"])


def test_a_copy_of_the_user_of_what_is_there_already_is_none(partial):
    device = partial({"tan"})
    graph = placed(lambda x: F.sin(copy(F.tan(x), device="ref")), vector(device))
    assert text(graph) == sorted(["ref copy", "ref tan", "ref sin"])


def test_two_devices_and_ref_copy_each_value_once(partial):
    one, other = partial({"tan"}), partial({"sin"})

    def function(x):
        y = copy(F.cos(x), device=str(other))
        z = copy(y, device=str(one))
        return F.sin(y) + y, F.tan(z) + z, copy(F.tan(z), device=str(other))

    graph = placed(function, vector(one))
    assert text(graph) == sorted([
        "partial0 add", "partial0 copy", "partial0 cos", "partial1 add", "partial1 copy", "partial1 copy",
        "partial1 copy", "ref copy", "ref sin", "ref tan",
    ])  # fmt: skip


# Islands.


def test_a_small_island_goes_to_ref_with_its_neighbours(partial):
    device = partial({"tan"}, min_nodes=4)
    graph = placed(lambda x: F.tan(F.cos(F.sin(F.tan(x)))), vector(device))
    assert text(graph) == sorted(
        ["ref copy", "ref tan", "ref sin", "ref cos", "ref tan", "partial0 copy"]
    )
    reasons = {(r["op"], r["reason"], r["count"]) for r in graph.placement()["refused"]}
    assert reasons == {
        ("tan", "no kernel", 2), ("sin", "island of 2 nodes", 1), ("cos", "island of 2 nodes", 1),
    }  # fmt: skip


@pytest.mark.parametrize("least", [3, None])
def test_a_large_island_stays_and_so_does_each_in_host_memory(partial, least):
    device = partial({"tan"}, min_nodes=least)
    count = 3 if least else 1

    def function(x):
        x = F.tan(x)
        for _ in range(count):
            x = F.sin(x)
        return F.tan(x)

    graph = placed(function, vector(device))
    assert text(graph).count("partial0 sin") == count
    islands = {d: v["islands"] for d, v in graph.placement()["devices"].items()}
    assert islands == {"partial0:0": 1, "ref:0": 2}


def test_views_do_not_make_an_island_larger(partial):
    device = partial({"tan"}, min_nodes=2)
    graph = placed(
        lambda x: F.tan(F.sin(F.tan(x).reshape(2, 3)).reshape(6).reshape(3, 2)), vector(device)
    )
    assert "partial0 sin" not in text(graph)


def test_an_island_on_one_side_only_stays(partial):
    device = partial({"tan"}, min_nodes=4)
    assert "partial0 sin" in text(placed(lambda x: F.tan(F.sin(x)), vector(device)))
    assert "partial0 cos" in text(placed(lambda x: F.cos(F.tan(x)), vector(device)))

    def function(x):  # one copy in place of two would do
        a = F.sin(x)
        return F.tan(a), F.tan(F.cos(a))

    assert "partial0 cos" in text(placed(function, vector(device)))


def test_an_island_that_the_graph_gives_stays_unless_copies_are_saved(partial):
    device = partial({"tan"}, min_nodes=4)

    def function(x, both):
        a = F.sin(F.tan(x))
        b = F.cos(a)
        return (F.tan(b), b, a) if both else (F.tan(b), b)

    assert "partial0 cos" in text(placed(lambda x: function(x, True), vector(device)))
    assert "ref cos" in text(placed(lambda x: function(x, False), vector(device)))


def test_what_is_copied_to_ref_anyway_holds_no_island_back(partial):
    device = partial({"tan"}, min_nodes=4)
    tensors = [vector(device) for _ in range(3)]
    graph = placed(lambda x, w, v: F.tan((F.tan(x) + w) * v), *tensors)
    assert "partial0 mul" in text(graph)
    graph = placed(lambda x, w, v: (F.tan((F.tan(x) + w) * v), F.tan(w)), *tensors)
    assert "ref mul" in text(graph)


def test_an_island_that_reads_much_from_its_device_stays(partial):
    device = partial({"tan"}, min_nodes=4)
    w = mge.tensor(np.ones((400, 400), np.float32), device=device)
    x = mge.tensor(np.ones(400, np.float32), device=device)
    graph = placed(lambda x, w: F.tan(F.matmul(F.tan(x), w)), x, w)
    assert "partial0 matmul" in text(graph)
    graph = placed(lambda x, w: F.tan(F.tan(x) * w[0]), x, w)
    assert "partial0 mul" in text(graph)  # as does what it is joined with


def test_an_island_that_the_user_put_there_stays(partial):
    device = partial({"tan"}, min_nodes=4)

    def function(x):
        return F.sin(copy(F.cos(copy(F.tan(x), device=str(device))), device="ref"))

    assert "partial0 cos" in text(placed(function, vector("ref")))


def test_small_integers_go_to_the_host_with_their_readers(partial, monkeypatch):
    device = partial({"take_along"}, min_nodes=1)
    x = mge.tensor(np.arange(12, dtype="float32").reshape(3, 4), device=device)
    i = mge.tensor(np.array([[0, 1], [1, 0], [2, 2]], "int32"), device=device)

    def function(x, i):
        index = i * 2 - i
        return F.gather(x, 1, index), x * x

    traced = trace(function)
    with debug(fallback="allow"):
        traced(x, i)
    recorded = traced.last.graph
    assert "ref sub" not in text(optimise(recorded))
    monkeypatch.setattr(device.backend, "is_host", False)
    found = optimise(recorded)
    assert [t for t in text(found) if "mul" in t or "sub" in t] == [
        "partial0 mul",
        "ref mul",
        "ref sub",
    ]
    reasons = {r["reason"] for r in found.placement()["refused"] if r["op"] == "sub"}
    assert reasons == {"small integers that only ref reads"}
    traced = trace(lambda x, i: (F.gather(x, 1, i * 2 - i), (i * 2 - i) * 3))
    monkeypatch.undo()
    with debug(fallback="allow"):
        traced(x, i)
    monkeypatch.setattr(device.backend, "is_host", False)
    assert "partial0 sub" in text(optimise(traced.last.graph))  # it has another reader there


# Results.


@FEW
@given(programs(), st.integers(0, 2**16), st.sampled_from([1, 3, 50]))
def test_random_graphs_with_random_refusals_give_the_same_bits(partial, program, seed, least):
    def refused(name):  # no op that has a lowering: that may round otherwise than the reference
        return OPS[name].is_base and zlib.crc32(f"{seed}{name}".encode()) % 5 < 2

    device = partial(refused, least)
    try:
        wanted = trace(program)(*program.tensors())
    except MgeError:  # as of a singular matrix
        reject()
    made = placed_and_run(program, *[mge.tensor(a, a.dtype, device) for a in program.leaves])[1]
    assert [t.numpy().tobytes() for t in made] == [t.numpy().tobytes() for t in wanted]


@st.composite
def travels(draw, devices=3, most=14):
    """Draw steps over values that live on devices: (op, inputs), or ("copy", input, device)."""
    homes, steps = [draw(st.integers(0, devices - 1)) for _ in range(2)], []
    for _ in range(draw(st.integers(3, most))):
        i = draw(st.integers(max(0, len(homes) - 4), len(homes) - 1))
        if draw(st.integers(0, 2)) == 0:
            to = draw(st.integers(0, devices - 1))
            steps.append(("copy", (i,), to))
            homes.append(to)
            continue
        beside = [j for j, h in enumerate(homes) if h == homes[i]]
        op = draw(st.sampled_from(["sin", "tan", "flatten", "add", "mul", "maximum"]))
        others = () if op in ("sin", "tan", "flatten") else (draw(st.sampled_from(beside)),)
        steps.append((op, (i, *others), None))
        homes.append(homes[i])
    return steps, homes, draw(st.lists(st.integers(0, len(homes) - 1), min_size=1, max_size=3))


@FEW
@given(
    travels(), st.sets(st.sampled_from(["sin", "tan", "add", "mul"])), st.sampled_from([1, 2, 5])
)
def test_random_travels_between_devices_give_the_same_bits(partial, travel, refused, least):
    steps, homes, outputs = travel
    names = [str(partial(refused, least)), str(partial({"tan"}, least)), "ref:0"]

    def function(*values):
        values = list(values)
        for op, inputs, to in steps:
            attrs = {} if to is None else {"device": names[to]}
            values.append(OPS[op](*[values[i] for i in inputs], **attrs))
        return [values[o] for o in outputs]

    arrays = [np.arange(3, dtype="float32"), np.ones(3, np.float32)]
    results = []
    for where in (names, ["ref:0"] * 3):
        kept, names[:] = names[:], where
        tensors = [mge.tensor(a, device=names[h]) for a, h in zip(arrays, homes)]
        made = placed_and_run(function, *tensors)[1]
        assert [str(t.device) for t in made] == [names[homes[o]] for o in outputs]
        results.append([t.numpy().tobytes() for t in made])
        names[:] = kept
    assert results[0] == results[1]


# What is told.


def test_placement_of_a_trace_tells_nodes_islands_and_bytes(partial):
    device = partial({"tan"})
    step = trace(lambda x: F.tan(F.sin(F.tan(x) * 2.0)))
    with pytest.raises(TraceError, match=r"placement is known once it has run(.|\n)*call it first"):
        step.placement()
    with debug(fallback="allow"):
        step(vector(device))
    assert step.placement() == {
        "nodes": {"partial0:0": 2, "ref:0": 2},
        "copied_bytes": 4 * 24,
        "devices": {
            "partial0:0": {"nodes": 2, "islands": 1, "bytes_in": 48, "bytes_out": 48},
            "ref:0": {"nodes": 2, "islands": 2, "bytes_in": 48, "bytes_out": 48},
        },
        "refused": [
            {"op": "tan", "device": "partial0:0", "reason": "no kernel", "count": 2, "bytes": 48}
        ],
        "compiled": [],
        "prologue": None,
    }


def test_copies_of_parameters_are_in_the_prologue(partial, capsys):
    device = partial({"tan", "mul"})
    w = mge.Parameter(np.ones(6, np.float32), device=device)
    step = trace(lambda x: F.tan(w) * x)
    step(vector(device)).numpy()
    placement = step.placement()
    assert placement["copied_bytes"] == 2 * 24  # x there, the result back
    assert placement["prologue"]["refused"][0]["op"] == "tan"
    line = "mge: 2 of 2 ops (48 bytes copied a run) run on ref instead of partial0:0: "
    err = capsys.readouterr().err
    assert err.startswith(line) and "mul x1 (no kernel)" in err and "tan x1 (no kernel)" in err


def test_the_line_names_islands(partial, capsys):
    device = partial({"tan"}, min_nodes=2)
    trace(lambda x: F.tan(F.sin(F.tan(x))))(vector(device)).numpy()
    assert "tan x2 (no kernel), sin x1 (island of 1 node)" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["allow", "warn", "error", "eror"])
def test_each_mode_of_fallback(partial, capsys, mode):
    x = vector(partial({"tan"}))
    errors = {
        "error": (UnsupportedError, r"tan: no kernel on partial0:0 for tan\(f32\[6\]\)(.|\n)*refused: no kernel"),
        "eror": (ArgumentError, "MGE_FALLBACK is 'eror'; it must be allow, warn or error"),
    }  # fmt: skip
    with debug(fallback=mode):
        if mode in errors:
            with pytest.raises(errors[mode][0], match=errors[mode][1]):
                trace(F.tan)(x).numpy()
        else:
            trace(F.tan)(x).numpy()
    assert len(re.findall("run on ref", capsys.readouterr().err)) == (mode == "warn")


def test_a_refusal_that_is_lowered_is_no_fallback(partial, capsys):
    device = partial({"softmax"})
    with debug(fallback="error"):
        trace(F.softmax)(vector(device)).numpy()
    assert not capsys.readouterr().err


def test_explain_tells_the_devices_of_a_script(partial, tmp_path, capsys):
    device = partial({"tan"})
    script = tmp_path / "script.py"
    script.write_text(
        "import mge, mge.functional as F\n"
        f"x = mge.tensor([1.0, 2.0], device='{device}')\n"
        "mge.jit.trace(lambda x: F.sin(F.tan(x)))(x).numpy()\n"
    )
    assert main(["explain", str(script)]) == 0
    out = capsys.readouterr().out
    assert "not on partial0:0: no kernel" in out
    assert "partial0:0: nodes 1, islands 1, copies in 8 bytes, out 8 bytes" in out
