"""What a transform is.

In: a sample. Out: a sample.
First file of ``data.transform``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any


class Transform(ABC):
    """Changes samples; a subclass defines ``apply``.

    Examples
    --------
    >>> from mge.data.transform import Transform
    >>> class Double(Transform):
    ...     def apply(self, input):
    ...         return 2 * input
    >>> Double().apply_batch([1, 2])
    (2, 4)
    """

    def apply_batch(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Transform each sample of a batch."""
        return tuple(self.apply(sample) for sample in inputs)

    @abstractmethod
    def apply(self, input: Any) -> Any:
        """Transform one sample."""

    def __repr__(self) -> str:
        return type(self).__name__


class PseudoTransform(Transform):
    """Leaves samples as they are.

    Examples
    --------
    >>> from mge.data.transform import PseudoTransform
    >>> PseudoTransform().apply((1, "a"))
    (1, 'a')
    """

    def apply(self, input: Any) -> Any:
        """Return the sample."""
        return input
