"""Finding entry points: sorted, once, without imports, whatever unrelated packages do."""

import sys

import pytest

from mge.discovery import EntryPoint, discover, normal_name, unreadable
from tests.core.plugins.conftest import Site

MALFORMED = {
    "no section": "name = module:object\n",
    "a key twice": "[console_scripts]\na = b:c\na = d:e\n",
    "no text": b"\xff\xfe\x00[",
    "no value": "[console_scripts]\njust words\n",
}


def mine(entries):
    return [e for e in entries if e.package.startswith(("acme", "fake"))]


def test_entries_are_sorted_and_complete(here):
    here.add("Acme.MGE", {"mge.memory": {"thrifty": "acme.memory:Thrifty"}}, version="2.1")
    here.add(
        "acme-b", {"mge.backends": {"acme": "acme_b:B [extra]"}, "console_scripts": {"x": "y:z"}}
    )
    here.add("acme-a", {"mge.backends": {"acme": "acme_a"}})
    assert mine(discover().entries) == [
        EntryPoint("backend", "acme", "acme-a", "1.0", "acme_a"),
        EntryPoint("backend", "acme", "acme-b", "1.0", "acme_b:B"),
        EntryPoint("memory", "thrifty", "acme-mge", "2.1", "acme.memory:Thrifty"),
    ]
    assert not [m for m in sys.modules if m.startswith("acme")]


def test_discovery_reads_once(here):
    first = discover()
    here.add("acme-late", {"mge.backends": {"late": "late:L"}})
    assert discover() is first


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_file_hides_nobody_else(here, text):
    here.add("aaa-unrelated", text)
    here.add("acme", {"mge.backends": {"acme": "acme:A"}})
    found = discover()
    assert [e.name for e in mine(found.entries)] == ["acme"] and not found.malformed
    assert [package for package, _ in unreadable()] == ["aaa-unrelated"]


@pytest.mark.parametrize("text", ["[mge.backends]\na = b:c\na = d:e", "[mge.backends]\na = a%(b:c"])
def test_malformed_metadata_of_a_plugin_is_one_line(here, text):
    here.add("acme-broken", text)
    here.add("acme", {"mge.backends": {"fine": "acme:A"}})
    found = discover()
    assert [e.name for e in mine(found.entries)] == ["fine"]
    assert [package for package, _ in found.malformed] == ["acme-broken"]


def test_the_first_on_the_path_counts(here, tmp_path, monkeypatch):
    here.add("acme", {"mge.backends": {"one": "acme:A"}})
    (tmp_path / "second").mkdir()
    Site(tmp_path / "second").add("acme", {"mge.backends": {"two": "acme:A"}}, version="2.0")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "second"), "/nonesuch"])
    assert [e.name for e in mine(discover().entries)] == ["one"]


def test_names_of_packages_are_normal():
    assert normal_name("Acme_MGE..x") == "acme-mge-x"


def test_import_scans_nothing_and_imports_no_plugin(site):
    site.add_toy()
    code = """
        import builtins, sys
        import mge, mge.functional, mge.module, mge.optimizer, mge.data
        from mge.discovery import discover
        assert not discover.cache_info().misses
        assert not [m for m in sys.modules if m.startswith("mge_")]
        assert not {"entrypoints", "pluggy", "mge.plugin"} & set(sys.modules), "imported early"
        mge.tensor([1.0], device="ref").numpy()
        assert not [m for m in sys.modules if m.startswith("mge_")]
    """
    site.python(code)
