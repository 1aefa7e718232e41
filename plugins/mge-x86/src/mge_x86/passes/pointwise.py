"""Ops that treat each element by itself, so that the order of axes does not matter to them.

In: nothing. Out: ``POINTWISE``, the names. All broadcast their inputs.
After nothing; before ``layout_rules``.
"""

from __future__ import annotations

POINTWISE = frozenset(
    """
    abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor cast ceil clip cos
    cosh detach div elu equal erf exp expm1 floor floor_div gelu greater greater_equal hardshrink hsigmoid hswish
    isfinite isinf isnan leaky_relu left_shift less less_equal log log1p logaddexp logical_and logical_not logical_or
    logical_xor logsigmoid maximum minimum mish mod mul neg not_equal pow pow_scalar relu relu6 right_shift round rsqrt
    sigmoid sign silu sin sinh softplus softshrink softsign sqrt square sub tan tanh where
    """.split()
)
