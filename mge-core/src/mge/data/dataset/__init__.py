"""Data sets: what a sample is, and how many there are.

In: arrays, files or a stream. Out: samples, by index or in order.
Before ``sampler`` and ``dataloader``.
"""

from .dataset import ArrayDataset, ConcatDataset, Dataset, StreamDataset
from .mnist import MNIST

__all__ = ["Dataset", "StreamDataset", "ArrayDataset", "ConcatDataset", "MNIST"]
