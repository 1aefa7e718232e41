"""A small network, and the way through a file and back: what the tests of model files share."""

import io

import numpy as np

import mge.functional as F
import mge.module as M
from mge.modelfile import load_model


def dumped(function, **options):
    """Return the loaded form of a traced function that has run."""
    file = io.BytesIO()
    function.dump(file, **options)
    file.seek(0)
    return load_model(file)


def bits(x):
    return np.asarray(x.numpy()).tobytes()


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.conv = M.Conv2d(3, 4, 3)
        self.bn = M.BatchNorm2d(4)
        self.fc = M.Linear(16, 5)

    def forward(self, x):
        return self.fc(F.flatten(F.relu(self.bn(self.conv(x))), 1))
