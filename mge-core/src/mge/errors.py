"""The errors that mge raises, and the form of their text.

In: what was given, the rule, the place, what to try. Out: exceptions that also subclass the nearest built-in.
First file of the kernel: it imports nothing; every other file may import it.
"""

from __future__ import annotations

import contextlib
import sys
from types import CodeType, FrameType, TracebackType

_PACKAGE_FOLDER = __file__.rsplit("/", 1)[0] + "/"


class MgeError(Exception):
    """Base of all errors of mge.

    The first line says where, what was given and what the rule is. ``add_place`` and ``add_hint`` append
    the two optional lines: the place in the user's code, and what to try.

    Parameters
    ----------
    message : str
        The first line.
    hint : str, optional
        What to try.
    """

    def __init__(self, message: str = "", *, hint: str | None = None) -> None:
        super().__init__(message)
        self.place: str | None = None
        self.hint = hint

    def add_place(self, place: str | None) -> MgeError:
        """Name the line of the user's code, once; returns the error itself."""
        if place and self.place is None:
            self.place = place
        return self

    def __str__(self) -> str:
        lines = [super().__str__()]
        place = self.place or place_of(self.__traceback__)
        if place:
            lines.append(f"  at: {place}")
        if self.hint:
            lines.append(f"  try: {self.hint}")
        return "\n".join(lines)


class ShapeError(MgeError, ValueError):
    """Shapes that do not fit the operation."""


class DTypeError(MgeError, TypeError):
    """Dtypes that the operation does not take, or that do not go together."""


class ArgumentError(MgeError, ValueError):
    """An attribute or argument out of its range."""


class IndexRangeError(MgeError, IndexError):
    """An index that points outside its axis, or an index expression that does not fit the tensor."""


class DeviceError(MgeError, RuntimeError):
    """A device that does not exist, or tensors of two devices in one call."""


class PluginError(MgeError, RuntimeError):
    """A plugin that cannot be used."""


class PluginNotInstalled(PluginError, ImportError):
    """The name asked for is offered by no installed plugin."""


class PluginUnavailable(PluginError):
    """The plugin is installed, but does not work on this machine."""


class PluginIncompatible(PluginError):
    """The plugin was made for another version of the core."""


class PluginContractError(PluginError):
    """The plugin broke a rule of the contract."""


class UnsupportedError(MgeError, NotImplementedError):
    """No kernel and no lowering for the op with these types on this device."""


class OutOfMemory(MgeError, MemoryError):
    """A plan or an allocation that does not fit; says the peak and the largest values."""


class TraceError(MgeError, RuntimeError):
    """Something that cannot be done while a function is being traced."""


class FileFormatError(MgeError, ValueError):
    """A damaged, truncated or foreign file. Nothing of it was used."""


class InternalError(MgeError, RuntimeError):
    """A fault in mge itself.

    Parameters
    ----------
    message : str
        The first line.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.hint = "this is a fault in mge; run again with MGE_CHECK=1 MGE_VIEW=fault.html and report that file"


class _InternalCode(dict[CodeType, bool]):
    """Whether a code object belongs to mge itself (not to the user), worked out once for each."""

    def __missing__(self, code: CodeType) -> bool:
        name = code.co_filename
        of_mge = name.startswith(_PACKAGE_FOLDER) and "/mge/testing/" not in name
        # contextlib's frames stand between a context manager of mge and the user's ``with``
        known = self[code] = of_mge or name.startswith("<mge") or name == contextlib.__file__
        return known


INTERNAL_CODE = _InternalCode()


def place_of(traceback: TracebackType | None) -> str | None:
    """Return ``file:line`` of the innermost frame outside mge that an error passed through."""
    place = None
    while traceback is not None:
        if not INTERNAL_CODE[traceback.tb_frame.f_code]:
            place = f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place


def user_frame(frame: FrameType | None = None) -> FrameType | None:
    """Return the innermost frame outside mge, looking outwards from ``frame``."""
    frame = frame or sys._getframe(1)
    while frame is not None and INTERNAL_CODE[frame.f_code]:
        frame = frame.f_back
    return frame


def user_place() -> str | None:
    """Return ``file:line`` of the innermost frame outside mge, or None."""
    frame = user_frame(sys._getframe(1))
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else None


def line_of(code: CodeType, offset: int) -> int:
    """Return the source line of a bytecode offset (``f_lasti``) of ``code``."""
    found = code.co_firstlineno
    for start, end, line in code.co_lines():
        if start <= offset < end and line is not None:
            return line
    return found
