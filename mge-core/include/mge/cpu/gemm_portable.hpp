// mge/cpu/gemm_portable.hpp: matrix products of any arithmetic type, in loops that the compiler turns into vectors.
//
// In: matrices of In. Out: sums in Out, which wrap where they are integers. float32 has gemm.hpp.
#ifndef MGE_CPU_GEMM_PORTABLE_HPP
#define MGE_CPU_GEMM_PORTABLE_HPP

#include <algorithm>
#include <type_traits>

#include "mge/cpu/vec.hpp"

namespace mge::cpu {

constexpr int64_t kPortableRows = 4, kPortableColumns = 4 * kDoubles;

// Rows `first` to `first + rows` of y (m, n) = a b. Element (i, k) of a lies at a[i * a_row + k * a_step], (k, j) of b
// at b[k * b_row + j * b_step].
template <class In, class Out>
void multiply_rows(const In* a, ptrdiff_t a_row, ptrdiff_t a_step, const In* b, ptrdiff_t b_row, ptrdiff_t b_step,
                   int64_t first, int64_t rows, int64_t n, int64_t k, Out* y) {
  using Sum = typename std::conditional_t<std::is_integral_v<Out>, std::make_unsigned<Out>, std::common_type<Out>>::type;
  for (int64_t j = 0; j < n; j += kPortableColumns) {
    const int64_t columns = std::min(kPortableColumns, n - j);
    for (int64_t i = first; i < first + rows; i += kPortableRows) {
      const int64_t height = std::min(kPortableRows, first + rows - i);
      Sum sums[kPortableRows][kPortableColumns] = {};
      for (int64_t p = 0; p < k; ++p) {
        Sum right[kPortableColumns] = {};
        const In* from = b + p * b_row + j * b_step;
        if (columns == kPortableColumns && b_step == 1)
          for (int64_t c = 0; c < kPortableColumns; ++c) right[c] = static_cast<Sum>(static_cast<Out>(from[c]));
        else
          for (int64_t c = 0; c < columns; ++c) right[c] = static_cast<Sum>(static_cast<Out>(from[c * b_step]));
        for (int64_t r = 0; r < kPortableRows; ++r) {
          int64_t row = std::min(i + r, first + rows - 1);  // a row that is made twice costs less than a branch
          Sum left = static_cast<Sum>(static_cast<Out>(a[row * a_row + p * a_step]));
          for (int64_t c = 0; c < kPortableColumns; ++c) sums[r][c] += left * right[c];
        }
      }
      for (int64_t r = 0; r < height; ++r)
        for (int64_t c = 0; c < columns; ++c) y[(i + r) * n + j + c] = static_cast<Out>(sums[r][c]);
    }
  }
}

}  // namespace mge::cpu

#endif  // MGE_CPU_GEMM_PORTABLE_HPP
