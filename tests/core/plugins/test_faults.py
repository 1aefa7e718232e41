"""What plugins do wrong: each fault is a state and a reason, and all other plugins still work."""

import json

import pytest

import mge
import mge.functional as F
from mge import registry
from mge.debug import debug
from mge.device import as_device
from mge.errors import (
    PluginContractError,
    PluginIncompatible,
    PluginNotInstalled,
    PluginUnavailable,
)
from mge.jit import trace
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
    "odd_priority": (
        "backends",
        host("odd_priority", "priority = 'high'"),
        "incompatible",
        "priority is 'high'; it must be int",
    ),
    "no_priority": (
        "backends",
        host("no_priority", "priority = None"),
        "incompatible",
        "priority is None; it must be int",
    ),
    "priority_raises": (
        "backends",
        host("priority_raises", "@property", f"def priority(self): {DRIVER}"),
        "failed",
        "priority: RuntimeError: driver 12 < 13",
    ),
    "odd_least": (
        "backends",
        host("odd_least", "min_nodes = '4'"),
        "incompatible",
        "min_nodes is '4'; it must be int | None",
    ),
    "odd_memory": (
        "backends",
        host("odd_memory", "is_host = 'yes'"),
        "incompatible",
        "is_host is 'yes'; it must be bool",
    ),
    "odd_devices": (
        "backends",
        host("odd_devices", "def devices(self): return 3"),
        "incompatible",
        "devices() gave 3; it must give a list of str",
    ),
    "one_text": (
        "backends",
        host("one_text", "def devices(self): return 'card'"),
        "incompatible",
        "devices() gave 'card'; it must give a list of str",
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
    states = {p.name: p.state for p in registry.plugins("backend")}
    assert states["slow"] == "found"


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
        ("def supports(self, dev, use): return None\n    def kernel(self, dev, use): return 3",
         "kernel raised TypeError .* after supports accepted it: it gave 3, which cannot be called"),
    ],
)  # fmt: skip
def test_a_broken_contract_names_the_plugin(here, body, text):
    source = (
        f"from mge.plugin import HostBackend\nclass B(HostBackend):\n    name = 'bad'\n    {body}"
    )
    here.add("mge-bad", {"mge.backends": {"bad": "mge_bad:B"}}, {"mge_bad": source})
    with pytest.raises(PluginContractError, match=f"bad: {text}"):
        (mge.tensor([1.0], device="bad") + 1).numpy()


def install(here, body, name="bad"):
    source = host(name, *body.splitlines())
    here.add(f"mge-{name}", {"mge.backends": {name: f"mge_{name}:A"}}, {f"mge_{name}": source})


def test_auto_goes_past_a_backend_that_breaks_the_contract(here, capsys):
    install(here, "priority = 'high'")
    assert as_device("auto").type == "ref"
    assert "plugin bad (mge-bad 1.0) was skipped: priority is 'high'" in capsys.readouterr().err


def test_devices_and_priority_are_asked_for_once(here):
    install(
        here,
        """asked = []
def devices(self):
    self.asked.append(1)
    return ('one', 'two') if len(self.asked) == 1 else 1 / 0
@property
def priority(self):
    self.asked.append(1)
    return 7 if len(self.asked) < 4 else 1 / 0""",
    )
    assert as_device("auto").type == "bad" and as_device("bad:1").index == 1
    assert mge.get_device_count("bad") == 2 and as_device("cpu").type == "bad"


KERNEL = """kernels = {'add': np.add}
def kernel(self, dev, use): return self.run
def run(self, inputs, outputs, stream): raise ERROR"""


@pytest.mark.parametrize("form", ["at first sight", "in a plan", "traced"])
def test_a_kernel_that_raises_is_named_with_its_op_and_line(here, form):
    install(here, "import numpy as np\n" + KERNEL.replace("ERROR", "KeyError(5)"))

    def work(x):
        return x + 1

    line = f"{__file__}:{work.__code__.co_firstlineno + 1}"
    run = trace(work) if form == "traced" else work
    for _ in range(3 if form == "in a plan" else 1):
        with pytest.raises(KeyError) as caught:
            run(mge.tensor([1.0], device="bad")).numpy()
        notes = "\n".join(caught.value.__notes__)
        assert "in: add(f32[1], f32[]) on bad:0, " in notes and 'by plugin "bad"' in notes
        assert line in notes


@pytest.mark.parametrize("error", ["NotImplementedError('no')", "UnsupportedError('no')"])
def test_a_kernel_must_do_what_supports_accepted(here, error):
    head = "import numpy as np\nfrom mge.plugin import UnsupportedError\n"
    body = KERNEL.replace(
        "raise ERROR", f"raise self.{error}" if error[0] == "U" else f"raise {error}"
    )
    install(here, head + body)
    text = rf"bad: supports accepted add\(.*, and its kernel raised {error[:-6]}: no"
    for function in (lambda x: x + 1, trace(lambda x: x + 1)):
        with pytest.raises(PluginContractError, match=text) as caught:
            function(mge.tensor([1.0], device="bad")).numpy()
        assert __file__ in str(caught.value)


PASSES = ["1 / 0", "return 3", "return [5]", "return None"]


@pytest.mark.parametrize("body", PASSES)
def test_passes_that_cannot_be_had_cost_a_line(here, capsys, body):
    install(here, f"import numpy as np\nkernels = {{'add': np.add}}\ndef passes(self): {body}")
    assert trace(lambda x: x + 1)(mge.tensor([1.0], device="bad")).item() == 2
    assert 'passes() of plugin "bad" was left out: ' in capsys.readouterr().err


def test_a_refusal_without_text_says_so_and_a_long_one_is_cut(partial, capsys):
    device = partial()
    long = "too long " * 40
    device.backend.supports = lambda dev, use: {"tan": "", "sin": long}.get(use.op.name)
    x = mge.tensor([0.0], device=device)
    assert trace(lambda x: F.tan(x) + F.sin(x))(x).item() == 0
    line = capsys.readouterr().err
    assert "tan x1 (no reason given)" in line and f"sin x1 ({long[:100]})" in line


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
