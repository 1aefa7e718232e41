"""Device ``ref``: every op by its NumPy reference. The oracle for all other devices.

In: signatures. Out: kernels that call the reference and write its result to where the plan wants it.
After ``device``; before ``passes``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .debug import debug
from .device import BACKENDS, Kernel
from .errors import InternalError
from .graph import Signature
from .threads import limit_threads


class RefBackend:
    """NumPy, one synchronous device."""

    name = "ref"
    priority = 0
    is_host = True

    def probe(self) -> str | None:
        """It always works."""
        return None

    def devices(self) -> tuple[str, ...]:
        """There is one."""
        return ("NumPy",)

    def supports(self, dev: int, sig: Signature) -> str | None:
        """Every op has a reference."""
        return None

    def kernel(self, dev: int, sig: Signature) -> Kernel:
        """Return a kernel that calls the op's reference."""
        function, attrs = sig.op._reference, dict(sig.attrs)
        if function is None:
            raise InternalError(f"{sig.op.name}: the op has no reference")
        if sig.single and sig.op.writes_out:
            return _writing(function, attrs, sig)
        if sig.op.writes_out:
            return lambda inputs, outputs, stream: function(*inputs, out=tuple(outputs), **attrs)
        if sig.single:
            return _copying(function, attrs)
        return _copying_all(function, attrs, sig.op.name)


def _writing(function: Any, attrs: dict[str, Any], sig: Signature) -> Kernel:
    """Call a reference that takes ``out=``; one and two plain inputs are worth a call of their own."""
    if attrs:
        return lambda inputs, outputs, stream: function(*inputs, out=outputs[0], **attrs)
    if len(sig.input_types) == 1:
        return lambda inputs, outputs, stream: function(inputs[0], out=outputs[0])
    if len(sig.input_types) == 2:
        return lambda inputs, outputs, stream: function(inputs[0], inputs[1], out=outputs[0])
    return lambda inputs, outputs, stream: function(*inputs, out=outputs[0])


def _copying(function: Any, attrs: dict[str, Any]) -> Kernel:
    def kernel(inputs: Any, outputs: Any, stream: Any) -> None:
        np.copyto(outputs[0], function(*inputs, **attrs), casting="same_kind")

    return kernel


def _copying_all(function: Any, attrs: dict[str, Any], name: str) -> Kernel:
    def kernel(inputs: Any, outputs: Any, stream: Any) -> None:
        results = function(*inputs, **attrs)
        if len(results) != len(outputs):
            raise InternalError(
                f"{name}: the reference gave {len(results)} results for {len(outputs)} outputs"
            )
        for output, result in zip(outputs, results):
            if output is not None:
                np.copyto(output, result, casting="same_kind")

    return kernel


BACKENDS["ref"] = RefBackend()
if (
    debug.threads or debug.deterministic
):  # a fixed number of BLAS threads gives the same bits on every run
    limit_threads(1 if debug.deterministic else debug.threads)
