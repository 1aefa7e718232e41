"""Ops of this device, named ``x86::...``; each has a NumPy reference, like every op."""

from . import attention, chain, conv, inverted_residual, linear, norm, pool  # noqa: F401
