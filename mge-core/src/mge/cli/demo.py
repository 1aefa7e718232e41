"""``mge demo``: train a small network, save it, and check the file in a fresh process.

In: options. Out: loss and test accuracy of each epoch, as text and as one line of JSON; the model file.
After ``demo_data`` and ``infer``; before ``command``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
from tqdm import tqdm

from .. import functional as F
from .. import module as M
from .. import random
from ..autodiff import GradManager
from ..data import ArrayDataset, DataLoader, RandomSampler
from ..debug import debug
from ..device import default_device, set_default_device
from ..jit import trace
from ..optimizer import SGD
from ..tensor import Tensor, tensor
from ..threads import limit_threads
from . import demo_data
from .demo_data import Data
from .infer import by_batches
from .options import at_least, show_bytes

RATE = 0.05  # learning rate at the start; it falls to 0 in a straight line
MOMENTUM = 0.9
TEST_BATCH = 360


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mge demo``."""
    parser.description = (
        "Train a small convolutional network, print loss and test accuracy of each epoch, save the model, and check "
        "that a fresh process computes the same from the file. The data are Fashion-MNIST where Debian's package "
        "dataset-fashion-mnist is installed, else scikit-learn's digits."
    )
    parser.add_argument(
        "--data", metavar="DIR", help="a folder with MNIST's four IDX files, with or without .gz"
    )
    parser.add_argument("--dataset", choices=["auto", "fashion-mnist", "digits"], default="auto")
    parser.add_argument(
        "--device", metavar="NAME", help="as ref:0; default: MGE_DEVICE, or the best one"
    )
    parser.add_argument("--epochs", type=at_least(1), metavar="N", help="default: 2, for digits 10")
    parser.add_argument(
        "--batch-size", type=at_least(1), metavar="N", help="default: 100, for digits 32"
    )
    parser.add_argument("--seed", type=at_least(0), default=0, metavar="N")
    parser.add_argument("--out", metavar="FILE", help="keep the model here, as demo.mge")
    parser.add_argument(
        "--json", action="store_true", help="print the figures as one line of JSON at the end"
    )


def run(arguments: argparse.Namespace) -> int:
    """Train and check; return 0, or 1 where the fresh process computes something else."""
    if arguments.device:
        set_default_device(arguments.device)
    # Matrix products as small as these gain little from a second BLAS thread, and lose ten times as much where
    # other processes want the cores. The fresh process inherits the limit.
    limit_threads(debug.threads or 1)
    start = time.perf_counter()
    data = demo_data.load(arguments.dataset, arguments.data)
    epochs, batch_size = arguments.epochs or data.epochs, arguments.batch_size or data.batch_size
    batch_size = min(batch_size, len(data.images))
    random.seed(arguments.seed)
    net = Net(data)
    height, width = data.images.shape[1:]
    count, tests = len(data.images), len(data.test_images)
    print(f"{data.name}: {count:,} images of {height} x {width} to train on, {tests:,} to test")
    count = sum(p.size for p in net.parameters())
    print(
        f"network: {count:,} parameters, on {default_device()}, batches of {batch_size}", flush=True
    )
    training = Training(net, data, epochs, batch_size, arguments.seed)
    accuracy = 0.0
    for epoch in range(epochs):
        begin = time.perf_counter()
        loss = training.epoch(epoch)
        accuracy = float(np.mean(training.scores(data.test_images).argmax(1) == data.test_labels))
        seconds = time.perf_counter() - begin
        print(
            f"epoch {epoch + 1}/{epochs}: loss {loss:.4f}, test accuracy {accuracy:.4f}, {seconds:.1f} s",
            flush=True,
        )
    with tempfile.TemporaryDirectory(prefix="mge-demo-") as folder:
        path = arguments.out or os.path.join(folder, "demo.mge")
        training.predict.dump(path, dynamic_batch=True)
        loaded = _scores_of_a_fresh_process(path, data.test_images, folder)
        same = loaded is not None and np.array_equal(loaded, training.scores(data.test_images))
        kept = f"kept in {path}" if arguments.out else "removed again; --out FILE keeps it"
        print(f"model file: {show_bytes(os.path.getsize(path))}, {kept}")
    if loaded is None:
        print("a fresh process failed to run the file")
    else:
        print(
            f"a fresh process computes {'the same scores, bit for bit,' if same else 'OTHER SCORES'} from the file"
        )
    if arguments.json:
        figures = {
            "dataset": data.name,
            "device": str(default_device()),
            "epochs": epochs,
            "batch_size": batch_size,
            "test_accuracy": accuracy,
            "seconds": round(time.perf_counter() - start, 3),
            "predictions_identical": same,
            "plan_peak_bytes": training.peak_bytes,
            "process_peak_bytes": _process_peak_bytes(),
        }
        print(json.dumps(figures))
    return 0 if same else 1


class Net(M.Module):
    """Two convolutions of 5 x 5, each with a max pooling, and a linear layer.

    Parameters
    ----------
    data : Data
        Says the size of images, how many classes there are, and mean and deviation of a pixel.
    """

    def __init__(self, data: Data) -> None:
        super().__init__()
        height, width = data.images.shape[1:]
        sample = data.images[:10_000]
        self.mean, self.deviation = float(sample.mean()), float(sample.std()) or 1.0
        self.conv1 = M.Conv2d(1, 8, 5, padding=2)
        self.conv2 = M.Conv2d(8, 16, 5, padding=2)
        self.head = M.Linear(16 * (height // 4) * (width // 4), data.classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return scores (n, classes) of images (n, h, w) uint8."""
        x = (F.expand_dims(images, 1).astype("float32") - self.mean) / self.deviation
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.head(F.flatten(x, 1))


class Training:
    """One training: the traced step, the traced prediction, and the order of samples.

    Parameters
    ----------
    net : Net
    data : Data
    epochs, batch_size, seed : int
    """

    def __init__(self, net: Net, data: Data, epochs: int, batch_size: int, seed: int) -> None:
        dataset = ArrayDataset(data.images, data.labels)
        sampler = RandomSampler(dataset, batch_size=batch_size, drop_last=True, seed=seed)
        self.loader = DataLoader(dataset, sampler, seed=seed)
        self.batches = len(sampler)
        self.steps, self.done = epochs * self.batches, 0
        self.optimizer = optimizer = SGD(net.parameters(), lr=RATE, momentum=MOMENTUM)
        manager = GradManager().attach(net.parameters())

        @trace
        def step(images: Tensor, labels: Tensor) -> Tensor:
            with manager:
                loss = F.cross_entropy(net(images), labels)
                manager.backward(loss)
            optimizer.step().clear_grad()
            return loss

        @trace
        def predict(images: Tensor) -> Tensor:
            return net(images)

        self.step, self.predict = step, predict

    def epoch(self, number: int) -> float:
        """Train on each sample once; return the mean loss."""
        total = 0.0
        with tqdm(
            total=self.batches, desc=f"epoch {number + 1}", unit="batch", leave=False, disable=None
        ) as bar:
            for images, labels in self.loader:
                self.optimizer.param_groups[0]["lr"] = RATE * (1 - self.done / self.steps)
                loss = self.step(tensor(images), tensor(labels)).item()
                total += loss
                self.done += 1
                bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
                bar.update()
        return total / self.batches

    def scores(self, images: np.ndarray) -> np.ndarray:
        """Return the scores of all images."""
        return by_batches(self.predict, images, min(TEST_BATCH, len(images)))

    @property
    def peak_bytes(self) -> int:
        """The largest peak of the plans of both functions."""
        traced = [
            entry for function in (self.step, self.predict) if (entry := function.last) is not None
        ]
        return max(
            (compiled.plan.peak_bytes for entry in traced for compiled in entry.plans.values()),
            default=0,
        )


def _scores_of_a_fresh_process(path: str, images: np.ndarray, folder: str) -> np.ndarray | None:
    """Return what another Python process computes from the file; None where it fails."""
    given, made = os.path.join(folder, "images.npy"), os.path.join(folder, "scores.npy")
    np.save(given, images)
    words = [
        "-m",
        "mge",
        "--set",
        "view=",
        "run",
        path,
        given,
        "--out",
        made,
        "--device",
        str(default_device()),
    ]
    done = subprocess.run(
        [sys.executable, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    return np.load(made) if done.returncode == 0 else None


def _process_peak_bytes() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
