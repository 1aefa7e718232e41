"""The speed of single kernels of device x86, beside NumPy and beside what the machine can do.

In: nothing; it needs mge-x86. Out: a line a kernel: GB/s, NumPy's figure, and that of a copy. `gemm.py` has products.

    python bench/kernels.py [--json] [--only transpose] [--rounds 15] [--threads 1]

GB/s counts each byte of the inputs and the output once; the roof is a copy that moves as many. Figures are the best of
the rounds, in CPU time with one thread, since other processes may use the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time

import numpy as np

SMALL, LARGE = (64, 64), (4096, 4096)  # 16 KiB: in the first cache; 64 MiB: in memory


def rows(rng: np.random.Generator) -> list[tuple]:
    """Return (label, op, arrays, attributes, NumPy's function or None)."""

    def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
        return rng.normal(size=shape).astype(dtype)

    made: list[tuple] = []
    for size in (SMALL, (512, 1024), LARGE):
        x, y, name = normal(*size), normal(*size), f"{size[0]}x{size[1]}"
        made += [
            (f"add {name}", "add", (x, y), {}, np.add),
            (f"relu {name}", "relu", (x,), {}, lambda a: np.maximum(a, 0)),
        ]
    x, y = normal(512, 1024), normal(512, 1024)
    made += [
        ("add scalar", "add", (x, normal()), {}, np.add),
        ("add row", "add", (x, normal(1024)), {}, np.add),
        ("add column", "add", (x, normal(512, 1)), {}, np.add),
        ("add channels NCHW", "add", (normal(8, 64, 28, 28), normal(64, 1, 1)), {}, np.add),
        ("add channels NHWC", "add", (normal(8, 28, 28, 64), normal(64)), {}, np.add),
        ("add float16", "add", (x.astype("float16"), y.astype("float16")), {}, np.add),
        ("add int8", "add", (x.astype("int8"), y.astype("int8")), {}, np.add),
        ("where", "where", (x > 0, x, y), {}, np.where),
        ("less", "less", (x, y), {}, np.less),
        ("cast to float16", "cast", (x,), {"dtype": "float16"}, lambda a: a.astype("float16")),
        ("cast from uint8", "cast", (x.astype("uint8"),), {"dtype": "float32"}, lambda a: a.astype("float32")),
    ]  # fmt: skip
    for op in ("exp", "log", "tanh", "sin", "sqrt"):
        made.append((op, op, (np.abs(x),), {}, getattr(np, op)))
    made += [
        (op, op, (x,), {}, None)
        for op in ("sigmoid", "silu", "gelu", "erf", "softplus", "expm1", "log1p")
    ]
    images = normal(8, 64, 56, 56)
    for label, shape, pattern in [
        ("transpose 1024x1024", (1024, 1024), (1, 0)),
        ("NCHW to NHWC, 64 channels", images.shape, (0, 2, 3, 1)),
        ("NHWC to NCHW, 64 channels", (8, 56, 56, 64), (0, 3, 1, 2)),
        ("NCHW to NHWC, 3 channels", (8, 3, 224, 224), (0, 2, 3, 1)),
        ("heads (B, T, H, D)", (8, 196, 3, 64), (0, 2, 1, 3)),
    ]:
        made.append((label, "transpose", (normal(*shape),), {"pattern": pattern},
                     lambda a, p=pattern: np.ascontiguousarray(a.transpose(p))))  # fmt: skip
    made += [
        ("concat on channels", "concat", (images, images), {"axis": 1}, lambda *a: np.concatenate(a, 1)),
        ("slice, step 2", "slice", (images,), {"starts": (0, 0, 0, 0), "stops": (8, 64, 56, 56), "steps": (1, 1, 2, 2)},
         lambda a: np.ascontiguousarray(a[:, :, ::2, ::2])),
    ]  # fmt: skip
    return made


def best(function, rounds: int, clock) -> float:
    """Return the seconds of one call: the best round, each long enough for the clock."""
    function()
    repeat, taken = 1, 0.0
    while taken < 2e-3:
        repeat *= 2
        start = clock()
        for _ in range(repeat):
            function()
        taken = clock() - start
    found = taken / repeat
    for _ in range(rounds):
        start = clock()
        for _ in range(repeat):
            function()
        found = min(found, (clock() - start) / repeat)
    return found


def seconds(op: str, arrays: tuple, attrs: dict, rounds: int, threads: int) -> tuple[float, tuple]:
    """Return the seconds of one use of an op on device x86, and the arrays that its kernel reads and writes."""
    from mge.buffer import aligned_bytes
    from mge.device import as_device
    from mge.op import OPS
    from mge.testing.cases import admit, kernel_inputs

    device = as_device("x86:0")
    variant = admit(OPS[op], "", arrays, attrs, device)
    kernel, inputs = device.kernel(variant.sig), kernel_inputs(variant)
    out = [aligned_bytes(t.nbytes).view(t.dtype.dtype).reshape(t.shape) for t in variant.sig.types]
    return best(lambda: kernel(inputs, out), rounds, clock_for(threads)), (inputs, out)


def clock_for(threads: int):
    """Return the clock of work on so many threads."""
    return time.process_time if threads == 1 else time.perf_counter


def copy_seconds(nbytes: int, rounds: int, clock) -> float:
    """Return the seconds of copying half of so many bytes to the other half."""
    from_, to = np.ones(nbytes // 8, np.float32), np.ones(nbytes // 8, np.float32)
    return best(lambda: np.copyto(to, from_), rounds, clock)


def measure(only: str | None, rounds: int, threads: int) -> list[dict]:
    """Return a record for each kernel."""
    from mge.dtype import as_dtype

    clock = clock_for(threads)
    records = []
    for label, op, arrays, attrs, function in rows(np.random.default_rng(0)):
        if only and only not in label:
            continue
        if "dtype" in attrs:
            attrs = {"dtype": as_dtype(attrs["dtype"])}
        ours, (inputs, out) = seconds(op, tuple(map(np.asarray, arrays)), attrs, rounds, threads)
        nbytes = sum(a.nbytes for a in (*inputs, *out))
        theirs = best(lambda f=function, i=inputs: f(*i), rounds, clock) if function else None
        record = {"kernel": label, "us": ours * 1e6, "mge": nbytes / ours / 1e9}
        record["numpy"] = nbytes / theirs / 1e9 if theirs else None
        record["copy"] = nbytes / copy_seconds(nbytes, rounds, clock) / 1e9
        records.append(record)
    return records


def main() -> int:
    """Print the records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", help="kernels whose label contains this")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    os.environ["MGE_THREADS"] = str(options.threads)  # read when mge loads
    import mge
    from mge.device import as_device
    from mge.errors import DeviceError, PluginError

    try:
        backend = as_device("x86:0").backend
    except (DeviceError, PluginError) as error:
        print(f"skipped: {str(error).splitlines()[0]}")
        return 0
    records = measure(options.only, options.rounds, options.threads)
    if options.json:
        json.dump(
            {"isa": backend.capabilities(0)["isa"], "threads": options.threads, "kernels": records},
            sys.stdout,
        )
        return 0
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}, mge {mge.__version__}"
    print(f"{platform.machine()}, {backend.devices()[0]}, {options.threads} thread(s); {versions}")
    print(f"{'kernel':28} {'us':>9} {'mge':>8} {'NumPy':>8} {'copy':>8}")
    for r in records:
        figures = [r["mge"], r["numpy"], r["copy"]]
        text = " ".join(f"{f:8.1f}" if f else f"{'':8}" for f in figures)
        print(f"{r['kernel']:28} {r['us']:9.1f} {text} GB/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
