// mge/cpu/layer_norm.hpp: normalisation of each row of (rows, n): layer, group and instance norm, and by the root mean
// square.
//
// In: dense float32 or float64. Out: results, statistics, gradients; a weight may repeat over elements and rows.
// After batch_norm.hpp.
#ifndef MGE_CPU_LAYER_NORM_HPP
#define MGE_CPU_LAYER_NORM_HPP

#include "mge/cpu/batch_norm.hpp"

namespace mge::cpu {

// How a weight is spread over a tensor: element q, in row-major order, has weight (q / repeat) % count.
struct Spread {
  int64_t count = 0, repeat = 1;
  bool fits = true;  // else the weight repeats in another way

  Spread() = default;
  Spread(const std::vector<int64_t>& weight, const std::vector<int64_t>& shape) : count(1) {
    std::vector<int64_t> wide(shape.size() - weight.size(), 1);
    wide.insert(wide.end(), weight.begin(), weight.end());
    int stage = 0;  // from the last axis: repeated, its own, repeated
    for (size_t i = shape.size(); i-- > 0;) {
      if (shape[i] == 1) continue;
      const bool own = wide[i] != 1;
      if (stage == 0 && own) stage = 1;
      if (stage == 1 && !own) stage = 2;
      if (stage == 2 && own) fits = false;
      if (stage == 0) repeat *= shape[i];
      if (own) count *= wide[i];
    }
  }

  // Calls run(i, size, at) for the parts of a row of n that have one weight, or `size` weights in a row, from `at` on.
  template <class F>
  void over_row(int64_t row, int64_t n, F&& run) const {
    const int64_t size = std::min(n, repeat > 1 ? repeat : count);
    for (int64_t i = 0; i < n; i += size) run(i, size, (row * n + i) / repeat % count);
  }
};

template <class T>
struct RowAffine {
  const T *weight, *bias;  // may be NULL
  Spread spread;
};

// y = (x - mean) * scale, then times weight plus bias.
template <class T>
void apply_row(const T* x, T* y, int64_t row, int64_t n, T mean, T scale, const RowAffine<T>& a) {
  using L = Lane<T>;
  if (!a.weight) return apply_run(x, y, n, mean, scale, T(0));
  a.spread.over_row(row, n, [&](int64_t i, int64_t size, int64_t at) {
    if (a.spread.repeat > 1) {
      const T shift = a.bias ? a.bias[at] : T(0);
      return apply_run(x + i, y + i, size, mean, scale * a.weight[at], shift);
    }
    walk<T>(size, [&](int64_t j, auto m) {
      auto z = (L::get(x + i + j, m) - mean) * scale * L::get(a.weight + at + j, m);
      if (a.bias) z += L::get(a.bias + at + j, m);
      L::put(y + i + j, z, m);
    });
  });
}

// Rows a chunk: few and even ones, so that a worker meets the rows that it has in its caches.
inline int64_t row_grain(int64_t rows, int64_t n) {
  constexpr int64_t kChunk = 1 << 14, kChunks = 16;
  const int64_t chunks = std::clamp<int64_t>(rows * n / kChunk, 1, kChunks);
  return std::max<int64_t>(1, (rows + chunks - 1) / chunks);
}

template <class T>
void layer_norm(const T* x, T* y, T* mean, T* var, RowAffine<T> a, T eps, int64_t rows, int64_t n) {
  parallel_for(rows, row_grain(rows, n), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      run_moments(x + r * n, 1, n, n, mean + r, var + r);
      apply_row(x + r * n, y + r * n, r, n, mean[r], 1 / std::sqrt(var[r] + eps), a);
    }
  });
}

template <class T>
void rms_norm(const T* x, T* y, RowAffine<T> a, T eps, int64_t rows, int64_t n) {
  using L = Lane<T>;
  parallel_for(rows, row_grain(rows, n), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* row = x + r * n;
      const T squares = sum_over<T>(n, [=](int64_t j, auto m) {
        auto v = L::get(row + j, m);
        return v * v;
      });
      apply_row(row, y + r * n, r, n, T(0), 1 / std::sqrt(squares / T(n) + eps), a);
    }
  });
}

template <class T>
uint64_t layer_norm_backward_bytes(int64_t rows, int64_t n, int64_t weights) {
  return sizeof(T) * 2 * static_cast<uint64_t>(weights) * static_cast<uint64_t>(pieces_of(rows, n));
}

// dx = rstd * (g - mean(g) - z * mean(g * z)) with g = weight * dy and z = (x - mean) * rstd.
template <class T>
void layer_norm_backward(const T* x, const T* dy, const T* mean, const T* var, T* dx, T* dweight, T* dbias,
                         RowAffine<T> a, T eps, int64_t rows, int64_t n, T* parts) {
  using L = Lane<T>;
  const int64_t weights = a.spread.count;
  over_pieces(rows, n, 2 * weights, parts, [=](int64_t begin, int64_t end, T* out) {
    if (a.weight) std::fill(out, out + 2 * weights, T(0));
    for (int64_t r = begin; r < end; ++r) {
      const T *xs = x + r * n, *gs = dy + r * n, m0 = mean[r], rstd = 1 / std::sqrt(var[r] + eps);
      T total = 0, product = 0;
      const auto add_run = [&](int64_t i, int64_t size, int64_t at) {  // of one weight
        auto s = L::splat(0), q = L::splat(0);
        walk<T>(size, [&](int64_t j, auto m) {
          auto g = L::get(gs + i + j, m);
          s += g, q += L::first(g * (L::get(xs + i + j, m) - m0), m);
        });
        const T sum_g = L::total(s), sum_product = L::total(q), w = a.weight ? a.weight[at] : T(1);
        total += w * sum_g, product += w * sum_product;
        if (a.weight) out[at] += sum_product * rstd, out[weights + at] += sum_g;
      };
      const auto add_vectors = [&](int64_t i, int64_t size, int64_t at) {
        auto s = L::splat(0), q = L::splat(0);
        T *dw = out + at, *db = out + weights + at;
        walk<T>(size, [&](int64_t j, auto m) {
          auto given = L::get(gs + i + j, m), d = L::get(xs + i + j, m) - m0;
          auto g = given * L::get(a.weight + at + j, m);
          s += g, q += g * d;
          L::put(dw + j, L::get(dw + j, m) + given * (d * rstd), m);
          L::put(db + j, L::get(db + j, m) + given, m);
        });
        total += L::total(s), product += L::total(q);
      };
      if (!a.weight)
        add_run(0, n, 0);
      else if (a.spread.repeat > 1)
        a.spread.over_row(r, n, add_run);
      else
        a.spread.over_row(r, n, add_vectors);
      const T less = total / T(n), slope = rstd * rstd * product / T(n);
      const auto write = [&](int64_t i, int64_t size, auto weight) {
        walk<T>(size, [&](int64_t j, auto m) {
          auto g = L::get(gs + i + j, m) * weight(j, m);
          L::put(dx + r * n + i + j, (g - less - (L::get(xs + i + j, m) - m0) * slope) * rstd, m);
        });
      };
      if (!a.weight)
        write(0, n, [](int64_t, auto) { return T(1); });
      else
        a.spread.over_row(r, n, [&](int64_t i, int64_t size, int64_t at) {
          if (a.spread.repeat > 1)
            write(i, size, [&](int64_t, auto) { return a.weight[at]; });
          else
            write(i, size, [&](int64_t j, auto m) { return L::get(a.weight + at + j, m); });
        });
    }
  });
  if (!a.weight) return;
  std::fill(dweight, dweight + weights, T(0)), std::fill(dbias, dbias + weights, T(0));
  for (int64_t i = 0, pieces = pieces_of(rows, n); i < pieces; ++i)
    for (int64_t j = 0; j < weights; ++j)
      dweight[j] += parts[i * 2 * weights + j], dbias[j] += parts[i * 2 * weights + weights + j];
}

}  // namespace mge::cpu

#endif  // MGE_CPU_LAYER_NORM_HPP
