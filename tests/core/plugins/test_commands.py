"""``mge plugins`` and ``mge doctor``, in processes of their own."""

import csv
import json

import pytest

from mge.cli.doctor import satisfies
from tests.core.plugins.installed import REAL


def states(facts):
    return {
        p["name"]: (p["state"], p["reason"]) for p in facts["plugins"] if p["package"] not in REAL
    }


@pytest.fixture
def bad(site):
    site.add(
        "mge-crash",
        {"mge.backends": {"crash": "mge_crash:B"}},
        {"mge_crash": "import os\nos.kill(os.getpid(), 11)"},
    )
    site.add(
        "mge-hang",
        {"mge.backends": {"hang": "mge_hang:B"}},
        {"mge_hang": "import time\ntime.sleep(60)"},
    )
    site.add(
        "mge-gone", {"mge.backends": {"gone": "mge_gone:B"}}, {"mge_gone": "import os\nos._exit(7)"}
    )
    return site.add_toy()


def test_list_imports_nothing(bad):
    status, facts = bad.plugins()
    found = states(facts)
    assert status == 0 and facts["schema"] == 1 and facts["malformed"] == []
    assert found["ref"][0] == found["static"][0] == "built in"
    assert {found[n] for n in ("crash", "hang", "gone", "toy")} == {("found", "")}
    text = bad.mge("plugins", "list").stdout
    assert text.splitlines()[0].split() == ["NAME", "KIND", "PACKAGE", "VERSION", "STATE", "NOTE"]


def test_strict_list_fails_where_a_plugin_is_broken(site):
    site.add_toy()
    assert site.mge("plugins", "list", "--strict").returncode == 0
    site.add("mge-bad", {"mge.backends": {"bad": "mge_bad:B"}}, {"mge_bad": "1 / 0"})
    assert site.mge("plugins", "list").returncode == 0
    assert site.mge("plugins", "list", "--strict").returncode == 1


@pytest.mark.parametrize(
    ("text", "level"), [('{"trust": "L4"}', "L4"), ('{"trust": "best"}', ""), ("{", ""), ("[]", "")]
)
def test_list_says_what_conformance_a_package_states(site, text, level):
    site.add("mge-kit", {"mge.backends": {"kit": "mge_kit.backend:B"}})
    (site.path / "mge_kit").mkdir()
    (site.path / "mge_kit" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (site.path / "mge_kit" / "conformance.json").write_text(text)
    _, facts = site.plugins()
    assert [p["conformance"] for p in facts["plugins"] if p["name"] == "kit"] == [level]
    assert ("states conformance L4" in site.mge("plugins").stdout) == bool(level)


def test_check_survives_a_crash_and_a_hang(bad):
    status, facts = bad.plugins("check", "--timeout", "5")
    assert status == 1
    assert states(facts) == {
        "crash": ("failed", "crashed (SIGSEGV)"),
        "gone": ("failed", "its process ended with status 7: no text"),
        "hang": ("failed", "timed out after 5 s"),
        "toy": ("loaded", ""),
    }


def test_using_one_plugin_imports_no_other(bad):
    assert (
        bad.python("import mge; print((mge.tensor([1.0], device='toy') + 1).item())")[0] == "2.0\n"
    )


def test_show_prints_all_about_one(site):
    site.add_toy()
    site.add(
        "mge-bad",
        {"mge.memory": {"bad": "mge_bad:B"}},
        {"mge_bad": "print('hello')\nimport no_such_thing"},
    )
    status, facts = site.plugins("show", "toy")
    assert status == 0 and facts["plugins"][0]["devices"] == ["toy:0 toy"]
    done = site.mge("plugins", "show", "bad")
    assert done.returncode == 1
    assert "ModuleNotFoundError: No module named 'no_such_thing'" in done.stdout
    assert 'mge_bad.py", line 2' in done.stdout  # the traceback
    status, facts = site.plugins("check", "bad")
    assert status == 1 and states(facts)["bad"][0] == "failed"
    done = site.mge("plugins", "show", "nonesuch")
    assert done.returncode == 2 and "no installed plugin offers" in done.stderr


@pytest.mark.parametrize(
    ("expected", "status", "text"),
    [
        ("toy", 0, ""),
        ("py311-toy", 0, ""),
        ("core", 1, "not expected: toy"),
        ("toy,x86", 1, "missing: x86"),
    ],
)
def test_expect_compares_what_can_be_used(site, expected, status, text):
    site.add_toy()
    site.add("mge-bad", {"mge.backends": {"bad": "mge_bad:B"}}, {"mge_bad": "1 / 0"})
    done = site.mge("plugins", "--json", "--expect", expected)
    assert done.returncode == status, done.stderr
    assert text in done.stderr and json.loads(done.stdout)["missing"] == (
        ["x86"] if "x86" in text else []
    )


def test_ops_and_why_tell_what_a_device_does(site):
    site.add_toy()
    _, facts = site.plugins("ops", "toy")
    rows = {r["op"]: r for r in facts["ops"]}
    assert rows["add"]["accepted"] == rows["add"]["samples"]
    assert rows["tan"]["refused"] == ["no kernel; runs on ref"]
    lines = list(csv.DictReader(site.mge("plugins", "ops", "toy", "--csv").stdout.splitlines()))
    assert [(r["op"], int(r["accepted"]), r["refused"]) for r in lines] == [
        (r["op"], r["accepted"], " | ".join(r["refused"])) for r in facts["ops"]
    ]
    _, facts = site.plugins("why", "tan", "--device", "toy:0", "--dtype", "float16")
    assert {u["answer"] for u in facts["uses"]} == {"no kernel; runs on ref"}
    assert "f16" in facts["uses"][0]["use"]
    assert site.mge("plugins", "why", "tan", "--device", "toy").returncode == 0
    assert site.mge("plugins", "why", "nonesuch", "--device", "toy").returncode == 2


def test_env_prints_switches_and_unreadable_metadata(site):
    site.add("broken", "nonsense\n")
    _, facts = site.plugins("env", MGE_PLUGINS_DISABLE="x")
    assert facts["settings"]["MGE_PLUGINS_DISABLE"] == "x" and facts["plugin_api"] == [1, 0]
    assert facts["malformed"][0]["package"] == "broken"
    assert "unreadable" in site.mge("plugins", "env").stdout


def test_doctor_says_one_line_for_each_fault(site):
    doctor = (
        "from mge.plugin import hookimpl\n@hookimpl\ndef mge_doctor(): yield 'the driver is old'\n"
    )
    doctor += "@hookimpl\ndef mge_suggest(platform): return ['acme-' + platform['machine']]"
    site.add("broken", "nonsense\n")
    site.add(
        "acme", {"mge.hooks": {"acme": "acme"}}, {"acme": doctor}, requires=["mge-core>=99,<100"]
    )
    site.add("mge-bad", {"mge.backends": {"bad": "mge_bad:B"}}, {"mge_bad": "1 / 0"})
    site.add_toy("toy", "toy-a").add_toy("toy", "toy-b")
    done = site.mge("doctor", "--json")
    found = {(f["about"], f["text"]) for f in json.loads(done.stdout)["findings"]}
    texts = "\n".join(f"{about}: {text}" for about, text in sorted(found))
    assert done.returncode == 1
    assert "metadata: broken: its entry_points.txt cannot be read" in texts
    assert "plugins: bad (mge-bad 1.0): failed: ZeroDivisionError: division by zero" in texts
    assert "plugins: toy (toy-b 1.0): shadowed by toy-a; uninstall one of them" in texts
    assert "versions: acme needs mge-core>=99,<100; mge-core is" in texts
    assert "acme: the driver is old" in texts and "suggests: pip install acme-" in texts


def test_doctor_finds_nothing_where_nothing_is_wrong(site):
    site.add_toy()
    done = site.mge("doctor", MGE_PLUGINS="toy")
    assert done.returncode == 0 and done.stdout.endswith("nothing is wrong\n"), done.stdout


def test_doctor_counts_runtimes(site):
    site.add("mge-omp", {"mge.hooks": {"omp": "mge_omp"}}, {"mge_omp": """
        from mge import threads
        from mge.plugin import hookimpl
        loaded = threads._loaded_libraries
        threads._loaded_libraries = lambda: loaded() | {"/a/libgomp.so.1", "/b/libomp.so"}
        @hookimpl
        def mge_doctor(): return ()
    """})  # fmt: skip
    done = site.mge("doctor")
    assert (
        "2 OpenMP libraries in one process, each with its own threads: /a/libgomp.so.1, /b/libomp.so"
        in done.stdout
    )


def test_a_plugin_adds_a_command(site):
    source = """
        from mge.plugin import hookimpl
        @hookimpl
        def mge_cli(subparsers):
            parser = subparsers.add_parser("greet", help="say hello")
            parser.set_defaults(run=lambda arguments: print("hello") or 5)
    """
    site.add("acme", {"mge.hooks": {"acme": "acme"}}, {"acme": source})
    done = site.mge("greet")
    assert (done.returncode, done.stdout) == (5, "hello\n")
    assert "say hello" in site.mge("--help").stdout


@pytest.mark.parametrize(
    ("version", "requirement", "holds"),
    [
        ("0.1.0", "mge-core>=0.1,<0.2", True),
        ("0.2.0", "mge-core (>=0.1, <0.2)", False),
        ("1.4.2", "mge-core~=1.4", True),
        ("2.0", "mge-core~=1.4", False),
        ("1.0.0", "mge-core==1", True),
        ("1.0.0rc1", "mge-core!=1.0", False),
        ("3.1", "mge-core", True),
    ],
)
def test_versions_are_compared_by_their_numbers(version, requirement, holds):
    assert satisfies(version, requirement) is holds
