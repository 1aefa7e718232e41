"""Softmax and cross entropy of device x86 against the references."""

import numpy as np
import pytest

from mge.device import as_device
from mge.errors import IndexRangeError
from mge.op import OPS
from mge.testing.cases import admit

from .against import check

pytestmark = pytest.mark.usefixtures("x86")

CASES = [((3, 7), 1), ((65, 1000), 1), ((197, 197), 1), ((4, 3, 50), 1), ((2, 19, 13, 11), 1), ((5, 70), 0),
         ((3, 17, 4), 2), ((2, 21, 65), 1), ((30, 1), 1)]  # fmt: skip


@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_softmax_along_any_axis(rng, shape, axis, dtype):
    x = (rng.normal(size=shape) * 3).astype(dtype)
    check("softmax", [x], {"axis": axis})
    check("logsoftmax", [x], {"axis": axis})
    rest = shape[:axis] + shape[axis + 1 :]
    label, dy = rng.integers(0, shape[axis], rest), rng.normal(size=rest).astype(dtype)
    for smooth in (0.0, 0.1):
        attrs = {"axis": axis, "label_smooth": smooth}
        check("softmax_cross_entropy", [x, label.astype(np.int32)], attrs)
        check("softmax_cross_entropy_grad", [dy, x, label], attrs)
    check("pick_class", [x, label], {"axis": axis})


def test_infinities_and_nan():
    x = np.array([[np.inf, 1, 2], [-np.inf] * 3, [np.nan, 1, 2], [-np.inf, 1, 2]], np.float32)
    for axis in (0, 1):
        check("softmax", [x], {"axis": axis})
        check("logsoftmax", [x], {"axis": axis})


def test_a_label_out_of_range_is_an_error_before_anything_is_written(rng):
    x, dy = rng.normal(size=(2, 3)).astype(np.float32), np.ones(2, np.float32)
    arrays = (dy, x, np.array([0, 3]))
    sig = admit(OPS["softmax_cross_entropy_grad"], "", arrays, {}, as_device("x86:0")).sig
    y = np.full((2, 3), 7, np.float32)
    with pytest.raises(IndexRangeError, match="a label is 3; pred has 3 classes"):
        sig.device.kernel(sig)(list(arrays), [y], None)
    assert (y == 7).all()
