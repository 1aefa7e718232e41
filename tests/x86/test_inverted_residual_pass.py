"""The pass ``inverted_residual``: which convolutions become one op, and which must not."""

import mge.functional as F
import mge.module as M

from . import models
from .standin import check, counted, inference, stand_in, training  # noqa: F401


def test_blocks_are_found_where_nothing_else_reads_what_is_between():
    stages = ((1, 8, 1, 1), (6, 12, 2, 2))
    make = lambda: models.MobileNetV2(5, stages, last=20)  # noqa: E731
    made = counted(check(*inference(make(), 2, 3, 32, 32)))
    assert made["x86::inverted_residual"] == 2  # the first block does not expand, and is small
    step = counted(check(*training(make(), 2, 3, 32, 32)))
    assert "x86::inverted_residual" not in step

    class Both(M.Module):
        """Reads what is between again."""

        def __init__(self):
            super().__init__()
            self.expand, self.filter = M.Conv2d(4, 8, 1), M.Conv2d(8, 8, 3, padding=1, groups=8)
            self.project = M.Conv2d(8, 4, 1)

        def forward(self, x):
            wide = F.relu(self.expand(x))
            return self.project(self.filter(wide)) + F.mean(wide)

    assert "x86::inverted_residual" not in counted(check(*inference(Both(), 1, 4, 9, 9)))
