"""What plugins do wrong: each fault is a state and a reason, and all other plugins still work."""

import json

import pytest

import mge
from mge import registry
from mge.debug import debug
from mge.device import as_device
from mge.errors import (
    PluginContractError,
    PluginIncompatible,
    PluginNotInstalled,
    PluginUnavailable,
)
from mge.op import OPS
from tests.core.plugins.conftest import Site


def host(name, *lines, base="HostBackend"):
    """Return the source of a backend ``A``."""
    head = [
        "from mge.plugin import Backend, HostBackend",
        f"class A({base}):",
        f"    name = {name!r}",
    ]
    return "\n".join([*head, *(f"    {line}" for line in lines)])


def hook(line, arguments="", decorator="@hookimpl"):
    """Return the source of a module with one function; ``line`` is its name and body."""
    name, _, body = line.partition(": ")
    head = "from mge.plugin import hookimpl\n"
    return f"{head}{decorator}\ndef {name}({arguments}):\n    {body or 'pass'}"


FAR = "it has no allocator() and no copy(), which a device with memory of its own needs"
DRIVER = "raise RuntimeError('driver 12 < 13')"
# name: (group, source, state, reason). Sources of backends and strategies define A, others are modules.
FAULTS = {
    "missing_library": (
        "backends",
        "raise OSError('libacme_rt.so.5: cannot open')",
        "failed",
        "OSError: libacme_rt.so.5: cannot open",
    ),
    "exits": ("backends", "import sys; sys.exit(3)", "failed", "SystemExit: 3"),
    "no_syntax": ("backends", "def (:", "failed", "SyntaxError: invalid syntax"),
    "no_module": (
        "backends",
        None,
        "failed",
        "ModuleNotFoundError: No module named 'fault_no_module'",
    ),
    "no_object": (
        "backends",
        "",
        "failed",
        "AttributeError: module 'fault_no_object' has no attribute 'A'",
    ),
    "raises": (
        "backends",
        host("raises", "def __init__(self): raise ValueError"),
        "failed",
        "ValueError: no text",
    ),
    "next_major": (
        "backends",
        host("next_major", "MGE_PLUGIN_API = (2, 0)"),
        "incompatible",
        "needs plugin API 2.0, this mge-core has 1.0",
    ),
    "next_minor": (
        "memory",
        host("next_minor", "MGE_PLUGIN_API = (1, 9)"),
        "incompatible",
        "needs plugin API 1.9, this mge-core has 1.0",
    ),
    "odd_version": (
        "backends",
        host("odd_version", "MGE_PLUGIN_API = '1.0'"),
        "incompatible",
        "MGE_PLUGIN_API is '1.0'; it must be as (1, 0)",
    ),
    "incomplete": (
        "backends",
        host("incomplete", "def probe(self): pass", base="object"),
        "incompatible",
        "it has no devices(), supports(), kernel()",
    ),
    "other_name": (
        "backends",
        host("x"),
        "incompatible",
        "its name is 'x', and that of its entry point 'other_name'",
    ),
    "probe_raises": (
        "backends",
        host("probe_raises", f"def probe(self): {DRIVER}"),
        "failed",
        "probe(): RuntimeError: driver 12 < 13",
    ),
    "probe_lies": (
        "backends",
        host("probe_lies", "def probe(self): return True"),
        "incompatible",
        "probe() gave True; it must give None, or the reason",
    ),
    "no_hardware": (
        "backends",
        host("no_hardware", "def probe(self): return 'no such card'"),
        "unavailable",
        "no such card",
    ),
    "no_device": (
        "backends",
        host("no_device", "def devices(self): return ()"),
        "unavailable",
        "it has no device here",
    ),
    "far_memory": (
        "backends",
        host("far_memory", "def devices(self): return ('card',)", base="Backend"),
        "incompatible",
        FAR,
    ),
    "misspelt_hook": (
        "hooks",
        hook("mge_backend"),
        "incompatible",
        "unknown hooks ['mge_backend']",
    ),
    "hook_arguments": (
        "hooks",
        hook("mge_doctor", "patient"),
        "incompatible",
        "Plugin 'mge-hook-arguments:hook_arguments' for hook 'mge_doctor': Argument(s) {'patient'}",
    ),
    "no_hooks": (
        "hooks",
        hook("mge_doctor", decorator=""),
        "incompatible",
        "none of its functions is marked with mge.plugin.hookimpl",
    ),
    "hook_raises": (
        "hooks",
        hook(f"mge_register_ops: {DRIVER}", "op"),
        "failed",
        "mge_register_ops(): RuntimeError: driver 12 < 13",
    ),
    "bare_op": (
        "ops",
        "from mge.plugin import op\n@op\ndef bare_fault(inp): return inp",
        "incompatible",
        "it registered bare_fault; names must begin with bare_op::",
    ),
    "asks_for_itself": (
        "backends",
        "import mge\nmge.tensor([1.0], device='asks_for_itself')",
        "failed",
        'PluginError: device "asks_for_itself" was asked for',
    ),
}


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """All faulty plugins and two good ones in one process: the state of each, loaded by name."""
    site = Site(tmp_path_factory.mktemp("faults"))
    for name, (group, source, _, _) in FAULTS.items():
        module = f"fault_{name}"
        value = f"{module}:A" if group in ("backends", "memory") else module
        modules = {} if source is None else {module: source}
        site.add(f"mge-{name}", {f"mge.{group}": {name: value}}, modules)
    site.add("aaa-unrelated", "no section\n")
    site.add_toy("good")
    site.add_toy("looks", "mge-looks")
    looks = site.path / "mge_looks.py"
    looks.write_text(
        "from mge import registry\nregistry.plugins(); registry.each('memory')\n"
        + looks.read_text()
    )
    code = """
        import json, sys
        from mge import registry
        errors = {}
        for p in registry.plugins():
            try:
                registry.load(p.kind, p.name)
            except Exception as error:
                errors[p.name] = f"{type(error).__name__}: {error}"
        import mge
        x = mge.tensor([1.0, 2.0], device="good") + 1
        states = {p.name: [p.state, p.reason, errors.get(p.name)] for p in registry.plugins()}
        print(json.dumps([states, x.numpy().tolist()]))
    """
    return json.loads(site.python(code)[0])


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_a_state_with_a_reason(states, name):
    state, reason, error = states[0][name]
    wanted, text = FAULTS[name][2:]
    assert (state, reason[: len(text)]) == (wanted, text)
    kind = "PluginIncompatible" if wanted == "incompatible" else "PluginUnavailable"
    assert (
        error.startswith(kind)
        and text in error
        and f"{name} (mge-{name.replace(chr(95), chr(45))} 1.0)" in error
    )


def test_the_others_still_work(states):
    assert states[0]["good"][0] == "loaded" and states[1] == [2.0, 3.0]


def test_a_plugin_may_look_at_others_while_it_loads(states):
    assert states[0]["looks"][0] == "loaded"


def test_a_fault_costs_one_line_where_nobody_named_it(here, capsys):
    here.add(
        "mge-bad", {"mge.backends": {"bad": "mge_bad:B"}}, {"mge_bad": "raise OSError('libbad.so')"}
    )
    here.add_toy()
    for _ in range(2):
        assert as_device("auto").type == "ref"
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "mge: plugin bad (mge-bad 1.0) was skipped: OSError: libbad.so. MGE_PLUGINS_DISABLE=bad hides this line"
    ]
    assert [p.state for p in registry.plugins("backend") if p.name == "toy"] == ["loaded"]


def test_an_error_says_what_is_usable(here):
    here.add_toy()
    with pytest.raises(PluginNotInstalled) as caught:
        mge.tensor([1.0], device="cuda:1")
    lines = str(caught.value).splitlines()
    assert lines[0] == ('device "cuda:1" was asked for, and no installed plugin offers "cuda"')
    assert lines[1].startswith("  usable: ref, toy") and lines[-1] == "  try: pip install mge-cuda"
    assert isinstance(caught.value, ImportError)
    with pytest.raises(PluginNotInstalled) as caught:
        mge.tensor([1.0], device="cdua")
    assert "pip install" not in str(caught.value)  # that would be somebody else's package


def test_a_named_device_never_becomes_another_one(here):
    source = host("bad", "def probe(self): return 'no card'")
    here.add("mge-bad", {"mge.backends": {"bad": "mge_bad:A"}}, {"mge_bad": source})
    for _ in range(2):
        with pytest.raises(PluginUnavailable, match=r"unavailable: no card"):
            mge.tensor([1.0], device="bad")
    assert mge.get_device_count("bad") == 0


def test_ctrl_c_while_loading_is_no_fault_of_the_plugin(here):
    here.add(
        "mge-slow",
        {"mge.backends": {"slow": "mge_slow:B"}},
        {"mge_slow": "raise KeyboardInterrupt"},
    )
    with pytest.raises(KeyboardInterrupt):
        mge.tensor([1.0], device="slow")
    assert registry.plugins("backend")[-1].state == "found"


def test_the_same_name_twice_is_shadowed(here):
    here.add_toy("toy", "acme-b")
    here.add_toy("toy", "acme-a")
    here.add("acme-c", {"mge.backends": {"ref": "acme_c:R"}, "mge.memory": {"static": "acme_c:S"}})
    found = {(p.package, p.name): (p.state, p.reason) for p in registry.plugins()}
    assert found["acme-a", "toy"] == ("found", "")
    assert found["acme-b", "toy"] == ("shadowed", "shadowed by acme-a")
    assert (
        found["acme-c", "ref"] == found["acme-c", "static"] == ("shadowed", "shadowed by mge-core")
    )
    with debug(plugins_disable="acme-a"):
        assert mge.tensor([1.0], device="toy").device == "toy:0"
    assert next(p for p in registry.plugins() if p.package == "acme-b").state == "loaded"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("def supports(self, dev, use): return True", "supports gave True; it must give None, or the reason"),
        ("def supports(self, dev, use): 1 / 0", "supports raised ZeroDivisionError"),
        ("def supports(self, dev, use): return None\n    def kernel(self, dev, use): raise KeyError(5)",
         "kernel raised KeyError .* after supports accepted it"),
    ],
)  # fmt: skip
def test_a_broken_contract_names_the_plugin(here, body, text):
    source = (
        f"from mge.plugin import HostBackend\nclass B(HostBackend):\n    name = 'bad'\n    {body}"
    )
    here.add("mge-bad", {"mge.backends": {"bad": "mge_bad:B"}}, {"mge_bad": source})
    with pytest.raises(PluginContractError, match=f"bad: {text}"):
        (mge.tensor([1.0], device="bad") + 1).numpy()


def test_ops_of_a_plugin_that_failed_are_gone(here):
    source = "from mge.plugin import op\n@op(name='half::x')\ndef x(inp): return inp\nraise ValueError('later')"
    here.add("mge-half", {"mge.ops": {"half": "mge_half"}}, {"mge_half": source})
    with pytest.raises(PluginUnavailable, match="ValueError: later"):
        registry.load("ops", "half")
    assert "half::x" not in OPS


def test_incompatible_is_its_own_error(here):
    source = "class A:\n    MGE_PLUGIN_API = (2, 0)"
    here.add(
        "acme-mge", {"mge.memory": {"thrifty": "acme_mge:A"}}, {"acme_mge": source}, version="2.1"
    )
    with pytest.raises(
        PluginIncompatible, match=r'memory strategy "thrifty" .* thrifty \(acme-mge 2.1\)'
    ):
        registry.load("memory", "thrifty")
