// mge/cpu/positions.hpp: positions that integer tensors hold, and the middle axes of a shape.
//
// In: tensors of any integer dtype. Out: int64 positions, checked before anything is written.
#ifndef MGE_CPU_POSITIONS_HPP
#define MGE_CPU_POSITIONS_HPP

#include <algorithm>
#include <string>

#include "mge/cpu/reduce.hpp"

namespace mge::cpu {

// Calls f with `data` as a pointer to the elements of an integer dtype.
template <class F>
void with_integers(MgeDataType dtype, const void* data, F&& f) {
  for_types<int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t>([&](auto tag) {
    using T = typename decltype(tag)::type;
    if (dtype == dtype_of<T>()) f(static_cast<const T*>(data));
  });
}

// Copies n integers; uint64 beyond int64 becomes negative, and is out of range for any axis.
inline void read_integers(const MgeTensor& from, int64_t n, int64_t* to) {
  with_integers(from.dtype, from.data, [&](auto* x) {
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<int64_t>(x[i]);
  });
}

// Makes positions from -size to size - 1 count from 0; raises an error for others.
inline void check_positions(int64_t* x, int64_t n, int64_t size, int64_t axis) {
  bool good = true;
  for (int64_t i = 0; i < n; ++i) good &= x[i] >= -size && x[i] < size;
  if (!good) {
    const int64_t* bad = std::find_if(x, x + n, [=](int64_t at) { return at < -size || at >= size; });
    throw Failure(MGE_INDEX_RANGE, "index " + std::to_string(*bad) + " is out of range for axis " +
                                       std::to_string(axis) + ", which has " + std::to_string(size) + " elements (-" +
                                       std::to_string(size) + " to " + std::to_string(size - 1) + ")");
  }
  for (int64_t i = 0; i < n; ++i) x[i] += x[i] < 0 ? size : 0;
}

// Raises the error of labels that name no class.
inline void check_labels(const int64_t* label, int64_t n, int64_t classes) {
  if (!n) return;
  auto [least, most] = std::minmax_element(label, label + n);
  if (*least >= 0 && *most < classes) return;
  throw Failure(MGE_INDEX_RANGE, "a label is " + std::to_string(*most >= classes ? *most : *least) +
                                     "; pred has " + std::to_string(classes) + " classes, so labels must be 0 to " +
                                     std::to_string(classes - 1));
}

// A shape as (k, n, c) around the axes in the middle; `whole` is false where other axes lie between them.
struct Middle {
  int64_t k = 1, n = 1, c = 1;
  bool whole = true;

  Middle(const std::vector<int64_t>& shape, const std::vector<int64_t>& axes) {
    bool seen = false;
    for (auto [reduced, size] : axis_groups(shape, axes)) {
      if (reduced) whole = !seen, n = size, seen = true;
      else (seen ? c : k) *= size;
    }
  }
};

}  // namespace mge::cpu

#endif  // MGE_CPU_POSITIONS_HPP
