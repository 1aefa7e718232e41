"""The documents: links, the README's commands and code, lists of files, versions."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib

import pytest

from tests.core.architecture.public import is_there
from tools.count_lines import PACKAGE, ROOT

SKIPPED = {"shared", "build", "dist"}
GENERATED = {ROOT / "docs" / "environment.md"}


def is_ours(path):
    parts = path.relative_to(ROOT).parts
    return not any(part in SKIPPED or (part.startswith(".") and part != ".ci") for part in parts)


PAGES = sorted(path for path in ROOT.rglob("*.md") if is_ours(path))
README = (ROOT / "README.md").read_text()
# The core is complete enough to be used when it has its commands.
COMPLETE = (PACKAGE / "cli.py").exists() or (PACKAGE / "cli").is_dir()
needs_core = pytest.mark.skipif(not COMPLETE, reason="mge.cli does not exist yet")


def without_code(text):
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(path):
    titles = re.findall(
        r"^#+ +(.*?)\s*$", re.sub(r"(?ms)^```.*?^```", "", path.read_text()), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def block(marker):
    """Return the fenced block after an HTML comment of README.md."""
    found = re.search(rf"^<!-- {marker} -->\s*^```\w*\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert found, f"README.md has no block after <!-- {marker} -->"
    return found[1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    wrong = []
    for target in re.findall(r"\]\(<?([^)\s>]+)>?\)", without_code(page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if path in GENERATED:
            continue  # another test says how to write it
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            wrong.append(target)
    assert not wrong, f"{page}: {wrong}"


def test_the_readme_has_its_commands():
    assert "mge demo" in block("demo-command")
    assert "pytest" in block("test-command")
    assert "test-command" in (ROOT / ".ci" / "run").read_text()


@needs_core
@pytest.mark.parametrize("name", ["README.md", "tests/README.md"])
def test_a_readme_has_no_gaps(name):
    assert "FILL" not in (ROOT / name).read_text(), f"{name}: write each figure where it says FILL"


@needs_core
def test_the_quick_start_runs(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block("quick-start")],
        cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    loss, accuracy = re.fullmatch(r"loss ([\d.]+), accuracy ([\d.]+)\n", done.stdout).groups()
    assert float(loss) < 0.2 and float(accuracy) > 0.95


@needs_core
def test_the_page_of_environment_variables_is_current():
    from tools.write_environment import PAGE, page

    assert PAGE.exists() and PAGE.read_text() == page(), "run: python tools/write_environment.py"


@pytest.mark.parametrize("folder", ["examples", "bench"])
def test_a_folder_lists_its_files(folder):
    listed = (ROOT / folder / "README.md").read_text()
    missing = [path.name for path in (ROOT / folder).glob("*.py") if f"`{path.name}`" not in listed]
    assert not missing, f"{folder}/README.md needs a line for each"


def test_versions_agree():
    version = tomllib.loads((ROOT / "mge-core" / "pyproject.toml").read_text())["project"][
        "version"
    ]
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == version
    if is_there("mge"):
        import mge

        assert mge.__version__ == version == importlib.metadata.version("mge-core")


def test_licences_agree():
    assert (ROOT / "LICENSE").read_bytes() == (ROOT / "mge-core" / "LICENSE").read_bytes()


def test_fragments_have_a_kind():
    kinds = {"added", "changed", "fixed", "removed"}
    for path in (ROOT / "changes").iterdir():
        if path.name != "README.md":
            assert re.fullmatch(r"[\w-]+\.(\w+)\.md", path.name), path
            assert path.name.split(".")[-2] in kinds, path
