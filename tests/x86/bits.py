"""Print a digest of what each kernel of device x86 gives: JSON, {op: digest}. ``test_threads`` compares them.

In: the samples of all ops, and uses that are large enough to be cut for several threads.
"""

import hashlib
import json

import numpy as np

import mge
from mge.buffer import aligned_bytes
from mge.device import as_device, is_free
from mge.op import OPS
from mge.testing.cases import admit, admitted, all_samples, kernel_inputs

WINDOW = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
POOL = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1, 1, 1)}


def large(rng):
    """Yield (op, arrays, attributes) of uses that several threads share."""

    def draw(*shape):
        return rng.normal(size=shape).astype(np.float32)

    wide, rows = draw(3, 700, 301), draw(1500, 257)
    image, weight = draw(3, 40, 41, 48), draw(64, 48, 3, 3)
    for name in ("sum", "mean", "max", "argmax"):
        for axis in (None, 0, 1, 2):
            yield name, (wide,), {"axis": axis}
    for name in ("exp", "gelu", "tanh", "sort", "argsort"):
        yield name, (wide,), {}
    for name in ("softmax", "logsoftmax", "cumsum"):
        yield name, (rows,), {"axis": -1}
    yield "add", (wide, wide), {}
    yield "transpose", (wide,), {}
    yield "matmul", (draw(600, 1100), draw(1100, 300)), {}
    yield "matmul", (draw(1, 900), draw(900, 800)), {}
    yield "matmul", (draw(9, 70, 80), draw(9, 80, 60)), {}
    for m, n, k in ((196, 768, 192), (33, 600, 500)):  # cut by rows, by columns
        attrs = {"columns": n, "bias": False, "residual": False, "activation": "gelu"}
        yield "x86::linear", (draw(m, k), draw(-(-n // 16) * 16 * k)), attrs
    yield "layer_norm", (rows, draw(257), draw(257)), {"axis": (1,)}
    yield "attention", (draw(2, 3, 200, 32), draw(2, 3, 190, 32), draw(2, 3, 190, 32)), {}
    for algorithm in ("direct", "winograd2", "winograd4"):
        attrs = {"algorithm": algorithm, "groups": 1}
        packed = OPS["x86::pack_weight"]._reference(weight, rotate=False, **attrs)
        shape = {"weight_shape": weight.shape, "algorithm": algorithm}
        plain = {"bias": False, "residual": False, "activation": ""}
        yield "x86::conv", (image, packed), {**WINDOW, **shape, **plain}
        if algorithm != "direct":
            yield "x86::conv", (image, weight), {**WINDOW, **shape, **plain}
        turned = OPS["x86::pack_weight"]._reference(weight, rotate=True, **attrs)
        shape["input_shape"] = image.shape
        yield "x86::conv_backward_data", (turned, draw(3, 40, 41, 64)), {**WINDOW, **shape}
    shape = {"weight_shape": weight.shape}
    yield "x86::conv_backward_weight", (image, draw(3, 40, 41, 64)), {**WINDOW, **shape}
    for image_shape, wide in (
        ((1, 56, 56, 24), 144),
        ((1, 14, 14, 96), 576),
    ):  # cut by rows, by channels
        sizes = (wide * 9, -(-image_shape[-1] // 16) * 16 * wide, wide * image_shape[-1])
        attrs = {"filter_shape": (wide, 1, 3, 3), "outputs": image_shape[-1]}
        yield "x86::inverted_residual", (draw(*image_shape), *map(draw, sizes)), attrs
    packed = OPS["x86::pack_weight"]._reference(
        draw(48, 1, 3, 3), algorithm="depthwise", groups=48, rotate=False
    )
    attrs = {**WINDOW, "groups": 48, "weight_shape": (48, 1, 3, 3), "algorithm": "depthwise"}
    yield (
        "x86::conv",
        (image, packed),
        {**attrs, "bias": False, "residual": False, "activation": ""},
    )
    yield "x86::max_pool", (image,), POOL
    yield "x86::avg_pool", (image,), POOL


def run(device, variant):
    """Return the bytes of what a kernel gives; None where the device has none."""
    sig = variant.sig
    if is_free(sig) or device.refusal(sig) is not None:
        return None
    kernel = device.kernel(sig)
    made = [aligned_bytes(t.nbytes).view(t.dtype.dtype).reshape(t.shape) for t in sig.types]
    for array in made:
        array[...] = 0
    kernel(kernel_inputs(variant), made, None)
    return b"".join(array.tobytes() for array in made)


def main():
    """Print the digests."""
    device, digests = as_device("x86:0"), {}

    def note(variant):
        found = run(device, variant)
        if found is not None:
            digests.setdefault(variant.op.name, hashlib.sha256()).update(found)

    mge.random.seed(0)
    for _, op in sorted(OPS.items()):
        for arrays, attrs in all_samples(op, np.random.default_rng(1)):
            for variant in admitted(op, arrays, attrs, device):
                note(variant)
    for name, arrays, attrs in large(np.random.default_rng(2)):
        variant = admit(OPS[name], "", arrays, attrs, device)
        assert variant is not None, name
        assert device.refusal(variant.sig) is None, (name, device.refusal(variant.sig))
        note(variant)
    print(json.dumps({name: digest.hexdigest() for name, digest in digests.items()}))


main()
