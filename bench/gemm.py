"""Matrix products and direct convolutions of device x86, as shares of what one core can do.

In: nothing; it needs mge-x86. Out: a line a shape: time, GFLOP/s, share.

    python bench/gemm.py [--json] [--only 512] [--rounds 40] [--threads 1]

The roof is the fused multiply-adds of one core times the threads, as the device measures it (at the level of the
instruction set that MGE_X86_ISA chose). With one thread the figures are CPU time, the best of the rounds, since other
processes may use the machine. "linear" has its right side packed beforehand; a vector times a matrix is bound by
memory: see its GB/s.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

import numpy as np
from kernels import seconds

SQUARES = [(n, n, n) for n in (64, 128, 256, 512, 1024, 2048)]
PRODUCTS = [(1, 4096, 4096), (1, 512, 784), (8, 512, 784), (64, 512, 784), (64, 512, 512), (64, 10, 512),
            (3136, 64, 256), (3136, 256, 64), (784, 128, 512), (196, 1024, 256), (49, 512, 2048),
            (1568, 768, 192)]  # fmt: skip
# images, channels, outputs, size, kernel, stride
CONVOLUTIONS = [(1, 64, 64, 56, 3, 1), (1, 128, 128, 28, 3, 1), (1, 256, 256, 14, 3, 1), (1, 512, 512, 7, 3, 1),
                (1, 64, 64, 224, 3, 1), (8, 128, 128, 28, 3, 1), (1, 64, 128, 56, 3, 2), (1, 3, 64, 224, 7, 2),
                (1, 3, 32, 224, 3, 2), (1, 64, 256, 56, 1, 1), (1, 256, 64, 56, 1, 1), (1, 1024, 256, 14, 1, 1),
                (1, 2048, 512, 7, 1, 1), (1, 256, 512, 56, 1, 2), (128, 16, 16, 32, 3, 1),
                (64, 6, 16, 14, 5, 1)]  # fmt: skip


def rows(rng: np.random.Generator) -> list[tuple]:
    """Return (label, op, arrays, attributes, flops, bytes of the larger side)."""
    from mge.op import OPS

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    made: list[tuple] = []
    for m, n, k in (*SQUARES, *PRODUCTS):
        a, b, flops = normal(m, k), normal(k, n), 2 * m * n * k
        packed = OPS["x86::pack_matrix"]._reference(b, transpose=False)
        name = f"{m}x{n}x{k}"
        made.append((f"matmul {name}", "matmul", (a, b), {}, flops, b.nbytes))
        made.append((f"matmul {name}, b turned", "matmul", (a, np.ascontiguousarray(b.T)),
                     {"transpose_b": True}, flops, b.nbytes))  # fmt: skip
        if m > 64:
            made.append((f"matmul {name}, a turned", "matmul", (np.ascontiguousarray(a.T), b),
                         {"transpose_a": True}, flops, b.nbytes))  # fmt: skip
        made.append((f"linear {name}, relu", "x86::linear", (a, packed, normal(n)),
                     {"columns": n, "bias": True, "activation": "relu"}, flops, b.nbytes))  # fmt: skip
    made.append(("matmul 24 x 196x196x64, b turned", "matmul", (normal(24, 196, 64), normal(24, 196, 64)),
                 {"transpose_b": True}, 2 * 24 * 196 * 196 * 64, 0))  # fmt: skip
    for images, c, o, size, kernel, stride in CONVOLUTIONS:
        x, count = normal(images, size, size, c), (size + 2 * (kernel // 2) - kernel) // stride + 1
        packed = OPS["x86::pack_weight"]._reference(
            normal(o, c, kernel, kernel), algorithm="direct", groups=1, rotate=False
        )
        attrs = {"weight_shape": (o, c, kernel, kernel), "stride": (stride,) * 2, "padding": (kernel // 2,) * 2,
                 "dilation": (1, 1), "bias": True, "activation": "relu"}  # fmt: skip
        label = f"conv {images}, {c}->{o} @{size} {kernel}x{kernel}" + f" step {stride}" * (
            stride > 1
        )
        flops = 2 * images * count * count * o * c * kernel * kernel
        made.append((label, "x86::conv", (x, packed, normal(o)), attrs, flops, 0))
    return made


def measure(only: str | None, rounds: int, threads: int, rows=rows) -> list[dict]:
    """Return a record for each shape."""
    records = []
    for label, op, arrays, attrs, flops, nbytes in rows(np.random.default_rng(0)):
        if only and only not in label:
            continue
        taken, _ = seconds(op, arrays, attrs, rounds, threads)
        record = {"shape": label, "us": taken * 1e6, "gflops": flops / taken / 1e9}
        if nbytes and (arrays[0].ndim != 2 or len(arrays[0]) == 1):
            record["gbs"] = nbytes / taken / 1e9
        records.append(record)
    return records


def main(rows=rows, description: str = __doc__) -> int:
    """Print the records."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", help="shapes whose label contains this")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    os.environ["MGE_THREADS"] = str(options.threads)  # read when mge loads
    from mge.device import as_device
    from mge.errors import DeviceError, PluginError

    try:
        backend = as_device("x86:0").backend
    except (DeviceError, PluginError) as error:
        print(f"skipped: {str(error).splitlines()[0]}")
        return 0
    most = backend.roof(0)[0] / 1e9
    records = measure(options.only, options.rounds, options.threads, rows)
    for record in records:
        record["share"] = record["gflops"] / most
    if options.json:
        facts = {"isa": backend.capabilities(0)["isa"], "threads": options.threads, "roof": most}
        json.dump({**facts, "shapes": records}, sys.stdout)
        return 0
    print(f"{backend.devices()[0]}, {options.threads} thread(s); roof {most:.0f} GFLOP/s")
    for r in records:
        share = f"{100 * r['share']:4.0f} %"
        memory = f"  {r['gbs']:.0f} GB/s" if "gbs" in r else ""
        print(f"{r['shape']:38} {r['us']:10.1f} us {r['gflops']:8.1f} GFLOP/s {share}{memory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
