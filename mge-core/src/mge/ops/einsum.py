"""Einstein summation: products and sums of tensors, written with a letter for each axis.

In: an equation and tensors. Out: ``einsum``, built from transposes, reshapes, products and sums.
After ``linalg``; before ``tensor``.
"""

from __future__ import annotations

import functools
import math
import re
import string
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import ArgumentError, MgeError, ShapeError, user_place
from ..types import Shape
from .elementwise import mul
from .linalg import matmul
from .reduction import sum
from .shape import reshape, transpose
from .slicing import slice_

if TYPE_CHECKING:
    from ..tensor import Tensor

FUNCTIONS = ("einsum",)

_TERM = re.compile(r"([A-Za-z]*)(\.\.\.)?([A-Za-z]*)")


def einsum(equation: str, *args: Tensor) -> Tensor:
    """Multiply tensors and sum over axes, as an equation says.

    ``y[output] = sum over the other letters of args[0][letters] * args[1][letters] * ...``

    Parameters
    ----------
    equation : str
        A letter for each axis of each tensor, tensors separated by commas, then ``->`` and the letters of the
        result. ``...`` stands for the axes without a letter, which broadcast. A letter twice in one tensor takes the
        diagonal. Without ``->`` the result has the ``...`` axes, then the letters that occur once, in
        alphabetical order.
    *args : tensors, any dtype
        Axes with one letter have one size, or size 1, which broadcasts.

    Returns
    -------
    (the sizes of the output's letters) common dtype; bool and integers under 32 bits become int32 or uint32 when summed

    Raises
    ------
    ArgumentError
        The equation is malformed, names another number of tensors, or its output has a letter twice or an unknown one.
    ShapeError
        A tensor has another number of axes than letters, or sizes of one letter differ.

    Notes
    -----
    Tensors are contracted in pairs, in the order with the fewest multiplications that NumPy's ``einsum_path`` finds.
    float16 and bfloat16 sums are accumulated in float32, and rounded after each pair.

    Examples
    --------
    >>> einsum("ij,jk->ik", tensor([[1.0, 2.0]]), tensor([[3.0], [4.0]]))
    Tensor([[11.]], dtype=float32, device=ref:0)
    >>> einsum("ii", tensor([[1.0, 2.0], [3.0, 4.0]]))
    Tensor(5., dtype=float32, device=ref:0)
    """
    try:
        terms, output, sizes = parse(equation, tuple(tuple(a.shape) for a in args))
    except MgeError as error:
        raise error.add_place(user_place()) from None
    operands = [_prepared(x, term, sizes) for x, term in zip(args, terms)]
    for picked in contraction_path(
        tuple(labels for _, labels in operands), output, tuple(sizes.items())
    ):
        chosen = [operands[i] for i in picked]
        operands = [o for i, o in enumerate(operands) if i not in picked]
        while len(chosen) > 1:
            needed = set(output).union(*(labels for _, labels in operands + chosen[2:]))
            chosen = [_contracted(chosen[0], chosen[1], needed, output), *chosen[2:]]
        operands.append(chosen[0])
    x, labels = _summed(operands[0], set(output))
    pattern = tuple(labels.index(label) for label in output)
    return x if pattern == tuple(range(len(pattern))) else transpose(x, pattern)


@functools.lru_cache(1024)
def parse(equation: str, shapes: tuple[Shape, ...]) -> tuple[list[str], str, dict[str, int]]:
    """Return the letters of each tensor, those of the result, and the size of each letter.

    The axes that ``...`` stands for get letters that the equation does not use.
    """
    text = equation.replace(" ", "")
    inputs, arrow, output = text.partition("->")
    terms = inputs.split(",")
    if len(terms) != len(shapes):
        raise ArgumentError(
            f"einsum: equation {equation!r} names {len(terms)} tensors; {len(shapes)} were given"
        )
    texts = [*terms, output]
    matches = [match for text in texts if (match := _TERM.fullmatch(text))]
    if len(matches) < len(texts):
        raise ArgumentError(
            f"einsum: equation {equation!r} is malformed; a term has letters and at most one ..., as in 'b...i,ij'"
        )
    named = [m[1] + m[3] for m in matches]
    most = 0
    for term, match, letters, shape in zip(terms, matches, named, shapes):
        extra = len(shape) - len(letters)
        if extra < 0 or extra and not match[2]:
            raise ShapeError(
                f"einsum: term {term!r} of equation {equation!r} has {len(letters)} letters; the tensor has {shape}"
            )
        most = max(most, extra)
    free = [letter for letter in string.ascii_letters if letter not in set("".join(named))]
    if len(free) < most:
        raise ArgumentError(
            f"einsum: equation {equation!r} needs {most} more letters than there are"
        )
    dots = "".join(free[:most])
    full = []
    for match, letters, shape in zip(matches, named, shapes):
        extra = len(shape) - len(letters)
        full.append(match[1] + dots[most - extra :] + match[3])
    sizes: dict[str, int] = {}
    for term, shape in zip(full, shapes):
        for label, n in zip(term, shape):
            if label not in sizes or sizes[label] == 1:
                sizes[label] = n
            elif n not in (1, sizes[label]):
                what = f"letter {label!r}" if label not in dots else "an axis of ..."
                raise ShapeError(
                    f"einsum: in equation {equation!r}, tensors of shapes {', '.join(map(str, shapes))}, "
                    f"{what} has sizes {sizes[label]} and {n}; they must be equal, or one of them 1"
                )
    if arrow:
        last = matches[-1]
        result = last[1] + (dots if last[2] else "") + last[3]
        wrong = [label for label in result if result.count(label) > 1 or label not in sizes]
        if wrong:
            raise ArgumentError(
                f"einsum: the output of equation {equation!r} has the letter {wrong[0]!r}; "
                "each letter of the output must occur there once, and in an input"
            )
    else:
        joined = "".join(full)
        result = dots + "".join(
            sorted(label for label in set(joined) - set(dots) if joined.count(label) == 1)
        )
    return full, result, sizes


@functools.lru_cache(1024)
def contraction_path(
    terms: tuple[str, ...], output: str, sizes: tuple[tuple[str, int], ...]
) -> list[tuple[int, ...]]:
    """Return which tensors to contract, step by step; results go to the end of the list."""
    if len(terms) <= 2:
        return [tuple(range(len(terms)))] * (len(terms) - 1)
    size = dict(sizes)
    stand_ins = [np.broadcast_to(np.float32(0), [size[label] for label in term]) for term in terms]
    search = "optimal" if len(terms) <= 5 else "greedy"
    path, _ = np.einsum_path(f"{','.join(terms)}->{output}", *stand_ins, optimize=search)
    return path[1:]


def _prepared(x: Tensor, term: str, sizes: dict[str, int]) -> tuple[Tensor, str]:
    """Take diagonals of repeated letters, and drop axes of size 1 that broadcast."""
    for label in sorted(set(term)):
        while term.count(label) > 1:
            x, term = _diagonal(x, term, label)
    kept = [i for i, label in enumerate(term) if not (x.shape[i] == 1 and sizes[label] != 1)]
    if len(kept) < len(term):
        x, term = reshape(x, tuple(x.shape[i] for i in kept)), "".join(term[i] for i in kept)
    return x, term


def _diagonal(x: Tensor, term: str, label: str) -> tuple[Tensor, str]:
    """Replace two axes of one letter by their diagonal, as the last axis."""
    first = term.index(label)
    second = term.index(label, first + 1)
    n = x.shape[first]
    if x.shape[second] != n:
        raise ShapeError(
            f"einsum: a tensor of shape {x.shape} has the letter {label!r} for axes of sizes {n} and "
            f"{x.shape[second]}; a diagonal needs equal sizes"
        ).add_place(user_place())
    others = [i for i in range(len(term)) if i not in (first, second)]
    rest = tuple(x.shape[i] for i in others)
    x = transpose(x, (*others, first, second))
    # Of an (n, n) matrix, the diagonal is each (n + 1)-th element.
    x = reshape(x, (*rest, n * n))
    axes = len(rest) + 1
    x = slice_(x, starts=(0,) * axes, stops=(*rest, n * n), steps=(*(1 for _ in rest), n + 1))
    return x, "".join(term[i] for i in others) + label


def _summed(operand: tuple[Tensor, str], needed: set[str]) -> tuple[Tensor, str]:
    """Sum over the letters that nothing else needs."""
    x, labels = operand
    axes = tuple(i for i, label in enumerate(labels) if label not in needed)
    if not axes:
        return operand
    return sum(x, axis=axes), "".join(label for label in labels if label in needed)


def _contracted(
    left: tuple[Tensor, str], right: tuple[Tensor, str], needed: set[str], output: str
) -> tuple[Tensor, str]:
    """Multiply two tensors, and sum over the letters that they share and nothing else needs."""
    x, a = _summed(left, needed | set(right[1]))
    y, b = _summed(right, needed | set(left[1]))
    batch = [label for label in a if label in b and label in needed]
    summed = [label for label in a if label in b and label not in needed]
    rows = [label for label in a if label not in b]
    columns = [label for label in b if label not in a]
    swapped = "".join(batch + columns + rows)
    if swapped in output and (rows or columns) and "".join(batch + rows + columns) not in output:
        return _contracted((y, b), (x, a), needed, "")
    size = dict(zip(a, x.shape)) | dict(zip(b, y.shape))
    shape = [tuple(size[label] for label in group) for group in (batch, rows, columns, summed)]
    if not summed:
        x = reshape(_ordered(x, a, batch + rows), (*shape[0], *shape[1], *(1 for _ in columns)))
        y = reshape(_ordered(y, b, batch + columns), (*shape[0], *(1 for _ in rows), *shape[2]))
        return mul(x, y), "".join(batch + rows + columns)
    lead, m, n, k = (math.prod(s) for s in shape)
    lead_shape = (lead,) if batch else ()
    transpose_a = "".join(batch + summed + rows) == a
    transpose_b = "".join(batch + columns + summed) == b
    x = _ordered(x, a, batch + (summed + rows if transpose_a else rows + summed))
    y = _ordered(y, b, batch + (columns + summed if transpose_b else summed + columns))
    x = reshape(x, (*lead_shape, k, m) if transpose_a else (*lead_shape, m, k))
    y = reshape(y, (*lead_shape, n, k) if transpose_b else (*lead_shape, k, n))
    product = matmul(x, y, transpose_a=transpose_a, transpose_b=transpose_b)
    return reshape(product, (*shape[0], *shape[1], *shape[2])), "".join(batch + rows + columns)


def _ordered(x: Tensor, labels: str, wanted: Sequence[str]) -> Tensor:
    """Return ``x`` with its axes in the wanted order."""
    pattern = tuple(labels.index(label) for label in wanted)
    return x if pattern == tuple(range(len(pattern))) else transpose(x, pattern)
