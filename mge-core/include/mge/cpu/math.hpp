// mge/cpu/math.hpp: elementary functions on vectors of float32, without branches and without libm.
//
// In: `vf`. Out: `vf`, with the limits and NaNs of NumPy. Errors are at most, in units in the last place (ulp) of the
// result in float64, over all finite inputs:
//
//   exp, expm1, log, log1p 2   sigmoid 3   tanh, erf 6 (5 with fused multiply-adds)
//   sin, cos: 1e-7, and tan 3e-7 of max(1, |y|), for |x| < 8192; beyond they are libm's
//
// tests/x86/test_isa.py measures them on each level of the instruction set.
//
// The polynomials are near-minimax: least squares on Chebyshev points, reweighted by the error until it is even.
#ifndef MGE_CPU_MATH_HPP
#define MGE_CPU_MATH_HPP

#include <limits>

#include "mge/cpu/vec.hpp"

namespace mge::cpu {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// c0 + c1 x + c2 x**2 + ...
MGE_INLINE vf polynomial(vf, float c0) { return splat(c0); }
template <class... Rest>
MGE_INLINE vf polynomial(vf x, float c0, Rest... rest) {
  return fma(polynomial(x, rest...), x, splat(c0));
}

// 2**n for -126 <= n <= 127; any bits for others.
MGE_INLINE vf power_of_2(vi n) { return floats((vi)(((vu)n + 127) << 23)); }

// x * 2**n for whole n; exact where the result is normal.
MGE_INLINE vf scale(vf x, vf n) {
#if defined(__AVX512F__)
  return (vf)_mm512_scalef_ps((__m512)x, (__m512)n);
#else
  vi whole = round_to_int(n), half = whole >> 1;  // in two steps: 2**n may not be a normal number
  return x * power_of_2(half) * power_of_2(whole - half);
#endif
}

// The remainder of x after n * log(2), in two parts, the first of which is exact.
MGE_INLINE vf minus_logs_of_2(vf x, vf n) {
  return fma(n, splat(2.12194440e-4f), fma(n, splat(-0.693359375f), x));
}

MGE_INLINE vf exp(vf x) {
  x = min(splat(89.0f), max(splat(-104.0f), x));  // a NaN stays
  vf n = round(x * 1.44269504f), r = minus_logs_of_2(x, n);
  vf q = polynomial(r, 4.999999404e-1f, 1.666651517e-1f, 4.166845605e-2f, 8.369418792e-3f, 1.381314243e-3f);
  return scale(fma(r * r, q, r) + 1.0f, n);
}

MGE_INLINE vf expm1(vf x) {
  vf clamped = min(splat(89.0f), max(splat(-18.0f), x));
  vf n = round(clamped * 1.44269504f), r = minus_logs_of_2(clamped, n);
  vf q = polynomial(r, 5.000000000e-1f, 1.666666567e-1f, 4.166634753e-2f, 8.333391510e-3f, 1.394165331e-3f,
                    1.984595729e-4f);
  vf below = fma(r * r, q, r);                                // exp(r) - 1
  vf half = power_of_2(round_to_int(n - 1.0f));
  vf y = fma(below, half, half - 0.5f);
  return select(n == 0.0f, below, y + y);
}

// log(x) = log1p(f) + n * log(2) with 1 + f in [sqrt(1/2), sqrt(2)); `extra` is added to f's logarithm.
MGE_INLINE vf log_plus(vf x, vf extra) {
  vi small = x < 1.17549435e-38f;
  vf big = select(small, x * 8388608.0f, x);  // a subnormal, times 2**23
  vi b = (vi)((vu)bits(big) - 0x3f3504f3);    // sqrt(1/2)
  vf n = to_float(b >> 23) - select(small, splat(23.0f), splat(0.0f));
  vf f = floats((b & 0x007fffff) + 0x3f3504f3) - 1.0f, squared = f * f;
  vf p = polynomial(f, 3.333331347e-1f, -2.500000894e-1f, 2.000211924e-1f, -1.666799635e-1f, 1.421955079e-1f,
                    -1.240559146e-1f, 1.188817471e-1f, -1.167564094e-1f, 6.746601313e-2f);
  vf y = fma(n, splat(-2.12194440e-4f), fma(squared * f, p, extra));
  y = fma(squared, splat(-0.5f), y) + f;
  y = fma(n, splat(0.693359375f), y);
  y = select(x > 0.0f, y, select(x == 0.0f, splat(-kInfinity), splat(kNan)));
  return select(x == kInfinity, x, y);
}

MGE_INLINE vf log(vf x) { return log_plus(x, splat(0.0f)); }

MGE_INLINE vf log1p(vf x) {
  vf u = x + 1.0f;
  vf lost = x - (u - 1.0f);  // what rounding took from u
  vf y = log_plus(u, select(abs(x) < 1e8f, lost / u, splat(0.0f)));
  return select(u == 1.0f, x, select(u == 0.0f, splat(-kInfinity), y));
}

// y within [-1, 1], and 1 or -1 from |x| = `limit` on.
MGE_INLINE vf saturating(vf y, vf x, float limit) {
  return copysign(select(abs(x) >= limit, splat(1.0f), min(splat(1.0f), abs(y))), x);
}

MGE_INLINE vf tanh(vf x) {
  vf limited = min(splat(9.02f), max(splat(-9.02f), x)), squared = limited * limited;
  vf p = polynomial(squared, 1.0f, 1.367991418e-1f, 3.868326778e-3f, 2.800744187e-5f, 3.058498521e-8f,
                    -1.220344138e-11f);
  vf q = polynomial(squared, 1.0f, 4.701324701e-1f, 2.724583447e-2f, 3.938629525e-4f, 1.287365421e-6f);
  return saturating(limited * p / q, x, 9.02f);
}

MGE_INLINE vf sigmoid(vf x) {
  vf power = exp(-abs(x));  // at most 1
  return select(x < 0.0f, power, splat(1.0f)) / (power + 1.0f);
}

MGE_INLINE vf erf(vf x) {
  vf limited = min(splat(3.925f), max(splat(-3.925f), x)), squared = limited * limited;
  vf p = polynomial(squared, 1.128379107e+0f, 1.905948818e-1f, 5.276945233e-2f, 3.772600321e-3f, 2.848449512e-4f,
                    2.046022473e-6f);
  vf q = polynomial(squared, 1.0f, 5.022430420e-1f, 1.141831949e-1f, 1.498329826e-2f, 1.163870445e-3f,
                    3.804779772e-5f);
  return saturating(limited * p / q, x, 3.925f);
}

// The sine and the cosine of x - n * pi/2 with the nearest whole n; good for |x| < 8192.
struct Angle {
  vf sine, cosine;
  vi quadrant;  // n
};
MGE_INLINE Angle reduced(vf x) {
  vf n = round(x * 0.636619772f);
  // pi/2 in three parts; the first two have so few digits that n times them is exact.
  vf r = fma(n, splat(-1.5703125f), x);
  r = fma(n, splat(-4.837512969970703125e-4f), r);
  r = fma(n, splat(-7.549789948768648e-8f), r);
  vf squared = r * r;
  vf sine = fma(squared * r, polynomial(squared, -1.666665375e-1f, 8.332131431e-3f, -1.951083977e-4f), r);
  vf cosine = polynomial(squared, 4.166664556e-2f, -1.388730598e-3f, 2.443120502e-5f);
  cosine = fma(squared * squared, cosine, fma(squared, splat(-0.5f), splat(1.0f)));
  return {sine, cosine, round_to_int(n)};
}

// libm's value in the lanes whose |x| is too large for `reduced`: rare, and slow.
template <class F>
MGE_INLINE vf with_large(vf x, vf y, F&& function) {
  vi large = abs(x) >= 8192.0f;
  bool any = false;
  MGE_UNROLL
  for (int i = 0; i < kWidth; ++i) any |= large[i] != 0;
  if (__builtin_expect(any, 0))
    for (int i = 0; i < kWidth; ++i)
      if (large[i]) y[i] = function(x[i]);
  return y;
}

MGE_INLINE vf sin(vf x) {
  Angle a = reduced(x);
  vf y = select((a.quadrant & 1) != 0, a.cosine, a.sine);
  return with_large(x, floats(bits(y) ^ (vi)((vu)(a.quadrant & 2) << 30)), [](float v) { return std::sin(v); });
}

MGE_INLINE vf cos(vf x) {
  Angle a = reduced(x);
  vf y = select((a.quadrant & 1) != 0, a.sine, a.cosine);
  return with_large(x, floats(bits(y) ^ (vi)((((vu)a.quadrant + 1) & 2) << 30)), [](float v) { return std::cos(v); });
}

MGE_INLINE vf tan(vf x) {
  Angle a = reduced(x);
  vi odd = (a.quadrant & 1) != 0;
  vf y = select(odd, -a.cosine, a.sine) / select(odd, a.sine, a.cosine);
  return with_large(x, y, [](float v) { return std::tan(v); });
}

// ---- Activations ----

MGE_INLINE vf silu(vf x) { return x * sigmoid(x); }
MGE_INLINE vf softplus(vf x) { return maximum(x, splat(0.0f)) + log1p(exp(-abs(x))); }
MGE_INLINE vf gelu(vf x) { return 0.5f * x * (1.0f + erf(x * 0.707106781f)); }
MGE_INLINE vf gelu_tanh(vf x) {
  return 0.5f * x * (1.0f + tanh(0.797884561f * fma(x * x * x, splat(0.044715f), x)));
}
// max(x, lowest) keeps a NaN: it comes second.
MGE_INLINE vf relu(vf x) { return max(splat(0.0f), x); }
MGE_INLINE vf relu6(vf x) { return min(splat(6.0f), relu(x)); }
MGE_INLINE vf hsigmoid(vf x) { return relu6(x + 3.0f) / 6.0f; }
MGE_INLINE vf hswish(vf x) { return x * relu6(x + 3.0f) / 6.0f; }

}  // namespace mge::cpu

#endif  // MGE_CPU_MATH_HPP
