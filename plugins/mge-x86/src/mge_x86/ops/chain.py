"""A fused chain: one loop over memory in place of many ops.

In: tensors, and a loop as text. Out: ``x86::chain``.
After ``mge_x86.loops``.
"""

from __future__ import annotations

import math

import numpy as np

from mge import Tensor
from mge.dtype import as_dtype
from mge.errors import ArgumentError, ShapeError
from mge.plugin import Signature, abstract, op

from ..loops import Loop, parse


@op(name="x86::chain")
def chain(*inps: Tensor, program: str, shapes: str) -> tuple[Tensor, ...]:
    """Run a loop over a matrix; each element, row and column is read once.

    Parameters
    ----------
    inps : tensors, float32 or bool
        The loop's inputs; their elements in row-major order are the loop's matrix, row, column or number.
    program : str
        The loop, in the language of ``mge_x86.loops``.
    shapes : str
        The shape of each result: ``"2,3;2,1"``.

    Returns
    -------
    tensor or tuple of tensors, float32 or bool
        One for each value that the loop stores.

    Raises
    ------
    ArgumentError
        The program or the shapes cannot be read.
    ShapeError
        The size of an input or result is not that of its kind.

    Examples
    --------
    >>> text = "loop 2 x 2\\nx0 full\\nv0 = sum x0\\nv1 = div x0 v0\\nstore v1"
    >>> chain(tensor([[1.0, 3.0], [1.0, 1.0]]), program=text, shapes="2,2").numpy()
    array([[0.25, 0.75],
           [0.5 , 0.5 ]], dtype=float32)
    """
    loop = parse(program)
    if len(inps) != len(loop.inputs):
        raise ArgumentError(f"x86::chain: the loop has {len(loop.inputs)} inputs; {len(inps)} came")
    for i, (type_, kind) in enumerate(zip(inps, loop.inputs)):
        name, _, is_bool = kind.partition(" ")
        if type_.dtype.name != (is_bool or "float32"):
            raise ArgumentError(f"x86::chain: input {i} is {type_.dtype}; the loop takes {kind}")
        _check_size(f"input {i}", type_.shape, loop, name)
    wanted = _shapes_of(shapes)
    if len(wanted) != len(loop.stores):
        raise ArgumentError(
            f"x86::chain: shapes is {shapes!r} and the loop stores {len(loop.stores)} values"
        )
    types = []
    for shape, store in zip(wanted, loop.stores):
        name, _, is_bool = store.partition(" ")
        _check_size(f"result {name}", shape, loop, loop.kinds[name])
        types.append(abstract(shape, as_dtype(is_bool or "float32")))
    return types[0] if len(types) == 1 else tuple(types)  # type: ignore[return-value]


def _shapes_of(text: str) -> list[tuple[int, ...]]:
    try:
        return [tuple(int(n) for n in part.split(",") if n) for part in text.split(";")]
    except ValueError:
        raise ArgumentError(f"x86::chain: shapes is {text!r}; it must be as '2,3;2,1'") from None


def _check_size(what: str, shape: tuple[int, ...], loop: Loop, kind: str) -> None:
    rows, width = loop.shape(kind)
    if math.prod(shape) != rows * width:
        raise ShapeError(
            f"x86::chain: {what} has shape {shape}; {kind} of {loop.rows} x {loop.width} is {rows * width} elements"
        )


def _pairs(sig: Signature) -> list[tuple[int, int]]:
    """Return the inputs and outputs that are full matrices; a kernel says which of them it can do."""
    loop = parse(dict(sig.attrs)["program"])
    inputs = [i for i, kind in enumerate(loop.inputs) if kind == "full"]
    outputs = [k for k, name in enumerate(loop.stores) if loop.kinds.get(name) == "full"]
    return [(i, k) for i in inputs for k in outputs if sig.input_types[i] is sig.types[k]]


chain.pairs = _pairs


@chain.reference
def _(*inps, program, shapes):
    results = parse(program).run(inps)
    made = [r.reshape(s) for r, s in zip(results, _shapes_of(shapes))]
    return made[0] if len(made) == 1 else tuple(made)


@chain.samples
def _(rng):
    def full(*shape):
        return rng.normal(size=shape).astype(np.float32)

    for rows, width in [(1, 70), (3, 5), (40, 33), (5, 300), (2, 2000), (0, 4), (3, 0)]:
        layer_norm = (
            f"loop {rows} x {width}\nx0 full\nx1 column\nx2 column\nv0 = sum x0\nv1 = div v0 {max(width, 1)}.0\n"
            f"v2 = sub x0 v1\nv3 = square v2\nv4 = sum v3\nv5 = div v4 {max(width, 1)}.0\nv6 = add v5 1e-05\n"
            "v7 = rsqrt v6\nv8 = mul v2 v7\nv9 = mul v8 x1\nv10 = add v9 x2\nstore v10, v1"
        )
        yield (
            (full(rows, width), full(width), full(width)),
            {"program": layer_norm, "shapes": f"{rows},{width};{rows},1"},
        )
        elementwise = (
            f"loop {rows} x {width}\nx0 full\nx1 row\nx2 scalar\nx3 full bool\nv0 = mul x0 x2\nv1 = add v0 x1\n"
            "v2 = gelu v1\nv3 = where x3 v2 0.5\nv4 = maximum v3 -0.1\nv5 = less v4 x1\nv6 = sub 1.0 v4\n"
            "store v6, v5 bool"
        )
        yield (
            (full(rows, width), full(rows, 1), full(), full(rows, width) > 0),
            {"program": elementwise, "shapes": f"{rows},{width};{rows},{width}"},
        )
        if width:
            softmax = (
                f"loop {rows} x {width}\nx0 full\nv0 = max x0\nv1 = sub x0 v0\nv2 = exp v1\nv3 = sum v2\n"
                "v4 = div v2 v3\nstore v4"
            )
            yield (full(rows, width),), {"program": softmax, "shapes": f"{rows},{width}"}
