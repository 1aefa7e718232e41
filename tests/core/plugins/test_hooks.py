"""Hooks: each implementation called by itself, graph passes checked, ops registered."""

import numpy as np
import pytest

import mge
from mge import registry
from mge.debug import debug
from mge.errors import FileFormatError, PluginContractError
from mge.jit import trace
from mge.op import OPS

HEAD = "from mge.plugin import hookimpl\n"
PASSES = (
    HEAD
    + """
from mge.graph import Graph
seen = []

def swap(graph):
    seen.append(len(graph.nodes))
    return graph

def lose(graph):
    return Graph(graph.inputs, graph.nodes[:-1], graph.outputs)

def fall(graph):
    raise ValueError("cannot")

@hookimpl
def mge_graph_passes(device, level):
    yield {name!r}, {name}
"""
)


def double(x):
    return trace(lambda x: x * 2.0 + x)(x).numpy()


def test_a_pass_of_a_plugin_runs(here, capsys):
    here.add(
        "acme-pass", {"mge.hooks": {"acme": "acme_pass"}}, {"acme_pass": PASSES.format(name="swap")}
    )
    with debug(check=1, debug=3):
        assert double(mge.tensor([1.0])) == 3.0
    import acme_pass

    assert acme_pass.seen == [3]


def test_a_pass_that_raises_is_left_out_with_one_line(here, capsys):
    here.add(
        "acme-pass", {"mge.hooks": {"acme": "acme_pass"}}, {"acme_pass": PASSES.format(name="fall")}
    )
    for _ in range(2):
        assert double(mge.tensor([1.0])) == 3.0
    assert capsys.readouterr().err == 'mge: pass "acme:fall" was left out: ValueError: cannot\n'


def test_a_wrong_pass_is_named_under_check(here):
    here.add(
        "acme-pass", {"mge.hooks": {"acme": "acme_pass"}}, {"acme_pass": PASSES.format(name="lose")}
    )
    with (
        debug(check=1),
        pytest.raises(PluginContractError, match='pass "acme:lose" lost an output'),
    ):
        double(mge.tensor([1.0]))


def test_a_device_offers_passes(here):
    source = """
        from mge.plugin import HostBackend
        seen = []
        class B(HostBackend):
            name = "withpass"
            def passes(self):
                return [("look", lambda graph: (seen.append(1), graph)[1])]
    """
    here.add("acme-b", {"mge.backends": {"withpass": "acme_b:B"}}, {"acme_b": source})
    with debug(fallback="allow"):
        double(mge.tensor([1.0], device="withpass"))
    import acme_b

    assert acme_b.seen


def test_one_broken_hook_leaves_the_others(here, capsys):
    for name in ("a", "b", "c"):
        body = "raise SystemExit(4)" if name == "b" else f"return ['line of {name}']"
        source = f"{HEAD}@hookimpl\ndef mge_doctor():\n    {body}\n@hookimpl\ndef mge_suggest(): return ()"
        here.add(
            f"acme-{name}",
            {"mge.hooks": {f"acme_{name}": f"acme_{name}"}},
            {f"acme_{name}": source},
        )
    for _ in range(2):
        lines = [line for _, lines in registry.call_hooks("mge_doctor") for line in lines]
        assert sorted(lines) == ["line of a", "line of c"]
    states = {p.name: (p.state, p.reason) for p in registry.plugins("hooks")}
    assert states["acme_b"] == ("failed", "mge_doctor(): SystemExit: 4")
    assert capsys.readouterr().err.count("acme_b") == 2  # its name, and the switch, in one line
    assert len(registry.call_hooks("mge_suggest", platform={})) == 2


def test_hooks_register_ops(here):
    source = (
        HEAD
        + """
from mge.types import abstract
@hookimpl
def mge_register_ops(op):
    @op(name="acme::twice")
    def twice(inp):
        "Return the double."
        return abstract(inp.shape, inp.dtype)
    twice.reference(lambda inp: inp * 2)
"""
    )
    here.add("acme-ops", {"mge.hooks": {"acme": "acme_ops"}}, {"acme_ops": source})
    text = "graph(%0: f32[2]) {\n  %1: f32[2] = acme::twice(%0)\n  return %1\n}"
    mge.parse_graph(text)
    assert np.array_equal(OPS["acme::twice"](mge.tensor([1.0, 2.0])).numpy(), [2.0, 4.0])
    with pytest.raises(FileFormatError, match="no installed plugin offers 'other'"):
        mge.parse_graph(text.replace("acme::", "other::"))
