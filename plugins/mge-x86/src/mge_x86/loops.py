"""Loops: a small language for what is done element by element, with one level of reductions along rows.

In: steps, added one by one. Out: ``Loop``, its text, the loop of a text, and its NumPy reference.
Before ``ops.chain``, which makes an op of it, and ``passes.fuse``, which finds loops in graphs.

A loop runs over a matrix of ``rows`` by ``width``. Each value has a kind, by its place in that matrix::

    full    (rows, width)   one number an element
    row     (rows, 1)       one number a row: what a reduction gives
    column  (1, width)      one number a column; inputs only
    scalar  (1, 1)          one number; inputs and constants only

The text of a loop is the whole of it, and the form in which it is an attribute, in files too::

    loop 4 x 8
    x0 full
    x1 column
    v0 = mul x0 x1
    v1 = sum v0
    v2 = mul v1 0.125
    store v0 v2
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mge.errors import ArgumentError
from mge.op import OPS

KINDS = ("full", "row", "column", "scalar")


def _of_op(name: str, **attrs: Any) -> Callable[..., np.ndarray]:
    """Return the NumPy reference of a core op, on arrays of any shapes that broadcast."""

    def run(*inputs: np.ndarray) -> np.ndarray:
        op = OPS[name]
        if op.writes_out:
            out = np.empty(np.broadcast_shapes(*(i.shape for i in inputs)), np.float32)
            op._reference(*inputs, **attrs, out=out)
            return out
        return op._reference(*inputs, **attrs)

    return run


def _truth(function: Callable[..., Any]) -> Callable[..., np.ndarray]:
    return lambda *inputs: function(*inputs).astype(np.float32)


def _unary(*names: str) -> dict[str, Callable[..., np.ndarray]]:
    return {name: _of_op(name) for name in names}


# Steps by name. Truth values are 1.0 and 0.0. The names are those of the core's ops where it has them.
ELEMENTWISE: dict[str, tuple[int, Callable[..., np.ndarray]]] = {
    **{
        name: (1, function)
        for name, function in {
            **_unary(
                "neg", "abs", "sqrt", "exp", "log", "tanh", "erf", "sigmoid", "relu", "relu6", "silu",
                "hswish", "hsigmoid", "square", "rsqrt", "expm1", "log1p", "sin", "cos", "floor", "ceil",
                "round", "softplus",
            ),
            "gelu": _of_op("gelu", approximate="none"),
            "gelu_tanh": _of_op("gelu", approximate="tanh"),
            "reciprocal": lambda x: np.float32(1) / x,
            "not": _truth(np.logical_not),
        }.items()
    },
    **{
        name: (2, function)
        for name, function in {
            "add": np.add,
            "sub": np.subtract,
            "mul": np.multiply,
            "div": np.divide,
            "maximum": np.maximum,
            "minimum": np.minimum,
            "less": _truth(np.less),
            "less_equal": _truth(np.less_equal),
            "equal": _truth(np.equal),
            "and": _truth(np.logical_and),
            "or": _truth(np.logical_or),
        }.items()
    },
    "where": (3, lambda mask, x, y: np.where(mask != 0, x, y)),
}  # fmt: skip
REDUCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "sum": lambda x: x.astype(np.float64).sum(1, keepdims=True).astype(np.float32),
    "max": lambda x: x.max(1, keepdims=True),
    "min": lambda x: x.min(1, keepdims=True),
}


class Step(NamedTuple):
    """One line: ``result = op operands``. Operands are names of values, or numbers."""

    op: str
    operands: tuple[str, ...]


class Loop:
    """A loop that grows step by step.

    Parameters
    ----------
    rows, width : int

    Attributes
    ----------
    inputs : list of str
        The kind of each, as ``"full"``; with ``" bool"`` behind it where the input holds truth values.
    steps : list of Step
        Step ``k`` gives value ``vk``.
    stores : list of str
        The values that leave; of kind full or row. With ``" bool"`` behind a name it leaves as truth values.
    kinds : dict of str to str
    """

    def __init__(self, rows: int, width: int) -> None:
        self.rows, self.width = rows, width
        self.inputs: list[str] = []
        self.steps: list[Step] = []
        self.stores: list[str] = []
        self.kinds: dict[str, str] = {}
        self._known: dict[Step, str] = {}

    def input(self, kind: str, is_bool: bool = False) -> str:
        """Add an input; returns its name."""
        name = f"x{len(self.inputs)}"
        self.inputs.append(kind + " bool" * is_bool)
        self.kinds[name] = kind
        return name

    def add(self, op: str, *operands: str | float) -> str:
        """Add a step; returns the name of its value. An equal step is taken once."""
        step = Step(op, tuple(o if isinstance(o, str) else number(o) for o in operands))
        if step not in self._known:
            name = self._known[step] = f"v{len(self.steps)}"
            self.kinds[name] = self._kind(step)
            self.steps.append(step)
        return self._known[step]

    def _kind(self, step: Step) -> str:
        kinds = {self.kinds.get(o, "scalar") for o in step.operands}
        if step.op in REDUCTIONS:
            return "row"
        if "full" in kinds or {"row", "column"} <= kinds:
            return "full"
        return next((k for k in ("row", "column") if k in kinds), "scalar")

    def __str__(self) -> str:
        lines = [f"loop {self.rows} x {self.width}"]
        lines += [f"x{i} {kind}" for i, kind in enumerate(self.inputs)]
        lines += [f"v{k} = {s.op} {' '.join(s.operands)}" for k, s in enumerate(self.steps)]
        return "\n".join([*lines, f"store {', '.join(self.stores)}"])

    def shape(self, kind: str) -> tuple[int, int]:
        """Return the shape of values of a kind."""
        return (
            self.rows if kind in ("full", "row") else 1,
            self.width if kind in ("full", "column") else 1,
        )

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return what the loop stores, as matrices of their kinds: the reference."""
        values: dict[str, np.ndarray] = {}
        for i, (array, kind) in enumerate(zip(inputs, self.inputs, strict=True)):
            shape = self.shape(kind.split()[0])
            values[f"x{i}"] = np.asarray(array).reshape(shape).astype(np.float32, copy=False)
        with np.errstate(all="ignore"):
            for k, (op, operands) in enumerate(self.steps):
                given = [values[o] if o in values else np.float32(o) for o in operands]
                function = REDUCTIONS[op] if op in REDUCTIONS else ELEMENTWISE[op][1]
                values[f"v{k}"] = np.asarray(function(*map(np.asarray, given)), np.float32)
        found = []
        for text in self.stores:
            name, _, dtype = text.partition(" ")
            value = np.broadcast_to(values[name], self.shape(self.kinds[name]))
            found.append(value != 0 if dtype else value)
        return found


def number(value: float) -> str:
    """Return a float32 as the shortest text that reads back as the same number."""
    return str(np.float32(value))


_LINES = re.compile(
    r"loop (?P<rows>\d+) x (?P<width>\d+)|x(?P<input>\d+) (?P<kind>\w+(?: bool)?)"
    r"|v(?P<step>\d+) = (?P<op>\w+) (?P<operands>.+)|store (?P<stores>.+)"
)


def parse(text: str) -> Loop:
    """Return the loop of a text.

    Raises
    ------
    ArgumentError
        A line is no line of a loop, or a value is used that no line before it gives; names the line.
    """
    loop = Loop(0, 0)
    for count, line in enumerate(text.splitlines(), 1):
        try:
            _read_line(loop, line, count)
        except ValueError as error:
            raise ArgumentError(f"loop: line {count} is {line!r}; {error}") from None
    if not loop.stores:
        raise ArgumentError("loop: it stores nothing; its last line must be as 'store v3'")
    return loop


def _read_line(loop: Loop, line: str, count: int) -> None:
    found = _LINES.fullmatch(line)
    if found is None or (found["rows"] is None) == (count == 1) or loop.stores:
        raise ValueError("it must be 'loop ROWS x WIDTH', then inputs, steps, and one store")
    if found["rows"]:
        loop.rows, loop.width = int(found["rows"]), int(found["width"])
    elif found["input"]:
        kind, _, is_bool = found["kind"].partition(" ")
        if kind not in KINDS or int(found["input"]) != len(loop.inputs):
            raise ValueError(f"inputs are numbered from x0, and of kind {', '.join(KINDS)}")
        loop.input(kind, bool(is_bool))
    elif found["step"]:
        op, operands = found["op"], found["operands"].split(" ")
        arity = 1 if op in REDUCTIONS else ELEMENTWISE.get(op, (0,))[0]
        if not arity or len(operands) != arity:
            raise ValueError("there is no such step" if not arity else f"{op} takes {arity}")
        for operand in operands:
            if operand not in loop.kinds:
                float(operand)
        if op in REDUCTIONS and loop.kinds.get(operands[0]) not in ("full", "column"):
            raise ValueError("only what differs along a row is reduced")
        if loop.add(op, *operands) != f"v{found['step']}":
            raise ValueError("values are numbered from v0, and no two steps are equal")
    else:
        loop.stores = found["stores"].split(", ")
        for store in loop.stores:
            name, _, dtype = store.partition(" ")
            if loop.kinds.get(name) not in ("full", "row") or dtype not in ("", "bool"):
                raise ValueError("only values of kind full or row are stored")
