"""Write the skeleton of an op, which fails its tests until it is filled in.

In: a name, its tensors and attributes. Out: a record in mge/ops/, in a new file or at the end of a family's.
Example: python tools/new_op.py rms_norm --inputs x,weight --attrs eps:float=1e-6 --file normalisation
"""

import argparse
import keyword
import re
import sys
from pathlib import Path

OPS = Path(__file__).resolve().parents[1] / "mge-core" / "src" / "mge" / "ops"

HEAD = '''"""FILL: what these ops do.

In: tensors and attributes. Out: nodes; each record holds every rule of its op.
After ``op``; before ``tensor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..errors import DTypeError, ShapeError
from ..op import op
from ..types import abstract

if TYPE_CHECKING:
    from ..tensor import Tensor
'''

RECORD = '''

@op
def {name}({signature}) -> Tensor:
    """FILL: one line in active voice, at most 80 characters.

    ``FILL: the formula``

    Parameters
    ----------
{parameters}

    Returns
    -------
    FILL: shape and dtype, in the letters used above

    Raises
    ------
    DTypeError
        FILL: the condition.
    ShapeError
        FILL: the condition.

    Examples
    --------
    >>> {name}(FILL)
    """
    if not {first}.dtype.is_float:
        raise DTypeError(f"{name}: {first} is {{{first}.dtype}}; FILL: the rule")
    if {first}.ndim == 0:
        raise ShapeError(f"{name}: {first} has shape {{{first}.shape}}; FILL: the rule")
    return abstract({first}.shape, {first}.dtype)


@{name}.reference
def _({arguments}):
    raise NotImplementedError("{name}: FILL: the result, in NumPy")


@{name}.gradient
def _(dy, y, {arguments}):
    raise NotImplementedError("{name}: FILL: one entry for each input, in mge ops; None where there is no gradient")


@{name}.lowering
def _({arguments}):
    raise NotImplementedError("{name}: FILL: the same in base ops; leave this rule out of a base op")


@{name}.samples
def _(rng):
    # FILL: ((inputs), {{attributes}}) for plain, one-element, empty and extreme cases.
    yield from ()
'''


def record(name: str, inputs: list[str], attrs: list[str]) -> str:
    """Return the text of one record.

    Parameters
    ----------
    name : str
        Name of the op.
    inputs : list of str
        Names of its tensors.
    attrs : list of str
        Its attributes, as ``eps:float=1e-6``; the default may be left out.
    """
    typed = [f"{i}: Tensor" for i in inputs]
    plain = list(inputs)
    entries = [f"    {i} : (FILL) dtype\n        FILL: meaning, range, unit." for i in inputs]
    if attrs:
        typed.append("*")
        plain.append("*")
    for attr in attrs:
        left, _, default = attr.partition("=")
        attr_name, _, kind = left.partition(":")
        kind = kind or "float"
        typed.append(f"{attr_name}: {kind}" + (f" = {default}" if default else ""))
        plain.append(attr_name)
        shown = f"{attr_name} : {kind}" + (f", default {default}" if default else "")
        entries.append(f"    {shown}\n        FILL: meaning, range, unit.")
    return RECORD.format(
        name=name,
        signature=", ".join(typed),
        arguments=", ".join(plain),
        parameters="\n".join(entries),
        first=inputs[0],
    )


def main(argv: list[str] | None = None) -> int:
    """Write the record; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("name", help="snake_case; the Array API's or NumPy's name where one exists")
    parser.add_argument("--inputs", default="x", help="tensors, as x,weight")
    parser.add_argument("--attrs", default="", help="attributes, as eps:float=1e-6,axis:int=-1")
    parser.add_argument("--file", help="family file in mge/ops/, without .py; default: the name")
    args = parser.parse_args(argv)
    inputs = args.inputs.split(",")
    for word in [args.name, *inputs]:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", word) or keyword.iskeyword(word):
            parser.error(f"{word!r} is not a snake_case name")
    if not OPS.is_dir():
        parser.error(f"{OPS} does not exist")
    for path in OPS.rglob("*.py"):
        if re.search(rf"^def {args.name}\(", path.read_text(), re.MULTILINE):
            parser.error(f"{path} already has {args.name}")
    path = OPS / f"{args.file or args.name}.py"
    before = path.read_text() if path.exists() else HEAD
    path.write_text(before + record(args.name, inputs, [a for a in args.attrs.split(",") if a]))
    if before == HEAD:
        print(f"import {path.stem} in {OPS / '__init__.py'}")
    print(f"fill in each FILL of {path}, then run: ./check op {args.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
