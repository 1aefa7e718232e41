"""The inner loops of the installed microkernel keep their sums in registers: no vector goes to the stack and back.

A compiler that leaves a loop over the sums rolled, or lacks a register, halves the speed and breaks nothing else.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

MULTIPLIES = re.compile(r"vfn?m(add|sub)\d+ps")
LINE = re.compile(r"\s*([0-9a-f]+):\s+(\S+)\s*(.*)")
TARGET = re.compile(r"([0-9a-f]+)")
LEAST = 40  # fused multiply-adds of a loop of the microkernel: 5 rows, 2 vectors, 4 terms


def loops(library):
    """Yield the innermost loops of a library: lists of (instruction, operands)."""
    text = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", str(library)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    lines, position = [], {}
    for found in filter(None, map(LINE.match, text.splitlines())):
        position[int(found[1], 16)] = len(lines)
        lines.append((int(found[1], 16), found[2], found[3]))
    inside = -1  # where the last loop ended: an outer loop begins before it
    for at, (address, name, operands) in enumerate(lines):
        if name.startswith("j") and (goal := TARGET.match(operands)):
            start = position.get(int(goal[1], 16), at + 1)
            if start <= at and address - int(goal[1], 16) < 16384 and start > inside:
                inside = at
                yield [(n, o) for _, n, o in lines[start : at + 1]]


@pytest.mark.parametrize("level", ["avx2", "avx512", "avx512vnni"])
def test_the_sums_of_the_microkernel_stay_in_registers(x86, level):
    if shutil.which("objdump") is None:
        pytest.skip("objdump is not installed (package binutils)")
    import mge_x86

    library = Path(mge_x86.__file__).with_name(f"libmge_x86_{level}.so")
    kernels, spilled = 0, []
    for body in loops(library):
        count = sum(bool(MULTIPLIES.match(name)) for name, _ in body)
        spread = sum("broadcastss" in name or "{1to" in operands for name, operands in body)
        if (
            count < LEAST or 2 * spread < count
        ):  # the microkernel multiplies by one element of the left side
            continue
        kernels += 1
        moved = [f"{n} {o}" for n, o in body if "mm" in o and "(%rsp" in o]
        if moved:
            spilled.append(f"{len(moved)} in a loop of {count} multiply-adds: {moved[0]}")
    assert kernels, "no loop of the microkernel was found: the test looks for the wrong thing"
    assert not spilled
