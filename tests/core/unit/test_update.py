"""Updates beyond what the generated tests say: found_inf, writing over the inputs, blocks, errors."""

import numpy as np
import pytest

import mge
from mge.errors import ArgumentError, DTypeError, ShapeError
from mge.op import OPS
from mge.ops.multi_tensor import BLOCK

UPDATES = [
    "sgd_update",
    "adam_update",
    "adamw_update",
    "adagrad_update",
    "adadelta_update",
    "lamb_update",
]
STATES = {"sgd_update": 1, "adagrad_update": 1}
SHAPES = [(3, 4), (), (2 * BLOCK + 5,)]


def inputs_of(name, rng, dtype=np.float32, found_inf=None):
    count = len(SHAPES)
    states = STATES.get(name, 2)
    arrays = [rng.normal(size=s).astype(dtype) for _ in range(2) for s in SHAPES]
    wide = np.float32 if np.dtype(dtype).itemsize == 2 else dtype
    arrays += [rng.uniform(0.1, 1, size=s).astype(wide) for _ in range(states) for s in SHAPES]
    if name not in ("sgd_update", "adadelta_update"):
        arrays.append(np.array(4, np.int32))
    arrays += [np.array(0.1, wide), np.array(0.01, wide)]
    attrs = {"count": count}
    if name == "sgd_update":
        arrays.append(np.array(0.9, wide))
        attrs["use_momentum"] = True
    if found_inf is not None:
        arrays.append(np.array(found_inf))
        attrs["has_found_inf"] = True
    return arrays, attrs


def call(name, arrays, attrs):
    found = OPS[name](*[mge.tensor(a, dtype=a.dtype) for a in arrays], **attrs)
    return [f.numpy() for f in found]


def pairs_of(name, arrays, attrs):
    made = OPS[name](*[mge.tensor(a, dtype=a.dtype) for a in arrays], **attrs)
    sig = made[0]._node.inputs[0].sig
    return OPS[name].pairs(sig)


@pytest.mark.parametrize("name", UPDATES)
def test_update_with_found_inf_changes_nothing(rng, name):
    arrays, attrs = inputs_of(name, rng, found_inf=True)
    for i, o in pairs_of(name, arrays, attrs):
        np.testing.assert_array_equal(call(name, arrays, attrs)[o], arrays[i])
    clear, _ = inputs_of(name, rng, found_inf=False)
    without = {k: v for k, v in attrs.items() if k != "has_found_inf"}
    for one, two in zip(call(name, clear, attrs), call(name, clear[:-1], without), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", UPDATES)
def test_update_may_write_over_its_inputs(rng, name, dtype):
    arrays, attrs = inputs_of(name, rng, np.dtype(dtype))
    op = OPS[name]
    wanted = call(name, arrays, attrs)
    sources = {o: i for i, o in pairs_of(name, arrays, attrs)}
    assert sorted(sources) == list(range(len(wanted)))
    assert all(arrays[i].shape == wanted[o].shape for o, i in sources.items())
    full = dict(op.normal_attrs(attrs))
    op._reference(*arrays, out=tuple(arrays[sources[o]] for o in range(len(wanted))), **full)
    for o, i in sources.items():
        np.testing.assert_array_equal(arrays[i], wanted[o])


def test_update_counts_steps_by_group_or_by_parameter(rng):
    arrays, attrs = inputs_of("adam_update", rng)
    many = arrays[:-3] + [np.array(n, np.int32) for n in (4, 9, 0)] + arrays[-2:]
    one, each = call("adam_update", arrays, attrs), call("adam_update", many, attrs | {"steps": 3})
    np.testing.assert_array_equal(one[0], each[0])
    assert (one[2] != each[2]).any()
    assert [int(n) for n in each[-3:]] == [5, 10, 1] and int(one[-1]) == 5


def test_update_errors_name_the_input(rng):
    arrays, attrs = inputs_of("sgd_update", rng)
    with pytest.raises(
        ArgumentError, match="11 inputs were given; 3 parameters need 12: params, grads"
    ):
        call("sgd_update", arrays[:-1], attrs)
    wrong = [*arrays]
    wrong[3] = np.zeros((4, 3), np.float32)
    with pytest.raises(ShapeError, match=r"grad 0 has shape \(4, 3\); its parameter has \(3, 4\)"):
        call("sgd_update", wrong, attrs)
    wrong[3] = np.zeros((3, 4), np.int32)
    with pytest.raises(DTypeError, match="grad 0 is int32 and its parameter float32"):
        call("sgd_update", wrong, attrs)
    with pytest.raises(ArgumentError, match="nesterov needs momentum"):
        call("sgd_update", arrays, {"count": 3, "nesterov": True})


def test_global_norm_and_all_finite_of_large_tensors(rng):
    tensors = [rng.normal(size=s).astype(np.float32) for s in SHAPES]
    flat = np.concatenate([t.ravel() for t in tensors]).astype(np.float64)
    given = [mge.tensor(t) for t in tensors]
    assert OPS["global_norm"](*given).item() == pytest.approx(np.linalg.norm(flat), rel=1e-6)
    assert OPS["all_finite"](*given).item()
    tensors[2][-1] = np.nan
    assert not OPS["all_finite"](*[mge.tensor(t) for t in tensors]).item()
