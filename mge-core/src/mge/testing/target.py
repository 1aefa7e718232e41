"""What cases run against: one device, the run's seed, and the variants of the ops.

In: a device's name. Out: ``Target``, and the exceptions by which a case ends.
After ``cases``; before the levels.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..device import Device, as_device, is_free, set_default_device
from ..devices import get_default_device
from ..errors import MgeError
from ..op import OPS
from .cases import Variant, admit, admitted, all_samples, sample, swept


class Refused(Exception):
    """The device refuses this use, with a reason: that is its right."""


class Skipped(Exception):
    """The case says nothing about this device; the text says why."""


class Target:
    """One device under test.

    Attributes
    ----------
    device : Device
    backend : Backend
    seed : int
    """

    def __init__(self, name: str, seed: int = 0, ops: list[str] | None = None) -> None:
        self.device: Device = as_device(name)
        self.backend: Any = self.device.backend
        self.seed, self.chosen = seed, ops

    def rng(self, *words: object) -> np.random.Generator:
        """Return random numbers that depend on the seed and these words alone."""
        return np.random.default_rng(zlib.crc32(repr((self.seed, *words)).encode()))

    def ops(self) -> list[str]:
        """Return the names of the ops that are to be tried."""
        return sorted(n for n in OPS if self.chosen is None or n in self.chosen)

    def samples(self, name: str) -> list[tuple[tuple[np.ndarray, ...], dict[str, Any]]]:
        """Return all samples of an op, drawn from one seed."""
        return all_samples(OPS[name], self.rng(name))

    def labels(self, name: str) -> Iterator[tuple[int, list[str]]]:
        """Yield (sample number, dtypes that its rule admits)."""
        for index, (arrays, attrs) in enumerate(self.samples(name)):
            try:
                yield index, [v.label for v in admitted(OPS[name], arrays, attrs, self.device)]
            except MgeError:  # of the core's own record: its tests show it
                continue

    def variant(
        self, name: str, index: int, label: str, draw: int = 0, device: Device | None = None
    ) -> Variant:
        """Return one sample under one dtype, on the device; another ``draw`` has other values."""
        device = device or self.device
        with _default(device):  # graphs in attributes are made there
            arrays, attrs = sample(OPS[name], index, self.rng(name, *[draw] * bool(draw)))
        made = next(a for word, a in swept(arrays) if word == label)
        variant = admit(OPS[name], label, made, attrs, device)
        if variant is None:
            raise Skipped(f"the rule of {name} does not admit {label} here")
        return variant

    def usable(self, name: str) -> tuple[int, str]:
        """Return the first use of an op that the device takes, and whose outputs are not empty.

        Raises
        ------
        Refused
            It takes none.
        Skipped
            The core runs it for all devices in host memory.
        """
        reason = None
        for index, labels in self.labels(name):
            for label in sorted(labels, key=lambda word: word != "float32"):
                variant = self.variant(name, index, label)
                if not variant.sig.nbytes or is_free(variant.sig):
                    continue
                reason = self.device.refusal(variant.sig)
                if reason is None:
                    return index, label
        if reason is None:
            raise Skipped("the core runs it for devices in host memory")
        raise Refused(reason)


@contextmanager
def _default(device: Device) -> Iterator[None]:
    before = get_default_device()
    set_default_device(device)
    try:
        yield
    finally:
        set_default_device(before)
