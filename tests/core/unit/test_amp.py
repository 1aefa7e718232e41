"""mge.amp: which ops autocast casts, and how GradScaler acts without reading values."""

import threading

import numpy as np
import pytest

import mge
import mge.functional as F
import mge.module as M
from mge import amp, mode
from mge.autodiff import GradManager
from mge.errors import ArgumentError, DTypeError


def ones(*shape, dtype="float32"):
    return mge.tensor(np.ones(shape), dtype=dtype)


# autocast


def test_autocast_runs_products_low_and_sums_high():
    x = ones(2, 2)
    with amp.autocast():
        assert amp.enabled
        y = x @ x
        assert y.dtype == "float16"
        assert F.exp(y).dtype == "float32" and F.softmax(y, axis=1).dtype == "float32"
        assert (y + y).dtype == "float16" and (y + x).dtype == "float32"
        assert F.conv2d(ones(1, 1, 3, 3), ones(1, 1, 2, 2)).dtype == "float16"
    assert not amp.enabled
    assert (x @ x).dtype == "float32"
    np.testing.assert_array_equal(y.numpy(), [[2, 2], [2, 2]])


def test_autocast_takes_other_dtypes_and_leaves_float64_and_integers():
    x = ones(2, 2)
    with amp.autocast(low_prec_dtype="bfloat16"):
        assert (x @ x).dtype == "bfloat16"
        assert (ones(2, 2, dtype="float64") @ ones(2, 2, dtype="float64")).dtype == "float64"
        assert F.sum(mge.tensor([1, 2])).dtype == "int32"
    with pytest.raises(DTypeError, match="int8 was given"):
        amp.autocast(low_prec_dtype="int8")


def test_autocast_nests_and_switches_off():
    x = ones(2, 2)
    with amp.autocast():
        with amp.autocast(enabled=False):
            assert not amp.enabled and (x @ x).dtype == "float32"
        assert (x @ x).dtype == "float16"


def test_autocast_decorates():
    @amp.autocast(low_prec_dtype="bfloat16")
    def product(x):
        return x @ x

    assert product(ones(2, 2)).dtype == "bfloat16" and not amp.enabled


def test_autocast_ends_with_an_error():
    with pytest.raises(ZeroDivisionError), amp.autocast():
        1 / 0  # noqa: B018
    assert not amp.enabled


def test_autocast_is_of_its_thread():
    seen = []
    with amp.autocast():
        thread = threading.Thread(target=lambda: seen.append(amp.enabled))
        thread.start()
        thread.join()
    assert seen == [False]


def test_autocast_enabled_can_be_set():
    amp.enabled = True
    try:
        assert (ones(2, 2) @ ones(2, 2)).dtype == "float16"
    finally:
        amp.enabled = False
    assert not amp.enabled


def test_autocast_keeps_gradients_in_the_dtype_of_the_parameters():
    net = M.Sequential(M.Linear(3, 4), M.ReLU(), M.Linear(4, 2))
    gm = GradManager().attach(net.parameters())
    with amp.autocast(), gm:
        y = net(ones(5, 3))
        assert y.dtype == "float16"
        gm.backward(F.cross_entropy(y, mge.tensor([0, 1, 0, 1, 0])))
    assert mode.MANAGERS.get() == ()
    assert all(p.grad.dtype == "float32" and p.grad.shape == p.shape for p in net.parameters())
    with gm, amp.autocast():
        gm.backward(net(ones(5, 3)).sum())
    assert mode.MANAGERS.get() == () and not amp.enabled


@pytest.mark.parametrize("layer", [M.LSTM(3, 4), M.GRU(3, 4), M.RNN(3, 4)])
def test_autocast_runs_recurrent_layers(layer):
    with amp.autocast():
        output, _ = layer(ones(2, 1, 3))
    np.testing.assert_allclose(output.numpy(), layer(ones(2, 1, 3))[0].numpy(), atol=0.01)


def test_autocast_runs_attention_and_batch_norm():
    net = M.TransformerEncoderLayer(8, 2, 16).eval()
    with amp.autocast():
        y = net(ones(3, 1, 8), is_causal=True)
        M.BatchNorm2d(2)(F.conv2d(ones(1, 1, 3, 3), ones(2, 1, 2, 2)))
    np.testing.assert_allclose(y.numpy(), net(ones(3, 1, 8), is_causal=True).numpy(), atol=0.02)


# GradScaler


def scaled(scaler, values=(1.0, 2.0), factor=3.0, **options):
    """Return a parameter after ``scaler.backward`` of ``sum(weight * factor)``."""
    weight = mge.Parameter(list(values))
    gm = GradManager().attach(weight)
    with gm:
        scaler.backward(gm, (weight * factor).sum(), **options)
    return weight


def test_scaler_unscales_what_it_scaled():
    np.testing.assert_array_equal(scaled(amp.GradScaler()).grad.numpy(), [3, 3])
    np.testing.assert_array_equal(
        scaled(amp.GradScaler(), unscale_grad=False).grad.numpy(), [48, 48]
    )
    weight = scaled(amp.GradScaler(), dy=mge.tensor(0.5))
    np.testing.assert_array_equal(weight.grad.numpy(), [1.5, 1.5])


def test_scaler_takes_several_results():
    weight = mge.Parameter([1.0, 2.0])
    gm, scaler = GradManager().attach(weight), amp.GradScaler()
    with gm:
        scaler.backward(gm, [(weight * 2).sum(), weight * 1.0])
    np.testing.assert_array_equal(weight.grad.numpy(), [3, 3])


def test_scaler_backs_off_and_grows():
    scaler = amp.GradScaler(growth_interval=2)
    scaled(scaler, factor=float("inf"))
    assert scaler.scale_factor.item() == 8
    scaled(scaler)
    assert scaler.scale_factor.item() == 8
    scaled(scaler)
    assert scaler.scale_factor.item() == 16
    scaled(scaler)
    scaled(scaler, factor=float("nan"))
    scaled(scaler)
    assert scaler.scale_factor.item() == 8 and scaler.state_dict()["_growth_tracker"] == 1


def test_scaler_update_can_wait_and_can_be_told():
    scaler = amp.GradScaler()
    scaled(scaler, factor=float("inf"), update_scale=False)
    scaled(scaler, update_scale=False)
    scaler.update()
    assert scaler.scale_factor.item() == 8
    scaler.update(new_scale=4.0)
    assert scaler.scale_factor.item() == 4
    scaler.update(new_scale=mge.tensor(2.0))
    assert scaler.scale_factor.item() == 2


def test_scaler_without_interval_or_growth_keeps_the_scale():
    scaler = amp.GradScaler(growth_interval=0)
    assert "found_inf" not in (getattr(scaled(scaler, factor=float("inf")), "_notes", None) or {})
    assert scaler.scale_factor.item() == 16
    scaler = amp.GradScaler(growth_factor=0, growth_interval=1)
    scaled(scaler)
    assert scaler.scale_factor.item() == 16


def test_scaler_state_round_trips():
    scaler = amp.GradScaler(32.0, growth_interval=3)
    scaled(scaler)
    other = amp.GradScaler()
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict()
    assert other.state_dict()["scale_factor"] == 32 and other.state_dict()["_growth_tracker"] == 1
    with pytest.raises(ArgumentError, match="init_scale is 0"):
        amp.GradScaler(0)


def test_scaler_never_reads(monkeypatch):
    scaler = amp.GradScaler(growth_interval=1)
    weight = mge.Parameter([1.0, 2.0])
    reads = []
    monkeypatch.setattr(mge.Tensor, "_value", lambda self: reads.append(self))
    gm = GradManager().attach(weight)
    for _ in range(2):
        with gm:
            scaler.backward(gm, (weight * 3.0).sum())
    assert not reads
