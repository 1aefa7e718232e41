// mge/cpu/vec.hpp: float32 vectors of the processor's own width, and what kernels need of them.
//
// In: the compiler's target flags. Out: `vf` (kWidth floats), `vi` and `vu` (as many int32 and uint32), `vd` and `vl`
// (half as many doubles and int64), and functions on them. One source for all processors: kernels are written with
// these and compiled once a level of the instruction set.
// Arithmetic and comparisons are the operators of the compiler's vectors; a comparison gives a `vi` of 0 and -1.
//
// A vector is never wider than the registers: GCC keeps wider ones on the stack. For the same reason,
// put MGE_UNROLL before every loop over an array of vectors that should stay in registers.
#ifndef MGE_CPU_VEC_HPP
#define MGE_CPU_VEC_HPP

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "mge/kernel.hpp"

#if defined(__clang__)
#define MGE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define MGE_UNROLL _Pragma("GCC unroll 64")
#endif
#define MGE_INLINE inline __attribute__((always_inline))

namespace mge::cpu {

#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif
constexpr int kBlock = 16;  // channels a block of packed weights, on every processor

typedef float vf __attribute__((vector_size(4 * kWidth)));
typedef int32_t vi __attribute__((vector_size(4 * kWidth)));
typedef uint32_t vu __attribute__((vector_size(4 * kWidth)));
typedef double vd __attribute__((vector_size(4 * kWidth)));
typedef int64_t vl __attribute__((vector_size(4 * kWidth)));
constexpr int kDoubles = kWidth / 2;

// ---- Memory: any address that is a multiple of the element ----

template <class V, class T>
MGE_INLINE V load_as(const T* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
MGE_INLINE vf load(const float* p) { return load_as<vf>(p); }
MGE_INLINE vi load(const int32_t* p) { return load_as<vi>(p); }
MGE_INLINE vd load(const double* p) { return load_as<vd>(p); }
MGE_INLINE void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }
MGE_INLINE void store(int32_t* p, vi v) { std::memcpy(p, &v, sizeof v); }
MGE_INLINE void store(double* p, vd v) { std::memcpy(p, &v, sizeof v); }

#if defined(__AVX2__) && !defined(__AVX512F__)
MGE_INLINE __m256i first_lanes(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
#endif

// The first n lanes, 0 <= n <= kWidth; the others are 0, and nothing behind them is read.
MGE_INLINE vf load_n(const float* p, int64_t n) {
#if defined(__AVX512F__)
  return (vf)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
#elif defined(__AVX2__)
  return (vf)_mm256_maskload_ps(p, first_lanes(n));
#else
  vf v = {};
  for (int64_t i = 0; i < n; ++i) v[i] = p[i];
  return v;
#endif
}

// Stores the first n lanes; nothing behind them is written.
MGE_INLINE void store_n(float* p, vf v, int64_t n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), (__m512)v);
#elif defined(__AVX2__)
  _mm256_maskstore_ps(p, first_lanes(n), (__m256)v);
#else
  for (int64_t i = 0; i < n; ++i) p[i] = v[i];
#endif
}

// ---- Lanes ----

// x - 0 is x for every x; 0 + x is not (-0), so it would cost an addition.
MGE_INLINE vf splat(float x) { return x - vf{}; }
MGE_INLINE vi splat(int32_t x) { return vi{} + x; }
MGE_INLINE vd splat(double x) { return x - vd{}; }
MGE_INLINE vl splat(int64_t x) { return vl{} + x; }

// By lanes; of single numbers, too.
template <class V>
MGE_INLINE V select(decltype(V{} < V{}) mask, V a, V b) {
  return mask ? a : b;
}
MGE_INLINE vi bits(vf x) { return (vi)x; }
MGE_INLINE vf floats(vi x) { return (vf)x; }
MGE_INLINE vl bits(vd x) { return (vl)x; }
MGE_INLINE vd floats(vl x) { return (vd)x; }
MGE_INLINE vf to_float(vi x) { return __builtin_convertvector(x, vf); }

// Joins lane i and lane i + half, and so on: a fixed tree.
template <int half, int... lane>
MGE_INLINE vf upper_lanes(vf x, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(x, x, (lane + half) % kWidth...);
}
template <int half = kWidth / 2, class Join>
MGE_INLINE float across(vf x, Join join) {
  x = join(x, upper_lanes<half>(x, std::make_integer_sequence<int, kWidth>()));
  if constexpr (half > 1)
    return across<half / 2>(x, join);
  else
    return x[0];
}
MGE_INLINE float sum(vf x) {
  return across(x, [](vf a, vf b) { return a + b; });
}

// ---- Arithmetic ----

// a * b + c, rounded once where the processor has such an instruction.
MGE_INLINE vf fma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

// The smaller and the larger; where one is NaN, b. One instruction on x86.
MGE_INLINE vf min(vf a, vf b) {
#if defined(__AVX512F__)
  return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE4_1__)
  return (vf)_mm_min_ps((__m128)a, (__m128)b);
#else
  return a < b ? a : b;
#endif
}
MGE_INLINE vf max(vf a, vf b) {
#if defined(__AVX512F__)
  return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE4_1__)
  return (vf)_mm_max_ps((__m128)a, (__m128)b);
#else
  return a > b ? a : b;
#endif
}
// The same as NumPy has it: NaN in one of them gives NaN.
MGE_INLINE vf minimum(vf a, vf b) {
  vf m = min(b, a);
  return b == b ? m : b;
}
MGE_INLINE vf maximum(vf a, vf b) {
  vf m = max(b, a);
  return b == b ? m : b;
}
MGE_INLINE float max_lane(vf x) {
  return across(x, [](vf a, vf b) { return max(a, b); });
}

MGE_INLINE vf abs(vf x) { return floats(bits(x) & 0x7fffffff); }
MGE_INLINE vf copysign(vf x, vf sign) {
  return floats((bits(x) & 0x7fffffff) | (bits(sign) & static_cast<int32_t>(0x80000000)));
}

MGE_INLINE vf sqrt(vf x) {
#if defined(__AVX512F__)
  return (vf)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__)
  return (vf)_mm256_sqrt_ps((__m256)x);
#elif defined(__SSE4_1__)
  return (vf)_mm_sqrt_ps((__m128)x);
#elif defined(__aarch64__)
  return (vf)vsqrtq_f32((float32x4_t)x);
#endif
}

// To the nearest integer, ties to the even one.
MGE_INLINE vf round(vf x) {
#if defined(__AVX512F__)
  return (vf)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__AVX2__)
  return (vf)_mm256_round_ps((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__SSE4_1__)
  return (vf)_mm_round_ps((__m128)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__aarch64__)
  return (vf)vrndnq_f32((float32x4_t)x);
#endif
}
MGE_INLINE vf floor(vf x) {
#if defined(__AVX512F__)
  return (vf)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
#elif defined(__AVX2__)
  return (vf)_mm256_floor_ps((__m256)x);
#elif defined(__SSE4_1__)
  return (vf)_mm_floor_ps((__m128)x);
#elif defined(__aarch64__)
  return (vf)vrndmq_f32((float32x4_t)x);
#endif
}
MGE_INLINE vf ceil(vf x) { return -floor(-x); }

// To the nearest integer, ties to the even one; |x| < 2**31.
MGE_INLINE vi round_to_int(vf x) {
#if defined(__AVX512F__)
  return (vi)_mm512_cvtps_epi32((__m512)x);
#elif defined(__AVX2__)
  return (vi)_mm256_cvtps_epi32((__m256)x);
#elif defined(__SSE4_1__)
  return (vi)_mm_cvtps_epi32((__m128)x);
#elif defined(__aarch64__)
  return (vi)vcvtnq_s32_f32((float32x4_t)x);
#endif
}

// ---- float16 and bfloat16: stored so, computed as float32; rounded to the nearest, ties to even ----

MGE_INLINE float to_float(bfloat16 x) {
  uint32_t wide = static_cast<uint32_t>(x.bits) << 16;
  float y;
  std::memcpy(&y, &wide, sizeof y);
  return y;
}
MGE_INLINE bfloat16 to_bfloat16(float x) {
  uint32_t b;
  std::memcpy(&b, &x, sizeof b);
  uint32_t rounded = (b + 0x7fff + (b >> 16 & 1)) >> 16;
  return {static_cast<uint16_t>(x == x ? rounded : (b >> 16 | 0x40))};
}
inline float to_float(float16 x) {
  uint32_t sign = (x.bits & 0x8000u) << 16, rest = x.bits & 0x7fffu;
  uint32_t b = rest >= 0x7c00 ? rest << 13 | 0x7f800000 : (rest << 13) + (112u << 23);
  float y;
  if (rest < 0x400) {  // subnormal, or 0
    y = static_cast<float>(rest) * 0x1p-24f;
    std::memcpy(&b, &y, sizeof b);
  }
  b |= sign;
  std::memcpy(&y, &b, sizeof y);
  return y;
}
inline float16 to_float16(float x) {
  uint32_t b;
  std::memcpy(&b, &x, sizeof b);
  uint32_t sign = b >> 16 & 0x8000, rest = b & 0x7fffffff;
  if (rest > 0x7f800000) return {static_cast<uint16_t>(sign | 0x7e00 | (rest >> 13 & 0x3ff))};
  if (rest >= 0x477ff000) return {static_cast<uint16_t>(sign | 0x7c00)};  // rounds to infinity
  if (rest < 0x38800000) {  // below the least normal one: adding 0.5 puts the bits in place, rounded
    float magnitude;
    std::memcpy(&magnitude, &rest, sizeof magnitude);
    magnitude += 0.5f;
    std::memcpy(&b, &magnitude, sizeof b);
    return {static_cast<uint16_t>(sign | (b - 0x3f000000))};
  }
  return {static_cast<uint16_t>(sign | (rest - (112u << 23) + 0xfff + (rest >> 13 & 1)) >> 13)};
}
MGE_INLINE float to_float(float x) { return x; }

// A scalar in a storage type.
template <class T>
MGE_INLINE T from_float(float x) {
  if constexpr (std::is_same_v<T, float16>)
    return to_float16(x);
  else if constexpr (std::is_same_v<T, bfloat16>)
    return to_bfloat16(x);
  else
    return static_cast<T>(x);
}

MGE_INLINE vf load(const bfloat16* p) {
#if defined(__AVX512F__)
  return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16);
#elif defined(__AVX2__)
  return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16);
#else
  vf v;
  MGE_UNROLL
  for (int i = 0; i < kWidth; ++i) v[i] = to_float(p[i]);
  return v;
#endif
}
MGE_INLINE void store(bfloat16* p, vf v) {
  vi b = bits(v), high = b >> 16;
  vi rounded = (vi)((vu)b + 0x7fff + (vu)(high & 1)) >> 16;
  vi out = v == v ? rounded : (high | 0x40);
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16((__m512i)out));
#else
  MGE_UNROLL
  for (int i = 0; i < kWidth; ++i) p[i].bits = static_cast<uint16_t>(out[i]);
#endif
}
MGE_INLINE vf load(const float16* p) {
#if defined(__AVX512F__)
  return (vf)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__F16C__)
  return (vf)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  vf v;
  for (int i = 0; i < kWidth; ++i) v[i] = to_float(p[i]);
  return v;
#endif
}
MGE_INLINE void store(float16* p, vf v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < kWidth; ++i) p[i] = to_float16(v[i]);
#endif
}
template <class Half>
MGE_INLINE vf load_n(const Half* p, int64_t n) {
  Half lanes[kWidth] = {};
  std::memcpy(lanes, p, n * sizeof(Half));
  return load(lanes);
}
template <class Half>
MGE_INLINE void store_n(Half* p, vf v, int64_t n) {
  Half lanes[kWidth];
  store(lanes, v);
  std::memcpy(p, lanes, n * sizeof(Half));
}

}  // namespace mge::cpu

#endif  // MGE_CPU_VEC_HPP
