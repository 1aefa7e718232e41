"""The conformance kit: proves that a backend does what mge and its users expect.

In: the name of a device. Out: a report by level: load, memory, streams, ops, gradients, graphs, robustness.
After everything: it uses the core as a plugin's maker does.

``python -m mge.testing NAME`` runs it; so does ``pytest --pyargs mge.testing --mge-device=NAME``.
"""

from .report import Report
from .runner import Result, Runner

__all__ = ["Report", "Result", "Runner"]
