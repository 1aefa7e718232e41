"""The order of the core's files, read from the sources without importing them.

The order itself is the import-linter contract in pyproject.toml.
"""

import ast
import graphlib

import pytest

from tools.count_lines import PACKAGE, layers, top_module

FILES = sorted(PACKAGE.rglob("*.py"))
RANK = {name: rank for rank, layer in enumerate(layers()) for name in layer}
INTERFACE = len(layers()) - 1
# These may import the package as a whole, as a user does.
USERS = {"__main__", "cli", "testing"}


def only_for_types(node):
    test = node.test
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def imports(node, package):
    """Yield (line, absolute dotted name) of each import, late ones too, but not those for type checkers."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and only_for_types(child):
            for other in child.orelse:
                yield from imports(ast.Module([other], []), package)
        elif isinstance(child, ast.Import):
            for alias in child.names:
                yield child.lineno, alias.name
        elif isinstance(child, ast.ImportFrom):
            base = package[: len(package) - child.level + 1] if child.level else []
            base = [*base, *(child.module.split(".") if child.module else [])]
            for alias in child.names:
                yield child.lineno, ".".join([*base, alias.name])
        else:
            yield from imports(child, package)


def imported_modules(path):
    """Yield (line, module directly below mge); the module is "" for mge itself."""
    package = ["mge", *path.relative_to(PACKAGE).parts[:-1]]
    for line, name in imports(ast.parse(path.read_text()), package):
        first, *rest = name.split(".")
        if first == "mge":
            is_module = rest and (
                (PACKAGE / rest[0]).is_dir() or (PACKAGE / f"{rest[0]}.py").exists()
            )
            yield line, rest[0] if is_module else ""


def test_imports_are_found_where_they_stand():
    source = """
import mge.run
from .errors import MgeError
from . import graph, types as t
if TYPE_CHECKING:
    from .tensor import Tensor
else:
    from .tree import map
def late():
    from ..plan import build
"""
    names = [name for _, name in imports(ast.parse(source), ["mge", "ops"])]
    assert names == [
        "mge.run", "mge.ops.errors.MgeError", "mge.ops.graph", "mge.ops.types", "mge.ops.tree.map",
        "mge.plan.build",
    ]  # fmt: skip


def test_each_module_has_a_place_in_the_order():
    names = {top_module(path) for path in FILES} - {"", "__main__"}
    assert names <= RANK.keys(), "list these in pyproject.toml, tool.importlinter.contracts"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_imports_only_from_files_above_it(path):
    own = top_module(path)
    if own in ("", "__main__"):
        return
    wrong = []
    for line, name in imported_modules(path):
        if name == own:
            continue
        if name == "":
            bad = own not in USERS
        else:
            bad = RANK[name] > RANK[own] or (RANK[name] == RANK[own] != INTERFACE)
        if bad:
            wrong.append(f"{path}:{line}: mge.{own} may not import mge{'.' if name else ''}{name}")
    assert not wrong, "\n".join(wrong)


def test_the_interface_layer_has_no_cycles():
    wanted = {}
    for path in FILES:
        own = top_module(path)
        if RANK.get(own) == INTERFACE:
            names = {name for _, name in imported_modules(path)} - {own, ""}
            wanted.setdefault(own, set()).update(n for n in names if RANK[n] == INTERFACE)
    graphlib.TopologicalSorter(wanted).prepare()  # raises CycleError


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_debug_reads_the_environment(path):
    if path == PACKAGE / "debug.py":
        return
    wrong = []
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "os"
        ):
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            names = [alias.name for alias in node.names]
        wrong += [
            f"{path}:{node.lineno}: os.{n}" for n in names if n in ("environ", "environb", "getenv")
        ]
    assert not wrong, "\n".join(wrong)
