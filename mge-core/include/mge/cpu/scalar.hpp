// mge/cpu/scalar.hpp: the names of vec.hpp and math.hpp for single numbers, so that one function text serves both.
//
// In: double, and integers. Out: what NumPy gives. float64 goes through libm.
#ifndef MGE_CPU_SCALAR_HPP
#define MGE_CPU_SCALAR_HPP

#include <cmath>
#include <limits>
#include <type_traits>

#include "mge/cpu/vec.hpp"

namespace mge::cpu {

template <class T>
using IfNumber = std::enable_if_t<std::is_arithmetic_v<T>, T>;

// NaN in one of them gives NaN.
template <class T>
MGE_INLINE IfNumber<T> minimum(T a, T b) {
  return a < b || a != a ? a : b;
}
template <class T>
MGE_INLINE IfNumber<T> maximum(T a, T b) {
  return a > b || a != a ? a : b;
}

#define MGE_CPU_LIBM(name) \
  MGE_INLINE double name(double x) { return std::name(x); }
MGE_CPU_LIBM(exp)
MGE_CPU_LIBM(expm1)
MGE_CPU_LIBM(log)
MGE_CPU_LIBM(log1p)
MGE_CPU_LIBM(tanh)
MGE_CPU_LIBM(erf)
MGE_CPU_LIBM(sin)
MGE_CPU_LIBM(cos)
MGE_CPU_LIBM(tan)
MGE_CPU_LIBM(sqrt)
MGE_CPU_LIBM(floor)
MGE_CPU_LIBM(ceil)
#undef MGE_CPU_LIBM
MGE_INLINE double abs(double x) { return std::fabs(x); }
MGE_INLINE double round(double x) { return std::nearbyint(x); }

MGE_INLINE double relu(double x) { return maximum(x, 0.0); }
MGE_INLINE double relu6(double x) { return minimum(relu(x), 6.0); }
MGE_INLINE double hsigmoid(double x) { return relu6(x + 3) / 6; }
MGE_INLINE double hswish(double x) { return x * relu6(x + 3) / 6; }
MGE_INLINE double sigmoid(double x) {
  double power = std::exp(-std::fabs(x));
  return (x < 0 ? power : 1) / (1 + power);
}
MGE_INLINE double silu(double x) { return x * sigmoid(x); }
MGE_INLINE double softplus(double x) { return relu(x) + std::log1p(std::exp(-std::fabs(x))); }
MGE_INLINE double gelu(double x) { return 0.5 * x * (1 + std::erf(x * 0.70710678118654752)); }
MGE_INLINE double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
}

// An integer as an unsigned one of at least 32 bits, in which arithmetic wraps.
template <class T>
constexpr auto unsigned_of(T x) {
  return static_cast<std::common_type_t<unsigned, std::make_unsigned_t<T>>>(x);
}

// Rounded down; 0 where the divisor is 0; the least integer divided by -1 wraps.
template <class T>
MGE_INLINE std::enable_if_t<std::is_integral_v<T>, T> floor_divide(T x, T y) {
  if (y == 0) return 0;
  if constexpr (std::is_signed_v<T>) {
    if (y == -1) return static_cast<T>(0 - unsigned_of(x));
    return static_cast<T>(x / y - ((x % y != 0) & ((x < 0) != (y < 0))));
  }
  return x / y;
}
// The rest after floor_divide: it has the divisor's sign; 0 where the divisor is 0.
template <class T>
MGE_INLINE std::enable_if_t<std::is_integral_v<T>, T> remainder(T x, T y) {
  if (y == 0) return 0;
  if constexpr (std::is_signed_v<T>) {
    if (y == -1) return 0;
    T rest = static_cast<T>(x % y);
    return static_cast<T>(rest + ((rest != 0) & ((rest < 0) != (y < 0)) ? y : 0));
  }
  return x % y;
}
template <class T>
inline std::enable_if_t<std::is_floating_point_v<T>, T> remainder(T x, T y) {
  T rest = std::fmod(x, y);
  if (y == 0) return rest;  // NaN
  if (rest == 0) return std::copysign(T(0), y);
  return (rest < 0) != (y < 0) ? rest + y : rest;
}
template <class T>
inline std::enable_if_t<std::is_floating_point_v<T>, T> floor_divide(T x, T y) {
  if (y == 0) return x / y;
  T rest = std::fmod(x, y), quotient = (x - rest) / y;
  if (rest != 0 && (rest < 0) != (y < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(T(0), x / y);
  T down = std::floor(quotient);
  return quotient - down > T(0.5) ? down + 1 : down;
}

// By repeated squaring; wraps. A negative exponent gives the reciprocal rounded towards 0: 0 but for x = 1 and -1.
template <class T>
inline T integer_power(T x, T y) {
  if constexpr (std::is_signed_v<T>)
    if (y < 0) return x == 1 ? 1 : x == -1 ? (y & 1 ? -1 : 1) : 0;
  auto power = unsigned_of(x), result = unsigned_of(T(1));
  for (auto rest = unsigned_of(y); rest; rest >>= 1, power *= power)
    if (rest & 1) result *= power;
  return static_cast<T>(result);
}

// Shifts by more than the width, or by a negative number, shift everything out.
template <class T>
MGE_INLINE T shift_left(T x, T y) {
  return unsigned_of(y) < 8 * sizeof(T) ? static_cast<T>(unsigned_of(x) << unsigned_of(y)) : T(0);
}
template <class T>
MGE_INLINE T shift_right(T x, T y) {
  return unsigned_of(y) < 8 * sizeof(T) ? static_cast<T>(x >> unsigned_of(y)) : static_cast<T>(x < 0 ? -1 : 0);
}

}  // namespace mge::cpu

#endif  // MGE_CPU_SCALAR_HPP
