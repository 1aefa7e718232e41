"""MNIST and the data sets that share its files, such as Fashion-MNIST.

In: a folder with IDX files. Out: a data set of images and labels.
After ``idx``.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from mge.errors import FileFormatError

from .dataset import ArrayDataset
from .idx import read_idx


class MNIST(ArrayDataset):
    """Images and labels from MNIST's four IDX files, in a folder.

    Fashion-MNIST, KMNIST and others have files of the same names and form.

    Parameters
    ----------
    root : str or path
        Folder with ``train-images-idx3-ubyte`` and ``train-labels-idx1-ubyte``, or ``t10k-...`` for the
        test part; with or without ``.gz``. Nothing is downloaded.
    train : bool, default True
        The training part, or the test part.

    Raises
    ------
    FileNotFoundError
        The folder or one of the two files is not there.
    FileFormatError
        A file is damaged, is not ``(n, h, w)`` or ``(n,)`` of uint8, or the numbers differ.

    Notes
    -----
    A sample is ``(image, label)``: (h, w, 1) uint8, and int32. ``order`` names them for transforms.

    Examples
    --------
    >>> from mge.data.dataset import MNIST
    >>> MNIST("no/such/folder")
    Traceback (most recent call last):
    FileNotFoundError: MNIST: no train-images-idx3-ubyte in no/such/folder, ...
    """

    order = ("image", "image_category")

    def __init__(self, root: str | os.PathLike[str], train: bool = True) -> None:
        self.root = os.path.expanduser(os.fspath(root))
        self.train = train
        part = "train" if train else "t10k"
        images = self._read(f"{part}-images", ndim=3)
        labels = self._read(f"{part}-labels", ndim=1)
        if len(images) != len(labels):
            raise FileFormatError(
                f"MNIST: {self.root} holds {len(images)} images and {len(labels)} labels ({part}); "
                "their numbers must be equal"
            )
        super().__init__(images[..., np.newaxis], labels.astype(np.int32))

    def _read(self, name: str, ndim: int) -> np.ndarray:
        path = self._find(f"{name}-idx{ndim}-ubyte", f"{name}.idx{ndim}-ubyte")
        array = read_idx(path)
        if array.ndim != ndim or array.dtype != np.uint8:
            raise FileFormatError(
                f"MNIST: {path} holds {array.dtype} of shape {array.shape}; "
                f"it must hold uint8 with {ndim} axes"
            )
        return array

    def _find(self, *names: str) -> Path:
        for name in names:
            for path in (Path(self.root, name), Path(self.root, name + ".gz")):
                if path.is_file():
                    return path
        raise FileNotFoundError(
            f"MNIST: no {names[0]} in {self.root}, with or without .gz\n"
            "  try: download the four files yourself, or install a package that holds them "
            "(Debian: dataset-fashion-mnist)"
        )
