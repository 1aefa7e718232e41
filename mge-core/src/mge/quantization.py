"""``mge.quantization``: Observers, fake quantisation, training and calibration for integers.

In: the package mge-quant, where it is installed. Out: its own module; the error says what to install.
After ``extras``.
"""

from .extras import provide

provide(__name__, "mge-quant")
