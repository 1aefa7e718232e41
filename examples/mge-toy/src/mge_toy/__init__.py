"""Device ``toy``: a few kernels in NumPy. What it lacks runs on ``ref``, and mge says so in one line."""

import numpy as np

from mge.plugin import HostBackend


def relu(inputs, outputs):
    np.maximum(inputs[0], 0, out=outputs[0])


def matmul(inputs, outputs, transpose_a=False, transpose_b=False):
    x, y = inputs
    x = np.swapaxes(x, -1, -2) if transpose_a else x
    y = np.swapaxes(y, -1, -2) if transpose_b else y
    np.matmul(x, y, out=outputs[0])


class Toy(HostBackend):
    MGE_PLUGIN_API = (1, 0)
    name = "toy"
    dtypes = ("float32", "float64", "bool")
    kernels = {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "div": np.divide,
        "neg": np.negative,
        "exp": np.exp,
        "maximum": np.maximum,
        "relu": relu,
        "matmul": matmul,
    }
