"""Learning rates that change from epoch to epoch.

In: an optimizer. Out: schedulers that set ``lr`` in its parameter groups.
After ``optimizer``; before ``__init__``.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

from ..errors import ArgumentError, DTypeError
from .optimizer import Optimizer


class LRScheduler:
    """The base of schedulers: subclasses write ``get_lr``.

    Parameters
    ----------
    optimizer : Optimizer
    current_epoch : int, default -1
        -1 starts: each group's ``lr`` becomes its ``initial_lr``. Another number resumes.

    Attributes
    ----------
    base_lrs : list of float
        ``initial_lr`` of each group.
    """

    _saved: tuple[str, ...] = ("current_epoch",)

    def __init__(self, optimizer: Optimizer, current_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise DTypeError(
                f"{type(self).__name__}: optimizer is a {type(optimizer).__name__}; it must be an Optimizer"
            )
        self.optimizer, self.current_epoch = optimizer, current_epoch
        for i, group in enumerate(optimizer.param_groups):
            if current_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise ArgumentError(
                    f"{type(self).__name__}: to resume, param_groups[{i}] needs 'initial_lr'"
                )
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.step()

    def get_lr(self) -> list[float]:
        """Return the learning rate of each group at ``current_epoch``."""
        raise NotImplementedError(f"{type(self).__name__}.get_lr is not written")

    def step(self, epoch: int | None = None) -> None:
        """Go to the next epoch, or to ``epoch``, and set the learning rates."""
        self.current_epoch = self.current_epoch + 1 if epoch is None else epoch
        for group, lr in zip(self.optimizer.param_groups, self.get_lr()):
            group["lr"] = lr

    def state_dict(self) -> dict[str, Any]:
        """Return what ``load_state_dict`` needs: plain numbers and lists."""
        return {name: getattr(self, name) for name in self._saved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set what ``state_dict`` returned; the optimizer keeps the learning rates."""
        missing = [name for name in self._saved if name not in state_dict]
        if missing:
            raise ArgumentError(
                f"load_state_dict: {', '.join(missing)} is missing; needed are {', '.join(self._saved)}"
            )
        for name in self._saved:
            setattr(self, name, state_dict[name])


class MultiStepLR(LRScheduler):
    """Multiply the learning rate by ``gamma`` at each milestone.

    Parameters
    ----------
    optimizer : Optimizer
    milestones : iterable of int
        Epochs, increasing.
    gamma : float, default 0.1
    current_epoch : int, default -1

    Examples
    --------
    >>> opt = SGD([Parameter([1.0])], lr=1.0)
    >>> scheduler = MultiStepLR(opt, [1, 2])
    >>> scheduler.step()
    >>> opt.param_groups[0]["lr"]
    0.1
    """

    _saved = ("milestones", "gamma", "current_epoch")

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Iterable[int],
        gamma: float = 0.1,
        current_epoch: int = -1,
    ) -> None:
        self.milestones, self.gamma = list(milestones), gamma
        if self.milestones != sorted(self.milestones):
            raise ArgumentError(
                f"MultiStepLR: milestones are {self.milestones}; they must increase"
            )
        super().__init__(optimizer, current_epoch)

    def get_lr(self) -> list[float]:
        factor = self.gamma ** bisect_right(self.milestones, self.current_epoch)
        return [lr * factor for lr in self.base_lrs]


class StepLR(LRScheduler):
    """Multiply the learning rate by ``gamma`` every ``step_size`` epochs.

    Parameters
    ----------
    optimizer : Optimizer
    step_size : int
    gamma : float, default 0.1
    current_epoch : int, default -1
    """

    _saved = ("step_size", "gamma", "current_epoch")

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, current_epoch: int = -1
    ) -> None:
        if step_size < 1:
            raise ArgumentError(f"StepLR: step_size is {step_size}; it must be at least 1")
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, current_epoch)

    def get_lr(self) -> list[float]:
        return [lr * self.gamma ** (self.current_epoch // self.step_size) for lr in self.base_lrs]


class ExponentialLR(LRScheduler):
    """Multiply the learning rate by ``gamma`` every epoch.

    Parameters
    ----------
    optimizer : Optimizer
    gamma : float
    current_epoch : int, default -1
    """

    _saved = ("gamma", "current_epoch")

    def __init__(self, optimizer: Optimizer, gamma: float, current_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, current_epoch)

    def get_lr(self) -> list[float]:
        return [lr * self.gamma**self.current_epoch for lr in self.base_lrs]


class CosineAnnealingLR(LRScheduler):
    """Let the learning rate fall to ``eta_min`` along half a cosine.

    ``lr = eta_min + (initial_lr - eta_min) * (1 + cos(pi * epoch / T_max)) / 2``

    Parameters
    ----------
    optimizer : Optimizer
    T_max : int
    eta_min : float, default 0.0
    current_epoch : int, default -1

    Sources
    -------
    Loshchilov and Hutter, SGDR, ICLR 2017, arXiv:1608.03983, equation 5.
    """

    _saved = ("T_max", "eta_min", "current_epoch")

    def __init__(
        self,
        optimizer: Optimizer,
        T_max: int,
        eta_min: float = 0.0,
        current_epoch: int = -1,
    ) -> None:
        if T_max < 1:
            raise ArgumentError(f"CosineAnnealingLR: T_max is {T_max}; it must be at least 1")
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, current_epoch)

    def get_lr(self) -> list[float]:
        share = (1 + math.cos(math.pi * self.current_epoch / self.T_max)) / 2
        return [self.eta_min + (lr - self.eta_min) * share for lr in self.base_lrs]
