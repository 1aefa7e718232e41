"""``mge.vision``: Vision operators, transforms and models.

In: the package mge-vision, where it is installed. Out: its own module; the error says what to install.
After ``extras``.
"""

from .extras import provide

provide(__name__, "mge-vision")
