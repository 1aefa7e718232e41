"""The public names of the core: what the modules of the interface layer export."""

import importlib
import importlib.util
import inspect
import pkgutil

from tools.count_lines import layers


def is_there(name):
    """Whether a module is installed, without importing more than its parents."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return False
    return spec is not None and spec.origin is not None


def public_modules():
    """Yield the names of mge, the interface modules and their public submodules."""
    if not is_there("mge"):
        return
    yield "mge"
    provided = importlib.import_module("mge")._PLUGIN_MODULES  # by other packages
    for name in sorted(set(layers()[-1]) - {"cli", *provided}):
        name = f"mge.{name}"
        if is_there(name):
            yield name
            module = importlib.import_module(name)
            for info in pkgutil.iter_modules(getattr(module, "__path__", [])):
                # Submodules of a package are public when they say what they export.
                if info.name[0] != "_" and name != "mge.testing":
                    below = importlib.import_module(f"{name}.{info.name}")
                    if hasattr(below, "__all__"):
                        yield f"{name}.{info.name}"


def public_objects():
    """Return (dotted name, object) of each public class and function, each object once."""
    found = {}
    for module_name in public_modules():
        module = importlib.import_module(module_name)
        for name in sorted(getattr(module, "__all__", ())):
            thing = getattr(module, name, None)  # test_docstrings.py reports a missing one
            if inspect.isclass(thing) or inspect.isroutine(thing) or is_op(thing):
                found.setdefault(id(thing), (f"{module_name}.{name}", thing))
    return sorted(found.values(), key=lambda pair: pair[0])


def is_op(thing):
    """Whether this is an op record, or a function that stands for one."""
    return callable(thing) and hasattr(thing, "reference") and hasattr(thing, "samples")
