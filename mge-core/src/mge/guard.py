"""Guards: the plain Python values that a traced function read, and whether they are still the same.

In: the code that ran while a function was traced. Out: ``Guard`` objects that check globals and closures.
After ``run``; before ``trace``.
"""

from __future__ import annotations

import dis
import gc
import operator
import sys
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from .errors import INTERNAL_CODE

PLAIN = (bool, int, float, complex, str, bytes, type(None))
LARGEST_ARRAY_BYTES = (
    1 << 20
)  # a captured array up to this size is guarded by its elements, a larger one by identity
LARGEST = 64  # elements of a container that is looked into
_STANDARD = tuple({sys.prefix, sys.base_prefix})


class Read(NamedTuple):
    """One name that code reads: a global, a variable of an enclosing function or an argument, then attributes."""

    kind: str  # "global", "closure" or "argument"
    name: str
    attributes: tuple[str, ...]


class Guard(NamedTuple):
    """One value that was read, and where it came from.

    Attributes
    ----------
    owner : dict or cell
        The globals or arguments of a function, or the closure's cell.
    read : Read
    value : object
        What was read; a container is kept as a copy.
    """

    owner: Any
    read: Read
    value: Any

    def holds(self) -> bool:
        """Whether the value is still the same."""
        owner, (kind, name, attributes), value = self
        try:
            now = owner.cell_contents if kind == "closure" else owner[name]
            for attribute in attributes:
                now = getattr(now, attribute)
        except (KeyError, ValueError, AttributeError):
            return False
        return now is value or same_plain(now, value)

    def __str__(self) -> str:
        path = ".".join((self.read.name, *self.read.attributes))
        return f"{path} was {_shown(self.value)} and is {_shown(look_up(self.owner, self.read)[1])}"


def broken(guards: Iterable[Guard]) -> Guard | None:
    """Return the first guard that does not hold. Most are one name that still stands for one object."""
    for guard in guards:
        owner, (kind, name, attributes), value = guard
        plain = not attributes and kind != "closure"
        if plain and owner.get(name) is value and value is not None:
            continue
        if not guard.holds():
            return guard
    return None


def _shown(value: Any) -> str:
    """Return a plain value as text, and of anything else the name: tensors are not read here."""
    if is_plain(value) or isinstance(value, (types.FunctionType, type)):
        return repr(value)
    return f"a {type(value).__name__} (0x{id(value):x})"


def look_up(owner: Any, read: Read) -> tuple[bool, Any]:
    """Return whether a read finds something now, and what."""
    try:
        value = owner.cell_contents if read.kind == "closure" else owner[read.name]
        for attribute in read.attributes:
            value = getattr(value, attribute)
    except (KeyError, ValueError, AttributeError):
        return False, None
    return True, value


def is_plain(value: Any) -> bool:
    """Whether a value is a number, text, or a container of such."""
    if isinstance(value, (tuple, list, set, frozenset)):
        return len(value) <= LARGEST and all(map(is_plain, value))
    if isinstance(value, dict):
        return len(value) <= LARGEST and all(is_plain(k) and is_plain(v) for k, v in value.items())
    return type(value) in PLAIN


def same_plain(a: Any, b: Any) -> bool:
    """Whether two plain values are of one type and equal, NaN included; or a container holds the same objects."""
    if type(b) is Elements:
        return b.are_in(a)
    if isinstance(b, np.ndarray):
        same = isinstance(a, np.ndarray) and (a.dtype, a.shape) == (b.dtype, b.shape)
        return same and np.array_equal(a, b, equal_nan=b.dtype.kind in "fc")
    if type(a) is not type(b) or not is_plain(a):
        return False
    return a == b or (isinstance(a, float) and a != a and b != b)


class Elements:
    """The objects that a small container and those in it hold, as a list of tensors: a guard for which they are."""

    def __init__(self, container: Any) -> None:
        self.kind, self.objects = type(container), _objects(container)

    def are_in(self, container: Any) -> bool:
        """Whether a container of the same kind holds the same objects."""
        if type(container) is not self.kind or len(container) > LARGEST:
            return False
        found = _objects(container)
        return len(found) == len(self.objects) and all(map(operator.is_, found, self.objects))


def _objects(container: Any, depth: int = 3) -> list[Any]:
    found = [*container, *container.values()] if isinstance(container, dict) else list(container)
    inner = (o for o in found if _is_small(o)) if depth else ()
    return found + [o for part in inner for o in _objects(part, depth - 1)]


def _is_small(value: Any) -> bool:
    return type(value) in (list, tuple, dict) and len(value) <= LARGEST


def reads_of(code: types.CodeType) -> tuple[list[Read], list[Read]]:
    """Return what code reads from globals, closures and arguments, and which of these it writes."""
    reads: dict[Read, None] = {}
    writes: dict[Read, None] = {}
    kinds = {
        "GLOBAL": "global",
        "NAME": "global",
        "DEREF": "closure",
        "CLASSDEREF": "closure",
        "FAST": "argument",
    }
    chain: list[str] | None = None
    kind = name = before = ""
    copied: list[
        tuple[str, str]
    ] = []  # objects whose attribute is read and then written, as in ``a.b += 1``
    for instruction in dis.get_instructions(code):
        operation = instruction.opname
        verb, _, what = operation.partition("_")
        if chain is not None and operation in ("LOAD_ATTR", "LOAD_METHOD"):
            chain.append(str(instruction.argval))
        elif chain == [] and operation == "COPY":
            copied.append((kind, name))
        else:
            if chain is not None:
                reads[Read(kind, name, tuple(chain))] = None
            if operation == "STORE_ATTR":
                target = (
                    (kind, name)
                    if chain == []
                    else copied.pop()
                    if before == "SWAP" and copied
                    else None
                )
                if target is not None:
                    writes[Read(*target, (str(instruction.argval),))] = None
            chain = None
            what = "DEREF" if operation == "LOAD_FROM_DICT_OR_DEREF" else what.split("_")[0]
            if verb == "LOAD" and what in kinds and instruction.argval is not None:
                found = instruction.argval
                kind, name, chain = (
                    kinds[what],
                    str(found[-1] if isinstance(found, tuple) else found),
                    [],
                )
            elif verb in ("STORE", "DELETE") and what in ("GLOBAL", "DEREF"):
                writes[Read(kinds[what], str(instruction.argval), ())] = None
        before = operation
    if chain is not None:
        reads[Read(kind, name, tuple(chain))] = None
    return list(reads), list(writes)


class Frame(NamedTuple):
    """A call of a user's function: its code, globals, values of its closure, and arguments that are objects."""

    code: types.CodeType
    names: dict[str, Any]
    closure: dict[str, Any]
    objects: dict[str, Any]


class Watcher:
    """Collects the calls of the user's functions."""

    def __init__(self) -> None:
        self.frames: dict[tuple, Frame] = {}
        self._codes: dict[types.CodeType, bool] = {}  # whether it is the user's

    @contextmanager
    def watching(self, function: Any) -> Iterator[None]:
        """Watch calls while a block runs. ``function`` counts as the user's wherever it is defined, but in mge.

        So a traced Module has no guards for what each Module reads in its own ``__call__``: these bump the epoch.
        """
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        if code is not None and not INTERNAL_CODE[code]:
            self._codes[code] = True
        before = sys.getprofile()

        def profile(frame: types.FrameType, event: str, argument: Any) -> None:
            if event == "call":
                code = frame.f_code
                known = self._codes.get(code)
                if known is None:
                    known = self._codes[code] = not INTERNAL_CODE[code] and not _is_library(code)
                if known and not frame.f_globals.get("__name__", "").startswith("namedtuple_"):
                    self._note(frame)

        sys.setprofile(profile)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _note(self, frame: types.FrameType) -> None:
        code, local = frame.f_code, frame.f_locals
        closure = {n: local[n] for n in code.co_freevars if n in local}
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        objects = {n: local[n] for n in arguments if n in local and _has_attributes(local[n])}
        key = (code, *map(id, closure.values()), *map(id, objects.values()))
        self.frames.setdefault(key, Frame(code, frame.f_globals, closure, objects))

    def guards(self) -> tuple[list[Guard], set[str]]:
        """Return guards for what the watched code read from outside, and the names that it wrote there."""
        guards: dict[tuple, Guard] = {}
        effects: set[str] = set()
        functions = self._functions()
        cells: dict[str, list[types.CellType]] = {}
        for one in (f for known in functions.values() for f in known):
            for name, cell in zip(one.__code__.co_freevars, one.__closure__ or ()):
                cells.setdefault(name, []).append(cell)
        for frame in self.frames.values():
            reads, writes = reads_of(frame.code)
            written = {w for w in writes if not w.attributes}
            function = _function_of(frame, functions.get(frame.code, ()), {w.name for w in written})
            own = (
                dict(zip(frame.code.co_freevars, function.__closure__ or ()))
                if function is not None
                else {}
            )
            owners: dict[str, Any] = {"global": lambda name, f=frame: f.names if name in f.names else None,
                      "argument": lambda name, f=frame: f.objects if name in f.objects else None,
                      "closure": lambda name, o=own, f=frame: o.get(name) or _cell_of(name, f, cells)}  # fmt: skip
            if function is not None:
                _guard_defaults(guards, function)
            for write in writes:
                owner = owners[write.kind](write.name)
                root = (
                    look_up(owner, write._replace(attributes=()))[1] if owner is not None else None
                )
                if write.attributes and hasattr(root, "_node"):
                    continue  # the .grad of a tensor is replayed
                if owner is not None and (
                    not write.attributes or is_plain(look_up(owner, write)[1])
                ):
                    effects.add(".".join((write.name, *write.attributes)))
            for read in reads:
                owner = owners[read.kind](read.name)
                parts = [read._replace(attributes=read.attributes[:n]) for n in (0, 1)]
                if owner is not None and not any(p in writes for p in parts):
                    _guard(guards, owner, read)
        return list(guards.values()), effects

    def _functions(self) -> dict[types.CodeType, list[types.FunctionType]]:
        """Return the functions of the watched code: frames know values of closures, guards need the cells."""
        found: dict[types.CodeType, list[types.FunctionType]] = {}
        codes = {frame.code for frame in self.frames.values()}
        for function in gc.get_referrers(*codes) if codes else ():
            if isinstance(function, types.FunctionType) and function.__code__ in codes:
                found.setdefault(function.__code__, []).append(function)
        return found


def _function_of(
    frame: Frame, functions: Iterable[types.FunctionType], written: set[str]
) -> types.FunctionType | None:
    """Return the function whose closure holds what a frame saw."""
    for function in functions:
        pairs = zip(frame.code.co_freevars, function.__closure__ or ())
        if all(
            n in written or n not in frame.closure or _holds(cell, frame.closure[n])
            for n, cell in pairs
        ):
            return function
    return None


def _cell_of(
    name: str, frame: Frame, cells: dict[str, list[types.CellType]]
) -> types.CellType | None:
    """Return the cell of a variable for a function that is gone, as one made inside: that of a function around it."""
    return next((c for c in cells.get(name, ()) if _holds(c, frame.closure.get(name))), None)


def _holds(cell: types.CellType, value: Any) -> bool:
    try:
        return cell.cell_contents is value
    except ValueError:
        return False


def _has_attributes(value: Any) -> bool:
    """Whether an argument is an object of the user's whose attributes nobody else watches, or a Module.

    A Module says when an attribute is set, but not when something inside the attribute's value changes.
    """
    kinds = (types.FunctionType, types.MethodType, types.ModuleType, type)
    if not hasattr(value, "__dict__") or isinstance(value, kinds):
        return False
    return not _is_watched(value) or hasattr(value, "named_parameters")


def _is_watched(value: Any) -> bool:
    """Whether an object is a Tensor, or a Module or Optimizer that bumps the epoch."""
    return any(c.__module__.split(".")[0] == "mge" for c in type(value).__mro__)


def _guard_defaults(guards: dict[tuple, Guard], function: types.FunctionType) -> None:
    for name in ("__defaults__", "__kwdefaults__"):
        value = getattr(function, name)
        if value is not None:
            read = Read("argument", function.__name__, (name,))
            guards[id(function), read] = Guard({function.__name__: function}, read, _copied(value))


def _guard(guards: dict[tuple, Guard], owner: Any, read: Read) -> None:
    """Add a guard for what a read gives: the value where it is plain, else which object it is."""
    found, root = look_up(owner, read._replace(attributes=()))
    if not found or isinstance(root, types.ModuleType) and not read.attributes:
        return
    if isinstance(root, np.ndarray):  # its elements may change in place
        content = root.copy() if root.nbytes <= LARGEST_ARRAY_BYTES else root
        part = read._replace(attributes=())
        guards[id(owner), part] = Guard(owner, part, content)
        return
    value, count = root, 0
    for attribute in read.attributes:
        if hasattr(value, "_node") or isinstance(getattr(type(value), attribute, None), property):
            break
        try:
            value = getattr(value, attribute)
        except AttributeError:
            break
        count += 1
    part = read._replace(attributes=read.attributes[:count])
    if hasattr(root, "named_parameters") and read.kind == "argument":
        _guard_inside_module(guards, owner, part, value)
        return
    if is_plain(value) or (hasattr(value, "_node") and not isinstance(value, type)):
        guards[id(owner), part] = Guard(
            owner, part, value if isinstance(value, PLAIN) else _copied(value)
        )
    elif not isinstance(root, types.ModuleType):
        if part.attributes:
            _guard_inside(guards, owner, part, value)
        if read.kind != "argument":
            part = read._replace(attributes=())
            guards[id(owner), part] = Guard(
                owner, part, Elements(root) if _is_small(root) else root
            )


def _guard_inside_module(guards: dict[tuple, Guard], owner: Any, read: Read, value: Any) -> None:
    """Guard what a Module's attribute holds where it can change without the Module being told."""
    direct = len(read.attributes) <= 1 and isinstance(value, PLAIN)
    if direct or _is_watched(value):
        return
    if is_plain(value):
        guards[id(owner), read] = Guard(owner, read, _copied(value))
    else:
        _guard_inside(guards, owner, read, value)


def _guard_inside(guards: dict[tuple, Guard], owner: Any, read: Read, value: Any) -> None:
    """Guard what an attribute holds: which Module or function, what is in a container or an array."""
    if isinstance(value, np.ndarray) and value.nbytes <= LARGEST_ARRAY_BYTES:
        guards[id(owner), read] = Guard(owner, read, value.copy())
    elif _is_small(value):
        guards[id(owner), read] = Guard(owner, read, Elements(value))
    elif callable(value) and not isinstance(value, (types.MethodType, types.BuiltinMethodType)):
        guards[id(owner), read] = Guard(
            owner, read, value
        )  # a bound method is a new object each time


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _copied(v) for k, v in value.items()}
    if isinstance(value, (tuple, list, set, frozenset)) and type(value) in (
        tuple,
        list,
        set,
        frozenset,
    ):
        return type(value)(map(_copied, value))
    return value


def _is_library(code: types.CodeType) -> bool:
    return code.co_filename.startswith(_STANDARD) or code.co_filename.startswith("<frozen")
