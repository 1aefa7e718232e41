"""What goes wrong while a batch is made, and how it reaches the caller.

In: an exception in this process or in a worker. Out: the same exception, with a note on where it was.
Before ``fetch``, ``worker`` and ``pool``.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mge.errors import MgeError


class WorkerError(MgeError, RuntimeError):
    """A worker process that cannot start, died, or raised what cannot be sent."""


class LoaderTimeout(MgeError, TimeoutError):
    """A batch that did not arrive within ``DataLoader``'s ``timeout``."""


@dataclass(frozen=True)
class Failure:
    """An exception on its way between processes.

    Attributes
    ----------
    pickled : bytes or None
        The exception; None where it does not survive pickling.
    summary : str
        Its last line.
    text : str
        Its traceback.
    step : str
        What was being done.
    """

    pickled: bytes | None
    summary: str
    text: str
    step: str

    @classmethod
    def of(cls, error: BaseException, step: str) -> Failure:
        """Pack an exception."""
        pickled = None
        # A StopIteration would end the caller's loop, and an exit would end the caller.
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            try:
                pickled = pickle.dumps(error)
                if type(pickle.loads(pickled)) is not type(error):
                    pickled = None
            except Exception:  # an exception class may define anything
                pickled = None
        summary = "".join(traceback.format_exception_only(error)).strip()
        text = "".join(traceback.format_exception(error)).rstrip()
        return cls(pickled, summary, text, step)

    def error(self, place: str) -> Exception:
        """Return the exception to raise, with ``place`` and the worker's traceback as a note."""
        found = None
        if self.pickled is not None:
            try:
                found = pickle.loads(self.pickled)
            except Exception:  # its module may be missing here
                found = None
        if found is None:
            found = WorkerError(f"DataLoader: {place}, in {self.step}: {self.summary}")
        found.add_note(f"DataLoader: {place}, in {self.step}\n{self.text}")
        return found


def describe_samples(work: Any) -> str:
    """Name the samples of a batch in a few words."""
    if not isinstance(work, Sequence):
        return ""
    shown = ", ".join(repr(index) for index in work[:16])
    return f"samples [{shown}{', ...' if len(work) > 16 else ''}]"
