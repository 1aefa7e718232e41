// mge/cpu/batch_norm.hpp: batch normalisation of (n, c, p), and of (rows, c) with the channels last.
//
// In: dense float32 or float64, statistics or places for them. Out: results, statistics, gradients.
// After lane.hpp. The statistics of a piece are taken in two passes while it is in the cache, and pieces are merged
// by their means and counts: as exact as two passes over all, for one read of the memory.
#ifndef MGE_CPU_BATCH_NORM_HPP
#define MGE_CPU_BATCH_NORM_HPP

#include "mge/cpu/lane.hpp"

namespace mge::cpu {

// What follows the normalisation.
enum class Clamp { kNone, kRelu, kRelu6 };

template <Clamp clamp, class V>
MGE_INLINE V clamped(V x) {
  if constexpr (clamp == Clamp::kNone) return x;
  V y = V{} > x ? V{} : x;  // NaN stays
  if constexpr (clamp == Clamp::kRelu6) y = V{} + 6 < y ? V{} + 6 : y;
  return y;
}

// dy where the clamp passed x on, else 0; `x` is its input or its output.
template <Clamp clamp, class V>
MGE_INLINE V passed(V dy, V x) {
  if constexpr (clamp == Clamp::kNone) return dy;
  V y = x > V{} ? dy : V{};
  if constexpr (clamp == Clamp::kRelu6) y = x < V{} + 6 ? y : V{};
  return y;
}

// One number for each channel, in the order in which kernels need them.
template <class T>
struct Affine {
  const T *mean, *var, *weight, *bias;  // weight and bias may be NULL
  T eps;
  T scale(int64_t c) const { return (weight ? weight[c] : T(1)) / std::sqrt(var[c] + eps); }
  T shift(int64_t c) const { return bias ? bias[c] : T(0); }
};

// The mean and the sum of squared differences to it of n elements that are cut into runs of p, `step` apart.
template <class T>
void run_moments(const T* x, int64_t n, int64_t p, int64_t step, T* mean, T* var) {
  using L = Lane<T>;
  T total = 0;
  for (int64_t i = 0; i < n; ++i) total += fold<Sum>(x + i * step, p);
  const T m = total / T(n * p);
  T squares = 0;
  for (int64_t i = 0; i < n; ++i)
    squares += sum_over<T>(p, [=](int64_t j, auto k) {
      auto d = L::get(x + i * step + j, k) - m;
      return d * d;
    });
  *mean = m, *var = squares / T(n * p);
}

// ---- (n, c, p): a channel is n runs of p ----

template <class T>
int64_t channel_grain(int64_t n, int64_t p) {
  return std::max<int64_t>(1, kPiece / std::max<int64_t>(1, n * p));
}

// y = (x - mean) * scale + shift
template <class T>
void apply_run(const T* x, T* y, int64_t p, T mean, T scale, T shift) {
  using L = Lane<T>;
  walk<T>(p, [=](int64_t j, auto m) { L::put(y + j, (L::get(x + j, m) - mean) * scale + shift, m); });
}

template <class T>
void batch_norm_train(const T* x, T* y, T* mean, T* var, Affine<T> a, int64_t n, int64_t c, int64_t p) {
  parallel_for(c, channel_grain<T>(n, p), [=](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      run_moments(x + k * p, n, p, c * p, mean + k, var + k);
      for (int64_t i = 0; i < n; ++i)
        apply_run(x + (i * c + k) * p, y + (i * c + k) * p, p, mean[k], a.scale(k), a.shift(k));
    }
  });
}

template <class T>
void batch_norm_infer(const T* x, T* y, Affine<T> a, int64_t n, int64_t c, int64_t p) {
  parallel_for(n * c, channel_grain<T>(1, p), [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      apply_run(x + i * p, y + i * p, p, a.mean[i % c], a.scale(i % c), a.shift(i % c));
  });
}

// dx = scale * (dy - dbias / count - (x - mean) * rstd**2 * product / count); product = sum of dy * (x - mean)
template <class T>
void batch_norm_backward(const T* x, const T* dy, T* dx, T* dweight, T* dbias, Affine<T> a, int64_t n, int64_t c,
                         int64_t p) {
  using L = Lane<T>;
  parallel_for(c, channel_grain<T>(n, p), [=](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const T mean = a.mean[k], scale = a.scale(k), count = T(n * p);
      T total = 0, product = 0;
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = (i * c + k) * p;
        auto s = L::splat(0), q = L::splat(0);
        walk<T>(p, [&](int64_t j, auto m) {
          auto g = L::get(dy + at + j, m);
          s += g, q += L::first(g * (L::get(x + at + j, m) - mean), m);
        });
        total += L::total(s), product += L::total(q);
      }
      const T square = 1 / (a.var[k] + a.eps), less = total / count, slope = square * product / count;
      if (dweight) dweight[k] = product * std::sqrt(square), dbias[k] = total;
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = (i * c + k) * p;
        walk<T>(p, [=](int64_t j, auto m) {
          auto z = (L::get(x + at + j, m) - mean) * slope;
          L::put(dx + at + j, (L::get(dy + at + j, m) - less - z) * scale, m);
        });
      }
    }
  });
}

// ---- (rows, c): the channels last ----

inline int64_t rows_in_piece(int64_t c) { return std::max<int64_t>(8, kPiece / 2 / std::max<int64_t>(c, 1)); }
inline int64_t pieces_of(int64_t rows, int64_t c) { return (rows + rows_in_piece(c) - 1) / rows_in_piece(c); }

// Cuts rows of c elements into pieces: calls piece(begin, end, numbers) for each, with its own `width` of the numbers.
template <class T, class F>
void over_pieces(int64_t rows, int64_t c, int64_t width, T* numbers, F&& piece) {
  const int64_t each = rows_in_piece(c);
  parallel_for(pieces_of(rows, c), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) piece(i * each, std::min(rows, (i + 1) * each), numbers + i * width);
  });
}

// Adds to z[j], for j < c, f(row, j) over all rows from begin to end - 1; four rows at a time.
template <class T, class F>
void add_rows(int64_t begin, int64_t end, int64_t c, T* z, F&& f) {
  using L = Lane<T>;
  int64_t i = begin;
  for (; i + 4 <= end; i += 4)
    walk<T>(c, [&](int64_t j, auto m) {
      L::put(z + j, L::get(z + j, m) + ((f(i, j, m) + f(i + 1, j, m)) + (f(i + 2, j, m) + f(i + 3, j, m))), m);
    });
  for (; i < end; ++i) walk<T>(c, [&](int64_t j, auto m) { L::put(z + j, L::get(z + j, m) + f(i, j, m), m); });
}

template <class T>
uint64_t channels_last_bytes(int64_t rows, int64_t c) {
  return sizeof(T) * 2 * static_cast<uint64_t>(c) * static_cast<uint64_t>(pieces_of(rows, c) + 2);
}

// The mean and biased variance of each column; `parts` is the workspace of channels_last_bytes.
template <class T>
void column_moments(const T* x, int64_t rows, int64_t c, T* mean, T* var, T* parts) {
  using L = Lane<T>;
  over_pieces(rows, c, 2 * c, parts, [=](int64_t begin, int64_t end, T* out) {  // its mean, and its squared differences
    fold_columns<Sum>(x + begin * c, end - begin, c, c, out);
    for (int64_t j = 0; j < c; ++j) out[j] /= T(end - begin);
    std::fill(out + c, out + 2 * c, T(0));
    add_rows<T>(begin, end, c, out + c, [=](int64_t i, int64_t j, auto m) {
      auto d = L::get(x + i * c + j, m) - L::get(out + j, m);
      return d * d;
    });
  });
  const int64_t pieces = pieces_of(rows, c), each = rows_in_piece(c);
  std::fill(mean, mean + c, T(0)), std::fill(var, var + c, T(0));
  const auto share = [=](int64_t i) { return T(std::min(rows, (i + 1) * each) - i * each) / T(rows); };
  for (int64_t i = 0; i < pieces; ++i)
    for (int64_t j = 0; j < c; ++j) mean[j] += share(i) * parts[i * 2 * c + j];
  for (int64_t i = 0; i < pieces; ++i) {
    const T* part = parts + i * 2 * c;
    for (int64_t j = 0; j < c; ++j) {
      const T d = part[j] - mean[j];
      var[j] += part[c + j] / T(rows) + share(i) * (d * d);
    }
  }
}

// y = clamp((x - mean) * scale + shift + residual); `numbers` has room for 2 * c.
template <Clamp clamp, class T>
void apply_columns(const T* x, const T* residual, T* y, int64_t rows, int64_t c, Affine<T> a, T* numbers) {
  using L = Lane<T>;
  for (int64_t j = 0; j < c; ++j) numbers[j] = a.scale(j), numbers[c + j] = a.shift(j);
  parallel_for(rows, std::max<int64_t>(1, kPiece / std::max<int64_t>(1, c)), [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      walk<T>(c, [=](int64_t j, auto m) {
        prefetch(x + i * c + j);
        auto z = (L::get(x + i * c + j, m) - L::get(a.mean + j, m)) * L::get(numbers + j, m);
        z += L::get(numbers + c + j, m);
        if (residual) z += L::get(residual + i * c + j, m);
        L::put(y + i * c + j, clamped<clamp>(z), m);
      });
  });
}

// Differentiates `apply_columns` after `column_moments`. Where the clamp's output `y` is NULL, its input is computed
// again. With `dresidual`, what passed the clamp is written there, too.
template <Clamp clamp, bool has_y, class T>
void channels_last_backward(const T* x, const T* dy, const T* y, T* dx, T* dweight, T* dbias, T* dresidual,
                            int64_t rows, int64_t c, Affine<T> a, T* parts) {
  using L = Lane<T>;
  const int64_t pieces = pieces_of(rows, c);
  T *scale = parts + pieces * 2 * c, *shift = scale + c, *slope = shift + c, *less = slope + c;
  for (int64_t j = 0; j < c; ++j) scale[j] = a.scale(j), shift[j] = a.shift(j);
  const auto gradient = [=](int64_t at, int64_t j, auto d, auto m) __attribute__((always_inline)) {
    prefetch(x + at), prefetch(dy + at);
    auto g = L::get(dy + at, m);
    if constexpr (has_y)
      return passed<clamp>(g, L::get(y + at, m));
    else
      return passed<clamp>(g, d * L::get(scale + j, m) + L::get(shift + j, m));
  };
  over_pieces(rows, c, 2 * c, parts, [=](int64_t begin, int64_t end, T* out) {  // sums of g, and of g * (x - mean)
    std::fill(out, out + 2 * c, T(0));
    for (int64_t i = begin; i < end; ++i)
      walk<T>(c, [=](int64_t j, auto m) {
        auto d = L::get(x + i * c + j, m) - L::get(a.mean + j, m);
        auto g = gradient(i * c + j, j, d, m);
        L::put(out + j, L::get(out + j, m) + g, m);
        L::put(out + c + j, L::get(out + c + j, m) + g * d, m);
        if (dresidual) L::put(dresidual + i * c + j, g, m);
      });
  });
  std::fill(slope, slope + 2 * c, T(0));
  for (int64_t i = 0; i < pieces; ++i)
    for (int64_t j = 0; j < c; ++j) less[j] += parts[i * 2 * c + j], slope[j] += parts[i * 2 * c + c + j];
  for (int64_t j = 0; j < c; ++j) {
    const T square = 1 / (a.var[j] + a.eps);
    if (dweight) dweight[j] = slope[j] * std::sqrt(square), dbias[j] = less[j];
    slope[j] *= square / T(rows), less[j] /= T(rows);
  }
  parallel_for(rows, std::max<int64_t>(1, kPiece / std::max<int64_t>(1, c)), [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      walk<T>(c, [=](int64_t j, auto m) {
        auto d = L::get(x + i * c + j, m) - L::get(a.mean + j, m);
        auto g = dresidual ? L::get(dresidual + i * c + j, m) : gradient(i * c + j, j, d, m);
        L::put(dx + i * c + j, (g - L::get(less + j, m) - d * L::get(slope + j, m)) * L::get(scale + j, m), m);
      });
  });
}

}  // namespace mge::cpu

#endif  // MGE_CPU_BATCH_NORM_HPP
