// mge/cpu/lane.hpp: one source for float32, in vectors, and float64, one element at a time.
//
// In: a length. Out: `walk`, which goes through it in whole vectors and a rest, and loads and stores for both.
#ifndef MGE_CPU_LANE_HPP
#define MGE_CPU_LANE_HPP

#include "mge/cpu/math.hpp"
#include "mge/cpu/reduce.hpp"

namespace mge::cpu {

template <class T>
struct Lane;

template <>
struct Lane<float> {
  using V = vf;
  static constexpr int64_t kCount = kWidth;
  using Whole = std::integral_constant<int64_t, kCount>;

  MGE_INLINE static V get(const float* p, Whole) { return load(p); }
  MGE_INLINE static V get(const float* p, int64_t n) { return load_n(p, n); }
  MGE_INLINE static void put(float* p, V v, Whole) { store(p, v); }
  MGE_INLINE static void put(float* p, V v, int64_t n) { store_n(p, v, n); }
  // v with 0 behind its first n lanes.
  MGE_INLINE static V first(V v, Whole) { return v; }
  MGE_INLINE static V first(V v, int64_t n) {
    vi lane;
    MGE_UNROLL
    for (int i = 0; i < kWidth; ++i) lane[i] = i;
    return lane < static_cast<int32_t>(n) ? v : V{};
  }
  MGE_INLINE static V splat(float x) { return V{} + x; }
  MGE_INLINE static float total(V v) { return fold_lanes<Sum, float, sizeof v>(&v); }
};

template <>
struct Lane<double> {
  using V = double;
  static constexpr int64_t kCount = 1;
  using Whole = std::integral_constant<int64_t, kCount>;

  MGE_INLINE static V get(const double* p, Whole) { return *p; }
  MGE_INLINE static void put(double* p, V v, Whole) { *p = v; }
  MGE_INLINE static V first(V v, Whole) { return v; }
  MGE_INLINE static V splat(double x) { return x; }
  MGE_INLINE static double total(V v) { return v; }
};

inline double exp(double x) { return std::exp(x); }
inline double log(double x) { return std::log(x); }
inline double tanh(double x) { return std::tanh(x); }
inline double sin(double x) { return std::sin(x); }
inline double cos(double x) { return std::cos(x); }
inline double sqrt(double x) { return std::sqrt(x); }

// Calls f(i, m) for the elements i to i + m - 1 of n; `m` is Lane<T>::Whole, or for the rest an int64_t.
template <class T, class F>
MGE_INLINE void walk(int64_t n, F&& f) {
  constexpr int64_t count = Lane<T>::kCount;
  int64_t i = 0;
  for (; i + count <= n; i += count) f(i, typename Lane<T>::Whole());
  if constexpr (count > 1)
    if (i < n) f(i, n - i);
}

// The sum of f(i, m) over n elements.
template <class T, class F>
MGE_INLINE T sum_over(int64_t n, F&& f) {
  using L = Lane<T>;
  constexpr int64_t count = L::kCount;
  typename L::V part[4] = {};
  int64_t i = 0;
  for (; i + 4 * count <= n; i += 4 * count)
    MGE_UNROLL
    for (int u = 0; u < 4; ++u) part[u] += f(i + u * count, typename L::Whole());
  for (; i + count <= n; i += count) part[0] += f(i, typename L::Whole());
  if constexpr (count > 1)
    if (i < n) part[1] += L::first(f(i, n - i), n - i);
  return L::total((part[0] + part[1]) + (part[2] + part[3]));
}

}  // namespace mge::cpu

#endif  // MGE_CPU_LANE_HPP
