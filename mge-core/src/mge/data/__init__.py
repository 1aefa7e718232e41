"""Read samples, make batches of them, and transform them on the way.

In: a data set. Out: batches of NumPy arrays, in the sampler's order, loaded by worker processes where asked for.
Interface layer: uses ``errors`` and ``debug`` alone, so that a worker process starts quickly.
"""

from . import dataset, transform
from .collator import Collator
from .dataloader import DataLoader
from .dataset import ArrayDataset, ConcatDataset, Dataset, StreamDataset
from .failure import LoaderTimeout, WorkerError
from .sampler import (
    Infinite,
    MapSampler,
    RandomSampler,
    ReplacementSampler,
    Sampler,
    SequentialSampler,
    StreamSampler,
)
from .seeding import current_rng
from .worker_info import WorkerInfo, get_worker_info

__all__ = [
    "Dataset", "StreamDataset", "ArrayDataset", "ConcatDataset",
    "Sampler", "MapSampler", "SequentialSampler", "RandomSampler", "ReplacementSampler",
    "Infinite", "StreamSampler",
    "DataLoader", "Collator", "current_rng", "WorkerInfo", "get_worker_info",
    "WorkerError", "LoaderTimeout",
    "dataset", "transform",
]  # fmt: skip
