"""The data of ``mge demo``: Fashion-MNIST, digits, or IDX files of the user.

In: a name or a folder. Out: images and labels, to train on and to test with.
Before ``demo``.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np

from ..data.dataset import MNIST
from ..errors import ArgumentError, FileFormatError

FASHION = "/usr/share/datasets/fashion-mnist"  # of Debian's package dataset-fashion-mnist
_TEST_DIGITS = 360  # of 1,797


class Data(NamedTuple):
    """A task of image classification.

    Attributes
    ----------
    name : str
    images, test_images : (n, h, w) uint8
    labels, test_labels : (n,) int32
    epochs, batch_size : int
        What suits it, where the user does not say.
    """

    name: str
    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    epochs: int
    batch_size: int

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return 1 + int(max(self.labels.max(), self.test_labels.max()))


def load(name: str, folder: str | None) -> Data:
    """Return the data set of that name; ``"auto"`` takes the best one that is here.

    Raises
    ------
    ArgumentError
        It is not here; says what to install.
    FileNotFoundError, FileFormatError
        A file of ``folder`` is missing or damaged.
    """
    if folder is not None:
        return _idx(os.path.basename(os.path.normpath(folder)), folder)
    if name == "fashion-mnist" or (name == "auto" and os.path.isdir(FASHION)):
        if not os.path.isdir(FASHION):
            raise ArgumentError(
                f"demo: Fashion-MNIST is not in {FASHION}",
                hint="apt install dataset-fashion-mnist, or --data DIR with its four IDX files",
            )
        return _idx("fashion-mnist", FASHION)
    return _digits()


def _idx(name: str, folder: str) -> Data:
    train, test = MNIST(folder, train=True), MNIST(folder, train=False)
    (images, labels), (test_images, test_labels) = train.arrays, test.arrays
    for part, array in (("training", images), ("test", test_images)):
        if not array.size or array.shape[1:] != images.shape[1:] or min(array.shape[1:3]) < 4:
            raise FileFormatError(
                f"demo: {folder} holds {part} images of shape {array.shape[:3]}; they must be (n, h, w), at least "
                "4 x 4, of one size"
            )
    return Data(
        name, images[..., 0], labels, test_images[..., 0], test_labels, epochs=2, batch_size=100
    )


def _digits() -> Data:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ArgumentError(
            f"demo: there is no data set here: no folder {FASHION}, and no scikit-learn ({error})",
            hint='pip install "mge-core[demo]" (scikit-learn, for its digits), or apt install dataset-fashion-mnist, '
            "or --data DIR with IDX files",
        ) from None
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.images))
    images = digits.images[order].astype(np.uint8)  # 0 to 16
    labels = digits.target[order].astype(np.int32)
    n = len(images) - _TEST_DIGITS
    return Data("digits", images[:n], labels[:n], images[n:], labels[n:], epochs=10, batch_size=32)
