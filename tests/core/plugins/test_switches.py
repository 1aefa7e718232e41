"""``MGE_PLUGINS`` and ``MGE_PLUGINS_DISABLE``."""

import pytest

import mge
from mge import registry
from mge.debug import debug
from mge.errors import PluginUnavailable


def states():
    return {p.name: p.state for p in registry.plugins() if p.name in ("one", "two")}


@pytest.fixture
def two(here):
    return here.add_toy("one", "mge-one").add_toy("two", "acme-two")


@pytest.mark.parametrize(
    ("allowed", "denied", "found"),
    [
        ("*", "", {"one", "two"}),
        ("", "", set()),
        ("one", "", {"one"}),
        (" one , two ", "", {"one", "two"}),
        ("acme_two", "", {"two"}),
        ("*", "*", set()),
        ("*", "two", {"one"}),
        ("*", "mge-one, other", {"two"}),
        ("one,two", "two", {"one"}),
    ],
)
def test_switches(two, allowed, denied, found):
    with debug(plugins=allowed, plugins_disable=denied):
        assert {n for n, s in states().items() if s == "found"} == found
        assert {n for n, s in states().items() if s == "disabled"} == {"one", "two"} - found
    assert set(states().values()) == {"found"}


def test_a_disabled_plugin_is_not_loaded_by_name(two):
    with (
        debug(plugins_disable="one"),
        pytest.raises(PluginUnavailable, match="disabled: MGE_PLUGINS_DISABLE=one"),
    ):
        mge.tensor([1.0], device="one")
    with (
        debug(plugins="two"),
        pytest.raises(PluginUnavailable, match="disabled: MGE_PLUGINS=two does not name it"),
    ):
        mge.tensor([1.0], device="one")
    assert mge.tensor([1.0], device="one").device == "one:0"


def test_the_environment_turns_plugins_off(site):
    site.add_toy("one").add_toy("two")
    code = "from mge import registry; print({p.name: p.state for p in registry.plugins() if p.name in ('one', 'two')})"
    for variables in ({"MGE_PLUGINS": ""}, {"MGE_PLUGINS_DISABLE": "*"}):
        assert site.python(code, **variables)[0] == "{'one': 'disabled', 'two': 'disabled'}\n"


def test_auto_takes_the_highest_priority_that_works(here):
    source = """
        from mge.plugin import HostBackend
        class Fast(HostBackend):
            name, priority = "fast", 1050
        class Faster(HostBackend):
            name, priority = "faster", 1060
            def probe(self): return "no card"
    """
    entries = {"mge.backends": {"fast": "acme_fast:Fast", "faster": "acme_fast:Faster"}}
    here.add("acme-fast", entries, {"acme_fast": source}).add_toy()
    assert mge.tensor([1.0], device="auto").device == "fast:0"
    assert mge.tensor([1.0], device="cpu").device == "fast:0"
    assert [p.state for p in registry.plugins("backend") if p.package == "acme-fast"] == [
        "loaded",
        "unavailable",
    ]
