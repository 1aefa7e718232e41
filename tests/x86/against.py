"""Kernels of device x86 against the references, between guard bytes: ``check`` one use of an op."""

from mge.device import as_device
from mge.op import OPS
from mge.testing.cases import admit, far, kernel_inputs, reference
from mge.testing.kernels import FILLS, run_guarded


def check(name, arrays, attrs=None):
    """Run an op's kernel on arrays; fail where it is outside the dtype's tolerance, or writes where it must not.

    Parameters
    ----------
    name : str
    arrays : sequence of ndarray
    attrs : dict, optional
    """
    device = as_device("x86:0")
    variant = admit(OPS[name], "", tuple(arrays), attrs or {}, device)
    assert variant is not None, f"{name}: the rule refuses {[a.dtype for a in arrays]}"
    assert device.refusal(variant.sig) is None, device.refusal(variant.sig)
    kernel = device.kernel(variant.sig)
    inputs, types = kernel_inputs(variant), variant.sig.types
    wanted = reference(variant, inputs)
    runs = [
        run_guarded(kernel, inputs, types, FILLS[0]),
        run_guarded(kernel, inputs, types, FILLS[1], shifted=True),
    ]
    for i, k in kernel.inplace:
        if variant.sig.input_types[i] is types[k] and types[k].nbytes:
            runs.append(run_guarded(kernel, inputs, types, over=[(i, k)]))
            for one, other in zip(runs[0], runs[-1], strict=True):
                assert one.tobytes() == other.tobytes(), f"{variant}: other bits with {k} over {i}"
    for given in runs:
        for k, (one, other) in enumerate(zip(given, wanted, strict=True)):
            problem = far(one, other, variant.op)
            assert not problem, f"{variant}: output {k}: {problem}"
