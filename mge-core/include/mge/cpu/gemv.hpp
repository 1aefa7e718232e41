// mge/cpu/gemv.hpp: a matrix times a vector, which is bound by the memory that holds the matrix.
//
// In: a dense matrix by rows, by columns, or packed. Out: one row of results. After vec.hpp.
#ifndef MGE_CPU_GEMV_HPP
#define MGE_CPU_GEMV_HPP

#include <algorithm>

#include "mge/cpu/vec.hpp"

namespace mge::cpu {

// y[i] = sum_k matrix[i * row + k] * x[k] for `rows` rows: one sum for each, in 4 * kWidth lanes.
inline void dot_rows(const float* matrix, ptrdiff_t row, const float* x, int64_t k, int64_t rows, float* y) {
  constexpr int kTogether = 4, kLanes = 2;  // rows, and vectors of each
  auto some = [&](auto together, const float* from, float* to) {
    constexpr int R = decltype(together)::value;
    vf sums[R][kLanes];
    MGE_UNROLL
    for (int r = 0; r < R; ++r)
      MGE_UNROLL
      for (int l = 0; l < kLanes; ++l) sums[r][l] = vf{};
    int64_t i = 0;
    for (; i + kLanes * kWidth <= k; i += kLanes * kWidth)
      MGE_UNROLL
      for (int l = 0; l < kLanes; ++l) {
        vf value = load(x + i + l * kWidth);
        MGE_UNROLL
        for (int r = 0; r < R; ++r) sums[r][l] = fma(load(from + r * row + i + l * kWidth), value, sums[r][l]);
      }
    for (; i < k; i += kWidth) {
      int64_t n = std::min<int64_t>(kWidth, k - i);
      vf value = load_n(x + i, n);
      MGE_UNROLL
      for (int r = 0; r < R; ++r) sums[r][0] = fma(load_n(from + r * row + i, n), value, sums[r][0]);
    }
    MGE_UNROLL
    for (int r = 0; r < R; ++r) to[r] = sum(sums[r][0] + sums[r][1]);
  };
  int64_t r = 0;
  for (; r + kTogether <= rows; r += kTogether)
    some(std::integral_constant<int, kTogether>(), matrix + r * row, y + r);
  for (; r < rows; ++r) some(std::integral_constant<int, 1>(), matrix + r * row, y + r);
}

// y[j] = sum_k x[k] * matrix[k * row + j] for `columns` columns, at best some hundreds: y stays in the level-1 cache
// while the rows, each one long run of memory, pass by.
inline void sum_rows(const float* matrix, ptrdiff_t row, const float* x, int64_t k, int64_t columns, float* y) {
  constexpr int kTogether = 4;
  std::fill(y, y + columns, 0.0f);
  auto some = [&](auto together, int64_t first) {
    constexpr int R = decltype(together)::value;
    vf factor[R];
    MGE_UNROLL
    for (int r = 0; r < R; ++r) factor[r] = splat(x[first + r]);
    const float* from = matrix + first * row;
    int64_t j = 0;
    for (; j + kWidth <= columns; j += kWidth) {
      vf total = load(y + j);
      MGE_UNROLL
      for (int r = 0; r < R; ++r) total = fma(load(from + r * row + j), factor[r], total);
      store(y + j, total);
    }
    if (int64_t n = columns - j) {
      vf total = load_n(y + j, n);
      MGE_UNROLL
      for (int r = 0; r < R; ++r) total = fma(load_n(from + r * row + j, n), factor[r], total);
      store_n(y + j, total, n);
    }
  };
  int64_t i = 0;
  for (; i + kTogether <= k; i += kTogether) some(std::integral_constant<int, kTogether>(), i);
  for (; i < k; ++i) some(std::integral_constant<int, 1>(), i);
}

// 16 results from one block of a packed matrix [k][16], which is read in one run.
inline void sum_block(const float* block, const float* x, int64_t k, float* y) {
  constexpr int kVectors = kBlock / kWidth, kTerms = 8 / kVectors < 2 ? 2 : 8 / kVectors;
  vf sums[kTerms][kVectors];
  MGE_UNROLL
  for (int t = 0; t < kTerms; ++t)
    MGE_UNROLL
    for (int v = 0; v < kVectors; ++v) sums[t][v] = vf{};
  int64_t i = 0;
  for (; i + kTerms <= k; i += kTerms) {
    __builtin_prefetch(block + (i + 64) * kBlock);
    MGE_UNROLL
    for (int t = 0; t < kTerms; ++t)
      MGE_UNROLL
      for (int v = 0; v < kVectors; ++v)
        sums[t][v] = fma(load(block + (i + t) * kBlock + v * kWidth), splat(x[i + t]), sums[t][v]);
  }
  for (; i < k; ++i)
    MGE_UNROLL
    for (int v = 0; v < kVectors; ++v)
      sums[0][v] = fma(load(block + i * kBlock + v * kWidth), splat(x[i]), sums[0][v]);
  MGE_UNROLL
  for (int half = kTerms / 2; half > 0; half /= 2)
    MGE_UNROLL
    for (int t = 0; t < half; ++t)
      MGE_UNROLL
      for (int v = 0; v < kVectors; ++v) sums[t][v] += sums[t + half][v];
  MGE_UNROLL
  for (int v = 0; v < kVectors; ++v) store(y + v * kWidth, sums[0][v]);
}

}  // namespace mge::cpu

#endif  // MGE_CPU_GEMV_HPP
