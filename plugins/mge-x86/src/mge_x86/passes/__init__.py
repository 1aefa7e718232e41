"""Passes for graphs on device ``x86``, in the order in which they run.

In: graphs whose nodes are placed. Out: ``passes()``, which the backend offers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mge.debug import debug

from .attention import find_attention, turn_attention
from .batch_norm import fuse_batch_norm
from .epilogue import fuse_epilogues
from .fold import fold_batch_norm
from .fuse import fuse
from .inverted_residual import fuse_inverted_residuals
from .layout import layout
from .linear import pack_linear

if TYPE_CHECKING:
    from mge.graph import Graph


def passes() -> list[tuple[str, Callable[[Graph], Graph]]]:
    """Return the passes with their names; those that change a result's rounding only where that is allowed."""
    exact: list[tuple[str, Callable[[Graph], Graph]]] = [
        ("layout", layout),
        ("batch_norm", fuse_batch_norm),
        ("linear", pack_linear),
        ("attention", turn_attention),
        ("epilogue", fuse_epilogues),
    ]
    if debug.deterministic:
        return exact
    return [
        ("fold", fold_batch_norm),
        ("find_attention", find_attention),
        *exact,
        ("inverted_residual", fuse_inverted_residuals),
        ("fuse", fuse),
    ]
