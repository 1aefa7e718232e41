"""``mge.distributed``: Training on several devices and machines.

In: the package mge-distributed, where it is installed. Out: its own module; the error says what to install.
After ``extras``.
"""

from .extras import provide

provide(__name__, "mge-distributed")
