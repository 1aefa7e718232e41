"""Memory strategies: training within a byte budget, by computing values again or keeping them in a file.

``with mge.memory("sublinear", budget="2GB"):``; others are ``sqrt``, ``dtr`` and ``offload``.
"""

from .file import OffloadStrategy
from .online import Dtr
from .strategies import Sqrt, Sublinear

__all__ = ["Dtr", "OffloadStrategy", "Sqrt", "Sublinear"]
