// argmax, argmin, all, any, count_nonzero.
#include "mge/cpu/halves.hpp"
#include "mge/cpu/positions.hpp"

namespace {

using namespace mge;
using namespace mge::cpu;

template <class T>
using Element = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;

// Whether x goes before the best so far: by order, and a NaN before all numbers.
template <class Join, class T>
MGE_INLINE bool is_before(T x, T best) {
  const bool better = std::is_same_v<Join, Largest> ? x > best : x < best;
  return better | ((x != x) & (best == best));
}

// The first position of the extremum of n elements in a row: of the piece that holds it, then in the piece.
template <class Join, class T>
int32_t position_in_row(const T* x, int64_t n) {
  constexpr int64_t kLength = 4096;
  T best = fold<Join>(x, std::min(n, kLength));
  int64_t start = 0;
  for (int64_t i = kLength; i < n; i += kLength) {
    const T found = fold<Join>(x + i, std::min(kLength, n - i));
    if (is_before<Join>(found, best)) best = found, start = i;
  }
  const T* from = x + start;
  while (best == best ? *from != best : *from == *from) ++from;
  return static_cast<int32_t>(from - x);
}

template <class Join, class T>
Function position(const Use& use) {
  const auto& shape = use.inputs[0].shape;
  const Middle m = use.has("axis") ? Middle(shape, {use.integer("axis", 0)}) : Middle({use.inputs[0].size()}, {0});
  return [=](const Run& run) {
    const T* x = run.in<T>(0);
    int32_t* y = run.out<int32_t>(0);
    const int64_t work = std::max<int64_t>(1, m.n * m.c);
    parallel_for(m.k, std::max<int64_t>(1, kPiece / work), [=](int64_t begin, int64_t end) {
      constexpr int64_t kStrip = 64;
      for (int64_t k = begin; k < end; ++k) {
        if (m.c == 1) {
          y[k] = position_in_row<Join>(x + k * m.n, m.n);
          continue;
        }
        for (int64_t from = 0; from < m.c; from += kStrip) {
          const int64_t size = std::min(kStrip, m.c - from);
          const T* row = x + k * m.n * m.c + from;
          T best[kStrip];
          int32_t place[kStrip] = {};
          std::copy(row, row + size, best);
          for (int64_t i = 1; i < m.n; ++i) {
            row += m.c;
            for (int64_t j = 0; j < size; ++j) {
              const bool better = is_before<Join>(row[j], best[j]);
              place[j] = better ? static_cast<int32_t>(i) : place[j];
              best[j] = better ? row[j] : best[j];
            }
          }
          std::copy(place, place + size, y + k * m.c + from);
        }
      }
    });
  };
}

template <class Join, class A, class T>
void add_truth(Kernels& kernels, const char* op) {
  kernels
      .prepared<T>(op,
                   [](const Use& use) -> Function {
                     const Reduction plan(use.inputs[0].shape, axes_of(use));
                     return [=](const Run& run) {
                       plan.run<Join, A, NonZero>(run.in<Element<T>>(0), run.out<A>(0), run.workspace);
                     };
                   })
      .workspace([](const Use& use) {
        return Reduction(use.inputs[0].shape, axes_of(use)).workspace_bytes(sizeof(A));
      });
}

}  // namespace

void add_discrete(Kernels& kernels) {
  for_types<bool, int32_t, int64_t, uint8_t, float, double>([&](auto tag) {
    using T = typename decltype(tag)::type;
    kernels.prepared<T>("argmax", position<Largest, Element<T>>);
    kernels.prepared<T>("argmin", position<Smallest, Element<T>>);
  });
  for_types<bool, int32_t, int64_t, uint8_t, float, double>([&](auto tag) {
    using T = typename decltype(tag)::type;
    add_truth<Every, uint8_t, T>(kernels, "all");
    add_truth<Some, uint8_t, T>(kernels, "any");
    add_truth<Sum, uint32_t, T>(kernels, "count_nonzero");
  });
  also_halves(kernels, {"argmax", "argmin", "all", "any", "count_nonzero"});
}
