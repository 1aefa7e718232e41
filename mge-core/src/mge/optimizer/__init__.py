"""Optimizers, learning-rate schedulers and limits on gradients.

In: parameters with gradients. Out: updated parameters; no step reads a value.
After ``module``; used by training loops.
"""

from .adam import LAMB, Adam, AdamW, LAMBFp16
from .adaptive import Adadelta, Adagrad
from .clip_grad import clip_grad_norm, clip_grad_value
from .lr_scheduler import CosineAnnealingLR, ExponentialLR, LRScheduler, MultiStepLR, StepLR
from .optimizer import Optimizer, ParamGroup
from .sgd import SGD

__all__ = [
    "LAMB",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "CosineAnnealingLR",
    "ExponentialLR",
    "LAMBFp16",
    "LRScheduler",
    "MultiStepLR",
    "Optimizer",
    "ParamGroup",
    "StepLR",
    "clip_grad_norm",
    "clip_grad_value",
]
