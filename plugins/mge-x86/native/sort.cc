// sort, argsort, topk along an axis, and the scans cumsum and cumprod.
#include <algorithm>
#include <cmath>

#include "mge/cpu/halves.hpp"
#include "mge/cpu/positions.hpp"

namespace {

using namespace mge;
using namespace mge::cpu;

// An unsigned key in the order of the elements: NaN is largest, all NaN are equal, and -0 equals 0.
template <class T>
auto key_of(T x, bool descending) {
  using Key = std::conditional_t<(sizeof(T) > 4), uint64_t, uint32_t>;
  constexpr Key top = Key(1) << (8 * sizeof(Key) - 1);
  Key key;
  if constexpr (std::is_floating_point_v<T>) {
    x += T(0);  // -0 becomes 0
    std::memcpy(&key, &x, sizeof key);
    key = x != x ? ~Key(0) : key & top ? ~key : key | top;
  } else if constexpr (std::is_signed_v<T>) {
    key = static_cast<Key>(static_cast<std::make_signed_t<Key>>(x)) ^ top;
  } else {
    key = x;
  }
  return descending ? static_cast<Key>(~key) : key;
}

// Sorts numbers by their upper 32 bits, which are unsigned keys; the lower 32 keep their order. By 11 bits at a time.
void radix_sort(uint64_t* x, uint64_t* space, int64_t n) {
  constexpr int kDigits = 3, kBits = 11, kBuckets = 1 << kBits;
  std::vector<int64_t> counts(kDigits * kBuckets);
  for (int64_t i = 0; i < n; ++i)
    for (int d = 0; d < kDigits; ++d) ++counts[d * kBuckets + (x[i] >> (32 + d * kBits) & (kBuckets - 1))];
  for (int d = 0; d < kDigits; ++d) {
    int64_t *count = counts.data() + d * kBuckets, start = 0;
    if (count[x[0] >> (32 + d * kBits) & (kBuckets - 1)] == n) continue;  // one digit for all
    for (int b = 0; b < kBuckets; ++b) start += std::exchange(count[b], start);
    for (int64_t i = 0; i < n; ++i) space[count[x[i] >> (32 + d * kBits) & (kBuckets - 1)]++] = x[i];
    std::swap(x, space);
  }
  if (space < x) std::copy(x, x + n, space);  // callers give `space` behind `x`
}

// Calls write(rank, position) for the first `wanted` elements in the order of the n elements x[0], x[step], ...
template <class T, class F>
void order_line(const T* x, int64_t n, int64_t step, bool descending, int64_t wanted, F&& write) {
  using Key = decltype(key_of(T(), false));
  if constexpr (sizeof(Key) == 4) {
    std::vector<uint64_t> items(static_cast<size_t>(2 * n));
    for (int64_t i = 0; i < n; ++i)
      items[i] = uint64_t(key_of(x[i * step], descending)) << 32 | static_cast<uint32_t>(i);
    uint64_t* begin = items.data();
    if (wanted < n / 4) {
      std::nth_element(begin, begin + wanted, begin + n);
      std::sort(begin, begin + wanted);
    } else if (n < 512) {
      std::sort(begin, begin + n);
    } else {
      radix_sort(begin, begin + n, n);
    }
    for (int64_t i = 0; i < wanted; ++i) write(i, static_cast<int32_t>(static_cast<uint32_t>(items[i])));
  } else {
    std::vector<std::pair<Key, int32_t>> items(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) items[i] = {key_of(x[i * step], descending), static_cast<int32_t>(i)};
    std::partial_sort(items.begin(), items.begin() + wanted, items.end());
    for (int64_t i = 0; i < wanted; ++i) write(i, items[i].second);
  }
}

template <class F>
void over_lines(const Middle& m, F&& line) {
  const int64_t grain = std::max<int64_t>(1, kPiece / 16 / std::max<int64_t>(1, m.n));
  parallel_for(m.k * m.c, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) line(i / m.c, i % m.c);
  });
}

// Reads bool as bytes.
template <class T>
using Element = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;

template <class T>
Function sort(const Use& use) {
  const Middle m(use.inputs[0].shape, {use.integer("dim", -1)});
  const bool descending = use.flag("descending"), has_values = use.name == "sort";
  return [=](const Run& run) {
    const T* x = run.in<T>(0);
    T* values = has_values ? run.out<T>(0) : nullptr;
    int32_t* indices = run.out<int32_t>(has_values);
    over_lines(m, [=](int64_t k, int64_t c) {
      const int64_t at = k * m.n * m.c + c;
      order_line(x + at, m.n, m.c, descending, m.n, [=](int64_t rank, int32_t position) {
        indices[at + rank * m.c] = position;
        if (values) values[at + rank * m.c] = x[at + position * m.c];
      });
    });
  };
}

template <class T>
Function topk(const Use& use) {
  const int64_t n = use.inputs[0].shape.back(), k = use.integer("k", 1);
  Middle m({use.inputs[0].size() / std::max<int64_t>(n, 1), n}, {1});
  m.n = n;
  const bool descending = use.flag("descending"), kth_only = use.flag("kth_only");
  return [=](const Run& run) {
    const T* x = run.in<T>(0);
    T* values = run.out<T>(0);
    int32_t* indices = kth_only ? nullptr : run.out<int32_t>(1);
    over_lines(m, [=](int64_t row, int64_t) {
      order_line(x + row * n, n, 1, descending, k, [=](int64_t rank, int32_t position) {
        if (kth_only && rank == k - 1) values[row] = x[row * n + position];
        if (!kth_only) values[row * k + rank] = x[row * n + position], indices[row * k + rank] = position;
      });
    });
  };
}

// y[i] = y[i - 1] joined with x[i], along the axis; several rows at once, so that one does not wait for its last sum.
template <class Join, class A, class T>
Function scan(const Use& use) {
  const Middle m(use.inputs[0].shape, {use.integer("axis", 0)});
  const bool reverse = use.flag("reverse");
  return [=](const Run& run) {
    const T* x = run.in<T>(0);
    A* y = run.out<A>(0);
    if (m.c > 1) {
      constexpr int64_t kStrip = 256;
      const int64_t strips = (m.c + kStrip - 1) / kStrip;
      const int64_t grain = std::max<int64_t>(1, kPiece / 2 / (m.n * kStrip + 1));
      parallel_for(m.k * strips, grain, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t from = i % strips * kStrip, size = std::min(kStrip, m.c - from);
          const int64_t start = i / strips * m.n * m.c + from + (reverse ? (m.n - 1) * m.c : 0);
          const int64_t step = reverse ? -m.c : m.c;
          for (int64_t r = 0; r < m.n; ++r) {
            const T* row = x + start + r * step;
            A* to = y + start + r * step;
            if (r == 0)
              for (int64_t j = 0; j < size; ++j) to[j] = static_cast<A>(row[j]);
            else
              for (int64_t j = 0; j < size; ++j) to[j] = Join::join(to[j - step], static_cast<A>(row[j]));
          }
        }
      });
      return;
    }
    constexpr int64_t kRows = 8;
    const int64_t grain = std::max<int64_t>(1, kPiece / 8 / (m.n * kRows + 1));
    parallel_for((m.k + kRows - 1) / kRows, grain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin * kRows; i < std::min(m.k, end * kRows); i += kRows) {
        const int64_t rows = std::min(kRows, m.k - i);
        A total[kRows];
        for (A& t : total) t = Join::template start<A>;
        for (int64_t r = 0; r < m.n; ++r) {
          const int64_t at = i * m.n + (reverse ? m.n - 1 - r : r);
          for (int64_t k = 0; k < rows; ++k)
            y[at + k * m.n] = total[k] = Join::join(total[k], static_cast<A>(x[at + k * m.n]));
        }
      }
    });
  };
}

}  // namespace

void add_sort(Kernels& kernels) {
  for_types<bool, int32_t, int64_t, uint8_t, uint64_t, float, double>([&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = std::conditional_t<std::is_floating_point_v<T>, T,
                                 std::conditional_t<sizeof(T) <= 4, uint32_t, uint64_t>>;
    kernels.prepared<T>("sort", sort<Element<T>>);
    kernels.prepared<T>("argsort", sort<Element<T>>);
    kernels.prepared<T>("topk", topk<Element<T>>);
    kernels.prepared<T>("cumsum", scan<Sum, A, Element<T>>).inplace(0);
    kernels.prepared<T>("cumprod", scan<Product, A, Element<T>>).inplace(0);
  });
  also_halves(kernels, {"sort", "argsort", "topk", "cumsum", "cumprod"});
}
