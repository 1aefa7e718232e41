"""The op records, one file a family. Importing this package fills the registry ``mge.op.OPS``."""

import importlib
import pkgutil

MODULES = [
    importlib.import_module(f"{__name__}.{m.name}") for m in sorted(pkgutil.iter_modules(__path__))
]
