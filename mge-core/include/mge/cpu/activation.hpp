// mge/cpu/activation.hpp: what a kernel does with its results before, or just after, it stores them.
//
// In: an activation's name. Out: bounds, where it is a clip that a kernel does in registers, else a function for
// stored rows that are still in the level-1 cache.
#ifndef MGE_CPU_ACTIVATION_HPP
#define MGE_CPU_ACTIVATION_HPP

#include <limits>
#include <string>

#include "mge/cpu/math.hpp"
#include "mge/cpu/vec.hpp"

namespace mge::cpu {

struct Activation {
  bool clip = false;  // results are kept in low .. high
  float low = -std::numeric_limits<float>::infinity(), high = std::numeric_limits<float>::infinity();
  void (*rows)(float* y, ptrdiff_t y_row, int64_t rows, int64_t columns) = nullptr;  // (optional) in place
};

template <class F>
void activate_rows(float* y, ptrdiff_t y_row, int64_t rows, int64_t columns, F f) {
  for (int64_t r = 0; r < rows; ++r, y += y_row) {
    int64_t c = 0;
    for (; c + kWidth <= columns; c += kWidth) store(y + c, f(load(y + c)));
    if (c < columns) store_n(y + c, f(load_n(y + c, columns - c)), columns - c);
  }
}

inline Activation activation_of(const std::string& name) {
  Activation made;
  if (name.empty()) return made;
  if (name == "relu" || name == "relu6") {
    made.clip = true, made.low = 0;
    if (name == "relu6") made.high = 6;
    return made;
  }
#define MGE_ROWS(function)                                                \
  if (name == #function) {                                                \
    made.rows = [](float* y, ptrdiff_t y_row, int64_t rows, int64_t columns) { \
      activate_rows(y, y_row, rows, columns, [](vf x) { return function(x); }); \
    };                                                                    \
    return made;                                                          \
  }
  MGE_ROWS(sigmoid)
  MGE_ROWS(tanh)
  MGE_ROWS(silu)
  MGE_ROWS(gelu)
  MGE_ROWS(hswish)
  MGE_ROWS(hsigmoid)
#undef MGE_ROWS
  throw Failure(MGE_UNSUPPORTED, "no activation " + name);
}

}  // namespace mge::cpu

#endif  // MGE_CPU_ACTIVATION_HPP
