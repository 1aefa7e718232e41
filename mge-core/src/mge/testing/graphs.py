"""Level L5: random programs, partly on the device and partly on ``ref``, against ``ref`` alone.

In: a target. Out: cases ``L5/program/NUMBER`` and ``L5/gradient/NUMBER``.
After ``gradients``; before ``robustness``.

Which ops the device must leave to ``ref`` is drawn for each program, so that values cross between the two in
many ways. Program 0 forces nothing. Each program runs node by node, then as a new plan, then as a kept one.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..device import BACKENDS, Device, as_device
from ..errors import MgeError
from ..grad import gradients
from ..graph import Signature
from ..op import OPS
from ..tensor import Tensor, tensor
from .cases import Fault, far_from_scale
from .target import Refused, Target

PROGRAMS = 30  # of each kind
STEPS = 12
FACTOR = 500  # tolerances: a program is many ops, and errors grow along it
SHAPES = [(3,), (2, 3), (3, 3), (1, 3), (2, 1), (4, 3)]

# Continuous functions that keep values small; those in KINKED have no derivative somewhere.
UNARY = ["neg", "tanh", "sigmoid", "sin", "square", "relu", "abs"]
BINARY = ["add", "sub", "mul", "maximum", "minimum"]
KINKED = {"relu", "abs", "maximum", "minimum"}
REDUCTIONS = ["sum", "mean"]


def cases(target: Target) -> Iterator[str]:
    """Yield the names of the cases."""
    for kind in ("program", "gradient"):
        yield from (f"{kind}/{number:02}" for number in range(PROGRAMS))


class Program:
    """A random program, and which ops must not run on the device.

    Attributes
    ----------
    leaves : list of ndarray
    steps : list of (text, function of the values so far)
    name : str
        It decides which ops are refused.
    refuses : bool
    """

    def __init__(self, target: Target, kind: str, number: int) -> None:
        self.rng = target.rng(kind, number)
        self.kinks = kind == "program"
        dtype = np.float32 if number % 3 else np.float64
        self.leaves = [
            self.rng.uniform(-1, 1, SHAPES[i]).astype(dtype)
            for i in self.rng.integers(0, len(SHAPES), 3)
        ]
        self.shapes = [a.shape for a in self.leaves]
        self.steps: list[tuple[str, Callable[[list[Tensor]], Tensor]]] = []
        self.name = f"{target.seed} {kind} {number}"
        self.refuses = number > 0
        while len(self.steps) < STEPS:
            self._grow()

    def _grow(self) -> None:
        """Add one step, where what was drawn fits."""
        draw = self.rng.integers
        i = max(0, len(self.shapes) - 1 - int(draw(0, 4)))  # a recent value: programs are deep
        j = int(draw(0, len(self.shapes)))
        one, other = self.shapes[i], self.shapes[j]
        kind = ("unary", "binary", "binary", "matmul", "reduce", "shape")[draw(0, 6)]
        if kind == "unary":
            name = self._pick(UNARY)
            if name:
                self._add(name, one, lambda v: OPS[name](v[i]), i)
        elif kind == "binary":
            name = self._pick(BINARY)
            try:
                shape = np.broadcast_shapes(one, other)
            except ValueError:
                return
            if name:
                self._add(name, shape, lambda v: OPS[name](v[i], v[j]), i, j)
        elif kind == "matmul" and len(one) == len(other) == 2 and one[1] == other[0]:
            self._add("matmul", (one[0], other[1]), lambda v: OPS["matmul"](v[i], v[j]) * 0.3, i, j)
        elif kind == "reduce" and one:
            name = self._pick(REDUCTIONS)
            axis = int(draw(0, len(one)))
            shape = (*one[:axis], 1, *one[axis + 1 :])
            self._add(name, shape, lambda v: OPS[name](v[i], axis=axis, keepdims=True), i)
        elif kind == "shape" and len(one) == 2:
            rows, columns = one
            if draw(0, 2):
                self._add("transpose", (columns, rows), lambda v: OPS["transpose"](v[i], (1, 0)), i)
            else:
                self._add(
                    "reshape", (columns, rows), lambda v: OPS["reshape"](v[i], (columns, rows)), i
                )

    def _pick(self, names: list[str]) -> str:
        """Draw an op that is registered, and smooth where the program is differentiated."""
        name = names[self.rng.integers(0, len(names))]
        return name if name in OPS and (self.kinks or name not in KINKED) else ""

    def _add(
        self,
        name: str,
        shape: tuple[int, ...],
        function: Callable[[list[Tensor]], Tensor],
        *inputs: int,
    ) -> None:
        self.steps.append((f"{name}({', '.join(f'%{i}' for i in inputs)})", function))
        self.shapes.append(shape)

    def __str__(self) -> str:
        lines = [f"%{i} = {a.dtype}{a.shape}" for i, a in enumerate(self.leaves)]
        count = len(lines)
        lines += [f"%{count + i} = {text}" for i, (text, _) in enumerate(self.steps)]
        return "\n".join(lines)

    def run(self, device: Any, turn: int = 0) -> list[np.ndarray]:
        """Run it on a device; return its last values, or the gradients of all leaves. Each turn has other leaves."""
        values = [tensor(a * 0.8**turn, dtype=a.dtype, device=device) for a in self.leaves]
        leaves = list(values)
        for _, function in self.steps:
            values.append(function(values))
        results: list[Any] = values[-3:]
        if not self.kinks:
            results = [r for r in gradients(values[-3:], leaves, None) if r is not None]
        return [r.numpy() for r in results]


def forced(target: Target, program: Program) -> tuple[Device, list[str]]:
    """Return the device with some ops refused, and the list of ops for which kernels were asked.

    The device is another one for the core: what is remembered of this one stays with it.
    """
    backend, used = copy.copy(target.backend), []
    backend.name = f"{target.backend.name}~{zlib.crc32(program.name.encode()):x}"

    def supports(dev: int, sig: Signature) -> str | None:
        name = sig.op.name
        if program.refuses and zlib.crc32(f"{program.name} {name}".encode()) % 5 < 2:
            return "the conformance kit forces it to ref"
        if target.chosen is not None and name not in target.chosen:
            return "not on the list of ops to try"
        return target.backend.supports(dev, sig)

    def kernel(dev: int, sig: Signature) -> Any:
        used.append(sig.op.name)
        return target.backend.kernel(dev, sig)

    backend.supports, backend.kernel = supports, kernel
    BACKENDS[backend.name] = backend
    return as_device(f"{backend.name}:{target.device.index}"), used


def run(target: Target, kind: str, number: str) -> None:
    """Run one case."""
    program = Program(target, kind, int(number))
    device, used = forced(target, program)
    for turn, how in enumerate(("node by node", "as a new plan", "as a kept plan")):
        wanted = program.run("ref", turn)
        try:
            given = program.run(device, turn)
        except MgeError as error:
            raise Fault(f"{how} it raised {type(error).__name__}: {error}\n{program}") from error
        for i, (one, other) in enumerate(zip(given, wanted, strict=True)):
            problem = far_from_scale(one, other, FACTOR)
            if problem:
                where = f"with {', '.join(sorted({*used}))} on the device and the rest on ref"
                raise Fault(f"run {how}, {where}, result {i} is wrong: {problem}\n{program}")
    if not used:
        raise Refused("no op of this program has a kernel on the device")
