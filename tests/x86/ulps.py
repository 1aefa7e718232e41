"""Prints, for each elementary function on device x86, its largest error in units in the last place, as JSON.

Inputs: float32 numbers spread evenly over all bit patterns, and over the interval that matters. A program of its own,
since a process has one level of the instruction set.
"""

import json
import math
import sys

import numpy as np

import mge
import mge.functional as F

COUNT = 200_001
ERF = np.vectorize(math.erf, otypes=[float])
FUNCTIONS = {  # the function in float64, and the interval that most inputs come from
    "exp": (np.exp, -105, 90),
    "expm1": (np.expm1, -20, 90),
    "log": (np.log, 0, 10),
    "log1p": (np.log1p, -1, 10),
    "tanh": (np.tanh, -10, 10),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), -105, 30),
    "erf": (ERF, -5, 5),
    "sin": (np.sin, -100, 100),
    "cos": (np.cos, -100, 100),
    "tan": (np.tan, -100, 100),
}


def inputs(low, high):
    patterns = np.linspace(0, 2**32 - 1, COUNT).astype(np.uint32).view(np.float32)
    return np.concatenate([patterns, np.linspace(low, high, COUNT).astype(np.float32)])


def errors(name):
    function, low, high = FUNCTIONS[name]
    x = inputs(low, high)
    if name in ("sin", "cos", "tan"):
        x = x[~(np.abs(x) >= 8192)]
    given = getattr(F, name)(mge.tensor(x, device="x86:0")).numpy()
    with np.errstate(all="ignore"):
        wanted = function(x.astype(np.float64))
        finite = np.isfinite(wanted.astype(np.float32))
        assert np.array_equal(np.isnan(given), np.isnan(wanted)), name
        infinite = np.isinf(wanted.astype(np.float32))
        assert np.array_equal(given[infinite], wanted.astype(np.float32)[infinite]), name
        off = np.abs(given[finite] - wanted[finite])
        unit = np.spacing(np.abs(wanted[finite]).astype(np.float32)).astype(np.float64)
    worst = np.argmax(off / unit)
    absolute = np.max(off / np.maximum(1, np.abs(wanted[finite])))
    return {
        "ulp": float((off / unit)[worst]),
        "at": float(x[finite][worst]),
        "absolute": float(absolute),
    }


json.dump({name: errors(name) for name in FUNCTIONS}, sys.stdout)
