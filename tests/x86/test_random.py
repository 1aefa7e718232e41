"""Random numbers of device x86: the stream of the references, bit by bit."""

import numpy as np
import pytest

from mge.device import as_device
from mge.dtype import DTYPES
from mge.op import OPS
from mge.testing.cases import admit

from .against import check

pytestmark = pytest.mark.usefixtures("x86")

COUNTERS = [0, 1, 2, 3, 1021, 2**34 - 3, 2**64 - 5]


@pytest.mark.parametrize("counter", COUNTERS)
@pytest.mark.parametrize("n", [1, 5, 1023, 1025, 20_001])
def test_the_stream_is_that_of_the_reference(counter, n):
    state = np.array([2**40 + 77, counter], np.uint64)
    check("random_bits", [state], {"shape": (n,)})
    check("keyed_dropout", [np.linspace(-2, 2, n).astype(np.float32), state], {"drop_prob": 0.3})
    check("permutation", [state], {"n": min(n, 3000)})


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_uniform_has_the_same_bits_and_normal_is_near(name):
    state = np.array([9, 2**33 + 1], np.uint64)
    for n in (1, 6, 4097):
        attrs = {"shape": (n,), "low": -1.3, "high": 2.7, "dtype": DTYPES[name]}
        sig = admit(OPS["uniform"], "", (state,), attrs, as_device("x86:0")).sig
        y = np.empty(n, DTYPES[name].dtype)
        sig.device.kernel(sig)([state], [y], None)
        assert y.tobytes() == OPS["uniform"]._reference(state, **attrs).tobytes()
        check("normal", [state], {"shape": (n,), "dtype": DTYPES[name], "mean": 2.0, "std": 0.3})
