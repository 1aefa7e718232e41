"""The registry: which plugins are installed, the state of each and why, and what they offer once loaded.

In: entry points, names that are asked for. Out: ``Plugin`` records, loaded objects, results of hooks.
After ``plugin``; before ``device``.

A plugin is loaded when its name is used, and only that one. What goes wrong in it is its state and a reason: an error
where the user named it, else one warning line. The states: found, disabled, shadowed, incompatible, failed,
unavailable, loaded; ``loading`` stops a plugin that asks for itself.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import threading
import time
import traceback
from typing import Any

from . import parse
from .debug import debug
from .discovery import KINDS as KINDS
from .discovery import EntryPoint, discover, first_line, normal_name, unreadable
from .errors import PluginError, PluginIncompatible, PluginNotInstalled, PluginUnavailable
from .op import OPS, op

# Names of plugins that we know of -> the package that offers each.
PACKAGES = {
    "x86": "mge-x86",
    "arm": "mge-arm",
    "cuda": "mge-cuda",
    "npu": "mge-npu",
    "sublinear": "mge-sublinear",
    "sqrt": "mge-sublinear",
    "dtr": "mge-sublinear",
    "offload": "mge-sublinear",
    "int8": "mge-quant",
    "quant": "mge-quant",
    "vision": "mge-vision",
}
BUILT_IN = [("backend", "ref"), ("memory", "static"), ("memory", "naive")]
WORDS = {
    "backend": "device",
    "memory": "memory strategy",
    "quantizer": "quantiser",
    "ops": "op library",
}
REQUIRED = {
    "backend": ("probe", "devices", "supports", "kernel"),
    "memory": ("plan",),
    "quantizer": ("annotate", "observer", "convert", "validate"),
}

_ATTRIBUTES = {"priority": int, "min_nodes": int | None, "is_host": bool}  # of backends

_LOCK = threading.RLock()
_FACTS: dict[str, tuple[tuple[str, ...], int]] = {}  # of backends by name: see facts_of


class Plugin:
    """One entry point, and what became of it.

    Attributes
    ----------
    kind, name, package, version, value : str
        As in ``EntryPoint``.
    state, reason : str
    object : object or None
        What it offers, once loaded.
    traceback : str
        Of what stopped it.
    seconds : float
        What loading took.
    """

    def __init__(self, entry: EntryPoint) -> None:
        self.kind, self.name, self.package, self.version, self.value = entry
        self.state, self.reason, self.traceback = "found", "", ""
        self.object: Any = None
        self.seconds = 0.0

    def __str__(self) -> str:
        return f"{self.name} ({self.package} {self.version})".replace(" )", ")")

    def fail(self, error: BaseException, call: str = "") -> None:
        """Note what went wrong in it."""
        self.state, self.object = "failed", None
        self.reason = f"{call}{type(error).__name__}: {first_line(error)}"
        self.traceback = "".join(traceback.format_exception(error))


class _Refused(Exception):
    """The plugin cannot be used: the state that it gets, and the reason."""


@functools.cache
def _all() -> list[Plugin]:
    return [Plugin(e) for e in discover().entries]


def plugins(kind: str | None = None) -> list[Plugin]:
    """Return all plugins, or those of a kind, with the states that the switches give them now."""
    with _LOCK:
        taken = dict.fromkeys(BUILT_IN, "mge-core")
        for plugin in _all():
            key = (plugin.kind, plugin.name)
            if plugin.state in ("found", "disabled", "shadowed"):
                off = _switched_off(plugin)
                plugin.state, plugin.reason = ("disabled", off) if off else ("found", "")
                if not off and key in taken and plugin.kind != "hooks":
                    plugin.state, plugin.reason = "shadowed", f"shadowed by {taken[key]}"
            if plugin.state != "disabled":
                taken.setdefault(key, plugin.package)
        return [p for p in _all() if kind in (None, p.kind)]


def _switched_off(plugin: Plugin) -> str:
    """Return which switch turns a plugin off, or nothing."""
    switches = (debug.plugins, debug.plugins_disable)
    allowed, denied = ({normal_name(word.strip()) for word in s.split(",")} for s in switches)
    called = {normal_name(plugin.name), plugin.package, "*"}
    if not called & allowed:
        return f"MGE_PLUGINS={debug.plugins} does not name it"
    return f"MGE_PLUGINS_DISABLE={debug.plugins_disable}" if called & denied else ""


def load(kind: str, name: str, wanted: str = "") -> Any:
    """Return what the plugin of this kind and name offers; that plugin alone is loaded.

    Parameters
    ----------
    kind, name : str
    wanted : str
        What the user asked for, for the error; by default the kind and name.

    Raises
    ------
    PluginNotInstalled
        No installed plugin has that name; says which package offers it, where that is known.
    PluginIncompatible
        It was made for another version of the core, or breaks a rule of the contract.
    PluginUnavailable
        It is switched off, failed, or does not work on this machine.
    """
    wanted = wanted or f'{WORDS.get(kind, "plugin")} "{name}"'
    found = [p for p in plugins(kind) if p.name == name and p.state != "shadowed"]
    if not found:
        raise not_installed(kind, name, wanted)
    plugin = next((p for p in found if p.state != "disabled"), found[0])
    try_load(plugin)
    if plugin.state == "loaded":
        return plugin.object
    errors = {"incompatible": PluginIncompatible, "loading": PluginError}
    raise errors.get(plugin.state, PluginUnavailable)(
        f"{wanted} was asked for, and plugin {plugin} cannot be used here\n  {plugin.state}: {plugin.reason}\n"
        f"  usable: {', '.join(names(kind))}; details: mge plugins show {name}"
    )


def not_installed(kind: str, name: str, wanted: str) -> PluginNotInstalled:
    """Return the error for a name that no installed plugin offers."""
    text = f'{wanted} was asked for, and no installed plugin offers "{name}"'
    text += f"\n  usable: {', '.join(names(kind)) or 'none'}; details: mge plugins"
    broken = [package for package, _ in unreadable()]
    if broken:
        text += f"\n  packages with unreadable metadata: {', '.join(broken)}; details: mge doctor"
    hint = f"pip install {PACKAGES[name]}" if name in PACKAGES else None
    return PluginNotInstalled(text, hint=hint)


def names(kind: str) -> list[str]:
    """Return the names of a kind that are built in, loaded, or not tried yet."""
    usable = [p.name for p in plugins(kind) if p.state in ("found", "loaded")]
    return [name for k, name in BUILT_IN if k == kind] + usable


def each(kind: str) -> list[Plugin]:
    """Load all plugins of a kind; return those that can be used. A broken one costs a warning line."""
    for plugin in plugins(kind):
        if plugin.state == "found":
            try_load(plugin)
            if plugin.state in ("failed", "incompatible"):
                _warn(plugin)
    return [p for p in plugins(kind) if p.state == "loaded"]


def _warn(plugin: Plugin) -> None:
    hides = f"MGE_PLUGINS_DISABLE={plugin.name} hides this line"
    debug.once(f"plugin {plugin} was skipped: {plugin.reason}. {hides}")


def try_load(plugin: Plugin) -> None:
    """Load a plugin that is ``found``; whatever happens becomes its state."""
    with _LOCK:
        if plugin.state != "found":
            return
        plugin.state, plugin.reason = "loading", "it asked for itself while it was being loaded"
        known, start = set(OPS), time.perf_counter()
        try:
            made = _made(plugin)
            _CHECKS.get(plugin.kind, _check_names)(plugin, made)
            _check_ops(plugin, _added(plugin, known))
            plugin.object, plugin.state, plugin.reason = made, "loaded", ""
        except KeyboardInterrupt:
            plugin.state = "found"
            raise
        except _Refused as refused:
            plugin.state, plugin.reason = refused.args
        except (PluginIncompatible, PluginUnavailable) as error:  # as NativeBackend says it
            is_other = isinstance(error, PluginIncompatible)
            plugin.state = "incompatible" if is_other else "unavailable"
            plugin.reason = first_line(error)
        except BaseException as error:  # SystemExit, too: a plugin must not end the program
            plugin.fail(*error.args if isinstance(error, _Failed) else (error,))
        finally:
            plugin.seconds = time.perf_counter() - start
            if plugin.state != "loaded":
                for name in _added(plugin, known):
                    del OPS[name]


def _added(plugin: Plugin, known: set[str]) -> list[str]:
    """Return the ops that a plugin's own modules have registered since."""
    own = re.split(r"[.:]", plugin.value)[0]
    return sorted(n for n in set(OPS) - known if OPS[n].__module__.partition(".")[0] == own)


class _Failed(Exception):
    """A call into a plugin raised: the error, and which call."""


def _ask(thing: Any, what: str) -> Any:
    """Read an attribute of a plugin, or call ``method()`` of it."""
    try:
        found: Any = getattr(thing, what.removesuffix("()"), None)
        return found() if what.endswith("()") else found
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _Failed(error, f"{what}: ") from error


def _made(plugin: Plugin) -> Any:
    """Import what an entry point names, check its version, and call it if it is a class or function."""
    module, _, path = plugin.value.partition(":")
    found = importlib.import_module(module)
    for attribute in filter(None, path.split(".")):
        found = getattr(found, attribute)
    from .plugin import API

    needs = getattr(found, "MGE_PLUGIN_API", (1, 0))
    if not (isinstance(needs, tuple) and [*map(type, needs)] == [int, int]):
        raise _Refused("incompatible", f"MGE_PLUGIN_API is {needs!r}; it must be as {API}")
    if needs[0] != API[0] or needs > API:
        wanted, has = (f"{major}.{minor}" for major, minor in (needs, API))
        raise _Refused("incompatible", f"needs plugin API {wanted}, this mge-core has {has}")
    return found() if inspect.isclass(found) or inspect.isfunction(found) else found


def _check_names(plugin: Plugin, made: Any) -> None:
    missing = [m for m in REQUIRED.get(plugin.kind, ()) if not callable(getattr(made, m, None))]
    if missing:
        raise _Refused("incompatible", f"it has no {', '.join(f'{m}()' for m in missing)}")
    is_ops = plugin.kind == "ops"  # a plain module of ops needs no namespace attribute
    own = getattr(made, "namespace", plugin.name) if is_ops else getattr(made, "name", None)
    if own != plugin.name:
        text = f"its name is {own!r}, and that of its entry point {plugin.name!r}"
        raise _Refused("incompatible", text)


def _check_backend(plugin: Plugin, made: Any) -> None:
    _check_names(plugin, made)
    reason = _ask(made, "probe()")
    if not isinstance(reason, str | None):
        raise _Refused("incompatible", f"probe() gave {reason!r}; it must give None, or the reason")
    names = _ask(made, "devices()") if reason is None else ()
    if not isinstance(names, list | tuple) or {*map(type, names)} - {str}:
        raise _Refused("incompatible", f"devices() gave {names!r:.60}; it must give a list of str")
    if reason is None and not names:
        reason = "it has no device here"
    for attribute, kind in _ATTRIBUTES.items() if reason is None else ():
        if not isinstance(value := _ask(made, attribute), kind):
            rule = getattr(kind, "__name__", kind)
            raise _Refused("incompatible", f"{attribute} is {value!r:.60}; it must be {rule}")
    is_served = getattr(made, "is_host", False) or hasattr(made, "pool")
    own = () if is_served else ("allocator", "copy")
    missing = [f"{m}()" for m in own if not callable(getattr(made, m, None))]
    if missing:
        text = f"it has no {' and no '.join(missing)}, which a device with memory of its own needs"
        raise _Refused("incompatible", text)
    if reason is not None:
        raise _Refused("unavailable", reason)
    _FACTS[plugin.name] = (*names,), made.priority


def facts_of(backend: Any) -> tuple[tuple[str, ...], int]:
    """Return the names of a backend's devices and its priority, as they were when its plugin was loaded."""
    return _FACTS.get(backend.name) or (backend.devices(), backend.priority)


def _check_ops(plugin: Plugin, added: list[str]) -> None:
    """Ops that a plugin adds carry its namespace, or (from hooks and devices) some namespace."""
    start = f"{plugin.name}::" if plugin.kind == "ops" else ""
    wrong = [n for n in added if "::" not in n or not n.startswith(start)]
    if wrong:
        rule = f"names must begin with {start or 'a namespace::'}"
        raise _Refused("incompatible", f"it registered {', '.join(wrong)}; {rule}")


def _check_hooks(plugin: Plugin, made: Any) -> None:
    """Register an object's hooks; take it out again if one of them is none."""
    from pluggy import PluginValidationError

    manager = _hooks()
    try:
        manager.register(made, f"{plugin.package}:{plugin.name}")
        callers = manager.get_hookcallers(made) or []
        unknown = [c.name for c in callers if not c.has_spec()]
        if unknown:
            raise _Refused("incompatible", f"unknown hooks {unknown}")
        if not callers:
            text = "none of its functions is marked with mge.plugin.hookimpl"
            raise _Refused("incompatible", text)
    except BaseException as error:
        if manager.is_registered(made):
            manager.unregister(made)
        if isinstance(error, PluginValidationError):
            lines = str(error).splitlines()
            raise _Refused("incompatible", f"{lines[0]}: {lines[-1]}") from error
        if isinstance(error, _Refused | KeyboardInterrupt):
            raise
        raise _Failed(error, "mge_register_ops(): ") from error


_CHECKS = {"backend": _check_backend, "hooks": _check_hooks}


@functools.cache
def _hooks() -> Any:
    import pluggy

    from .plugin import Hooks

    manager = pluggy.PluginManager("mge")
    manager.add_hookspecs(Hooks)
    manager.hook.mge_register_ops.call_historic(kwargs={"op": op})
    return manager


def hooks_of(plugin: Plugin) -> list[str]:
    """Return the names of the hooks that a loaded plugin implements."""
    return sorted(caller.name for caller in _hooks().get_hookcallers(plugin.object) or ())


def call_hooks(name: str, **arguments: Any) -> list[tuple[Plugin, list[Any]]]:
    """Call each implementation of a hook by itself; one that fails costs a warning line, and its plugin.

    Returns
    -------
    list of (plugin, list)
        What each implementation gave, as a list.
    """
    owners = {f"{p.package}:{p.name}": p for p in each("hooks")}
    results = []
    for implementation in reversed(getattr(_hooks().hook, name).get_hookimpls()) if owners else ():
        plugin = owners[implementation.plugin_name]
        try:
            given = implementation.function(*[arguments[a] for a in implementation.argnames])
            results.append((plugin, list(given or ())))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            plugin.fail(error, f"{name}(): ")
            _hooks().unregister(implementation.plugin)
            _warn(plugin)
    return results


def load_namespace(namespace: str) -> str | None:
    """Load the library of the ops ``namespace::...``; where there is none, return the package that has it."""
    if any(p.name == namespace for p in plugins("ops")):
        load("ops", namespace)
    else:
        each("hooks")  # one of them may have registered such ops
    return PACKAGES.get(namespace)


def library_kernel(device: str, use: Any) -> Any:
    """Return the kernel that the op's own library has for a type of device, or None."""
    namespace = use.op.name.partition("::")[0]
    for plugin in plugins("ops"):
        if plugin.name == namespace and hasattr(plugin.object, "kernels"):
            try:
                make = plugin.object.kernels(device).get(use.op.name)
                kernel = make(use) if make is not None else None
                if kernel is None or callable(kernel):
                    return kernel
                raise TypeError(f"{use.op.name} gave {kernel!r:.60}, which is no kernel")
            except Exception as error:
                plugin.reason = f"kernels(): {type(error).__name__}: {first_line(error)}"
                debug.once(f"op library {plugin} runs by its references: {plugin.reason}")
    return None


parse.load_namespace = load_namespace
