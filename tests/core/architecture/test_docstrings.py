"""Docstrings of the public names: summary, sections, each parameter, and examples that run."""

import builtins
import doctest
import importlib
import inspect
import re

import pytest

from tests.core.architecture.public import is_op, is_there, public_modules, public_objects

MODULES = list(public_modules())
OBJECTS = public_objects()
# In this order; a docstring may leave out any of them that does not apply.
ORDER = ["Parameters", "Attributes", "Returns", "Yields", "Raises", "Notes", "Sources", "Examples"]


def sections(doc):
    """Return the text of each section by its title; the text before the first one is under ""."""
    found, title = {"": []}, ""
    lines = doc.splitlines()
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if re.fullmatch(r"-{3,}", below.strip()) and line.strip():
            title = line.strip()
            found[title] = []
        elif not re.fullmatch(r"-{3,}", line.strip()):
            found[title].append(line)
    return found


def entries(lines):
    """Return the names that a Parameters or Attributes section describes."""
    names = set()
    for line in lines:
        if line and not line[0].isspace():
            head = line.split(" : ")[0].rstrip(":")
            names.update(part.strip().lstrip("*") for part in head.split(","))
    return names


def summary_faults(doc):
    first = (doc or "").strip().split("\n")[0]
    if not first:
        return ["no docstring"]
    faults = []
    if len(first) > 80:
        faults.append(f"the summary has {len(first)} characters; at most 80")
    if not first.endswith((".", "?", ":")):
        faults.append("the summary is not one sentence on one line")
    return faults


def parameters(thing):
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return []
    return [p for p in signature.parameters if p not in ("self", "cls") and not p.startswith("_")]


def own_constructor(cls):
    return "__init__" in vars(cls) or "__new__" in vars(cls)


def faults(thing):
    """Return what is wrong with the docstring of a public class, function or op."""
    doc = inspect.cleandoc(thing.__doc__ or "")
    found = summary_faults(doc)
    if not doc:
        return found
    parts = sections(doc)
    known = [title for title in parts if title in ORDER]
    if known != sorted(known, key=ORDER.index):
        found.append(f"sections are {', '.join(known)}; their order is {', '.join(ORDER)}")
    is_class = inspect.isclass(thing)
    if not is_class or own_constructor(thing):
        described = entries(parts.get("Parameters", [])) | entries(parts.get("Attributes", []))
        missing = [name for name in parameters(thing) if name not in described]
        if missing:
            found.append(f"Parameters does not describe {', '.join(missing)}")
    if is_op(thing):
        found += [
            f"an op needs the section {t}"
            for t in ("Returns", "Raises", "Examples")
            if t not in parts
        ]
    if is_class:
        for name, member in vars(thing).items():
            if name.startswith("_") or not (
                inspect.isfunction(member) or isinstance(member, property)
            ):
                continue
            text = inspect.getdoc(getattr(thing, name))  # a method inherits its docstring
            found += [f"{name}: {fault}" for fault in summary_faults(text)]
    return found


def test_faults_are_found():
    def good(x, *, eps=1.0):
        """Scale ``x``.

        Parameters
        ----------
        x : (n,) float
            Values.
        eps : float, default 1.0
            Added.

        Returns
        -------
        (n,) float
        """

    def bad(x, y):
        """Scale

        Returns
        -------
        float

        Parameters
        ----------
        x : float
        """

    class Thing:
        def __init__(self, size):
            pass

        def step(self):
            pass

    assert faults(good) == []
    assert len(faults(bad)) == 3
    assert faults(Thing) == ["no docstring"]
    Thing.__doc__ = "A thing."
    assert faults(Thing) == ["Parameters does not describe size", "step: no docstring"]


@pytest.mark.parametrize("name", MODULES)
def test_a_public_module_lists_its_names(name):
    module = importlib.import_module(name)
    assert summary_faults(module.__doc__) == []
    assert hasattr(module, "__all__"), f"{name} has no __all__"
    assert len(set(module.__all__)) == len(module.__all__)
    missing = [n for n in module.__all__ if not hasattr(module, n)]
    assert not missing


@pytest.mark.parametrize(("name", "thing"), OBJECTS, ids=[name for name, _ in OBJECTS])
def test_a_public_name_has_a_complete_docstring(name, thing):
    found = faults(thing)
    assert not found, f"{name}: " + "; ".join(found)


@pytest.mark.parametrize(("name", "thing"), OBJECTS, ids=[name for name, _ in OBJECTS])
def test_the_examples_of_a_public_name_run(name, thing, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # an example may write a file
    space = example_names()
    finder = doctest.DocTestFinder(exclude_empty=True, recurse=inspect.isclass(thing))
    if not inspect.isclass(thing):
        tests = [doctest.DocTestParser().get_doctest(thing.__doc__ or "", space, name, None, 0)]
    else:
        tests = finder.find(thing, name, globs=space, module=False)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    output = []
    runner = doctest.DocTestRunner(optionflags=flags)
    for test in tests:
        runner.run(test, out=output.append, clear_globs=False)
    assert runner.failures == 0, "".join(output)


def example_names():
    """What an example may use without importing it: mge's names, F's, F, M and np."""
    space = {}
    if is_there("mge.functional"):
        functional = importlib.import_module("mge.functional")
        space |= {name: getattr(functional, name) for name in functional.__all__}
        space["F"] = functional
    for name in ("mge.module", "mge.optimizer"):
        if is_there(name):
            module = importlib.import_module(name)
            space |= {n: getattr(module, n) for n in module.__all__}
            space["M" if name == "mge.module" else "optim"] = module
    mge = importlib.import_module("mge")
    space |= {name: getattr(mge, name) for name in mge.__all__ if not hasattr(builtins, name)}
    return space | {"mge": mge, "np": importlib.import_module("numpy")}
