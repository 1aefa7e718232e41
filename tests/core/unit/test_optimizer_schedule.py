"""mge.optimizer: limits on gradients, and learning rates that change."""

import math

import numpy as np
import pytest

import mge
import mge.optimizer as optim
from mge.errors import ArgumentError, DTypeError


def optimizer(lr=1.0):
    params = [mge.Parameter(np.ones(shape)) for shape in ((3,), (2, 2), ())]
    return params, optim.SGD(params, lr=lr)


# Clipping.


@pytest.mark.parametrize("ord", [1.0, 2.0, 3.0, math.inf])
def test_clip_grad_norm_scales_all_gradients(rng, ord):
    params, _ = optimizer()
    grads = [rng.normal(size=p.shape).astype(np.float32) for p in params]
    for p, g in zip(params, grads):
        p.grad = mge.tensor(g)
    norm = np.linalg.norm(np.concatenate([g.ravel() for g in grads]), ord)
    found = optim.clip_grad_norm(params, 0.5, ord)
    assert isinstance(found, mge.Tensor)
    np.testing.assert_allclose(found.numpy(), norm, rtol=1e-5)
    for p, g in zip(params, grads):
        np.testing.assert_allclose(p.grad.numpy(), g * min(1, 0.5 / norm), rtol=1e-5)


def test_clip_grad_norm_leaves_small_gradients_and_none():
    a, b = mge.Parameter([1.0]), mge.Parameter([1.0])
    a.grad = mge.tensor([0.5])
    assert optim.clip_grad_norm([a, b], 1.0).item() == 0.5
    assert a.grad.item() == 0.5 and b.grad is None
    assert optim.clip_grad_norm([b], 1.0).item() == 0
    with pytest.raises(ArgumentError, match="ord is 0"):
        optim.clip_grad_norm([a], 1.0, 0)


def test_clip_grad_value_clips_elements():
    w = mge.Parameter([1.0, 1.0, 1.0])
    w.grad = mge.tensor([-3.0, 0.5, 3.0])
    optim.clip_grad_value(w, -1, 2)
    np.testing.assert_array_equal(w.grad.numpy(), [-1, 0.5, 2])
    with pytest.raises(ArgumentError, match="lower is 2"):
        optim.clip_grad_value(w, 2, 1)


# Schedulers.


def rates(opt, scheduler, n):
    found = []
    for _ in range(n):
        found.append(opt.param_groups[0]["lr"])
        scheduler.step()
    return found


@pytest.mark.parametrize(
    ("scheduler", "expected"),
    [
        (lambda o: optim.MultiStepLR(o, [1, 3]), [1, 0.1, 0.1, 0.01, 0.01]),
        (lambda o: optim.StepLR(o, 2, 0.5), [1, 1, 0.5, 0.5, 0.25]),
        (lambda o: optim.ExponentialLR(o, 0.5), [1, 0.5, 0.25, 0.125, 0.0625]),
        (lambda o: optim.CosineAnnealingLR(o, 4, 0.5), [1, 0.9267767, 0.75, 0.5732233, 0.5]),
    ],
)
def test_scheduler_sets_learning_rates(scheduler, expected):
    _, opt = optimizer(1.0)
    made = scheduler(opt)
    np.testing.assert_allclose(rates(opt, made, 5), expected, rtol=1e-6)
    np.testing.assert_allclose(
        opt.param_groups[0].tensor("lr").item(), opt.param_groups[0]["lr"], rtol=1e-6
    )


def test_scheduler_resumes():
    _, opt = optimizer(1.0)
    scheduler = optim.MultiStepLR(opt, [2], 0.5)
    scheduler.step()
    _, other = optimizer(0.3)
    again = optim.MultiStepLR(other, [9])
    other.load_state_dict(opt.state_dict())
    again.load_state_dict(scheduler.state_dict())
    again.base_lrs = scheduler.base_lrs
    again.step()
    assert other.param_groups[0]["lr"] == 0.5 and again.current_epoch == 2
    assert optim.MultiStepLR(other, [2], 0.5, current_epoch=0).current_epoch == 1
    with pytest.raises(ArgumentError, match="milestones, gamma is missing"):
        again.load_state_dict({"current_epoch": 1})
    with pytest.raises(ArgumentError, match="needs 'initial_lr'"):
        optim.StepLR(optimizer(1.0)[1], 2, current_epoch=3)


def test_scheduler_checks_its_arguments():
    _, opt = optimizer(1.0)
    with pytest.raises(ArgumentError, match="must increase"):
        optim.MultiStepLR(opt, [3, 1])
    with pytest.raises(ArgumentError, match="step_size is 0"):
        optim.StepLR(opt, 0)
    with pytest.raises(ArgumentError, match="T_max is 0"):
        optim.CosineAnnealingLR(opt, 0)
    with pytest.raises(DTypeError, match="must be an Optimizer"):
        optim.StepLR(3, 1)
