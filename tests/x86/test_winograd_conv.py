"""Winograd's convolutions on device x86: against the references, and their error at layers of real size."""

import numpy as np
import pytest

from mge.device import as_device
from mge.op import OPS
from mge.testing.cases import admit, kernel_inputs
from mge.testing.kernels import run_guarded

from .against import check
from .conv_cases import draw, epilogue, pair

pytestmark = pytest.mark.usefixtures("x86")

WINDOW = {"stride": (1, 1), "dilation": (1, 1), "groups": 1}


@pytest.mark.parametrize("algorithm", ["winograd2", "winograd4"])
def test_any_use(rng, algorithm):
    for i in range(32):
        inputs, outputs = pair(rng, 1, 71)
        padding = (1, 1) if i % 2 else pair(rng, 0, 4)
        size = tuple(max(1, 3 - 2 * p) + int(rng.integers(0, 17)) for p in padding)
        image = (int(rng.integers(0, 3)), *size, inputs)
        y = (image[0], *(s + 2 * p - 2 for s, p in zip(size, padding, strict=True)), outputs)
        weight = draw(rng, outputs, inputs, 3, 3, terms=9 * max(inputs, outputs))
        packed, rotated = (
            OPS["x86::pack_weight"]._reference(weight, algorithm=algorithm, groups=1, rotate=turn)
            for turn in (False, True)
        )
        check("x86::pack_weight", (weight,), {"algorithm": algorithm, "rotate": bool(i % 2)})
        attrs = {**WINDOW, "padding": padding, "algorithm": algorithm, "weight_shape": weight.shape}
        extras, more = epilogue(rng, i, y)
        x, dy = draw(rng, *image), draw(rng, *y)
        check("x86::conv", (x, packed, *extras), {**attrs, **more})
        check("x86::conv", (x, weight, *extras), {**attrs, **more})
        check("x86::conv_backward_data", (rotated, dy), {**attrs, "input_shape": image})
        check("x86::conv_backward_data", (weight, dy), {**attrs, "input_shape": image})


# Largest and root mean square error at unit variance and 256 channels: measured are 5e-6 and 7e-7 for F(2, 3), 1.8e-5
# and 1.9e-6 for F(4, 3), and 1.2e-5 and 1.1e-6 for the sum of products.
@pytest.mark.parametrize(
    ("algorithm", "largest", "typical"), [("winograd2", 1e-5, 1e-6), ("winograd4", 3.2e-5, 2.5e-6)]
)
@pytest.mark.parametrize("channels", [64, 256])
def test_error_against_float64(rng, algorithm, largest, typical, channels):
    x = rng.normal(size=(1, 14, 14, channels)).astype(np.float32)
    weight = (rng.normal(size=(channels, channels, 3, 3)) * (2 / (9 * channels)) ** 0.5).astype(
        np.float32
    )
    pack = {"algorithm": algorithm, "groups": 1, "rotate": False}
    packed = run("x86::pack_weight", (weight,), pack)
    attrs = {**WINDOW, "padding": (1, 1), "algorithm": algorithm, "weight_shape": weight.shape}
    y = run("x86::conv", (x, packed), attrs)
    padded = np.pad(x.astype(np.float64), [(0, 0), (1, 1), (1, 1), (0, 0)])
    exact = sum(
        padded[:, i : i + 14, j : j + 14] @ weight[:, :, i, j].T.astype(np.float64)
        for i in range(3)
        for j in range(3)
    )
    error = np.abs(y - exact)
    assert error.max() < largest
    assert np.sqrt(np.mean(error**2)) < typical


def run(name, arrays, attrs):
    """The result of one use of an op on device x86."""
    device = as_device("x86:0")
    variant = admit(OPS[name], "", arrays, attrs, device)
    kernel = device.kernel(variant.sig)
    return run_guarded(kernel, kernel_inputs(variant), variant.sig.types)[0]
