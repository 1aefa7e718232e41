"""``MGE_DETERMINISTIC=1``: compiled plans, calls one by one, and every number of threads give the same bits."""

import pytest

PROGRAM = """
import hashlib, sys
import numpy as np
import mge, mge.functional as F
from mge.autodiff import GradManager
from mge.cache import PLANS
from mge.optimizer import SGD
from tests.x86 import models

SMALL = {
    "resnet": (lambda: models.ResNet((1, 1), width=16, classes=5), (2, 3, 32, 32)),
    "mobilenet": (lambda: models.MobileNetV2(5, ((1, 8, 1, 1), (6, 12, 2, 2)), last=20), (2, 3, 32, 32)),
    "vgg": (lambda: models.VGG(((8, 1), (16, 2)), 16, 20, 5), (2, 3, 16, 16)),
    "vit": (lambda: models.ViT(32, 8, 24, 2, 2, 5), (2, 3, 32, 32)),
    "mlp": (lambda: models.mlp(30, 20, 5), (20, 30)),
}
make, shape = SMALL[sys.argv[1]]


def digest(compiled):
    rng = np.random.default_rng(0)
    mge.random.seed(0)
    module = make()
    parameters = list(module.parameters())
    manager, optimizer = GradManager().attach(parameters), SGD(parameters, lr=0.02, momentum=0.9)
    x = mge.tensor(rng.normal(size=shape).astype("float32"))
    label = mge.tensor(rng.integers(0, 5, shape[0]))
    found = []
    for _ in range(4):
        if not compiled:
            PLANS.clear()
        with manager:
            loss = F.cross_entropy(module(x), label)
            manager.backward(loss)
        optimizer.step().clear_grad()
        found.append(loss.numpy())
    module.eval()
    for _ in range(3):
        if not compiled:
            PLANS.clear()
        found.append(module(x).numpy())
    found += [p.numpy() for p in parameters]
    return hashlib.sha256(b"".join(a.tobytes() for a in found)).hexdigest()


print(digest(False), digest(True))
"""


@pytest.mark.parametrize("name", ["resnet", "mobilenet", "vgg", "vit", "mlp"])
def test_all_ways_of_running_give_the_same_bits(run_python, x86, name):
    settings = {"MGE_DEVICE": x86, "MGE_DETERMINISTIC": "1", "MGE_FALLBACK": "allow"}
    digests = set()
    for threads in ("1", "3"):
        printed = run_python("-c", PROGRAM, name, MGE_THREADS=threads, **settings)
        digests |= {*printed.split()}
    assert len(digests) == 1
