"""``mge new-backend``: what it writes, what it refuses, and that the examples are what it writes, filled in."""

import ast
import re
import tomllib

import pytest

from mge.cli import main
from mge.cli.new_backend import FILES, render
from mge.errors import ArgumentError
from tools.count_lines import PACKAGE, ROOT, code_lines

EXAMPLES = {"python": "toy", "c++": "toy_native"}


@pytest.fixture(params=["python", "c++"])
def language(request):
    return request.param


def write(*words):
    return main(["new-backend", *map(str, words)])


def test_it_writes_all_files(language, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert write("acme", "--lang", language) == 0
    made = {str(p.relative_to(tmp_path / "mge-acme")) for p in tmp_path.rglob("*") if p.is_file()}
    assert made == {*render("acme", language)}
    out = capsys.readouterr().out
    assert all(f"  {name}\n" in out for name in made)
    assert out.endswith("next: pip install ./mge-acme && python -m mge.testing acme\n")
    assert (tmp_path / "mge-acme" / "ci.sh").stat().st_mode & 0o111


def test_the_files_are_well_formed(language):
    for name, text in render("my_chip2", language).items():
        assert text.endswith("\n") and not re.search(r"@\w+@", text), name
        assert max(map(len, text.splitlines())) <= 120, name
        if name.endswith(".py"):
            ast.parse(text)
            assert code_lines(text) <= 40
        if name.endswith(".toml"):
            entry = tomllib.loads(text)["project"]["entry-points"]["mge.backends"]
            assert [*entry] == ["my_chip2"] and entry["my_chip2"].startswith("mge_my_chip2:")


def test_each_template_is_used():
    used = {f"{template}.tmpl" for files in FILES.values() for template in files}
    folder = PACKAGE / "cli" / "templates"
    assert {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} == used


def test_it_overwrites_nothing(language, tmp_path, capsys):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "README.md").write_text("mine")
    assert write("acme", "--lang", language, "--out", folder) == 2
    assert "mine has README.md already; nothing was written" in capsys.readouterr().err
    assert [p.name for p in folder.iterdir()] == ["README.md"]
    assert (folder / "README.md").read_text() == "mine"


def test_out_may_be_a_folder_with_other_files(tmp_path):
    (tmp_path / "LICENSE").write_text("mine")
    assert write("acme", "--out", tmp_path) == 0
    assert (tmp_path / "pyproject.toml").exists()


@pytest.mark.parametrize(
    "name", ["", "Acme", "a-b", "1a", "a b", "a__b", "_a", "a_", "../a", "class", "é"]
)
def test_a_name_of_another_form_is_refused(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert write(name) == 2
    assert "cannot name a device" in capsys.readouterr().err and not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ref", "'ref' is built in"),
        ("auto", "'auto' is a name that mge uses"),
        ("npu", "'npu' is the name of a plugin of mge, mge-npu"),
    ],
)
def test_a_name_that_is_taken_is_refused(name, text, capsys):
    assert write(name) == 2
    assert text in capsys.readouterr().err


def test_the_name_of_an_installed_plugin_is_refused(site):
    done = site.add_toy("acme").mge("new-backend", "acme")
    assert done.returncode == 2
    assert "'acme' is the name of an installed plugin, mge-acme" in done.stderr


def test_the_examples_are_what_it_writes(language):
    """All but kernels and words for people."""
    name = EXAMPLES[language]
    folder = ROOT / "examples" / f"mge-{name.replace('_', '-')}"
    made = render(name, language)
    for path in ("ci.sh", "unsupported.txt", "xfails.txt", "tests/test_conformance.py"):
        assert (folder / path).read_text() == made[path]
    ours, theirs = (
        tomllib.loads(text)
        for text in ((folder / "pyproject.toml").read_text(), made["pyproject.toml"])
    )
    for own in ("description", "license"):
        ours["project"].pop(own), theirs["project"].pop(own, None)
    assert ours == theirs
    if language == "c++":
        path = "src/mge_toy_native/__init__.py"
        assert (folder / path).read_text() == made[path]
        cmake = made["CMakeLists.txt"].replace("toy_native.cc", "toy.cc")
        assert (folder / "CMakeLists.txt").read_text() == cmake


def test_pins_are_ranges(monkeypatch):
    import mge
    from mge.cli.new_backend import words_of

    for version, pin in (
        ("0.1.0", ">=0.1,<0.2"),
        ("0.12.3", ">=0.12,<0.13"),
        ("1.4.0", ">=1.4,<2"),
    ):
        monkeypatch.setattr(mge, "__version__", version)
        assert words_of("acme")["pin"] == pin


def test_check_name_raises_where_it_is_called():
    from mge.cli.new_backend import check_name

    with pytest.raises(ArgumentError, match="built in"):
        check_name("ref")
