// mge/cpu/softmax.hpp: softmax, its logarithm, and cross entropy with integer labels, along the middle of (k, n, c).
//
// In: dense float32 or float64. Out: the same. The largest score is subtracted first.
// After lane.hpp.
#ifndef MGE_CPU_SOFTMAX_HPP
#define MGE_CPU_SOFTMAX_HPP

#include "mge/cpu/lane.hpp"

namespace mge::cpu {

// The larger, in one instruction. It may lose a NaN, but the sum of exponentials will not.
struct Greater {
  template <class T>
  static constexpr T start = Largest::start<T>;
  template <class V>
  MGE_INLINE static V join(V a, V b) {
    return a > b ? a : b;
  }
};

constexpr int64_t kStripColumns = 64;  // columns that are worked on together

// Writes exp(x - top) to y and returns their sum; `y` may be `x`.
template <class T>
T exponentials(const T* x, T top, T* y, int64_t n) {
  using L = Lane<T>;
  return sum_over<T>(n, [=](int64_t i, auto m) {
    auto e = exp(L::get(x + i, m) - top);
    L::put(y + i, e, m);
    return e;
  });
}

// The same without a place for the exponentials.
template <class T>
T sum_of_exponentials(const T* x, T top, int64_t n) {
  return sum_over<T>(n, [=](int64_t i, auto m) { return exp(Lane<T>::get(x + i, m) - top); });
}

// For each of `size` columns of n rows that lie `step` apart: its largest element, and the sum of exp(x - top).
// With `y` the exponentials are written there.
template <class T>
void column_exponentials(const T* x, int64_t n, int64_t size, int64_t step, T* y, T* top, T* total) {
  using L = Lane<T>;
  fold_columns<Greater>(x, n, size, step, top);
  std::fill(total, total + size, T(0));
  for (int64_t i = 0; i < n; ++i)
    walk<T>(size, [&](int64_t j, auto m) {
      auto e = exp(L::get(x + i * step + j, m) - L::get(top + j, m));
      if (y) L::put(y + i * step + j, e, m);
      L::put(total + j, L::get(total + j, m) + e, m);
    });
}

// Calls row(i) for each i of k where c is 1, else strip(i, j, size) for columns j to j + size - 1 of each i.
template <class Row, class Strip>
void along_middle(int64_t k, int64_t n, int64_t c, Row&& row, Strip&& strip) {
  const int64_t work = kPiece / 4;  // exponentials take longer than sums
  if (c == 1) {
    parallel_for(k, std::max<int64_t>(1, work / std::max<int64_t>(n, 1)), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) row(i);
    });
    return;
  }
  const int64_t strips = (c + kStripColumns - 1) / kStripColumns, each = n * std::min(c, kStripColumns);
  parallel_for(k * strips, std::max<int64_t>(1, work / std::max<int64_t>(each, 1)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t from = i % strips * kStripColumns;
      strip(i / strips, from, std::min(kStripColumns, c - from));
    }
  });
}

template <class T>
void softmax(const T* x, T* y, int64_t k, int64_t n, int64_t c) {
  using L = Lane<T>;
  along_middle(
      k, n, c,
      [=](int64_t r) {
        T* row = y + r * n;
        const T scale = 1 / exponentials(x + r * n, fold<Greater>(x + r * n, n), row, n);
        walk<T>(n, [&](int64_t i, auto m) { L::put(row + i, L::get(row + i, m) * scale, m); });
      },
      [=](int64_t r, int64_t from, int64_t size) {
        T top[kStripColumns], total[kStripColumns];
        T* rows = y + r * n * c + from;
        column_exponentials(x + r * n * c + from, n, size, c, rows, top, total);
        for (int64_t j = 0; j < size; ++j) total[j] = 1 / total[j];
        for (int64_t i = 0; i < n; ++i)
          walk<T>(size, [&](int64_t j, auto m) {
            L::put(rows + i * c + j, L::get(rows + i * c + j, m) * L::get(total + j, m), m);
          });
      });
}

template <class T>
void logsoftmax(const T* x, T* y, int64_t k, int64_t n, int64_t c) {
  using L = Lane<T>;
  along_middle(
      k, n, c,
      [=](int64_t r) {
        const T* row = x + r * n;
        const T top = fold<Greater>(row, n), less = std::log(sum_of_exponentials(row, top, n));
        walk<T>(n, [&](int64_t i, auto m) { L::put(y + r * n + i, (L::get(row + i, m) - top) - less, m); });
      },
      [=](int64_t r, int64_t from, int64_t size) {
        T top[kStripColumns], total[kStripColumns];
        const T* rows = x + r * n * c + from;
        column_exponentials<T>(rows, n, size, c, nullptr, top, total);
        for (int64_t j = 0; j < size; ++j) total[j] = std::log(total[j]);
        for (int64_t i = 0; i < n; ++i)
          walk<T>(size, [&](int64_t j, auto m) {
            auto shifted = L::get(rows + i * c + j, m) - L::get(top + j, m);
            L::put(y + (r * n + i) * c + from + j, shifted - L::get(total + j, m), m);
          });
      });
}

// y[r, j] = log(sum_i exp(x[r, i, j])) - (1 - smooth) * x[r, label[r, j], j] - smooth * mean_i x[r, i, j]
template <class T>
void cross_entropy(const T* x, const int64_t* label, T smooth, T* y, int64_t k, int64_t n, int64_t c) {
  const auto loss = [=](T top, T total, T picked, T all) {
    T result = std::log(total) + top;
    return smooth != 0 ? result - (1 - smooth) * picked - smooth * (all / T(n)) : result - picked;
  };
  along_middle(
      k, n, c,
      [=](int64_t r) {
        const T* row = x + r * n;
        const T top = fold<Greater>(row, n), all = smooth != 0 ? fold<Sum>(row, n) : 0;
        y[r] = loss(top, sum_of_exponentials(row, top, n), row[label[r]], all);
      },
      [=](int64_t r, int64_t from, int64_t size) {
        T top[kStripColumns], total[kStripColumns], all[kStripColumns] = {};
        const T* rows = x + r * n * c + from;
        column_exponentials<T>(rows, n, size, c, nullptr, top, total);
        if (smooth != 0) fold_columns<Sum>(rows, n, size, c, all);
        for (int64_t j = 0; j < size; ++j)
          y[r * c + from + j] = loss(top[j], total[j], rows[label[r * c + from + j] * c + j], all[j]);
      });
}

// y[r, i, j] = dy[r, j] * (softmax(x)[r, i, j] - (1 - smooth) * (i == label[r, j]) - smooth / n); y may be x.
template <class T>
void cross_entropy_grad(const T* dy, const T* x, const int64_t* label, T smooth, T* y, int64_t k, int64_t n,
                        int64_t c) {
  using L = Lane<T>;
  const T less = smooth / T(n), hit = 1 - smooth;
  along_middle(
      k, n, c,
      [=](int64_t r) {
        T* row = y + r * n;
        const T scale = 1 / exponentials(x + r * n, fold<Greater>(x + r * n, n), row, n), factor = dy[r];
        const T picked = (row[label[r]] * scale - less - hit) * factor;
        walk<T>(n, [&](int64_t i, auto m) { L::put(row + i, (L::get(row + i, m) * scale - less) * factor, m); });
        row[label[r]] = picked;
      },
      [=](int64_t r, int64_t from, int64_t size) {
        T top[kStripColumns], total[kStripColumns];
        T* rows = y + r * n * c + from;
        const T* factor = dy + r * c + from;
        column_exponentials(x + r * n * c + from, n, size, c, rows, top, total);
        for (int64_t j = 0; j < size; ++j) {  // here the probability loses `hit`, before the sum divides it
          total[j] = 1 / total[j];
          T& e = rows[label[r * c + from + j] * c + j];
          top[j] = (e * total[j] - less - hit) * factor[j];
        }
        for (int64_t i = 0; i < n; ++i)
          walk<T>(size, [&](int64_t j, auto m) {
            auto p = L::get(rows + i * c + j, m) * L::get(total + j, m) - less;
            L::put(rows + i * c + j, p * L::get(factor + j, m), m);
          });
        for (int64_t j = 0; j < size; ++j) rows[label[r * c + from + j] * c + j] = top[j];
      });
}

}  // namespace mge::cpu

#endif  // MGE_CPU_SOFTMAX_HPP
