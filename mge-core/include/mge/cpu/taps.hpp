// mge/cpu/taps.hpp: which inputs meet which outputs along one axis of a convolution, forward and backward.
//
// In: length, kernel, stride, padding and dilation of an axis. Out: one Taps a phase. Before conv.hpp,
// conv_input.hpp, depthwise.hpp.
#ifndef MGE_CPU_TAPS_HPP
#define MGE_CPU_TAPS_HPP

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace mge::cpu {

struct Axis {
  int64_t length, count;  // of the image, of the result
  int64_t kernel, stride, padding, dilation;
};

// For b > 0. Nearly always b is 1 here, and a division is slow.
inline int64_t ceil_div(int64_t a, int64_t b) { return b == 1 ? a : a / b + (a % b > 0); }

// Output number j lies at out + j * out_step. Its tap i, of weight w + i * w_step, meets the input at
// in + j * in_step + i * tap_step, where that is in 0 .. length - 1.
struct Taps {
  int64_t out, out_step, outs;
  int64_t w, w_step, taps;
  int64_t in, in_step, tap_step;  // tap_step > 0, in_step > 0
  int64_t length;

  struct Range {
    int64_t begin, end;
  };
  Range inside(int64_t j) const {  // the taps of output j that meet an input
    int64_t at = in + j * in_step, begin = std::max<int64_t>(0, ceil_div(-at, tap_step));
    return {begin, std::max(begin, std::min(taps, ceil_div(length - at, tap_step)))};
  }
  Range whole() const {  // the outputs of which all taps meet an input
    if (!taps) return {0, outs};
    int64_t begin = std::min(outs, std::max<int64_t>(0, ceil_div(-in, in_step)));
    return {begin, std::max(begin, std::min(outs, ceil_div(length - (taps - 1) * tap_step - in, in_step)))};
  }
};

inline Taps forward_taps(const Axis& a) {
  return {0, 1, a.count, 0, 1, a.kernel, -a.padding, a.stride, a.dilation, a.length};
}

// The outputs are those of the gradient, the inputs are of dy; one phase for each position modulo the stride.
// Weights are numbered as they lie when rotated: tap k of the convolution is number kernel - 1 - k.
inline std::vector<Taps> backward_taps(const Axis& a) {
  std::vector<Taps> phases;
  int64_t common = std::gcd(a.stride, a.dilation), step = a.stride / common;
  for (int64_t q = 0; q < std::min(a.stride, a.length); ++q) {
    int64_t last = a.kernel;  // of the taps k with (q + padding - k * dilation) % stride == 0, the largest
    while (--last >= 0 && (q + a.padding - last * a.dilation) % a.stride) {
    }
    int64_t taps = last < 0 ? 0 : last / step + 1, in = last < 0 ? 0 : (q + a.padding - last * a.dilation) / a.stride;
    phases.push_back({q, a.stride, ceil_div(a.length - q, a.stride), a.kernel - 1 - last, step, taps, in, 1,
                      a.dilation / common, a.count});
  }
  return phases;
}

}  // namespace mge::cpu

#endif  // MGE_CPU_TAPS_HPP
