"""How many threads the numerical libraries of this process use.

In: a number. Out: BLAS and OpenMP libraries, loaded or not yet, limited to it.
After ``debug``; before ``refdevice``.
"""

from __future__ import annotations

import ctypes
import os

_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
# Names in a library's path, and the calls that set its threads. NumPy's wheels rename OpenBLAS's.
_LIBRARIES = {
    "openblas": (
        "openblas_set_num_threads",
        "openblas_set_num_threads64_",
        "scipy_openblas_set_num_threads",
        "scipy_openblas_set_num_threads64_",
    ),
    "mkl_rt": ("MKL_Set_Num_Threads",),
    "libgomp": ("omp_set_num_threads",),
    "libomp": ("omp_set_num_threads",),
    "libiomp": ("omp_set_num_threads",),
}


def limit_threads(count: int = 1) -> None:
    """Limit this process's numerical libraries to ``count`` threads each.

    Parameters
    ----------
    count : int, default 1

    Notes
    -----
    Libraries that load later read the environment. Those already loaded are called; they are found in
    ``/proc/self/maps``, so on systems without it only the former are limited.
    """
    for name in _VARIABLES:
        os.putenv(name, str(count))
    for path in _loaded_libraries():
        for part, symbols in _LIBRARIES.items():
            if part in path.rsplit("/", 1)[-1]:
                _call(path, symbols, count)


def _loaded_libraries() -> set[str]:
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
            paths = {line.split(maxsplit=5)[-1].strip() for line in lines}
    except OSError:
        return set()
    return {path for path in paths if ".so" in path}


def _call(path: str, symbols: tuple[str, ...], count: int) -> None:
    try:
        library = ctypes.CDLL(path)
    except OSError:
        return
    for symbol in symbols:
        if hasattr(library, symbol):
            getattr(library, symbol)(ctypes.c_int(count))
            return
