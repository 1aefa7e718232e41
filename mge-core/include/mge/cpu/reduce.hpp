// mge/cpu/reduce.hpp: many elements to one, along axes.
//
// In: dense arrays. Out: `fold` and `fold_columns` for one thread, and `Reduction` for whole tensors on all threads.
// Work is cut by shape alone, and partial results are joined in the order of their pieces: equal bits on every run.
// Sums add a few hundred elements in a row, then sums of these: the error grows slowly with the count.
#ifndef MGE_CPU_REDUCE_HPP
#define MGE_CPU_REDUCE_HPP

#include <algorithm>
#include <limits>
#include <vector>

#include "mge/cpu/vec.hpp"

namespace mge::cpu {

template <class T, size_t bytes>
struct VectorOf {
  typedef T type __attribute__((vector_size(bytes)));
};
// A vector of T as wide as the registers.
template <class T>
using vec = typename VectorOf<T, 4 * kWidth>::type;
template <class T>
constexpr int kLanes = 4 * kWidth / sizeof(T);

// Asks for what will be read soon: the processor's own prefetching stops short in loops of many streams.
template <class T>
MGE_INLINE void prefetch(const T* p) {
  __builtin_prefetch(reinterpret_cast<const char*>(p) + 4096);
}

// ---- What joins two elements; `start` joined with x is x ----

struct Sum {
  template <class T>
  static constexpr T start = T(0);
  template <class V>
  MGE_INLINE static V join(V a, V b) {
    return a + b;
  }
};
struct Product {
  template <class T>
  static constexpr T start = T(1);
  template <class V>
  MGE_INLINE static V join(V a, V b) {
    return a * b;
  }
};
// NaN wins, as in NumPy.
struct Largest {
  template <class T>
  static constexpr T start =
      std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
  template <class V>
  MGE_INLINE static V join(V a, V b) {
    V most = a > b ? a : b;
    return a == a ? most : a;
  }
};
struct Smallest {
  template <class T>
  static constexpr T start =
      std::numeric_limits<T>::has_infinity ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
  template <class V>
  MGE_INLINE static V join(V a, V b) {
    V least = a < b ? a : b;
    return a == a ? least : a;
  }
};
struct Every {  // of 0 and 1
  template <class T>
  static constexpr T start = T(1);
  template <class V>
  MGE_INLINE static V join(V a, V b) {
    return a & b;
  }
};
struct Some {
  template <class T>
  static constexpr T start = T(0);
  template <class V>
  MGE_INLINE static V join(V a, V b) {
    return a | b;
  }
};

// ---- How an element is read ----

struct AsIs {
  template <class A, class T>
  MGE_INLINE static A read(T x) {
    return static_cast<A>(x);
  }
};
struct NonZero {
  template <class A, class T>
  MGE_INLINE static A read(T x) {
    return x != T(0);
  }
};

// ---- One thread ----

// Joins lane i with lane i + half, and so on.
template <class Join, class T, size_t bytes>
MGE_INLINE T fold_lanes(const void* lanes) {
  typename VectorOf<T, bytes>::type v;
  std::memcpy(&v, lanes, bytes);
  if constexpr (bytes == 2 * sizeof(T)) {
    return Join::join(v[0], v[1]);
  } else if constexpr (bytes == 16) {  // of floats
    typedef int32_t I __attribute__((vector_size(16)));
    v = Join::join(v, __builtin_shuffle(v, I{2, 3, 0, 1}));
    return Join::join(v, __builtin_shuffle(v, I{1, 0, 3, 2}))[0];
  } else {
    typename VectorOf<T, bytes / 2>::type halves[2];
    std::memcpy(halves, &v, bytes);
    auto joined = Join::join(halves[0], halves[1]);
    return fold_lanes<Join, T, bytes / 2>(&joined);
  }
}

// Joins n elements in a row.
template <class Join, class A, class Read, class T>
A fold(const T* x, int64_t n) {
  A total = Join::template start<A>;
  int64_t i = 0;
  if constexpr (std::is_same_v<T, A> && std::is_same_v<Read, AsIs> && std::is_floating_point_v<T>) {
    constexpr int L = kLanes<T>, U = 8;
    if (n >= L) {
      vec<T> all = vec<T>{} + Join::template start<T>;
      while (i + L <= n) {
        const int64_t end = std::min(n, i + 4096);
        vec<T> part[U];
        MGE_UNROLL
        for (int u = 0; u < U; ++u) part[u] = vec<T>{} + Join::template start<T>;
        for (; i + U * L <= end; i += U * L)
          MGE_UNROLL
          for (int u = 0; u < U; ++u) part[u] = Join::join(part[u], load_as<vec<T>>(x + i + u * L));
        for (; i + L <= end; i += L) part[0] = Join::join(part[0], load_as<vec<T>>(x + i));
        MGE_UNROLL
        for (int half = U / 2; half > 0; half /= 2)
          MGE_UNROLL
          for (int u = 0; u < half; ++u) part[u] = Join::join(part[u], part[u + half]);
        all = Join::join(all, part[0]);
      }
      total = fold_lanes<Join, T, sizeof all>(&all);
    }
  }
  for (; i < n; ++i) total = static_cast<A>(Join::join(total, Read::template read<A>(x[i])));
  return total;
}

template <class Join, class T>
T fold(const T* x, int64_t n) {
  return fold<Join, T, AsIs>(x, n);
}

// y[j] = x[0][j] joined with x[1][j], ..., x[n - 1][j], for rows of c elements that lie `step` apart.
template <class Join, class A, class Read, class T>
void fold_columns(const T* x, int64_t n, int64_t c, int64_t step, A* y) {
  const auto at = [](const T* p) { return Read::template read<A>(*p); };
  const auto join = [](A a, A b) { return static_cast<A>(Join::join(a, b)); };
  constexpr int64_t kNarrow = 32;
  if (c < kNarrow && step == c && n >= 4 * kNarrow) {  // several rows as one, so that vectors are full
    const int64_t rows = kNarrow * 2 / c, wide = rows * c;
    A part[kNarrow * 2];
    fold_columns<Join, A, Read>(x, n / rows, wide, wide, part);
    fold_columns<Join, A, AsIs>(part, rows, c, c, y);
    for (int64_t i = n / rows * rows; i < n; ++i)
      for (int64_t j = 0; j < c; ++j) y[j] = join(y[j], at(x + i * c + j));
    return;
  }
  constexpr int64_t kStrip = 2048;  // results that stay in the first-level cache
  for (int64_t from = 0; from < c; from += kStrip) {
    const int64_t size = std::min(kStrip, c - from);
    A* __restrict z = y + from;
    for (int64_t j = 0; j < size; ++j) z[j] = Join::template start<A>;
    const T* p = x + from;
    int64_t i = 0;
    if constexpr (std::is_floating_point_v<A>)
      for (; i + 8 <= n; i += 8, p += 8 * step)
        for (int64_t j = 0; j < size; ++j) {
          const T* q = p + j;
          A a = join(at(q), at(q + step)), b = join(at(q + 2 * step), at(q + 3 * step));
          A d = join(at(q + 4 * step), at(q + 5 * step)), e = join(at(q + 6 * step), at(q + 7 * step));
          z[j] = join(z[j], join(join(a, b), join(d, e)));
        }
    for (; i < n; ++i, p += step)
      for (int64_t j = 0; j < size; ++j) z[j] = join(z[j], at(p + j));
  }
}

template <class Join, class T>
void fold_columns(const T* x, int64_t n, int64_t c, int64_t step, T* y) {
  fold_columns<Join, T, AsIs>(x, n, c, step, y);
}

// ---- Whole tensors ----

constexpr int64_t kPiece = 1 << 16;  // elements that are worth a second thread

// Neighbouring axes that are both reduced, or both kept, joined: (is reduced, size), the outermost first.
inline std::vector<std::pair<bool, int64_t>> axis_groups(const std::vector<int64_t>& shape, std::vector<int64_t> axes) {
  for (int64_t& axis : axes) axis += axis < 0 ? static_cast<int64_t>(shape.size()) : 0;
  std::vector<std::pair<bool, int64_t>> groups;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 1) continue;
    bool reduced = std::count(axes.begin(), axes.end(), static_cast<int64_t>(i));
    if (!groups.empty() && groups.back().first == reduced)
      groups.back().second *= shape[i];
    else
      groups.push_back({reduced, shape[i]});
  }
  return groups;
}

// The axes of an attribute that is an integer, a tuple of them, or None: all axes.
inline std::vector<int64_t> axes_of(const Use& use, const char* attr = "axis") {
  std::vector<int64_t> axes = use.integers(attr);
  if (!use.has(attr))
    for (size_t i = 0; i < use.inputs[0].shape.size(); ++i) axes.push_back(static_cast<int64_t>(i));
  return axes;
}

// A reduction of any axes, as steps that each reduce the middle of (k, n, c), the innermost axes first.
class Reduction {
 public:
  Reduction(const std::vector<int64_t>& shape, const std::vector<int64_t>& axes) {
    auto groups = axis_groups(shape, axes);
    int64_t c = 1;
    while (!groups.empty()) {
      auto [reduced, n] = groups.back();
      groups.pop_back();
      if (!reduced) {
        c *= n;
        continue;
      }
      int64_t k = 1;
      for (auto& group : groups) k *= group.second;
      steps_.push_back({k, n, c, 1});
      cut(steps_.back());
    }
    if (steps_.empty()) steps_.push_back({1, 1, c, 1});
  }

  // Of `width` bytes an element.
  uint64_t workspace_bytes(uint64_t width) const {
    int64_t count = 0;
    for (const Step& step : steps_) count += step.k * step.c * (step.pieces > 1 ? step.pieces + 1 : 1);
    return static_cast<uint64_t>(count) * width;
  }

  template <class Join, class A, class Read = AsIs, class T = A>
  void run(const T* x, A* y, void* workspace) const {
    A* free = static_cast<A*>(workspace);
    const A* from = nullptr;
    for (size_t i = 0; i < steps_.size(); ++i) {
      const Step& step = steps_[i];
      A* to = y;
      if (i + 1 < steps_.size()) to = free, free += step.k * step.c;
      if (i == 0)
        run_step<Join, A, Read>(step, x, to, free);
      else
        run_step<Join, A, AsIs>(step, from, to, free);
      if (step.pieces > 1) free += step.k * step.c * step.pieces;
      from = to;
    }
  }

 private:
  struct Step {
    int64_t k, n, c, pieces;  // `pieces` of n are reduced on their own, then joined
    int64_t length() const { return (n + pieces - 1) / pieces; }
  };

  static void cut(Step& step) {
    if (step.n * step.c < 2 * kPiece || step.k >= 8) return;
    int64_t length = std::max<int64_t>(step.c == 1 ? kPiece : 64, kPiece / step.c);
    if (step.n < 2 * length) return;
    step.pieces = (step.n + length - 1) / length;
    step.pieces = (step.n + step.length() - 1) / step.length();  // none is empty
  }

  template <class Join, class A, class Read, class T>
  static void run_step(const Step& step, const T* x, A* y, A* parts) {
    const int64_t n = step.n, c = step.c, length = step.length();
    if (step.pieces > 1) {
      parallel_for(step.k * step.pieces, 1, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t start = i % step.pieces * length, count = std::min(length, n - start);
          fold_part<Join, A, Read>(x + (i / step.pieces * n + start) * c, count, c, parts + i * c);
        }
      });
      for (int64_t k = 0; k < step.k; ++k)
        fold_part<Join, A, AsIs>(parts + k * step.pieces * c, step.pieces, c, y + k * c);
      return;
    }
    if (step.k == 1 && n && n * c >= 2 * kPiece) {  // few rows: cut the columns
      const int64_t width = std::max<int64_t>(1024, kPiece / n);
      parallel_for(c, width, [=](int64_t begin, int64_t end) {
        fold_columns<Join, A, Read>(x + begin, n, end - begin, c, y + begin);
      });
      return;
    }
    parallel_for(step.k, std::max<int64_t>(1, kPiece / std::max<int64_t>(n * c, 1)), [=](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) fold_part<Join, A, Read>(x + k * n * c, n, c, y + k * c);
    });
  }

  template <class Join, class A, class Read, class T>
  static void fold_part(const T* x, int64_t n, int64_t c, A* y) {
    if (c == 1)
      *y = fold<Join, A, Read>(x, n);
    else
      fold_columns<Join, A, Read>(x, n, c, c, y);
  }

  std::vector<Step> steps_;
};

}  // namespace mge::cpu

#endif  // MGE_CPU_REDUCE_HPP
