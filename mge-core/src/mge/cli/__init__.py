"""The command ``mge``, also as ``python -m mge``.

In: words of a command line. Out: lines of text or JSON, and an exit status. Each command has a file here.
Last of the interface layer: it uses the rest as a user does.
"""

from .command import main

__all__ = ["main"]
