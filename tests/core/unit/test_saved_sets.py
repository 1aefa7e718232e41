"""What gradients read: the values of the forward phase that must be kept for them, and nothing more."""

import numpy as np
import pytest

import mge
from mge.autodiff import GradManager
from mge.device import as_device
from mge.grad import saved_set
from mge.op import OPS
from mge.types import Type

FOUR = (2, 3, 4, 4)  # an image
ONE = (3,)  # a number for each of its channels
ROWS = (4, 6)
WINDOW = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}

SAVED = [  # op, shapes of its inputs, attributes, the inputs and the outputs that its gradient reads
    ("relu", [ROWS], {}, [], [0]),
    ("relu6", [ROWS], {}, [], [0]),
    ("leaky_relu", [ROWS], {}, [], [0]),
    ("leaky_relu", [ROWS], {"negative_slope": -1.0}, [0], []),
    ("elu", [ROWS], {}, [], [0]),
    ("sigmoid", [ROWS], {}, [], [0]),
    ("hsigmoid", [ROWS], {}, [], [0]),
    ("tanh", [ROWS], {}, [], [0]),
    ("exp", [ROWS], {}, [], [0]),
    ("sqrt", [ROWS], {}, [], [0]),
    ("gelu", [ROWS], {}, [0], []),
    ("silu", [ROWS], {}, [0], []),
    ("softmax", [ROWS], {"axis": -1}, [], [0]),
    ("logsoftmax", [ROWS], {"axis": -1}, [], [0]),
    ("add", [ROWS, ROWS], {}, [], []),
    ("sub", [ROWS, ROWS], {}, [], []),
    ("mul", [ROWS, ROWS], {}, [0, 1], []),
    ("div", [ROWS, ROWS], {}, [1], [0]),
    ("mean", [ROWS], {"axis": -1}, [], []),
    ("sum", [ROWS], {"axis": -1}, [], []),
    ("reshape", [ROWS], {"shape": (6, 4)}, [], []),
    ("transpose", [ROWS], {"axes": (1, 0)}, [], []),
    ("concat", [ROWS, ROWS], {"axis": 0}, [], []),
    ("slice", [ROWS], {"starts": (1, 0), "stops": (3, 6), "steps": (1, 1)}, [], []),
    ("matmul", [ROWS, (6, 5)], {}, [0, 1], []),
    ("linear", [ROWS, (5, 6), (5,)], {}, [0, 1], []),
    ("conv", [FOUR, (5, 3, 3, 3)], WINDOW, [0, 1], []),
    ("max_pool", [FOUR], {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0, 0, 0)}, [], [1]),
    ("avg_pool", [FOUR], {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0, 0, 0)}, [], []),
    ("batch_norm_train", [FOUR, ONE, ONE], {}, [0, 1], [1, 2]),
    ("layer_norm", [ROWS, (6,), (6,)], {"axis": (-1,)}, [0, 1], [1, 2]),
    ("rms_norm", [ROWS, (6,)], {}, [0, 1], []),
    ("attention", [ROWS, ROWS, ROWS], {}, [0, 1, 2], []),
    ("lstm_gates", [(4, 24), ROWS], {}, [0, 1], []),
    ("gru_gates", [(4, 18), (4, 18), ROWS], {}, [0, 1, 2], []),
]


def read(name, types, attrs):
    """Return the inputs and the outputs of an op that its recorded gradient reads."""
    op = OPS[name]
    inputs, outputs = saved_set(op.signature(types, op.normal_attrs(attrs), as_device("ref")))
    return list(inputs), list(outputs)


@pytest.mark.parametrize(("name", "shapes", "attrs", "inputs", "outputs"), SAVED)
def test_a_gradient_reads(name, shapes, attrs, inputs, outputs):
    types = [Type(shape, mge.dtype.float32) for shape in shapes]
    assert read(name, types, attrs) == (inputs, outputs)


def test_dropout_keeps_its_key_and_a_loss_its_scores_and_labels(rng):
    x = Type(ROWS, mge.dtype.float32)
    (given, attrs), *_ = OPS["keyed_dropout"]._samples(rng)
    key = Type(given[1].shape, mge.dtype.as_dtype(given[1].dtype))
    assert read("keyed_dropout", [x, key], attrs) == ([1], [])
    labels = Type(ROWS[:1], mge.dtype.int32)
    assert read("softmax_cross_entropy", [x, labels], {}) == ([0, 1], [])


def _slices(x, steps, width):
    return sum((x[t : t + width] * float(t + 1)).sum() for t in range(steps))


@pytest.mark.parametrize("width", [1, 2])
def test_slices_add_up_in_the_gradient(width):
    x = mge.tensor(np.zeros((5, 3), "float32"))
    with GradManager() as manager:
        manager.attach(x)
        manager.backward(_slices(x, 5 - width + 1, width))
    wanted = np.zeros((5, 3), "float32")
    for t in range(5 - width + 1):
        wanted[t : t + width] += t + 1
    np.testing.assert_array_equal(x.grad.numpy(), wanted)


def test_the_gradients_by_many_slices_share_one_array():
    steps, x = 40, mge.tensor(np.ones((40, 256), "float32"))
    manager = GradManager().attach(x)

    @mge.jit.trace
    def step():
        with manager:
            manager.backward(_slices(x, steps, 1))
        return x.grad

    step()
    names = [s.slot.node.sig.op.name for s in step._last_plan("memory").plan.steps]
    assert names.count("slice_set") == steps
    assert step._last_plan("memory").plan.peak_bytes < 4 * x.size * 4
