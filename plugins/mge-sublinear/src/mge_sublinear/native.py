"""The native planner: a request as flat arrays, and the plans that the search finds.

In: a ``MemoryRequest``. Out: ``Problem``, with ``simulate`` and ``search``; ``Found`` plans.
After nothing; before ``strategies``.
"""

from __future__ import annotations

import ctypes
import functools
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mge.plugin import MemoryRequest

KEEP, RETAIN = -1, 2**23 - 1  # of holds: see simulator.hpp


_ARRAYS = (
    "input_start", "inputs", "output_start", "outputs", "pair_start", "pairs", "time_ns", "nbytes", "is_result",
    "may_repeat", "role", "scratch",
)  # fmt: skip


class _Problem(ctypes.Structure):
    _fields_ = [
        ("node_count", ctypes.c_int32),
        ("value_count", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in _ARRAYS),
    ]


class Found(NamedTuple):
    """A plan that the search found.

    Attributes
    ----------
    time_ns : float
        Of all its runs.
    live_bytes : int, bytes
        The most that is live at one run, and all results.
    node : int
        What runs at the peak.
    runs : sequence of int
        The nodes that it runs, in order: a list, or an array of the standard library.
    """

    time_ns: float
    live_bytes: int
    node: int
    runs: Sequence[int]


@functools.cache
def library() -> Any:
    """Return the planner's functions."""
    found = ctypes.CDLL(str(Path(__file__).with_name("libmge_sublinear.so")))
    found.mge_sublinear_layout.restype = ctypes.c_int64
    found.mge_sublinear_search.restype = ctypes.c_void_p
    return found


def _pointer(array: np.ndarray) -> int:
    return array.ctypes.data


def _rows(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return where each row begins, and all rows after each other."""
    starts = np.cumsum([0, *map(len, rows)])
    return starts.astype(np.int32), np.array([x for row in rows for x in row], np.int32)


class Problem:
    """A request as the native code reads it: without what is there all the time, and without small values.

    Parameters
    ----------
    request : MemoryRequest
    least_bytes : int, bytes
        Smaller values are kept in any case, and count as nothing; without any, all nodes are there.
    """

    def __init__(self, request: MemoryRequest, least_bytes: int = 0) -> None:
        values, pinned = request.values, {"": 0, "output": 2}
        rounded = [-(-v.nbytes // request.alignment) * request.alignment for v in values]
        counts = [v.pinned in pinned and rounded[v.number] >= least_bytes for v in values]
        self.values = [v.number for v in values if counts[v.number]]
        number = {v: i for i, v in enumerate(self.values)}
        rows = [
            [[number[v] for v in row if v in number] for row in (n.inputs, n.outputs)]
            for n in request.nodes
        ]
        self.nodes = [
            n.number
            for n, row in zip(request.nodes, rows)
            if row[0] or row[1] or n.workspace_bytes >= least_bytes
        ]
        self.node_count = len(rows)
        nodes = [request.nodes[i] for i in self.nodes]
        self.rest_ns = sum(n.time_ns for n in request.nodes) - sum(n.time_ns for n in nodes)
        inputs = _rows([rows[i][0] for i in self.nodes])
        outputs = _rows([rows[i][1] for i in self.nodes])
        # A pair whose input is no value of the plan writes over an input of it: -1.
        pairs = _rows([
            [x for a, b in n.inplace if b in number for x in (number.get(a, -1), number[b])]
            for n in nodes
        ])  # fmt: skip
        self.arrays = {
            "input_start": inputs[0],
            "inputs": inputs[1],
            "output_start": outputs[0],
            "outputs": outputs[1],
            "pair_start": (pairs[0] // 2).astype(np.int32),
            "pairs": pairs[1],
            "time_ns": np.array([n.time_ns for n in nodes], np.float64),
            "nbytes": np.array([rounded[v] for v in self.values], np.int64),
            "is_result": np.array([values[v].pinned == "output" for v in self.values], np.uint8),
            "may_repeat": np.array([n.is_pure and n.phase != "update" for n in nodes], np.uint8),
            "role": _roles(request)[self.values],
            "scratch": np.array(
                [-(-n.workspace_bytes // request.alignment) * request.alignment for n in nodes],
                np.int64,
            ),
        }
        addresses = {name: _pointer(array) for name, array in self.arrays.items()}
        self._struct = _Problem(len(nodes), len(self.values), **addresses)

    def _all_runs(self, runs: Sequence[int]) -> list[int]:
        """Return runs as nodes of the request, with the nodes that were left out before the next one there."""
        nodes = np.append(
            np.array(self.nodes, np.int64)[np.asarray(runs, np.int64)], self.node_count
        )
        newest = np.maximum.accumulate(nodes)
        left_out = np.maximum(nodes - np.append(-1, newest[:-1]) - 1, 0)  # before each run
        place = np.repeat(np.arange(len(nodes)), left_out)
        number = np.arange(left_out.sum()) - np.repeat(np.cumsum(left_out), left_out)
        return np.insert(nodes, place, nodes[place] + number)[:-1].tolist()

    def simulate(self, hold: Sequence[int] | None = None) -> Found:
        """Return what runs, and what that takes, where each value has this hold; None computes nothing again."""
        holds = np.array(hold, np.int32) if hold is not None else None
        where = ctypes.c_void_p(None if holds is None else _pointer(holds))
        time_ns, peak = ctypes.c_double(), ctypes.c_int64()
        figures = ctypes.byref(time_ns), ctypes.byref(peak)
        runs = self._filled(library().mge_sublinear_simulate, where, *figures)
        return Found(time_ns.value + self.rest_ns, peak.value, -1, runs)

    def dtr(
        self,
        threshold: int,
        least_bytes: int,
        memory_factor: float,
        time_factor: float,
        samples_sqrt: bool,
    ) -> list[int]:
        """Return what runs where values go as soon as this many bytes are in use."""
        numbers = ctypes.c_int64(threshold), ctypes.c_int64(least_bytes)
        factors = ctypes.c_double(memory_factor), ctypes.c_double(time_factor)
        return self._filled(
            library().mge_sublinear_dtr, *numbers, *factors, ctypes.c_int32(samples_sqrt)
        )

    def _filled(self, function: Any, *arguments: Any) -> list[int]:
        """Return the runs that a function fills in, called again where there are more than it had room for."""
        capacity = 4 * len(self.nodes)
        while True:
            runs = np.zeros(capacity + 1, np.int32)
            where = ctypes.c_void_p(_pointer(runs))
            count = function(ctypes.byref(self._struct), *arguments, where, capacity)
            if count <= capacity:
                return self._all_runs(runs[:count])
            capacity = count

    def search(self, seed: int, proposals: int, only_checkpoints: bool = False) -> list[Found]:
        """Return plans of which none is as fast with a peak as small, from the largest peak down."""
        lib = library()
        found = ctypes.c_void_p(
            lib.mge_sublinear_search(
                ctypes.byref(self._struct),
                ctypes.c_uint64(seed),
                ctypes.c_int64(proposals),
                only_checkpoints,
            )
        )
        plans = []
        for i in range(lib.mge_sublinear_count(found)):
            time_ns, peak, node = ctypes.c_double(), ctypes.c_int64(), ctypes.c_int32()
            count = lib.mge_sublinear_figures(
                found, i, ctypes.byref(time_ns), ctypes.byref(peak), ctypes.byref(node)
            )
            runs = np.zeros(count, np.int32)
            lib.mge_sublinear_runs(found, i, ctypes.c_void_p(_pointer(runs)))
            at = self.nodes[node.value] if count else -1
            all_runs = array("i", self._all_runs(runs))
            plans.append(Found(time_ns.value + self.rest_ns, peak.value, at, all_runs))
        lib.mge_sublinear_free(found)
        return plans


def _roles(request: MemoryRequest) -> np.ndarray:
    """Return a number for each value: equal where op, sizes and readers' ops are."""
    values = request.values
    readers: dict[int, list[str]] = {}
    for node in request.nodes:
        for v in node.inputs:
            readers.setdefault(v, []).append(node.op)
    roles = np.zeros(len(values), np.int32)
    known: dict[Any, int] = {}
    for node in request.nodes:
        sizes = tuple(values[v].nbytes for v in node.inputs)
        for k, v in enumerate(node.outputs):
            key = node.op, k, values[v].nbytes, sizes, tuple(sorted(readers.get(v, ())))
            roles[v] = known.setdefault(key, len(known))
    return roles
