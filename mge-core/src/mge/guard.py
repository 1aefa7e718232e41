"""Guards: the plain Python values that a traced function read, and whether they are still the same.

In: the code that ran while a function was traced. Out: ``Guard`` objects that check globals and closures.
After ``run``; before ``trace``.
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from .errors import is_internal

PLAIN = (bool, int, float, complex, str, bytes, type(None))
_STANDARD = tuple({sys.prefix, sys.base_prefix})


class Read(NamedTuple):
    """One name that code reads: a global or a variable of an enclosing function, then attributes."""

    kind: str  # "global" or "closure"
    name: str
    attributes: tuple[str, ...]


class Guard(NamedTuple):
    """One value that was read, and where it came from.

    Attributes
    ----------
    owner : dict or cell
        The globals of a function, or the closure's cell.
    read : Read
    value : object
        What was read; a container is kept as a copy.
    """

    owner: Any
    read: Read
    value: Any

    def holds(self) -> bool:
        """Whether the value is still the same."""
        found, now = look_up(self.owner, self.read)
        return found and (now is self.value or same_plain(now, self.value))

    def __str__(self) -> str:
        path = ".".join((self.read.name, *self.read.attributes))
        return f"{path} was {self.value!r} and is {look_up(self.owner, self.read)[1]!r}"


def look_up(owner: Any, read: Read) -> tuple[bool, Any]:
    """Return whether a read finds something now, and what."""
    try:
        value = owner[read.name] if read.kind == "global" else owner.cell_contents
        for attribute in read.attributes:
            value = getattr(value, attribute)
    except (KeyError, ValueError, AttributeError):
        return False, None
    return True, value


def is_plain(value: Any) -> bool:
    """Whether a value is a number, text, or a container of such."""
    if isinstance(value, (tuple, list, set, frozenset)):
        return len(value) <= 64 and all(map(is_plain, value))
    if isinstance(value, dict):
        return len(value) <= 64 and all(is_plain(k) and is_plain(v) for k, v in value.items())
    return type(value) in PLAIN


def same_plain(a: Any, b: Any) -> bool:
    """Whether two plain values are of one type and equal, NaN included."""
    if type(a) is not type(b) or not is_plain(a):
        return False
    return a == b or (isinstance(a, float) and a != a and b != b)


def reads_of(code: types.CodeType) -> tuple[list[Read], set[str]]:
    """Return what code reads from globals and closures, and the names of these that it writes."""
    reads: dict[Read, None] = {}
    written: set[str] = set()
    chain: list[str] | None = None
    kind = name = ""
    for instruction in dis.get_instructions(code):
        operation = instruction.opname
        if chain is not None and operation in ("LOAD_ATTR", "LOAD_METHOD"):
            chain.append(str(instruction.argval))
            continue
        if chain is not None:
            reads[Read(kind, name, tuple(chain))] = None
            chain = None
        if operation in ("LOAD_GLOBAL", "LOAD_NAME"):
            kind, name, chain = "global", str(instruction.argval), []
        elif operation in ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"):
            kind, name, chain = "closure", str(instruction.argval), []
        elif operation in ("STORE_GLOBAL", "STORE_DEREF", "DELETE_GLOBAL"):
            written.add(str(instruction.argval))
    if chain is not None:
        reads[Read(kind, name, tuple(chain))] = None
    return list(reads), written


class Watcher:
    """Collects the code of the user's functions that run, with their globals and closures."""

    def __init__(self) -> None:
        self.frames: dict[types.CodeType, tuple[dict[str, Any], dict[str, Any]]] = {}

    @contextmanager
    def watching(self, function: Any) -> Iterator[None]:
        """Watch calls while a block runs. ``function`` is known already: its closure has cells to look at."""
        self._note_function(function)
        before = sys.getprofile()

        def profile(frame: types.FrameType, event: str, argument: Any) -> None:
            if event == "call":
                code = frame.f_code
                if code not in self.frames and not is_internal(code) and not _is_library(code):
                    closure = {n: frame.f_locals[n] for n in code.co_freevars if n in frame.f_locals}
                    self.frames[code] = (frame.f_globals, closure)

        sys.setprofile(profile)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _note_function(self, function: Any) -> None:
        function = getattr(function, "__func__", function)
        code = getattr(function, "__code__", None)
        if code is not None:
            closure = dict(zip(code.co_freevars, function.__closure__ or ()))
            self.frames[code] = (function.__globals__, closure)

    def guards(self) -> tuple[list[Guard], set[str]]:
        """Return guards for the plain values that the watched code could read, and the names that it writes."""
        guards: dict[tuple, Guard] = {}
        effects: set[str] = set()
        for code, (names, closure) in self.frames.items():
            reads, written = reads_of(code)
            written &= set(code.co_freevars) | set(names)
            effects |= written
            for read in reads:
                if read.name in written:
                    continue
                owner = names if read.kind == "global" else closure.get(read.name)
                if isinstance(owner, (dict, types.CellType)):
                    self._add(guards, owner, read)
        return list(guards.values()), effects

    @staticmethod
    def _add(guards: dict[tuple, Guard], owner: Any, read: Read) -> None:
        """Add a guard where the read, or the longest part of it that is there, gives a plain value."""
        for count in range(len(read.attributes), -1, -1):
            part = read._replace(attributes=read.attributes[:count])
            found, value = look_up(owner, part)
            if not found:
                continue
            if is_plain(value):
                if not isinstance(value, PLAIN):
                    value = _copied(value)
                guards[id(owner), part] = Guard(owner, part, value)
            elif count == 0 and isinstance(value, (types.FunctionType, type)):
                guards[id(owner), part] = Guard(owner, part, value)
            return


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _copied(v) for k, v in value.items()}
    if isinstance(value, (tuple, list, set, frozenset)) and type(value) in (tuple, list, set, frozenset):
        return type(value)(map(_copied, value))
    return value


def _is_library(code: types.CodeType) -> bool:
    return code.co_filename.startswith(_STANDARD) or code.co_filename.startswith("<frozen")
