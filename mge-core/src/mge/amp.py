"""Mixed precision: ``autocast`` for forward passes, ``GradScaler`` for gradients.

In: calls of ops; gradients. Out: casts around ops by what their record says; scaled and checked gradients.
After ``autodiff``; used by training loops.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import ContextDecorator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import functional as F
from .dtype import DType, as_dtype, float16, float32
from .errors import ArgumentError, DTypeError
from .graph import Node
from .mode import MODE, Mode
from .op import OPS, Op
from .ops.multi_tensor import all_finite, scale_all
from .optimizer.optimizer import FOUND_INF
from .tensor import Tensor

if TYPE_CHECKING:
    from .autodiff import GradManager

__all__ = ["GradScaler", "autocast", "enabled"]

_NARROW = ("float16", "bfloat16", "float32")  # what autocast casts; float64 stays


class _Cast:
    """Casts the float inputs of ops that have a preference. Equal casts compare equal, so traces can check them."""

    __slots__ = ("high", "low")

    def __init__(self, low: DType, high: DType) -> None:
        self.low, self.high = low, high

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Cast) and (self.low, self.high) == (other.low, other.high)

    def __hash__(self) -> int:
        return hash((self.low, self.high))

    def __repr__(self) -> str:
        return f"autocast(low={self.low}, high={self.high})"

    def __call__(self, op: Op, nodes: list[Any], inputs: tuple) -> tuple[list[Any], tuple]:
        if op.autocast is None:
            return nodes, inputs
        target = self.low if op.autocast == "low" else self.high
        new_nodes, new_inputs = list(nodes), list(inputs)
        for i, node in enumerate(nodes):
            if (
                isinstance(node, Node)
                and node.type.dtype is not target
                and node.type.dtype.name in _NARROW
            ):
                new_inputs[i] = OPS["cast"](inputs[i], dtype=target)
                new_nodes[i] = new_inputs[i]._node
        return new_nodes, tuple(new_inputs)


class autocast(ContextDecorator):
    """Run ops in low precision where that is safe, and in high where it is needed.

    Matrix products and convolutions get their float inputs in the low precision; losses, norms, exponentials and
    sums in the high one; other ops take what comes. Use it as ``with autocast():`` or ``@autocast()``.

    Parameters
    ----------
    enabled : bool, default True
        False switches an outer autocast off.
    low_prec_dtype : str, default "float16"
        Or ``"bfloat16"``.
    high_prec_dtype : str, default "float32"

    Raises
    ------
    DTypeError
        A dtype is not a float of at most 32 bits.

    Notes
    -----
    float64 tensors are left alone. Parameters keep their dtype, and so do their gradients.

    Examples
    --------
    >>> x = ones((2, 2))
    >>> with mge.amp.autocast():
    ...     y = x @ x
    >>> y.dtype
    mge.float16
    """

    def __init__(
        self,
        enabled: bool = True,
        low_prec_dtype: str = "float16",
        high_prec_dtype: str = "float32",
    ) -> None:
        self.enabled = enabled
        self.low_prec_dtype, self.high_prec_dtype = low_prec_dtype, high_prec_dtype
        dtypes = as_dtype(low_prec_dtype), as_dtype(high_prec_dtype)
        for dtype in dtypes:
            if dtype.name not in _NARROW:
                raise DTypeError(
                    f"autocast: {dtype} was given; it must be one of {', '.join(_NARROW)}"
                )
        self._cast = _Cast(*dtypes) if enabled else None
        self._outer: list[Callable | None] = []

    def __enter__(self) -> autocast:
        self._outer.append(MODE.get().cast)
        _switch(self._cast)
        return self

    def __exit__(self, *exception: Any) -> None:
        _switch(self._outer.pop())

    def _recreate_cm(self) -> autocast:
        # A decorated function may run in several threads, each with a context of its own.
        return autocast(self.enabled, self.low_prec_dtype, self.high_prec_dtype)


class GradScaler:
    """Scales losses up, so that float16 gradients do not vanish, and gradients down.

    Scale, counter and the flag for infinite or NaN gradients are tensors, and no value is read: a step whose
    gradients overflowed is recorded like any other, and ``Optimizer.step`` keeps the old values in it.

    Parameters
    ----------
    init_scale : float, default 16.0
    growth_factor : float, default 2.0
        By which the scale is multiplied after ``growth_interval`` good steps; 0 leaves it.
    backoff_factor : float, default 0.5
        By which the scale is multiplied after a bad step.
    growth_interval : int, default 2000
        0 keeps the scale and checks nothing.

    Notes
    -----
    MegEngine sets bad gradients to None, which reads a value; here they stay, and the next step ignores them.

    Sources
    -------
    Micikevicius et al., Mixed Precision Training, ICLR 2018, arXiv:1710.03740, section 3.2.

    Examples
    --------
    >>> weight = Parameter([1.0])
    >>> gm = mge.autodiff.GradManager().attach(weight)
    >>> scaler = mge.amp.GradScaler()
    >>> with gm:
    ...     scaler.backward(gm, (weight * 3.0).sum())
    >>> weight.grad
    Tensor([3.], dtype=float32, device=ref:0)
    """

    def __init__(
        self,
        init_scale: float = 2.0**4,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        if (
            init_scale <= 0
            or growth_factor < 0
            or not 0 < backoff_factor <= 1
            or growth_interval < 0
        ):
            raise ArgumentError(
                f"GradScaler: init_scale is {init_scale}, growth_factor {growth_factor}, backoff_factor "
                f"{backoff_factor} and growth_interval {growth_interval}; the scale must be positive, the backoff in "
                "(0, 1], the others not negative"
            )
        self.growth_factor, self.backoff_factor = float(growth_factor), float(backoff_factor)
        self.growth_interval = int(growth_interval)
        self._scale = Tensor(float(init_scale))
        self._growth = Tensor(0)
        self._found_inf = Tensor(False)

    @property
    def scale_factor(self) -> Tensor:
        """The scale, as a 0-d tensor; set it with a number or a tensor."""
        return Tensor.from_node(self._scale._node)

    @scale_factor.setter
    def scale_factor(self, value: float | Tensor) -> None:
        self._scale.set_value(value)

    def backward(
        self,
        gm: GradManager,
        y: Tensor | Sequence[Tensor] | None = None,
        dy: Tensor | Sequence[Tensor] | None = None,
        *,
        unscale_grad: bool = True,
        update_scale: bool | str = "if_unscale_grad",
    ) -> None:
        """Run ``gm.backward`` with scaled gradients, then unscale and update.

        Parameters
        ----------
        gm : GradManager
        y, dy : Tensor or sequence of Tensor, optional
            As for ``GradManager.backward``; ``dy`` is multiplied by the scale.
        unscale_grad : bool, default True
            False: gradients stay scaled, as when they are summed over several batches.
        update_scale : bool, default True
            Whether to ``update`` after unscaling; it does nothing without ``unscale_grad``.
        """
        ys: list[Any] = [] if y is None else list(y) if isinstance(y, (list, tuple)) else [y]
        dys: list[Any] = (
            [None] * len(ys) if dy is None else list(dy) if isinstance(dy, (list, tuple)) else [dy]
        )
        scaled = []
        for each, given in zip(ys, dys, strict=True):
            scale = _like(self._scale, each)
            scaled.append(F.broadcast_to(scale, each.shape) if given is None else given * scale)
        gm.backward(ys, scaled)
        if unscale_grad:
            self.unscale(gm.attached_tensors())
            if update_scale:
                self.update()

    def unscale(self, grad_tensors: Iterable[Tensor]) -> GradScaler:
        """Divide gradients by the scale, note infinite and NaN ones; returns the scaler.

        Parameters
        ----------
        grad_tensors : iterable of Tensor
            The tensors whose ``.grad`` the backward pass set; those without one are skipped.
        """
        chosen = [t for t in grad_tensors if t is not None and t.grad is not None]
        if not chosen:
            return self
        inverse: Any = 1.0 / self._scale
        found = None
        by_device: dict[Any, list[Tensor]] = {}
        for tensor in chosen:
            by_device.setdefault(tensor.device, []).append(tensor)
        for device, some in by_device.items():
            scaled = scale_all(*[t.grad for t in some], inverse.to(device))
            for tensor, grad in zip(some, scaled if isinstance(scaled, tuple) else (scaled,)):
                tensor.grad = grad
            if self.growth_interval:
                bad = F.logical_not(all_finite(*[t.grad for t in some])).to(self._found_inf.device)
                found = bad if found is None else F.logical_or(found, bad)
        if found is not None:
            self._found_inf._assign(F.logical_or(self._found_inf, found))
            for device, some in by_device.items():
                flag = found.to(device)
                for tensor in some:
                    FOUND_INF[id(tensor)] = weakref.ref(tensor), flag
        return self

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Change the scale by what ``unscale`` found since the last update, or set it.

        Parameters
        ----------
        new_scale : float or Tensor, optional
            Set in place of the rule.
        """
        if not self.growth_interval:
            return
        if new_scale is not None:
            self.scale_factor = new_scale
        else:
            found, growth = self._found_inf, self._growth + 1
            is_grown = F.greater_equal(growth, self.growth_interval)
            grown = F.where(is_grown, self._scale * (self.growth_factor or 1.0), self._scale)
            scale = F.where(found, self._scale * self.backoff_factor, grown)
            if self.growth_factor:
                self._scale._assign(scale)
            self._growth._assign(F.where(F.logical_or(found, is_grown), 0, growth))
        self._found_inf._assign(F.zeros((), dtype="bool", device=self._found_inf.device))

    def state_dict(self) -> dict[str, Any]:
        """Return scale, counter and options as plain numbers; reads the two tensors."""
        return {
            "scale_factor": self._scale.item(),
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
            "_growth_tracker": self._growth.item(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set what ``state_dict`` returned."""
        self.growth_factor, self.backoff_factor = state["growth_factor"], state["backoff_factor"]
        self.growth_interval = state["growth_interval"]
        self._scale.set_value(state["scale_factor"])
        self._growth.set_value(state["_growth_tracker"])


def _like(number: Tensor, tensor: Tensor) -> Tensor:
    """Return a 0-d tensor in the dtype and on the device of another tensor."""
    moved = number if number.device is tensor.device else number.to(tensor.device)
    return moved if moved.dtype == tensor.dtype else moved.astype(tensor.dtype)


def _switch(cast: Callable | None) -> None:
    """Set what casts calls in this context; managers and other modes that were changed inside stay changed."""
    now = MODE.get()
    MODE.set(Mode(now.recording, now.eager, cast, now.memory, now.device))


class _Module(ModuleType):
    """Makes ``mge.amp.enabled`` a live value."""

    @property
    def enabled(self) -> bool:
        """Whether autocast is on in this context."""
        return MODE.get().cast is not None

    @enabled.setter
    def enabled(self, value: bool) -> None:
        _switch(_Cast(float16, float32) if value else None)


enabled: bool  # whether autocast is on in this context; setting it switches autocast on or off
sys.modules[__name__].__class__ = _Module
